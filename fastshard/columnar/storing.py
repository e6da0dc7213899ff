"""How a writer opens, stores durably, fails and ends."""

from __future__ import annotations

import operator
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from fastshard._core.npywrite import MemberBuffer
from fastshard._util.files import sync_directory
from fastshard.columnar.adoption import take_over_shard
from fastshard.columnar.columns import Column, Record
from fastshard.columnar.compacting import remove_condemned
from fastshard.columnar.connect import file_size
from fastshard.columnar.creating import clear_unfinished, create_index
from fastshard.columnar.dropped import close_dropped
from fastshard.columnar.folders import make_folder, make_root
from fastshard.columnar.growing import Syncing
from fastshard.columnar.leases import offer
from fastshard.columnar.lock import (
    WriterLock,
    opening,
    register,
    registered,
    unregister,
)
from fastshard.columnar.names import shard_number
from fastshard.columnar.recovery import read_records, recover
from fastshard.columnar.schema import (
    NAME,
    Field,
    create,
    has_tables,
    read_fields,
)
from fastshard.columnar.swapping import Swaps
from fastshard.columnar.writing import (
    WriterConnection,
    begin,
    error_of,
    is_fatal,
    is_wrong,
    open_writer,
)
from fastshard.errors import ClosedError, FastshardError, FormatError

if TYPE_CHECKING:
    from fastshard.columnar.handle import ShardHandle

__all__ = ["Storing"]

FLUSH_SECONDS = 60.0  # after which a full shard is a reason to flush
OPEN, CLOSED, BROKEN, FORKED = range(4)
WHY = {
    CLOSED: "the writer of {root} is closed: open another",
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
        if not 0 < self.samples_per_shard < 1 << 63:
            raise ValueError(f"samples_per_shard is above 0, not {samples_per_shard}")
        self.root = Path(os.fsdecode(root))
        self._home = os.path.abspath(self.root)  # whatever directory comes to be ours
        self._path = os.path.join(self._home, NAME)
        self._allow_pickle = allow_pickle
        self._mutex = threading.RLock()
        self._columns: dict[str, Column] = {}
        self._buffers: dict[str, MemberBuffer] = {}  # the columns' own
        self._syncing = Syncing()
        self._folders: set[str] = set()  # to be synced
        self._swaps = Swaps()
        self._handles: weakref.WeakSet[ShardHandle] = weakref.WeakSet()
        self._busy = False  # an array is being asked for its bytes
        self._committing = False
        self._commits = 0
        self._flushed = time.monotonic()
        make_root(self._home)
        with opening():
            other = registered(self._home)
            if other is not None:
                other.close()
            self._lock = WriterLock(self._home)
            self._open_locked()

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
        with self.ending():
            if self._conn.in_transaction:
                sqlite3.Cursor(self._conn).execute("COMMIT")

    close_tars = flush

    def close(self) -> None:
        """Flush, and end. Closing twice is no error.

        Raises
        ------
        OSError, WriterLockedError
            As for `flush`.
        """
        with self._mutex:  # another thread may be closing it
            if self._state != OPEN:
                if self._state == FORKED:
                    self.check_open()
                self._lock.release()  # if an interrupt has stopped that
                unregister(self)
                return
            self.flush()
            with suppress(OSError, FastshardError, sqlite3.Error):  # all is stored
                remove_condemned(self)
            if self._state == OPEN:
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
            close_dropped(self)
        elif hasattr(self, "_lock"):
            self._lock.release()  # if an interrupt has stopped that

    # What a connection asks for: see `fastshard.columnar.writing.Guard`.

    def check_open(self) -> None:
        """Raise `ClosedError` unless this process may write."""
        if self._state != OPEN:
            raise ClosedError(WHY[self._state].format(root=self.root))

    def check_idle(self) -> None:
        """Raise unless something may be added, or stored, now."""
        self.check_open()
        if self._busy:
            raise RuntimeError(
                f"the writer of {self.root} is used by an array that is being added"
            )

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Store what rows refer to; then the statement in this context may commit."""
        with self._mutex:
            self.check_idle()
            try:
                if self.prepare():
                    begin(self._conn)
                if self._conn.in_transaction:
                    self._record()
                self._committing = True
                yield
            except (OSError, sqlite3.Error) as error:
                if self._committing and is_wrong(error) and not self._is_lost():
                    raise  # a statement of the user's own
                self._failed(error)
            except BaseException:
                if self._committing and not self._conn.in_transaction:
                    self._settle()  # an interrupt came behind the commit
                raise
            finally:
                self._committing = False
            if not self._conn.in_transaction:
                self._settle()

    def check_transaction(self, error: sqlite3.Error) -> None:
        """Raise what says that an error has ended the open transaction, if so."""
        with self._mutex:
            if self._is_lost():
                self._failed(error)

    def forked(self) -> list[object]:
        """Become useless, in a child process; return what must not be finished."""
        self._state = FORKED
        self._mutex = threading.RLock()  # another thread may have held it
        for handle in list(self._handles):
            handle.end(cut=False)
        return [self._conn, self]

    def let_go(self) -> None:
        """End without storing what was added since the last flush."""
        with self._mutex:
            if self._state == OPEN:
                self._end(CLOSED)

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
        self._conn.begun = False
        self._commits += 1
        self._flushed = time.monotonic()

    def _failed(self, error: OSError | sqlite3.Error) -> NoReturn:
        """Raise what a caller expects for an error; end the writer if it must be."""
        if isinstance(error, sqlite3.Error):
            shown = error_of(error, self._path)
            if not is_fatal(error) and not self._is_lost():
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

    def _is_lost(self) -> bool:
        """Say whether SQLite has ended a transaction that nobody meant to end."""
        return self._conn.begun and not self._conn.in_transaction

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
        self._syncing.abandon()
        for name, column in self._columns.items():
            column.discard(None if records is None else records[name])
        self._end(BROKEN)

    def _end(self, state: int) -> None:
        """Close what is open. Nothing is written but what SQLite itself does."""
        for handle in list(self._handles):
            handle.end(cut=state == CLOSED)
        self._state = state
        try:
            with suppress(OSError):
                for column in self._columns.values():
                    column.discard(None)
            with suppress(sqlite3.Error):
                self._conn.finish()
        finally:
            self._lock.release()
            unregister(self)

    def _open_locked(self) -> None:
        """Open the index; give the lock back if that fails."""
        try:
            self._open()
        except BaseException as error:
            self._state = CLOSED
            self._lock.release()
            if isinstance(error, sqlite3.Error):
                raise error_of(error, self._path) from error
            raise

    def _open(self) -> None:
        """Open the index, and make the files agree with it."""
        self._check_new()
        clear_unfinished(self._home)
        is_new = not os.path.lexists(self._path)
        offer(self._home, is_new=is_new)
        if is_new:
            create_index(self._path)
        self._conn = open_writer(self._path)
        self._cursor = sqlite3.Cursor(self._conn)
        try:
            begin(self._conn)  # the tables are all there, or none
            if not has_tables(self._conn):  # another writer was stopped
                self._check_no_shards()
            create(self._conn)
            self._learn(read_fields(self._conn, self._path))
            self._last_id = self._counter()
            self._record()
            self._conn.commit()
            self._settle()
            sync_directory(self._home)
        except BaseException:
            self._conn.finish()
            raise
        self._conn.guard = weakref.ref(self)
        self._state = OPEN
        try:
            register(self._home, self)
            remove_condemned(self)
        except BaseException:
            if self._state == OPEN:
                self._end(CLOSED)
            raise

    def _learn(self, fields: list[Field]) -> None:
        """Learn of fields that the index has, but for those that are known."""
        for field in fields:
            if field.name not in self._columns:
                self._add_column(field.name, field.folder)

    def _add_column(self, name: str, folder: str) -> None:
        """Learn of a field, and of the shards that it has."""
        column = Column(
            name,
            os.path.join(self._home, folder),
            self.samples_per_shard,
            self._syncing,
            allow_pickle=self._allow_pickle,
        )
        recover(self._conn, column)
        row = self._conn.execute(
            "SELECT num_shards FROM fields WHERE name = ?", (name,)
        ).fetchone()
        column.num_shards = column.new_count = -1 if row is None else row[0]
        if make_folder(column.folder):
            self._folders.add(self._home)
        self._columns[name] = column
        self._buffers[name] = column.buffer

    def _check_new(self) -> None:
        """Refuse to begin anew where shards are: their index is gone."""
        real = os.path.realpath(self._path)
        if any(file_size(self._path, real, end) for end in ("", "-wal")):
            return
        self._check_no_shards()

    def _check_no_shards(self) -> None:
        """Refuse shards that no index names."""
        for folder in sorted(Path(self._home).glob("*_shards")):
            names = os.listdir(folder) if folder.is_dir() else []
            if any(shard_number(name) is not None for name in names):
                reason = f"the index of the shards in {folder} is gone: move them away"
                raise FormatError(reason, self._path, 0)

    def _counter(self) -> int:
        row = self._conn.execute(
            "SELECT value FROM counters WHERE name = 'sample_id'"
        ).fetchone()
        value = row[0] if row else 0
        if not isinstance(value, int) or value < 0:
            reason = (
                f"counters.value of 'sample_id' is {value!r:.80}, no count: set it to "
                "the number of the last id that was generated"
            )
            raise FormatError(reason, self._path, 0)
        return value
