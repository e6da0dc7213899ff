"""Typed samples: tar shards of msgpack members, read as objects of a class, written.

pytest bench/typed/bench_typed.py

Samples are {int, str, float32[512]}. Upstream is atdata where it is installed (Python
3.12 or newer), else the pipeline of webdataset, msgpack and np.frombuffer that it is
made of; it reads shards of its own form, with pax headers and compact arrays. Rivals
that are not installed are skipped. The page cache is warm unless a group says cold. A
bar is a factor in the same run; the summary at the end says which are met.
"""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastshard
from harness import contenders, expect
from rivals import typed_readers as by
from rivals.typed_data import (
    COLD,
    LARGE,
    LARGE_NUMBERS,
    MANIFESTS,
    NUMBERS,
    SMALL,
    Fields,
    Store,
    matching,
    packed,
    positions,
    same,
)
from rivals.typed_readers import BATCH, Iterate

READS = 20_480
PAGE = mmap.PAGESIZE

# webdataset leaves files open; atdata calls deprecated functions.
pytestmark = [pytest.mark.filterwarnings("ignore")]

Open = Callable[[Store], Iterate]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("typed")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def small(folder: Path) -> Store:
    return Store(folder / "small", SMALL, SMALL // 4)


@pytest.fixture(scope="session")
def large(folder: Path) -> Store:
    return Store(folder / "large", LARGE, max(LARGE // 50, 1))


@pytest.fixture(scope="session")
def images(folder: Path) -> Store:
    """Return samples with arrays of 100 KiB, for reads of a cold disk."""
    return Store(folder / "cold", COLD, max(COLD // 4, 1), LARGE_NUMBERS)


def count_all(epoch: Iterate) -> int:
    count = 0
    for _ in epoch():
        count += 1
    return count


def tell_upstream(benchmark: Any) -> None:
    """Store which library upstream is."""
    if benchmark.extra_info["who"] == "upstream":
        benchmark.extra_info["as upstream"] = by.upstream_name()


def check_samples(store: Store, epoch: Iterate, step: int = 97) -> int:
    """Compare samples with the expected ones; return their number."""
    i = -1
    for i, sample in enumerate(epoch()):
        if not i % step:
            assert same(by.fields_of(sample), store.expected(i))
    return i + 1


# Iteration in order.


def check_members(store: Store, epoch: Iterate) -> int:
    i = -1
    for i, view in enumerate(epoch()):
        if not i % 97:
            label, x = store.expected(i)[1:]
            assert label.encode() in bytes(view)
            assert bytes(view).endswith(x.tobytes())
    return i + 1


def check_narrow(store: Store, epoch: Iterate) -> int:
    i = -1
    for i, sample in enumerate(epoch()):
        assert (sample.idx, sample.label) == store.expected(i)[:2]
        assert not hasattr(sample, "x")
    return i + 1


def check_columnar(store: Store, epoch: Iterate) -> int:
    i = -1
    for i, sample in enumerate(epoch()):
        assert np.array_equal(sample["x"], store.expected(i)[2])
    return i + 1


CHECKS: dict[Open, Callable[[Store, Iterate], int]] = {
    by.members: check_members,
    by.ordered_without_array: check_narrow,
    by.columnar_samples: check_columnar,
}


@contenders(
    f"ordered(), {SMALL:,} samples",
    fastshard=by.ordered,
    fastshard_on_shards_of_atdata=by.ordered_of_original,
    fastshard_without_the_array=by.ordered_without_array,
    shard_by_position=by.members,
    upstream=by.upstream_ordered,
    webdataset_msgpack_frombuffer=by.pipeline_ordered,
    HF_datasets=by.hf_ordered,
    columnar_samples=by.columnar_samples,
)
def bench_ordered(benchmark: Any, small: Store, read: Open, turn: int) -> None:
    tell_upstream(benchmark)
    expect(benchmark, "fastshard", "upstream", 50)
    expect(benchmark, "fastshard", "shard_by_position", 1 / 10)
    expect(benchmark, "fastshard_on_shards_of_atdata", "upstream", 50)
    expect(benchmark, "fastshard_without_the_array", "fastshard", 1.5)
    epoch = read(small)
    assert CHECKS.get(read, check_samples)(small, epoch) == SMALL
    benchmark.extra_info["operations"] = SMALL
    fast = read in (by.ordered, by.ordered_of_original, *CHECKS)
    benchmark.pedantic(count_all, (epoch,), rounds=10 if fast else 2)


def large_ordered(store: Store) -> Iterate:
    return by.ordered(store)


def large_ordered_of_original(store: Store) -> Iterate:
    return by.ordered_of_original(store)


def large_without_array(store: Store) -> Iterate:
    return by.ordered_without_array(store)


def large_members(store: Store) -> Iterate:
    return by.members(store)


def large_upstream(store: Store) -> Iterate:
    return by.upstream_ordered(store, most=store.per_shard)


@contenders(
    f"ordered(), {LARGE:,} samples",
    fastshard=large_ordered,
    fastshard_on_shards_of_atdata=large_ordered_of_original,
    fastshard_without_the_array=large_without_array,
    shard_by_position=large_members,
    upstream_on_one_shard=large_upstream,
)
def bench_ordered_large(benchmark: Any, large: Store, read: Open, turn: int) -> None:
    expect(benchmark, "fastshard", "upstream_on_one_shard", 50)
    expect(benchmark, "fastshard", "shard_by_position", 1 / 10)
    expect(benchmark, "fastshard_without_the_array", "fastshard", 1.5)
    epoch = read(large)
    count = count_all(epoch)
    assert count == (large.per_shard if read is large_upstream else LARGE)
    if read in (large_ordered, large_ordered_of_original):
        assert check_samples(large, epoch, 997) == LARGE
    benchmark.extra_info["operations"] = count
    benchmark.pedantic(count_all, (epoch,), rounds=1 if read is large_upstream else 3)


# Batches.


def read_batches(epoch: Iterate) -> int:
    count = 0
    for batch in epoch():
        count += len(batch.x)
        batch.label  # noqa: B018 - what is timed
    return count


def check_batches(store: Store, epoch: Iterate) -> None:
    count = 0
    for batch in epoch():
        x, labels = batch.x, batch.label
        for k in (0, len(labels) - 1):
            _, label, vector = store.expected(count + k)
            assert labels[k] == label
            assert x.dtype == vector.dtype
            assert np.array_equal(x[k], vector)
        assert x.shape == (len(labels), store.numbers)
        count += len(labels)
    assert count == store.count


@contenders(
    f"a sample of batches of {BATCH} with its array and its text",
    fastshard=by.ordered_batches,
    fastshard_on_shards_of_atdata=by.ordered_batches_of_original,
    upstream=by.upstream_batches,
    HF_datasets=by.hf_batches,
)
def bench_batches(benchmark: Any, small: Store, read: Open, turn: int) -> None:
    tell_upstream(benchmark)
    expect(benchmark, "fastshard", "upstream", 50)
    expect(benchmark, "fastshard_on_shards_of_atdata", "upstream", 50)
    epoch = read(small)
    check_batches(small, epoch)
    benchmark.extra_info["operations"] = SMALL
    fast = read in (by.ordered_batches, by.ordered_batches_of_original)
    benchmark.pedantic(read_batches, (epoch,), rounds=10 if fast else 2)


Makers = deque[Callable[[], Any]]  # of one array each


def stacks_of(batches: Iterable[Any]) -> Makers:
    return deque(partial(getattr, batch, "x") for batch in batches)


def stacks(store: Store) -> Makers:
    return stacks_of(by.ordered_batches(store)())


def stacks_of_original(store: Store) -> Makers:
    return stacks_of(by.ordered_batches_of_original(store)())


def copies(store: Store) -> Makers:
    """Return the copies of as many bytes, of a mapped shard in its order."""
    width = BATCH * NUMBERS * 4
    files = [np.memmap(path, "u1", "r") for path in by.own(store)]
    most = -(-store.per_shard // BATCH)

    def copy(file: Any, at: int) -> Any:
        out = np.empty((BATCH, NUMBERS), np.float32)
        out.reshape(-1).view(np.uint8)[:] = file[at : at + width]
        return out

    return deque(
        partial(copy, file, k * width)
        for file in files
        for k in range(most)
        if (k + 1) * width <= len(file)
    )


def make_all(makers: Makers) -> int:
    nbytes = 0
    while makers:
        nbytes += makers.popleft()().nbytes
    return nbytes


@contenders(
    f"the arrays of batches of {BATCH} stacked, a GB",
    fastshard=stacks,
    fastshard_on_shards_of_atdata=stacks_of_original,
    memcpy=copies,
)
def bench_stacking(benchmark: Any, small: Store, read: Any, turn: int) -> None:
    expect(benchmark, "fastshard", "memcpy", 1 / 1.5)
    expect(benchmark, "fastshard_on_shards_of_atdata", "memcpy", 1 / 1.5)
    nbytes = make_all(read(small))
    assert nbytes == SMALL * NUMBERS * 4 or read is copies
    benchmark.extra_info["operations"] = nbytes / 1e9

    def setup() -> tuple[tuple[Makers], dict[str, Any]]:
        return (read(small),), {}

    benchmark.pedantic(make_all, setup=setup, rounds=10)


# Other orders.


def check_shuffled(store: Store, epoch: Iterate) -> None:
    seen = []
    for sample in epoch():
        idx = by.fields_of(sample)[0]
        seen.append(idx)
        if not len(seen) % 97:
            assert same(by.fields_of(sample), store.expected((idx + 3) // 7))
    in_order = [idx for idx, *_ in store.samples()]
    assert seen != in_order
    assert sorted(seen) == in_order


@contenders(
    "shuffled(), warm",
    fastshard=by.shuffled,
    upstream=by.upstream_shuffled,
    HF_datasets=by.hf_shuffled,
)
def bench_shuffled(benchmark: Any, small: Store, read: Open, turn: int) -> None:
    tell_upstream(benchmark)
    expect(benchmark, "fastshard", "upstream", 30)
    epoch = read(small)
    check_shuffled(small, epoch)
    benchmark.extra_info["operations"] = SMALL
    rounds = 10 if read is by.shuffled else 2
    benchmark.pedantic(count_all, (epoch,), rounds=rounds)


def index_all(ds: Any, order: Sequence[int]) -> Any:
    for i in order:
        sample = ds[i]
    return sample


@contenders(
    "ds[i], random",
    fastshard=by.open_typed,
    fastshard_on_shards_of_atdata=by.open_typed_original,
    fastshard_tar=by.opened_tar,
    HF_datasets=by.open_hf,
)
def bench_position(benchmark: Any, small: Store, read: Any, turn: int) -> None:
    expect(benchmark, "fastshard", "fastshard_tar", 1 / 5)
    expect(benchmark, "fastshard_on_shards_of_atdata", "fastshard_tar", 1 / 5)
    ds = read(small)
    order = positions(SMALL, READS if read is not by.open_hf else 1024)
    for i in order[:50]:
        if read is by.opened_tar:
            label, x = small.expected(i)[1:]
            assert label.encode() in bytes(ds[i]["msgpack"])
            assert bytes(ds[i]["msgpack"]).endswith(x.tobytes())
        else:
            assert same(by.fields_of(ds[i]), small.expected(i))
    benchmark.extra_info["operations"] = len(order)
    benchmark.pedantic(index_all, (ds, order), rounds=10, warmup_rounds=1)


# Payloads, and samples without a type.


def parse_all(parse: Callable[[bytes], Any], payloads: Sequence[bytes]) -> Any:
    for payload in payloads:
        sample = parse(payload)
    return sample


@contenders(
    "from_bytes",
    fastshard=by.from_bytes,
    upstream=by.upstream_from_bytes,
)
def bench_from_bytes(benchmark: Any, small: Store, read: Any, turn: int) -> None:
    tell_upstream(benchmark)
    expect(benchmark, "fastshard", "upstream", 3)
    parse = read(small)
    payloads = [packed(fields) for fields in small.samples(512)]
    for i, payload in enumerate(payloads):
        assert same(by.fields_of(parse(payload)), small.expected(i))
    benchmark.extra_info["operations"] = len(payloads)
    benchmark.pedantic(parse_all, (parse, payloads), rounds=20, warmup_rounds=1)


def ask_two(epoch: Iterate) -> Any:
    fields: Any = None
    for sample in epoch():
        fields = sample["idx"], sample["label"]
    return fields


@contenders(
    "DictSample, two fields asked for",
    fastshard=by.dict_samples,
    fastshard_on_shards_of_atdata=by.dict_samples_of_original,
    upstream=by.upstream_dict_samples,
)
def bench_dict_samples(benchmark: Any, small: Store, read: Open, turn: int) -> None:
    tell_upstream(benchmark)
    expect(benchmark, "fastshard", "upstream", 30)
    expect(benchmark, "fastshard_on_shards_of_atdata", "upstream", 30)
    epoch = read(small)
    for i, sample in enumerate(epoch()):
        assert (sample["idx"], sample["label"]) == small.expected(i)[:2]
    assert i == SMALL - 1
    benchmark.extra_info["operations"] = SMALL
    rounds = 2 if read is by.upstream_dict_samples else 10
    benchmark.pedantic(ask_two, (epoch,), rounds=rounds)


# Writing.


def check_written(paths: Sequence[str], rows: Sequence[Fields]) -> None:
    """Compare samples of shards with fields, by another reader than the typed one."""
    msgspec = pytest.importorskip("msgspec")
    ds = fastshard.open(list(paths))
    assert len(ds) == len(rows)
    for i in range(0, len(rows), 97):
        row = msgspec.msgpack.decode(ds[i]["msgpack"])
        assert same((row["idx"], row["label"], by.array_of(row["x"])), rows[i])


@contenders(
    "write_samples, a sample",
    fastshard=by.write_fastshard,
    fastshard_compact=by.write_fastshard_compact,
    upstream=by.write_upstream,
)
def bench_write(
    benchmark: Any, small: Store, tmp_path: Path, read: Any, turn: int
) -> None:
    tell_upstream(benchmark)
    expect(benchmark, "fastshard", "upstream", 8)
    expect(benchmark, "fastshard_compact", "upstream", 8)
    rows = list(small.samples())
    numbers = iter(range(100))

    def setup() -> tuple[tuple[Path, list[Fields]], dict[str, Any]]:
        out = tmp_path / str(next(numbers))
        out.mkdir()
        return (out, rows), {}

    check_written(read(*setup()[0]), rows)
    benchmark.extra_info["operations"] = len(rows)
    benchmark.pedantic(read, setup=setup, rounds=3)


# Queries.


@contenders(
    f"a predicate over {MANIFESTS:,} manifests, 1 % of the shards left",
    fastshard=by.query_fastshard,
    fastshard_manifests_without_digests=by.query_fastshard_plain,
    fastshard_QueryExecutor=by.query_executor,
    upstream=by.query_upstream,
)
def bench_query(benchmark: Any, folder: Path, read: by.Query, turn: int) -> None:
    """Query manifests beside shards whose payloads are not msgpack."""
    tell_upstream(benchmark)
    expect(benchmark, "fastshard", "upstream", 20)
    expect(benchmark, "fastshard_QueryExecutor", "upstream", 20)
    path = by.manifests_of(folder)
    assert read(path) == matching()
    benchmark.pedantic(read, (path,), rounds=1 if read is by.query_upstream else 3)


# Memory.

SCAN = """
import sys
from fastshard import typed
from numpy.typing import NDArray

@typed.packable
class Sample:
    idx: int
    label: str
    x: NDArray

def taken():
    with open("/proc/self/status") as file:
        kinds = ("RssAnon", "RssFile")
        return sum(int(line.split()[1]) for line in file if line.startswith(kinds))
bound, *paths = sys.argv[1:]
ds = typed.Dataset[Sample](paths, max_memory=bound or None)
len(ds)
before = peak = taken()
for k, sample in enumerate(ds.ordered()):
    sample.x[::256].sum()
    if k % 256 == 0:
        peak = max(peak, taken())
print(peak - before)
"""


def memory_of(store: Store, bound: str) -> int:
    """Return the peak KiB that an iteration adds in a new process."""
    command = [sys.executable, "-c", SCAN, bound, *by.own(store)]
    done = subprocess.run(command, capture_output=True, check=True)
    return int(done.stdout)


@contenders(
    "memory of ordered()",
    fastshard_in_64_MiB=lambda store: memory_of(store, "64MiB"),
    fastshard=lambda store: memory_of(store, ""),
)
def bench_memory(benchmark: Any, large: Store, read: Any, turn: int) -> None:
    """Measure memory; the time is that of the whole process."""
    by.own(large)
    kib = benchmark.pedantic(read, (large,), rounds=1)
    benchmark.group = f"ordered() of {LARGE:,} samples in a process of its own"
    benchmark.extra_info["MB of memory more, at most"] = round(kib * 1024 / 1e6, 1)


WORKERS = """
import os, sys
from fastshard import typed
from numpy.typing import NDArray

@typed.packable
class Sample:
    idx: int
    label: str
    x: NDArray

def kib(kind):
    with open("/proc/self/smaps_rollup") as file:
        lines = [line.split() for line in file]
    return sum(int(line[1]) for line in lines if line[0] in kind)

def private():
    return kib(("Private_Clean:", "Private_Dirty:"))

ds = typed.Dataset[Sample](sys.argv[1:])
len(ds)
done, read_all, measured = os.pipe(), os.pipe(), os.pipe()
for _ in range(8):
    if os.fork() == 0:
        before = private()
        count = sum(1 for sample in ds.ordered() if sample.x[-1] >= 0)
        os.write(done[1], b".")
        os.read(read_all[0], 1)  # until all eight have mapped everything
        os.write(1, b"%d %d\\n" % (count, private() - before))
        os.write(done[1], b".")
        os.read(measured[0], 1)  # until each of the eight has measured
        os._exit(0)
for gate in (read_all, measured):
    for _ in range(8):
        os.read(done[0], 1)
    os.write(gate[1], b"." * 8)
for _ in range(8):
    os.wait()
"""


def run_workers(store: Store) -> list[tuple[int, int]]:
    """Return the samples that each worker read, and its private KiB."""
    command = [sys.executable, "-c", WORKERS, *by.own(store)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    lines = (line.split() for line in done.stdout.splitlines())
    return [(int(count), int(taken)) for count, taken in lines]


@contenders("workers", fastshard=run_workers)
def bench_workers(benchmark: Any, large: Store, read: Any, turn: int) -> None:
    """Measure memory; the time is of whole processes."""
    by.own(large)
    found = benchmark.pedantic(read, (large,), rounds=1)
    assert [count for count, _ in found] == [LARGE] * 8
    benchmark.group = "8 forked workers that read all samples: private memory"
    benchmark.extra_info["MB the largest"] = round(max(n for _, n in found) / 1024, 1)


# Cold reads, of arrays of 100 KiB.


def touch(x: Any) -> int:
    """Read a byte of each page."""
    return len(bytes(memoryview(x).cast("B")[::PAGE]))


def cold_typed(store: Store) -> int:
    return sum(touch(sample.x) for sample in by.open_typed(store).ordered())


def cold_tar(store: Store) -> int:
    return sum(touch(sample["msgpack"]) for sample in by.opened_tar(store))


def read_direct(store: Store) -> int:
    """Read by O_DIRECT, past the page cache, 1 MiB at a time."""
    buffer = mmap.mmap(-1, 1 << 20)
    total = 0
    for path in by.own(store):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        at = 0
        while got := os.preadv(fd, [buffer], at):
            at += got
        os.close(fd)
        total += at
    return total


@contenders(
    "cold, in order",
    fastshard=cold_typed,
    fastshard_tar=cold_tar,
    O_DIRECT=read_direct,
)
def bench_cold(benchmark: Any, images: Store, read: Any, turn: int) -> None:
    expect(benchmark, "fastshard", "fastshard_tar", 1 / 1.1)
    assert read(images)
    nbytes = images.count * images.numbers * 4
    benchmark.group = "cold, in order, arrays of 100 KiB, a GB"
    benchmark.extra_info["operations"] = nbytes / 1e9
    benchmark.pedantic(read, (images,), setup=images.evict, rounds=1)


def random_order(store: Store) -> list[int]:
    count = min(2000, store.count // 2)
    chosen: list[int] = np.random.default_rng(2).permutation(store.count).tolist()
    return chosen[:count]


def random_typed(store: Store) -> int:
    ds = by.open_typed(store)
    return sum(touch(sample.x) for sample in ds.iter(order=random_order(store)))


def random_tar(store: Store) -> int:
    ds = by.opened_tar(store)
    samples = ds.iter(order=random_order(store))
    return sum(touch(sample["msgpack"]) for sample in samples)


@contenders("cold, at random", fastshard=random_typed, fastshard_tar=random_tar)
def bench_cold_random(benchmark: Any, images: Store, read: Any, turn: int) -> None:
    expect(benchmark, "fastshard", "fastshard_tar", 1 / 1.1)
    assert read(images)
    benchmark.group = "cold, at random, arrays of 100 KiB"
    benchmark.extra_info["operations"] = len(random_order(images))
    benchmark.pedantic(read, (images,), setup=images.evict, rounds=1)
