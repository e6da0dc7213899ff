"""Tar headers, and the tar file under construction."""

from __future__ import annotations

from array import array
from types import MappingProxyType
from typing import TYPE_CHECKING

from fastshard._core.io.source import LocalFile
from fastshard._core.parse.tar import scan_tar
from fastshard._core.table.grouping import copy_columns
from fastshard._util.files import AtomicFile
from fastshard.errors import FormatError
from fastshard.index.contents import Contents

if TYPE_CHECKING:
    from fastshard.formats.encoders import Payload

__all__ = [
    "BLOCK",
    "END",
    "MARK",
    "HeaderEncoder",
    "TarBuilder",
    "is_marked",
    "padding",
]


BLOCK = 512  # bytes
END = bytes(2 * BLOCK)  # what closes an archive
MAX_OCTAL = 8**11  # what no longer fits eleven octal digits
NAME_WIDTH = 100
PREFIX_WIDTH = 155
FILE, PAX = b"0", b"x"
PAX_NAME = b"././@PaxHeader"
PADDING = [bytes(-size % BLOCK) for size in range(BLOCK)]
MARK = b"fastshard"  # as the owner's name, in the headers of columnar datasets
MARK_AT = 265  # bytes
# What follows the checksum and the type: an empty link name, magic and version.
TAIL = bytes(100) + b"ustar\x0000"
NAMES_WIDTH = 32 + 32 + 8 + 8  # of the owner's names and the device, before the prefix


def padding(size: int) -> bytes:
    """Return the zeros that follow `size` bytes up to the next block."""
    return PADDING[size % BLOCK]


def is_marked(block: bytes) -> bool:
    """Say whether a header has the mark of who wrote it, or is no header but zeros.

    Members of columnar datasets have it, so that those that others append are told
    apart: the index has no true offsets of them.
    """
    return (
        block == END[:BLOCK] or block[MARK_AT : MARK_AT + len(MARK) + 1] == MARK + b"\0"
    )


class HeaderEncoder:
    """Makes the headers of members that share permissions and time.

    Parameters
    ----------
    mode : int
        Permission bits.
    mtime : int
        Seconds since 1970.
    mark : bytes
        The owner's name, of at most 31 bytes; none without it.

    Raises
    ------
    ValueError
        A header has no room for one of them.
    """

    def __init__(self, mode: int, mtime: int, mark: bytes = b"") -> None:
        if not 0 <= mode <= 0o7777:
            raise ValueError(f"mode is permission bits, not {mode:#o}")
        if not 0 <= mtime < MAX_OCTAL:
            raise ValueError(f"mtime is 0 to {MAX_OCTAL - 1} seconds, not {mtime}")
        self._owner = b"%07o\0%07o\0%07o\0" % (mode, 0, 0)
        self._mtime = b"%011o\0" % mtime
        self._tail = TAIL + mark.ljust(NAMES_WIDTH, b"\0")
        self._file_end = FILE + self._tail + bytes(BLOCK - 157 - len(self._tail))
        # The checksum counts its own eight bytes as spaces.
        parts = self._owner + self._mtime + self._file_end + b" " * 8
        self._constant = sum(parts)

    def member(self, name: bytes, size: int) -> bytes:
        """Return what stands before a member's data.

        Parameters
        ----------
        name : bytes
            UTF-8, no NUL.
        size : int
            Bytes of the data.

        Returns
        -------
        bytes
            One block; more where a pax header is needed: for a name that is not
            ASCII or fits no ustar header, and from 8 GiB on.
        """
        if len(name) > NAME_WIDTH or size >= MAX_OCTAL or not name.isascii():
            return self._long(name, size)
        digits = b"%011o\0" % size
        checksum = self._constant + sum(name) + sum(digits)
        return b"%b%b%b%b%06o\0 %b" % (
            name.ljust(NAME_WIDTH, b"\0"),
            self._owner,
            digits,
            self._mtime,
            checksum,
            self._file_end,
        )

    def _long(self, name: bytes, size: int) -> bytes:
        records = b""
        prefix, last = split_name(name) if name.isascii() else (b"", b"")
        if not last:
            records += pax_record(b"path", name)
            last = cut(name, NAME_WIDTH)  # for readers that know no pax
        if size >= MAX_OCTAL:
            records += pax_record(b"size", b"%d" % size)
            size = 0
        block = self._block(last, size, FILE, prefix)
        if not records:
            return block
        pax = self._block(PAX_NAME, len(records), PAX, b"")
        return pax + records + padding(len(records)) + block

    def _block(self, name: bytes, size: int, kind: bytes, prefix: bytes) -> bytes:
        start = name.ljust(NAME_WIDTH, b"\0") + self._owner
        start += b"%011o\0" % size + self._mtime
        end = (kind + self._tail + prefix).ljust(BLOCK - len(start) - 8, b"\0")
        checksum = sum(start) + sum(end) + 8 * 0x20
        return b"%b%06o\0 %b" % (start, checksum, end)


def split_name(name: bytes) -> tuple[bytes, bytes]:
    """Split a name at a slash into ustar's prefix and name; empty ones if none fits."""
    if len(name) <= NAME_WIDTH:
        return b"", name
    slash = name.rfind(b"/", 0, PREFIX_WIDTH + 1)
    if slash <= 0 or len(name) - slash - 1 > NAME_WIDTH:
        return b"", b""
    return name[:slash], name[slash + 1 :]


def pax_record(key: bytes, value: bytes) -> bytes:
    """Return ``LENGTH key=value`` and a newline; the length counts itself."""
    rest = b" %b=%b\n" % (key, value)
    length = len(rest)
    while length != len(rest) + len(b"%d" % length):
        length = len(rest) + len(b"%d" % length)
    return b"%d%b" % (length, rest)


def cut(name: bytes, size: int) -> bytes:
    """Return the start of UTF-8 text: at most `size` bytes, whole characters."""
    return name[:size].decode("utf-8", "ignore").encode()


BUFFER = 1 << 20  # bytes gathered before they are written


class TarBuilder:
    """A tar that samples are added to; it has no name until `new` is committed.

    Attributes
    ----------
    path : str
        Where it will be.
    new : NewFile
    keys : set of str
        Of the samples in it.
    count : int
        How many samples are in it.
    size : int
        Bytes so far, without the end.
    """

    def __init__(self, path: str, *, overwrite: bool) -> None:
        self.path = path
        self.new = AtomicFile(path, overwrite=overwrite, buffering=BUFFER)
        self.keys: set[str] = set()
        self.size = 0
        # What a scan must find: the columns of an `ExtentTable`.
        self._offsets, self._sizes, self._name_ends = array("Q"), array("Q"), array("Q")
        self._names = bytearray()

    @property
    def count(self) -> int:
        return len(self.keys)

    def append(
        self, key: str, members: list[tuple[bytes, bytes, Payload]], size: int
    ) -> None:
        """Add a sample.

        Parameters
        ----------
        key : str
        members : list of (bytes, bytes, bytes-like)
            Name, header and data of each.
        size : int
            Bytes of all, padding included.
        """
        names = self._names
        end = self.size
        parts: list[Payload] = []
        for name, header, payload in members:
            nbytes = len(payload)
            zeros = padding(nbytes)
            end += len(header)
            self._offsets.append(end)
            self._sizes.append(nbytes)
            names += name
            self._name_ends.append(len(names))
            end += nbytes + len(zeros)
            parts += (header, payload, zeros)
        self.new.file.writelines(parts)
        self.keys.add(key)
        self.size += size

    def complete(self) -> Contents:
        """End the archive, and check that it holds what was written.

        Raises
        ------
        FormatError
            It does not: something else wrote to the file.
        OSError
            It cannot be written.
        """
        self.new.file.write(END)
        self.new.file.flush()
        with LocalFile(self.new.temporary) as file:
            table, skipped, end = scan_tar(file)
            nbytes = file.nbytes
        columns = copy_columns(table)
        expected = {
            "offsets": self._offsets.tobytes(),
            "sizes": self._sizes.tobytes(),
            "name_ends": self._name_ends.tobytes(),
            "names": bytes(self._names),
        }
        for name, column in expected.items():
            if columns[name] != column:
                raise FormatError(f"other {name} than were written", self.path, 0)
        if nbytes != self.size + len(END):
            raise FormatError("another size than was written", self.path, nbytes)
        return Contents(table, end=end, skipped=MappingProxyType(skipped))
