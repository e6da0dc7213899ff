"""Iterating over a dataset in the order of its bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fastshard.columnar.stacks import stacks_of
from fastshard.dataset.batch import Ragged

if TYPE_CHECKING:
    from fastshard._core.columnsamples import ColumnSamples
    from fastshard._core.pagering import PageRing

__all__ = ["sweep"]

AT_ONCE = 256  # samples that are brought together where no batches are wanted


def sweep(
    samples: ColumnSamples,
    fields: Sequence[str],
    chosen: Sequence[int] | None,
    batch_size: int | None,
    window_bytes: int,
    ring: PageRing | None,
    ragged: Ragged,
) -> Iterator[dict[str, Any]]:
    """Yield samples, or batches of them; see `ShardedDatasetReader.scan`."""
    import numpy as np

    from fastshard._core.sweep import Sweep, file_order

    count = len(samples)
    order = np.arange(count) if chosen is None else np.asarray(chosen, np.int64)
    columns = samples.columns_of(fields)
    if columns:
        order = file_order(columns, order)
    bringing = Sweep(
        columns,
        order,
        batch_size or AT_ONCE,
        window_bytes,
        ring=ring,
        whole=batch_size is not None,
    )
    try:
        for part in bringing:
            keys = samples.keys_of(part)
            if batch_size is not None:
                stacks = stacks_of(
                    samples, part, columns, ragged, brought=bringing.is_sure
                )
                yield {"__key__": keys} | stacks
                continue
            for i, key in zip(part.tolist(), keys, strict=True):
                yield {"__key__": key} | samples.arrays(i, columns)
    finally:
        bringing.close()
