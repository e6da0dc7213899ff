"""Arrays of an ``.npz`` file in memory, without copying those stored as they are."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any, cast

from fastshard.errors import FormatError
from fastshard.viewfile import ViewFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MAX_INFLATED", "read_npz"]

MAX_INFLATED = 4 << 30  # bytes, of all compressed arrays of one file
MOST_A_BYTE = 1032  # that deflate makes of one
LOCAL_HEADER = struct.Struct("<4s22xHH")  # magic; bytes of name, of extra field
ENCRYPTED, DESCRIBED, UTF_8 = 1, 8, 0x800  # bits of a member's flags
TINY = 64  # bytes: no array fits
LONGEST_DESCRIPTOR = 24  # bytes that may follow a member's data


def read_npz(view: memoryview) -> dict[str, NDArray[Any]]:
    """Return the arrays of an ``.npz`` file by name.

    Parameters
    ----------
    view : memoryview
        The file. Arrays stored without compression are on it, keep it alive, and
        are writable if it is; the others have read-only memory of their own.

    Raises
    ------
    FormatError
        It is no such file, holds anything but arrays, or Python objects, or its
        checksums do not fit. Its offset is from the view's first byte.
    """
    members, end = _members(view)
    starts = _starts(view, members, end)
    inflated = sum(m.file_size for m in members if m.compress_type)
    if inflated > MAX_INFLATED:
        raise _fault(f"{inflated:,} bytes when decompressed", 0)
    arrays = {}
    for member, start in zip(members, starts, strict=True):
        name = member.filename.removesuffix(".npy")
        if name in arrays:
            raise _fault(f"{name!r} is there twice", member.header_offset)
        arrays[name] = _array(view, member, start)
    return arrays


def _fault(reason: str, at: int) -> FormatError:
    return FormatError(f"not an .npz file: {reason}", "<view>", at)


def _members(view: memoryview) -> tuple[list[zipfile.ZipInfo], int]:
    """Read the directory: what it lists, and where it begins."""
    # Of a file of no members zipfile seeks to before its first byte.
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
        raise _fault(str(error), 0) from error


def _starts(view: memoryview, members: list[zipfile.ZipInfo], end: int) -> list[int]:
    """Say where each member's data begin.

    Members must fill the file up to its directory: none may lie on another, and
    a damaged directory may not leave one out.
    """
    starts = [_data_offset(view, member) for member in members]
    filled = slack = 0
    for start, member in sorted(
        zip(starts, members, strict=True), key=lambda pair: pair[0]
    ):
        if not 0 <= member.header_offset - filled <= slack:
            raise _fault("members overlap, or are not listed", filled)
        filled = start + member.compress_size
        slack = LONGEST_DESCRIPTOR if member.flag_bits & DESCRIBED else 0
    if not 0 <= end - filled <= slack:
        raise _fault("members overlap, or are not listed", filled)
    return starts


def _array(view: memoryview, member: zipfile.ZipInfo, start: int) -> NDArray[Any]:
    from fastshard._core.arrays import array_on

    data = view[start : start + member.compress_size]
    if member.compress_type == zipfile.ZIP_DEFLATED:
        data = memoryview(_inflated(data, member))
    if len(data) != member.file_size or zlib.crc32(data) != member.CRC:
        raise _fault(f"the checksum of {member.filename!r} does not fit", start)
    try:
        return array_on(data)
    except FormatError as error:
        at = 0 if member.compress_type else error.offset
        reason = f"{member.filename!r} is {error.reason}"
        raise _fault(reason, start + at) from error


def _data_offset(view: memoryview, member: zipfile.ZipInfo) -> int:
    """Check what a member says of itself, and return where its data begins."""
    at, name = member.header_offset, member.filename
    if member.flag_bits & ENCRYPTED:
        raise _fault(f"{name!r} is encrypted", at)
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _fault(f"{name!r} has compression {member.compress_type}", at)
    if not 0 <= at <= len(view) - LOCAL_HEADER.size:
        raise _fault(f"{name!r} lies outside", 0)
    magic, name_size, extra_size = LOCAL_HEADER.unpack_from(view, at)
    start: int = at + LOCAL_HEADER.size + name_size + extra_size
    encoding = "utf-8" if member.flag_bits & UTF_8 else "cp437"
    same = view[start - extra_size - name_size : start - extra_size]
    if (
        magic != b"PK\x03\x04"
        or member.compress_size > len(view) - start
        or same != member.orig_filename.encode(encoding)
    ):
        raise _fault(f"{name!r} is not where it is said to be", at)
    return start


def _inflated(data: memoryview, member: zipfile.ZipInfo) -> bytes:
    """Decompress data that cannot make more than its size allows."""
    at = member.header_offset
    if member.file_size // MOST_A_BYTE > len(data):
        raise _fault(f"{member.filename!r} cannot have its size", at)
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        whole = inflater.decompress(data, member.file_size + 1)
    except zlib.error as error:
        raise _fault(f"{member.filename!r}: {error}", at) from error
    if len(whole) != member.file_size or not inflater.eof:
        raise _fault(f"{member.filename!r} has not its size", at)
    return whole
