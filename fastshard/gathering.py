"""Many samples at once: in one buffer, or as one array a field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fastshard._core.gather import gather, positions_of
from fastshard.errors import FastshardError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike, NDArray

    from fastshard._core.shard import Shard
    from fastshard.formats.base import Sample

__all__ = ["Ragged", "column_of", "field_types", "gather_samples"]

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
            shards.append(sample.shard)
            members.append(sample.member(field))
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


def column_of(
    samples: Sequence[Sample],
    field: str,
    told: tuple[Any, Any],
    ragged: Ragged,
    threads: int | None,
) -> Any:
    """Return one field of samples as one array; see `Dataset.columns`."""
    dtype, shape = told
    raw = dtype is None and not field.endswith("npy")
    if raw:
        dtype = "u1"
    shards = [sample.shard for sample in samples]
    members = [sample.member(field) for sample in samples]
    try:
        return _stacked(shards, members, dtype, shape, threads)
    except _UnequalError as error:
        if ragged == "list":
            return [sample.array(field, dtype, shape) for sample in samples]
        raise FastshardError(
            f"field {field!r} of sample {samples[error.place].key!r} is "
            f"{error.found}, and of sample {samples[0].key!r} {error.first}; "
            'ragged="list" gives a list of arrays'
        ) from None


class _UnequalError(Exception):
    def __init__(self, place: int, first: str, found: str) -> None:
        super().__init__(place, first, found)
        self.place = place
        self.first = first
        self.found = found


def _stacked(
    shards: list[Shard],
    members: list[int],
    dtype: Any,
    shape: Any,
    threads: int | None,
) -> NDArray[Any]:
    import numpy as np

    from fastshard._core.arrays import layouts

    if not members:
        return np.empty((0,), dtype)
    kind, lengths, fortran, skips, odd = layouts(shards, members, dtype, shape)
    if odd is not None:
        place, found = odd
        raise _UnequalError(place, f"{kind} {lengths}", found)
    order = lengths[::-1] if fortran else lengths
    stack = np.empty((len(members), *order), kind)
    if stack.nbytes:
        rows = stack.reshape(len(members), -1).view("u1")
        gather(
            shards, positions_of(members, 1 << 62), rows, skips=skips, threads=threads
        )
    if fortran:
        stack = stack.transpose(0, *range(stack.ndim - 1, 0, -1))
    return stack
