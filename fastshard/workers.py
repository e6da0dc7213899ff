"""What torch's loaders want of datasets. torch is asked only where it was imported."""

from __future__ import annotations

import sys
from typing import Any

from fastshard._core.mapped import View
from fastshard._core.samples import SampleBase
from fastshard.errors import FastshardError

__all__ = ["guard_collation", "here"]

COLLATE = "torch.utils.data._utils.collate"
ADVICE = (
    "torch's default collation cannot batch {}: use "
    "DataLoader(..., collate_fn=fastshard.collate) (or that of "
    "fastshard.adapters.torch, for tensors), or decode the samples first: "
    'ds.decode("npy", "cls")'
)


def here() -> tuple[int, int] | None:
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
    """Have torch's default collation refuse samples, and views of shards.

    It would turn a view, a sequence of numbers to it, into as many tensors.
    """
    collation = sys.modules.get(COLLATE)
    kinds = getattr(collation, "default_collate_fn_map", None)
    if kinds is None or SampleBase in kinds:
        return

    def refuse_samples(batch: Any, **options: Any) -> Any:
        raise FastshardError(ADVICE.format("raw samples"))

    def refuse_views(batch: Any, **options: Any) -> Any:
        if any(isinstance(view, memoryview) and is_ours(view) for view in batch):
            raise FastshardError(ADVICE.format("raw bytes, views of a shard"))
        collate: Any = collation
        return [
            collate.default_collate(list(items)) for items in zip(*batch, strict=True)
        ]

    kinds[SampleBase] = refuse_samples
    kinds[memoryview] = refuse_views


def is_ours(view: memoryview) -> bool:
    """Whether a view may be one of a shard's: on a mapped file, or on bytes."""
    return isinstance(view.obj, View | bytes)
