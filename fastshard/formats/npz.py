"""Reader of ``.npz`` files in memory, without a copy of uncompressed arrays."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any, cast

from fastshard._util.viewfile import ViewFile
from fastshard.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["read_npz"]

INPUT_BYTES = 1 << 16  # bytes of input per step of decompression
OUTPUT_BYTES = 1 << 20  # bytes of output per step of decompression
MAX_RATIO = 1032  # decompressed bytes for each byte of deflate, at most
LOCAL_HEADER = struct.Struct("<4s22xHH")  # magic; bytes of name, of extra field
ENCRYPTED, HAS_DESCRIPTOR, UTF_8 = 1, 8, 0x800  # bits of a member's flags
TINY = 64  # bytes; a file with an array is larger
PREFIX = 12  # first bytes of a .npy file: magic, version, size of the header
MAX_HEADER = (1 << 20) + PREFIX  # bytes of a .npy header, at most
MAX_DESCRIPTOR = 24  # bytes of a data descriptor, which may follow the data


def read_npz(view: memoryview, *, max_array_bytes: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of an ``.npz`` file by name.

    An array is decompressed into memory of the size in its header, never more.
    """
    members, end = _read_directory(view)
    starts = _locate_members(view, members, end)
    inflated = sum(m.file_size for m in members if m.compress_type)
    if inflated > max_array_bytes:
        raise FormatError(
            f"arrays of {inflated:,} bytes when decompressed, but max_array_bytes "
            f"is {max_array_bytes:,}",
            "<view>",
            0,
        )
    arrays = {}
    for member, start in zip(members, starts, strict=True):
        name = member.filename.removesuffix(".npy")
        if name in arrays:
            raise _zip_error(f"{name!r} is listed twice", member.header_offset)
        arrays[name] = _read_array(view, member, start)
    return arrays


def _zip_error(reason: str, at: int) -> FormatError:
    return FormatError(f"not an .npz file: {reason}", "<view>", at)


def _read_directory(view: memoryview) -> tuple[list[zipfile.ZipInfo], int]:
    """Return the members of the central directory, and its offset in bytes."""
    # In a file without members, zipfile seeks to a negative offset.
    file = ViewFile(view, "<view>") if len(view) > TINY else io.BytesIO(view)
    try:
        with zipfile.ZipFile(cast("IO[bytes]", file)) as archive:
            return archive.infolist(), archive.start_dir
    except (
        zipfile.BadZipFile,
        OSError,
        ValueError,
        OverflowError,
        struct.error,
        NotImplementedError,
    ) as error:
        raise _zip_error(str(error), 0) from error


def _locate_members(
    view: memoryview, members: list[zipfile.ZipInfo], end: int
) -> list[int]:
    """Return the offset of each member's data.

    The members must fill the file up to its directory, at byte `end`, so that none
    overlap and a damaged directory cannot omit one.
    """
    starts = [_data_offset(view, member) for member in members]
    filled = slack = 0
    for start, member in sorted(
        zip(starts, members, strict=True), key=lambda pair: pair[0]
    ):
        if not 0 <= member.header_offset - filled <= slack:
            raise _zip_error(
                "members overlap, or are missing from its directory", filled
            )
        filled = start + member.compress_size
        slack = MAX_DESCRIPTOR if member.flag_bits & HAS_DESCRIPTOR else 0
    if not 0 <= end - filled <= slack:
        raise _zip_error("members overlap, or are missing from its directory", filled)
    return starts


def _read_array(view: memoryview, member: zipfile.ZipInfo, start: int) -> NDArray[Any]:
    from fastshard._core.dataset.npy import array_from_buffer

    data = view[start : start + member.compress_size]
    if member.compress_type == zipfile.ZIP_DEFLATED:
        data = _inflate(data, member, start)
    if len(data) != member.file_size or zlib.crc32(data) != member.CRC:
        raise _zip_error(f"the checksum of {member.filename!r} is wrong", start)
    try:
        return array_from_buffer(data)
    except FormatError as error:
        raise _array_error(error, member, start) from error


def _array_error(
    error: FormatError, member: zipfile.ZipInfo, start: int
) -> FormatError:
    at = 0 if member.compress_type else error.offset
    return _zip_error(f"{member.filename!r} is {error.reason}", start + at)


def _data_offset(view: memoryview, member: zipfile.ZipInfo) -> int:
    """Check a member's local header, and return the offset of its data."""
    at, name = member.header_offset, member.filename
    if member.flag_bits & ENCRYPTED:
        raise _zip_error(f"{name!r} is encrypted", at)
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        kind = member.compress_type
        raise _zip_error(f"{name!r} has compression {kind}, not stored or deflate", at)
    if not 0 <= at <= len(view) - LOCAL_HEADER.size:
        raise _zip_error(f"{name!r} is outside the file", 0)
    magic, name_size, extra_size = LOCAL_HEADER.unpack_from(view, at)
    start: int = at + LOCAL_HEADER.size + name_size + extra_size
    encoding = "utf-8" if member.flag_bits & UTF_8 else "cp437"
    stored_name = view[start - extra_size - name_size : start - extra_size]
    if (
        magic != b"PK\x03\x04"
        or member.compress_size > len(view) - start
        or stored_name != member.orig_filename.encode(encoding)
    ):
        raise _zip_error(f"the local header of {name!r} differs from its listing", at)
    return start


class _Inflater:
    """Stream of decompressed data, read in steps of bounded memory."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)

    def readinto(self, out: memoryview) -> int:
        """Fill a buffer as far as the data reaches, and return the number of bytes."""
        done = 0
        while done < len(out) and not self._inflater.eof:
            deflated = self._inflater.unconsumed_tail
            if not deflated:
                deflated = bytes(self._data[self._at : self._at + INPUT_BYTES])
                self._at += len(deflated)
            limit = min(len(out) - done, OUTPUT_BYTES)
            inflated = self._inflater.decompress(deflated, limit)
            out[done : done + len(inflated)] = inflated
            done += len(inflated)
            if not inflated and not deflated:
                break
        return done

    def has_ended(self) -> bool:
        """Return whether no data is left; reads one byte if there is any."""
        return not self.readinto(memoryview(bytearray(1))) and self._inflater.eof


def _inflate(data: memoryview, member: zipfile.ZipInfo, start: int) -> memoryview:
    """Decompress a .npy file: its header, then as many bytes as the header gives."""
    import numpy as np

    name, at = member.filename, member.header_offset
    if member.file_size // MAX_RATIO > len(data):
        reason = f"{name!r} cannot have its listed size of {member.file_size:,} bytes"
        raise _zip_error(reason, at)
    inflater = _Inflater(data)
    try:
        head = _read_npy_header(inflater, member.file_size)
        size = _npy_size(head, member, start)
        if size != member.file_size:
            sizes = f"{size:,} bytes by its header, listed with {member.file_size:,}"
            raise _zip_error(f"{name!r} has a wrong size: {sizes}", at)
        whole: memoryview = np.empty(size, np.uint8).data
        whole[: len(head)] = head
        got = len(head) + inflater.readinto(whole[len(head) :])
        if got != size or not inflater.has_ended():
            raise _zip_error(f"{name!r} has a wrong size", at)
    except zlib.error as error:
        raise _zip_error(f"{name!r}: {error}", at) from error
    return whole.toreadonly()


def _npy_size(head: bytes, member: zipfile.ZipInfo, start: int) -> int:
    """Return the size of a ``.npy`` file in bytes, from its header."""
    from fastshard._core.dataset.npy import npy_size

    try:
        return npy_size(head)
    except FormatError as error:
        raise _array_error(error, member, start) from error


def _read_npy_header(inflater: _Inflater, size: int) -> bytes:
    """Decompress the header of a ``.npy`` file."""
    prefix = bytearray(min(size, PREFIX))
    del prefix[inflater.readinto(memoryview(prefix)) :]
    if len(prefix) < PREFIX or prefix[6] > 3:
        return bytes(prefix)  # not a header; the parser reports it
    width = 2 if prefix[6] == 1 else 4
    length = int.from_bytes(prefix[8 : 8 + width], "little")
    rest = bytearray(max(0, min(8 + width + length, size, MAX_HEADER) - PREFIX))
    del rest[inflater.readinto(memoryview(rest)) :]
    return bytes(prefix + rest)
