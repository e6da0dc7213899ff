"""Stores of shards in folders."""

import hashlib
import os
import pickle
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import fastshard
from fastshard import typed
from fastshard.typed.stores.writing import copy_shards, safe_prefix, write_to_store
from fastshard.typed.write.shards import PackedWriter
from support.processes import environment


@typed.packable
class Number:
    x: int
    name: str = ""


@pytest.fixture
def store(tmp_path):
    return typed.LocalDiskStore(tmp_path / "store")


@pytest.fixture
def numbers(tmp_path):
    samples = (Number(i, f"n{i}") for i in range(10))
    return typed.write_samples(
        samples, tmp_path / "in" / "n.tar", maxcount=4, key=lambda s: f"key-{s.x}"
    )


def names(folder):
    return sorted(path.name for path in Path(folder).rglob("*") if path.is_file())


def check(result):
    """Check paths and checksums; return the shards as a dataset."""
    assert list(result.checksums) == result
    for url in result:
        data = Path(url).read_bytes()
        assert result.checksums[url] == hashlib.sha256(data).hexdigest()
        assert Path(url).with_suffix(".fsi").exists()
    return typed.Dataset[Number](list(result))


def test_it_is_a_store(store, tmp_path):
    assert isinstance(store, typed.AbstractDataStore)
    assert store.root == tmp_path / "store"
    assert store.root.is_dir()
    assert store.read_url("/a/b.tar") == "/a/b.tar"
    assert store.supports_streaming() is True
    assert repr(store) == f"LocalDiskStore({str(tmp_path / 'store')!r})"
    assert pickle.loads(pickle.dumps(store)).root == store.root


def test_the_default_root_is_in_the_home_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert typed.LocalDiskStore().root == tmp_path / ".atdata" / "data"
    assert typed.LocalDiskStore("~/mine").root == tmp_path / "mine"


def test_samples_are_written_once_with_checksums(store):
    result = write_to_store(
        store, (Number(i) for i in range(10)), prefix="a/b", maxcount=4
    )
    assert [len(fastshard.open_shard(url)) for url in result] == [4, 4, 2]
    ds = check(result)
    assert [sample.x for sample in ds] == list(range(10))
    assert ds.keys()[9] == "000000000009"
    first = Path(result[0])
    assert first.parent == store.root / "a" / "b"
    unique = first.name.removeprefix("data--").removesuffix("--000000.tar")
    assert len(unique) == 8
    assert int(unique, 16) >= 0


def test_large_shards_have_the_checksum_of_all_their_bytes(store):
    @typed.packable
    class Blob:
        data: bytes

    samples = [Blob(os.urandom(3_000_001)) for _ in range(8)]
    result = write_to_store(store, samples, prefix="", maxsize="16MB")
    assert len(result) == 2
    check(result)


def test_equal_samples_have_equal_checksums(store):
    samples = [Number(i) for i in range(5)]
    one, two = (write_to_store(store, samples, prefix="p") for _ in range(2))
    assert one != two
    assert list(one.checksums.values()) == list(two.checksums.values())


def test_manifests_are_beside_the_shards(store):
    pytest.importorskip("pyarrow")
    samples = [Number(i) for i in range(4)]
    result = write_to_store(store, samples, prefix="p", maxcount=2, manifest=True)
    suffixes = sorted(name.partition(".")[2] for name in names(store.root))
    each = ["fsi", "manifest.json", "manifest.parquet", "tar"]
    assert suffixes == sorted(2 * each)
    assert [at.key for at in check(result).query(where=lambda m: m.x == 3)] == [
        "000000000003"
    ]


def test_a_whole_dataset_is_copied_byte_by_byte(store, numbers):
    result = store.write_shards(numbers, prefix="copy")
    assert check(result).keys()[9] == "key-9"
    for url, path in zip(result, numbers.list_shards(), strict=True):
        assert Path(url).read_bytes() == Path(path).read_bytes()


def test_manifests_are_copied_with_their_shards(store, tmp_path):
    pytest.importorskip("pyarrow")
    samples = [Number(i) for i in range(4)]
    ds = typed.write_samples(samples, tmp_path / "m.tar", maxcount=2, manifest=True)
    result = store.write_shards(ds, prefix="copy")
    for url, path in zip(result, ds.list_shards(), strict=True):
        for suffix in (".manifest.json", ".manifest.parquet"):
            copied = Path(url).with_suffix(suffix).read_bytes()
            assert copied == Path(path).with_suffix(suffix).read_bytes()
    assert len(check(result).query(where=lambda m: m.x > 1)) == 2  # without a warning


@pytest.mark.parametrize("maxcount", [3, 100])
def test_other_shards_keep_keys_and_payloads(store, numbers, maxcount):
    result = store.write_shards(numbers, prefix="other", maxcount=maxcount)
    ds = check(result)
    assert len(result) == -(-10 // maxcount)
    assert list(ds) == list(numbers)
    assert list(ds.keys()) == [f"key-{i}" for i in range(10)]


def test_selected_and_mapped_samples_are_written(store, numbers):
    twice = numbers.filter(lambda s: s.x % 2).map(lambda s: Number(2 * s.x))
    ds = check(store.write_shards(twice, prefix="mapped"))
    assert [sample.x for sample in ds] == [2, 6, 10, 14, 18]
    assert ds.keys()[0] == "key-1"
    ds = check(store.write_shards(numbers[[7, 2]], prefix="selected"))
    assert list(ds.keys()) == ["key-7", "key-2"]


def test_a_key_that_is_there_begins_the_next_shard(store, numbers):
    ds = check(store.write_shards(numbers[[0, 1, 1, 2]], prefix="twice"))
    assert [s.x for s in ds] == [0, 1, 1, 2]
    assert len(ds.list_shards()) == 2


def test_manifests_of_a_dataset_have_its_provenance(store, numbers):
    pytest.importorskip("pyarrow")
    (url,) = store.write_shards(
        numbers, prefix="m", manifest=True, schema_version="2.0.0", source_job_id="job"
    )
    text = Path(url).with_suffix(".manifest.json").read_text()
    assert '"2.0.0"' in text
    assert '"job"' in text
    assert len(typed.Dataset[Number](url).query(where=lambda m: m.x > 7)) == 2


def test_a_dataset_of_others(store):
    class Others:
        def ordered(self, batch_size):
            return iter([Number(5), Number(6)])

    ds = check(store.write_shards(Others(), prefix="others"))
    assert [sample.x for sample in ds] == [5, 6]


def test_a_sum_of_datasets(store, numbers):
    ds = check(store.write_shards(numbers[:2] + numbers[1:3], prefix="sum"))
    assert [sample.x for sample in ds] == [0, 1, 1, 2]
    assert ds.keys()[3] == "000000000003"


def test_no_samples(store, numbers):
    for empty in (numbers[:0], numbers.filter(lambda s: False)):
        with pytest.raises(ValueError, match="no samples"):
            store.write_shards(empty, prefix="empty")
    with pytest.raises(ValueError, match="non-empty"):
        write_to_store(store, [], prefix="empty")
    assert not names(store.root)


def test_unknown_options(store, numbers):
    with pytest.raises(TypeError, match=r"write_shards\(\) has no argument compress="):
        store.write_shards(numbers, prefix="p", compress=True)


def test_a_failed_write_leaves_whole_shards_only(store):
    def samples():
        yield from (Number(i) for i in range(5))
        raise RuntimeError("the source failed")

    with pytest.raises(RuntimeError, match="the source failed"):
        write_to_store(store, samples(), prefix="p", maxcount=2)
    found = [name.rpartition("--")[2] for name in names(store.root)]
    assert found == ["000000.fsi", "000000.tar", "000001.fsi", "000001.tar"]
    tars = list(store.root.rglob("*.tar"))
    assert all(len(fastshard.open_shard(path)) == 2 for path in tars)


def test_a_killed_write_leaves_whole_shards_only(tmp_path):
    code = """
import os, sys
from fastshard import typed
from fastshard.typed.stores.writing import write_to_store
@typed.packable
class Blob:
    data: bytes
def samples():
    for i in range(7):
        yield Blob(bytes(1 << 20))
    os._exit(9)
write_to_store(typed.LocalDiskStore(sys.argv[1]), samples(), prefix="p", maxcount=3)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environment(), timeout=60
    )
    assert done.returncode == 9
    tars = sorted(tmp_path.rglob("*.tar"))
    assert len(tars) == 2
    for path in tars:
        with tarfile.open(path) as tar:
            assert len(tar.getmembers()) == 3


@pytest.mark.skipif(os.name == "nt", reason="no limits of files")
@pytest.mark.parametrize("size", [1000, 3_000_000])
def test_a_full_disk_names_the_shard_and_leaves_nothing(tmp_path, size):
    code = """
import resource, signal, sys
from fastshard import typed
from fastshard.typed.stores.writing import copy_shards, write_to_store
@typed.packable
class Blob:
    data: bytes
size = int(sys.argv[2])
samples = [Blob(bytes(size)) for _ in range(500_000 // size + 1)]
source = typed.write_samples(samples, sys.argv[1] + "/in.tar").source
store = typed.LocalDiskStore(sys.argv[1] + "/store")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for call, given in ((write_to_store, samples), (copy_shards, source)):
    try:
        call(store, given, prefix="p")
    except OSError as error:
        print(error.filename)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(size)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    written, copied = done.stdout.splitlines()
    for path in (written, copied):
        assert Path(path).parent == tmp_path / "store" / "p"
        assert path.endswith("--000000.tar")
    assert not names(tmp_path / "store")


def test_a_sample_that_cannot_be_stored_is_named(store):
    with pytest.raises(TypeError, match=r"sample 1 .*'x'"):
        write_to_store(store, [Number(1), Number(object())], prefix="p")


@pytest.mark.parametrize(
    ("prefix", "folder"),
    [
        ("a/b", "a/b"),
        ("", ""),
        ("./a//b/", "a/b"),
        ("mnist v1.2", "mnist_v1.2"),
        ("x{0..9}*?[a]", "x_0..9____a_"),
        ("a\0b\\c'\"%20:d", "a_b_c___20_d"),
        ("日本", "日本"),
        ("x" * 1_000_000, "x" * 100),
    ],
)
def test_prefixes_are_folders(prefix, folder):
    assert safe_prefix(prefix) == folder


@pytest.mark.parametrize("prefix", ["/a", "../a", "a/../../b", "a/.."])
def test_prefixes_that_lead_outside(prefix, store, numbers):
    with pytest.raises(ValueError, match="relative path"):
        store.write_shards(numbers, prefix=prefix)


def test_names_with_letters_of_patterns_can_be_read(store, numbers):
    result = store.write_shards(numbers, prefix="a{1,2}*[b]")
    assert len(check(result)) == 10


def test_letters_of_patterns_in_the_root_are_letters(tmp_path, numbers):
    store = typed.LocalDiskStore(tmp_path / "100%d {1,2} [x]*?")
    for options in ({}, {"maxcount": 20}):
        urls = store.write_shards(numbers, prefix="p", **options)
        assert all(Path(url).parent == store.root / "p" for url in urls)
        shards = [fastshard.open_shard(Path(url)) for url in urls]
        assert sum(map(len, shards)) == 10


def test_a_write_replaces_no_other(store, monkeypatch):
    digits = iter(["1" * 32, "1" * 32, "2" * 32])
    uuid4 = lambda: SimpleNamespace(hex=next(digits))  # noqa: E731
    monkeypatch.setattr("fastshard.typed.stores.disk.uuid4", uuid4)
    one, two = (write_to_store(store, [Number(i)], prefix="p") for i in range(2))
    assert Path(one[0]).name == "data--11111111--000000.tar"
    assert Path(two[0]).name == "data--22222222--000000.tar"


def test_eight_threads_write_to_one_store(store):
    def write(k):
        samples = [Number(4 * k + i) for i in range(4)]
        return write_to_store(store, samples, prefix="p", maxcount=2)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(write, range(8)))
    urls = [url for result in results for url in result]
    assert len(set(urls)) == 16
    assert sorted(sample.x for sample in typed.Dataset[Number](urls)) == list(range(32))


def test_copies_are_compared_with_known_checksums(store, numbers):
    source = typed.URLSource(numbers.list_shards())
    first = source.list_shards()[0]
    digest = hashlib.sha256(Path(first).read_bytes()).hexdigest()
    copy_shards(store, source, prefix="p", checksums={first: digest.upper()})
    with pytest.raises(typed.ShardError, match="SHA-256"):
        copy_shards(store, source, prefix="q", checksums={first: "0" * 64})
    assert not names(store.root / "q")


def test_a_non_tar_is_not_copied(store, tmp_path):
    path = tmp_path / "bad.tar"
    path.write_bytes(b"x" * 5000)
    with pytest.raises(typed.ShardError) as caught:
        store.write_shards(typed.Dataset(str(path)), prefix="bad")
    assert caught.value.path == str(path)
    assert not names(store.root)


def test_a_store_of_others_gets_a_dataset(numbers):
    class Lists:
        def write_shards(self, ds, *, prefix, **kwargs):
            self.seen = [sample.x for sample in ds], prefix, kwargs
            return ["one", "two"]

    store = Lists()
    samples = [Number(1), Number(2)]
    result = write_to_store(store, samples, prefix="p", force=True)
    assert store.seen == ([1, 2], "p", {"force": True})
    assert result == ["one", "two"]
    assert result.checksums == {}


def test_a_result_is_a_list_with_checksums():
    result = typed.ShardWriteResult(["a", "b"], {"a": "x", "b": "y"})
    assert result == ["a", "b"]
    again = pickle.loads(pickle.dumps(result))
    assert (again, again.checksums) == (["a", "b"], {"a": "x", "b": "y"})
    assert type(again) is typed.ShardWriteResult


def test_the_end_of_a_shard_by_hand(tmp_path):
    published = []
    with PackedWriter(
        str(tmp_path / "x-%03d.tar"), None, None, None, lambda *of: published.append(of)
    ) as writer:
        writer.write("a", b"\x80", None)
        assert writer.has("a")
        writer.end_shard()
        assert not writer.has("a")
        writer.write("a", b"\x80", None)
    assert [Path(path).name for path, _ in published] == ["x-000.tar", "x-001.tar"]
    assert len({digest for _, digest in published}) == 1
