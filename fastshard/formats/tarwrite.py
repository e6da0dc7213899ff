"""A tar shard while it is written."""

from __future__ import annotations

from array import array
from types import MappingProxyType
from typing import TYPE_CHECKING

from fastshard._core.borrowed import columns_of
from fastshard._core.scan import scan_tar
from fastshard._core.source import LocalFile
from fastshard._util.files import NewFile
from fastshard.errors import FormatError
from fastshard.formats.tarheader import END, padding
from fastshard.index.contents import Contents

if TYPE_CHECKING:
    from fastshard.encoders import Payload

__all__ = ["GrowingTar"]

BUFFER = 1 << 20  # bytes gathered before they are written


class GrowingTar:
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
        self.new = NewFile(path, overwrite=overwrite, buffering=BUFFER)
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
        columns = columns_of(table)
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
