"""Selection of fields and metadata columns of samples, as batches or one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fastshard.columnar.read.stacks.metadata import ColumnValues, MetadataTable
from fastshard.columnar.read.stacks.stacking import (
    Stacking,
    fill_array,
    stack_fields,
)
from fastshard.errors import FieldNotFoundError
from fastshard.formats.stacking.padding import LENGTHS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard._core.columnar.rows import ColumnSamples, Rows
    from fastshard.columnar.read.stacks.stacking import Order

__all__ = ["StackSelection"]


class StackSelection:
    """Fields and metadata columns to read, and how they are stacked.

    Attributes
    ----------
    names : list of str
        In the order of results.
    fields, metadata : list of str
        The fields and the metadata columns among them.
    """

    def __init__(
        self,
        table: MetadataTable,
        names: str | Iterable[str] | None,
        stacking: Stacking,
        choices: tuple[str, ...],
        load: Callable[[], ColumnSamples],
    ) -> None:
        if names is not None:
            names = [names] if isinstance(names, str) else list(names)
        self.fields, self.metadata = table.split(names)
        self.names = list(dict.fromkeys(self.fields if names is None else names))
        self._table = table
        self._stacking = stacking
        self._load = load
        self._whole: dict[str, list[Any]] = {}  # values by position, in a scan
        self._fills: dict[str, NDArray[Any]] = {}  # of single samples
        self._columns: list[Rows] = []
        stacking.check(self.names, choices)

    def stack(
        self, samples: ColumnSamples, order: Order, is_resident: bool = False
    ) -> dict[str, Any]:
        """Return fields and metadata columns of samples, in the order of `names`."""
        columns = samples.columns_of(self.fields)
        stacks = stack_fields(
            samples,
            order,
            columns,
            self._stacking,
            self._load,
            is_resident=is_resident,
        )
        if not self.metadata:
            return stacks
        for name in self.metadata:
            values = self._values(name, samples, order)
            stacks[name] = values.build(self._stacking)
        ends = [LENGTHS] if LENGTHS in stacks else []
        return {name: stacks[name] for name in (*self.names, *ends)}

    def _values(self, name: str, samples: ColumnSamples, order: Order) -> ColumnValues:
        whole = self._whole.get(name)
        if whole is None:
            return self._table.values(name, samples, order)
        return ColumnValues(
            self._table.columns[name],
            [whole[i] for i in order],
            lambda k: samples.key_at(int(order[k])),
        )

    def begin_scan(
        self, samples: ColumnSamples, positions: Order | None
    ) -> Order | None:
        """Load the metadata columns; return the positions of samples to read."""
        import numpy as np

        self._whole = {name: self._table.load(name) for name in self.metadata}
        self._columns = samples.columns_of(self.fields)
        if not isinstance(self._stacking.missing, str):
            return positions
        if self._stacking.missing != "skip":
            return positions
        has = np.frombuffer(samples.having(tuple(self.fields)), bool).copy()
        for values in self._whole.values():
            has &= np.fromiter((value is not None for value in values), bool, len(has))
        if positions is None:
            return np.flatnonzero(has)
        order = np.asarray(positions, np.int64)
        kept: NDArray[np.int64] = order[has[order]]
        return kept

    def completer(
        self, samples: ColumnSamples
    ) -> Callable[[int, dict[str, Any]], dict[str, Any]] | None:
        """Return the function that completes a sample, or None.

        Without `missing`, a sample has no entry for what it lacks.
        """
        missing = self._stacking.missing
        if not self.metadata and (missing is None or missing == "skip"):
            return None
        return lambda i, arrays: self._complete(samples, i, arrays)

    def _complete(
        self, samples: ColumnSamples, i: int, arrays: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the arrays of a sample with its values, and fills for missing ones."""
        for rows in self._columns:
            if rows.field not in arrays and not self._is_left_out(rows.field):
                arrays[rows.field] = self._fill_of(samples, rows, i)
        for name in self.metadata:
            value = self._whole[name][i]
            if value is None and self._is_left_out(name):
                continue
            column = ColumnValues(
                self._table.columns[name], [value], lambda k: samples.key_at(i)
            )
            found = column.build(self._stacking)
            arrays[name] = found[0] if isinstance(found, list) else found[0].item()
        return arrays

    def _is_left_out(self, name: str) -> bool:
        missing = self._stacking.missing
        if self._stacking.has_missing(name):
            return False
        return not (isinstance(missing, str) and missing == "error")

    def _fill_of(self, samples: ColumnSamples, rows: Rows, i: int) -> NDArray[Any]:
        """Return a fill array for a sample without one."""
        if not self._stacking.has_missing(rows.field):
            where = f"sample {samples.key_at(i)!r} of {samples.owner.path}"
            raise FieldNotFoundError(rows.field, f"{where}; missing=VALUE gives one")
        fill = self._fills.get(rows.field)
        if fill is None:
            value = self._stacking.missing_value(rows.field)
            fill = fill_array(samples, rows, value, self._load)
            self._fills[rows.field] = fill
        return fill.copy()
