"""Shards are stored as blobs, as they are, or not at all."""

import hashlib
import logging
import pickle
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from fastshard.atmosphere import client as client_module
from fastshard.atmosphere.blobs import store as blob_store
from fastshard.errors import FormatError, RemoteError
from fastshard.typed.stores.writing import write_to_store
from support.servers.atproto.xrpc import Reply
from support.typed.blobs import Caption

UPLOAD = "com.atproto.repo.uploadBlob"


@pytest.fixture
def client(fake_pds):
    return typed.Atmosphere.login(
        "alice.test",
        "password",
        base_url=fake_pds.url,
        plc_url=fake_pds.plc.url,
        timeout=5,
    )


@pytest.fixture
def local(stored):
    return typed.Dataset[Caption](stored.paths)


def refer(client, result):
    """Publish a record that refers to the blobs."""
    client.create_record("test.result", {"blobs": result.blob_refs})


def test_shards_are_uploaded_as_they_are(client, local, stored):
    result = typed.PDSBlobStore(client).write_shards(local, prefix="a/b")

    assert isinstance(result, typed.ShardWriteResult)
    expected = [Path(path).read_bytes() for path in stored.paths]
    cids = [url.rpartition("/")[2] for url in result]
    assert [stored.account.blobs[cid][0] for cid in cids] == expected
    assert list(result.checksums.values()) == [
        hashlib.sha256(data).hexdigest() for data in expected
    ]
    assert [blob["size"] for blob in result.blob_refs] == list(map(len, expected))
    assert {blob["mimeType"] for blob in result.blob_refs} == {"application/x-tar"}


def test_stored_shards_are_a_dataset(client, local, captions, tmp_path):
    store = typed.PDSBlobStore(client)
    result = store.write_shards(local, prefix="x")
    refer(client, result)

    source = store.create_source(result)

    assert source.list_shards() == result
    found = typed.Dataset[Caption](source, cache_dir=tmp_path / "own")
    assert list(found.ordered()) == captions
    assert typed.URLSource(store.read_url(result[0]), cache_dir=tmp_path / "by url")


def test_mapped_samples_are_written_to_new_shards(client, local, tmp_path):
    store = typed.PDSBlobStore(client)
    louder = local.map(lambda s: Caption(text=s.text.upper(), number=s.number))

    result = store.write_shards(louder, prefix="x", maxcount=5)
    refer(client, result)

    assert len(result) == len(result.blob_refs) == 3
    source = store.create_source(result)
    found = typed.Dataset[Caption](source, cache_dir=tmp_path / "own")
    assert [sample.text for sample in found.ordered()][:2] == ["TEXT 0", "TEXT 1"]


def test_samples_are_written_once_through_the_store(client, captions, tmp_path):
    store = typed.PDSBlobStore(client)

    result = write_to_store(store, captions, prefix="x", maxcount=7)
    refer(client, result)

    assert isinstance(result, typed.ShardUploadResult)
    source = store.create_source(result)
    found = typed.Dataset[Caption](source, cache_dir=tmp_path / "own")
    assert list(found.ordered()) == captions


def test_new_shards_fit_a_blob(client, monkeypatch, stored):
    class Noise(typed.PackableSample):
        x: NDArray[np.uint8]

    monkeypatch.setattr(blob_store.BlobUpload, "max_bytes", 50_000)
    samples = [Noise(x=np.zeros(20_000, "u1")) for _ in range(6)]

    result = write_to_store(typed.PDSBlobStore(client), samples, prefix="x")
    written = typed.PDSBlobStore(client).write_shards(samples, prefix="x")

    assert len(result) == len(written) == 3


def test_sizes_are_checked_before_the_first_upload(client, local, monkeypatch, stored):
    store = typed.PDSBlobStore(client)
    nbytes = sum(Path(path).stat().st_size for path in stored.paths)
    for name, most in (("MAX_SHARD", 1000), ("MAX_DATASET", nbytes - 1)):
        monkeypatch.setattr(blob_store, name, most)
        monkeypatch.setattr(client_module, "MAX_BLOB", 1000)
        with pytest.raises(ValueError, match=f"{most:,}.*force=True"):
            store.write_shards(local, prefix="x")
        with pytest.raises(ValueError, match="force=True"):
            store.write_shards(local, prefix="x", maxcount=3)
        assert stored.server.count(UPLOAD) == 0
        assert len(store.write_shards(local, prefix="x", force=True)) == 3
        monkeypatch.undo()
        stored.server.forget()


def test_a_shard_that_is_not_a_tar_is_not_uploaded(client, tmp_path, stored):
    path = tmp_path / "page.tar"
    path.write_text("<html>" * 1000)

    with pytest.raises(FormatError):
        typed.PDSBlobStore(client).write_shards(typed.Dataset(str(path)), prefix="x")

    assert stored.server.count(UPLOAD) == 0


def test_a_shard_that_changes_is_not_named(client, local, stored):
    def change(call):
        if call.nsid == UPLOAD and stored.server.count(UPLOAD) == 1:
            with open(stored.paths[1], "r+b") as file:
                file.seek(600)
                file.write(b"X")

    stored.server.hook = change
    with pytest.raises((RemoteError, OSError), match=r"changed|uploaded"):
        typed.PDSBlobStore(client).write_shards(local, prefix="x")


def test_an_upload_that_fails_midway_names_the_server(client, local, stored):
    def fail(call):
        if call.nsid == UPLOAD and stored.server.count(UPLOAD) == 2:
            return Reply({"error": "InternalServerError", "message": "no room"}, 500)
        return None

    stored.server.hook = fail
    with pytest.raises(RemoteError, match=f"no room.*{stored.server.port}"):
        typed.PDSBlobStore(client).write_shards(local, prefix="x")


def test_no_session_and_no_samples_are_refused(client, local, fake_pds):
    anonymous = typed.Atmosphere(fake_pds.url)

    with pytest.raises(ValueError, match="Not authenticated"):
        typed.PDSBlobStore(anonymous).write_shards(local, prefix="x")
    with pytest.raises(ValueError, match="no samples"):
        typed.PDSBlobStore(client).write_shards([], prefix="x")
    with pytest.raises(TypeError, match="maxcuont"):
        typed.PDSBlobStore(client).write_shards(local, prefix="x", maxcuont=3)


def test_urls_are_those_of_the_owners_server(client, stored):
    store = typed.PDSBlobStore(client)
    ref = stored.refs[0]
    url = f"at://{ref['did']}/blob/{ref['cid']}"

    assert store.read_url(url).startswith(f"{stored.server.url}/xrpc/com.atproto.sync")
    assert store.read_url("https://host/x.tar") == "https://host/x.tar"
    with pytest.raises(ValueError, match="blob"):
        store.read_url("at://did:plc:abc/science.alt.dataset.entry/x")
    assert store.supports_streaming()


def test_tokens_stand_in_no_text(client, local, caplog, stored):
    store = typed.PDSBlobStore(client)
    with caplog.at_level(logging.DEBUG):
        result = store.write_shards(local, prefix="x")
        refer(client, result)
        source = store.create_source(result)
        list(typed.Dataset[Caption](source, cache_dir=stored.cache_dir).ordered())
    texts = [caplog.text, repr(store), repr(result), repr(source)]
    texts += [str(pickle.dumps(each)) for each in (source, result)]
    for path in stored.cache_dir.rglob("*"):
        if path.is_file():
            texts.append(path.read_bytes().decode("latin-1"))

    for token in [*stored.server.tokens, "password"]:
        assert not any(token in text for text in texts)
    downloads = [c for c in stored.server.calls if c.nsid.endswith("getBlob")]
    assert downloads
    assert not any("authorization" in call.headers for call in downloads)
