"""Training on warm data: shuffling, batches, torch's loader and Ray.

pytest bench/bench_train.py

Missing rivals are skipped. mosaicml-streaming imports torchvision but uses nothing of
it here; an empty module replaces it where it is missing.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import random
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastshard
from fastshard._core.table.order import Shuffle
from fastshard.dataset.order.plan import permutation_keys
from harness import SCALE, contenders, write

SAMPLES = max(int(200_000 * SCALE), 2560)  # of float32[512]
PER_SHARD = max(SAMPLES // 10, 100)
BATCH = 256
WORKERS = 4
READS = 20_480
LARGE = max(int(20_000 * SCALE), 100)  # members of 100 KB, for Ray

# The rivals leave files open and call deprecated functions.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
]

Epoch = Callable[[], tuple[int, float]]  # samples, sum of their first numbers


def vectors() -> Iterator[tuple[str, Any]]:
    rng = np.random.default_rng(0)
    for i in range(SAMPLES):
        vector = rng.random(512, dtype=np.float32)
        vector[0] = i % 1000
        yield f"{i:08d}", vector


TOTAL = float(sum(i % 1000 for i in range(SAMPLES)))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of vectors, npy members of tars."""
    folder = tmp_path_factory.mktemp("vectors")
    with fastshard.ShardWriter(folder / "v-{:04d}.tar", max_count=PER_SHARD) as writer:
        for key, vector in vectors():
            writer.write({"__key__": key, "npy": vector})
    fastshard.build_index(folder)
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


def epoch_of(ds: Any) -> Epoch:
    out: dict[str, Any] = {}

    def epoch() -> tuple[int, float]:
        count, total = 0, 0.0
        for batch in ds.batches(BATCH, out=out):
            count += len(batch["npy"])
            total += float(batch["npy"][:, 0].sum())
        return count, total

    return epoch


def batches(folder: Path) -> Epoch:
    return epoch_of(fastshard.open(folder))


def batches_shuffled(folder: Path) -> Epoch:
    return epoch_of(fastshard.open(folder).shuffle(7))


def batches_in_blocks(folder: Path) -> Epoch:
    return epoch_of(fastshard.open(folder).shuffle(7, block=1024))


def np_stack(folder: Path) -> Epoch:
    ds = fastshard.open(folder)

    def epoch() -> tuple[int, float]:
        count, total = 0, 0.0
        for start in range(0, len(ds), BATCH):
            samples = ds.get_many(range(start, min(start + BATCH, len(ds))))
            stack = np.stack([sample.array("npy") for sample in samples])
            count += len(stack)
            total += float(stack[:, 0].sum())
        return count, total

    return epoch


@contenders(
    "an epoch of batches of 256 x float32[512]",
    fastshard=batches,
    shuffled=batches_shuffled,
    shuffled_in_blocks_of_1024=batches_in_blocks,
    get_many_and_np_stack=np_stack,
)
def bench_batches(
    benchmark: Any, folder: Path, read: Callable[[Path], Epoch], turn: int
) -> None:
    epoch = read(folder)
    assert epoch() == (SAMPLES, TOTAL)
    benchmark.extra_info["operations"] = SAMPLES
    benchmark.pedantic(epoch, rounds=5)


# torch's loader with workers.


def epoch_through(loader: Any, pick: Callable[[Any], Any]) -> Epoch:
    def epoch() -> tuple[int, float]:
        count, total = 0, 0.0
        for batch in loader:
            stack = pick(batch)
            count += len(stack)
            total += float(stack[:, 0].sum())
        return count, total

    return epoch


def stack_vectors(arrays: list[Any]) -> Any:
    """Stack vectors, the collation that the rivals use."""
    import torch

    return torch.from_numpy(np.stack(arrays))


def loader_fastshard(folder: Path) -> Epoch:
    from torch.utils.data import DataLoader

    from fastshard.adapters.torch import collate

    ds = fastshard.open(folder)
    options: Any = {"num_workers": WORKERS, "persistent_workers": True}
    data: Any = ds  # not a subclass of torch's Dataset
    loader: Any = DataLoader(data, BATCH, collate_fn=collate, **options)
    return epoch_through(loader, lambda batch: batch["npy"])


def loader_shuffled(folder: Path) -> Epoch:
    from torch.utils.data import DataLoader

    from fastshard.adapters.torch import IterableDataset

    data = IterableDataset(fastshard.open(folder).shuffle(7), BATCH)
    options: Any = {"num_workers": WORKERS, "persistent_workers": True}
    loader: Any = DataLoader(data, batch_size=None, **options)
    return epoch_through(loader, lambda batch: batch["npy"])


def loader_webdataset(folder: Path) -> Epoch:
    import webdataset as wds
    from torch.utils.data import DataLoader

    urls = sorted(str(path) for path in folder.glob("*.tar"))
    data = wds.WebDataset(urls, shardshuffle=False).decode().to_tuple("npy")

    def collate(samples: list[tuple[Any]]) -> Any:
        return stack_vectors([sample[0] for sample in samples])

    data = data.batched(BATCH, collation_fn=collate)
    options: Any = {"num_workers": WORKERS, "persistent_workers": True}
    return epoch_through(
        DataLoader(data, batch_size=None, **options), lambda batch: batch
    )


def loader_mosaicml(folder: Path) -> Epoch:
    if importlib.util.find_spec("torchvision") is None:
        for name in ("", ".datasets", ".transforms", ".transforms.functional"):
            module = types.ModuleType(f"torchvision{name}")
            module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
            module.VisionDataset = module.to_tensor = object  # type: ignore[attr-defined]
            sys.modules[module.__name__] = module
    from streaming import MDSWriter, StreamingDataset
    from torch.utils.data import DataLoader

    mds = folder / "mds"
    if not mds.exists():
        columns = {"npy": "ndarray:float32:512"}
        with MDSWriter(out=str(mds), columns=columns) as writer:
            for _, vector in vectors():
                writer.write({"npy": vector})
    data = StreamingDataset(local=str(mds), batch_size=BATCH, shuffle=False)

    def collate(samples: list[dict[str, Any]]) -> Any:
        return stack_vectors([sample["npy"] for sample in samples])

    options: Any = {"num_workers": WORKERS, "persistent_workers": True}
    loader = DataLoader(data, BATCH, collate_fn=collate, **options)
    return epoch_through(loader, lambda batch: batch)


def loader_hf_datasets(folder: Path) -> Epoch:
    import datasets
    from torch.utils.data import DataLoader

    arrow = folder / "arrow"
    if not arrow.exists():
        datasets.disable_progress_bars()
        kinds = datasets.Features(
            {"npy": datasets.Sequence(datasets.Value("float32"), length=512)}
        )
        whole = np.stack([vector for _, vector in vectors()])
        made = datasets.Dataset.from_dict({"npy": whole}, features=kinds)
        made.save_to_disk(str(arrow), num_shards=10)
    data = datasets.load_from_disk(str(arrow)).with_format("numpy")

    def collate(samples: list[dict[str, Any]]) -> Any:
        return stack_vectors([sample["npy"] for sample in samples])

    options: Any = {"num_workers": WORKERS, "persistent_workers": True}
    loader = DataLoader(data, BATCH, collate_fn=collate, **options)
    return epoch_through(loader, lambda batch: batch)


def select_installed(**reads: tuple[str, Any]) -> dict[str, Any]:
    """Return the contenders whose libraries are installed."""
    found = {}
    for name, (modules, read) in reads.items():
        if all(importlib.util.find_spec(module) for module in modules.split()):
            found[name] = read
    return found


@contenders(
    "an epoch through torch's DataLoader with 4 workers, the same batches",
    **select_installed(
        fastshard=("torch", loader_fastshard),
        fastshard_shuffled=("torch", loader_shuffled),
        webdataset=("torch webdataset", loader_webdataset),
        mosaicml_streaming=("torch streaming", loader_mosaicml),
        hf_datasets=("torch datasets", loader_hf_datasets),
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
