"""Members of a shard file by name and offset, found by a scan."""

from __future__ import annotations

from typing import Self

from fastshard._core.io.source import LocalFile
from fastshard._core.parse.tar import scan_until_fault
from fastshard.columnar.layout.shard_files import is_unmodified
from fastshard.errors import FormatError
from fastshard.formats.tar_writer import BLOCK

__all__ = ["ShardMembers", "scan_members"]


class ShardMembers:
    """Table of a shard's members. A context manager that closes the file.

    Attributes
    ----------
    file : LocalFile
        The shard.
    nbytes : int
        Of the file.
    error : FormatError or None
        The error that ended the scan before the archive's end, unless all committed
        members come before it.
    is_unmodified : bool
        Whether only fastshard has written to the shard: then offsets in rows are
        exact.
    ends : set of int
        Where members end, padding included, in bytes from the start.
    """

    def __init__(self, file: LocalFile, recorded: int | None) -> None:
        self.file = file
        self.nbytes = file.nbytes
        self.is_unmodified = recorded is not None and is_unmodified(file, recorded)
        error: FormatError | None
        table, _, error = scan_until_fault(file)
        # The next writer cuts bytes after the committed members.
        cut = bool(recorded) and error is not None and error.offset >= (recorded or 0)
        self.error = None if cut else error
        self.ends: set[int] = set()
        self._last: dict[str, tuple[int, int]] = {}
        self._sizes: dict[tuple[str, int], int] = {}
        for i in range(len(table)):
            offset, size = table.extent(i)
            name = table.name_of(i)
            self._last[name] = offset, size
            self._sizes[name, offset] = size
            self.ends.add(offset + size + -size % BLOCK)

    def find(self, name: str, offset: object) -> tuple[int, int] | None:
        """Return offset and size of a member, or None if none has this name.

        If no member of the name is at `offset`, the last one of the name counts: the
        offsets that synthefy-dataset-utils writes are inexact.
        """
        if isinstance(offset, int):
            size = self._sizes.get((name, offset))
            if size is not None:
                return offset, size
        return self._last.get(name)

    def size_at(self, name: str, offset: int) -> int | None:
        """Return the size of the member of a name at an offset, or None."""
        return self._sizes.get((name, offset))

    def sizes(self) -> list[tuple[str, int, int]]:
        """Return name, offset and size of each member, in file order."""
        return [(name, at, size) for (name, at), size in self._sizes.items()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def scan_members(path: str, recorded: int | None = None) -> ShardMembers:
    """Open and scan a shard."""
    file = LocalFile(path)
    try:
        return ShardMembers(file, recorded)
    except BaseException:
        file.close()
        raise
