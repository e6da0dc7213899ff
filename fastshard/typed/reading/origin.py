"""Origins of the samples of typed datasets: shards, or a dataset and a filter."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from fastshard._util.paths.remote_options import RemoteOptions, select_remote
from fastshard.dataset.dataset import Dataset as FieldDataset
from fastshard.dataset.display.text import Description, describe_stage
from fastshard.dataset.open import open as open_fields
from fastshard.dataset.paths.listing import Source
from fastshard.dataset.sequence.iteration import WINDOW
from fastshard.typed.reading.iteration import FilteredIterator
from fastshard.typed.sources.opening import as_source, open_source, source_of_paths

__all__ = ["FilteredOrigin", "SampleOrigin", "ShardOrigin", "option_names"]


def option_names() -> tuple[str, ...]:
    """Return the names of the options of `fastshard.open` for tar shards."""
    names = {*(open_fields.__kwdefaults__ or ()), *RemoteOptions.__optional_keys__}
    return tuple(names - {"packed"})


class SampleOrigin(Protocol):
    """The samples of a typed dataset before its own order and mapped functions."""

    def packed(self) -> FieldDataset[Any]:
        """Return them as a dataset of fields, in shards that are opened at first use.

        Evaluates a filter.
        """
        ...

    def is_counted(self) -> bool:
        """Return whether their number is known without reading."""
        ...

    def describe(self) -> Description:
        """Return the text for `repr`; reads local indexes only."""
        ...


class ShardOrigin:
    """The samples of shards, which are opened at first use."""

    def __init__(self, source: Any, options: Mapping[str, Any]) -> None:
        self._packed: FieldDataset[Any] | None = None
        if isinstance(source, FieldDataset):
            self._packed = source if source._plan.is_plain else source[:]
        elif isinstance(source, str | os.PathLike | Sequence):
            source = source_of_paths(cast(Source, source), **select_remote(options))
        else:
            source = as_source(source)
        self.source: Any = source
        self.options = dict(options)

    def packed(self) -> FieldDataset[Any]:
        """Return the samples as a dataset of fields."""
        if self._packed is None:
            self._packed = open_source(self.source, **self.options)
        return self._packed

    def is_counted(self) -> bool:
        """Return whether the number of samples is known without opening shards."""
        return self._packed is not None and self._packed._is_counted()

    def names(self) -> list[str]:
        """Return the names of the shards."""
        if isinstance(self.source, FieldDataset):
            return list(self.source.shards.paths)
        return list(self.source.list_shards())

    def close(self) -> None:
        """Close the shards, if they were opened."""
        if self._packed is not None:
            self._packed.close()

    def describe(self) -> Description:
        """Return the text for `repr`; reads local indexes only."""
        return self.packed()._description()


class FilteredOrigin:
    """The samples of a typed dataset that a function selects, evaluated once.

    Pickled, it holds the positions of the selected samples, not the function.
    """

    def __init__(self, dataset: Any, fn: Callable[[Any], object]) -> None:
        self.dataset = dataset
        self.fn = fn
        self._selected: Any = None  # positions, once evaluated
        self._packed: FieldDataset[Any] | None = None  # once requested

    def packed(self) -> FieldDataset[Any]:
        """Return the selected samples; calls the function on all at the first use."""
        if self._packed is None:
            if self._selected is None:
                samples = self.dataset._iterator(WINDOW, None)
                deque(FilteredIterator(self, (), samples, None), maxlen=0)
            self._packed = self.dataset._packed[self._selected]
        return self._packed

    def is_counted(self) -> bool:
        """Return whether the function was evaluated."""
        return self._selected is not None

    def finish(self, positions: Any) -> None:
        """Keep the positions that were selected in a whole iteration."""
        import numpy as np

        self._selected = np.frombuffer(positions, np.int64)

    def name_sample(self, position: int) -> str:
        """Return the name of a sample of the unfiltered dataset, for errors."""
        try:
            return f"sample {self.dataset.keys()[position]!r}"
        except Exception:  # it must not hide the first error
            return ""

    def describe(self) -> Description:
        """Return the text for `repr`, the same before and after the evaluation."""
        found: Description = self.dataset._description()
        stage = f"filter {describe_stage(self.fn).removeprefix('map ')}"
        order = "; ".join(filter(None, (found.order, found.stages, stage)))
        return found._replace(order=order, stages="")

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardOrigin, (self.packed(), {})
