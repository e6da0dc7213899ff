"""Kinds, dtypes and shapes of fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fastshard.errors import FormatError
from fastshard.formats.decoders import kind_of_decoder

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FieldInfo", "collect_field_infos", "merge_field_infos"]

EXAMINED = 8  # samples whose headers are read
HEAD_BYTES = 320  # of a field, read for its header
MAX_HEADER = 1 << 20  # bytes


class FieldInfo(NamedTuple):
    """Kind, dtype and shape of a field; equal infos compare equal.

    Attributes
    ----------
    kind : str
        ``"image"``, ``"text"``, ``"json"``, ``"int"``, ``"float"``, ``"array"`` (npy),
        ``"arrays"`` (npz), ``"msgpack"`` or ``"torch"``: the result of `Sample.decode`
        for the field. ``"bytes"``: it has no decoder. ``"object"``: its decoder is one
        of ``fastshard.open(..., decoders=)``.
    dtype : str, optional
        Of an array, as NumPy writes it: ``"float32"``. None if unknown, or if arrays
        differ.
    shape : tuple of int or None, optional
        Of an array; None stands for a size that differs between samples. None as a
        whole if unknown, or if arrays differ in their number of dimensions.

    Examples
    --------
    >>> import fastshard
    >>> fastshard.FieldInfo("array", "float32", (3, 224, 224)).shape
    (3, 224, 224)
    >>> fastshard.FieldInfo("text") == fastshard.FieldInfo("text")
    True
    """

    kind: str
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None

    def __str__(self) -> str:
        """Return ``array float32 [3, 224, 224]``."""
        parts = [self.kind]
        if self.dtype is not None:
            parts.append(self.dtype)
        if self.shape is not None:
            sizes = ("?" if size is None else str(size) for size in self.shape)
            parts.append(f"[{', '.join(sizes)}]")
        return " ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return the attributes as JSON values.

        Returns
        -------
        dict
            ``kind``, ``dtype`` and ``shape``, a list or None.

        Examples
        --------
        >>> ds.fields["npy"].to_json()
        {'kind': 'array', 'dtype': 'float32', 'shape': [4]}
        """
        shape = None if self.shape is None else list(self.shape)
        return {"kind": self.kind, "dtype": self.dtype, "shape": shape}


def merge_field_infos(
    parts: Iterable[Mapping[str, FieldInfo]],
) -> dict[str, FieldInfo]:
    """Return the fields of several datasets together; differing attributes are unknown.

    The kind of a field that has several kinds is ``"object"``.
    """
    merged: dict[str, FieldInfo] = {}
    for part in parts:
        for field, info in part.items():
            seen = merged.get(field)
            merged[field] = info if seen is None else _merge(seen, info)
    return merged


def _merge(a: FieldInfo, b: FieldInfo) -> FieldInfo:
    shape = None
    if a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape):
        pairs = zip(a.shape, b.shape, strict=True)
        shape = tuple(m if m == n else None for m, n in pairs)
    kind = a.kind if a.kind == b.kind else "object"
    return FieldInfo(kind, a.dtype if a.dtype == b.dtype else None, shape)


def collect_field_infos(
    samples: Iterable[Any],
    fields: Iterable[str],
    kind_of: Callable[[str], str],
    *,
    remote: bool,
) -> dict[str, FieldInfo]:
    """Return infos of fields, with dtypes and shapes from headers of some samples."""
    kinds: dict[str, str] = {}
    found: dict[str, FieldInfo] = {}
    sizes: dict[str, set[int]] = {}
    fields = list(fields)
    for number, sample in enumerate(samples):
        if number >= EXAMINED:
            break
        for field in fields:
            if field not in sample:
                continue
            if field not in kinds:
                kinds[field] = kind_of_decoder(sample.decoder_of(field))
            if not sample.is_array(field):
                continue
            size = _stored_size(sample, field)
            seen = sizes.setdefault(field, set())
            if remote and size in seen:
                continue
            seen.add(size)
            info = _read_info(sample, field, kinds[field], size, remote)
            known = found.get(field)
            found[field] = info if known is None else _merge(known, info)
    return {
        field: found.get(field)
        or FieldInfo(kinds[field] if field in kinds else kind_of(field))
        for field in fields
    }


def _stored_size(sample: Any, field: str) -> int:
    shard, member = sample.place(field)
    size: int = shard.extent_of(member)[1]
    return size


def _read_info(
    sample: Any, field: str, kind: str, size: int, remote: bool
) -> FieldInfo:
    layout = sample.layout_of(field)
    if layout.kind == "raw":
        import numpy as np

        return FieldInfo(kind, str(np.dtype(layout.dtype)), layout.shape)
    try:
        if layout.kind == "npy" and remote:
            array = _array_of_header(sample, field, size)
        else:
            array = sample.array(field)
    except FormatError:  # no array: reading the field tells why
        return FieldInfo(kind)
    return FieldInfo(kind, str(array.dtype), array.shape)


def _array_of_header(sample: Any, field: str, size: int) -> NDArray[Any]:
    """Return zeros of the dtype and shape that a remote field's header has."""
    import numpy as np

    from fastshard._core.dataset.npy import array_from_buffer

    with sample.open(field) as file:
        head = file.read(min(size, HEAD_BYTES))
        length = min(_header_length(head), size, MAX_HEADER)
        if length > len(head):
            head += file.read(length - len(head))
    member = np.zeros(size, np.uint8)  # untouched pages take no memory
    member[: len(head)] = np.frombuffer(head, np.uint8)
    return array_from_buffer(member.data)  # the readers' own check


def _header_length(head: bytes) -> int:
    """Return the bytes of an ``.npy`` header, magic string included."""
    if len(head) < 12:
        return 0
    if head[6] == 1:
        return 10 + int.from_bytes(head[8:10], "little")
    return 12 + int.from_bytes(head[8:12], "little")
