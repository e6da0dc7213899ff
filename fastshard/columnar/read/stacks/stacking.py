"""Stacks of fields that samples lack, or whose arrays differ in shape."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from fastshard._util.options import check_choice
from fastshard.columnar.layout.fill_values import cast_fill
from fastshard.columnar.read.batch import MAX_AXES, stack_columns
from fastshard.dataset.sequence.batch import Ragged
from fastshard.errors import FastshardError, FieldNotFoundError, RaggedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard._core.columnar.rows import ColumnSamples, Rows

    Order: TypeAlias = array[int] | NDArray[np.int64]  # positions of samples

__all__ = ["LENGTHS", "Stacking", "fill_array", "stack_fields"]

LENGTHS = "__lengths__"
MAX_GROWTH = 64  # of the largest array of a field by padding
FREE_BYTES = 64 << 20  # of a padded array, whatever it grew from
HOW_TO_GO_ON = (
    "missing=VALUE fills the rows of such samples, and "
    'scan(..., missing="skip") leaves the samples out'
)


class Stacking(NamedTuple):
    """Options of stacks; see `ShardedDatasetReader.columns`.

    Attributes
    ----------
    ragged : {"error", "list", "pad"}
    fill : object
        Value of padding, or values by field; None: that of the dtype.
    missing : object
        "error", or the value of rows without an array, or such values by field. Also
        "skip", for which samples were left out before, and None, as "error".
    lengths : bool
        Add the true shapes of the arrays.
    """

    ragged: Literal["error", "list", "pad"] = "error"
    fill: Any = None
    missing: Any = "error"
    lengths: bool = False

    def check(self, fields: list[str], choices: tuple[str, ...]) -> None:
        """Check the options.

        Parameters
        ----------
        fields : list of str
            The fields to read.
        choices : tuple of str
            What `missing` may be if it is a str.

        Raises
        ------
        ValueError, TypeError
            An option is invalid.
        FieldNotFoundError
            `fill` or `missing` names a field that is not read.
        FastshardError
            A field is named as the lengths are.
        """
        if self.is_default:
            return
        check_choice("ragged", self.ragged, ("error", "list", "pad"))
        if isinstance(self.missing, str) and self.missing not in choices:
            raise ValueError(
                f"missing must be {' or '.join(map(repr, choices))}, or a value, got "
                f"{self.missing!r}: text for one field is missing={{'name': 'text'}}"
            )
        for name, values in (("fill", self.fill), ("missing", self.missing)):
            for field in values if isinstance(values, Mapping) else ():
                if field not in fields:
                    raise FieldNotFoundError(field, f"{name}=: {', '.join(fields)}")
        if self.lengths and self.ragged != "pad":
            raise ValueError('lengths=True is for ragged="pad"')
        if self.lengths and LENGTHS in fields:
            raise FastshardError(
                f"the field {LENGTHS!r} collides with the lengths: name other fields"
            )

    @property
    def is_default(self) -> bool:
        """True if no option was given."""
        missing = self.missing
        return (
            self.ragged == "error"
            and (missing is None or (isinstance(missing, str) and missing == "error"))
            and self.fill is None
            and not self.lengths
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

    def fill_value(self, field: str) -> Any:
        """Return the value of a field's padding; None: that of its dtype."""
        return self.fill.get(field) if isinstance(self.fill, Mapping) else self.fill


def stack_fields(
    samples: ColumnSamples,
    order: Order,
    columns: list[Rows],
    stacking: Stacking,
    load: Callable[[], ColumnSamples],
    *,
    is_resident: bool = False,
) -> dict[str, Any]:
    """Return fields of samples, each as one array, or as a list if it is ragged.

    Parameters
    ----------
    samples, order, columns, is_resident
        As for `stack_columns`.
    stacking : Stacking
    load : callable
        Returns all samples of the dataset.

    Raises
    ------
    FieldNotFoundError
        A sample lacks a field without a value for it.
    RaggedError
        A field is ragged, or cannot be padded.
    ValueError
        A value cannot be stored in the dtype of its field.
    """
    if stacking.ragged == "error" and not stacking.lengths:
        try:
            return stack_columns(
                samples, order, columns, "error", is_resident=is_resident
            )
        except FieldNotFoundError:
            pass  # reported, or filled, below
    stacks: dict[str, Any] = {}
    lengths: dict[str, Any] = {}
    for rows in columns:
        field = FieldStack(rows, samples, order, stacking)
        stacks[rows.field] = field.build(load, is_resident)
        if stacking.lengths:
            lengths[rows.field] = field.lengths
    if stacking.lengths:
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
            stack = self._stack(self._order, is_resident)
        except FieldNotFoundError as error:
            if not self._stacking.has_missing(field):
                where = f"{error.where}; {HOW_TO_GO_ON}"
                raise FieldNotFoundError(error.name, where) from None
        else:
            if self._stacking.lengths:
                self.lengths = _shapes_of(stack)
            return self._pad(stack) if isinstance(stack, list) else stack
        order = np.asarray(self._order, np.int64)
        has = np.frombuffer(self._samples.having((field,)), bool)[order]
        return self._fill_missing(order, has, load, is_resident)

    def _stack(
        self, order: Order, is_resident: bool
    ) -> NDArray[Any] | list[NDArray[Any]]:
        ragged: Ragged = "error" if self._stacking.ragged == "error" else "list"
        stacks = stack_columns(
            self._samples, order, [self._rows], ragged, is_resident=is_resident
        )
        return stacks[self._rows.field]

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
            if stacking.lengths:
                self.lengths = np.zeros((len(order), one.ndim), np.int64)
            if stacking.ragged == "list":
                return [one.copy() for _ in order]
            return np.repeat(one[np.newaxis], len(order), axis=0)
        found = self._stack(order[has], is_resident)
        if stacking.lengths:
            self.lengths = np.zeros((len(order), found[0].ndim), np.int64)
            self.lengths[has] = _shapes_of(found)
        if isinstance(found, list) and stacking.ragged == "pad":
            found = self._pad(found, order[has])
        first = found[0]
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

    def _pad(
        self, arrays: list[NDArray[Any]], order: Order | None = None
    ) -> NDArray[Any] | list[NDArray[Any]]:
        """Return ragged arrays padded to one shape, or as they are."""
        import numpy as np

        if self._stacking.ragged != "pad":
            return arrays
        field, first = self._rows.field, arrays[0]
        dtype, axes = first.dtype, first.ndim
        for k, each in enumerate(arrays):
            found = each.dtype  # of most the same object
            if (found is not dtype and found != dtype) or each.ndim != axes:
                raise self._unpaddable(0, k, arrays, order)
        if first.ndim >= MAX_AXES:
            raise RaggedError(
                f"field {field!r} has {first.ndim} axes, and a stack would have more "
                f'than NumPy allows; ragged="list" returns a list of arrays'
            )
        shape: tuple[int, ...]
        if axes == 1:
            shape = (max(map(len, arrays)),)
        else:
            shape = tuple(_shapes_of(arrays).max(axis=0).tolist())
        nbytes = first.itemsize
        for length in shape:
            nbytes *= length
        if nbytes > FREE_BYTES and nbytes > MAX_GROWTH * max(
            each.nbytes for each in arrays
        ):
            raise RaggedError(
                f"field {field!r} padded to {shape} would take {nbytes:,} bytes a "
                'sample; ragged="list" returns a list of arrays'
            )
        value = self._stacking.fill_value(field)
        fill = cast_fill(value, first.dtype, field, "fill")
        stack = np.full((len(arrays), *shape), fill, first.dtype)
        if len(shape) == 1:
            for row, each in zip(stack, arrays, strict=True):
                row[: len(each)] = each
        else:
            for row, each in zip(stack, arrays, strict=True):
                row[tuple(map(slice, each.shape))] = each
        return stack

    def _unpaddable(
        self, i: int, k: int, arrays: list[NDArray[Any]], order: Order | None
    ) -> RaggedError:
        positions = self._order if order is None else order
        texts = [
            f"of sample {self._samples.key_at(int(positions[at]))!r} "
            f"{arrays[at].dtype} {arrays[at].shape}"
            for at in (k, i)
        ]
        return RaggedError(
            f"field {self._rows.field!r} is {' and '.join(texts)}: arrays are padded "
            'if their dtypes and numbers of axes are equal; ragged="list" returns a '
            "list of arrays"
        )


def fill_array(
    samples: ColumnSamples,
    rows: Rows,
    value: Any,
    load: Callable[[], ColumnSamples],
) -> NDArray[Any]:
    """Return an array of a value, with dtype and shape of the field's first array.

    Raises
    ------
    FieldNotFoundError
        No sample of the dataset has the field.
    ValueError
        The value cannot be stored in the dtype.
    """
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
