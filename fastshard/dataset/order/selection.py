"""Choosing samples by position, by mask, and by what an index says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fastshard._core.table.order import Order, PositionList, Stride
from fastshard.errors import InfoNotFoundError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard.dataset.shardset import ShardSet

__all__ = ["RAISE", "apply_mask", "collect_mask", "info_column", "select_positions"]

RAISE: Any = object()  # in place of a default: there is none


def select_positions(count: int, key: Any) -> Order:
    """Return the places that a slice, positions or a mask choose.

    Parameters
    ----------
    count : int
        Samples of the dataset.
    key : slice, sequence of int, or array of int or bool

    Raises
    ------
    IndexError
        A position that there is not, or a mask of another length.
    TypeError
        What is neither.
    """
    import numpy as np

    if isinstance(key, slice):
        places = range(count)[key]
        return Stride(max(places.start, 0), places.step, len(places), count)
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
            raise IndexError(f"a mask of {len(wanted):,} for {count:,} samples")
        wanted = np.flatnonzero(wanted)
    return PositionList(_wrapped(wanted, count), count, owned=True)


def apply_mask(mask: NDArray[np.bool_], order: Order | None) -> Order:
    """Return those of a dataset's positions that a mask of all samples has."""
    import numpy as np

    if order is None:
        return PositionList(np.flatnonzero(mask), len(mask), owned=True)
    positions = order.positions(0, len(order))
    return PositionList(positions[mask[positions]], len(mask), owned=True)


def _wrapped(wanted: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Let negative positions count back; refuse those that there are not."""
    import numpy as np

    outside = (wanted >= count) | (wanted < -count) if len(wanted) else wanted != wanted
    if outside.any():
        raise IndexError(
            f"position {wanted[outside][0]} is out of range: there are {count:,}"
        )
    signed = wanted.astype(np.int64)
    signed[signed < 0] += count
    return signed


def collect_mask(
    shards: ShardSet, mask_of: Callable[[int], bytearray]
) -> NDArray[np.bool_]:
    """Return one mask of all samples, made of one of each shard."""
    import numpy as np

    masks = list(shards.map_shards(mask_of, "looking through names"))
    return np.frombuffer(b"".join(masks), bool)


def info_column(
    facts: Iterable[tuple[str, Mapping[str, int], Mapping[str, Any]]],
    name: str,
    default: Any,
) -> NDArray[Any]:
    """Return one value of each sample as an array; see `Dataset.info`."""
    import numpy as np

    values = []
    for key, _, infos in facts:
        found = (info[name] for info in infos.values() if name in info)
        value = next(found, default)
        if value is RAISE:
            missing = getattr(infos, "missing", None)
            if missing is not None:
                raise missing(name)
            raise InfoNotFoundError(name, f"what the index says of sample {key!r}")
        values.append(value)
    if values and all(type(value) in (int, float, bool) for value in values):
        return np.array(values)
    column = np.empty(len(values), object)
    column[:] = values
    return column
