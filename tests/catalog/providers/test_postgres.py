"""Postgres as a store of an index: its tables, its faults, lost connections."""

import logging
import os
import pickle
import re
import signal
import time
import traceback

import pytest

from fastshard.catalog.entry import DatasetEntry
from fastshard.catalog.providers.create import create_provider
from fastshard.catalog.providers.postgres import PostgresProvider
from fastshard.errors import FormatError, IndexRowError, RemoteError
from support.inside.typed import idle_of, set_provider_timeout
from support.servers.databases.postgres import serve_postgres
from support.servers.databases.process import free_port
from support.threads import HANG

psycopg = pytest.importorskip("psycopg")

ENTRY = DatasetEntry("plain", "ref", ["a.tar"], {"n": 1})
SECRET = "a-very-secret-word"
COLUMNS = (
    "SELECT table_name, column_name, data_type, is_nullable, column_default "
    "FROM information_schema.columns WHERE table_schema = 'public'"
)
INDEXES = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'"


@pytest.fixture
def kind():
    return "postgres"


@pytest.fixture
def sql(options):
    """Return a connection to the store's database."""
    with psycopg.connect(options["dsn"], autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def own_server():
    """Run a server that tests kill and start again."""
    with serve_postgres() as server:
        yield server


def structure(connection):
    return {*connection.execute(COLUMNS)}, {*connection.execute(INDEXES)}


def connected_pids(server):
    """Return the server's processes that providers are connected to."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        found = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'fastshard'"
        )
        return [pid for (pid,) in found]


def test_tables_are_those_of_atdata(provider, sql, index_data, postgres_server):
    provider.store_entry(ENTRY)
    with psycopg.connect(postgres_server.new()["dsn"], autocommit=True) as theirs:
        theirs.execute(index_data.postgres())
        assert structure(sql) == structure(theirs)


def test_values_are_those_of_atdata(provider, sql):
    msgpack = pytest.importorskip("msgpack")
    provider.store_entry(ENTRY)
    provider.store_label("plain", ENTRY.cid, None, "words")
    (row,) = sql.execute("SELECT * FROM dataset_entries").fetchall()
    urls, metadata = msgpack.packb(["a.tar"]), msgpack.packb({"n": 1})
    assert row[:6] == (ENTRY.cid, "plain", "ref", urls, metadata, None)
    (row,) = sql.execute("SELECT * FROM labels").fetchall()
    assert row[:4] == ("plain", ENTRY.cid, "", "words")
    assert abs(row[4].timestamp() - time.time()) < 60


def test_reading_makes_no_table(provider, sql):
    assert list(provider.iter_entries()) == list(provider.iter_labels()) == []
    assert provider.get_schema_json("Vec", "1.0.0") is None
    assert structure(sql) == (set(), set())


def test_no_transaction_is_left_open(provider, sql):
    provider.store_entry(ENTRY)
    assert list(provider.iter_entries()) == [ENTRY]
    with pytest.raises(LookupError):
        provider.store_schema_version("Vec", lambda known: known["none"])
    states = sql.execute(
        "SELECT state FROM pg_stat_activity WHERE application_name = 'fastshard' "
        "AND datname = current_database()"
    )
    assert {state for (state,) in states} == {"idle"}


def test_a_connection_that_the_server_ends_is_made_again(provider, sql):
    provider.store_entry(ENTRY)
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
        "application_name = 'fastshard' AND datname = current_database()"
    )
    for call in (
        lambda: provider.get_entry_by_name("plain"),
        lambda: provider.store_entry(ENTRY),
        lambda: provider.store_schema_version("Vec", lambda known: ("1.0.0", "{}")),
        lambda: list(provider.iter_entries()),
    ):
        assert sql.execute(end).fetchall() == [(True,)]
        call()
    assert provider.get_schema_json("Vec", "1.0.0") == "{}"


def test_a_server_that_is_killed_and_comes_back(own_server):
    with create_provider("postgres", **own_server.new(), timeout=5) as provider:
        provider.store_entry(ENTRY)
        pids = connected_pids(own_server)
        own_server.send(signal.SIGKILL)
        for pid in pids:  # it may answer until it notices the server's end
            os.kill(pid, signal.SIGKILL)
        own_server.kill()
        with pytest.raises(RemoteError) as caught:
            provider.get_entry_by_cid(ENTRY.cid)
        assert f"127.0.0.1:{own_server.port}" in str(caught.value)
        own_server.start()
        provider.store_label("plain", ENTRY.cid)
        assert provider.get_entry_by_name("plain") == ENTRY


def test_a_server_that_does_not_answer_is_an_error_in_time(own_server):
    with create_provider("postgres", **own_server.new(), timeout=120.0) as provider:
        provider.store_entry(ENTRY)
        patience = set_provider_timeout(provider, 0.3)
        pids = connected_pids(own_server)
        for pid in [*pids, own_server.pid]:
            os.kill(pid, signal.SIGSTOP)
        try:
            for call in (
                lambda: provider.get_entry_by_cid(ENTRY.cid),
                lambda: provider.store_entry(ENTRY),
            ):
                began = time.monotonic()
                with pytest.raises(RemoteError) as caught:
                    call()
                assert time.monotonic() - began < HANG
                assert f"127.0.0.1:{own_server.port}" in str(caught.value)
        finally:
            for pid in [own_server.pid, *pids]:
                os.kill(pid, signal.SIGCONT)
        set_provider_timeout(provider, patience)
        assert provider.get_entry_by_cid(ENTRY.cid) == ENTRY


def test_a_row_that_another_holds_is_an_error_in_time(connect, sql):
    provider = connect(timeout=120.0)
    provider.store_entry(ENTRY)
    with sql.transaction():
        sql.execute("LOCK TABLE dataset_entries")
        patience = set_provider_timeout(provider, 0.3)
        began = time.monotonic()
        with pytest.raises(RemoteError):
            provider.store_entry(ENTRY)
        assert time.monotonic() - began < HANG
    set_provider_timeout(provider, patience)
    provider.store_entry(ENTRY)


def test_a_missing_server_is_an_error_with_its_name():
    port = free_port()
    dsn = f"postgresql://me:{SECRET}@127.0.0.1:{port}/data"
    with create_provider("postgres", dsn=dsn, timeout=1) as provider:
        for call in (provider.get_label, provider.get_entry_by_name):
            with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
                call("plain")


def test_a_password_is_shown_nowhere(caplog):
    caplog.set_level(logging.DEBUG)
    port = free_port()
    url = f"postgresql://me:{SECRET}@127.0.0.1:{port}/data"
    errors, texts = [], []
    for dsn in (url, f"host=127.0.0.1 port={port} password={SECRET}"):
        with create_provider("postgres", dsn=dsn, timeout=1) as provider:
            texts += [repr(provider), str(provider), provider.location]
            with pytest.raises(RemoteError) as caught:
                provider.get_label("plain")
            errors.append(caught.value)
            with pytest.raises(TypeError, match="password") as caught:
                pickle.dumps(provider)
            errors.append(caught.value)
    for dsn in (f"{SECRET} = '", f"postgresql://me:{SECRET}@[::1/x", f"{SECRET}=1 "):
        with pytest.raises(ValueError, match="not an address") as caught:
            create_provider("postgres", dsn=dsn)
        errors.append(caught.value)
        assert caught.value.__context__ is None  # psycopg's has the text of the DSN
    for error in errors:
        texts += [*traceback.format_exception(error), repr(error.args)]
    # Lines of this file are in the tracebacks, but not the values in them.
    assert not [text for text in [*texts, caplog.text] if SECRET in text]


def test_the_password_of_the_environment_is_in_no_pickle(monkeypatch, options):
    monkeypatch.setenv("PGPASSWORD", SECRET)
    with create_provider("postgres", **options) as provider:
        data = pickle.dumps(provider)
        assert SECRET.encode() not in data
        provider.store_entry(ENTRY)
        with pickle.loads(data) as other:
            assert other.get_entry_by_name("plain") == ENTRY


BAD = {
    "data_urls": [b"", b"\x91", b"\xc1", b"\x91\x01", b"\x80", b"\x90\x90"],
    "metadata": [b"", b"{}", b"\x90", b"\x81\xa1a", b"\xdf\xff\xff\xff\xff"],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field in BAD for value in BAD[field]]
)
def test_a_damaged_entry_is_named(provider, sql, field, value):
    provider.store_entry(ENTRY)
    sql.execute(f"UPDATE dataset_entries SET {field} = %s", (value,))
    for call in (
        lambda: provider.get_entry_by_cid(ENTRY.cid),
        lambda: list(provider.iter_entries()),
    ):
        with pytest.raises(IndexRowError) as caught:
            call()
        assert (caught.value.field, caught.value.key) == (field, ENTRY.cid)
        assert provider.location in str(caught.value)
    provider.remove_entry(ENTRY.cid)
    assert list(provider.iter_entries()) == []


@pytest.mark.parametrize("column", ["name", "schema_ref", "data_urls"])
def test_columns_of_other_types_are_named(provider, sql, column):
    provider.store_entry(ENTRY)
    sql.execute("DROP TABLE dataset_entries")
    sql.execute(
        "CREATE TABLE dataset_entries AS SELECT 'c' AS cid, 'n' AS name, 'r' AS "
        "schema_ref, '\\x90'::bytea AS data_urls, NULL::bytea AS metadata, "
        "NULL AS legacy_uuid, now() AS created_at"
    )
    sql.execute(
        f"ALTER TABLE dataset_entries ALTER COLUMN {column} TYPE integer USING 7"
    )
    with pytest.raises(IndexRowError) as caught:
        list(provider.iter_entries())
    assert caught.value.field == column


def test_a_later_version_of_the_tables(provider, sql):
    provider.store_entry(ENTRY)
    provider.store_label("plain", ENTRY.cid)
    for table in ("dataset_entries", "labels"):
        sql.execute(f"ALTER TABLE {table} ADD COLUMN owner TEXT DEFAULT 'me'")
        sql.execute(f"UPDATE {table} SET owner = 'you'")
    provider.store_entry(ENTRY)
    provider.store_label("plain", ENTRY.cid)
    for table in ("dataset_entries", "labels"):
        assert sql.execute(f"SELECT owner FROM {table}").fetchall() == [("you",)]
    sql.execute("ALTER TABLE labels ADD COLUMN must TEXT NOT NULL DEFAULT 'x'")
    sql.execute("ALTER TABLE labels ALTER COLUMN must DROP DEFAULT")
    with pytest.raises(FormatError, match="must"):
        provider.store_label("other", ENTRY.cid)
    sql.execute("ALTER TABLE labels DROP COLUMN cid")
    with pytest.raises(FormatError, match="not an index"):
        provider.get_label("plain")


def test_times_that_python_has_not(provider, sql):
    provider.store_label("plain", "one", "a")
    sql.execute("UPDATE labels SET created_at = 'infinity'")
    provider.store_label("plain", "two", "b")
    assert {row.version for row in provider.iter_label_rows()} == {"a", "b"}
    sql.execute("UPDATE labels SET created_at = NULL WHERE version = 'a'")
    assert len(list(provider.iter_label_rows("plain"))) == 2


def test_a_name_that_an_index_of_the_server_cannot_hold_is_refused(provider):
    long = "".join(chr(0x4E00 + i * 7919 % 20000) for i in range(20_000))
    with pytest.raises(ValueError, match="too long"):
        provider.store_label(long, "cid")
    with pytest.raises(KeyError):
        provider.get_label(long)
    provider.store_label("short", "cid")


def test_a_user_who_may_only_read_reads(provider, sql, options, postgres_server):
    provider.store_entry(ENTRY)
    provider.store_label("plain", ENTRY.cid)
    sql.execute("CREATE ROLE reader LOGIN")
    try:
        sql.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        dsn = re.sub("//[a-z]+@", "//reader@", options["dsn"])
        with PostgresProvider(dsn) as reader:
            assert reader.get_entry_by_name("plain") == ENTRY
            assert reader.get_label("plain") == (ENTRY.cid, None)
            with pytest.raises(RemoteError, match="permission denied"):
                reader.store_entry(ENTRY)
    finally:
        sql.execute("DROP OWNED BY reader")
        sql.execute("DROP ROLE reader")


def test_statements_that_a_pool_of_connections_forgets(provider, sql):
    provider.store_entry(ENTRY)
    for _ in range(3):
        assert provider.get_entry_by_name("plain") == ENTRY
    (connection,) = idle_of(provider)
    assert connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()[
        0
    ]
    connection.execute("DEALLOCATE ALL")
    assert provider.get_entry_by_name("plain") == ENTRY
    sql.execute("ALTER TABLE dataset_entries ALTER COLUMN name TYPE varchar")
    assert provider.get_entry_by_name("plain") == ENTRY
