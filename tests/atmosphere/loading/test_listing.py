"""Names among many records: pages one after another at first, then one request."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from fastshard import typed
from fastshard.atmosphere.loading import listing
from fastshard.errors import RecordError, RemoteError
from support.inside.typed import count_listings, set_listing_timeout
from support.servers.atproto.dag import record_cid
from support.servers.atproto.xrpc import Reply

LABEL = "science.alt.dataset.label"
SCHEMA = "science.alt.dataset.schema"
ENTRY = "at://did:plc:abc/science.alt.dataset.entry/"
LIST = "com.atproto.repo.listRecords"


def label(name, version=None, target="x", time="2026-11-22T06:08:44Z"):
    record = {
        "$type": LABEL,
        "name": name,
        "datasetUri": ENTRY + target,
        "createdAt": time,
    }
    return record if version is None else {**record, "version": version}


def put(pds, *records):
    """Put records on the server; return their keys."""
    (account,) = pds.accounts.values()
    kept = account.records.setdefault(LABEL, {})
    keys = [pds.next_key() for _ in records]
    kept.update(
        (key, (record_cid(record), record))
        for key, record in zip(keys, records, strict=True)
    )
    return keys


def remove(pds, key):
    (account,) = pds.accounts.values()
    del account.records[LABEL][key]


@pytest.fixture
def pds(fake_pds):
    fake_pds.keys = put(fake_pds, *(label(f"label {i}") for i in range(250)))
    return fake_pds


@pytest.fixture
def labels(pds):
    client = typed.Atmosphere(pds.url, plc_url=pds.plc.url)
    return typed.LabelLoader(client)


def requests(pds):
    """Return the requests since the last call."""
    counts = pds.counts()
    pds.forget()
    return dict(counts)


@pytest.mark.parametrize("number", [0, 125, 249])
def test_a_label_is_found_among_all_pages_and_then_with_one_request(
    pds, labels, number
):
    labels.resolve("alice.test", f"label {number}")
    first = requests(pds)
    assert first.pop(LIST) == 4  # the end is a page without records
    assert sum(first.values()) <= 1  # the handle

    assert labels.resolve("alice.test", f"label {number}") == ENTRY + "x"
    assert requests(pds) == {LIST: 1}
    other = typed.LabelLoader(labels.client)
    assert other.resolve("alice.test", "label 7") == ENTRY + "x"
    assert requests(pds) == {LIST: 1}


def test_one_that_is_not_there_is_asked_for_once_again(pds, labels):
    for n in (4, 1, 1):
        with pytest.raises(KeyError, match="No label 'nothing' found"):
            labels.resolve("alice.test", "nothing")
        assert requests(pds)[LIST] == n


def test_new_labels_are_seen(pds, labels):
    labels.resolve("alice.test", "label 7")
    put(pds, label("label 7", target="new", time="2026-11-23T00:00:00Z"))
    requests(pds)
    assert labels.resolve("alice.test", "label 7") == ENTRY + "new"
    assert requests(pds) == {LIST: 1}

    put(pds, *(label(f"more {i}") for i in range(120)))
    assert labels.resolve("alice.test", "more 0") == ENTRY + "x"
    assert requests(pds)[LIST] > 1  # more than a page is new
    assert labels.resolve("alice.test", "label 0") == ENTRY + "x"
    assert requests(pds) == {LIST: 1}


def test_labels_that_are_gone_are_seen(pds, labels):
    labels.resolve("alice.test", "label 249")
    remove(pds, pds.keys[249])
    remove(pds, pds.keys[200])
    requests(pds)
    for name in ("label 249", "label 200"):
        with pytest.raises(KeyError):
            labels.resolve("alice.test", name)
    assert labels.resolve("alice.test", "label 0") == ENTRY + "x"
    assert requests(pds) == {LIST: 3}


def test_all_that_are_gone_but_the_latest_are_seen(pds, labels):
    labels.resolve("alice.test", "label 0")
    for key in pds.keys[:200]:
        remove(pds, key)
    with pytest.raises(KeyError):
        labels.resolve("alice.test", "label 0")
    for key in pds.keys[200:]:
        remove(pds, key)
    with pytest.raises(KeyError):
        labels.resolve("alice.test", "label 249")


def test_a_changed_label_is_seen(pds, labels):
    labels.resolve("alice.test", "label 249")
    (account,) = pds.accounts.values()
    changed = label("label 249", target="changed")
    account.records[LABEL][pds.keys[249]] = record_cid(changed), changed
    assert labels.resolve("alice.test", "label 249") == ENTRY + "changed"


def test_pages_behind_the_first_are_read_again_after_a_time(pds, labels, monkeypatch):
    labels.resolve("alice.test", "label 0")
    remove(pds, pds.keys[0])
    assert labels.resolve("alice.test", "label 0") == ENTRY + "x"  # not seen yet
    monkeypatch.setattr(listing, "MOST_SECONDS", -1.0)
    with pytest.raises(KeyError):
        labels.resolve("alice.test", "label 0")


def test_a_record_under_a_key_of_the_callers_is_seen(pds):
    client = typed.Atmosphere.login(
        "alice.test", "password", base_url=pds.url, plc_url=pds.plc.url
    )
    labels = typed.LabelLoader(client)
    labels.resolve("alice.test", "label 0")
    publisher = typed.LabelPublisher(client)
    publisher.publish("keyed", ENTRY + "y", rkey="2222222222222")
    assert labels.resolve("alice.test", "keyed") == ENTRY + "y"


@pytest.mark.parametrize(
    ("versions", "latest"),
    [
        (["1.0.0", "2.0.0", "1.0.1"], "2.0.0"),
        (["1.9.0", "1.10.0"], "1.10.0"),
        (["1.0.0", "1.0.0-rc.1"], "1.0.0"),
        (["1.0.0", "2.0.0", "old"], "old"),
        (["2.0.0", "1.0.0", None], None),
        (["v1", "v2"], "v2"),
    ],
)
def test_the_latest_label(fake_pds, versions, latest):
    put(
        fake_pds,
        *(
            label("a", version, f"{version}", f"2026-11-22T06:08:{i:02}Z")
            for i, version in enumerate(versions)
        ),
    )
    client = typed.Atmosphere(fake_pds.url, plc_url=fake_pds.plc.url)
    labels = typed.LabelLoader(client)
    assert labels.find("alice.test", "a").version == latest
    for version in filter(None, versions):
        assert labels.resolve("alice.test", "a", version) == ENTRY + version


def test_of_equal_versions_the_one_made_last_counts(fake_pds):
    put(
        fake_pds,
        label("a", "1.0.0", "last", "2026-11-22T07:00:00+00:00"),
        label("a", "1.0.0", "first", "2026-11-22T06:30:00.000000Z"),
        label("a", "1.0.0", "zone", "2026-11-22T08:30:00+02:00"),
    )
    client = typed.Atmosphere(fake_pds.url, plc_url=fake_pds.plc.url)
    assert typed.LabelLoader(client).resolve("alice.test", "a") == ENTRY + "last"


def test_a_damaged_label_is_named_and_stops_no_other(fake_pds):
    damaged = label("damaged")
    damaged["datasetUri"] = "https://data.example"
    put(fake_pds, label("good"), damaged, {"$type": LABEL}, {"$type": LABEL, "name": 5})
    client = typed.Atmosphere(fake_pds.url, plc_url=fake_pds.plc.url)
    labels = typed.LabelLoader(client)
    assert labels.resolve("alice.test", "good") == ENTRY + "x"
    with pytest.raises(RecordError, match="datasetUri") as caught:
        labels.resolve("alice.test", "damaged")
    assert caught.value.path.startswith("at://did:plc:")


def test_labels_of_labels_are_refused(fake_pds):
    (account,) = fake_pds.accounts.values()
    (key,) = put(fake_pds, label("loop"))
    uri = f"at://{account.did}/{LABEL}/{key}"
    looped = {**label("loop"), "datasetUri": uri}
    account.records[LABEL][key] = record_cid(looped), looped
    client = typed.Atmosphere(fake_pds.url, plc_url=fake_pds.plc.url)
    with pytest.raises(RecordError, match="not an entry record"):
        typed.AtmosphereIndex(client).get_dataset("@alice.test/loop")


@pytest.mark.parametrize("fault", ["endless", "again", "html", "foreign"])
def test_listings_that_lie_are_refused(pds, labels, fault):
    def hook(call):
        if call.nsid != LIST:
            return None
        if fault == "html":
            return Reply(b"<html>", headers={"content-type": "text/html"})
        (account,) = pds.accounts.values()
        did = "did:plc:other" if fault == "foreign" else account.did
        number = len(pds.calls) if fault == "endless" else 0
        record = {
            "uri": f"at://{did}/{LABEL}/{number:013}",
            "cid": "x",
            "value": label("x"),
        }
        return Reply({"records": [record], "cursor": f"{number}"})

    pds.hook = hook
    set_listing_timeout(labels.client, 0.05)  # ten times that for all pages
    with pytest.raises(RemoteError):
        labels.resolve("alice.test", "label 7")
    pds.hook = None
    assert labels.resolve("alice.test", "label 7") == ENTRY + "x"


def test_listings_of_clients_are_their_own(pds):
    for _ in range(2):
        client = typed.Atmosphere(pds.url, plc_url=pds.plc.url)
        typed.LabelLoader(client).resolve("alice.test", "label 7")
        assert requests(pds)[LIST] == 4
    del client
    import gc

    gc.collect()
    assert count_listings() <= 1


class AppView:
    """Hook of a server that resolves names."""

    def __init__(self, answers):
        self.answers = answers

    def __call__(self, call):
        name = call.nsid.rpartition(".")[2]
        return self.answers.get(name) if name.startswith("resolve") else None


def with_appview(pds, answers):
    pds.hook = lambda call: (
        None if call.nsid.startswith("com.") else AppView(answers)(call)
    )
    return typed.Atmosphere(pds.url, plc_url=pds.plc.url, appview=pds.url)


def test_an_appview_resolves_labels(pds):
    client = with_appview(pds, {"resolveLabel": Reply({"uri": ENTRY + "indexed"})})
    labels = typed.LabelLoader(client)
    assert labels.resolve("alice.test", "label 7", "1.0.0") == ENTRY + "indexed"
    (call,) = [c for c in pds.calls if c.nsid.endswith("resolveLabel")]
    asked = {"handle": "alice.test", "name": "label 7", "version": "1.0.0"}
    assert dict(call.params) == asked
    assert pds.count(LIST) == 0


@pytest.mark.parametrize(
    "answer",
    [
        Reply({"error": "Internal", "message": "no"}, 500),
        Reply(b"<html>", headers={"content-type": "text/html"}),
        Reply({}),
        Reply({"uri": 5}),
        Reply({"uri": "https://data.example"}),
        Reply({"uri": "at://did:plc:abc/science.alt.dataset.label/x"}),
        Reply({"uri": ENTRY + "y", "label": {"name": "another"}}),
    ],
    ids=["500", "html", "empty", "number", "url", "label", "another"],
)
def test_records_are_read_where_an_appview_fails(pds, answer, monkeypatch):
    client = with_appview(pds, {"resolveLabel": answer})
    with pytest.warns(UserWarning, match="records are read"):
        found = typed.LabelLoader(client).resolve("alice.test", "label 7")
    assert found == ENTRY + "x"


def test_an_appview_that_has_not_indexed_a_label_is_not_a_warning(pds, recwarn):
    missing = Reply({"error": "RecordNotFound", "message": "no label"}, 400)
    client = with_appview(pds, {"resolveLabel": missing})
    assert typed.LabelLoader(client).resolve("alice.test", "label 7") == ENTRY + "x"
    assert [w for w in recwarn.list if issubclass(w.category, UserWarning)] == []


def schema(name, version):
    return {
        "$type": SCHEMA,
        "name": name,
        "version": version,
        "schemaType": "jsonSchema",
        "schema": {
            "$type": f"{SCHEMA}#jsonSchemaFormat",
            "type": "object",
            "properties": {"label": {"type": "string"}},
        },
        "createdAt": "2026-11-22T06:08:44Z",
    }


@pytest.fixture
def schemas(fake_pds):
    """Put 250 schemas on the server; return their addresses."""
    (account,) = fake_pds.accounts.values()
    kept = account.records.setdefault(SCHEMA, {})
    uris = []
    for i in range(250):
        record, key = schema(f"Type{i % 50}", f"1.{i // 50}.0"), fake_pds.next_key()
        kept[key] = record_cid(record), record
        uris.append(f"at://{account.did}/{SCHEMA}/{key}")
    return uris


def test_a_schema_is_found_among_all_pages_and_then_with_one_request(fake_pds, schemas):
    client = typed.Atmosphere(fake_pds.url, plc_url=fake_pds.plc.url)
    loader = typed.SchemaLoader(client)
    assert str(loader.resolve("alice.test", "Type7", "1.2.0").uri) == schemas[107]
    assert requests(fake_pds)[LIST] == 4
    assert loader.get("@alice.test/Type7@1.0.0")["version"] == "1.0.0"
    assert requests(fake_pds) == {LIST: 1}
    assert loader.resolve("alice.test", "Type7")["version"] == "1.4.0"
    assert requests(fake_pds) == {LIST: 1}
    with pytest.raises(KeyError, match="not found"):
        loader.resolve("alice.test", "Type7", "9.0.0")


def test_an_appview_resolves_schemas(fake_pds, schemas):
    answers = {"resolveSchema": Reply({"uri": schemas[3]})}
    client = with_appview(fake_pds, answers)
    loader = typed.SchemaLoader(client)
    assert str(loader.resolve("alice.test", "Type3").uri) == schemas[3]
    assert fake_pds.count(LIST) == 0
    # Another schema than was asked for does not count.
    assert str(loader.resolve("alice.test", "Type4").uri) == schemas[204]
    answers["resolveSchema"] = Reply({"uri": "x"})
    with pytest.warns(UserWarning, match="records are read"):
        assert loader.resolve("alice.test", "Type3", "1.0.0")["version"] == "1.0.0"


def test_threads_share_a_client(pds):
    client = typed.Atmosphere(pds.url, plc_url=pds.plc.url)
    labels = typed.LabelLoader(client)

    def resolve(i):
        return labels.find("alice.test", f"label {i}").name

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(resolve, range(0, 250, 5)))
    assert found == [f"label {i}" for i in range(0, 250, 5)]
