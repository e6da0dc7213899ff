"""Many samples at once: in one buffer, or as one array a field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fastshard._core.gather import gather, positions_of
from fastshard._core.samples import members_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike, NDArray

    from fastshard._core.shard import Shard
    from fastshard.formats.sample import Sample

__all__ = [
    "Ragged",
    "UnequalError",
    "field_types",
    "gather_samples",
    "stacked",
]

Ragged = Literal["error", "list"]
FieldTypes = dict[str, tuple[Any, Any]]


def gather_samples(
    samples: Sequence[Sample],
    out: Any,
    fields: Sequence[str] | None,
    threads: int | None,
) -> NDArray[np.int64]:
    """Copy fields of samples into a buffer; see `Dataset.read_into`."""
    shards: list[Shard] = []
    members: list[int] = []
    for sample in samples:
        for field in sample.keys() if fields is None else fields:
            shard, member = sample.place(field)
            shards.append(shard)
            members.append(member)
    most = 1 << 62  # whatever a shard has, `gather` says
    return gather(shards, positions_of(members, most), out, threads=threads)


def field_types(
    fields: str | Iterable[str] | Mapping[str, DTypeLike | tuple[DTypeLike, Any]],
) -> FieldTypes:
    """Return the dtype and shape of raw values by field; None and None: not told."""
    if isinstance(fields, str):
        fields = (fields,)
    if not isinstance(fields, Mapping):
        return dict.fromkeys(fields, (None, None))
    types: FieldTypes = {}
    for field, told in fields.items():
        if isinstance(told, tuple) and len(told) == 2:
            types[field] = told
        else:
            types[field] = (told, None)
    return types


class UnequalError(Exception):
    """A field has not the same dtype and shape in all samples."""

    def __init__(self, place: int, first: str, found: str) -> None:
        super().__init__(place, first, found)
        self.place = place
        self.first = first
        self.found = found


def stacked(
    samples: list[Sample],
    field: str,
    place: Callable[[tuple[int, ...], Any], NDArray[Any]] | None = None,
    dtype: Any = None,
    shape: Any = None,
    threads: int | None = None,
) -> NDArray[Any]:
    """Return one field of samples as one array.

    Parameters
    ----------
    place : callable, optional
        ``place(shape, dtype)`` returns the array to put it into.
    dtype, shape, threads
        As for `Shard.array` and `Shard.read_into`.

    Raises
    ------
    UnequalError
        It has not the same dtype and shape in all samples.
    """
    import numpy as np

    from fastshard._core.stacking import layouts

    shards, members = members_of(samples, field)
    if not shards:
        return np.empty((0,), dtype)
    kind, lengths, fortran, skips, odd = layouts(shards, members, dtype, shape)
    if odd is not None:
        raise UnequalError(odd[0], f"{kind} {lengths}", odd[1])
    given = None if place is None else place((len(members), *lengths), kind)
    direct = given is not None and given.flags.c_contiguous and not fortran
    order = lengths[::-1] if fortran else lengths
    stack = given if direct else np.empty((len(members), *order), kind)
    assert stack is not None
    if stack.nbytes:
        rows = stack.reshape(len(members), -1).view("u1")
        gather(shards, members, rows, skips=skips, threads=threads)
    if fortran:
        stack = stack.transpose(0, *range(stack.ndim - 1, 0, -1))
    if given is None or direct:
        return stack
    given[...] = stack
    return given
