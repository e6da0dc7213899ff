"""Values of rows without data: padding, and arrays that samples lack."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["cast_fill", "default_fill", "refuse_fill"]


def default_fill(dtype: np.dtype[Any]) -> Any:
    """Return a dtype's fill for missing data.

    NaN for floats and complex numbers, NaT for dates and times, None for objects. The
    others have no null: it is 0, False, an empty text, and zeros in structures.
    """
    import numpy as np

    if dtype.kind in "fc":
        return math.nan
    if dtype.kind in "mM":
        return np.array("NaT", dtype)
    return None if dtype.kind == "O" else np.zeros((), dtype)


def cast_fill(value: Any, dtype: np.dtype[Any], field: str, option: str) -> Any:
    """Cast a value to an array of a dtype without axes."""
    import numpy as np

    if value is None:
        value = default_fill(dtype)
    if dtype.kind == "O":
        found = np.empty((), object)
        found[()] = value
        return found
    try:
        given = np.asarray(value)
        with np.errstate(all="ignore"):
            if given.dtype == dtype:
                cast = given
            elif dtype.kind == "V":
                cast = np.array(value, dtype)
            else:
                if given.dtype.kind == "c" != dtype.kind:
                    raise ValueError  # astype warns
                cast = given.astype(dtype, casting="unsafe")
                if not _is_represented(given, cast):
                    raise ValueError
    except (ValueError, TypeError, OverflowError):
        cast = None
    if cast is None or cast.ndim:
        raise refuse_fill(value, dtype, field, option)
    return cast


def refuse_fill(value: Any, dtype: Any, field: str, option: str) -> ValueError:
    """Return the error of a value that a dtype cannot represent."""
    return ValueError(
        f"{option}={value!r:.80} cannot be stored in field {field!r} of {dtype}: "
        f"pass another, or one for each field, as {option}={{{field!r}: ...}}"
    )


def _is_represented(given: NDArray[Any], cast: NDArray[Any]) -> bool:
    """Return whether a cast value stands for the given one; floats may be rounded."""
    import numpy as np

    kinds = given.dtype.kind + cast.dtype.kind
    if given.ndim:
        return False
    if cast.dtype.kind in "mM":
        if given.dtype.kind == "f":
            return bool(np.isnan(given)) and bool(np.isnat(cast))
        if kinds not in ("mm", "MM"):
            return False
        return bool(cast == given) or bool(np.isnat(given))
    if cast.dtype.kind in "US" and kinds not in ("UU", "SS"):
        return False
    if cast.dtype.kind in "biu" and given.dtype.kind not in "biuf":
        return False
    if cast.dtype.kind in "fc":
        if given.dtype.kind not in "biufc":
            return False
        same = np.isfinite(given) == np.isfinite(cast)
        return bool(same) and bool(np.isnan(given) == np.isnan(cast))
    return bool(cast.item() == given.item())
