"""Equality of samples: fields by their values, arrays by dtype, shape and items.

NaN equals nothing, itself included, as in NumPy and in dataclasses of floats; a
DataFrame is compared by its own `equals`, for which NaN in one place equals NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastshard.typed.kinds.registry import kind_of_value

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["equal_arrays", "equal_values"]


def equal_values(left: Any, right: Any, *, as_msgpack: bool = False) -> bool:
    """Return whether the values of two fields are equal."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(
            equal_values(value, right[name], as_msgpack=as_msgpack)
            for name, value in left.items()
        )
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        is_one_kind = isinstance(left, list) is isinstance(right, list)
        if len(left) != len(right) or not (is_one_kind or as_msgpack):
            return False
        return all(
            equal_values(one, other, as_msgpack=as_msgpack)
            for one, other in zip(left, right, strict=True)
        )
    if _has_items(left) or _has_items(right):
        return _equal_objects(left, right)
    return bool(left == right)


def equal_arrays(
    left: NDArray[Any], right: NDArray[Any], *, equal_nan: bool = False
) -> bool:
    """Return whether dtypes, shapes and items of two arrays are equal."""
    import numpy as np

    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.kind == "O":
        return all(map(equal_values, left.ravel().tolist(), right.ravel().tolist()))
    equal_nan = equal_nan and left.dtype.kind in "fcmM"
    return bool(np.array_equal(left, right, equal_nan=equal_nan))


def _has_items(value: Any) -> bool:
    """Return whether ``==`` of a value may compare its items."""
    import numpy as np

    if isinstance(value, np.generic):
        return False
    return hasattr(value, "dtype") or kind_of_value(value) is not None


def _equal_objects(left: Any, right: Any) -> bool:
    """Compare arrays, or objects of one type of another library."""
    import numpy as np

    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return equal_arrays(left, right)
    if type(left) is not type(right):
        return False
    kind = kind_of_value(left)
    if kind is not None:
        return kind.equals(left, right)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return bool((left == right).all())
