"""Redis as a store of an index: its keys, its faults, and other programs beside it."""

import logging
import pickle
import signal
import time
import traceback

import pytest

from fastshard.catalog.entry import DatasetEntry
from fastshard.catalog.providers.create import create_provider
from fastshard.catalog.providers.redis import RedisProvider
from fastshard.errors import IndexRowError, RemoteError
from support.servers.databases.process import free_port
from support.servers.databases.redis import serve_redis
from support.threads import HANG

redis = pytest.importorskip("redis")

ENTRY = DatasetEntry("plain", "ref", ["a.tar"], {"n": 1}, legacy_uuid="0-1")
SECRET = "a-very-secret-word"
ENTRY_KEY = f"LocalDatasetEntry:{ENTRY.cid}"


@pytest.fixture
def kind():
    return "redis"


@pytest.fixture
def client(options):
    """Return a client of the store's database."""
    with redis.Redis(**options) as client:
        yield client


@pytest.fixture
def own_server(tmp_path):
    """Run a server that only one test uses."""
    with serve_redis(str(tmp_path), SECRET) as server:
        yield server


def test_keys_are_those_of_atdata(provider, client):
    msgpack = pytest.importorskip("msgpack")
    provider.store_entry(ENTRY)
    provider.store_label("plain", ENTRY.cid, None, "words")
    provider.store_label("plain", ENTRY.cid, "1.0.0")
    provider.store_schema("Vec", "1.0.0", "{}")
    provider.store_lens("lens", "1.0.0", "[]")
    keys = {
        key.decode() for key in client.scan_iter() if not key.startswith(b"fastshard:")
    }
    labels = {"Label:plain@", "Label:plain@1.0.0"}
    assert keys == labels | {ENTRY_KEY, "LocalSchema:Vec@1.0.0", "LocalLens:lens@1.0.0"}
    assert client.hgetall(ENTRY_KEY) == {
        b"name": b"plain",
        b"schema_ref": b"ref",
        b"data_urls": msgpack.packb(["a.tar"]),
        b"cid": ENTRY.cid.encode(),
        b"metadata": msgpack.packb({"n": 1}),
        b"legacy_uuid": b"0-1",
    }
    label = client.hgetall("Label:plain@")
    assert label.pop(b"created_at")
    cid = ENTRY.cid.encode()
    wanted = {b"cid": cid, b"name": b"plain", b"version": b"", b"description": b"words"}
    assert label == wanted
    assert client.get("LocalSchema:Vec@1.0.0") == b"{}"
    assert client.hgetall("fastshard:names") == {b"plain": cid}

    provider.store_entry(DatasetEntry("plain", "ref", ["a.tar"]))
    assert b"metadata" not in client.hgetall(ENTRY_KEY)


def store_as_atdata(client, entry, *labels):
    """Store rows as atdata does, without keys of ours."""
    msgpack = pytest.importorskip("msgpack")
    fields = {"name": entry.name, "schema_ref": entry.schema_ref, "cid": entry.cid}
    fields["data_urls"] = msgpack.packb(entry.data_urls)
    client.hset(f"LocalDatasetEntry:{entry.cid}", mapping=fields)
    for version in labels:
        fields = {"cid": entry.cid, "name": entry.name, "version": version}
        client.hset(f"Label:{entry.name}@{version}", mapping=fields)


def test_rows_that_atdata_writes_meanwhile_are_seen(provider, client):
    first, second = (DatasetEntry("d", "ref", [f"{i}.tar"]) for i in range(2))
    provider.store_entry(first)
    provider.store_label("d", first.cid, "1.0.0")
    assert provider.get_label("d") == (first.cid, "1.0.0")
    store_as_atdata(client, second, "2.0.0")
    assert provider.get_label("d") == (second.cid, "2.0.0")
    other = DatasetEntry("other", "ref", ["other.tar"])
    store_as_atdata(client, other, "")
    assert provider.get_entry_by_name("other") == other
    assert provider.get_label("other") == (other.cid, None)
    client.delete(f"LocalDatasetEntry:{other.cid}", "Label:other@")
    with pytest.raises(KeyError):
        provider.get_entry_by_name("other")
    with pytest.raises(KeyError):
        provider.get_label("other")


@pytest.mark.parametrize("remove", ["remove_label", "remove_entry"])
def test_rows_of_atdata_before_a_removal_are_seen(provider, client, remove):
    first, second = (DatasetEntry("d", "ref", [f"{i}.tar"]) for i in range(2))
    gone = DatasetEntry("gone", "ref", ["gone.tar"])
    provider.store_entry(gone)
    provider.store_label("gone", gone.cid)
    provider.store_label("d", first.cid, "1.0.0")
    client.hset(
        "Label:d@2.0.0", mapping={"name": "d", "cid": second.cid, "version": "2.0.0"}
    )
    getattr(provider, remove)("gone" if remove == "remove_label" else gone.cid)
    assert provider.get_label("d") == (second.cid, "2.0.0")


def commands_of(client, call):
    """Return the commands that the server runs meanwhile, and the result."""
    before = client.info("commandstats")
    result = call()
    after = client.info("commandstats")
    found = {
        name.removeprefix("cmdstat_"): stat["calls"]
        - before.get(name, {"calls": 0})["calls"]
        for name, stat in after.items()
    }
    return {name: n for name, n in found.items() if n and name != "info"}, result


def test_a_name_is_found_without_a_scan(provider, client):
    for i in range(30):
        store_as_atdata(client, DatasetEntry(f"d{i}", "ref", [f"{i}.tar"]), "", "1.0.0")
    assert provider.get_label("d7")[1] is not None  # makes the index
    for name in ("d7", "d8"):
        found, _ = commands_of(client, lambda name=name: provider.get_label(name))
        assert "scan" not in found
        found, entry = commands_of(
            client, lambda name=name: provider.get_entry_by_name(name)
        )
        assert "scan" not in found
        assert entry.name == name
    provider.store_label("d7", "cid", "2.0.0")
    provider.remove_label("d8")
    found, label = commands_of(client, lambda: provider.get_label("d7"))
    assert label == ("cid", "2.0.0")
    assert "scan" not in found
    found, labels = commands_of(client, lambda: list(provider.iter_label_rows("x")))
    assert labels == []
    assert "scan" not in found


def test_all_entries_come_in_few_round_trips(provider, client):
    for i in range(2000):
        client.hset(f"LocalDatasetEntry:c{i}", mapping={"name": f"d{i}"})
    fields = {"schema_ref": "r", "data_urls": b"\x90"}
    for i in range(2000):
        client.hset(f"LocalDatasetEntry:c{i}", mapping=fields)
    found, entries = commands_of(client, lambda: list(provider.iter_entries()))
    assert len(entries) == len({entry.cid for entry in entries}) == 2000
    assert found["eval"] < 100


def test_a_server_that_runs_no_scripts_is_read(provider, client, options):
    client.acl_setuser(
        "plainly", enabled=True, nopass=True, keys="*", commands=["+@all", "-eval"]
    )
    store_as_atdata(client, ENTRY, "1.0.0")
    client.set("LocalSchema:Vec@1.0.0", "{}")
    with create_provider("redis", **options, username="plainly", password="") as other:
        assert [entry.name for entry in other.iter_entries()] == ["plain"]
        assert other.get_label("plain") == (ENTRY.cid, "1.0.0")
        assert other.find_latest_version("Vec") == "1.0.0"


def test_a_user_who_may_only_read_reads(provider, client, options):
    client.acl_setuser(
        "reader",
        enabled=True,
        nopass=True,
        keys="*",
        commands=["+@read", "+eval", "+select"],
    )
    store_as_atdata(client, ENTRY, "1.0.0")
    with create_provider("redis", **options, username="reader", password="") as other:
        assert other.get_entry_by_name("plain").cid == ENTRY.cid
        assert other.get_label("plain") == (ENTRY.cid, "1.0.0")
        with pytest.raises(RemoteError, match="permission"):
            other.store_entry(ENTRY)


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_client_that_decodes_its_responses(options, protocol):
    entry = DatasetEntry("d\xe9", "ref", ["a.tar"], {"raw": b"\xff\x00"})
    with redis.Redis(**options, decode_responses=True, protocol=protocol) as client:
        provider = RedisProvider(client)
        provider.store_entry(entry)
        provider.store_label(entry.name, entry.cid, "1.0.0")
        provider.store_schema_version("Vec", lambda known: ("1.0.0", "{}"))
        assert provider.get_entry_by_name(entry.name) == entry
        assert list(provider.iter_entries()) == [entry]
        assert provider.get_label(entry.name) == (entry.cid, "1.0.0")
        assert list(provider.iter_schemas()) == [("Vec", "1.0.0", "{}")]
        provider.remove_entry(entry.cid)
        provider.close()
        assert client.ping()  # a given client is its owner's


BAD = {
    "name": [b"\xff"],
    "schema_ref": [b"\xff\xfe"],
    "data_urls": [b"", b"\x91", b"\xc1", b"\x91\x01", b"\x80", b"\x90\x90"],
    "metadata": [b"", b"{}", b"\x90", b"\x81\xa1a", b"\xdf\xff\xff\xff\xff"],
    "cid": [b"another"],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field in BAD for value in BAD[field]]
)
def test_a_damaged_entry_is_named(provider, client, field, value):
    provider.store_entry(ENTRY)
    client.hset(ENTRY_KEY, field, value)
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


@pytest.mark.parametrize("field", ["name", "schema_ref", "data_urls"])
def test_a_missing_field_is_named(provider, client, field):
    provider.store_entry(ENTRY)
    client.hdel(ENTRY_KEY, field)
    with pytest.raises(IndexRowError) as caught:
        list(provider.iter_entries())
    assert caught.value.field == field


def test_keys_of_other_types_are_named(provider, client):
    for key in (ENTRY_KEY, "Label:plain@1.0.0", "LocalSchema:Vec@1.0.0"):
        client.rpush(key, "a list")
    for call in (
        lambda: provider.get_entry_by_cid(ENTRY.cid),
        lambda: list(provider.iter_entries()),
        lambda: provider.get_label("plain", "1.0.0"),
        lambda: list(provider.iter_labels()),
        lambda: provider.get_schema_json("Vec", "1.0.0"),
        lambda: provider.find_latest_version("Vec"),
    ):
        with pytest.raises(IndexRowError, match="the wrong type for"):
            call()


@pytest.mark.parametrize("key", ["names", "labels", "keys"])
def test_keys_of_ours_of_other_types_are_named(provider, client, key):
    client.rpush(f"fastshard:{key}", "a list")
    call = provider.get_entry_by_name if key == "names" else provider.get_label
    with pytest.raises(IndexRowError, match=f"fastshard '{key}'"):
        call("plain")


def test_values_of_our_keys_are_checked(provider, client):
    provider.store_entry(ENTRY)
    provider.store_label("plain", ENTRY.cid, "1.0.0")
    other = DatasetEntry("other", "ref", ["b.tar"])
    provider.store_entry(other)
    for lie in (other.cid.encode(), b"none", b"\xff"):
        client.hset("fastshard:names", "plain", lie)
        assert provider.get_entry_by_name("plain") == ENTRY
    client.set("fastshard:keys", "no number")
    assert provider.get_label("plain") == (ENTRY.cid, "1.0.0")
    client.zadd("fastshard:labels", {b"5:plain:9.0.0": 0, b"5:plain:\xff": 0})
    assert provider.get_label("plain") == (ENTRY.cid, "1.0.0")


def test_two_names_never_share_a_label(provider, client):
    with pytest.raises(ValueError, match="'@'"):
        provider.store_label("a", "cid", "1@2")
    client.hset("Label:a@1@2", mapping={"name": "a", "version": "1@2", "cid": "c"})
    with pytest.raises(KeyError):
        provider.get_label("a@1", "2")
    assert provider.get_label("a", "1@2") == ("c", "1@2")


def test_an_older_name_of_a_schema_is_that_of_its_class(provider, client):
    client.set("LocalSchema:module.Old@0.9.0", "{}")
    client.set("LocalSchema:Old@0.8.0", "{}")
    client.set("LocalSchema:no version", "{}")
    assert sorted(provider.iter_schemas()) == [
        ("Old", "0.8.0", "{}"),
        ("Old", "0.9.0", "{}"),
    ]
    assert provider.find_latest_version("Old") == "0.9.0"
    assert provider.get_schema_json("module.Old", "0.9.0") == "{}"


def test_replies_of_an_interrupted_call_are_not_answers(provider, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    provider.store_label("first", "cid-1")
    provider.store_label("second", "cid-2")
    with monkeypatch.context() as patch:
        provider.redis.execute_command("CLIENT", "PAUSE", "300")  # replies come late
        patch.setattr("redis.client.Pipeline.parse_response", interrupt)
        with pytest.raises(KeyboardInterrupt):
            provider.get_label("first", "")
    assert provider.get_label("second", "") == ("cid-2", None)


def test_a_server_that_is_killed_and_comes_back(own_server):
    options = own_server.new() | {"password": SECRET}
    with create_provider("redis", **options, timeout=5) as provider:
        provider.store_entry(ENTRY)
        own_server.kill()
        with pytest.raises(RemoteError) as caught:
            provider.get_entry_by_cid(ENTRY.cid)
        assert f"127.0.0.1:{own_server.port}" in str(caught.value)
        assert caught.value.transient
        own_server.start()
        provider.store_entry(ENTRY)
        assert provider.get_entry_by_name("plain") == ENTRY


def test_a_server_that_does_not_answer_is_an_error_in_time(own_server):
    options = own_server.new() | {"password": SECRET}
    with create_provider("redis", **options, timeout=0.3) as provider:
        provider.store_entry(ENTRY)
        own_server.send(signal.SIGSTOP)
        try:
            for call in (
                lambda: provider.get_entry_by_cid(ENTRY.cid),
                lambda: provider.store_entry(ENTRY),
                lambda: list(provider.iter_entries()),
            ):
                began = time.monotonic()
                with pytest.raises(RemoteError) as caught:
                    call()
                assert time.monotonic() - began < HANG
                assert f"127.0.0.1:{own_server.port}" in str(caught.value)
        finally:
            own_server.send(signal.SIGCONT)
        assert provider.get_entry_by_cid(ENTRY.cid) == ENTRY


def test_a_missing_server_is_an_error_with_its_name():
    port = free_port()
    with create_provider("redis", host="127.0.0.1", port=port, timeout=1) as provider:
        for call in (provider.get_label, provider.get_entry_by_name):
            with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
                call("plain")


def test_a_password_is_shown_nowhere(own_server, caplog):
    caplog.set_level(logging.DEBUG)
    url = f"redis://:{SECRET}@127.0.0.1:{own_server.port}/1"
    wrong = url.replace(SECRET, f"{SECRET}-wrong")
    errors = []
    with create_provider("redis", redis=url) as provider:
        provider.store_entry(ENTRY)
        texts = [repr(provider), str(provider), provider.location]
        with pytest.raises(TypeError, match="password") as caught:
            pickle.dumps(provider)
        errors.append(caught.value)
        own_server.kill()
        with pytest.raises(RemoteError) as caught:
            provider.get_label("plain")
        errors.append(caught.value)
        own_server.start()
    with create_provider("redis", redis=wrong) as provider:
        with pytest.raises(RemoteError) as caught:
            provider.get_label("plain")
        errors.append(caught.value)
    for error in errors:
        texts += [*traceback.format_exception(error), repr(error.args)]
        texts.append(repr(pickle.dumps(error)))
    assert not [text for text in [*texts, caplog.text] if SECRET in text]


def test_a_given_client_does_not_pickle(client):
    with pytest.raises(TypeError, match="client"):
        pickle.dumps(RedisProvider(client))
