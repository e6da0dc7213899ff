"""Tar headers, and tar files under construction."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from fastshard._core.io.paging import start_writeback
from fastshard._core.io.source import LocalFile
from fastshard._core.parse.tar import fill_header, scan_tar
from fastshard._core.table.grouping import copy_columns
from fastshard._util.files import AtomicFile
from fastshard.codecs.file_digest import FileDigest
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
END = bytes(2 * BLOCK)  # end of an archive
MAX_OCTAL = 8**11  # the first number that does not fit eleven octal digits
NAME_WIDTH = 100
PREFIX_WIDTH = 155
FILE, PAX = b"0", b"x"
PAX_NAME = b"././@PaxHeader"
PADDING = [bytes(-size % BLOCK) for size in range(BLOCK)]
MARK = b"fastshard"  # owner's name in the headers of columnar datasets
MARK_AT = 265  # its offset in a header, bytes
# The fields after the checksum and the type: an empty link name, magic and version.
TAIL = bytes(100) + b"ustar\x0000"
NAMES_WIDTH = 32 + 32 + 8 + 8  # bytes of owner, group and device, before the prefix


def padding(size: int) -> bytes:
    """Return the zeros between `size` bytes and the next block."""
    return PADDING[size % BLOCK]


def is_marked(block: bytes) -> bool:
    """Return whether a header has this package's mark, or is a block of zeros.

    Members of columnar datasets are marked, to tell them from members that other tools
    append, for which the index has no valid offsets.
    """
    return (
        block == END[:BLOCK] or block[MARK_AT : MARK_AT + len(MARK) + 1] == MARK + b"\0"
    )


class HeaderEncoder:
    """Encoder of member headers with common permissions and modification time."""

    def __init__(self, mode: int, mtime: int, mark: bytes = b"") -> None:
        if not 0 <= mode <= 0o7777:
            raise ValueError(f"mode must be 0 to 0o7777, got {mode:#o}")
        if not 0 <= mtime < MAX_OCTAL:
            raise ValueError(f"mtime must be 0 to {MAX_OCTAL - 1} s, got {mtime}")
        self._owner = b"%07o\0%07o\0%07o\0" % (mode, 0, 0)
        self._mtime = b"%011o\0" % mtime
        self._tail = TAIL + mark.ljust(NAMES_WIDTH, b"\0")
        start = bytes(NAME_WIDTH) + self._owner + bytes(12) + self._mtime
        # The checksum counts its own eight bytes as spaces.
        block = start + b" " * 8 + FILE + self._tail
        self._file_block = block.ljust(BLOCK, b"\0")

    def member(self, name: bytes, size: int) -> bytes:
        """Return the header of a member."""
        if len(name) > NAME_WIDTH or size >= MAX_OCTAL or not name.isascii():
            return self._extended_member(name, size)
        return fill_header(self._file_block, name, size)

    def _extended_member(self, name: bytes, size: int) -> bytes:
        records = b""
        prefix, last = split_name(name) if name.isascii() else (b"", b"")
        if not last:
            records += pax_record(b"path", name)
            last = truncate(name, NAME_WIDTH)  # for readers without pax
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
    """Split a name into ustar's prefix and name; both empty if it does not fit."""
    if len(name) <= NAME_WIDTH:
        return b"", name
    slash = name.rfind(b"/", 0, PREFIX_WIDTH + 1)
    if slash <= 0 or len(name) - slash - 1 > NAME_WIDTH:
        return b"", b""
    return name[:slash], name[slash + 1 :]


def pax_record(key: bytes, value: bytes) -> bytes:
    """Return ``LENGTH key=value`` and a newline; the length includes its own digits."""
    rest = b" %b=%b\n" % (key, value)
    length = len(rest)
    while length != len(rest) + len(b"%d" % length):
        length = len(rest) + len(b"%d" % length)
    return b"%d%b" % (length, rest)


def truncate(name: bytes, size: int) -> bytes:
    """Return at most `size` bytes of UTF-8 text, without a partial character."""
    return name[:size].decode("utf-8", "ignore").encode()


BUFFER = 1 << 20  # bytes of the file's write buffer
WRITEBACK = 4 << 20  # bytes between starts of write-back


class TarBuilder:
    """Tar under construction; it gets its path when `new` is committed.

    Attributes
    ----------
    path : str
        The intended path.
    new : AtomicFile
    keys : set of str
        Keys of the samples so far.
    count : int
        Number of samples so far.
    size : int
        Bytes so far, without the end of the archive.
    digest : FileDigest or None
        Of the whole file, if `hashed`.
    """

    def __init__(self, path: str, *, overwrite: bool, hashed: bool = False) -> None:
        self.path = path
        self.new = AtomicFile(path, overwrite=overwrite, buffering=BUFFER)
        self.digest = FileDigest(self.new.temporary) if hashed else None
        self.keys: set[str] = set()
        self.size = 0
        self._sent = 0  # bytes whose write-back was started
        # The columns of the `ExtentTable` that a scan must return.
        self._offsets, self._sizes, self._name_ends = array("Q"), array("Q"), array("Q")
        self._names = bytearray()

    @property
    def count(self) -> int:
        """Number of samples so far."""
        return len(self.keys)

    def append(
        self, key: str, members: list[tuple[bytes, bytes, Payload]], size: int
    ) -> None:
        """Add a sample."""
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
        if self.size - self._sent > WRITEBACK:
            self._send()

    def _send(self) -> None:
        """Start write-back of the bytes so far, to shorten the sync."""
        end = self.size - BUFFER  # the last bytes may be in it
        start_writeback(self.new.file.fileno(), self._sent, end - self._sent)
        self._sent = end
        if self.digest is not None:
            self.digest.follow(end)

    def complete(self) -> Contents:
        """End the archive, scan it, and check that it has the members written."""
        self.new.file.write(END)
        self.new.file.flush()
        if self.digest is not None:
            self.digest.finish(self.size + len(END))
        with LocalFile(self.new.temporary) as file:
            contents = Contents.of_scan(scan_tar(file))
            nbytes = file.nbytes
        columns = copy_columns(contents.table)
        expected = {
            "offsets": self._offsets.tobytes(),
            "sizes": self._sizes.tobytes(),
            "name_ends": self._name_ends.tobytes(),
            "names": bytes(self._names),
        }
        for name, column in expected.items():
            if columns[name] != column:
                raise FormatError(f"its {name} differ from those written", self.path, 0)
        if nbytes != self.size + len(END):
            reason = f"expected {self.size + len(END):,} bytes, got {nbytes:,}"
            raise FormatError(reason, self.path, nbytes)
        return contents

    def discard(self) -> None:
        """Remove the file, unless it was committed."""
        if self.digest is not None:
            self.digest.close()
        self.new.discard()
