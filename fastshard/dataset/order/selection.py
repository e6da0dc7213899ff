"""Selection of samples by position and mask; columns of values from an index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fastshard._core.table.order import Order, PositionList, Stride
from fastshard.errors import InfoNotFoundError
from fastshard.formats.codec import Infos

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "RAISE",
    "apply_mask",
    "check_filter",
    "info_column",
    "select_positions",
]

RAISE: Any = object()  # the default of `info_column` that makes it raise


def select_positions(count: int, key: Any) -> Order:
    """Return the positions that a slice, positions or a mask select."""
    import numpy as np

    if isinstance(key, slice):
        selected = range(count)[key]
        return Stride(max(selected.start, 0), selected.step, len(selected), count)
    wanted = np.asarray(key)
    if wanted.size == 0 and wanted.ndim == 1:
        wanted = wanted.astype(np.int64)
    if wanted.ndim != 1 or wanted.dtype.kind not in "iub":
        raise TypeError(
            "a dataset is indexed by an int, a key, a slice, positions or a mask, "
            f"not {type(key).__name__}"
        )
    if wanted.dtype.kind == "b":
        if len(wanted) != count:
            raise IndexError(f"a mask must have {count:,} values, got {len(wanted):,}")
        wanted = np.flatnonzero(wanted)
    return PositionList(_normalize(wanted, count), count, owned=True)


def check_filter(fn: Callable[..., object]) -> None:
    """Raise TypeError unless a function accepts the arguments of `Dataset.filter`."""
    from inspect import signature

    try:
        taken = signature(fn)
    except ValueError:  # a built-in function without a signature
        return
    try:
        taken.bind("key", {}, {})
    except TypeError as error:
        raise TypeError(
            f"filter calls fn(key, sizes, info), without reading data ({error}); to "
            'select by values pass a mask: labels = ds.columns(range(len(ds)), "cls")'
            '["cls"]; ds[labels == 1]'
        ) from None


def apply_mask(mask: NDArray[np.bool_], order: Order | None) -> Order:
    """Return the positions of a dataset that a mask selects."""
    import numpy as np

    if order is None:
        return PositionList(np.flatnonzero(mask), len(mask), owned=True)
    positions = order.positions(0, len(order))
    return PositionList(positions[mask[positions]], len(mask), owned=True)


def _normalize(wanted: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Return positions as int64, negative ones counted from the end; check bounds."""
    import numpy as np

    outside = (wanted >= count) | (wanted < -count) if len(wanted) else wanted != wanted
    if outside.any():
        raise IndexError(
            f"position {wanted[outside][0]} is out of range for {count:,} samples"
        )
    signed = wanted.astype(np.int64)
    signed[signed < 0] += count
    return signed


def info_column(
    facts: Iterable[tuple[str, Mapping[str, int], Mapping[str, Any]]],
    name: str,
    default: Any,
) -> NDArray[Any]:
    """Return one value of each sample's index entry as an array; see `Dataset.info`."""
    import numpy as np

    values = []
    for key, _, infos in facts:
        found = (info[name] for info in infos.values() if name in info)
        value = next(found, default)
        if value is RAISE:
            if isinstance(infos, Infos):
                raise infos.missing_error(name)
            raise InfoNotFoundError(name, f"the index entries of sample {key!r}")
        values.append(value)
    if values and all(type(value) in (int, float, bool) for value in values):
        return np.array(values)
    column = np.empty(len(values), object)
    column[:] = values
    return column
