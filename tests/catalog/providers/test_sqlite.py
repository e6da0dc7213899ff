"""The SQLite file of an index: its tables, and files that are not as they should be."""

import errno
import gc
import multiprocessing
import operator
import os
import re
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
import weakref
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from fastshard.catalog.entry import DatasetEntry
from fastshard.catalog.providers import sqlite_file
from fastshard.catalog.providers.create import create_provider
from fastshard.catalog.providers.sqlite import SqliteProvider
from fastshard.errors import ClosedError, FormatError, IndexRowError
from support.inside.typed import (
    connection_of,
    idle_of,
    lent_connection,
    replace_connections,
    select,
)
from support.marks import thin
from support.processes import run_on_mount, start
from support.threads import HANG, SOON

ENTRY = DatasetEntry("plain", "ref", ["a.tar"], {"n": 1})
NOBODY = 65534


@pytest.fixture
def path(tmp_path):
    return tmp_path / "index.db"


def store(path, entry=ENTRY):
    with SqliteProvider(path) as provider:
        provider.store_entry(entry)
        provider.store_label(entry.name, entry.cid, "1.0.0")
        provider.store_schema("Vec", "1.0.0", "{}")
        provider.store_lens("lens", "1.0.0", "{}")


def read_all(provider):
    """Call all that reads; return the entries."""
    list(provider.iter_labels())
    list(provider.iter_schemas())
    list(provider.iter_lenses())
    for look_up in (provider.get_label, provider.get_entry_by_name):
        try:
            look_up(ENTRY.name)
        except KeyError:
            continue
    return list(provider.iter_entries())


def test_tables_are_those_of_atdata(path, index_data):
    store(path)

    def tables(file):
        with closing(sqlite3.connect(file)) as connection:
            rows = connection.execute("SELECT type, name, sql FROM sqlite_master")
            mode = connection.execute("PRAGMA journal_mode").fetchone()
            return mode, {
                (kind, name, re.sub(r"\s+", " ", sql or "")) for kind, name, sql in rows
            }

    copy = shutil.copy(index_data.sqlite, path.with_name("theirs.db"))
    assert tables(path) == tables(copy)


def test_values_are_those_of_atdata(path):
    msgpack = pytest.importorskip("msgpack")
    store(path)
    with closing(sqlite3.connect(path)) as connection:
        (entry,) = connection.execute("SELECT * FROM dataset_entries")
        (label,) = connection.execute("SELECT * FROM labels")
    cid, *values, created = entry
    assert cid == ENTRY.cid
    urls, metadata = msgpack.packb(["a.tar"]), msgpack.packb({"n": 1})
    assert values == ["plain", "ref", urls, metadata, None]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", created)
    assert label[:4] == ("plain", cid, "1.0.0", None)


@contextmanager
def someone_else():
    """Act as a user who may not write; root's files are read-only for nobody."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder():
    """Return a folder that all users may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
        os.chmod(folder, 0o755)


def lock_up(folder):
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)


def test_a_file_that_cannot_be_written_is_read(open_folder):
    path = open_folder / "index.db"
    store(path)
    assert os.listdir(open_folder) == ["index.db"]
    lock_up(open_folder)
    with someone_else(), SqliteProvider(path) as provider:
        assert read_all(provider) == [ENTRY]
        assert provider.get_label("plain") == (ENTRY.cid, "1.0.0")
        with pytest.raises(PermissionError, match="readonly"):
            provider.store_entry(ENTRY)
        assert read_all(provider) == [ENTRY]


def test_the_log_of_a_file_that_cannot_be_written_is_read(open_folder, index_data):
    for file in index_data.unclosed.iterdir():
        shutil.copy(file, open_folder)
    lock_up(open_folder)
    before = {file: file.read_bytes() for file in open_folder.iterdir()}
    with someone_else(), SqliteProvider(open_folder / "index.db") as provider:
        assert [entry.name for entry in provider.iter_entries()] == ["plain"]
        assert provider.get_entry_by_name("plain").cid == provider.get_label("plain")[0]
        with pytest.raises(PermissionError):
            provider.store_label("a", "b")
    assert {file: file.read_bytes() for file in open_folder.iterdir()} == before


def test_a_read_only_user_sees_writes_of_the_owner(open_folder):
    path = open_folder / "index.db"
    store(path)
    other = DatasetEntry("other", "ref", ["b.tar"])
    path.chmod(0o644)
    with SqliteProvider(path) as reader:
        with someone_else():
            assert len(read_all(reader)) == 1
        with SqliteProvider(path) as writer:
            writer.store_entry(other)
            with someone_else():  # in the log of a process that is still there
                assert len(read_all(reader)) == 2
        with someone_else():
            assert len(read_all(reader)) == 2


def test_reading_makes_no_file(tmp_path):
    with SqliteProvider(tmp_path / "new/index.db") as provider:
        assert read_all(provider) == []
        assert os.listdir(tmp_path) == []
        provider.store_entry(ENTRY)
        assert read_all(provider) == [ENTRY]


def test_the_default_is_the_file_of_atdata(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with SqliteProvider() as provider:
        assert provider.path == tmp_path / ".atdata/index.db"
        provider.store_entry(ENTRY)
        assert provider.path.exists()


def test_a_relative_path_means_one_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SqliteProvider("index.db") as provider:
        provider.store_entry(ENTRY)
        (tmp_path / "below").mkdir()
        monkeypatch.chdir(tmp_path / "below")
        provider.store_label("plain", ENTRY.cid)
        assert read_all(provider) == [ENTRY]
    assert os.listdir(tmp_path / "below") == []


@pytest.mark.parametrize("name", ["a b?c#d%41.db", "日本.db", "file:x.db", ":memory:"])
def test_names_of_files_are_only_names(tmp_path, name):
    store(tmp_path / name)
    assert (tmp_path / name).exists()
    with SqliteProvider(tmp_path / name) as provider:
        assert read_all(provider) == [ENTRY]


def test_a_replaced_file_is_opened_again(path):
    other = DatasetEntry("other", "ref", ["b.tar"])
    store(path)
    store(path.with_name("other.db"), other)
    with SqliteProvider(path) as provider:
        assert read_all(provider) == [ENTRY]
        os.replace(path.with_name("other.db"), path)
        assert read_all(provider) == [other]
        for file in path.parent.iterdir():
            file.unlink()
        assert read_all(provider) == []
        provider.store_entry(ENTRY)
        assert read_all(provider) == [ENTRY]
    with SqliteProvider(path) as provider:
        assert read_all(provider) == [ENTRY]


def test_a_file_that_another_program_holds_is_an_error_in_time(path):
    store(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with SqliteProvider(path, timeout=0.2) as provider:
            assert read_all(provider) == [ENTRY]  # WAL: readers do not wait
            began = time.monotonic()
            with pytest.raises(BlockingIOError, match="locked by another") as caught:
                provider.store_entry(ENTRY)
            assert time.monotonic() - began < SOON
            assert caught.value.filename == str(path)
            with pytest.raises(BlockingIOError):
                provider.store_schema_version("Vec", lambda known: ("2.0.0", "{}"))
            other.execute("ROLLBACK")
            provider.store_label("after", ENTRY.cid)
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN EXCLUSIVE")
        with SqliteProvider(path, timeout=0.2) as provider:
            with pytest.raises(BlockingIOError):
                provider.get_entry_by_name("plain")
            with pytest.raises(BlockingIOError):
                provider.store_entry(ENTRY)


def test_the_last_label_is_the_latest_after_a_clock_is_set_back(path):
    with SqliteProvider(path) as provider:
        provider.store_label("best", "cid1", "first")
        with closing(sqlite3.connect(path)) as other:
            other.execute("UPDATE labels SET created_at = '2999-01-01 00:00:00'")
            other.commit()
        provider.store_label("best", "cid2", "second")
        assert provider.get_label("best") == ("cid2", "second")


def test_columns_and_tables_of_a_later_version_are_kept(path):
    store(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        for table in ("dataset_entries", "labels", "schemas", "lenses"):
            other.execute(f"ALTER TABLE {table} ADD COLUMN owner TEXT DEFAULT 'me'")
            other.execute(f"UPDATE {table} SET owner = 'you'")
        other.execute("CREATE TABLE later (a)")
        other.execute("PRAGMA user_version = 7")
    with SqliteProvider(path) as provider:
        assert read_all(provider) == [ENTRY]
    store(path)
    with closing(sqlite3.connect(path)) as other:
        for table in ("dataset_entries", "labels", "schemas", "lenses"):
            rows = other.execute(f"SELECT owner FROM {table}").fetchall()
            assert rows == [("you",)]
        assert other.execute("PRAGMA user_version").fetchone() == (7,)


def test_a_column_that_must_be_given_is_an_error(path):
    store(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("DROP TABLE labels")
        other.execute("CREATE TABLE labels (name, cid, version, owner NOT NULL)")
    with SqliteProvider(path) as provider:
        with pytest.raises(FormatError, match="description"):
            provider.get_label("plain")
        with pytest.raises(FormatError, match="not an index"):
            provider.store_label("plain", ENTRY.cid)


def test_tables_of_an_older_version_are_added_by_a_write_only(path):
    store(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("DROP TABLE labels")
        other.execute("DROP TABLE lenses")
    with SqliteProvider(path) as provider:
        assert read_all(provider) == [ENTRY]
        with closing(sqlite3.connect(path)) as other:
            query = "SELECT count(*) FROM sqlite_master WHERE type = 'table'"
            assert other.execute(query).fetchone() == (2,)
        provider.store_label("plain", ENTRY.cid)
        assert provider.get_label("plain") == (ENTRY.cid, None)
        assert read_all(provider) == [ENTRY]


BAD = {
    "name": [7, b"plain", "CAST(x'ff41' AS TEXT)"],
    "schema_ref": [7.5, b"", "CAST(x'c3' AS TEXT)"],
    "data_urls": [7, "text", b"", b"\x91", b"\xc1", b"\x91\x01", b"\x80", b"\x90\x90"],
    "metadata": ["{}", b"\x90", b"\x81\xa1a", b"\x81\x01\x02", b"\xdf\xff\xff\xff\xff"],
    "legacy_uuid": [7, b"x"],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field in BAD for value in BAD[field]]
)
def test_a_damaged_entry_is_named(path, field, value):
    store(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        given = value if isinstance(value, str) and value.startswith("CAST") else "?"
        values = () if given != "?" else (value,)
        if field != "data_urls" and field != "metadata":  # columns of no type
            other.execute("ALTER TABLE dataset_entries RENAME TO old")
            columns = "cid, name, schema_ref, data_urls, metadata, legacy_uuid"
            other.execute(f"CREATE TABLE dataset_entries ({columns}, created_at)")
            other.execute("INSERT INTO dataset_entries SELECT * FROM old")
        other.execute(f"UPDATE dataset_entries SET {field} = {given}", values)
    with SqliteProvider(path) as provider:
        with pytest.raises(IndexRowError) as caught:
            provider.get_entry_by_cid(ENTRY.cid)
        assert caught.value.field == field
        assert caught.value.key == ENTRY.cid
        for part in (field, ENTRY.cid, "dataset_entries", str(path)):
            assert part in str(caught.value)
        with pytest.raises(IndexRowError):
            list(provider.iter_entries())
        provider.remove_entry(ENTRY.cid)
        assert list(provider.iter_entries()) == []


@pytest.mark.parametrize("table", ["labels", "schemas", "lenses"])
def test_rows_of_wrong_types_are_named(path, table):
    store(path)
    column = {"labels": "cid", "schemas": "schema_json", "lenses": "lens_json"}[table]
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(f"UPDATE {table} SET {column} = x'00ff'")
    with SqliteProvider(path) as provider:
        for call in (
            lambda: provider.get_label("plain"),
            lambda: list(provider.iter_labels()),
            lambda: list(provider.iter_schemas()),
            lambda: provider.get_schema_json("Vec", "1.0.0"),
            lambda: provider.store_schema_version("Vec", lambda known: ("2.0.0", "")),
            lambda: provider.get_lens_json("lens", "1.0.0"),
            lambda: provider.find_lenses_by_schemas("Vec"),
        ):
            try:
                call()
            except IndexRowError as error:
                assert (error.table, error.field) == (table, column)
                break
        else:
            pytest.fail("nothing was raised")


def test_deep_and_large_values_are_refused(path):
    store(path)
    deep = b"\x81\xa1a" + b"\x91" * 100_000 + b"\xc0"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE dataset_entries SET metadata = ?", (deep,))
    with SqliteProvider(path) as provider:
        with pytest.raises(IndexRowError, match="nested deeper"):
            provider.get_entry_by_name("plain")
        long = "x" * (90 << 20)
        with pytest.raises(ValueError, match="large"):
            provider.store_schema("Vec", "2.0.0", long)
        with pytest.raises(ValueError, match="at most"):
            provider.store_entry(DatasetEntry("long", "ref", [long]))


@pytest.mark.parametrize(
    "sql",
    [
        # Views and virtual tables in place of a table: their rows may never end.
        "CREATE VIEW {} AS WITH RECURSIVE n(i) AS "
        "(SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
        "CREATE VIRTUAL TABLE {} USING fts4(name)",
    ],
)
def test_a_non_table_is_refused(path, sql):
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        try:
            other.execute(sql.format("Labels"))
        except sqlite3.OperationalError:
            pytest.skip("not under a sanitizer: this SQLite has no fts4")
    with SqliteProvider(path) as provider:
        for call in (read_all, lambda provider: provider.store_entry(ENTRY)):
            with pytest.raises(FormatError, match="is not a table of rows"):
                call(provider)


def test_a_query_ends_in_time(path):
    store(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("DROP TABLE labels")
        # A generated column that takes long for each of many rows.
        other.execute(
            "CREATE TABLE labels (name, cid, version, created_at, n, description AS "
            "(replace(hex(zeroblob(10000)), n, 'x')))"
        )
        other.execute(
            "WITH RECURSIVE n(i) AS "
            "(SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000) "
            "INSERT INTO labels SELECT 'a', 'b', 'c', 'd', '00' FROM n"
        )
    with SqliteProvider(path, timeout=0.3) as provider:
        began = time.monotonic()
        with pytest.raises((OSError, FormatError)):
            list(provider.iter_labels())
        assert time.monotonic() - began < HANG


def test_a_non_database_is_refused(tmp_path):
    fifo, folder, text = tmp_path / "fifo", tmp_path / "folder", tmp_path / "text"
    os.mkfifo(fifo)
    folder.mkdir()
    text.write_text("no database " * 100)
    for path in (fifo, folder, text, text / "below"):
        with SqliteProvider(path) as provider:
            for call in (read_all, lambda provider: provider.store_entry(ENTRY)):
                with pytest.raises((FormatError, OSError), match=path.name):
                    call(provider)
    assert text.read_text() == "no database " * 100


def test_every_damage_is_an_error_or_read(path, tmp_path):
    store(path)
    whole = path.read_bytes()
    damaged = tmp_path / "damaged.db"
    places = [*range(100), *range(100, len(whole), 97)]
    for at in thin(places, 5):
        data = bytearray(whole)
        data[at] ^= 0xFF
        check_damage(damaged, bytes(data))
    for size in thin(range(0, len(whole), 1000), 5):
        check_damage(damaged, whole[:size])


def check_damage(path, data):
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    path.write_bytes(data)
    with SqliteProvider(path, timeout=1) as provider:
        for call in (read_all, lambda provider: provider.store_entry(ENTRY)):
            try:
                call(provider)
            except (FormatError, OSError) as error:
                assert path.name in str(error)


FULL = """
import errno, os, sys
from fastshard.catalog.entry import DatasetEntry
from fastshard.catalog.providers.sqlite import SqliteProvider

disk = sys.argv[1]
provider = SqliteProvider(disk + "/index.db")
stored = 0
def entry(i):
    return DatasetEntry(f"d{i}", "ref", [f"{i}.tar"], {"ballast": os.urandom(10_000)})
while True:
    try:
        provider.store_entry(entry(stored))
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
        assert error.filename == disk + "/index.db"
        break
    stored += 1
assert stored > 5
assert len(list(provider.iter_entries())) == stored
with SqliteProvider(disk + "/index.db") as other:
    assert len(list(other.iter_entries())) == stored
os.unlink(disk + "/ballast")
provider.store_entry(entry(stored))
assert len(list(provider.iter_entries())) == stored + 1
"""


def test_a_full_disk_is_an_error_and_the_index_stays_readable(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=3m tmpfs {disk}"
    script = tmp_path / "full.py"
    script.write_text(FULL)
    ballast = f"head -c 1900000 /dev/zero > {disk}/ballast"
    command = f"{ballast} && {sys.executable} {script} {disk}"
    done = run_on_mount(mount, command, 120)
    assert done.returncode == 0, done.stderr


WRITE = """
import sys
from fastshard.catalog.entry import DatasetEntry
from fastshard.catalog.providers.sqlite import SqliteProvider

provider = SqliteProvider(sys.argv[1])
for i in range(10**6):
    provider.store_entry(DatasetEntry(f"d{i}", "ref", [f"{i}.tar"]))
    print(i, flush=True)
"""


def test_acknowledged_writes_outlive_a_killed_writer(path, tmp_path):
    script = tmp_path / "write.py"
    script.write_text(WRITE)
    with start(script, path) as process:
        while int(process.stdout.readline()) < 20:
            pass
        process.send_signal(signal.SIGKILL)
        last = [20, *map(int, process.stdout.read().split())][-1]
    with SqliteProvider(path) as provider:
        names = {entry.name for entry in provider.iter_entries()}
        assert names >= {f"d{i}" for i in range(last + 1)}
        assert len(names) <= last + 2
        provider.store_entry(ENTRY)


def test_a_provider_goes_to_a_spawned_process(path):
    store(path)
    spawn = multiprocessing.get_context("spawn")
    with SqliteProvider(path) as provider, spawn.Pool(1) as pool:
        get = operator.methodcaller("get_entry_by_name", ENTRY.name)
        assert pool.apply(get, (provider,)) == ENTRY


def test_connections_are_closed_with_their_provider(path):
    store(path)
    provider = SqliteProvider(path)
    read_all(provider)
    opened = {os.path.realpath(fd.path) for fd in os.scandir("/proc/self/fd")}
    assert str(path) in opened
    del provider
    gc.collect()
    opened = {os.path.realpath(fd.path) for fd in os.scandir("/proc/self/fd")}
    assert str(path) not in opened


def test_a_connection_for_own_sql_is_closed_with_its_provider(path):
    provider = SqliteProvider(path)
    connection = connection_of(provider)
    connection.execute("SELECT 1")
    provider.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def test_connections_are_held_for_a_fork_while_a_thread_opens_one(path, monkeypatch):
    provider = SqliteProvider(path)
    provider.store_entry(ENTRY)
    (connection,) = idle_of(provider)

    class Growing(weakref.WeakSet):
        changes = 2

        def __iter__(self):
            self.changes -= 1
            if self.changes >= 0:
                raise RuntimeError("Set changed size during iteration")
            return super().__iter__()

    replace_connections(monkeypatch, Growing([connection]))
    opening, lock = sqlite_file.hold_for_fork()
    assert lock is connection.lock
    lock.release()
    opening.release()


def test_no_connection_is_opened_or_closed_during_a_fork(path):
    store(path)
    provider = SqliteProvider(path)
    assert list(provider.iter_entries())
    (connection,) = idle_of(provider)
    held = sqlite_file.hold_for_fork()
    calls = [connection.close, lambda: list(SqliteProvider(path).iter_entries())]
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
    for lock in held:
        lock.release()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_a_process_without_descriptors_says_so(path):
    store(path)
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    provider = SqliteProvider(path)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(OSError, match="open files") as caught:
            provider.get_entry_by_name("plain")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)
    assert (caught.value.errno, caught.value.filename) == (errno.EMFILE, str(path))
    assert read_all(provider) == [ENTRY]
    provider.close()


def test_an_index_of_another_type_is_refused(tmp_path):
    with pytest.raises(ValueError, match="sqlite, redis, postgres"):
        create_provider("mongodb")
    with pytest.raises(ValueError, match="dsn is required"):
        create_provider("postgres")
    assert isinstance(create_provider(" SQLite ", path="a.db"), SqliteProvider)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("sqlite", {"dsn": "postgresql://host/data"}),
        ("sqlite", {"redis": "redis://host"}),
        ("redis", {"path": "index.db"}),
        ("postgres", {"dsn": "postgresql://host/data", "path": "index.db"}),
    ],
)
def test_an_argument_of_another_store_is_refused(kind, given):
    with pytest.raises(TypeError, match=f"the {kind} provider takes no"):
        create_provider(kind, **given)


def test_a_signal_ends_a_query(path):
    """The exception of its handler is raised, which sqlite3 drops."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    store(path)
    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    with SqliteProvider(path, timeout=5) as provider:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                select(provider, f"{endless}SELECT max(i) FROM n")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
        assert provider.get_label("plain") == (ENTRY.cid, "1.0.0")


# ------------------------------------------------------------- closing


def test_a_connection_that_is_lent_while_the_provider_is_closed_is_closed(path):
    store(path)
    provider = SqliteProvider(path)
    with lent_connection(provider) as connection:
        provider.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def test_a_closed_provider_opens_no_connection_of_its_own(path):
    provider = SqliteProvider(path)
    provider.close()
    with pytest.raises(ClosedError):
        connection_of(provider).execute("SELECT 1")
