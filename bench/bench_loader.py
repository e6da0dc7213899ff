"""The loader: pictures into batches, against torch's loader and others.

pytest bench/bench_loader.py

1,280 JPEG pictures of 500x375 to the centre at 224x224, in batches of 64, each
contender in a process of its own, start-up included; vectors of float32[512]. Rivals
that are not installed are skipped: SPDL needs the libraries of FFmpeg 4 to 9,
torchcodec a build that fits torch's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

import fastshard
from harness import SCALE, contenders, expect, limit
from harness.pictures import HEIGHT, WIDTH, jpegs, write_tar
from harness.process import serve
from rivals import epochs, images
from rivals.epochs import SAMPLES, TOTAL, Epoch, write_vectors

PICTURES = max(int(1280 * SCALE), 128)
SHARDS = 10
RING = 4 * images.BATCH * images.SIDE**2 * 3 / images.MB  # 2 ahead, 1 made, 1 held
CPU, FIRST, AFTER = (
    "ms of CPU an image",
    "ms to the first batch",
    "us an image after it",
)
MEMORY, BOUND = "MB anonymous and shared", "first batch, of its bound"

# The rivals leave files open and call deprecated functions.
pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of pictures."""
    folder = tmp_path_factory.mktemp("pictures")
    pytest.importorskip("skimage")
    pictures = jpegs(PICTURES)
    each = -(-PICTURES // SHARDS)
    for k in range(SHARDS):
        part = pictures[k * each : (k + 1) * each]
        write_tar(folder / f"p-{k:04d}.tar", part)
    fastshard.build_index(folder)
    return folder


@pytest.fixture(scope="session")
def means_of(folder: Path) -> Callable[[bool], list[float]]:
    """Return a function that gives the mean of each picture, of all or the centre."""
    made: dict[bool, list[float]] = {}

    def means(is_whole: bool) -> list[float]:
        if is_whole not in made:
            decode = partial(images.decode_pillow, is_whole=is_whole)
            made[is_whole] = [float(decode(p).mean()) for p in jpegs(PICTURES)]
        return made[is_whole]

    return means


@contenders(
    f"{PICTURES:,} pictures to 224x224, batches of 64, two cores",
    fastshard=images.read_fastshard,
    DataLoader_with_Pillow=images.read_pillow,
    DataLoader_with_read_into=images.read_own_batches,
    DataLoader_with_our_decoder=images.read_own_each,
    webdataset=images.read_webdataset,
    HF_datasets=images.read_hf,
    SPDL=images.read_spdl,
    torchcodec=images.read_torchcodec,
)
def bench_images(
    benchmark: Any,
    folder: Path,
    means_of: Callable[[bool], list[float]],
    read: Callable[[Path], images.Batches],
    turn: int,
) -> None:
    is_own, is_whole = read is images.read_fastshard, read is images.read_spdl
    figures: list[dict[str, float]] = []
    with serve(images.OwnTrial if is_own else images.Trial, read, folder) as trial:
        benchmark.extra_info[MEMORY] = round(trial.call("memory"), 1)
        means = trial.call("means")
        is_same = read not in (images.read_spdl, images.read_torchcodec)
        tolerance = 0.3 if is_same else 3
        expected = np.sort(means_of(is_whole))
        if is_whole:
            expected *= HEIGHT / WIDTH  # all of it, above and below black
        assert np.allclose(sorted(means), expected, atol=tolerance)
        bound = trial.call("first_bound") if is_own else 0
        benchmark.pedantic(lambda: figures.append(trial.call("epoch")), rounds=2)
    benchmark.extra_info["operations"] = PICTURES
    for name in figures[0]:
        benchmark.extra_info[name] = round(median(each[name] for each in figures), 3)
    if is_own:
        benchmark.extra_info[BOUND] = round(benchmark.extra_info[FIRST] / bound, 3)
    for against, times in (
        ("DataLoader_with_Pillow", 2),
        ("webdataset", 2),
        ("HF_datasets", 2),
        ("SPDL", 1.5),
        ("torchcodec", 1.05),
    ):
        expect(benchmark, "fastshard", against, times)
    limit(benchmark, "fastshard", CPU, 0.55, "DataLoader_with_Pillow")
    limit(benchmark, "fastshard", AFTER, 1 / 1.05, "DataLoader_with_read_into")
    limit(benchmark, "fastshard", CPU, 0.95, "DataLoader_with_read_into")
    limit(benchmark, "fastshard", AFTER, 1, "DataLoader_with_our_decoder")
    limit(benchmark, "fastshard", FIRST, 0.6, "DataLoader_with_Pillow")
    limit(benchmark, "fastshard", BOUND, 1)
    limit(benchmark, "fastshard", MEMORY, round(RING + 15, 1))


# A new process.


def first_batch(read: str, module: str, folder: Path) -> int:
    """Return the number of pictures of the first batch of a new Python process."""
    code = (
        "import os, sys; from pathlib import Path; from rivals import images\n"
        f"import {module}\n"
        f"batch = next(images.{read}(Path(sys.argv[1]))())\n"
        "print(len(batch), flush=True)\n"
        "os.kill(0, 9)"  # with its workers, whose end is not measured
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folder],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    return int(done.stdout)


@contenders(
    f"the first batch of {images.BATCH} of a new process, imports and opening included",
    fastshard=partial(first_batch, "read_fastshard", "fastshard"),
    fastshard_beside_torch=partial(first_batch, "read_fastshard", "torch"),
    DataLoader_with_Pillow=partial(first_batch, "read_pillow", "torch"),
)
def bench_first_batch(
    benchmark: Any, folder: Path, read: Callable[[Path], int], turn: int
) -> None:
    pytest.importorskip("torch")
    assert read(folder) == images.BATCH
    expect(benchmark, "fastshard_beside_torch", "DataLoader_with_Pillow", 1)
    benchmark.pedantic(read, (folder,), rounds=5)


# Threads.


def count_rows(folder: Path, threads: int) -> int:
    return sum(map(len, images.read_fastshard(folder, threads)()))


def read_in_one_thread(folder: Path) -> int:
    return count_rows(folder, 1)


def read_in_two_threads(folder: Path) -> int:
    return count_rows(folder, 2)


@contenders(
    "the same, by threads",
    two=read_in_two_threads,
    one=read_in_one_thread,
)
def bench_threads(
    benchmark: Any, folder: Path, read: Callable[[Path], int], turn: int
) -> None:
    assert read(folder) == PICTURES
    benchmark.extra_info["operations"] = PICTURES
    expect(benchmark, "two", "one", 1.8)
    benchmark.pedantic(read, (folder,), rounds=2)


# Vectors.


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    write_vectors(folder)
    return folder


def load_vectors(folder: Path) -> Epoch:
    ds = fastshard.open(folder)

    def batches() -> Iterator[Any]:
        with ds.loader(epochs.BATCH) as loader:
            for batch in loader:
                yield batch["npy"]

    return epochs.epoch_of(batches)


def load_vectors_in_processes(folder: Path) -> Epoch:
    from torch.utils.data import DataLoader

    from fastshard.adapters.torch import IterableDataset

    ds = fastshard.open(folder).select_fields("npy")
    batches = IterableDataset(ds, epochs.BATCH)
    return epochs.epoch_of(
        lambda: (b["npy"] for b in DataLoader(batches, None, num_workers=2))
    )


@contenders(
    f"batches of {epochs.BATCH} x float32[512], in order",
    loader=load_vectors,
    batches=epochs.batches_fastshard,
    DataLoader_with_2_workers=load_vectors_in_processes,
)
def bench_vectors(
    benchmark: Any, vectors: Path, read: Callable[[Path], Epoch], turn: int
) -> None:
    if read is load_vectors_in_processes:
        pytest.importorskip("torch")
    epoch = read(vectors)
    assert epoch() == (SAMPLES, TOTAL)
    benchmark.extra_info["operations"] = SAMPLES
    expect(benchmark, "loader", "batches", 0.9)
    expect(benchmark, "loader", "DataLoader_with_2_workers", 1)
    benchmark.pedantic(epoch, rounds=2)
