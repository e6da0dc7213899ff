"""Epochs over pictures of 224x224, in batches of 64: the loader and its rivals.

Each has one epoch in a process of its own (`harness.process`). All take the centre of
a picture, but for SPDL, whose call shows all of it.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fastshard
from harness.process import cpu_seconds, tree_memory

BATCH = 64
SIDE = 224
WORKERS = 2
MEASURED = 8  # batches, in which the memory is measured
MB = 1e6

Batches = Callable[[], Iterator[Any]]  # uint8, of 64 pictures


def central_box(width: int, height: int) -> tuple[float, float, float, float]:
    """Return the largest square in the middle of a picture."""
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return (left, top, left + side, top + side)


def decode_pillow(data: Any, is_whole: bool = False) -> Any:
    """Return the centre of a picture, decoded and resized by Pillow."""
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    box = None if is_whole else central_box(*image.size)
    small = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box)
    return np.array(small)


class PillowPictures:
    """Map-style dataset of pictures that Pillow decodes."""

    def __init__(self, ds: Any) -> None:
        self.ds = ds

    def __len__(self) -> int:
        return len(self.ds)

    def __getitem__(self, i: int) -> Any:
        return decode_pillow(self.ds[i]["jpg"])


class OwnPictures:
    """Map-style dataset of pictures that fastshard decodes, one at a time."""

    def __init__(self, images: Any) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> Any:
        return self.images[i]["jpg"]


class OwnBatches(OwnPictures):
    """The same, whole batches decoded into one tensor in shared memory."""

    def __getitems__(self, positions: Sequence[int]) -> Any:
        import torch

        shape = (len(positions), SIDE, SIDE, 3)
        size = int(np.prod(shape))
        new_shared: Any = torch.UntypedStorage._new_shared
        memory = new_shared(size)  # as default_collate does
        batch = torch.tensor([], dtype=torch.uint8).set_(memory).view(shape)
        self.images.read_into(positions, batch.numpy())
        return batch


class TorchcodecPictures(PillowPictures):
    """Map-style dataset of pictures that torchcodec decodes and torch resizes."""

    def __getitem__(self, i: int) -> Any:
        import torch
        from torchcodec.decoders import decode_image

        data = torch.from_numpy(np.frombuffer(self.ds[i]["jpg"], np.uint8).copy())
        image = decode_image(data)
        box = central_box(image.shape[2], image.shape[1])
        left, top, right, bottom = map(int, box)
        square = image[:, top:bottom, left:right].unsqueeze(0)
        small = torch.nn.functional.interpolate(
            square.contiguous(memory_format=torch.channels_last),
            (SIDE, SIDE),
            mode="bilinear",
            antialias=True,
        )
        return small[0].permute(1, 2, 0).contiguous()


def take_as_is(batch: Any) -> Any:
    """Return a batch that needs no collation."""
    return batch


def open_images(folder: Path) -> Any:
    """Return fastshard's dataset of pictures, decoded."""
    ds = fastshard.open(folder).select_fields("jpg")
    return ds.images("jpg", SIDE, crop="center")


def read_fastshard(folder: Path, threads: int | None = None) -> Batches:
    ds = open_images(folder)

    def batches() -> Iterator[Any]:
        with ds.loader(BATCH, threads=threads) as loader:
            for batch in loader:
                yield batch["jpg"]

    return batches


def load_with_torch(pictures: Any, **options: Any) -> Batches:
    """Return batches of torch's loader with two workers."""
    from torch.utils.data import DataLoader

    return lambda: iter(DataLoader(pictures, BATCH, num_workers=WORKERS, **options))


def read_pillow(folder: Path) -> Batches:
    return load_with_torch(PillowPictures(fastshard.open(folder)))


def read_own_batches(folder: Path) -> Batches:
    return load_with_torch(OwnBatches(open_images(folder)), collate_fn=take_as_is)


def read_own_each(folder: Path) -> Batches:
    return load_with_torch(OwnPictures(open_images(folder)))


def read_torchcodec(folder: Path) -> Batches:
    importlib.import_module("torchcodec.decoders")
    return load_with_torch(TorchcodecPictures(fastshard.open(folder)))


def read_webdataset(folder: Path) -> Batches:
    import webdataset
    from torch.utils.data import default_collate

    paths = sorted(map(str, folder.glob("*.tar")))

    def batches() -> Iterator[Any]:
        pictures = (
            webdataset.WebDataset(paths, shardshuffle=False, empty_check=False)
            .to_tuple("jpg")
            .map_tuple(decode_pillow)
            .batched(BATCH, collation_fn=default_collate)
        )
        loader = webdataset.WebLoader(pictures, batch_size=None, num_workers=WORKERS)
        return (batch for (batch,) in loader)

    return batches


def decode_rows(rows: dict[str, Any]) -> dict[str, Any]:
    """Decode the pictures of some rows of Hugging Face's datasets."""
    return {"jpg": [decode_pillow(row["bytes"]) for row in rows["jpg"]]}


def read_hf(folder: Path) -> Batches:
    os.environ |= {"HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": f"{folder}-hf"}
    import datasets

    datasets.disable_progress_bars()
    paths = sorted(map(str, folder.glob("*.tar")))
    rows = datasets.load_dataset("webdataset", data_files=paths, split="train")
    rows = rows.cast_column("jpg", datasets.Image(decode=False))
    loaded = load_with_torch(rows.select_columns(["jpg"]).with_transform(decode_rows))
    return lambda: (batch["jpg"] for batch in loaded())


def read_spdl(folder: Path) -> Batches:
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    ds = fastshard.open(folder)

    def sources() -> Iterator[list[bytes]]:
        for start in range(0, len(ds), BATCH):
            yield [bytes(sample["jpg"]) for sample in ds[start : start + BATCH]]

    def load(pictures: list[bytes]) -> Any:
        memory = spdl.io.load_image_batch(
            pictures, width=SIDE, height=SIDE, pix_fmt="rgb24"
        )
        return spdl.io.to_numpy(memory)

    load([bytes(ds[0]["jpg"])])  # skips where FFmpeg's libraries are missing

    def batches() -> Iterator[Any]:
        builder = PipelineBuilder().add_source(sources())
        pipeline = builder.pipe(load, concurrency=WORKERS).add_sink(2)
        with (built := pipeline.build(num_threads=WORKERS)).auto_stop():
            yield from built

    return batches


def after_first(times: list[float], counts: list[int]) -> float:
    """Return the seconds an image after the first batch of each worker.

    When the first batch comes, other workers have almost finished theirs.
    """
    begun = min(WORKERS, len(times) - 1)
    return (times[-1] - times[begun - 1]) / sum(counts[begun:])


class Trial:
    """Epochs of one contender, in the process that serves it."""

    def __init__(self, read: Callable[[Path], Batches], folder: Path) -> None:
        self.batches = read(folder)
        self.folder = folder

    def means(self) -> list[float]:
        """Return the mean of each picture of an epoch."""
        means: list[float] = []
        for batch in self.batches():
            assert batch.shape[1:] == (SIDE, SIDE, 3)
            means += np.asarray(batch).mean((1, 2, 3)).tolist()
        return means

    def epoch(self) -> dict[str, float]:
        """Return figures of an epoch, from its start on."""
        gc.collect()
        cpu, start = cpu_seconds(), time.perf_counter()
        counts, times = [], []
        for batch in self.batches():
            times.append(time.perf_counter() - start)
            counts.append(len(batch))
        count = sum(counts)
        gc.collect()
        return {
            "ms of CPU an image": (cpu_seconds() - cpu) / count * 1e3,
            "ms to the first batch": times[0] * 1e3,
            "us an image after it": after_first(times, counts) * 1e6,
        }

    def memory(self) -> float:
        """Return the most MB that the first batches add to the tree's memory."""
        gc.collect()
        before, most = tree_memory(), 0
        for _, batch in zip(range(MEASURED), self.batches(), strict=False):
            assert len(batch)
            most = max(most, tree_memory() - before)
        return most / MB


class OwnTrial(Trial):
    """Epochs of fastshard's loader, with what bounds its first batch."""

    def first_bound(self) -> float:
        """Return the ms in which the first batch is due."""
        ds = open_images(self.folder)
        count = min(BATCH, len(ds))
        out = np.empty((count, SIDE, SIDE, 3), np.uint8)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            ds.read_into(range(count), out)
            times.append(time.perf_counter() - start)
        return 1.3 * sorted(times)[1] * 1e3 / WORKERS + 20
