"""Shards that are evicted and opened again, in every format: only the same file is.

And shards that are opened while the dataset is closed: none stays open.
"""

import gc
import os
import pickle
import shutil
import tarfile
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetReader
from fastshard.errors import ClosedError, StaleShardError
from support.builders import BUILDERS, PER_SHARD
from support.inside.columnar import (
    before_opening_a_shard,
    before_opening_the_index,
    holds_lease,
    snapshot_of,
)
from support.inside.datasets import files_of, opened_shards, shards_of
from support.inside.streaming import join_opening_ahead, open_ahead, opened_ahead
from support.servers.http import Server
from support.tars import write_numbers, write_tar
from support.threads import in_threads

COUNT = 3 * PER_SHARD
LAST = COUNT - 1
MODES = pytest.mark.parametrize("mode", ["mmap", "private", "pread"])


def value(i, size):
    return np.full(size, i, np.float32)


def samples():
    return [(f"k{i:04d}", {"x": value(i, 40), "y": value(i, 9)}) for i in range(COUNT)]


@pytest.fixture(scope="module", params=BUILDERS)
def form(request):
    """Return how a format stores the samples."""
    return BUILDERS[request.param]


@pytest.fixture(scope="module")
def built(form, tmp_path_factory):
    folder = tmp_path_factory.mktemp("formats") / "data"
    form.build(folder, samples())
    return folder


@pytest.fixture
def folder(built, tmp_path):
    return shutil.copytree(built, tmp_path / "data")


def first_shard(form, folder):
    return form.shard_paths(folder)[0]


def remove_indexes(folder):
    for path in folder.glob("*.fsi"):
        path.unlink()


def replace(path):
    """Put another file of the same size in a file's place."""
    new = path.with_suffix(".new")
    shutil.copyfile(path, new)
    os.replace(new, path)


def read_first(ds, x):
    """Yield reads of the first sample in each way."""
    yield lambda: bytes(ds[0][x])
    yield lambda: [bytes(sample[x]) for sample in ds.get_many([LAST, 0])]
    yield lambda: [bytes(sample[x]) for sample in ds]
    yield lambda: [bytes(sample[x]) for sample in ds.shuffle(seed=1)]
    yield lambda: ds.columns([0, LAST], x)


@MODES
def test_an_evicted_shard_that_was_replaced_is_refused(form, folder, mode):
    remove_indexes(folder)
    assert_refused(form, folder, mode)


@MODES
@pytest.mark.parametrize("name", ["tar", "packed"])
def test_a_replaced_shard_is_refused_also_if_its_index_is_fresh(tmp_path, name, mode):
    form = BUILDERS[name]
    form.build(tmp_path / "d", samples())
    fastshard.build_index(tmp_path / "d")
    assert_refused(form, tmp_path / "d", mode)


def assert_refused(form, folder, mode):
    x, path = form.name("x"), first_shard(form, folder)
    with form.open(folder, mode=mode, max_mapped=1) as ds:
        assert bytes(ds[0][x]) != bytes(ds[LAST][x])
        replace(path)
        for read in read_first(ds, x):
            with pytest.raises(StaleShardError) as caught:
                read()
            assert caught.value.path == str(path)
        assert ds[LAST].key == f"k{LAST:04d}"


def chmod(path):
    path.chmod(0o600)


def link(path):
    os.link(path, path.with_suffix(".link"))


def rename(path):
    aside = path.with_suffix(".aside")
    path.rename(aside)
    aside.rename(path)


@MODES
@pytest.mark.parametrize(
    "change",
    [chmod, link, rename],
)
def test_an_evicted_shard_with_another_mode_link_or_name_is_opened_again(
    form, folder, mode, change
):
    x, path = form.name("x"), first_shard(form, folder)
    with form.open(folder, mode=mode, max_mapped=1) as ds:
        first = bytes(ds[0][x])
        for _ in range(2):
            assert bytes(ds[LAST][x]) != first
            change(path)
            assert bytes(ds[0][x]) == first
            path.with_suffix(".link").unlink(missing_ok=True)


@MODES
def test_an_open_shard_that_was_replaced_is_read_on(form, folder, mode):
    x, path = form.name("x"), first_shard(form, folder)
    with form.open(folder, mode=mode) as ds:
        first = bytes(ds[0][x])
        bytes(ds[LAST][x])
        replace(path)
        assert bytes(ds[0][x]) == first


@pytest.fixture
def numbers(tmp_path):
    """Return a dataset of three tar shards; the second one is open, the first not."""
    with fastshard.open(write_numbers(tmp_path / "n", 30), max_mapped=1) as ds:
        assert [ds[i].text("txt") for i in (0, 10)] == ["0", "10"]
        yield ds


def append(path):
    with tarfile.open(path, "a") as tar:
        tar.addfile(tarfile.TarInfo("more.txt"))


def write_over(path):
    data = path.read_bytes()
    path.write_bytes(data.replace(b"0", b"1"))


@pytest.mark.parametrize("change", [append, write_over, Path.touch])
def test_an_evicted_shard_that_was_written_to_is_refused(numbers, change):
    path = Path(numbers.shards.paths[0])
    change(path)
    with pytest.raises(StaleShardError, match="open the dataset again") as caught:
        numbers[0]
    assert caught.value.path == str(path)
    assert isinstance(caught.value, fastshard.FormatError)


def test_old_and_new_samples_do_not_mix_in_an_epoch(tmp_path):
    folder = write_numbers(tmp_path / "n", 30)
    with fastshard.open(folder, max_mapped=1) as ds:
        assert len(ds) == 30
        assert [sample.text("txt") for sample in ds] == [str(i) for i in range(30)]
        new = write_numbers(tmp_path / "new", 30, first=100)
        os.replace(new / "n-001.tar", folder / "n-001.tar")
        iterator = ds.iter(on_error="skip")
        assert [s.text("txt") for s in iterator] == [
            str(i) for i in (*range(10), *range(20, 30))
        ]
        assert iterator.skipped == 10


def test_a_shard_that_could_not_be_opened_may_be_mended(tmp_path):
    folder = write_numbers(tmp_path / "n", 30)
    remove_indexes(folder)
    path = folder / "n-000.tar"
    good = path.read_bytes()
    path.write_bytes(b"damage" * 200)
    with fastshard.open(folder) as ds:
        with pytest.raises(fastshard.FormatError):
            ds.shards[0]
        path.write_bytes(good)
        assert ds[0].text("txt") == "0"


def test_a_file_of_another_inode_and_the_same_times_is_the_same(numbers, monkeypatch):
    """As on network file systems that number a file anew when it is looked up."""
    path = Path(numbers.shards.paths[0])
    status = path.stat()
    replace(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(StaleShardError):  # the inode and its time of change differ
        numbers[0]
    identify = fastshard.index.freshness.identify_file
    monkeypatch.setattr(
        fastshard.index.freshness,
        "identify_file",
        lambda file: identify(file)._replace(ctime_ns=status.st_ctime_ns),
    )
    assert numbers[0].text("txt") == "0"


def test_workers_compare_the_counts_of_an_unpickled_dataset(tmp_path):
    folder = write_numbers(tmp_path / "n", 30)
    remove_indexes(folder)
    data = pickle.dumps(fastshard.open(folder))
    write_tar(folder / "n-000.tar", {"a.txt": b"0"})
    with pytest.raises(StaleShardError, match="as counted before"):
        pickle.loads(data)[0]


@pytest.mark.parametrize("has_cache", [False, True])
def test_an_evicted_remote_shard_that_was_replaced_is_refused(tmp_path, has_cache):
    folder = write_numbers(tmp_path / "n", 30)
    files = {f"/n/{path.name}": path.read_bytes() for path in folder.iterdir()}
    options = {"cache_dir": tmp_path / "cache"} if has_cache else {}
    with Server(files) as server:
        urls = [server.at(f"/n/n-{k:03d}.tar") for k in range(3)]
        with fastshard.open(urls, max_mapped=1, **options) as ds:
            texts = [ds[i].text("txt") for i in (0, 10, 0, 10)]
            assert texts == ["0", "10", "0", "10"]
            server.files["/n/n-000.tar"] = files["/n/n-000.tar"].replace(b"0", b"1")
            with pytest.raises(StaleShardError) as caught:
                ds[0]
            assert caught.value.path == urls[0]


# ------------------------------------------------------------- compressed files


@pytest.fixture
def compressed(tmp_path):
    from fastshard.streaming import MDSWriter

    out = tmp_path / "mds"
    with MDSWriter(
        out=str(out), columns={"x": "int"}, compression="gz", size_limit=2000
    ) as writer:
        for i in range(400):
            writer.write({"x": i})
    return out


def test_a_raw_file_may_be_removed_and_decompressed_again(compressed):
    with fastshard.open(compressed, max_mapped=1) as ds:
        for _ in range(3):
            assert [ds[i].decode()["x"] for i in (0, 399)] == [0, 399]
            for raw in compressed.glob("*.mds"):
                raw.unlink()


def test_a_compressed_file_that_was_replaced_is_refused(compressed):
    with fastshard.open(compressed, max_mapped=1) as ds:
        assert [ds[i].decode()["x"] for i in (0, 399)] == [0, 399]
        path = compressed / "shard.00000.mds.gz"
        replace(path)
        with pytest.raises(StaleShardError) as caught:
            ds[0]
        assert caught.value.path == str(path)
        path.unlink()  # its raw file does
        assert ds[0].decode()["x"] == 0


# ------------------------------------------------------------- columnar readers


def test_a_columnar_reader_refuses_a_replaced_shard_until_it_is_refreshed(tmp_path):
    form = BUILDERS["columnar"]
    form.build(tmp_path / "d", samples())
    path = first_shard(form, tmp_path / "d")
    with ShardedDatasetReader(tmp_path / "d", cache_tars=False) as reader:
        assert reader.get_sample("k0000")[0]["x"][0] == 0
        replace(path)
        with pytest.raises(StaleShardError, match="refresh") as caught:
            reader.get_sample("k0000")
        assert caught.value.path == str(path)
        reader.refresh()
        assert reader.get_sample("k0000")[0]["x"][0] == 0


# ------------------------------------------------------------- closing


def open_shards(folder):
    """Return the shards below a folder that this process has open or mapped."""
    descriptors = Path("/proc/self/fd")
    links = [os.path.realpath(path) for path in descriptors.iterdir()]
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [name for name in (*links, *lines) if f"{folder}{os.sep}" in name]


def before(function, hook):
    """Return a function that calls a hook first."""

    def call(*args, **options):
        hook()
        return function(*args, **options)

    return call


def assert_closed(ds, x, folder):
    for read in read_first(ds, x):
        with pytest.raises(ClosedError):
            read()
    gc.collect()
    assert not open_shards(folder)


@MODES
@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs Linux")
def test_a_shard_that_is_opened_while_the_dataset_is_closed_is_closed(
    form, folder, mode, monkeypatch
):
    ds, x = form.open(folder, mode=mode), form.name("x")
    if form.format == "columnar":
        files, is_closing = files_of(ds), threading.Event()
        closer = threading.Thread(target=ds.close)
        monkeypatch.setattr(files, "release", before(files.release, is_closing.set))

        def close_meanwhile():  # it waits for the lock that is held here
            closer.start()
            assert is_closing.wait(60)

        before_opening_a_shard(files, close_meanwhile)
    else:
        monkeypatch.setattr(shards_of(ds), "keep", before(shards_of(ds).keep, ds.close))
    with pytest.raises(ClosedError):
        bytes(ds[0][x])
    if form.format == "columnar":
        closer.join(60)
    assert_closed(ds, x, folder)


def read_until_closed(ds, x):
    with suppress(ClosedError):
        while True:
            for i in (0, PER_SHARD, LAST):
                bytes(ds[i][x])


def test_threads_that_open_shards_leave_none_open_after_close(form, folder):
    for _ in range(10):
        ds = form.open(folder, max_mapped=1)
        assert len(ds) == COUNT
        begun = threading.Barrier(4)

        def run(k, ds=ds, begun=begun):
            begun.wait(60)
            ds.close() if k == 0 else read_until_closed(ds, form.name("x"))

        in_threads(run)
        assert not any(opened_shards(ds))


def test_an_index_that_is_opened_while_its_reader_is_closed_is_closed(tmp_path):
    form = BUILDERS["columnar"]
    form.build(tmp_path / "d", samples())
    snapshot = snapshot_of(ShardedDatasetReader(tmp_path / "d"))
    snapshot.reset_after_fork()  # as in a child, which opens it again
    before_opening_the_index(snapshot, snapshot.close)
    with pytest.raises(ClosedError):
        snapshot.connect()
    assert snapshot.lookup_connection is snapshot.query_connection is None
    assert not holds_lease(snapshot)
    with pytest.raises(ClosedError):
        snapshot.connect()


def test_a_shard_that_is_opened_ahead_while_the_dataset_is_closed_is_closed(compressed):
    ds = fastshard.open(compressed)
    shards_of(ds).open_files = before(shards_of(ds).open_files, ds.close)
    with pytest.raises(ClosedError):
        open_ahead(ds, 0)
    assert not opened_ahead(ds)
    gc.collect()
    assert not open_shards(compressed)


def test_close_closes_shards_that_were_opened_ahead(compressed):
    ds = fastshard.open(compressed)
    assert ds[0].decode()["x"] == 0  # opens the next ones
    join_opening_ahead(ds)
    assert opened_ahead(ds)
    ds.close()
    gc.collect()
    assert not open_shards(compressed)
