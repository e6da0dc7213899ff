"""Arrays of different shapes: refused, listed or padded by one rule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from fastshard._util.options import check_choice
from fastshard.errors import FastshardError, FieldNotFoundError, RaggedError
from fastshard.formats.stacking.fill_values import cast_fill

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["LENGTHS", "MAX_AXES", "Padding", "Ragged"]

Ragged = Literal["error", "list", "pad"]

LENGTHS = "__lengths__"
MAX_AXES = 64  # of a NumPy array
MAX_GROWTH = 64  # of the largest array of a field by padding
FREE_BYTES = 64 << 20  # of a padded array, whatever it grew from
LIST_THEM = 'ragged="list" returns a list of the arrays'


class Padding(NamedTuple):
    """Handling of a field's arrays that differ in shape; see `fastshard.collate`.

    Attributes
    ----------
    ragged : {"error", "list", "pad"}
    fill : object
        Value of the padding, or values by field; None: zero, NaT of dates and times.
    lengths : bool
        With ``"pad"``, return the true shapes too.
    """

    ragged: Ragged = "error"
    fill: Any = None
    lengths: bool = True

    def checked(self) -> Self:
        """Return the options if they are valid."""
        check_choice("ragged", self.ragged, ("error", "list", "pad"))
        if self.fill is not None and self.ragged != "pad":
            raise ValueError(
                f'fill={self.fill!r:.80} is for ragged="pad", not "{self.ragged}"'
            )
        return self

    def check_fields(self, fields: Collection[str]) -> None:
        """Check the options against the names of the fields."""
        for field in self.filled_fields:
            if field not in fields:
                raise FieldNotFoundError(field, f"fill=: {', '.join(fields)}")
        if self.has_lengths and LENGTHS in fields:
            raise FastshardError(
                f"the field {LENGTHS!r} collides with the lengths: name other fields, "
                "or pass lengths=False"
            )

    @property
    def has_lengths(self) -> bool:
        """True if batches include ``"__lengths__"``, the shapes before padding."""
        return self.lengths and self.ragged == "pad"

    @property
    def filled_fields(self) -> Iterable[str]:
        """The fields that `fill` names."""
        return self.fill if isinstance(self.fill, Mapping) else ()

    def stack(
        self,
        arrays: Sequence[NDArray[Any]],
        field: str,
        allocate: Callable[[tuple[int, ...], Any], Any] | None = None,
        key_at: Callable[[int], str] | None = None,
        name: str | None = None,
    ) -> Any:
        """Return arrays as one array, padded if necessary, or as they are."""
        import numpy as np

        shape = arrays[0].shape
        is_equal = all(array.shape == shape for array in arrays)
        if self.ragged == "list" and not is_equal:
            return arrays
        dtype = _common_dtype(arrays)
        is_stacked = is_equal and dtype is not None and len(shape) < MAX_AXES
        if self.ragged == "list" and not is_stacked:
            return arrays
        if not is_stacked:
            shape = self.padded_shape(arrays, field, key_at)
        stack = (allocate or np.empty)((len(arrays), *shape), dtype)
        if is_stacked:
            return np.stack(arrays, out=stack)
        stack[...] = self._fill_of(field if name is None else name, dtype)
        if len(shape) == 1:
            for row, array in zip(stack, arrays, strict=True):
                row[: len(array)] = array
        else:
            for row, array in zip(stack, arrays, strict=True):
                row[tuple(map(slice, array.shape))] = array
        return stack

    def padded_shape(
        self,
        arrays: Sequence[Any],
        field: str,
        key_at: Callable[[int], str] | None = None,
    ) -> tuple[int, ...]:
        """Return the shape to which arrays, or tensors, are padded."""
        first = arrays[0]
        if first.ndim >= MAX_AXES:
            raise RaggedError(
                f"field {field!r} has {first.ndim} axes, and a stack would have more "
                f"than NumPy allows; {LIST_THEM}"
            )
        shapes = {array.shape for array in arrays}
        kinds = set(map(_kind_of, _dtypes_of(arrays)))
        if self.ragged != "pad" or len(kinds) > 1 or len(set(map(len, shapes))) > 1:
            raise _ragged_error(arrays, field, key_at, self.ragged == "pad")
        shape = tuple(map(max, zip(*shapes, strict=True)))
        nbytes = first.itemsize
        for length in shape:
            nbytes *= length
        if nbytes > FREE_BYTES and nbytes > MAX_GROWTH * max(
            array.nbytes for array in arrays
        ):
            raise RaggedError(
                f"field {field!r} padded to {shape} would take {nbytes:,} bytes a "
                f"sample; {LIST_THEM}"
            )
        return shape

    def value_of(self, name: str) -> Any:
        """Return the value of a field's padding; None: that of its dtype."""
        return self.fill.get(name) if isinstance(self.fill, Mapping) else self.fill

    def _fill_of(self, name: str, dtype: np.dtype[Any]) -> Any:
        """Return the fill of a field as an array without axes."""
        import numpy as np

        value = self.value_of(name)
        if value is None and dtype.kind not in "mMO":
            return np.zeros((), dtype)
        return cast_fill(value, dtype, name, "fill")

    def record(
        self, lengths: dict[str, Any], name: str, shapes: Sequence[tuple[int, ...]]
    ) -> None:
        """Add a field's true shapes, int64 [arrays, axes], if they are requested."""
        import numpy as np

        if self.has_lengths and shapes and shapes[0]:  # numbers have no axes
            lengths[name] = np.array(shapes, np.int64)


def _dtypes_of(arrays: Sequence[Any]) -> set[Any]:
    """Return the dtypes of arrays, which often are one object."""
    first = arrays[0].dtype
    if all(array.dtype is first for array in arrays):
        return {first}
    return {array.dtype for array in arrays}


def _common_dtype(arrays: Sequence[NDArray[Any]]) -> Any:
    """Return the dtype of a stack of arrays; None: they differ."""
    import numpy as np

    dtypes = _dtypes_of(arrays)
    if len(dtypes) == 1:
        return arrays[0].dtype
    if len(set(map(_kind_of, dtypes))) > 1:
        return None
    return np.result_type(*dtypes)


def _kind_of(dtype: Any) -> Any:
    """Return the part of a dtype that must agree in a stack; also for tensors."""
    kind = getattr(dtype, "kind", None)
    if kind is None:
        return dtype
    return kind if kind in "US" else dtype.newbyteorder("=")


def _ragged_error(
    arrays: Sequence[Any],
    field: str,
    key_at: Callable[[int], str] | None,
    is_padded: bool,
) -> RaggedError:
    """Return the error of the first array that differs, or that padding refuses."""
    one = arrays[0]
    pads = [
        each.ndim == one.ndim and _kind_of(each.dtype) == _kind_of(one.dtype)
        for each in arrays
    ]
    k = next(
        k
        for k, each in enumerate(arrays)
        if not pads[k] or (not is_padded and each.shape != one.shape)
    )
    texts = [
        f"{arrays[at].dtype} {tuple(arrays[at].shape)} in sample "
        + (f"{at} of the batch" if key_at is None else repr(key_at(at)))
        for at in (k, 0)
    ]
    advice = 'ragged="pad" pads them' if pads[k] else "their dtypes and axes differ"
    return RaggedError(
        f"field {field!r} is {' and '.join(texts)}: {advice}, {LIST_THEM}"
    )
