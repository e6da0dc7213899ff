"""Stress test: threads that scan, gather, look up, close and
fork on the same datasets for some minutes, while their pages are evicted.

    python tests/stress.py [MINUTES] [SEED]

Every byte is compared. The run fails at the first difference, hang or leak, and
prints what it did when it passes.
"""

import collections
import copy
import faulthandler
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from pathlib import Path

import numpy as np

import fastshard
from support.tars import write_tar
from support.threads import started_since, thread_ids

SHARDS, EACH = 5, 120
COUNT = SHARDS * EACH
OPTIONS = [
    {},
    {"mode": "pread"},
    {"mode": "private"},
    {"check_size": True},
    {"max_memory": "2MB"},
    {"max_memory": "1MB", "keep_cache": False},
    {"max_mapped": 2},
    {"prefetch": False},
]


def payload(i: int, field: str) -> bytes:
    rng = random.Random(f"{i}{field}")
    return rng.randbytes(rng.choice([0, 1, 600, 5000, 40_000, 200_000]))


EXPECTED = {(i, f): payload(i, f) for i in range(COUNT) for f in "ab"}


def make(folder: Path) -> None:
    for k in range(SHARDS):
        span = range(k * EACH, (k + 1) * EACH)
        data = {f"{i:04d}.{f}": EXPECTED[i, f] for i in span for f in "ab"}
        write_tar(folder / f"s-{k}.tar", data)
    fastshard.build_index(folder)


def check(i, sample):
    assert sample.key == f"{i:04d}", (i, sample.key)
    for field in "ab":
        assert sample[field] == EXPECTED[i, field], (i, field)


def scan(ds, rng):
    order = rng.choices(range(COUNT), k=rng.randrange(1, 300))
    stop = rng.choice([len(order), len(order), rng.randrange(len(order) + 1)])
    iteration = ds.iter(order=order, window=rng.choice([0, 1, 2, 8, 32, 500]))
    for i, sample in zip(order[:stop], iteration, strict=False):
        check(i, sample)
    if rng.random() < 0.3:
        iteration.close()


def scan_all(ds, rng):
    found = 0
    for i, sample in enumerate(ds):
        found += 1
        if i % 7 == 0:
            check(i, sample)
    assert found == COUNT


def batch(ds, rng):
    order = rng.choices(range(COUNT), k=40)
    for i, sample in zip(order, ds.get_many(order), strict=True):
        check(i, sample)


def single(ds, rng):
    for i in rng.choices(range(COUNT), k=60):
        check(i, ds[i])


def by_key(ds, rng):
    for i in rng.choices(range(COUNT), k=30):
        check(i, ds[f"{i:04d}"])


def gather(ds, rng):
    order = rng.choices(range(COUNT), k=30)
    wanted = b"".join(EXPECTED[i, "a"] for i in order)
    out = bytearray(len(wanted))
    ds.read_into(order, out, fields="a", threads=rng.choice([None, 1, 3]))
    assert out == wanted
    found = ds.columns(order, "b", ragged="list")["b"]
    if isinstance(found, np.ndarray):
        found = list(found)
    assert [bytes(a) for a in found] == [EXPECTED[i, "b"] for i in order]


def handles(ds, rng):
    shard = ds.shards[rng.randrange(SHARDS)]
    other = copy.copy(shard)
    views = list(other.scan(window=rng.choice([1, 5, 32])))
    assert len(views) == 2 * EACH
    other.close()
    assert views[0] == shard[0]


def reopen(ds, rng):
    with fastshard.open(ds.shards[0].path) as other:
        iteration = iter(other)
        view = next(iteration)["a"]
    assert view == EXPECTED[int(other.shards.paths[0][-5]) * EACH, "a"]


def train(ds, rng):
    """A shuffled share of an epoch in two halves, the second from a state."""
    part = ds.shuffle(rng.randrange(99), block=rng.choice([None, 5]))
    part = part.split_by_rank(rng.randrange(3), 3)
    it = iter(part)
    done = rng.randrange(len(part))
    seen = [sample.key for sample, _ in zip(it, range(done), strict=False)]
    state = part.state_dict(done)
    for batch in part.batches(rng.choice([1, 16]), state=state):
        for key, data in zip(batch["__key__"], batch["a"], strict=True):
            assert data == EXPECTED[int(key), "a"]
        seen += batch["__key__"]
    assert seen == list(part.keys())


WORK = [scan, scan, scan, scan_all, batch, single, by_key, gather, handles, reopen]
WORK += [train, train]


def forked(ds, rng):
    """Iterate in the parent and in a child."""
    order = rng.sample(range(COUNT), 60)
    iteration = ds.iter(order=order, window=6)
    for i in order[:10]:
        check(i, next(iteration))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            for i in order[10:]:
                check(i, next(iteration))
            batch(ds, rng)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    for i in order[10:]:
        check(i, next(iteration))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"a child ended with {status}"


def evict(folder):
    for path in folder.glob("*.tar"):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def main(minutes: float, seed: int) -> int:
    faulthandler.enable()
    warnings.simplefilter("ignore", DeprecationWarning)  # forks with threads
    done: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        before, files = thread_ids(), len(os.listdir("/proc/self/fd"))
        end = time.monotonic() + 60 * minutes
        rounds = 0
        while time.monotonic() < end:
            rng = random.Random(f"{seed} {rounds}")
            a_round(folder, rng, done)
            gc.collect()
            evict(folder)
            rounds += 1
            started = started_since(before)
            assert not started, f"{len(started)} threads are left"
        gc.collect()
        left = len(os.listdir("/proc/self/fd")) - files
        assert left == 0, f"{left} descriptors are left"
    print(f"{rounds} rounds, seed {seed}: {dict(done)}")
    return 0


def a_round(folder, rng, done):
    """A few seconds on one dataset, of several threads."""
    ds = fastshard.open(folder, **rng.choice(OPTIONS))
    faults = []
    stop = threading.Event()

    def run(seed):
        own = random.Random(seed)
        try:
            while not stop.is_set():
                work = own.choice(WORK)
                work(ds, own)
                done[work.__name__] += 1
        except BaseException as error:
            faults.append(error)
            stop.set()

    workers = [
        threading.Thread(target=run, args=(rng.random(),))
        for _ in range(rng.choice([1, 4, 8]))
    ]
    faulthandler.dump_traceback_later(120, exit=True)
    for worker in workers:
        worker.start()
    until = time.monotonic() + 2
    while time.monotonic() < until and not faults:
        evict(folder)
        time.sleep(0.02)
    stop.set()
    for worker in workers:
        worker.join()
    if not faults:
        forked(ds, rng)
        done["forked"] += 1
    faulthandler.cancel_dump_traceback_later()
    ds.close()
    if faults:
        raise faults[0]


if __name__ == "__main__":
    arguments = sys.argv[1:]
    limit = float(arguments[0]) if arguments else 10
    sys.exit(
        main(limit, int(arguments[1]) if arguments[1:] else time.time_ns() % 10**6)
    )
