"""Support for torch's loaders, which are never imported here."""

from __future__ import annotations

import json
import sys
from typing import Any

from fastshard._core.dataset.shard import SampleBase
from fastshard._core.io.source import View
from fastshard.dataset.batch import as_array, is_image
from fastshard.errors import FastshardError, RaggedError
from fastshard.formats.decoders import DECODERS

__all__ = ["current_worker", "guard_collation"]

COLLATE = "torch.utils.data._utils.collate"
ADVICE = (
    "torch's default collation cannot batch {}: use "
    "DataLoader(..., collate_fn=fastshard.collate) (or that of "
    "fastshard.adapters.torch, for tensors){}"
)
BATCHED = tuple(DECODERS[name] for name in ("npy", "cls", "txt", "jpg"))
SHOWN = 4  # fields that advice names


class _ImageType(type):
    """Takes Pillow's images for instances, once something has imported Pillow."""

    def __instancecheck__(cls, value: object) -> bool:
        return is_image(value)


class Image(metaclass=_ImageType):
    """Return the types that torch's default collation looks images up by."""


def current_worker() -> tuple[int, int] | None:
    """Return which worker of how many this process is; None: it is none.

    Only workers of an iterable dataset share its samples out among themselves; those
    of a map-style one are told what to read.
    """
    data = sys.modules.get("torch.utils.data")
    if data is None:
        return None
    info = data.get_worker_info()
    if info is None or not isinstance(info.dataset, data.IterableDataset):
        return None
    return info.id, info.num_workers


def guard_collation() -> None:
    """Have torch's default collation take images, and refuse samples and views.

    Images, on which it ends, become tensors. A view, a sequence of numbers to it, it
    would turn into as many tensors.
    """
    collation: Any = sys.modules.get(COLLATE)
    kinds = getattr(collation, "default_collate_fn_map", None)
    if kinds is None or SampleBase in kinds:
        return

    def refuse_samples(batch: Any, **options: Any) -> Any:
        raise FastshardError(ADVICE.format("raw samples", advice(batch[0])))

    def refuse_views(batch: Any, **options: Any) -> Any:
        if any(isinstance(view, memoryview) and is_ours(view) for view in batch):
            told = ", or decode the samples first: ds.decode(...)"
            raise FastshardError(ADVICE.format("raw bytes, views of a shard", told))
        return [
            collation.default_collate(list(items)) for items in zip(*batch, strict=True)
        ]

    def stack_images(batch: Any, **options: Any) -> Any:
        if not all(map(is_image, batch)):
            raise TypeError("a batch of images and of other values")
        arrays = list(map(as_array, batch))
        found = {f"{array.dtype} {array.shape}" for array in arrays}
        if len(found) > 1:
            raise RaggedError(
                "the images of a batch are not the same: "
                f"{', '.join(sorted(found)[:4])}; make them alike in map: "
                'ds.decode("jpg").map(lambda s: s | {"jpg": s["jpg"].resize((w, h))})'
            )
        return collation.default_collate(arrays)

    kinds[memoryview] = refuse_views
    kinds[Image] = stack_images
    kinds[SampleBase] = refuse_samples  # last: it says that all of them are there


def advice(sample: Any) -> str:
    """Return how to decode a sample to what torch can batch; "" where it cannot be."""
    fields = [field for field in sample if sample.decoder_of(field) in BATCHED]
    if not fields:
        return ""
    shown = ", ".join(map(json.dumps, fields[:SHOWN]))
    return f", or decode the samples first: ds.decode({shown})"


def is_ours(view: memoryview) -> bool:
    """Whether a view may be one of a shard's: on a mapped file, or on bytes."""
    return isinstance(view.obj, View | bytes)
