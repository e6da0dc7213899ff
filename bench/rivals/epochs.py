"""Epochs over the same vectors by each reader: in this process, or by torch's loader.

An epoch yields batches of 256 vectors as one array or tensor each, in the order of the
data. mosaicml-streaming imports torchvision but uses nothing of it here; an empty
module replaces it where it is missing.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import io
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import fastshard
from harness import SCALE

SAMPLES = max(int(200_000 * SCALE), 2560)  # of float32[512]
PER_SHARD = max(SAMPLES // 10, 100)
BATCH = 256
WORKERS = 4
TOTAL = float(sum(i % 1000 for i in range(SAMPLES)))

Epoch = Callable[[], tuple[int, float]]  # samples, sum of their first numbers


def vectors() -> Iterator[tuple[str, Any]]:
    """Yield the keys and the vectors; the first number of each is known."""
    rng = np.random.default_rng(0)
    for i in range(SAMPLES):
        vector = rng.random(512, dtype=np.float32)
        vector[0] = i % 1000
        yield f"{i:08d}", vector


def write_vectors(folder: Path) -> None:
    """Write the vectors as npy members of indexed tars."""
    with fastshard.ShardWriter(folder / "v-{:04d}.tar", max_count=PER_SHARD) as writer:
        for key, vector in vectors():
            writer.write({"__key__": key, "npy": vector})
    fastshard.build_index(folder)


def epoch_of(batches: Callable[[], Iterable[Any]]) -> Epoch:
    """Return a function that reads all batches and sums a proof of it."""

    def epoch() -> tuple[int, float]:
        count, total = 0, 0.0
        for batch in batches():
            count += len(batch)
            total += float(batch[:, 0].sum())
        return count, total

    return epoch


def stack_each(arrays: Iterable[Any]) -> Iterator[Any]:
    """Yield batches of arrays that come one by one."""
    pending: list[Any] = []
    for array in arrays:
        pending.append(array)
        if len(pending) == BATCH:
            yield np.stack(pending)
            pending.clear()
    if pending:
        yield np.stack(pending)


def stack_tensors(arrays: list[Any]) -> Any:
    """Stack vectors in a worker, the collation that the rivals use."""
    import torch

    return torch.from_numpy(np.stack(arrays))


def loader_of(data: Any, batch_size: int | None, pick: Callable[[Any], Any]) -> Any:
    """Return torch's loader with workers that last; `pick` makes a batch."""
    from torch.utils.data import DataLoader

    options: Any = {"num_workers": WORKERS, "persistent_workers": True}
    if batch_size is not None:
        options["collate_fn"] = pick
    return DataLoader(data, batch_size, **options)


# fastshard.


def fastshard_batches(ds: Any) -> Epoch:
    out: dict[str, Any] = {}
    return epoch_of(lambda: (batch["npy"] for batch in ds.batches(BATCH, out=out)))


def batches_fastshard(folder: Path) -> Epoch:
    return fastshard_batches(fastshard.open(folder))


def batches_shuffled(folder: Path) -> Epoch:
    return fastshard_batches(fastshard.open(folder).shuffle(7))


def batches_in_blocks(folder: Path) -> Epoch:
    return fastshard_batches(fastshard.open(folder).shuffle(7, block=1024))


def batches_np_stack(folder: Path) -> Epoch:
    ds = fastshard.open(folder)

    def batches() -> Iterator[Any]:
        for start in range(0, len(ds), BATCH):
            samples = ds.get_many(range(start, min(start + BATCH, len(ds))))
            yield np.stack([sample.array("npy") for sample in samples])

    return epoch_of(batches)


def loader_fastshard(folder: Path) -> Epoch:
    from fastshard.adapters.torch import collate

    loader = loader_of(fastshard.open(folder), BATCH, collate)
    return epoch_of(lambda: (batch["npy"] for batch in loader))


def loader_shuffled(folder: Path) -> Epoch:
    from fastshard.adapters.torch import IterableDataset

    data = IterableDataset(fastshard.open(folder).shuffle(7), BATCH)
    loader = loader_of(data, None, collate_nothing)
    return epoch_of(lambda: (batch["npy"] for batch in loader))


def collate_nothing(batch: Any) -> Any:
    return batch


# webdataset.


def open_webdataset(folder: Path) -> Any:
    import webdataset as wds

    urls = sorted(str(path) for path in folder.glob("*.tar"))
    return wds.WebDataset(urls, shardshuffle=False).decode().to_tuple("npy")


def batches_webdataset(folder: Path) -> Epoch:
    def stack(samples: list[tuple[Any]]) -> Any:
        return np.stack([sample[0] for sample in samples])

    data = open_webdataset(folder).batched(BATCH, collation_fn=stack)
    return epoch_of(lambda: data)


def loader_webdataset(folder: Path) -> Epoch:
    def stack(samples: list[tuple[Any]]) -> Any:
        return stack_tensors([sample[0] for sample in samples])

    data = open_webdataset(folder).batched(BATCH, collation_fn=stack)
    loader = loader_of(data, None, collate_nothing)
    return epoch_of(lambda: loader)


# webshart.


def batches_webshart(folder: Path) -> Epoch:
    import webshart

    fastshard.build_index(folder, format="json")  # webshart needs it
    ds = webshart.discover_dataset(str(folder))
    readers = [ds.open_shard(k) for k in range(ds.num_shards)]

    def arrays() -> Iterator[Any]:
        for reader in readers:
            for i in range(reader.num_files):
                yield np.load(io.BytesIO(reader.read_file(i)))

    return epoch_of(lambda: stack_each(arrays()))


# mosaicml-streaming.


def import_mosaicml() -> Any:
    """Import mosaicml-streaming; without torchvision an empty module replaces that."""
    if importlib.util.find_spec("torchvision") is None:
        for name in ("", ".datasets", ".transforms", ".transforms.functional"):
            module = types.ModuleType(f"torchvision{name}")
            module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
            module.VisionDataset = module.to_tensor = object  # type: ignore[attr-defined]
            sys.modules[module.__name__] = module
    return importlib.import_module("streaming")


def open_mosaicml(folder: Path) -> Any:
    streaming = import_mosaicml()
    mds = folder / "mds"
    if not mds.exists():
        columns = {"npy": "ndarray:float32:512"}
        with streaming.MDSWriter(out=str(mds), columns=columns) as writer:
            for _, vector in vectors():
                writer.write({"npy": vector})
    return streaming.StreamingDataset(local=str(mds), batch_size=BATCH, shuffle=False)


def batches_mosaicml(folder: Path) -> Epoch:
    data = open_mosaicml(folder)
    return epoch_of(lambda: stack_each(sample["npy"] for sample in data))


def loader_mosaicml(folder: Path) -> Epoch:
    def stack(samples: list[dict[str, Any]]) -> Any:
        return stack_tensors([sample["npy"] for sample in samples])

    loader = loader_of(open_mosaicml(folder), BATCH, stack)
    return epoch_of(lambda: loader)


# Hugging Face datasets.


def open_hf_datasets(folder: Path) -> Any:
    import datasets

    arrow = folder / "arrow"
    if not arrow.exists():
        datasets.disable_progress_bars()
        kinds = datasets.Features(
            {"npy": datasets.Sequence(datasets.Value("float32"), length=512)}
        )
        whole = np.stack([vector for _, vector in vectors()])
        made = datasets.Dataset.from_dict({"npy": whole}, features=kinds)
        made.save_to_disk(str(arrow), num_shards=10)
    return datasets.load_from_disk(str(arrow)).with_format("numpy")


def hf_datasets_batches(data: Any) -> Epoch:
    return epoch_of(lambda: (batch["npy"] for batch in data.iter(batch_size=BATCH)))


def batches_hf_datasets(folder: Path) -> Epoch:
    return hf_datasets_batches(open_hf_datasets(folder))


def batches_hf_datasets_shuffled(folder: Path) -> Epoch:
    return hf_datasets_batches(open_hf_datasets(folder).shuffle(7))


def loader_hf_datasets(folder: Path) -> Epoch:
    def stack(samples: list[dict[str, Any]]) -> Any:
        return stack_tensors([sample["npy"] for sample in samples])

    loader = loader_of(open_hf_datasets(folder), BATCH, stack)
    return epoch_of(lambda: loader)
