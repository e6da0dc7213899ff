"""Windows of tokens: gathered from shards, against rows of one array in memory.

pytest bench/loader/bench_loader_tokens.py

Windows of 4,097 uint16 in random order, in batches of 64; documents of 600 tokens on
average. The page cache is warm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import fastshard
from harness import SCALE, contenders, expect, limit

DOCUMENTS = max(int(100_000 * SCALE), 2_000)
SHARDS = 10
LENGTH = 4_097
BATCH = 64


class Data(NamedTuple):
    """A folder of tars, and the tokens of all of their documents in one array."""

    folder: Path
    flat: NDArray[np.uint16]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder = tmp_path_factory.mktemp("tokens")
    rng = np.random.default_rng(0)
    documents = []
    for k in range(SHARDS):
        with fastshard.ShardWriter(str(folder / f"t-{k:02}.tar")) as writer:
            for i in range(DOCUMENTS // SHARDS):
                length = min(int(rng.lognormal(6, 0.9)), 50_000)
                tokens = rng.integers(0, 50_000, length).astype("u2")
                documents.append(tokens)
                key = f"{k:02}{i:06}"
                writer.write({"__key__": key, "npy": tokens, "bin": tokens.tobytes()})
    fastshard.build_index(folder)
    for path in folder.glob("*.tar"):
        path.read_bytes()  # into the page cache, as a whole
    return Data(folder, np.concatenate(documents))


def order_of(count: int) -> NDArray[np.int64]:
    return np.asarray(fastshard_order(count), np.int64)


def fastshard_order(count: int) -> Any:
    from fastshard.dataset.order.plan import Shuffling

    return Shuffling(7, 0, None).order(count)


def rows_of_array(data: Data) -> Callable[[], Iterator[NDArray[Any]]]:
    """Copy rows of one array in memory to a new array for each batch."""
    flat = data.flat
    count = (len(flat) - LENGTH) // (LENGTH - 1) + 1
    starts = (order_of(count) * (LENGTH - 1)).tolist()

    def batches() -> Iterator[NDArray[Any]]:
        for k in range(0, count, BATCH):
            part = starts[k : k + BATCH]
            out = np.empty((len(part), LENGTH), np.uint16)
            for row, start in enumerate(part):
                out[row] = flat[start : start + LENGTH]
            yield out

    return batches


def windows(data: Data, field: str) -> Any:
    ds = fastshard.open(data.folder)
    found = ds.tokens(field, LENGTH, dtype="u2").shuffle(seed=7)
    len(found)
    return found


def bin_batches(data: Data) -> Callable[[], Iterator[NDArray[Any]]]:
    found = windows(data, "bin")
    return lambda: found.batches(BATCH)


def npy_batches(data: Data) -> Callable[[], Iterator[NDArray[Any]]]:
    found = windows(data, "npy")
    return lambda: found.batches(BATCH)


def bin_loader(data: Data) -> Callable[[], Iterator[NDArray[Any]]]:
    found = windows(data, "bin")

    def batches() -> Iterator[NDArray[Any]]:
        with found.loader(BATCH, threads=2) as loader:
            yield from loader

    return batches


@contenders(
    "token windows",
    rows_of_one_array=rows_of_array,
    bin_batches=bin_batches,
    npy_batches=npy_batches,
    bin_loader=bin_loader,
)
def bench_windows(benchmark: Any, data: Data, read: Any, turn: int) -> None:
    batches = read(data)
    for batch, expected in zip(batches(), rows_of_array(data)(), strict=True):
        assert np.array_equal(batch, expected)
    benchmark.group = f"windows of {LENGTH:,} uint16, random order, batches of {BATCH}"
    benchmark.extra_info["operations"] = (len(data.flat) - 1) // (LENGTH - 1)
    expect(benchmark, "bin batches", "rows of one array", 0.6)
    expect(benchmark, "npy batches", "bin batches", 0.9)

    def run() -> None:
        for _ in batches():
            pass

    benchmark.pedantic(run, rounds=5, warmup_rounds=1)


def count_bin(data: Data) -> int:
    with fastshard.open(data.folder) as ds:
        return len(ds.tokens("bin", LENGTH, dtype="u2"))


def count_npy(data: Data) -> int:
    with fastshard.open(data.folder) as ds:
        return len(ds.tokens("npy", LENGTH))


def pack(data: Data) -> int:
    with fastshard.open(data.folder) as ds:
        return len(ds.tokens("bin", LENGTH, dtype="u2", pack="best-fit"))


@contenders("token counts", bin=count_bin, npy=count_npy, best_fit=pack)
def bench_opening(benchmark: Any, data: Data, read: Any, turn: int) -> None:
    count = read(data)
    if read is pack:
        padding = count * LENGTH / len(data.flat) - 1
        benchmark.extra_info["padding"] = padding
        if DOCUMENTS >= 20_000:  # one block has the rows that stay half empty
            limit(benchmark, "best fit", "padding", 0.01)
    else:
        assert count == (len(data.flat) - LENGTH) // (LENGTH - 1) + 1
    benchmark.group = f"open and count the tokens of {DOCUMENTS:,} documents"
    benchmark.pedantic(read, (data,), rounds=5)
