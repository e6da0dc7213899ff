"""Loader: lifetime of its threads and its memory, in this process and others."""

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest

import fastshard
from support.inside.datasets import recorder_of
from support.marks import forks_beside_threads, not_sanitized, slow
from support.processes import environment, start
from support.servers.http import Server
from support.tars import write_numbers

COUNT, SIZE = 60, 4
SECONDS = 30  # limit for the end of threads and processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers"), COUNT, per=20)


@pytest.fixture
def ds(folder):
    with fastshard.open(folder) as dataset:
        yield dataset


def number(sample):
    return {"n": int(sample.text("txt"))}


def threads_of_loaders():
    return [t for t in threading.enumerate() if t.name.startswith("fastshard-loader")]


def assert_threads_end():
    deadline = time.monotonic() + SECONDS
    for thread in threads_of_loaders():
        thread.join(deadline - time.monotonic())
    assert not threads_of_loaders()


def begun(ds, **options):
    """Return a loader that gave one batch, with its threads."""
    loader = ds.loader(SIZE, threads=3, map=number, **options)
    next(loader)
    assert threads_of_loaders()
    return loader


def test_threads_start_with_the_first_batch(ds):
    loader = ds.loader(SIZE, threads=3, map=number)
    assert not threads_of_loaders()
    next(loader)
    assert len(threads_of_loaders()) == 3
    loader.close()


def test_threads_end_when_the_loader_is_closed(ds):
    loader = begun(ds)
    loader.close()
    assert_threads_end()
    assert next(loader, None) is None
    loader.close()


def test_closing_does_not_wait_for_a_server_that_does_not_answer(folder):
    files = {f"/d/{path.name}": path.read_bytes() for path in folder.glob("*.tar")}
    with Server(files) as server:
        ds = fastshard.open(server.url + "/d/n-{000..002}.tar")
        loader = ds.loader(SIZE, threads=3, map=number)
        batches = iter(loader)
        next(batches)
        asked = threading.Event()

        def hang(exchange):
            asked.set()
            exchange.hang()

        server.behave(None, hang)
        consumer = threading.Thread(target=lambda: list(batches))
        consumer.start()
        assert asked.wait(SECONDS)
        began = time.monotonic()
        loader.close()
        assert_threads_end()
        consumer.join(SECONDS)
        assert time.monotonic() - began < 30  # the time limit of a request is 60 s


def test_threads_end_with_the_last_batch(ds):
    batches = iter(begun(ds))
    for _ in batches:
        pass
    assert_threads_end()
    assert len(batches) == 0


def test_threads_end_when_the_loader_is_garbage(ds):
    loader = begun(ds)
    dead = weakref.ref(loader)
    del loader
    gc.collect()
    assert dead() is None
    assert_threads_end()


def test_threads_end_when_a_loader_in_a_cycle_is_garbage(ds):
    loader = begun(ds)
    cycle = [loader]
    cycle.append(cycle)
    del loader, cycle
    gc.collect()
    assert_threads_end()


@pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit])
def test_a_loader_that_raised_is_not_a_cycle(ds, kind):
    def fail(sample):
        if sample.key == "000006":
            raise kind("six")
        return sample.key

    gc.disable()
    try:
        loader = ds.loader(SIZE, threads=2, map=fail)
        assert len(next(loader)) == SIZE
        with pytest.raises(kind, match="six"):
            next(loader)
        assert len(next(loader)) == SIZE
        lost = weakref.ref(loader)
        del loader
        assert lost() is None
        assert_threads_end()
    finally:
        gc.enable()


def test_threads_end_after_an_exception_of_the_consumer(ds):
    def consume():
        for _ in ds.loader(SIZE, threads=3, map=number):
            raise LookupError

    with pytest.raises(LookupError):
        consume()
    gc.collect()
    assert_threads_end()


def test_pickling_is_refused_by_name(ds):
    with pytest.raises(TypeError, match="a Loader cannot be pickled"):
        pickle.dumps(ds.loader(SIZE))


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no POSIX signals")
def test_an_interrupted_consumer_ends_the_threads_and_continues(ds):
    begin, go_on = threading.Event(), threading.Event()

    def wait(sample):
        if sample.key == "000020":
            begin.set()
            assert go_on.wait(SECONDS)
        return number(sample)

    def interrupt():
        assert begin.wait(SECONDS)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    batches = iter(ds.loader(SIZE, threads=2, map=wait))
    found = []
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            found.extend(n for batch in batches for n in batch["n"].tolist())
    finally:
        signal.signal(signal.SIGINT, old)
        go_on.set()
        thread.join()
    assert_threads_end()
    found += [n for batch in batches for n in batch["n"].tolist()]
    assert found == list(range(COUNT))


def test_an_interrupt_before_the_wait_releases_the_loader(ds):
    class Interrupted:
        def ask(self, ready):
            raise KeyboardInterrupt

    batches = iter(ds.loader(4))
    recorder = recorder_of(batches)
    times, recorder.consumer = recorder.consumer, Interrupted()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    recorder.consumer = times
    next(batches)
    assert batches.position == 4
    batches.close()


@forks_beside_threads
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_and_its_parent_continue(ds):
    expected = [list(range(k, k + SIZE)) for k in range(0, COUNT, SIZE)]
    for mapped in (number, None):
        batches = iter(ds.loader(SIZE, threads=2, map=mapped))
        field = "n" if mapped else "cls"
        found = [next(batches)[field].tolist() for _ in range(3)]
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            code = 1
            try:
                signal.alarm(SECONDS)
                rest = [batch[field].tolist() for batch in batches]
                code = rest != expected[3:] or bool(threads_of_loaders())
            finally:
                os.write(writing, b"x")
                os._exit(code)
        os.close(writing)
        found += [batch[field].tolist() for batch in batches]
        assert os.read(reading, 1) == b"x"
        os.close(reading)
        assert os.waitpid(child, 0)[1] == 0
        assert found == expected


ENDS = """
import sys, time, threading, numpy as np, fastshard
sys.stdout.reconfigure(line_buffering=True)
kind, folder = sys.argv[1:]
started = threading.Event()

def decode(sample):
    started.set()
    if kind == "in C":
        a = np.ones((400, 400)); a @ a        # without the GIL, for a while
    if kind == "in a map":
        time.sleep(600)
    return {"n": int(sample.text("txt"))}

ds = fastshard.open(folder)
loader = ds.loader(4, threads=4, map=None if kind == "raw" else decode)
if kind != "in a map":
    next(loader)
else:
    threading.Thread(target=lambda: next(loader, None), daemon=True).start()
    started.wait(60)
if kind == "exception":
    raise SystemExit("ends")
if kind == "kept":
    sys.kept = loader
print("end")
"""


@not_sanitized
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("idle", marks=slow),
        pytest.param("kept", marks=slow),
        "in C",
        "in a map",
        "raw",
        pytest.param("exception", marks=slow),
    ],
)
def test_the_interpreter_exits(folder, tmp_path, kind):
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    done = subprocess.run(
        [sys.executable, script, kind, folder],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )
    if kind == "exception":
        assert (done.returncode, done.stderr) == (1, "ends\n")
    else:
        assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


KILLED = """
import sys, time, fastshard
ds = fastshard.open(sys.argv[1])
loader = ds.decode().loader(4, threads=4)
while True:
    for batch in ds.decode().loader(4, threads=4):
        print(len(batch["cls"]), flush=True)
"""


@not_sanitized
def test_nothing_is_left_by_a_killed_process(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    process = start(script, folder)
    assert process.stdout.readline() == "4\n"
    process.kill()
    process.communicate()
    assert os.listdir(tmp_path / "temporary") == []
    if os.path.isdir("/dev/shm"):
        mine = [name for name in os.listdir("/dev/shm") if "fastshard" in name]
        assert not set(mine) - before


INTERRUPTED = """
import sys, fastshard
ds = fastshard.open(sys.argv[1])
with ds.decode().loader(4, threads=4) as loader:
    while True:
        for batch in ds.decode().loader(4, threads=4):
            print(len(batch["cls"]), flush=True)
"""


@not_sanitized
@pytest.mark.skipif(os.name == "nt", reason="no POSIX signals")
def test_ctrl_c_ends_a_process(folder, tmp_path):
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    process = start(script, folder, stderr=subprocess.PIPE)
    assert process.stdout.readline() == "4\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode in (-signal.SIGINT, 1, 130)
    assert "KeyboardInterrupt" in errors


class Batches:
    """Iterable dataset of torch, made of `batches` or of `loader`."""

    def __init__(self, ds, how):
        self.ds, self.how = ds, how

    def __iter__(self):
        for batch in getattr(self.ds, self.how)(SIZE):
            yield batch["cls"].tolist()


@forks_beside_threads
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_workers_of_torch_take_their_share(ds):
    data = pytest.importorskip("torch.utils.data")
    kind = type("IterableBatches", (Batches, data.IterableDataset), {})
    found = {
        how: list(
            data.DataLoader(
                kind(ds.shuffle(3), how),
                batch_size=None,
                num_workers=2,
                multiprocessing_context="fork",
            )
        )
        for how in ("batches", "loader")
    }
    assert found["loader"] == found["batches"]
    assert sorted(n for batch in found["loader"] for n in batch) == list(range(COUNT))
