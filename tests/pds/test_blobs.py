"""Blobs of real servers: one download into the cache, and local shards from then on."""

import hashlib

import pytest

from fastshard import typed
from fastshard.atmosphere.cid import cid_of_blob
from fastshard.errors import RemoteError, RemoteNotFoundError


@pytest.fixture
def load(fresh, servers, tmp_path):
    client = servers.anonymous()

    def load(path, sample_type=None, **options):
        given = {"split": "train", "atmosphere": client, "cache_dir": tmp_path / "kept"}
        return typed.load_dataset(path, sample_type, **(given | options))

    return load


def test_references_are_loaded(fresh, digits, digit_type, load):
    index = typed.AtmosphereIndex(fresh)
    index.write_samples(digits[:4], name="digits", version="1.0.0")
    uri = index.write_samples(digits, name="digits", version="1.2.0", maxcount=3).uri

    for path in (f"@{fresh.handle}/digits", f"@{fresh.handle}/digits@1.2.0", str(uri)):
        ds = load(path, digit_type)
        assert [sample.label for sample in ds.ordered()] == list(range(10))
        assert sorted(s.label for s in ds.shuffled(seed=1)) == list(range(10))
        assert [len(batch.label) for batch in ds.ordered(batch_size=4)] == [4, 4, 2]
    assert len(load(f"@{fresh.handle}/digits@1.0.0")) == 4
    with pytest.raises(KeyError):
        load(f"@{fresh.handle}/digits@2.0.0")


def test_stored_shards_are_read_from_the_cache(fresh, digits, digit_type, tmp_path):
    ds = typed.write_samples(digits, tmp_path / "x.tar", maxcount=4)
    store = typed.PDSBlobStore(fresh)
    result = store.write_shards(ds, prefix="digits")
    fresh.create_record("com.example.blobs", {"blobs": result.blob_refs})
    source = store.create_source(result)
    options = {"cache_dir": tmp_path / "kept"}

    found = typed.Dataset[digit_type](source, **options)
    assert found[9].image.tolist() == digits[9].image.tolist()
    kept = typed.Dataset[digit_type](source, offline=True, **options)
    assert [sample.label for sample in kept.ordered()] == list(range(10))


def test_blobs_that_are_not_there(fresh, digits, digit_type, tmp_path):
    cid = cid_of_blob(hashlib.sha256(b"other").digest())
    urls = [f"at://{fresh.did}/blob/{cid}"]
    source = typed.BlobSource.from_refs(urls, client=fresh, cache_dir=tmp_path)
    with pytest.raises(RemoteNotFoundError, match="Blob not found"):
        typed.Dataset[digit_type](source)[0]

    ds = typed.write_samples(digits, tmp_path / "x.tar")
    result = typed.PDSBlobStore(fresh).write_shards(ds, prefix="unreferred")
    source = typed.BlobSource.from_refs(list(result), client=fresh, cache_dir=tmp_path)
    with pytest.raises(RemoteError):  # no record refers to it
        typed.Dataset[digit_type](source)[0]
