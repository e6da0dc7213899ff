"""An index and the network: accounts of personal data servers on loopback."""

import pickle
import traceback
from contextlib import ExitStack

import pytest

from fastshard import typed
from fastshard.catalog.index import Index
from fastshard.errors import (
    AppViewUnavailableError,
    PublishError,
    RemoteError,
    SessionError,
)
from support.servers.atproto.pds import FakePds
from support.servers.atproto.xrpc import Reply
from support.typed.numbers import Number

NSID = "science.alt.dataset"
PASSWORD = "hunter2-hunter2"


@pytest.fixture
def servers():
    """Run two servers with one directory: alice's, and bob's."""
    with ExitStack() as stack:
        first = stack.enter_context(FakePds())
        second = stack.enter_context(FakePds(first.plc))
        first.create_account("alice.test", PASSWORD)
        second.create_account("bob.test", PASSWORD)
        yield first, second


@pytest.fixture
def pds(servers):
    return servers[0]


@pytest.fixture
def clients(servers, monkeypatch):
    """Return the clients of alice, of bob, and of nobody."""
    monkeypatch.setenv("ATDATA_PLC_URL", servers[0].plc.url)
    names = ("alice.test", "bob.test")
    logged_in = [
        typed.Atmosphere.login(name, PASSWORD, base_url=server.url)
        for name, server in zip(names, servers, strict=True)
    ]
    return [*logged_in, typed.Atmosphere(servers[0].url)]


@pytest.fixture
def alice(clients, index):
    return index.with_atmosphere(clients[0])


@pytest.fixture
def anyone(clients, tmp_path):
    """Return an index of a client that is not logged in."""
    return Index(path=tmp_path / "anyone.db", atmosphere=clients[2])


def numbers(n):
    return [Number(value=i) for i in range(n)]


def values(entry, tmp_path):
    return [sample.value for sample in entry.open(cache_dir=tmp_path / "cache")]


def records(pds, collection):
    (account,) = pds.accounts.values()
    return list(account.records.get(f"{NSID}.{collection}", {}).values())


# -- Samples, published


def test_samples_are_published_and_read_by_anyone(alice, anyone, pds, tmp_path):
    entry = alice.write_samples(
        numbers(5),
        name="@alice.test/n@1.0.0",
        maxcount=2,
        description="five",
        tags=["a"],
        license="MIT",
        metadata={"rate": 0.5},
    )
    assert entry.name == "n"
    assert (entry.description, entry.tags, entry.license) == ("five", ["a"], "MIT")
    assert entry.metadata == {"rate": 0.5}
    assert entry.cid.startswith("bafyrei")
    assert len(entry.data_urls) == 3
    for ref in ("@alice.test/n", "@alice.test/n@1.0.0", entry.uri):
        found = anyone.get_dataset(ref)
        assert found == entry
        assert values(found, tmp_path) == [0, 1, 2, 3, 4]
    assert alice.list_datasets("local") == []
    assert len(pds.accounts) == len(records(pds, "entry")) == 1


def test_load_dataset_finds_it(alice, clients, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    typed.set_default_index(None)
    alice.write_samples(numbers(5), name="@alice.test/n", version="1.0.0")
    uri = alice.get_dataset("@alice.test/n").uri
    for path in ("@alice.test/n", "@alice.test/n@1.0.0", uri):
        ds = typed.load_dataset(
            path,
            split="train",
            atmosphere=clients[2],
            cache_dir=tmp_path / "cache",
        )
        assert [sample.value for sample in ds] == [0, 1, 2, 3, 4]
        assert sorted(each.value for each in ds.shuffled(seed=1)) == [0, 1, 2, 3, 4]
    for path in ("@alice.test/n@2.0.0", "@alice.test/other", uri[:-1] + "x"):
        with pytest.raises(KeyError):
            typed.load_dataset(path, atmosphere=clients[2])
    assert not (tmp_path / "home").exists()  # no index was made for it


def test_a_second_write_publishes_no_second_schema(alice, pds):
    alice.write_samples(numbers(2), name="@alice.test/a")
    alice.write_samples(numbers(3), name="@alice.test/b")
    assert len(records(pds, "schema")) == 1
    assert len(records(pds, "entry")) == len(records(pds, "label")) == 2


def test_a_schema_of_the_index_is_published_with_its_version(alice, pds):
    ref = alice.publish_schema(Number, version="2.1.0")
    entry = alice.write_samples(numbers(2), name="@alice.test/n", schema_ref=ref)
    assert entry.schema_ref.startswith("at://")
    ((_, schema),) = records(pds, "schema")
    assert (schema["name"], schema["version"]) == ("Number", "2.1.0")
    again = alice.write_samples(
        numbers(3), name="@alice.test/m", schema_ref="@alice.test/Number@2.1.0"
    )
    assert again.schema_ref == entry.schema_ref


@pytest.mark.parametrize("owner", ["bob.test", "did:plc:abcdefghijklmnopqrstuvwx"])
def test_nothing_is_published_for_another_account(alice, pds, owner):
    pds.forget()
    for call in (
        lambda: alice.write_samples(numbers(2), name=f"@{owner}/n"),
        lambda: alice.label(f"@{owner}/n", "at://x"),
    ):
        with pytest.raises(ValueError, match="another account"):
            call()
    with pytest.raises(ValueError, match="an address"):
        alice.write_samples(numbers(2), name=f"at://{owner}/{NSID}.entry/x")
    assert pds.count() == 0


def test_without_a_session_nothing_is_published(anyone, numbers_dataset, pds):
    pds.forget()
    for call in (
        lambda: anyone.write_samples(numbers(2), name="@alice.test/n"),
        lambda: anyone.insert_dataset(numbers_dataset, name="@alice.test/n"),
        lambda: anyone.label("@alice.test/n", "at://x"),
    ):
        with pytest.raises(SessionError):
            call()
    assert pds.count() == 0


def test_without_a_network_names_of_accounts_are_errors(index, numbers_dataset):
    for call in (
        lambda: index.write_samples(numbers(2), name="@alice.test/n"),
        lambda: index.insert_dataset(numbers_dataset, name="@alice.test/n"),
        lambda: index.get_dataset("@alice.test/n"),
        lambda: index.get_dataset("at://did:plc:a/b/c"),
        lambda: index.get_label("@alice.test/n"),
        lambda: index.promote_entry("n"),
        lambda: index.promote_dataset(numbers_dataset, name="n"),
        lambda: index.list_datasets("@alice.test"),
    ):
        with pytest.raises(ValueError, match="Atmosphere backend required"):
            call()


@pytest.fixture
def numbers_dataset(tmp_path):
    return typed.write_samples(numbers(4), tmp_path / "numbers.tar", maxcount=2)


def test_a_failure_midway_leaves_no_label_and_lists_new_records(
    alice, anyone, pds, tmp_path
):
    pds.forget()
    pds.hook = lambda call: (
        Reply({"error": "InternalServerError", "message": "no label"}, 500)
        if pds.count("com.atproto.repo.createRecord") == 3  # schema, entry, label
        else None
    )
    with pytest.raises(PublishError) as raised:
        alice.write_samples(numbers(3), name="@alice.test/n")
    assert records(pds, "label") == []
    made = " ".join(raised.value.made)
    assert f"{NSID}.schema" in made
    assert f"{NSID}.entry" in made
    pds.hook = None
    alice.write_samples(numbers(3), name="@alice.test/n")
    assert len(records(pds, "entry")) == len(records(pds, "schema")) == 1
    assert values(anyone.get_dataset("@alice.test/n"), tmp_path) == [0, 1, 2]


# -- Datasets, published


def test_local_shards_become_blobs(alice, anyone, numbers_dataset, tmp_path):
    entry = alice.insert_dataset(numbers_dataset, name="@alice.test/n", version="1.0.0")
    assert list(entry.checksums) != []
    assert values(anyone.get_label("@alice.test/n", "1.0.0"), tmp_path) == [0, 1, 2, 3]
    with pytest.raises(KeyError):
        anyone.get_label("@alice.test/n", "2.0.0")


def test_public_urls_are_published_as_they_are(alice, pds):
    ds = typed.Dataset[Number]("https://data.example/{0..2}.tar")
    entry = alice.insert_dataset(ds, name="@alice.test/far")
    assert entry.data_urls == [f"https://data.example/{i}.tar" for i in range(3)]
    assert pds.count("com.atproto.repo.uploadBlob") == 0


def test_shards_that_need_credentials_are_refused(alice, pds):
    source = typed.S3Source("bucket", ["a.tar"], access_key="k", secret_key="hunter2")
    with pytest.raises(ValueError, match="credentials"):
        alice.insert_dataset(typed.Dataset(source, Number), name="@alice.test/n")
    assert records(pds, "entry") == []


# -- Promotion


def test_an_entry_is_promoted_once(alice, anyone, clients, numbers_dataset, tmp_path):
    local = alice.add_entry(numbers_dataset, name="n", metadata={"tags": ["a"]})
    store = typed.PDSBlobStore(clients[0])
    uri = alice.promote_entry("n", data_store=store)
    assert uri.startswith(f"at://{clients[0].did}/{NSID}.entry/")
    found = anyone.get_dataset("@alice.test/n")
    assert (found.uri, found.tags) == (uri, ["a"])
    assert values(found, tmp_path) == [0, 1, 2, 3]
    assert alice.promote_entry("n", data_store=store) == uri
    assert alice.get_dataset("n") == local
    assert len(alice.list_datasets("@alice.test")) == 1


def test_a_local_path_is_not_a_public_url(alice, pds, numbers_dataset):
    alice.add_entry(numbers_dataset, name="n")
    with pytest.raises(ValueError, match="data_store"):
        alice.promote_entry("n")
    with pytest.raises(ValueError, match="data_store"):
        alice.promote_dataset(numbers_dataset, name="n")
    assert [records(pds, each) for each in ("schema", "entry", "label")] == [[]] * 3


def test_urls_of_an_entry_are_promoted(alice, anyone):
    far = typed.Dataset[Number]("https://data.example/{0..2}.tar")
    alice.add_entry(far, name="far")
    uri = alice.promote_entry("far", name="renamed", version="1.0.0", license="MIT")
    found = anyone.get_dataset("@alice.test/renamed@1.0.0")
    assert (found.uri, found.license, len(found.data_urls)) == (uri, "MIT", 3)
    uri = alice.promote_dataset(far, name="again", schema_version="3.0.0")
    assert anyone.get_dataset("@alice.test/again").uri == uri


def test_tags_must_not_be_one_str(alice, pds):
    alice.add_entry(typed.Dataset[Number]("https://data.example/a.tar"), name="far")
    for publish in (
        lambda: alice.promote_entry("far", tags="abc"),
        lambda: alice.write_samples(numbers(2), name="@alice.test/n", tags="abc"),
    ):
        with pytest.raises(TypeError, match="tags must be a list of str"):
            publish()
    assert [records(pds, each) for each in ("schema", "entry", "label")] == [[]] * 3


def test_the_version_of_a_reference_is_promoted(alice, anyone):
    for name in ("first", "second"):
        far = typed.Dataset[Number](f"https://data.example/{name}.tar")
        entry = alice.add_entry(far, name=name)
        if name == "first":
            alice.label("second", entry.cid, version="1.0.0")
    alice.promote_entry("@local/second@1.0.0", name="old")
    found = anyone.get_dataset("@alice.test/old")
    assert found.data_urls == ["https://data.example/first.tar"]


def test_entries_that_promotion_refuses(alice):
    with pytest.raises(KeyError):
        alice.promote_entry("nothing")
    with pytest.raises(ValueError, match="network already"):
        alice.promote_entry("@alice.test/n")


# -- References


def test_records_of_others_are_read_from_their_own_server(
    servers, alice, clients, tmp_path
):
    bob = alice.with_atmosphere(clients[1])
    bob.write_samples(numbers(3), name="@bob.test/theirs")
    entry = alice.get_dataset("@bob.test/theirs")
    assert values(entry, tmp_path) == [0, 1, 2]
    assert servers[0].count("com.atproto.sync.getBlob") == 0
    assert servers[1].count("com.atproto.sync.getBlob") == 1
    alice.label("@alice.test/bobs", entry.uri, version="1.0.0")
    assert alice.get_dataset("@alice.test/bobs@1.0.0") == entry


def test_an_entry_without_a_label_is_found_by_its_name(alice, anyone, clients):
    schema = typed.SchemaPublisher(clients[0]).publish(Number)
    uri = typed.DatasetPublisher(clients[0]).publish_with_urls(
        ["https://data.example/a.tar"], schema, name="bare"
    )
    assert anyone.get_dataset("@alice.test/bare").uri == str(uri)
    for ref in ("@alice.test/bare@1.0.0", "@alice.test/other"):
        with pytest.raises(KeyError):
            anyone.get_dataset(ref)
    with pytest.raises(KeyError):
        anyone.get_label("@alice.test/bare")


def test_a_mounted_repository_comes_before_a_handle(alice, clients, tmp_path):
    alice.write_samples(numbers(3), name="@alice.test/n")
    repos = {"alice.test": typed.create_repository(path=tmp_path / "mounted.db")}
    index = Index(alice.provider, repos=repos, atmosphere=clients[0])
    with pytest.raises(KeyError):
        index.get_dataset("@alice.test/n")
    assert index.get_dataset(f"@{clients[0].did}/n").name == "n"


def test_entries_and_labels_of_an_account_are_listed(alice, anyone, clients):
    alice.write_samples(numbers(2), name="@alice.test/a", version="1.0.0")
    alice.write_samples(numbers(3), name="@alice.test/b")
    for index, owner in (
        (alice, "_atmosphere"),
        (alice, "@alice.test"),
        (anyone, "alice.test"),
        (anyone, clients[0].did),
    ):
        names = [entry.name for entry in index.list_datasets(owner)]
        assert sorted(names) == ["a", "b"]
        labels = index.list_labels(owner)
        assert sorted((name, version) for name, _, version in labels) == [
            ("a", "1.0.0"),
            ("b", None),
        ]
        assert {uri for _, uri, _ in labels} == {
            entry.uri for entry in index.list_datasets(owner)
        }
    assert alice.list_datasets() == alice.list_labels() == []
    with pytest.raises(SessionError):
        anyone.list_datasets("_atmosphere")


def test_records_are_not_removed_by_an_index(alice, pds):
    alice.write_samples(numbers(2), name="@alice.test/a")
    with pytest.raises(ValueError, match="delete_record"):
        alice.remove("@alice.test/a")
    assert len(records(pds, "entry")) == 1


@pytest.mark.parametrize("how", ["environment", "client", "store"])
def test_a_local_entry_of_blobs_is_opened(
    alice, index, clients, tmp_path, how, monkeypatch
):
    store = typed.PDSBlobStore(clients[0])
    alice.write_samples(numbers(2), name="@alice.test/a")  # a record refers to them
    entry = index.write_samples(numbers(2), name="blobs", data_store=store)
    assert all(
        url.startswith(f"at://{clients[0].did}/blob/") for url in entry.data_urls
    )
    if how != "environment":
        monkeypatch.setenv("ATDATA_PLC_URL", "http://127.0.0.1:1")
    if how == "client":
        index = index.with_atmosphere(clients[2])
    elif how == "store":
        index = Index(index.provider, data_store=store, atmosphere=None)
    assert values(index.get_dataset("blobs"), tmp_path) == [0, 1]


# -- Search


def test_records_of_an_account_are_searched(alice, anyone):
    for name, tags in {"mnist": ["a", "b"], "cifar": ["a"]}.items():
        ds = typed.Dataset[Number](f"https://data.example/{name}.tar")
        alice.insert_dataset(ds, name=f"@alice.test/{name}", tags=tags)
    found = anyone.search("MNI", repo="@alice.test")
    assert [(each.name, each.source, each.tags) for each in found] == [
        ("mnist", "atmosphere", ["a", "b"])
    ]
    assert found.items[0].uri == anyone.get_dataset("@alice.test/mnist").uri
    assert len(anyone.search(tags=["a"], repo="alice.test")) == 2
    assert len(anyone.search(repo="alice.test", limit=1)) == 1
    assert len(alice.search(repo="_atmosphere")) == 2
    with pytest.raises(ValueError, match="Not authenticated"):
        anyone.search(repo="_atmosphere")
    assert len(anyone.search(tags=["a"])) == 0  # no server that indexes records


def with_appview(index, pds, answer):
    pds.hook = lambda call: answer if call.nsid.endswith("searchDatasets") else None
    client = typed.Atmosphere(pds.url, plc_url=pds.plc.url, appview=pds.url)
    return index.with_atmosphere(client)


def test_an_appview_is_asked(index, pds):
    uri = f"at://did:plc:abc/{NSID}.entry/1"
    entries = [
        {"uri": uri, "name": "far", "tags": ["a"], "schemaRef": "at://s"},
        {"uri": 3, "name": None, "tags": "text"},
        {"uri": "/tmp/far.tar", "name": "far"},
        {"uri": "https://data.example/far.tar", "name": "far"},
    ]
    index.add_entry(typed.Dataset("far.tar", Number), name="far too")
    searched = with_appview(index, pds, Reply({"entries": entries}))
    found = {each.source: each for each in searched.search("far", tags=[])}
    assert found["local"].name == "far too"
    results = searched.search("far")
    assert [each.name for each in results] == ["far", "far too"]
    assert results.items[0] == typed.SearchResult(
        uri, "far", None, ["a"], "at://s", "atmosphere", record=entries[0]
    )
    assert dict(pds.calls[-1].params)["q"] == "far"
    pds.forget()
    assert [each.name for each in searched.search("far", repo="local")] == ["far too"]
    assert len(searched.search("far", include_atmosphere=False)) == 1
    assert pds.count() == 0


@pytest.mark.parametrize(
    "answer",
    [
        Reply({"error": "Internal", "message": "broken"}, 500),
        Reply(b"<html>", headers={"content-type": "text/html"}),
        Reply({"entries": "none"}),
    ],
    ids=["500", "html", "text"],
)
def test_an_appview_that_fails_is_named_and_the_others_answer(index, pds, answer):
    index.add_entry(typed.Dataset("far.tar", Number), name="far")
    results = with_appview(index, pds, answer).search("far")
    assert [each.source for each in results] == ["local"]
    assert list(results.failed) == ["atmosphere"]
    assert AppViewUnavailableError.__name__ in results.failed["atmosphere"]
    assert "127.0.0.1" in results.failed["atmosphere"]


# -- Secrets


def test_tokens_and_passwords_are_nowhere(alice, pds, tmp_path, caplog):
    caplog.set_level("DEBUG")
    tokens = [*pds.tokens, PASSWORD]
    entry = alice.write_samples(numbers(2), name="@alice.test/a")
    pds.hook = lambda call: Reply({"error": "InvalidToken", "message": "no"}, 400)
    with pytest.raises(RemoteError) as raised:
        alice.get_dataset(entry.uri)
    shown = [repr(alice), repr(entry), str(raised.value), caplog.text]
    shown += traceback.format_exception(raised.value)
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    stored = b"".join([pickle.dumps(alice), pickle.dumps(raised.value), *files])
    for token in tokens:
        assert token not in "".join(shown)
        assert token.encode() not in stored
