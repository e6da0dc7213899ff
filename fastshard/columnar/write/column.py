"""Columns under construction: shard files that grow."""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from fastshard._core.dataset.npy import MemberBuffer
from fastshard._core.io.source import LocalFile
from fastshard._core.parse.tar import scan_until_fault
from fastshard.columnar.schema import MAX_SHARD, shard_name
from fastshard.columnar.values import encode_array, encode_object
from fastshard.formats.tar_writer import END, MARK, HeaderEncoder

__all__ = [
    "Column",
    "Growing",
    "Record",
    "Syncing",
    "new_buffer",
    "only_zeros",
    "sync_file",
    "write_at",
]


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
        if number > MAX_SHARD:
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
                table, end, fault = scan_until_fault(file)
                if fault is not None or not only_zeros(file.fd, end):
                    return None
        except OSError:
            return None
        self.scanned[number] = Record(end, len(table))
        return self.scanned[number]


THREADS = 4  # that sync files, at most; they live while there are some
WAITING = 32  # files that may wait for them, with a descriptor each
CHUNK = 1 << 20  # bytes
MOST_READ = 256 << 20  # bytes that may be a hole
FLAGS = os.O_RDWR
for _flag in ("O_CLOEXEC", "O_BINARY", "O_NOFOLLOW"):  # a link would lead elsewhere
    FLAGS |= getattr(os, _flag, 0)
headers = HeaderEncoder(0o644, 0, MARK)


def new_buffer(*, allow_pickle: bool) -> MemberBuffer:
    """Return a buffer for the members of a shard."""
    return MemberBuffer(headers.member, encode_object if allow_pickle else encode_array)


class Growing:
    """A shard's file, and the members that go to its end.

    Parameters
    ----------
    path : str
    number : int
        The shard's.
    buffer : MemberBuffer
        Where its members are gathered. It is emptied.
    start : int
        Where in the file the next member begins. At 0 the file is made, in the
        place of one that is there.

    Raises
    ------
    OSError
        It cannot be opened; a symbolic link is not followed.
    """

    def __init__(
        self, path: str, number: int, buffer: MemberBuffer, start: int
    ) -> None:
        self.path = path
        self.number = number
        self.buffer = buffer
        self.is_new = start == 0
        flags = FLAGS
        if start == 0:
            # What is there counts for nobody; but other names of it may.
            with suppress(FileNotFoundError):
                os.unlink(path)
            flags |= os.O_CREAT | os.O_EXCL
        self.fd = os.open(path, flags, 0o666)
        buffer.begin(start)

    def write(self) -> None:
        """Write the members that are in the buffer, which is then empty."""
        buffer = self.buffer
        end = buffer.end
        with memoryview(buffer) as data:
            self._write_at(data, buffer.start)
        buffer.begin(end)

    def complete(self) -> None:
        """Write what is in the buffer, and the end of the archive behind it.

        The next member replaces that end.
        """
        self.write()
        self._write_at(memoryview(END), self.buffer.end)

    def close(self) -> None:
        """Close the file, if it is open; one without a member is removed."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
            if self.buffer.end == 0:
                os.unlink(self.path)

    def _write_at(self, data: memoryview, offset: int) -> None:
        try:
            write_at(self.fd, data, offset)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from error

    def let_go(self) -> None:
        """Close the file, and leave it as it is."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def discard(self, nbytes: int) -> None:
        """Cut the file back to bytes that count, as far as that works; close it."""
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        cut_file(fd, self.path, nbytes)


def cut_file(fd: int, path: str, nbytes: int) -> None:
    """Cut a file, as far as that works, and close it. Of 0 bytes nothing is left."""
    with suppress(OSError):
        os.ftruncate(fd, nbytes)
        if nbytes:
            write_at(fd, memoryview(END), nbytes)
            sync_file(fd)
    with suppress(OSError):
        os.close(fd)
    if nbytes == 0:
        with suppress(OSError):
            os.unlink(path)


class Syncing:
    """Files on their way to the disk.

    Threads sync them while the writer goes on. The threads end when no file
    waits. One whose sync an interrupt has stopped is synced again by `finish`.
    """

    def __init__(self) -> None:
        self._waiting: deque[Growing] = deque()
        self._left: dict[Growing, bool] = {}  # not synced yet; whether to close it
        self._threads: list[threading.Thread] = []
        self._error: OSError | None = None

    def add(self, growing: Growing, *, close: bool) -> None:
        """Sync a file, and close it if so asked. It may take until `finish`.

        Raises
        ------
        OSError
            This or an earlier one failed.
        """
        if growing in self._left:
            self.finish()
        self._left[growing] = close
        self._waiting.append(growing)
        if len(self._waiting) > WAITING:
            self._drain()
        elif len(self._waiting) > len(self._threads):
            self._start()
        self._raise()

    def finish(self) -> None:
        """Return when all files are on the disk.

        Raises
        ------
        OSError
            One of them is not.
        """
        while self._threads or self._left:
            self._drain()
            self._join()
            self._waiting.extend(tuple(self._left))
        self._raise()

    def abandon(self) -> None:
        """Wait for the threads, and close the files that were not closed yet."""
        self._waiting.clear()
        self._join()
        for growing, close in self._left.items():
            if close:
                growing.let_go()
        self._left.clear()

    def _start(self) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) < THREADS:
            thread = threading.Thread(target=self._drain, daemon=True)
            self._threads.append(thread)  # first: an interrupt may come
            try:
                thread.start()
            except RuntimeError:  # the interpreter ends: `finish` does it
                self._threads.remove(thread)

    def _join(self) -> None:
        for thread in self._threads:
            if thread.ident is not None:  # else an interrupt came before it began
                thread.join()
        self._threads.clear()

    def _drain(self) -> None:
        """Sync files until none waits. In several threads at once."""
        while True:
            try:
                growing = self._waiting.popleft()
            except IndexError:
                return
            try:
                if growing.fd >= 0:
                    sync_file(growing.fd)
            except OSError as error:
                self._error = OSError(error.errno, error.strerror, growing.path)
            if self._left.get(growing):
                growing.let_go()
            self._left.pop(growing, None)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write all bytes at a place in a file."""
    while data:
        if sys.platform == "win32":
            os.lseek(fd, offset, os.SEEK_SET)
            written = os.write(fd, data)
        else:
            written = os.pwrite(fd, data, offset)
        data = data[written:]
        offset += written


if sys.platform == "darwin":
    import fcntl

    def sync_file(fd: int) -> None:
        """Return when a file's bytes are on the disk."""
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError:  # a file system without it
            os.fsync(fd)
else:

    def sync_file(fd: int) -> None:
        """Return when a file's bytes are on the disk."""
        os.fsync(fd)


def only_zeros(fd: int, offset: int) -> bool:
    """Say whether a file holds nothing but zeros from a place on.

    Holes are passed over where much is left. Little is read: file systems have
    taken what was just written for a hole.
    """
    while True:
        os.lseek(fd, offset, os.SEEK_SET)
        if hasattr(os, "SEEK_DATA") and os.fstat(fd).st_size - offset > MOST_READ:
            try:
                offset = os.lseek(fd, offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return True
        data = os.read(fd, CHUNK)
        if data.count(0) != len(data):
            return False
        if not data:
            return True
        offset += len(data)
