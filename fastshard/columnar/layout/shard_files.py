"""Open shards of a columnar dataset: a bounded cache, by field and number."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock

from fastshard._core.columnar.column_file import ColumnFile, open_column
from fastshard._core.dataset.npy import LayoutCache
from fastshard._core.io.paging import PageRing
from fastshard._core.io.source import LocalFile, Source
from fastshard._core.parse.tar import scan_until_fault
from fastshard._core.table.extents import ExtentTable
from fastshard.columnar.layout.schema import shard_name
from fastshard.errors import ClosedError, FormatError
from fastshard.formats.tar import Mode
from fastshard.formats.tar_writer import BLOCK, END, is_marked

__all__ = ["REPLACED", "ColumnFiles", "is_unmodified"]

MAPPED_AT_ONCE = 64  # shards; others are mapped after some reads
REPLACED = -1  # recorded size of a shard that a compaction has replaced


def is_unmodified(file: LocalFile, recorded: int) -> bool:
    """Return whether only fastshard's writer has appended to a shard.

    The file of another writer never ends where the archive's own end block does.
    """
    if file.nbytes == recorded + len(END) or file.nbytes < recorded + BLOCK:
        return True
    (block,) = file.read_many([(recorded, BLOCK)])
    return len(block) < BLOCK or is_marked(block)  # short: a writer has truncated it


def _size_of_replaced(path: str) -> int | None:
    """Return the size of our replaced shard without its end; None for others.

    It was complete when it was replaced, and members that other writers had appended
    were registered by then.
    """
    with LocalFile(path) as file:
        (first,) = file.read_many([(0, BLOCK)])
        is_ours = is_marked(first) and any(first)
        return max(file.nbytes - len(END), 0) if is_ours else None


def _scan(path: str) -> tuple[ExtentTable, FormatError | None]:
    """Return a tar's sound members, and the error that ended the scan, if any."""
    with LocalFile(path) as file:
        table, _, fault = scan_until_fault(file)
        return table, fault


class ColumnFiles:
    """Cache of open shards, by field and shard number.

    A shard is opened at its first use. At the limit the shard opened first is
    released; readers in the middle of a call, and arrays, keep its mapping. It is
    opened again only if it is the same file, which may have grown.

    Attributes
    ----------
    sizes : mapping or None
        Results of `recorded` for all shards that have one, used instead of it.
    """

    def __init__(
        self,
        root: str,
        folders: Mapping[str, str],
        *,
        mode: Mode,
        limit: int,
        recorded: Callable[[str, int], int | None],
        ring: PageRing | None = None,
    ) -> None:
        self.root = root
        self.folders = dict(folders)
        self.mode = mode
        self.limit = max(1, limit)
        self.closed = False
        self.ring = ring
        self.sizes: Mapping[tuple[str, int], int] | None = None
        self._recorded = recorded
        self._layouts: dict[str, LayoutCache] = {}  # of arrays, by field
        self._files: dict[tuple[str, int], ColumnFile] = {}  # oldest first
        # Identities of released files, and whether the index had exact offsets.
        self._released: dict[
            tuple[str, int], tuple[tuple[int, int, int, int], bool]
        ] = {}
        self._lock = Lock()

    def path_of(self, field: str, shard: int) -> str:
        """Return the path of a shard."""
        return os.sep.join((self.root, self.folders[field], shard_name(shard)))

    def file(self, field: str, shard: int) -> ColumnFile:
        """Return an open shard."""
        key = field, shard
        file = self._files.get(key)
        if file is not None:
            return file
        with self._lock:
            file = self._files.get(key)
            if file is not None:
                return file
            self._check_open()
            file = self._open_shard(field, shard)
            self._check_open()  # `close` waits for the lock
            if key in self._released:
                file.check_same(*self._released[key])
            while len(self._files) >= self.limit:
                self._release(next(iter(self._files)))
            self._files[key] = file
        return file

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"the dataset {self.root} is closed")

    def _release(self, key: tuple[str, int]) -> None:
        """Release an open shard, under the lock."""
        file = self._files.pop(key)
        self._released.setdefault(key, (file.identity, file.is_exact))
        file.release()

    def _open_shard(self, field: str, shard: int) -> ColumnFile:
        path = self.path_of(field, shard)
        if self.sizes is None:
            recorded = self._recorded(field, shard)
        else:
            recorded = self.sizes.get((field, shard))
        layouts = self._layouts.get(field)
        try:
            if recorded == REPLACED:
                recorded = _size_of_replaced(path)
            file = open_column(
                path,
                shard,
                self.mode,
                recorded,
                is_unmodified,
                _scan,
                self.ring,
                unmapped=len(self._files) >= MAPPED_AT_ONCE,
                layouts=layouts,
            )
        except FileNotFoundError:
            reason = (
                "the index names a shard that does not exist; if the dataset was "
                "compacted, call refresh()"
            )
            raise FileNotFoundError(errno.ENOENT, reason, path) from None
        if layouts is None:
            self._layouts[field] = file.layouts
        return file

    def opener(self, field: str) -> Callable[[int], ColumnFile]:
        """Return a function that opens the shards of a field by number."""
        return partial(self.file, field)

    def sources(self) -> list[Source]:
        """Return the sources of the open shards."""
        with self._lock:
            return [file.source for file in self._files.values()]

    def release(self) -> None:
        """Release all shards. Calls under way finish, and arrays stay valid."""
        with self._lock:
            for key in list(self._files):
                self._release(key)

    def renew(self) -> None:
        """Release all shards, which may be other files in a new state of the index."""
        self.release()
        self._released.clear()

    def reset_after_fork(self) -> None:
        """Renew, with a new lock: a thread may have held the old one."""
        self._lock = Lock()
        self.renew()

    def close(self) -> None:
        """Release all shards and refuse to open more."""
        self.closed = True
        self.release()
