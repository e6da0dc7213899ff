"""After `close` nothing of a dataset works on: no thread writes into its folders."""

import asyncio
import os
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import fastshard
from fastshard.streaming import MDSWriter
from support.builders import BUILDERS
from support.inside.streaming import replace_write_all, write_all
from support.servers.http import Server
from support.threads import HANG

ROUNDS = 30
REMOTE_ROUNDS = 5  # idle threads of requests end after a second
SHARDS, ROWS = 6, 20
SECONDS = 30  # a test waits at most
OURS = "fastshard ahead", "fastshard range"  # threads that may write to a disk


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of each file below a folder."""
    return {
        str(path): (status.st_size, status.st_mtime_ns)
        for path in folder.rglob("*")
        if (status := path.lstat())
    }


def writers() -> list[threading.Thread]:
    """Return the threads that open shards ahead or read ranges."""
    return [thread for thread in threading.enumerate() if thread.name in OURS]


def wait_for_writers() -> None:
    """Wait until all threads have ended that might still write."""
    deadline = time.monotonic() + SECONDS
    for thread in writers():
        thread.join(max(0.0, deadline - time.monotonic()))
    assert not writers()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return a folder of each format, by name."""
    top = tmp_path_factory.mktemp("formats")
    samples = [
        (f"k{i:03}", {"x": np.full(40, i, "f4"), "y": np.full(1 + i % 7, i, "f4")})
        for i in range(120)
    ]
    for name, builder in BUILDERS.items():
        builder.build(top / name, samples)
    for algo in ("zstd", "gz"):
        write_compressed(top / f"mds.{algo}", algo)
    return top


def write_compressed(folder: Path, algo: str) -> Path:
    """Write six compressed shards of 20 rows, each of about 40 KB."""
    columns = {"text": "str", "value": "int"}
    with MDSWriter(
        columns=columns, out=str(folder), compression=algo, size_limit=41_000
    ) as writer:
        for i in range(SHARDS * ROWS):
            writer.write({"text": f"{i:05}" * 400, "value": i})
    assert len(list(folder.glob(f"*.{algo}"))) == SHARDS
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Return the files of five shards, larger than the reads of an opening."""
    folder = tmp_path_factory.mktemp("served") / "tar"
    samples = [(f"k{i:03}", {"x": np.full(3000, i, "f4")}) for i in range(125)]
    BUILDERS["tar"].build(folder, samples)
    return {f"/{path.name}": path.read_bytes() for path in sorted(folder.glob("*.tar"))}


def read_some(ds) -> None:
    """Read as a trainer does that is stopped early: in order, at random, in bulk."""
    samples = iter(ds)
    for _ in range(3):
        list(next(samples))
    ds[len(ds) - 1]
    ds.get_many([5, 50, 100])


@pytest.mark.parametrize("mode", ["mmap", "pread"])
@pytest.mark.parametrize("name", [*BUILDERS, "mds.zstd", "mds.gz"])
def test_a_folder_is_removed_after_close(folders, name, mode):
    options = BUILDERS[name].options if name in BUILDERS else {}
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as top:
            folder = Path(top) / "data"
            shutil.copytree(folders / name, folder)
            with fastshard.open(folder, mode=mode, **options) as ds:
                read_some(ds)
            assert not any(thread.name == OURS[0] for thread in writers())
            kept = snapshot(folder)
            assert not [path for path in kept if path.endswith(".tmp")]
            assert snapshot(folder) == kept
        assert not os.path.exists(top)
    wait_for_writers()


@pytest.fixture
def gate(monkeypatch):
    """Hold each write of a decompressed piece but those of the first shard."""
    entered, opened = threading.Event(), threading.Event()
    write = write_all

    def write_held(fd, data):
        if threading.current_thread() is not threading.main_thread():
            entered.set()
            assert opened.wait(SECONDS)
        write(fd, data)

    replace_write_all(monkeypatch, write_held)
    yield entered, opened
    opened.set()


def test_close_ends_a_decompression_at_its_next_piece(tmp_path, gate, monkeypatch):
    monkeypatch.setattr("fastshard.codecs.compression.PIECE_BYTES", 4096)
    folder = write_compressed(tmp_path / "data", "gz")
    entered, opened = gate
    ds = fastshard.open(folder)
    ds[0]
    assert entered.wait(SECONDS)
    closer = threading.Thread(target=ds.close)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive()  # it waits for the thread
    opened.set()
    closer.join(SECONDS)
    assert not closer.is_alive()
    assert [path.name for path in folder.glob("*.mds")] == ["shard.00000.mds"]
    assert not [path for path in os.listdir(folder) if path.endswith(".tmp")]


def test_close_ends_the_decompression_of_other_threads(tmp_path, gate, monkeypatch):
    monkeypatch.setattr("fastshard.codecs.compression.PIECE_BYTES", 4096)
    folder = write_compressed(tmp_path / "data", "gz")
    entered, opened = gate
    ds = fastshard.open(folder, prefetch=False)
    caught = []

    def read():
        try:
            ds[3 * ROWS]
        except fastshard.ClosedError as error:
            caught.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert entered.wait(SECONDS)
    ds.close()
    opened.set()
    reader.join(SECONDS)
    assert len(caught) == 1
    assert not list(folder.glob("*.mds"))
    assert not [path for path in os.listdir(folder) if path.endswith(".tmp")]


@pytest.mark.parametrize("name", ["tar", "mds", "mds.zstd"])
def test_a_cache_is_removed_after_close(folders, name):
    files = {
        f"/d/{path.name}": path.read_bytes() for path in (folders / name).iterdir()
    }
    with Server(files, latency=0.001) as server:
        source = server.at("/d/")
        if name == "tar":
            urls = sorted(server.at(path) for path in files if path.endswith(".tar"))
            source = urls
        for _ in range(REMOTE_ROUNDS):
            with tempfile.TemporaryDirectory() as top:
                with fastshard.open(source, cache_dir=top) as ds:
                    samples = iter(ds)
                    for _ in range(30):  # into the second shard
                        next(samples)
                kept = snapshot(Path(top))
                assert kept
                wait_for_writers()
                assert snapshot(Path(top)) == kept
            assert not os.path.exists(top)


def test_a_closed_iterator_stores_nothing_more(served, tmp_path):
    with Server(served) as server:
        urls = [server.at(path) for path in served]
        ds = fastshard.open(urls, cache_dir=tmp_path)
        len(ds)
        server.latency = 0.2
        samples = iter(ds.shuffle(seed=1))
        next(samples)
        samples.close()
        kept = snapshot(tmp_path)
        wait_for_writers()
        assert snapshot(tmp_path) == kept
        ds.close()


def test_close_does_not_wait_for_a_server_that_hangs(served, tmp_path):
    held = threading.Event()

    def hold(exchange):
        held.set()
        exchange.hang()

    with Server(served) as server:
        urls = [server.at(path) for path in served]
        options = {"index": "none", "timeout": 2 * HANG, "max_memory": "1MiB"}
        ds = fastshard.open(urls, cache_dir=tmp_path, **options)
        samples = iter(ds)
        for name in list(served)[3:]:
            server.behave(name, hold)
        for _ in range(26):
            next(samples)
        assert held.wait(SECONDS)
        began = time.monotonic()
        ds.close()
        assert time.monotonic() - began < HANG
        assert not any(thread.name == OURS[0] for thread in writers())
        with pytest.raises(fastshard.ClosedError):
            next(samples)


def test_close_ends_an_iteration_in_another_thread(served, tmp_path):
    with Server(served) as server:
        urls = [server.at(path) for path in served]
        ds = fastshard.open(urls, cache_dir=tmp_path)
        len(ds)
        server.latency = 60
        caught = []

        def read():
            try:
                list(ds)
            except fastshard.ClosedError as error:
                caught.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        deadline = time.monotonic() + SECONDS
        while not server.in_progress and time.monotonic() < deadline:
            time.sleep(0.001)
        ds.close()
        reader.join(SECONDS)
        assert len(caught) == 1
        wait_for_writers()


def test_close_waits_for_an_awaited_read_that_was_cancelled(folders, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(folders / "mds.gz", folder)
    ds = fastshard.open(folder, prefetch=False)

    async def give_up():
        task = asyncio.ensure_future(ds.get_many_async([0, 30, 50, 70, 90, 110]))
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    ds.close()
    kept = snapshot(folder)
    for thread in threading.enumerate():
        if thread.name == "fastshard await":
            thread.join(SECONDS)
    assert snapshot(folder) == kept
    assert not [path for path in kept if path.endswith(".tmp")]
    with pytest.raises(fastshard.ClosedError):
        asyncio.run(ds.get_many_async([0]))
