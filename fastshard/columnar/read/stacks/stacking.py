"""Stacks of fields that are missing or differ in shape."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fastshard.columnar.read.batch import LIST, stack_columns
from fastshard.errors import FieldNotFoundError
from fastshard.formats.stacking.fill_values import cast_fill
from fastshard.formats.stacking.padding import LENGTHS, Padding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard._core.columnar.rows import ColumnSamples, Rows

    Order: TypeAlias = array[int] | NDArray[np.int64]  # positions of samples

__all__ = ["Stacking", "fill_array", "stack_fields"]

HOW_TO_GO_ON = (
    "missing=VALUE fills the rows of such samples, and "
    'scan(..., missing="skip") leaves the samples out'
)


class Stacking(NamedTuple):
    """Options of stacks; see `ShardedDatasetReader.columns`.

    Attributes
    ----------
    padding : Padding
    missing : object
        "error", or the value of rows without an array, or such values by field. Also
        "skip", for which samples were left out before, and None, as "error".
    """

    padding: Padding = Padding()
    missing: Any = "error"

    def check(self, fields: list[str], choices: tuple[str, ...]) -> None:
        """Check the options."""
        if self.is_default:
            return
        self.padding.checked().check_fields(fields)
        if isinstance(self.missing, str) and self.missing not in choices:
            raise ValueError(
                f"missing must be {' or '.join(map(repr, choices))}, or a value, got "
                f"{self.missing!r}: text for one field is missing={{'name': 'text'}}"
            )
        for field in self.missing if isinstance(self.missing, Mapping) else ():
            if field not in fields:
                raise FieldNotFoundError(field, f"missing=: {', '.join(fields)}")

    @property
    def is_default(self) -> bool:
        """True if no option was given."""
        missing = self.missing
        return (
            self.padding.ragged == "error"
            and self.padding.fill is None
            and (missing is None or (isinstance(missing, str) and missing == "error"))
        )

    def has_missing(self, field: str) -> bool:
        """Return whether rows of a field without an array have a value."""
        if isinstance(self.missing, Mapping):
            return field in self.missing
        return self.missing is not None and not isinstance(self.missing, str)

    def missing_value(self, field: str) -> Any:
        """Return the value of rows of a field without an array."""
        values = self.missing
        return values[field] if isinstance(values, Mapping) else values


def stack_fields(
    samples: ColumnSamples,
    order: Order,
    columns: list[Rows],
    stacking: Stacking,
    load: Callable[[], ColumnSamples],
    *,
    is_resident: bool = False,
) -> dict[str, Any]:
    """Return fields of samples, each as one array, or as a list if it is ragged."""
    padding = stacking.padding
    if padding.ragged == "error":
        try:
            return stack_columns(
                samples, order, columns, padding, is_resident=is_resident
            )
        except FieldNotFoundError:
            pass  # reported, or filled, below
    stacks: dict[str, Any] = {}
    lengths: dict[str, Any] = {}
    for rows in columns:
        field = FieldStack(rows, samples, order, stacking)
        stacks[rows.field] = field.build(load, is_resident)
        if padding.has_lengths and field.lengths.shape[1]:  # numbers have no axes
            lengths[rows.field] = field.lengths
    if padding.has_lengths:
        stacks[LENGTHS] = lengths
    return stacks


class FieldStack:
    """Stack of one field of samples.

    Attributes
    ----------
    lengths : ndarray of int64 [samples, axes]
        The true shapes of the arrays, 0 for samples that lack the field.
    """

    lengths: NDArray[np.int64]

    def __init__(
        self, rows: Rows, samples: ColumnSamples, order: Order, stacking: Stacking
    ) -> None:
        self._rows = rows
        self._samples = samples
        self._order = order
        self._stacking = stacking

    def build(
        self, load: Callable[[], ColumnSamples], is_resident: bool
    ) -> NDArray[Any] | list[NDArray[Any]]:
        """Return the stack; see `stack_fields`."""
        import numpy as np

        field = self._rows.field
        try:
            return self._stack(self._order, is_resident)
        except FieldNotFoundError as error:
            if not self._stacking.has_missing(field):
                where = f"{error.where}; {HOW_TO_GO_ON}"
                raise FieldNotFoundError(error.name, where) from None
        order = np.asarray(self._order, np.int64)
        has = np.frombuffer(self._samples.having((field,)), bool)[order]
        return self._fill_missing(order, has, load, is_resident)

    def _stack(
        self, order: Order, is_resident: bool
    ) -> NDArray[Any] | list[NDArray[Any]]:
        """Return the stack of samples that have the field; note their lengths."""
        field, padding = self._rows.field, self._stacking.padding
        is_padded = padding.ragged == "pad"
        found = stack_columns(
            self._samples,
            order,
            [self._rows],
            LIST if is_padded else padding,
            is_resident=is_resident,
        )[field]
        if is_padded:
            self.lengths = _shapes_of(found)
        if is_padded and isinstance(found, list):
            found = padding.stack(
                found, field, key_at=lambda k: self._samples.key_at(int(order[k]))
            )
        return found

    def _fill_missing(
        self,
        order: NDArray[np.int64],
        has: NDArray[np.bool_],
        load: Callable[[], ColumnSamples],
        is_resident: bool,
    ) -> NDArray[Any] | list[NDArray[Any]]:
        """Return the stack with values in the rows of samples that lack the field."""
        import numpy as np

        rows, stacking = self._rows, self._stacking
        value = stacking.missing_value(rows.field)
        if not has.any():
            one = fill_array(self._samples, rows, value, load)
            self.lengths = np.zeros((len(order), one.ndim), np.int64)
            if stacking.padding.ragged == "list":
                return [one.copy() for _ in order]
            return np.repeat(one[np.newaxis], len(order), axis=0)
        found = self._stack(order[has], is_resident)
        first = found[0]
        if stacking.padding.ragged == "pad":
            true, self.lengths = self.lengths, np.zeros((len(order), first.ndim), int)
            self.lengths[has] = true
        fill = cast_fill(value, first.dtype, rows.field, "missing")
        if isinstance(found, list):
            present = iter(found)
            return [
                next(present) if is_there else np.full(first.shape, fill, first.dtype)
                for is_there in has.tolist()
            ]
        stack = np.empty((len(order), *first.shape), first.dtype)
        stack[has] = found
        stack[~has] = fill
        return stack


def fill_array(
    samples: ColumnSamples,
    rows: Rows,
    value: Any,
    load: Callable[[], ColumnSamples],
) -> NDArray[Any]:
    """Return an array of a value in the dtype and shape of the field's first array."""
    import numpy as np

    field = rows.field
    i = samples.having((field,)).find(1)
    if i < 0:
        samples = load()
        (rows,) = samples.columns_of([field])
        i = samples.having((field,)).find(1)
    if i < 0:
        where = f"any sample of {samples.owner.path}: its dtype and shape are unknown"
        raise FieldNotFoundError(field, where)
    like = samples.arrays(i, [rows])[field]
    return np.full(
        like.shape, cast_fill(value, like.dtype, field, "missing"), like.dtype
    )


def _shapes_of(arrays: NDArray[Any] | list[NDArray[Any]]) -> NDArray[np.int64]:
    """Return the shapes of arrays: int64 [arrays, axes]."""
    import numpy as np

    if not isinstance(arrays, list):
        return np.tile(np.array(arrays.shape[1:], np.int64), (len(arrays), 1))
    shapes = [each.shape for each in arrays]
    if len(set(map(len, shapes))) > 1:  # reported when they are padded
        return np.zeros((len(shapes), 0), np.int64)
    return np.array(shapes, np.int64).reshape(len(shapes), -1)
