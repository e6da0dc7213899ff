"""More files than the process may open: at least 64 descriptors stay free."""

import os
import random
import threading
from contextlib import suppress

import numpy as np
import pytest

import fastshard
from fastshard._core.io import source as sources
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.errors import FormatError
from fastshard.streaming import MDSWriter
from support.marks import not_sanitized
from support.processes import run_script
from support.servers.http import Server
from support.tars import write_tar

SHARDS = 5000
SOURCES = 10

# In a process with few descriptors; `free` counts those that are left.
START = """
import contextlib, errno, os, random, resource, sys, threading
import numpy as np
import fastshard
limit, root = int(sys.argv[1]), sys.argv[2]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

def free():
    fds = []
    with contextlib.suppress(OSError):
        while len(fds) < limit:
            fds.append(os.open(os.devnull, os.O_RDONLY))
    for fd in fds:
        os.close(fd)
    return len(fds)

def expected(i):
    return b"%d" % (i % 10) * 600
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Return a folder of shards of a sample each, which are links to a few files."""
    folder = tmp_path_factory.mktemp("many")
    for k in range(SOURCES):
        arrays = {f"{k}.x": b"%d" % k * 600, f"{k}.npy": npy(k)}
        source = write_tar(folder / f"source-{k}", arrays)
        for i in range(k, SHARDS, SOURCES):
            os.link(source, folder / f"{i:05d}.tar")
    return folder


def npy(k):
    import io

    file = io.BytesIO()
    np.save(file, np.full(20, k))
    return file.getvalue()


READS = """
order = random.Random(0).sample(range(5000), 1500)
for options in ({"mode": "pread"}, {"check_size": True}, {"mode": "private"}, {}):
    with fastshard.open(root, index="none", **options) as ds:
        for i, sample in enumerate(ds):
            assert sample["x"] == expected(i)
        assert free() >= 64, (options, free())
        for i, sample in zip(order, ds.get_many(order), strict=True):
            assert sample["x"] == expected(i)
        held = [ds[i] for i in order]  # each keeps its shard
        assert free() >= 64, (options, free())
        for i, sample in zip(order, held, strict=True):
            assert sample["x"] == expected(i)
        out = np.zeros((len(order), 600), "u1")
        ds.select_fields("x").read_into(order, out)
        for i, row in zip(order, out, strict=True):
            assert bytes(row) == expected(i)
        column = ds.columns(range(5000), ["npy"])["npy"]
        assert (column == np.arange(5000)[:, None] % 10).all()
        assert free() >= 64, (options, free())
        del held, sample
print("done")
"""


@not_sanitized
@pytest.mark.parametrize("limit", [256, 1024])
def test_many_shards_in_each_mode(tmp_path, many, limit):
    assert run_script(tmp_path, START + READS, limit, many) == "done\n"


TWO = """
one = fastshard.open(root, index="none", mode="pread")
two = fastshard.open(root, index="none", mode="pread", max_memory="8MB")
three = fastshard.open(root, index="none", check_size=True)
for i, (a, b, c) in enumerate(zip(one, two, three.iter(order=range(5000)))):
    assert a["x"] == b["x"] == c["x"] == expected(i)
assert free() >= 64, free()
print("done")
"""


@not_sanitized
def test_several_datasets_share_the_descriptors(tmp_path, many):
    assert run_script(tmp_path, START + TWO, 256, many) == "done\n"


LOADER = """
ds = fastshard.open(root, index="none", mode="pread")
ds = ds.select_fields("npy").decode("npy")
seen = 0
for batch in ds.shuffle(seed=1).loader(100, threads=4):
    seen += len(batch["npy"])
    if seen % 1000 == 0:
        assert free() >= 64, free()
assert seen == 5000
print("done")
"""


@not_sanitized
def test_a_loader_leaves_descriptors(tmp_path, many):
    assert run_script(tmp_path, START + LOADER, 256, many) == "done\n"


FORMATS = """
from fastshard.streaming import reader_from_json
import json
for name, options in (
    ("mds", {"mode": "pread"}), ("mds", {"check_size": True}), ("mds", {}),
    ("columnar", {"mode": "pread"}), ("columnar", {}),
):
    with fastshard.open(f"{root}/{name}", **options) as ds:
        held = list(ds)
        for turn in range(2):
            for i, sample in enumerate(held):
                assert sample.decode()["x"].tolist() == [i] * 5
        assert free() >= 64, (name, options, free())
        del held, sample
with open(f"{root}/mds/index.json") as file:
    shards = json.load(file)["shards"]
readers = [reader_from_json(f"{root}/mds", None, shard) for shard in shards]
assert sum(len(reader) for reader in readers) == 400
for i, sample in enumerate(sample for reader in readers for sample in reader):
    assert sample["x"].tolist() == [i] * 5
assert free() >= 64, free()
print("done")
"""


@not_sanitized
def test_datasets_of_other_formats_leave_descriptors(tmp_path):
    columns = {"x": "ndarray:int64:5"}
    mds = {"out": str(tmp_path / "mds"), "size_limit": 200}
    with MDSWriter(columns=columns, **mds) as writer:
        for i in range(400):
            writer.write({"x": np.full(5, i)})
    assert len(list((tmp_path / "mds").glob("*.mds"))) >= 400
    with ShardedDatasetWriter(tmp_path / "columnar", samples_per_shard=1) as writer:
        writer.add_field("x")
        for i in range(400):
            writer.add_sample({"x": np.full(5, i)}, f"{i:03}")
    assert run_script(tmp_path, START + FORMATS, 256, tmp_path) == "done\n"


WIDE = """
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
names = [f"f{i:03}" for i in range(300)]
for start in (0, 3):
    with ShardedDatasetWriter(f"{root}/wide", samples_per_shard=4) as writer:
        writer.add_fields(names)
        for k in range(start, start + 3):
            writer.add_sample({name: np.full(3, k) for name in names}, f"s{k}")
        assert free() >= 64, free()
for mode in ("pread", "mmap"):
    with ShardedDatasetReader(f"{root}/wide", mode=mode) as reader:
        for k in range(6):
            arrays, _ = reader.get_sample(f"s{k}")
            assert all((arrays[name] == k).all() for name in names)
        assert free() >= 64, free()
print("done")
"""


@not_sanitized
def test_a_columnar_dataset_of_many_fields_leaves_descriptors(tmp_path):
    assert run_script(tmp_path, START + WIDE, 256, tmp_path) == "done\n"


CACHED = """
url, cache = sys.argv[3], sys.argv[4]
local = fastshard.open(root, index="none", mode="pread")
names = [f"{url}/{i:05}.tar" for i in range(300)]
for turn in range(2):
    with fastshard.open(names, cache_dir=cache) as ds:
        for i, (sample, other) in enumerate(zip(ds, local)):
            assert sample["x"] == other["x"] == expected(i)
        assert free() >= 64, free()
print("done")
"""


@not_sanitized
def test_cached_shards_leave_descriptors(tmp_path, many):
    files = {path.name: path.read_bytes() for path in sorted(many.glob("00[012]*.tar"))}
    with Server(files) as server:
        arguments = (256, many, server.url.rstrip("/"), tmp_path / "cache")
        assert run_script(tmp_path, START + CACHED, *arguments) == "done\n"


# Files whose descriptors were closed


@pytest.fixture
def few(monkeypatch):
    """Allow three descriptors more than are open."""
    free = [os.dup(0) for _ in range(3)]  # there may be open ones between them
    for fd in free:
        os.close(fd)
    monkeypatch.setattr(sources, "kept_limit", lambda **spared: max(free) + 1)


@pytest.fixture
def shards(tmp_path, few):
    """Return six open shards, of which three keep their descriptors."""
    paths = [write_tar(tmp_path / f"{k}.tar", {"a.x": b"%d" % k}) for k in range(6)]
    return [fastshard.open_shard(path, mode="pread") for path in paths]


def open_shards():
    """Return the number of shards to which the process has descriptors."""
    found = [
        os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
    ]
    return sum(path.endswith(".tar") for path in found)


needs_proc = pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="descriptors are listed in /proc"
)


@needs_proc
def test_descriptors_are_closed_and_opened_again(shards, tmp_path, monkeypatch):
    assert open_shards() == 3
    monkeypatch.chdir(tmp_path.parent)
    for _ in range(3):
        for k, shard in enumerate(shards):
            assert shard[0] == b"%d" % k
            assert open_shards() <= 3
    del shard
    shards.clear()
    assert open_shards() == 0


def test_a_relative_path_is_opened_again_from_another_directory(
    tmp_path, few, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for k in range(6):
        write_tar(tmp_path / f"{k}.tar", {"a.x": b"%d" % k})
    shards = [fastshard.open_shard(f"{k}.tar", mode="pread") for k in range(6)]
    monkeypatch.chdir("/")
    for k, shard in enumerate(shards):
        assert shard[0] == b"%d" % k


def test_another_file_at_the_path_is_an_error(shards, tmp_path):
    write_tar(tmp_path / "new.tar", {"a.x": b"new"})
    (tmp_path / "new.tar").rename(tmp_path / "0.tar")
    with pytest.raises(FormatError, match="replaced after it was opened") as raised:
        bytes(shards[0][0])
    assert raised.value.path == str(tmp_path / "0.tar")
    (tmp_path / "1.tar").unlink()
    with pytest.raises(FileNotFoundError):
        bytes(shards[1][0])


def test_a_new_file_of_the_same_inode_is_an_error(tmp_path, few):
    """Columnar files of a dataset made again; the file system reuses their inodes."""
    root = tmp_path / "columns"

    def write(value):
        with ShardedDatasetWriter(root, samples_per_shard=4) as writer:
            writer.add_fields(["x"])
            for i in range(24):
                writer.add_sample({"x": np.full(10, value)}, f"{i:02d}")

    write(1)
    reader = ShardedDatasetReader(root, mode="pread")
    assert [reader.get_sample(f"{i:02d}")[0]["x"][0] for i in range(24)] == [1] * 24
    for path in sorted((root / "x_shards").iterdir()):
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data.replace(b"\1", b"\2"))
    values = set()
    for i in range(24):
        with suppress(FormatError):
            values.add(int(reader.get_sample(f"{i:02d}")[0]["x"][0]))
    assert values <= {1}


def test_a_path_behind_a_link_is_opened_again(tmp_path, few, monkeypatch):
    (tmp_path / "real/sub").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "here/link").symlink_to(tmp_path / "real/sub")
    for k in range(6):
        write_tar(tmp_path / f"real/{k}.tar", {"a.x": b"%d" % k})
    monkeypatch.chdir(tmp_path / "here")
    paths = [f"link/../{k}.tar" for k in range(6)]
    shards = [fastshard.open_shard(path, mode="pread") for path in paths]
    assert [bytes(shard[0]) for shard in shards] == [b"%d" % k for k in range(6)]


def test_a_copy_with_its_times_is_the_same_file(shards, tmp_path):
    """Some network file systems give a file another inode when it is looked up."""
    size = os.path.getsize(tmp_path / "0.tar")
    with open(tmp_path / "0.tar", "ab") as file:
        file.write(bytes(512))  # appended: seen by its size
    assert shards[0][0] == b"0"
    os.truncate(tmp_path / "0.tar", size - 1024)
    with pytest.raises(FormatError, match="written to after it was opened"):
        bytes(shards[0][0])


def test_a_closed_shard_stays_closed(shards):
    shards[0].close()
    with pytest.raises(fastshard.ClosedError):
        shards[0][0]
    shards[0] = None
    assert [bytes(shard[0]) for shard in shards[1:]] == [b"%d" % k for k in range(1, 6)]


@needs_proc
def test_sizes_are_checked_by_path_if_there_are_few_descriptors(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "kept_limit", lambda **spared: 0)
    monkeypatch.chdir(tmp_path)
    write_tar(tmp_path / "s.tar", {"a.x": b"a" * 600, "b.x": b"b" * 600})
    with fastshard.open_shard("s.tar", check_size=True) as shard:
        monkeypatch.chdir("/")
        assert open_shards() == 0
        assert shard["b.x"] == b"b" * 600
        os.truncate(tmp_path / "s.tar", 700)
        with pytest.raises(FormatError, match="the file was truncated"):
            shard["b.x"]


def test_threads_read_more_files_than_descriptors(tmp_path, few):
    folder = tmp_path / "data"
    folder.mkdir()
    for k in range(40):
        write_tar(folder / f"{k:02}.tar", {"a.x": b"%02d" % k * 5000})
    ds = fastshard.open(folder, mode="pread")
    wrong = []

    def read(seed):
        order = random.Random(seed).choices(range(40), k=400)
        for i in order:
            if ds[i]["x"] != b"%02d" % i * 5000:
                wrong.append(i)
        out = np.zeros((400, 10000), "u1")
        ds.select_fields("x").read_into(order, out)
        wrong.extend(
            i
            for i, row in zip(order, out, strict=True)
            if bytes(row) != b"%02d" % i * 5000
        )

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert ds.verify() == []
