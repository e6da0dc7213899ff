"""`load_dataset` of references: records of a server, their blobs, and nothing more."""

import pickle

import pytest

from fastshard import typed
from support.typed.blobs import Caption


@pytest.fixture
def client(fake_pds, monkeypatch):
    """Return a client without a session; it asks the directory of the server."""
    monkeypatch.setenv("ATDATA_PLC_URL", fake_pds.plc.url)
    return typed.Atmosphere(fake_pds.url, timeout=5)


@pytest.fixture
def published(fake_pds, client, captions):
    """Return the URI of a dataset in two versions: 7 samples, and all of them."""
    alice = typed.Atmosphere.login(
        "alice.test", "password", base_url=fake_pds.url, timeout=5
    )
    index = typed.AtmosphereIndex(alice)
    index.write_samples(captions[:7], name="captions", version="1.0.0", maxcount=5)
    entry = index.write_samples(captions, name="captions", version="2.0.0", maxcount=5)
    fake_pds.forget()
    return str(entry.uri)


@pytest.fixture
def load(client, tmp_path):
    def load(path, sample_type=None, **options):
        given = {"split": "train", "atmosphere": client, "cache_dir": tmp_path / "kept"}
        return typed.load_dataset(path, sample_type, **(given | options))

    return load


@pytest.mark.parametrize("path", ["@alice.test/captions", "@alice.test/captions@2.0.0"])
def test_names_are_found(published, load, captions, path):
    assert list(load(path, Caption).ordered()) == captions


def test_urls_of_blobs_are_shards(stored, load, captions):
    urls = [f"at://{ref['did']}/blob/{ref['cid']}" for ref in stored.refs]
    assert list(load(urls, Caption).ordered()) == captions
    assert list(load(urls[0], Caption).ordered()) == captions[:4]
    assert load(urls[0])[0].text == captions[0].text
    with pytest.raises(ValueError, match="blob"):
        load([urls[0], "data.tar"])


def test_a_given_client_finds_the_server_of_blobs(stored, load, captions, monkeypatch):
    monkeypatch.setenv("ATDATA_PLC_URL", "http://127.0.0.1:9")
    (ref, *_) = stored.refs
    ds = load(f"at://{ref['did']}/blob/{ref['cid']}", Caption)
    assert list(ds.ordered()) == captions[:4]


def test_a_version_is_the_one_that_was_asked_for(published, load, captions):
    assert list(load("@alice.test/captions@1.0.0", Caption).ordered()) == captions[:7]
    with pytest.raises(KeyError):
        load("@alice.test/captions@3.0.0")
    with pytest.raises(KeyError):
        load("@alice.test/nothing")


def test_the_type_is_that_of_the_schema(published, load, captions):
    ds = load(published)

    assert [(s.text, s.number) for s in ds.ordered()] == [
        (caption.text, caption.number) for caption in captions
    ]
    assert ds.sample_type.__name__ == "Caption"
    assert list(ds.as_type(Caption).ordered()) == captions
    assert [s.number for s in pickle.loads(pickle.dumps(ds)).ordered()][:2] == [0, 1]


def test_it_shuffles_and_batches_as_local_shards(published, load, captions, tmp_path):
    ds = load(published, Caption)
    paths = typed.write_samples(captions, tmp_path / "x.tar", maxcount=5).list_shards()
    local = typed.Dataset[Caption](paths)

    assert list(ds.shuffled(seed=4)) == list(local.shuffled(seed=4))
    for mine, theirs in zip(
        ds.ordered(batch_size=5), local.ordered(batch_size=5), strict=True
    ):
        assert list(mine.number) == list(theirs.number)
    assert ds.filter(lambda s: s.number % 2)[1].number == 3
    assert [s.number for s in ds.head(3)] == [0, 1, 2]
    assert ds.to_dict()["number"] == list(range(12))
    assert len(ds.query(ds.fields.number > 8)) == 3


def test_there_is_one_split(published, load):
    found = load(published, split=None)

    assert list(found) == ["train"]
    assert found.num_shards == {"train": 3}
    assert load(published, split="test").head(1)[0].number == 0


def test_blobs_are_downloaded_once_and_records_asked_for_again(
    published, load, fake_pds
):
    get_blob = "com.atproto.sync.getBlob"
    for _ in range(3):
        assert len(load(published, Caption)) == 12

    assert fake_pds.count(get_blob) == 3
    fake_pds.forget()
    ds = load("@alice.test/captions", Caption)
    assert [s.number for s in ds.ordered()][-1] == 11
    assert fake_pds.count(get_blob) == 0


def test_loading_downloads_no_blob(published, load, fake_pds):
    ds = load(published)

    assert "blob" in repr(ds.source)
    assert len(ds.list_shards()) == 3
    assert fake_pds.count("com.atproto.sync.getBlob") == 0


def test_urls_of_blobs_are_a_source(published, load, captions, tmp_path):
    urls = load(published).list_shards()
    options = {"cache_dir": tmp_path / "kept"}

    assert list(typed.Dataset[Caption](urls, **options).ordered()) == captions
    assert typed.Dataset[Caption](urls[0], **options)[4] == captions[4]
    with pytest.raises(ValueError, match="blob"):
        typed.Dataset([urls[0], "https://data.example/x.tar"])
    with pytest.raises(ValueError, match="blob"):
        typed.Dataset(published)


def test_a_local_index_reads_blobs(published, load, captions, tmp_path):
    index = typed.Index(path=tmp_path / "index.db", atmosphere=None)
    index.insert_dataset(load(published, Caption), name="kept")

    ds = index.get_dataset("kept").open(Caption, cache_dir=tmp_path / "kept")

    assert list(ds.ordered()) == captions
