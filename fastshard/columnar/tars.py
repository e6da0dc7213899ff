"""What a shard of a field holds, by a scan of its headers."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from fastshard._core.scan import scan_sound
from fastshard._core.source import LocalFile
from fastshard.errors import FormatError
from fastshard.formats.columnar import is_ours
from fastshard.formats.tar_writer import BLOCK

__all__ = ["Members", "members_of"]


class Members:
    """The members of a shard by name, and by name and offset.

    Attributes
    ----------
    file : LocalFile
        The shard.
    nbytes : int
        Of the file.
    error : FormatError or None
        Why the scan ended before the archive did.
    is_ours : bool
        Nobody but fastshard wrote to it: offsets are true ones.
    ends : set of int
        Where members end, with their padding, in bytes from the start.
    """

    def __init__(self, file: LocalFile, recorded: int | None) -> None:
        self.file = file
        self.nbytes = file.nbytes
        self.is_ours = recorded is not None and is_ours(file, recorded)
        error: FormatError | None
        table, _, error = scan_sound(file)
        # What comes after all that was acknowledged is cut off by the next writer.
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
        """Return where a member's data are, and how many bytes.

        The original's offsets are no offsets: then the last of that name counts.
        """
        if isinstance(offset, int):
            size = self._sizes.get((name, offset))
            if size is not None:
                return offset, size
        return self._last.get(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.file.close()

    def sizes(self) -> list[tuple[str, int, int]]:
        """Return name, offset and size of each member, in the order of the file."""
        return [(name, at, size) for (name, at), size in self._sizes.items()]


def members_of(path: str, recorded: int | None = None) -> Members:
    """Scan a shard.

    Parameters
    ----------
    path : str
    recorded : int, optional
        Bytes that the index has true offsets of; a fault beyond them is none.

    Raises
    ------
    OSError, FormatError
        It cannot be read at all.
    """
    file = LocalFile(path)
    try:
        return Members(file, recorded)
    except BaseException:
        file.close()
        raise
