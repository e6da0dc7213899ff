"""Shards of one field in a writer: committed lengths, and the shard that grows."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from fastshard._core.dataset.npy import MemberBuffer
from fastshard._core.io.source import LocalFile
from fastshard._core.parse.tar import scan_until_fault
from fastshard.columnar.layout.packs import row_column
from fastshard.columnar.layout.schema import MAX_SHARD, quote_name, shard_name
from fastshard.columnar.layout.shard_limit import ShardLimit
from fastshard.columnar.layout.stored_arrays import count_arrays
from fastshard.columnar.write.append_file import (
    OPEN_FLAGS,
    AppendFile,
    SyncQueue,
    cut_file,
    is_zero_from,
    new_buffer,
    sync_path,
)

__all__ = ["Column", "ShardLength"]

TOO_MANY_FILES = {errno.EMFILE, errno.ENFILE}


class ShardLength(NamedTuple):
    """Recorded length of a shard file: a row of ``fastshard_shards``.

    With ``nbytes == -1`` the shard is condemned: the file is to be removed, and
    `members` is the first generation of readers that does not need it (0: no reader
    ever did).
    """

    nbytes: int  # of complete members, without the archive's end; -1: condemned
    members: int  # arrays in those bytes, superseded ones included

    @property
    def is_condemned(self) -> bool:
        """True if the file is to be removed."""
        return self.nbytes < 0


EMPTY = ShardLength(0, 0)


class Column:
    """Shards of a field, and the append position in the last one.

    Attributes
    ----------
    file : AppendFile or None
        The shard that grows.
    buffer : MemberBuffer
        The members of `file` that are not written yet. Its ``left`` is the number of
        arrays that still fit, 0 without a file; at 0, and where its ``end`` reaches
        its ``max_end``, `open_next_shard` is due.
    records : dict of int to ShardLength
        Committed state by shard number.
    pending : dict of int to ShardLength
        State to be committed next. The bytes are written.
    foreign : set of int
        Shards of other programs: rows refer to them, but they have no record.
    scans : dict of int to ShardLength
        Lengths of foreign shards, found by a scan.
    unsound : set of int
        Shards that must not be appended to.
    in_handles : set of int
        Shards that an open `ShardHandle` writes.
    highest : int
        The highest number in use, -1 for none.
    folder_changed : bool
        Whether the directory must be synced.
    num_shards, new_count : int
        ``fields.num_shards``, committed and to be committed; -1 if unknown.
    offset_column, shard_column, row_column : str
        The field's columns of ``samples``, quoted for SQL. The last exists if the field
        is packed.
    """

    def __init__(
        self,
        name: str,
        folder: str,
        limit: ShardLimit,
        sync_queue: SyncQueue,
        *,
        allow_pickle: bool = False,
        packs: bool = False,
    ) -> None:
        self.name = name
        self.folder = folder
        self.limit = limit
        names = (f"{name}_offset", f"{name}_shard", row_column(name))
        self.offset_column, self.shard_column, self.row_column = map(quote_name, names)
        self.buffer = new_buffer(allow_pickle=allow_pickle, packs=packs)
        self.records: dict[int, ShardLength] = {}
        self.pending: dict[int, ShardLength] = {}
        self.foreign: set[int] = set()
        self.unsound: set[int] = set()
        self.scans: dict[int, ShardLength] = {}
        self.in_handles: set[int] = set()
        self.highest = -1
        self.folder_changed = False
        self.num_shards = self.new_count = -1
        self.file: AppendFile | None = None
        self._full_file: AppendFile | None = None  # complete, not in the queue yet
        self._sync_queue = sync_queue

    @property
    def is_packed(self) -> bool:
        """True if rows of ``samples`` may refer to rows of packs."""
        return self.buffer.has_rows

    @is_packed.setter
    def is_packed(self, is_packed: bool) -> None:
        self.buffer.has_rows = is_packed

    @property
    def selected_row(self) -> str:
        """SQL of a row in a pack, for a query of ``samples``."""
        return self.row_column if self.is_packed else "NULL"

    @property
    def cleared_row(self) -> str:
        """SQL that removes a row in a pack, for an update of ``samples``."""
        return f", {self.row_column} = NULL" if self.is_packed else ""

    def path(self, number: int) -> str:
        """Return the path of a shard."""
        return os.path.join(self.folder, shard_name(number))

    def next_number(self) -> int:
        """Return the number after the last shard."""
        last = self.highest
        if last >= 0 and not self.has_shard(last):  # its record is of 0 bytes
            last -= 1
        number = max(last, *self.in_handles, -1) + 1
        while self.has_shard(number):  # another program made it in the meantime
            number += 1
        if number > MAX_SHARD:
            raise ValueError(f"field {self.name!r}: shard numbers end at {MAX_SHARD:,}")
        return number

    def has_shard(self, number: int) -> bool:
        """Return whether a shard exists; leftovers of a crash do not count."""
        if number in self.foreign or number in self.pending:
            return True
        if self.file is not None and self.file.number == number:
            return True
        record = self.records.get(number)
        if record is not None:
            return record != EMPTY
        return os.path.lexists(self.path(number))

    def is_condemned(self, number: int) -> bool:
        """Return whether a shard is to be removed; readers may still open it."""
        record = self.pending.get(number, self.records.get(number))
        return record is not None and record.is_condemned

    def live_shards(self) -> set[int]:
        """Return the shards that rows may refer to: all that are not condemned."""
        records = self.records.items()
        return {n for n, record in records if not record.is_condemned} | self.foreign

    def open_next_shard(self) -> None:
        """Make room in the buffer: continue the last shard, or begin another."""
        if self.file is not None:
            self.finish()
            last = None
        else:
            last = self._find_last_end()
        if last is None:
            number, last = self.next_number(), EMPTY
        else:
            number = self.highest
        file = self.open_file(self.path(number), number, self.buffer, last.nbytes)
        self.folder_changed = self.folder_changed or file.is_new
        self.highest = max(self.highest, number)
        self.file = file
        self.buffer.number = number
        self.buffer.left = self.limit.arrays - last.members
        self.buffer.max_end = self.limit.nbytes

    def open_file(
        self, path: str, number: int, buffer: MemberBuffer, start: int
    ) -> AppendFile:
        """Open a shard file; if too many are open, sync and close queued ones first."""
        try:
            return AppendFile(path, number, buffer, start)
        except OSError as error:
            if error.errno not in TOO_MANY_FILES:
                raise
        self._sync_queue.finish()
        return AppendFile(path, number, buffer, start)

    def adopt(self, number: int) -> None:
        """Add a pending record for a foreign shard, if it may be appended to.

        Append nothing before that record is committed: rows of other programs find
        members by name, and would find new ones.
        """
        record = self.find_end(number)
        if record is not None:
            sync_path(self.path(number))
            self.pending[number] = record

    def write(self) -> None:
        """Write the buffered members."""
        if self.file is not None:
            self.file.write()

    def store(self) -> None:
        """Write the buffered members and an archive's end; queue the file for sync."""
        self._queue_full_file()
        file = self.file
        if file is None:
            return
        self.buffer.end_pack()
        members = self.limit.arrays - self.buffer.left
        record = ShardLength(self.buffer.end, members)
        if record == self.records.get(file.number):
            return
        file.complete()
        self.pending[file.number] = record
        self._sync_queue.add(file, close=False)

    def finish(self) -> None:
        """Complete the shard that grows; queue its file for sync and closing."""
        self._queue_full_file()
        file = self.file
        if file is None:
            return
        file.complete()
        members = self.limit.arrays - self.buffer.left
        self.pending[file.number] = ShardLength(self.buffer.end, members)
        # The order matters if an interrupt comes between: a file that leaves
        # `self.file` takes no more members, and a pending record's file is synced.
        self.buffer.left = 0
        self._full_file, self.file = file, None
        self._queue_full_file()
        self.buffer.begin(0)

    def _queue_full_file(self) -> None:
        """Queue the full file; after an interrupt it may be queued once more."""
        if self._full_file is not None:
            self._sync_queue.add(self._full_file, close=True)
            self._full_file = None

    def mark_committed(self) -> None:
        """Move the pending records to the committed ones."""
        self.records.update(self.pending)
        self.foreign.difference_update(self.pending)
        self.pending.clear()
        self.num_shards = self.new_count

    def count_shards(self) -> int:
        """Return the number of shards that hold a member."""
        records = {**self.records, **self.pending}
        filled = [
            n for n, record in records.items() if record.nbytes > 0 < record.members
        ]
        return len(self.foreign.union(filled))

    def discard(self, records: dict[int, ShardLength] | None) -> None:
        """Cut the shards to `records` and close the files."""
        full, self._full_file = self._full_file, None
        if full is not None:
            full.close_as_is()
        file, self.file = self.file, None
        self.buffer.left = 0
        if file is not None:
            if records is None:
                file.close()
            else:
                file.discard(self._committed_bytes(file.number, records))
        if records is None:
            return
        for number, record in self.pending.items():
            if record.is_condemned:  # it was not written to
                continue
            if file is None or number != file.number:
                self._cut(number, self._committed_bytes(number, records))

    def _cut(self, number: int, nbytes: int) -> None:
        path = self.path(number)
        try:
            fd = os.open(path, OPEN_FLAGS)
        except OSError:
            return
        cut_file(fd, path, nbytes)

    def _committed_bytes(self, number: int, records: dict[int, ShardLength]) -> int:
        """Return the number of committed bytes of a shard."""
        return (records.get(number) or self.scans.get(number) or EMPTY).nbytes

    def find_end(self, number: int) -> ShardLength | None:
        """Return the append position of a shard, or None if it must not grow."""
        if number < 0 or number in self.unsound or number in self.in_handles:
            return None
        record = self.pending.get(number, self.records.get(number))
        if record is None:
            record = self._scan(number)
        if record is None or record.is_condemned:
            return None
        if record.nbytes and not self.may_append(number, record.nbytes):
            return None
        return record

    def _find_last_end(self) -> ShardLength | None:
        """Return the append position of the last shard, or None if it must not grow."""
        record = self.find_end(self.highest)
        if record is None or record.members >= self.limit.arrays:
            return None
        return None if record.nbytes >= self.limit.nbytes else record

    def may_append(self, number: int, nbytes: int) -> bool:
        """Return whether a shard is a regular file of `nbytes` or more and no link."""
        try:
            status = os.lstat(self.path(number))
        except OSError:
            return False
        is_plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        return is_plain and status.st_size >= nbytes

    def _scan(self, number: int) -> ShardLength | None:
        """Return the append position of a foreign shard, or None if it is damaged."""
        if number not in self.foreign:
            return None
        try:
            with LocalFile(self.path(number)) as file:
                table, end, fault = scan_until_fault(file)
                if fault is not None or not is_zero_from(file.fd, end):
                    return None
                arrays = count_arrays(file, table, len(table))
        except OSError:
            return None
        self.scans[number] = ShardLength(end, arrays)
        return self.scans[number]
