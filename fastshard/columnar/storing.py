"""How a writer opens, stores durably, fails and ends."""

from __future__ import annotations

import atexit
import operator
import os
import sqlite3
import threading
import time
import warnings
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from fastshard._core.npywrite import MemberBuffer
from fastshard.columnar.adoption import take_over_shard
from fastshard.columnar.columns import Column, Record
from fastshard.columnar.growing import Syncing
from fastshard.columnar.lock import (
    WriterLock,
    open_writers,
    register,
    registered,
    unregister,
)
from fastshard.columnar.recovery import read_records, recover
from fastshard.columnar.schema import NAME, create, read_fields
from fastshard.columnar.swapping import Swaps
from fastshard.columnar.writing import (
    WriterConnection,
    begin,
    error_of,
    is_fatal,
    open_writer,
)
from fastshard.errors import ClosedError
from fastshard.files import sync_directory

__all__ = ["Storing"]

FLUSH_SECONDS = 60.0  # after which a full shard is a reason to flush
OPEN, CLOSED, BROKEN, FORKED = range(4)
WHY = {
    CLOSED: "the writer of {root} is closed",
    BROKEN: "the writer of {root} is closed, for it could not store its samples: "
    "open another",
    FORKED: "the writer of {root} is another process's, which was forked: it can be "
    "used there only",
}


class Storing:
    """The part of a writer that makes what was added durable.

    Tar bytes come first: they are written and synced; then the rows that refer to
    them are committed, with a record of where each shard ends. What stands behind
    that end is not there, and the next writer cuts it off.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        samples_per_shard: int = 1000,
        *,
        allow_pickle: bool = False,
    ) -> None:
        self._state = CLOSED  # until all is well
        self.samples_per_shard = operator.index(samples_per_shard)
        if self.samples_per_shard < 1:
            raise ValueError(f"samples_per_shard is above 0, not {samples_per_shard}")
        self.root = Path(os.fsdecode(root))
        self._path = str(self.root / NAME)
        self._allow_pickle = allow_pickle
        self._mutex = threading.RLock()
        self._columns: dict[str, Column] = {}
        self._buffers: dict[str, MemberBuffer] = {}  # the columns' own
        self._syncing = Syncing()
        self._folders: set[str] = set()  # to be synced
        self._swaps = Swaps()
        self._committing = False
        self._flushed = time.monotonic()
        self._make_root()
        self._take_over()
        self._lock = WriterLock(str(self.root))
        try:
            self._open()
        except BaseException as error:
            self._state = CLOSED
            self._lock.release()
            if isinstance(error, sqlite3.Error):
                raise error_of(error, self._path) from error
            raise

    @property
    def conn(self) -> WriterConnection:
        """The index's connection; its commits flush the arrays first."""
        return self._conn

    @property
    def closed(self) -> bool:
        """Whether nothing more can be written."""
        return self._state != OPEN

    def flush(self) -> None:
        """Return when all that was added is on the disk, and readers see it.

        Raises
        ------
        OSError
            It cannot be stored. Samples since the last flush are lost, and the
            writer is closed; what was flushed before is there.
        WriterLockedError
            Another program writes to the index. Nothing is lost.
        ClosedError
            The writer is closed.
        """
        with self._mutex:
            self.check_open()
            try:
                if self.prepare():
                    begin(self._conn)
                if self._conn.in_transaction:
                    self._record()
                    self._committing = True
                    sqlite3.Cursor(self._conn).execute("COMMIT")
            except (OSError, sqlite3.Error) as error:
                self._failed(error)
            self._settle()

    close_tars = flush

    def close(self) -> None:
        """Flush, and end. Closing twice is no error.

        Raises
        ------
        OSError, WriterLockedError
            As for `flush`.
        """
        if self._state != OPEN:
            if self._state == FORKED:
                self.check_open()
            return
        with self._mutex:
            self.flush()
            self._end(CLOSED)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_state", CLOSED) == OPEN:
            _close_dropped(self)

    # What a connection asks for: see `fastshard.columnar.writing.Guard`.

    def check_open(self) -> None:
        """Raise `ClosedError` unless this process may write."""
        if self._state != OPEN:
            raise ClosedError(WHY[self._state].format(root=self.root))

    def prepare_commit(self) -> None:
        """Store what rows refer to, so that they may be committed."""
        with self._mutex:
            try:
                if self.prepare():
                    begin(self._conn)
                if self._conn.in_transaction:
                    self._record()
                self._committing = True
            except (OSError, sqlite3.Error) as error:
                self._failed(error)

    def after_statement(self) -> None:
        """Take notice of a transaction that may have ended."""
        if not self._conn.in_transaction:
            self._settle()
        self._committing = False

    def forked(self) -> list[object]:
        """Become useless, in a child process; return what must not be finished."""
        self._state = FORKED
        return [self._conn, self]

    def prepare(self) -> bool:
        """Write and sync all arrays; say whether there is anything to record."""
        for column in self._columns.values():
            column.store()
        self._syncing.finish()
        for column in self._columns.values():
            if column.new_files:
                self._folders.add(column.folder)
        for folder in self._folders:
            sync_directory(folder)
        self._folders.clear()
        for column in self._columns.values():
            column.new_files = False
        return any(column.pending for column in self._columns.values())

    def _record(self) -> None:
        """Write down where shards end, how many there are, and the last id."""
        cursor = sqlite3.Cursor(self._conn)
        for column in self._columns.values():
            for number in column.foreign & column.pending.keys():
                take_over_shard(cursor, column, number)
            cursor.executemany(
                "INSERT OR REPLACE INTO fastshard_shards "
                "(field, shard, nbytes, members) VALUES (?, ?, ?, ?)",
                [(column.name, n, *record) for n, record in column.pending.items()],
            )
            count = column.count()
            if count != column.num_shards:
                cursor.execute(
                    "UPDATE fields SET num_shards = ? WHERE name = ?",
                    (count, column.name),
                )
                column.new_count = count
        cursor.execute(
            "UPDATE counters SET value = ? WHERE name = 'sample_id' AND value IS NOT ?",
            (self._last_id, self._last_id),
        )

    def _settle(self) -> None:
        """Take what was recorded for committed."""
        for column in self._columns.values():
            column.settle()
        self._swaps.commit()
        self._committing = False
        self._flushed = time.monotonic()

    def _failed(self, error: OSError | sqlite3.Error) -> NoReturn:
        """Raise what a caller expects for an error; end the writer if it must be."""
        if isinstance(error, sqlite3.Error):
            shown = error_of(error, self._path)
            if not is_fatal(error):
                self._committing = False
                raise shown from error
        else:
            shown = error
        self._break()
        if isinstance(shown, OSError):
            reason = (
                f"{shown.strerror}; samples added since the last flush are not stored, "
                f"and the writer of {self.root} is closed"
            )
            raise OSError(shown.errno, reason, shown.filename) from error
        raise shown from error

    def _break(self) -> None:
        """End, and leave the files as they were acknowledged, as far as that works.

        A commit that failed may have been made all the same: then the files stay
        as they are, and the next writer, which reads the index, cuts them.
        """
        records: dict[str, dict[int, Record]] | None = None
        with suppress(sqlite3.Error):
            sqlite3.Connection.rollback(self._conn)
            if not self._committing:
                records = {
                    name: read_records(self._conn, name) for name in self._columns
                }
        if records is not None:
            self._swaps.undo()
        left = self._syncing.abandon()
        for fd, _ in left:
            with suppress(OSError):
                os.close(fd)
        for name, column in self._columns.items():
            column.discard(None if records is None else records[name])
        self._end(BROKEN)

    def _end(self, state: int) -> None:
        """Close what is open. Nothing is written but what SQLite itself does."""
        self._state = state
        unregister(self)
        with suppress(OSError):
            for column in self._columns.values():
                column.discard(None)
        with suppress(sqlite3.Error):
            self._conn.finish()
        self._lock.release()

    def _make_root(self) -> None:
        """Make the directory, and those above it that are missing, on the disk."""
        folder = os.path.abspath(self.root)
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        os.makedirs(self.root, exist_ok=True)
        for made in missing:
            sync_directory(os.path.dirname(made))

    def _take_over(self) -> None:
        """Close this process's other writer of the dataset."""
        other = registered(str(self.root))
        if other is not None:
            other.close()

    def _open(self) -> None:
        """Open the index, and make the files agree with it."""
        self._conn = open_writer(self._path)
        try:
            begin(self._conn)  # the tables are all there, or none
            create(self._conn)
            for field in read_fields(self._conn, self._path):
                self._add_column(field.name, field.folder)
            self._last_id = self._counter()
            self._record()
            self._conn.commit()
            self._settle()
            sync_directory(str(self.root))
        except BaseException:
            self._conn.finish()
            raise
        self._conn.guard = weakref.ref(self)
        self._state = OPEN
        register(str(self.root), self)

    def _add_column(self, name: str, folder: str) -> None:
        """Learn of a field, and of the shards that it has."""
        column = Column(
            name,
            str(self.root / folder),
            self.samples_per_shard,
            self._syncing,
            allow_pickle=self._allow_pickle,
        )
        recover(self._conn, column)
        row = self._conn.execute(
            "SELECT num_shards FROM fields WHERE name = ?", (name,)
        ).fetchone()
        column.num_shards = column.new_count = -1 if row is None else row[0]
        if not os.path.isdir(column.folder):
            os.mkdir(column.folder)
            self._folders.add(str(self.root))
        self._columns[name] = column
        self._buffers[name] = column.buffer

    def _counter(self) -> int:
        row = self._conn.execute(
            "SELECT value FROM counters WHERE name = 'sample_id'"
        ).fetchone()
        value = row[0] if row else 0
        return value if isinstance(value, int) and value > 0 else 0


def _close_dropped(writer: Storing) -> None:
    """Close a writer that nobody closed, and say so."""
    try:
        writer.close()
    finally:
        if writer._state == OPEN:  # its samples cannot be stored, for now
            writer._end(CLOSED)
        warnings.warn(
            f"the writer of {writer.root} was dropped without close()",
            ResourceWarning,
            stacklevel=3,
        )


def _close_all() -> None:
    for writer in open_writers():
        if isinstance(writer, Storing):
            _close_dropped(writer)


atexit.register(_close_all)
