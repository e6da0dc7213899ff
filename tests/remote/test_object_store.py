"""Shards in object stores: the same samples as in local files, or a precise error."""

import gc
import itertools
import os
import pickle
import re
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import fastshard
from fastshard import FastshardError, RemoteError, RemoteNotFoundError
from fastshard.remote.file import RemoteFile, open_remote
from fastshard.remote.object_store import stores_for
from fastshard.remote.options import make_settings
from fastshard.streaming import MDSWriter
from support.inside.remote import forget_use_of_obstore, locate, locate_in
from support.marks import not_sanitized
from support.servers.http import Server
from support.servers.messages import plain
from support.tars import write_tar
from support.threads import HANG

obstore = pytest.importorskip("obstore")
moto = pytest.importorskip("moto.server")

SECRET = "averysecretkey"
DATA = bytes(i * 7 % 251 for i in range(50_000))
NAMES = itertools.count()
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

pytestmark = not_sanitized  # tests no C code


@pytest.fixture(scope="module")
def endpoint():
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()
    gc.collect()


class Bucket:
    """Bucket with the options to open it."""

    def __init__(self, endpoint: str) -> None:
        import boto3

        self.name = f"bucket-{next(NAMES)}"
        self.options = {
            "region": "us-east-1",
            "endpoint": endpoint,
            "access_key_id": "someone",
            "secret_access_key": SECRET,
        }
        self.client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="someone",
            aws_secret_access_key=SECRET,
        )
        self.client.create_bucket(Bucket=self.name)

    def put(self, key, data, **options):
        self.client.put_object(Bucket=self.name, Key=key, Body=data, **options)

    def put_folder(self, folder, below):
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{below}/{path.relative_to(folder)}", path.read_bytes())

    def url(self, key, scheme="s3"):
        return f"{scheme}://{self.name}/{key}"

    def settings(self, **options):
        store = {**self.options, **options.pop("store", {})}
        return make_settings(
            {"store": store, "timeout": 5.0, "attempts": 1, **options}, []
        )

    def client_of(self, **options):
        return stores_for(self.settings(**options))


@pytest.fixture
def bucket(endpoint):
    bucket = Bucket(endpoint)
    yield bucket
    bucket.client.close()


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "t"
    folder.mkdir()
    rng = np.random.default_rng(7)
    for shard in range(3):
        members = {}
        for i in range(20):
            members[f"{shard}-{i:03}.bin"] = rng.bytes(500 + 900 * i)
            members[f"{shard}-{i:03}.txt"] = b"%d of %d" % (i, shard)
        write_tar(folder / f"t-{shard:03}.tar", members)
    return folder


def contents(ds):
    return [(s.key, {field: bytes(s[field]) for field in s}) for s in ds]


@pytest.fixture
def streams(bucket, tmp_path):
    """Store MDS datasets `a`, `b` and `deep/c` in a bucket."""
    for k, name in enumerate(("a", "b", "deep/c")):
        folder = tmp_path / "mds" / name
        with MDSWriter(out=str(folder), columns={"i": "int"}) as to:
            for i in range(3):
                to.write({"i": 10 * k + i})
    bucket.put_folder(tmp_path / "mds", "mds")
    return bucket.url("mds")


@pytest.mark.parametrize("source", ["{a,b}", "*/", "*", "[ab]", "{a,b}/"])
def test_mds_datasets_of_a_bucket_are_joined(bucket, streams, source):
    for url in (f"{streams}/{source}", [f"{streams}/a", f"{streams}/b/"]):
        ds = fastshard.open(url, store=bucket.options)
        assert [sample.decode("i")["i"] for sample in ds] == [0, 1, 2, 10, 11, 12]


def test_mds_datasets_below_a_folder_of_a_bucket(bucket, streams):
    ds = fastshard.open(f"{streams}/**", store=bucket.options)
    assert [sample.decode("i")["i"] for sample in ds] == [
        0,
        1,
        2,
        10,
        11,
        12,
        20,
        21,
        22,
    ]
    with pytest.raises(
        fastshard.ShardNotFoundError, match=r"MDS datasets .*mds/deep/c.*mds/\*\*'"
    ):
        fastshard.open(streams, store=bucket.options)
    with pytest.raises(
        fastshard.ShardNotFoundError, match=r"datasets c: .*'.*deep/\*/'"
    ):
        fastshard.open(f"{streams}/deep", store=bucket.options)
    with pytest.raises(fastshard.ShardNotFoundError):
        fastshard.open(f"{streams}/x*/", store=bucket.options)


@pytest.mark.parametrize("kind", ["none", "beside", "dataset", "wids"])
@pytest.mark.parametrize("source", ["t-{000..002}.tar", "", "t-*.tar", "**"])
def test_a_dataset_in_a_bucket_equals_the_local_one(bucket, folder, kind, source):
    expected = contents(fastshard.open(str(folder)))
    if kind == "wids":
        [path] = fastshard.build_index(folder, format="wids")
        source = os.path.basename(path)
    elif kind != "none":
        for path in fastshard.build_index(str(folder)):
            if (kind == "dataset") != path.endswith("dataset.fsi"):
                os.remove(path)
    bucket.put_folder(folder, "data")
    url = bucket.url(f"data/{source}").rstrip("/")

    ds = fastshard.open(url, store=bucket.options)

    assert len(ds) == len(expected)
    assert contents(ds) == expected
    some = ds.get_many([41, 3, 59])
    assert [s.key for s in some] == [expected[i][0] for i in (41, 3, 59)]
    assert [bytes(s["txt"]) for s in some] == [
        expected[i][1]["txt"] for i in (41, 3, 59)
    ]


@pytest.mark.parametrize(
    "key",
    ["a b.tar", "ü名.tar", "50%.tar", "a%20b.tar", "a+b.tar", "a#b.tar", "x/a?b=c.tar"],
)
def test_keys_are_not_decoded(bucket, key):
    bucket.put(key, DATA)
    url = bucket.url(key)

    facts, head = bucket.client_of().head(url, 1000)

    assert head == DATA[:1000]
    assert facts.nbytes == len(DATA)
    assert bucket.client_of().whole(url) == (facts, DATA)
    assert list(bucket.client_of().list(url.partition("/a")[0])) in ([url], [])
    assert list(bucket.client_of().list(bucket.url("").rstrip("/"))) == [url]


def test_ranges_and_metadata(bucket):
    whole = DATA * 500
    bucket.put("a.tar", whole)
    file = open_remote(bucket.url("a.tar"), bucket.settings())

    assert file.tag.startswith('"')
    assert file.mtime_ns > 0
    extents = [(20_000, 10), (40_000, 5000), (3_000_000, 100), (20_005, 9), (3, 0)]
    assert file.read_many(extents) == [whole[a : a + n] for a, n in extents]
    assert file.read(1, len(whole) - 1) == whole[1:]


def test_an_empty_object(bucket):
    bucket.put("empty.tar", b"")
    file = open_remote(bucket.url("empty.tar"), bucket.settings())

    assert file.nbytes == 0
    assert file.read(0, 0) == b""
    assert bucket.client_of().whole(file.url)[1] == b""


def test_a_replaced_object_is_detected(bucket):
    bucket.put("a.tar", DATA)
    file = open_remote(bucket.url("a.tar"), bucket.settings())
    for other in (DATA[::-1], DATA + b"more"):
        bucket.put("a.tar", other)
        with pytest.raises(RemoteError, match="has changed"):
            file.read(20_000, 10)


@pytest.mark.parametrize("source", ["d", "d/**", "d/*"])
def test_folders_are_listed_as_local_ones(bucket, folder, source):
    names = ("._t-000.tar", ".hidden/x.tar", "a.TAR", "b.tar.gz")
    (folder / ".hidden").mkdir()
    for name in names:
        (folder / name).write_bytes(b"")
    bucket.put_folder(folder, "d")
    options = {"store": bucket.options, "timeout": 5.0}
    with pytest.warns(UserWarning, match="2 tars are left out") as caught:
        ds = fastshard.open(bucket.url(source), **options)
    assert len(caught) == 1
    assert [path.rpartition("/")[2] for path in ds.shards.paths] == [
        f"t-00{i}.tar" for i in range(3)
    ]


@pytest.mark.parametrize("name", ["d/U.TAR", "d/object"])
def test_a_tar_of_any_name_is_a_shard(bucket, folder, name):
    bucket.put(name, (folder / "t-000.tar").read_bytes())
    with fastshard.open(bucket.url(name), store=bucket.options) as ds:
        assert len(ds) == 20


def test_a_compressed_object_is_refused(bucket):
    bucket.put("a.tar", DATA, ContentEncoding="gzip")

    with pytest.raises(RemoteError, match="expected no Content-Encoding"):
        open_remote(bucket.url("a.tar"), bucket.settings())


def test_missing_objects_and_buckets(bucket):
    for url in (bucket.url("none.tar"), "s3://no-such-bucket/none.tar"):
        with pytest.raises(RemoteNotFoundError) as caught:
            open_remote(url, bucket.settings())
        assert caught.value.url == url
        assert isinstance(caught.value, FileNotFoundError)
    bucket.put("pictures/a.jpg", b"")
    for folder, words in (("none", "it is empty"), ("pictures", "1 jpg file: make")):
        with pytest.raises(fastshard.ShardNotFoundError, match=words):
            fastshard.open(bucket.url(folder), store=bucket.options)
    with pytest.raises(RemoteNotFoundError) as caught:
        fastshard.open("s3://no-such-bucket/none", store=bucket.options)
    assert isinstance(caught.value, fastshard.ShardNotFoundError)


@pytest.mark.parametrize("key", ["a//b.tar", "/a.tar", "a/../b.tar", "./a.tar", ""])
def test_keys_that_obstore_would_change_are_refused(bucket, key):
    with pytest.raises(RemoteError, match="does not support keys"):
        open_remote(bucket.url(key), bucket.settings())


@pytest.mark.parametrize("status", [401, 403, 500])
def test_errors_of_a_store_show_no_secret(bucket, status):
    with Server({}) as server:
        server.behave(None, f"status_{status}")
        endpoint = f"{server.url}/x?Signature={SECRET}"
        settings = bucket.settings(store={"endpoint": endpoint}, attempts=2)
        with pytest.raises(RemoteError) as caught:
            open_remote(bucket.url("a.tar"), settings)
    error = caught.value

    assert error.status == status
    assert ("credentials" in str(error)) == (status in (401, 403))
    assert error.attempts == (2 if status == 500 else 1)
    assert SECRET not in str(error) + repr(error.args)


def test_an_unresponsive_store_fails_in_bounded_time(bucket):
    with Server({}) as server:
        server.behave(None, "never_answer")
        options = {"store": {"endpoint": server.url}, "timeout": 0.5, "attempts": 3}
        with pytest.raises(RemoteError):
            open_remote(bucket.url("a.tar"), bucket.settings(**options))


def test_invalid_options_are_refused(bucket):
    settings = bucket.settings(store={"no_such_option": SECRET})
    with pytest.raises(FastshardError, match="no_such_option") as caught:
        open_remote(bucket.url("a.tar"), settings)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", ["allow_http", "AWS_ALLOW_HTTP", "read_timeout"])
def test_options_of_the_client_may_be_those_of_the_store(bucket, name):
    bucket.put("a.tar", DATA)
    store = {**bucket.options, name: "30s" if name == "read_timeout" else True}
    file = open_remote(bucket.url("a.tar"), bucket.settings(store=store))
    assert file.read(0, len(DATA)) == DATA


@pytest.mark.parametrize(
    "store",
    [
        {"config": {"allow_http": True}},
        {"client_options": 5},
        {"client_options": {"allow_http": SECRET}},
        {"retry_config": [1]},
        {"allow_http": SECRET},
        {"endpoint": 5},
        {"region": None},
        {1: 2},
    ],
)
def test_options_of_wrong_types_are_errors(bucket, store):
    settings = bucket.settings(store={**bucket.options, **store})
    with pytest.raises(FastshardError) as caught:
        open_remote(bucket.url("a.tar"), settings)
    assert SECRET not in str(caught.value)


def test_a_panic_of_a_call_is_a_remote_error(bucket, monkeypatch):
    class PanicException(BaseException):  # named as pyo3's, which is not an Exception
        pass

    def fail(*args, **options):
        raise PanicException("unwrap on None")

    store = SimpleNamespace(get=fail)
    locate_in(monkeypatch, store, "a.tar")
    with pytest.raises(RemoteError, match="unwrap on None"):
        open_remote(bucket.url("a.tar"), bucket.settings())


def test_private_endpoints_can_be_refused(bucket):
    bucket.put("a.tar", DATA)
    with pytest.raises(RemoteError, match=r"127\.0\.0\.1 is not a public address"):
        open_remote(bucket.url("a.tar"), bucket.settings(private_hosts=False))


def test_obstore_may_be_missing(bucket, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(FastshardError, match=r'pip install "fastshard\[cloud\]"'):
        open_remote(bucket.url("a.tar"), bucket.settings())


def test_every_scheme_has_its_store(bucket):
    azure = {"account_name": "someone", "skip_signature": True}
    kinds = {"s3a": ("S3", {}), "gs": ("GCS", {}), "gcs": ("GCS", {})}
    kinds |= dict.fromkeys(("az", "azure", "abfs", "abfss", "adl"), ("Azure", azure))
    for scheme, (kind, options) in kinds.items():
        client = stores_for(make_settings({"store": options}, []))
        store, key = locate(client, f"{scheme}://bucket/a/b.tar")
        assert (type(store).__name__, key) == (f"{kind}Store", "a/b.tar")


def test_only_settings_without_a_secret_pickle(bucket):
    with pytest.raises(FastshardError, match="not pickled"):
        pickle.dumps(bucket.settings())
    plain = {"region": "us-east-1", "skip_signature": True}
    settings = pickle.loads(pickle.dumps(make_settings({"store": plain}, [])))
    assert settings.store == plain


def in_child(check):
    """Return whether a check is true in a forked child."""
    child = os.fork()
    if child == 0:
        right = False
        try:
            right = check()
        finally:
            os._exit(0 if right else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def unused(monkeypatch):
    """Reset the record that this process used obstore."""
    forget_use_of_obstore(monkeypatch)


@forks
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_obstore_is_refused_in_a_child_of_a_process_that_used_it(bucket, unused):
    bucket.put("a.tar", DATA)
    file = open_remote(bucket.url("a.tar"), bucket.settings())

    def is_refused():
        try:
            file.read(20_000, 10)
        except FastshardError as error:
            return "spawn" in str(error) and "forkserver" in str(error)
        return False

    assert in_child(is_refused)
    assert in_child(lambda: in_child(is_refused))
    assert file.read(20_000, 10) == DATA[20_000:20_010]


class Store(Server):
    """Server of one bucket with path-style addresses, without signatures."""

    def answer(self, request):
        return super().answer(replace(request, target=request.target.partition("?")[0]))


def plain_store(server, **options):
    store = {"endpoint": server.url, "region": "us-east-1", "skip_signature": True}
    return make_settings({"store": store, **options}, [])


def test_an_unavailable_store_is_retried_until_the_timeout():
    with Store({"/b/a.tar": DATA}) as server:
        file = open_remote("s3://b/a.tar", plain_store(server, timeout=20.0))
        begun = time.monotonic()

        def away(exchange):
            if time.monotonic() - begun < 2.0:
                exchange.reset()
                return None
            return exchange.right

        server.behave(None, away)
        assert file.read(20_000, 10) == DATA[20_000:20_010]
        assert time.monotonic() - begun >= 2.0

        server.behave_well()
        server.behave(None, "short_body", times=2)  # obstore does not retry it
        assert file.read(30_000, 10) == DATA[30_000:30_010]

        server.behave_well()
        server.behave(None, "status_500")
        file = RemoteFile(file.url, plain_store(server, timeout=1.0), file.info)
        with pytest.raises(RemoteError, match="500") as caught:
            file.read(20_000, 10)
        assert caught.value.transient
        assert time.monotonic() - begun < HANG


@pytest.mark.parametrize("status", [400, 403, 404])
def test_refusals_of_a_store_are_not_retried(status):
    with Store({"/b/a.tar": DATA}) as server:
        file = open_remote("s3://b/a.tar", plain_store(server, timeout=20.0))
        server.behave(None, lambda exchange: plain(status))
        server.forget()
        with pytest.raises(RemoteError) as caught:
            file.read(20_000, 10)
        assert not caught.value.transient
        assert len(server.requests) == 1


def test_a_store_that_was_never_reached_is_an_error_soon(monkeypatch):
    monkeypatch.setattr("fastshard.remote.options.FIRST_TIMEOUT", 0.3)
    store = {"endpoint": "http://127.0.0.1:9", "region": "us-east-1"}
    store |= {"access_key_id": "a", "secret_access_key": SECRET}
    with pytest.raises(RemoteError) as caught:
        open_remote("s3://b/x.tar", make_settings({"store": store}, []))
    assert caught.value.reason == (
        "there is no connection to the server: Connection refused; it was tried for "
        "0.3 s: timeout= waits longer"
    )
    assert caught.value.transient


@pytest.mark.parametrize("make", ["open", "typed"])
def test_a_missing_library_is_named(monkeypatch, make):
    from fastshard import typed

    for module in ("obstore", "obstore.store"):
        monkeypatch.setitem(sys.modules, module, None)
    source = "s3://bucket/x-{0..3}.tar"
    pip = r'needs obstore, which is not installed: pip install "fastshard\[cloud\]"'
    if make == "open":
        with pytest.raises(fastshard.MissingLibraryError, match=pip):
            fastshard.open(source)
    else:
        assert re.search(f"^Dataset.*unreadable: .*{pip}", repr(typed.Dataset(source)))
