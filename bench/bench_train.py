"""Training on warm data: shuffling, batches, torch's loader and Ray.

pytest bench/bench_train.py

Missing rivals are skipped.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastshard
from fastshard._core.table.order import Shuffle
from fastshard.dataset.order.plan import permutation_keys
from harness import SCALE, contenders, write
from rivals import epochs
from rivals.epochs import BATCH, SAMPLES, TOTAL, Epoch, write_vectors

READS = 20_480
LARGE = max(int(20_000 * SCALE), 100)  # members of 100 KB, for Ray

# The rivals leave files open and call deprecated functions.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
]


def select_installed(**reads: tuple[str, Any]) -> dict[str, Any]:
    """Return the contenders whose libraries are installed."""
    found = {}
    for name, (modules, read) in reads.items():
        if all(importlib.util.find_spec(module) for module in modules.split()):
            found[name] = read
    return found


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of vectors, npy members of tars."""
    folder = tmp_path_factory.mktemp("vectors")
    write_vectors(folder)
    return folder


@pytest.fixture(scope="session")
def order() -> list[int]:
    return random.Random(0).choices(range(SAMPLES), k=READS)


# One sample.


def open_plain(folder: Path) -> Any:
    return fastshard.open(folder)


def open_shuffled(folder: Path) -> Any:
    return fastshard.open(folder).shuffle(7, 3)


def open_shuffled_in_blocks(folder: Path) -> Any:
    return fastshard.open(folder).shuffle(7, 3, block=256)


@contenders(
    "ds[i], random",
    fastshard=open_plain,
    shuffled=open_shuffled,
    shuffled_in_blocks_of_256=open_shuffled_in_blocks,
)
def bench_one_sample(
    benchmark: Any, folder: Path, order: list[int], read: Any, turn: int
) -> None:
    ds = read(folder)
    assert sorted(ds.keys()) == list(open_plain(folder).keys())

    def read_all() -> None:
        for i in order:
            ds[i]

    read_all()
    benchmark.extra_info["operations"] = len(order)
    benchmark(read_all)


def shuffle_a_trillion() -> Any:
    return Shuffle(10**12, permutation_keys(7, 3))


def shuffle_a_million() -> Any:
    return Shuffle(10**6, permutation_keys(7, 3))


def permute_a_million() -> Any:
    return np.random.default_rng(7).permutation(10**6)


@contenders(
    "a shuffle begins",
    of_10_to_the_12=shuffle_a_trillion,
    of_10_to_the_6=shuffle_a_million,
    numpy_of_10_to_the_6=permute_a_million,
)
def bench_shuffle(benchmark: Any, read: Any, turn: int) -> None:
    order = read()
    assert len({int(order[i]) for i in range(1000)}) == 1000
    benchmark.extra_info["bytes"] = sys.getsizeof(order)
    benchmark(read)


def resume(ds: fastshard.Dataset[fastshard.Sample], state: dict[str, Any]) -> str:
    return str(next(iter(ds.iter(state))).key)


def open_and_resume(
    ds: fastshard.Dataset[fastshard.Sample], state: dict[str, Any]
) -> str:
    with fastshard.open(ds.shards.paths[0].rpartition("/")[0]) as again:
        return resume(again, state)


@contenders(
    "resumed, to the first sample",
    open=resume,
    with_opening=open_and_resume,
)
def bench_resume(benchmark: Any, folder: Path, read: Any, turn: int) -> None:
    ds = fastshard.open(folder)
    part = ds.shuffle(7, 3)
    state = part.state_dict(SAMPLES // 2)
    assert read(ds, state) == part[SAMPLES // 2].key
    benchmark.extra_info["bytes of state"] = len(json.dumps(state))
    benchmark(read, ds, state)


# Batches in this process.


@contenders(
    f"batches of {BATCH} x float32[512], one process, warm",
    **select_installed(
        fastshard=("", epochs.batches_fastshard),
        fastshard_shuffled=("", epochs.batches_shuffled),
        in_blocks_of_1024=("", epochs.batches_in_blocks),
        get_many_and_np_stack=("", epochs.batches_np_stack),
        HF_datasets=("datasets", epochs.batches_hf_datasets),
        HF_datasets_shuffled=("datasets", epochs.batches_hf_datasets_shuffled),
        webshart=("webshart", epochs.batches_webshart),
        mosaicml_streaming=("streaming.base", epochs.batches_mosaicml),
        webdataset=("webdataset", epochs.batches_webdataset),
    ),
)
def bench_batches(
    benchmark: Any, folder: Path, read: Callable[[Path], Epoch], turn: int
) -> None:
    epoch = read(folder)
    assert epoch() == (SAMPLES, TOTAL)
    benchmark.extra_info["operations"] = SAMPLES
    benchmark.pedantic(epoch, rounds=3)


# torch's loader with workers.


@contenders(
    "an epoch through torch's DataLoader with 4 workers, the same batches",
    **select_installed(
        fastshard=("torch", epochs.loader_fastshard),
        fastshard_shuffled=("torch", epochs.loader_shuffled),
        webdataset=("torch webdataset", epochs.loader_webdataset),
        mosaicml_streaming=("torch streaming.base", epochs.loader_mosaicml),
        hf_datasets=("torch datasets", epochs.loader_hf_datasets),
    ),
)
def bench_loader(
    benchmark: Any, folder: Path, read: Callable[[Path], Epoch], turn: int
) -> None:
    epoch = read(folder)
    count, total = epoch()
    assert (count, total) == (SAMPLES, TOTAL)
    benchmark.extra_info["operations"] = SAMPLES
    benchmark.pedantic(epoch, rounds=2)


# Ray.


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return eight tars of 100 KB members; start Ray with four processors."""
    import ray

    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    folder = tmp_path_factory.mktemp("large")
    for k in range(8):
        write(folder / f"l-{k}.tar", "ustar", max(LARGE // 8, 10), 102_400)
    fastshard.build_index(folder)
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=4 << 30,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield folder
    ray.shutdown()


def ray_fastshard(folder: Path) -> Any:
    import fastshard.adapters.ray

    return fastshard.adapters.ray.read(folder, fields="bin")


def ray_webdataset(folder: Path) -> Any:
    import ray

    paths = sorted(str(path) for path in folder.glob("*.tar"))
    return ray.data.read_webdataset(paths, decoder=None)


@contenders(
    "rows of 100 KB through Ray Data",
    **select_installed(
        fastshard=("ray", ray_fastshard),
        read_webdataset=("ray webdataset", ray_webdataset),
    ),
)
def bench_ray(
    benchmark: Any, large: Path, read: Callable[[Path], Any], turn: int
) -> None:
    rows = max(LARGE // 8, 10) * 8

    def epoch() -> int:
        count = 0
        for batch in read(large).iter_batches(batch_size=None, batch_format="pyarrow"):
            count += batch.num_rows
        return count

    assert epoch() == rows
    first = read(large).take(1)[0]
    assert len(first["bin"]) == 102_400
    benchmark.extra_info["operations"] = rows
    benchmark.pedantic(epoch, rounds=2)
