"""Stores of shards in buckets, against a server of S3."""

import hashlib
import io
import os
import pickle
import tarfile
import tempfile
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from fastshard.catalog.entry import DatasetEntry
from fastshard.typed.stores.writing import write_to_store
from support.marks import not_sanitized
from support.servers.s3 import ACCESS, SECRET, Bucket, serve_s3

pytest.importorskip("obstore")
pytest.importorskip("moto.server")

pytestmark = not_sanitized  # tests no C code


@typed.packable
class Vector:
    x: int
    data: NDArray[np.uint8]


@pytest.fixture(scope="module")
def endpoint():
    with serve_s3() as url:
        yield url


@pytest.fixture
def bucket(endpoint):
    return Bucket(endpoint)


@pytest.fixture
def credentials(endpoint):
    return {
        "AWS_ENDPOINT": endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


@pytest.fixture
def store(bucket, credentials):
    return typed.S3DataStore(credentials, bucket=bucket.name)


def keys(bucket):
    found = bucket.client.list_objects_v2(Bucket=bucket.name).get("Contents", [])
    return sorted(each["Key"] for each in found)


def body(bucket, url):
    key = url.removeprefix(f"s3://{bucket.name}/")
    return bucket.client.get_object(Bucket=bucket.name, Key=key)["Body"].read()


def vectors(n, size=10):
    return (Vector(i, np.full(size, i, "u1")) for i in range(n))


def test_shards_are_objects_with_checksums(store, bucket):
    result = write_to_store(store, vectors(10), prefix="a/b v1", maxcount=4)
    assert len(result) == 3
    for url in result:
        assert url.startswith(f"s3://{bucket.name}/a/b_v1/data--")
        data = body(bucket, url)
        assert result.checksums[url] == hashlib.sha256(data).hexdigest()
    indexes = [f"{url.removesuffix('.tar')}.fsi" for url in result]
    stored = [f"s3://{bucket.name}/{key}" for key in keys(bucket)]
    assert stored == sorted([*result, *indexes])
    ds = typed.Dataset[Vector](store.create_source(result))
    assert [sample.x for sample in ds] == list(range(10))
    assert ds[7].data[3] == 7


def test_large_shards_are_sent_in_parts(store, bucket):
    (url,) = result = write_to_store(store, vectors(3, 7 << 20), prefix="")
    data = body(bucket, url)
    assert result.checksums[url] == hashlib.sha256(data).hexdigest()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert len(tar.getmembers()) == 3
    head = bucket.client.head_object(
        Bucket=bucket.name, Key=url.removeprefix(f"s3://{bucket.name}/")
    )
    assert head["ETag"].strip('"').endswith("-3")  # of an upload in three parts
    parts = bucket.client.list_multipart_uploads(Bucket=bucket.name)
    assert not parts.get("Uploads")


def test_a_dataset_is_copied_and_manifests_are_objects(store, bucket, tmp_path):
    pytest.importorskip("pyarrow")
    ds = typed.write_samples(vectors(4), tmp_path / "in.tar")
    (url,) = store.write_shards(ds, prefix="copy", cache_local=True)
    assert body(bucket, url) == (tmp_path / "in.tar").read_bytes()
    (url,) = store.write_shards(ds, prefix="new", manifest=True)
    base = url.removeprefix(f"s3://{bucket.name}/").removesuffix(".tar")
    suffixes = [".fsi", ".manifest.json", ".manifest.parquet", ".tar"]
    found = [key for key in keys(bucket) if key.startswith("new/")]
    assert found == [base + suffix for suffix in suffixes]
    other = typed.Dataset[Vector](store.create_source([url]))
    assert len(other.query(where=lambda m: m.x > 1)) == 2
    again = store.write_shards(other, prefix="again")  # from a bucket to a bucket
    assert body(bucket, again[0]) == body(bucket, url)


def test_checksums_of_objects_are_compared_if_asked_for(store, bucket, monkeypatch):
    result = write_to_store(store, vectors(2), prefix="p")
    entry = DatasetEntry("p", "ref", list(result), {"checksums": result.checksums})
    assert typed.verify_checksums(entry) == {result[0]: "skipped"}
    source = store.create_source(result)
    assert typed.verify_checksums(entry, remote=True, source=source)[result[0]] == "ok"
    bucket.environment(monkeypatch)
    assert typed.verify_checksums(entry, remote=True) == {result[0]: "ok"}


def test_entries_of_an_index_are_compared_by_the_credentials_of_its_store(
    store, bucket, tmp_path
):
    index = typed.Index(path=tmp_path / "index.db", data_store=store)
    index.write_samples(vectors(4), name="four", maxcount=2)
    entry = index.get_dataset("four")
    first, second = entry.data_urls
    bucket.put(second.removeprefix(f"s3://{bucket.name}/"), tmp_path / "index.db")
    found = typed.verify_checksums(entry, remote=True)
    assert found == {first: "ok", second: "mismatch"}


def test_a_failed_write_leaves_whole_objects_and_no_files(
    store, bucket, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def samples():
        yield from vectors(5)
        raise RuntimeError("the source failed")

    with pytest.raises(RuntimeError, match="the source failed"):
        write_to_store(store, samples(), prefix="p", maxcount=2)
    assert [key[-11:] for key in keys(bucket)] == [
        "-000000.fsi",
        "-000000.tar",
        "-000001.fsi",
        "-000001.tar",
    ]
    assert not os.listdir(tmp_path)


class Refusing(BaseHTTPRequestHandler):
    """A server of S3 that refuses the second part of an upload."""

    protocol_version = "HTTP/1.1"

    def answer(self, status=200, body=b"", **headers):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.calls.append(f"{self.command} {self.path.partition('?')[2]}")
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        upload = "<InitiateMultipartUploadResult><UploadId>u</UploadId>"
        self.answer(body=f"{upload}</InitiateMultipartUploadResult>".encode())

    def do_PUT(self):
        refused = "partNumber=2" in self.path
        self.answer(403 if refused else 200, ETag='"tag"')

    def do_DELETE(self):
        self.answer(204)

    def log_message(self, *args):
        """Print nothing."""


def test_an_upload_that_is_refused_midway_is_withdrawn(credentials):
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        server.calls = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        credentials["AWS_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
        store = typed.S3DataStore(credentials, bucket="bucket")
        with pytest.raises(OSError, match="403") as caught:
            write_to_store(store, vectors(3, 7 << 20), prefix="p")
        server.shutdown()
    assert caught.value.status == 403
    assert SECRET not in str(caught.value)
    assert sum(call.startswith("POST") for call in server.calls) == 1  # none completes
    assert "DELETE uploadId=u" in server.calls


def test_a_missing_bucket(credentials, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = typed.S3DataStore(credentials, bucket="no-such-bucket")
    with pytest.raises(OSError, match="no-such-bucket") as caught:
        write_to_store(store, vectors(9), prefix="p", maxcount=2)
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown + repr(caught.value)
    assert not os.listdir(tmp_path)


def test_credentials_of_a_file(tmp_path, endpoint):
    path = tmp_path / ".env"
    path.write_text(f"AWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY='{SECRET}'\n")
    store = typed.S3DataStore(path, bucket="b")
    assert store.credentials["AWS_SECRET_ACCESS_KEY"] == SECRET
    path.write_text("AWS_ENDPOINT=x\n")
    with pytest.raises(ValueError, match=r"\.env: AWS_ACCESS_KEY_ID, AWS_SECRET"):
        typed.S3DataStore(str(path), bucket="b")
    with pytest.raises(ValueError, match="required keys: AWS_SECRET_ACCESS_KEY"):
        typed.S3DataStore({"AWS_ACCESS_KEY_ID": "a"}, bucket="b")


def test_urls_for_readers_without_the_store(credentials):
    url = "s3://bucket/path/a.tar"
    credentials["AWS_ENDPOINT"] = "https://host.example/"
    store = typed.S3DataStore(credentials, bucket="bucket")
    assert store.read_url(url) == "https://host.example/bucket/path/a.tar"
    assert store.read_url("https://other/a.tar") == "https://other/a.tar"
    del credentials["AWS_ENDPOINT"]
    assert typed.S3DataStore(credentials, bucket="bucket").read_url(url) == url
    assert store.supports_streaming() is True
    assert isinstance(store, typed.AbstractDataStore)


def test_secrets_stand_in_no_repr_and_no_pickle(store, bucket, monkeypatch):
    assert SECRET not in repr(store) + str(store)
    data = pickle.dumps(store)
    assert SECRET.encode() not in data
    assert ACCESS.encode() not in data
    other = pickle.loads(data)
    assert other.bucket == bucket.name
    bucket.environment(monkeypatch)
    assert len(write_to_store(other, vectors(1), prefix="p")) == 1


@pytest.mark.parametrize("name", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL"])
def test_an_endpoint_has_no_user(credentials, name):
    credentials[name] = f"https://me:{SECRET}@host.example/"
    with pytest.raises(ValueError, match="has a user or a password") as caught:
        typed.S3DataStore(credentials, bucket="bucket")
    assert SECRET not in str(caught.value)


def test_an_index_writes_to_a_bucket_and_reads_with_its_credentials(
    store, bucket, tmp_path, monkeypatch
):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    path = tmp_path / "index.db"
    index = typed.Index(path=path, data_store=store, atmosphere=None)
    entry = index.write_samples(vectors(5), name="n/v", maxcount=2)
    assert [url.rpartition("/")[0] for url in entry.data_urls] == [
        f"s3://{bucket.name}/n/v"
    ] * 3
    assert list(entry.checksums) == entry.data_urls
    for ds in (
        index.get_dataset("n/v").open(Vector),
        typed.load_dataset("n/v", index=index, split="train"),
    ):
        assert [sample.x for sample in ds] == list(range(5))
    stored = path.read_bytes() + (tmp_path / "index.db-wal").read_bytes()
    assert SECRET.encode() not in stored
    assert SECRET not in repr(index) + repr(index.repos) + repr(entry)
