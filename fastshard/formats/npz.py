"""Arrays of an ``.npz`` file in memory, without copying those stored as they are."""

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

__all__ = ["MAX_INFLATED", "read_npz"]

MAX_INFLATED = 4 << 30  # bytes, of all compressed arrays of one file; the default
PIECE = 1 << 16  # bytes of input at a time
INFLATED = 1 << 20  # bytes of output at a time
MOST_A_BYTE = 1032  # that deflate makes of one
LOCAL_HEADER = struct.Struct("<4s22xHH")  # magic; bytes of name, of extra field
ENCRYPTED, DESCRIBED, UTF_8 = 1, 8, 0x800  # bits of a member's flags
TINY = 64  # bytes: no array fits
LEAD = 12  # bytes of a .npy file that tell how long its header is
MAX_HEAD = (1 << 20) + LEAD  # bytes of the longest header that is read
LONGEST_DESCRIPTOR = 24  # bytes that may follow a member's data


def read_npz(
    view: memoryview, *, max_array_bytes: int = MAX_INFLATED
) -> dict[str, NDArray[Any]]:
    """Return the arrays of an ``.npz`` file by name.

    An array is decompressed into memory of the size that its header tells, and no
    further.

    Parameters
    ----------
    view : memoryview
        The file. Arrays stored without compression are on it, keep it alive, and
        are writable if it is; the others have read-only memory of their own.
    max_array_bytes : int
        How many bytes the arrays that have to be decompressed may take together.

    Raises
    ------
    FormatError
        It is no such file, holds anything but arrays, or Python objects, or its
        checksums do not fit; or it needs more memory than `max_array_bytes`. Its
        offset is from the view's first byte.
    """
    members, end = _members(view)
    starts = _starts(view, members, end)
    inflated = sum(m.file_size for m in members if m.compress_type)
    if inflated > max_array_bytes:
        raise FormatError(
            f"arrays of {inflated:,} bytes when decompressed, and max_array_bytes "
            f"is {max_array_bytes:,}",
            "<view>",
            0,
        )
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
    from fastshard._core.dataset.npy import array_from_buffer

    data = view[start : start + member.compress_size]
    if member.compress_type == zipfile.ZIP_DEFLATED:
        data = _inflated(data, member, start)
    if len(data) != member.file_size or zlib.crc32(data) != member.CRC:
        raise _fault(f"the checksum of {member.filename!r} does not fit", start)
    try:
        return array_from_buffer(data)
    except FormatError as error:
        raise _no_array(error, member, start) from error


def _no_array(error: FormatError, member: zipfile.ZipInfo, start: int) -> FormatError:
    at = 0 if member.compress_type else error.offset
    return _fault(f"{member.filename!r} is {error.reason}", start + at)


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


class _Inflater:
    """Deflated data, read as from a file; memory is bounded whatever they make."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)

    def readinto(self, out: memoryview) -> int:
        """Fill a buffer as far as the data reach; return how far.

        Raises
        ------
        zlib.error
            The data are damaged.
        """
        done = 0
        while done < len(out) and not self._inflater.eof:
            given = self._inflater.unconsumed_tail
            if not given:
                given = bytes(self._data[self._at : self._at + PIECE])
                self._at += len(given)
            most = min(len(out) - done, INFLATED)
            part = self._inflater.decompress(given, most)
            out[done : done + len(part)] = part
            done += len(part)
            if not part and not given:
                break
        return done

    def has_ended(self) -> bool:
        """Say whether all was read, and nothing follows."""
        return not self.readinto(memoryview(bytearray(1))) and self._inflater.eof


def _inflated(data: memoryview, member: zipfile.ZipInfo, start: int) -> memoryview:
    """Decompress an array: its header first, and then what that tells of."""
    import numpy as np

    name, at = member.filename, member.header_offset
    if member.file_size // MOST_A_BYTE > len(data):
        raise _fault(f"{name!r} cannot have its size", at)
    inflater = _Inflater(data)
    try:
        head = _head(inflater, member.file_size)
        told = _told(head, member, start)
        if told != member.file_size:
            sizes = f"{member.file_size:,} bytes, and its header tells of {told:,}"
            raise _fault(f"{name!r} has not its size: {sizes}", at)
        whole: memoryview = np.empty(told, np.uint8).data
        whole[: len(head)] = head
        got = len(head) + inflater.readinto(whole[len(head) :])
        if got != told or not inflater.has_ended():
            raise _fault(f"{name!r} has not its size", at)
    except zlib.error as error:
        raise _fault(f"{name!r}: {error}", at) from error
    return whole.toreadonly()


def _told(head: bytes, member: zipfile.ZipInfo, start: int) -> int:
    """Return the size of a ``.npy`` file, by its header."""
    from fastshard._core.dataset.npy import npy_size

    try:
        return npy_size(head)
    except FormatError as error:
        raise _no_array(error, member, start) from error


def _head(inflater: _Inflater, size: int) -> bytes:
    """Read as much of a ``.npy`` file as its header takes."""
    lead = bytearray(min(size, LEAD))
    del lead[inflater.readinto(memoryview(lead)) :]
    if len(lead) < LEAD or lead[6] > 3:
        return bytes(lead)  # none, which is told where it is parsed
    width = 2 if lead[6] == 1 else 4
    length = int.from_bytes(lead[8 : 8 + width], "little")
    rest = bytearray(max(0, min(8 + width + length, size, MAX_HEAD) - LEAD))
    del rest[inflater.readinto(memoryview(rest)) :]
    return bytes(lead + rest)
