"""Iterating over a dataset in the order of its bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fastshard.columnar.stacks import stacks_of
from fastshard.gathering import Ragged

if TYPE_CHECKING:
    from fastshard._core.rows import ColumnSamples

__all__ = ["sweep"]

AT_ONCE = 256  # samples


def sweep(
    samples: ColumnSamples,
    fields: Sequence[str],
    chosen: Sequence[int] | None,
    batch_size: int | None,
    max_memory: int | None,
    ragged: Ragged,
) -> Iterator[dict[str, Any]]:
    """Yield samples, or batches of them; see `ShardedDatasetReader.scan`."""
    order = list(range(len(samples))) if chosen is None else sorted(chosen)
    columns = samples.columns_of(fields)
    step = batch_size or AT_ONCE
    for start in range(0, len(order), step):
        part = order[start : start + step]
        keys = [samples.key_at(i) for i in part]
        if batch_size is not None:
            yield {"__key__": keys} | stacks_of(samples, part, fields, ragged)
            continue
        for i, key in zip(part, keys, strict=True):
            yield {"__key__": key} | samples.arrays(i, columns)
