"""A field as its writer sees it: which shards it has, and the one that grows."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from fastshard._core.npywrite import MemberBuffer
from fastshard._core.scan import scan_sound
from fastshard._core.source import LocalFile
from fastshard.columnar.growing import (
    FLAGS,
    Growing,
    Syncing,
    cut_file,
    new_buffer,
    only_zeros,
    sync_file,
)
from fastshard.columnar.names import LARGEST_SHARD, shard_name

__all__ = ["Column", "Record"]

TOO_MANY = {errno.EMFILE, errno.ENFILE}  # open files
WRITE_BYTES = 1 << 20  # what is gathered of a shard before it is written


class Record(NamedTuple):
    """What the index knows of a shard file that fastshard wrote."""

    nbytes: int  # of complete members; without the archive's end; -1: to be removed
    members: int  # that these bytes are, superseded ones too; see `compacting`


class Column:
    """The shards of a field, and the end of the last one.

    Parameters
    ----------
    name : str
        The field's.
    folder : str
        The path of its shards' directory.
    limit : int
        Members of a shard at most.
    syncing : Syncing
        Takes the files that are complete.
    allow_pickle : bool
        Whether arrays of Python objects are taken.

    Attributes
    ----------
    buffer : MemberBuffer
        The end of the shard that grows. It has nothing `left` if there is none, or
        it is full; then `next_shard` is called for.
    records : dict of int to Record
        As committed.
    pending : dict of int to Record
        To be committed; their bytes are written.
    foreign : set of int
        Shards that rows refer to, and that have no record.
    scanned : dict of int to Record
        Of those, what a scan has found.
    unsound : set of int
        Shards that nothing may be appended to.
    opened : set of int
        Shards that are being written as a whole.
    highest : int
        The last number that is taken, -1 for none.
    new_files : bool
        Whether the directory must be synced.
    """

    def __init__(
        self,
        name: str,
        folder: str,
        limit: int,
        syncing: Syncing,
        *,
        allow_pickle: bool = False,
    ) -> None:
        self.name = name
        self.folder = folder
        self.limit = limit
        self.buffer = new_buffer(allow_pickle=allow_pickle)
        self.records: dict[int, Record] = {}
        self.pending: dict[int, Record] = {}
        self.foreign: set[int] = set()
        self.unsound: set[int] = set()
        self.scanned: dict[int, Record] = {}
        self.opened: set[int] = set()
        self.highest = -1
        self.new_files = False
        self.num_shards = self.new_count = -1  # as committed, and to be; not known yet
        self.growing: Growing | None = None
        self._full: Growing | None = None  # complete, and to be synced and closed
        self._syncing = syncing

    def path(self, number: int) -> str:
        """Return the path of a shard."""
        return os.path.join(self.folder, shard_name(number))

    def next_number(self) -> int:
        """Return the first number that no shard has, and none behind it."""
        last = self.highest
        if last >= 0 and not self.has_shard(last):  # it has a record, of nothing
            last -= 1
        number = max(last, *self.opened, -1) + 1
        while self.has_shard(number):  # another program was here
            number += 1
        if number > LARGEST_SHARD:
            raise ValueError(f"the field {self.name!r} has no more numbers of shards")
        return number

    def has_shard(self, number: int) -> bool:
        """Say whether there is a shard; of what a crash has left there is none."""
        if number in self.foreign or number in self.pending:
            return True
        if self.growing is not None and self.growing.number == number:
            return True
        record = self.records.get(number)
        if record is not None:
            return record != Record(0, 0)
        return os.path.lexists(self.path(number))

    def next_shard(self) -> None:
        """Make room: go on in the last shard if it has some, else begin another.

        Raises
        ------
        OSError
            The full one cannot be written, or the new one not be made.
        """
        if self.growing is not None:
            self.finish()
            last = None
        else:
            last = self._last()
        if last is None:
            number, last = self.next_number(), Record(0, 0)
        else:
            number = self.highest
        self.growing = self.begin(number, last)
        self.buffer.number = number
        self.buffer.left = self.limit - last.members

    def begin(self, number: int, at: Record = Record(0, 0)) -> Growing:  # noqa: B008
        """Open a shard at the place that a record says."""
        path = self.path(number)
        growing = self.open(path, number, self.buffer, at.nbytes)
        self.new_files = self.new_files or growing.is_new
        self.highest = max(self.highest, number)
        return growing

    def open(self, path: str, number: int, buffer: MemberBuffer, at: int) -> Growing:
        """Open a shard file; if too many are open, when those are closed."""
        try:
            return Growing(path, number, buffer, at)
        except OSError as error:
            if error.errno not in TOO_MANY:
                raise
        self._syncing.finish()
        return Growing(path, number, buffer, at)

    def is_condemned(self, number: int) -> bool:
        """Say whether a shard is to be removed; readers may still open it."""
        record = self.pending.get(number, self.records.get(number))
        return record is not None and record.nbytes < 0

    def take_over(self, number: int) -> None:
        """Let another program's shard be one of ours, if more may be appended to it.

        Its record is pending. Before it is committed nothing may be appended: its
        rows tell their members by name, and what is new would be taken for theirs.
        """
        record = self.end_of(number)
        if record is None:
            return
        fd = os.open(self.path(number), FLAGS)
        try:
            sync_file(fd)
        finally:
            os.close(fd)
        self.pending[number] = record

    def write(self) -> None:
        """Write what the buffer holds."""
        if self.growing is not None:
            self.growing.write()

    def store(self) -> None:
        """Write what was added, with an end behind it, and have it synced."""
        self._let_full_go()
        growing = self.growing
        if growing is None:
            return
        record = Record(self.buffer.end, self.limit - self.buffer.left)
        if record == self.records.get(growing.number):
            return
        growing.complete()
        self.pending[growing.number] = record
        self._syncing.add(growing, close=False)

    def finish(self) -> None:
        """Complete the shard that grows, and let it go."""
        self._let_full_go()
        growing = self.growing
        if growing is None:
            return
        growing.complete()
        members = self.limit - self.buffer.left
        self.pending[growing.number] = Record(self.buffer.end, members)
        # In this order, for an interrupt may come between: nothing is added to what
        # is let go, and what is pending is synced.
        self.buffer.left = 0
        self._full, self.growing = growing, None
        self._let_full_go()
        self.buffer.begin(0)

    def _let_full_go(self) -> None:
        """Have the shard that is full synced and closed, also once more."""
        if self._full is not None:
            self._syncing.add(self._full, close=True)
            self._full = None

    def settle(self) -> None:
        """Take the pending records for committed."""
        self.records.update(self.pending)
        self.foreign.difference_update(self.pending)
        self.pending.clear()
        self.num_shards = self.new_count

    def count(self) -> int:
        """Return how many shards hold a member."""
        records = {**self.records, **self.pending}
        held = [
            n for n, record in records.items() if record.nbytes > 0 < record.members
        ]
        return len(self.foreign.union(held))

    def discard(self, records: dict[int, Record] | None) -> None:
        """Cut what was written back to records; None: close the files only."""
        full, self._full = self._full, None
        if full is not None:
            full.let_go()
        growing, self.growing = self.growing, None
        self.buffer.left = 0
        if growing is not None:
            if records is None:
                growing.close()
            else:
                growing.discard(self.safe(growing.number, records).nbytes)
        if records is None:
            return
        for number, record in self.pending.items():
            condemned = record.nbytes < 0  # and not written to
            if not condemned and (growing is None or number != growing.number):
                self._cut(number, self.safe(number, records))

    def _cut(self, number: int, record: Record) -> None:
        try:
            fd = os.open(self.path(number), FLAGS)
        except OSError:
            return
        cut_file(fd, self.path(number), record.nbytes)

    def end_of(self, number: int) -> Record | None:
        """Return where a shard ends, None if nothing may be appended to it."""
        if number < 0 or number in self.unsound or number in self.opened:
            return None
        record = self.pending.get(number, self.records.get(number))
        if record is None:
            record = self._scan(number)
        if record is None or record.nbytes < 0:
            return None
        if record.nbytes and not self.may_grow(number, record.nbytes):
            return None
        return record

    def _last(self) -> Record | None:
        """Return where the last shard ends, None if it is full, or must not grow."""
        record = self.end_of(self.highest)
        return None if record is None or record.members >= self.limit else record

    def safe(self, number: int, records: dict[int, Record]) -> Record:
        """Return what of a shard must stay."""
        return records.get(number) or self.scanned.get(number) or Record(0, 0)

    def may_grow(self, number: int, nbytes: int) -> bool:
        """Say whether a file is there, is a file of its own, and of that size."""
        try:
            status = os.lstat(self.path(number))
        except OSError:
            return False
        plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        return plain and status.st_size >= nbytes

    def _scan(self, number: int) -> Record | None:
        """Return where another program's shard ends, None if that is not clear."""
        if number not in self.foreign:
            return None
        try:
            with LocalFile(self.path(number)) as file:
                table, end, fault = scan_sound(file)
                if fault is not None or not only_zeros(file.fd, end):
                    return None
        except OSError:
            return None
        self.scanned[number] = Record(end, len(table))
        return self.scanned[number]
