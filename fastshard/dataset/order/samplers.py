"""Warning for samplers that divide a rank's share a second time."""

from __future__ import annotations

import sys
import warnings
from types import FrameType
from typing import Any
from weakref import WeakSet

__all__ = ["warn_of_samplers"]

MAX_FRAMES = 12  # between a sampler and the dataset
ACCELERATE = {"BatchSamplerShard", "IterableDatasetShard", "DataLoaderDispatcher"}
WARNING = (
    "{} divides the dataset among the ranks, but it is one rank's share already, by "
    "split_by_rank: each rank reads only a part of its share. Leave out split_by_rank, "
    "or {}"
)
WITHOUT_PREPARE = "do not pass the DataLoader to Accelerator.prepare"
WITHOUT_SAMPLER = (
    "the sampler: Trainer(use_distributed_sampler=False) in Lightning, "
    "setup_dataloaders(..., use_distributed_sampler=False) in Fabric"
)

_known: WeakSet[Any] = WeakSet()  # samplers of a warning


def warn_of_samplers() -> None:
    """Warn if such a sampler asks for the length or an iterator of a share.

    The dataset does not know its samplers, so the callers' frames are searched. Each
    sampler is warned of once.
    """
    if "torch.utils.data" not in sys.modules:
        return
    level, frame = 3, sys._getframe(1).f_back
    while frame is not None and level < MAX_FRAMES:
        sampler = _self_of(frame)
        if sampler is not None and _divides(sampler):
            break
        level, frame = level + 1, frame.f_back
    else:
        return
    if sampler in _known:
        return
    _known.add(sampler)
    while frame is not None and _self_of(frame) is sampler:
        level, frame = level + 1, frame.f_back
    name = type(sampler).__name__
    way_out = WITHOUT_PREPARE if name in ACCELERATE else WITHOUT_SAMPLER
    warnings.warn(WARNING.format(name, way_out), stacklevel=level)


def _self_of(frame: FrameType) -> Any:
    """Return the object whose method a frame runs, or None."""
    is_method = frame.f_code.co_varnames[:1] == ("self",)
    return frame.f_locals.get("self") if is_method else None


def _divides(caller: object) -> bool:
    """Return whether an object divides a dataset among several ranks."""
    names = [kind.__name__ for kind in type(caller).__mro__]
    is_sampler = any("Distributed" in name and "Sampler" in name for name in names)
    if not is_sampler and ACCELERATE.isdisjoint(names):
        return False
    ranks = [getattr(caller, name, None) for name in ("num_replicas", "num_processes")]
    return 1 not in ranks
