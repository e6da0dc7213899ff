"""Layouts of stored arrays, by their headers: of members of their own, and of packs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from fastshard.columnar.layout.headers import parse_header_length
from fastshard.columnar.layout.packs import MAX_ROW_BYTES, pack_name
from fastshard.columnar.layout.values import VERSION_1, encode_header, encode_pack
from fastshard.errors import FormatError

if TYPE_CHECKING:
    import numpy as np

    from fastshard._core.io.source import LocalFile
    from fastshard._core.table.extents import ExtentTable

__all__ = ["ArrayLayout", "LayoutParser", "StoredPack", "count_arrays"]

FIRST_READ = 256  # bytes of each member
CACHE_SIZE = 10_000  # distinct headers, and layouts


class ArrayLayout(NamedTuple):
    """Dtype and shape of arrays in C order, as headers."""

    number: int  # of the layout in its `LayoutParser`
    header: bytes  # of a member of one array
    template: bytes  # of a pack; see `values.encode_pack`. Empty: not to be packed
    row_size: int  # bytes of an array
    dtype: str
    shape: tuple[int, ...]


class StoredPack(NamedTuple):
    """Pack in a shard."""

    layout: ArrayLayout  # of its rows
    data: int  # offset of the first row in the shard
    rows: int


class LayoutParser:
    """Parser of members' headers, with a cache. Data is not read.

    Attributes
    ----------
    layouts : list of ArrayLayout
        By number.
    """

    def __init__(self) -> None:
        self.layouts: list[ArrayLayout] = []
        self._by_header: dict[bytes, ArrayLayout] = {}
        self._members: dict[tuple[bytes, int], tuple[ArrayLayout, int] | None] = {}

    def parse_member(self, head: bytes, size: int) -> tuple[ArrayLayout, int] | None:
        """Return the layout of a member of one array, and where its data begins."""
        length = parse_header_length(head)
        if isinstance(length, str) or length > len(head):
            return None
        key = head[:length], size
        if key not in self._members:
            if len(self._members) >= CACHE_SIZE:
                self._members.clear()
            self._members[key] = self._parse(*key)
        return self._members[key]

    def _parse(self, header: bytes, size: int) -> tuple[ArrayLayout, int] | None:
        if not 0 < size - len(header) <= MAX_ROW_BYTES:
            return None
        try:
            array = _read_header(header, size)
        except FormatError:
            return None
        if array.dtype.hasobject or not array.flags.c_contiguous:
            return None
        layout = self._find_layout(array.dtype, array.shape)
        return (layout, len(header)) if layout.template else None

    def parse_pack(self, file: LocalFile, at: int, size: int) -> StoredPack | str:
        """Return a pack, or the reason why a member is not one."""
        (head,) = file.read_many([(at, min(size, FIRST_READ))])
        length = parse_header_length(head)
        if isinstance(length, str):
            return length
        if length > size:
            return "not .npy: it ends inside its header"
        if length > len(head):
            (head,) = file.read_many([(at, length)])
        header = head[:length]
        if not header.startswith(VERSION_1):
            return "not a pack: its header is not of version 1.0"
        try:
            array = _read_header(header, size)
        except FormatError as error:
            return error.reason
        except MemoryError:
            return f"a pack of {size:,} bytes does not fit in memory"
        if array.dtype.hasobject:
            return "not a pack: it holds Python objects"
        if not array.flags.c_contiguous or b"'fortran_order': True" in header:
            return "not a pack: it is not in C order"
        if not array.ndim or not array.shape[0] or not array.nbytes:
            return "not a pack: it has no rows"
        layout = self._find_layout(array.dtype, array.shape[1:])
        return StoredPack(layout, at + length, array.shape[0])

    def _find_layout(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> ArrayLayout:
        """Return the layout of a dtype and a shape; a new one gets a number."""
        header = encode_header(dtype, shape, False)
        layout = self._by_header.get(header)
        if layout is None:
            row_size = dtype.itemsize * math.prod(shape)
            layout = ArrayLayout(
                len(self.layouts),
                header,
                encode_pack(dtype, shape) if row_size <= MAX_ROW_BYTES else b"",
                row_size,
                str(dtype),
                shape,
            )
            self.layouts.append(layout)
            self._by_header[header] = layout
        return layout


def _read_header(header: bytes, size: int) -> np.ndarray[Any, Any]:
    """Return an array of a member's type, without its data."""
    import numpy as np

    from fastshard._core.dataset.npy import array_from_buffer

    member = np.zeros(size, np.uint8)  # untouched pages take no memory
    member[: len(header)] = np.frombuffer(header, np.uint8)
    return array_from_buffer(member.data)


def count_arrays(file: LocalFile, table: ExtentTable, stop: int) -> int:
    """Return the number of arrays in the first `stop` members of a shard.

    Each row of a pack counts, and each other member.
    """
    parser = LayoutParser()
    count = stop
    for i in range(stop):
        at, size = table.extent(i)
        if table.name_of(i) == pack_name(at):
            pack = parser.parse_pack(file, at, size)
            if isinstance(pack, StoredPack):
                count += pack.rows - 1
    return count
