"""Session of a writer: from acquiring the dataset's lock to its release."""

from __future__ import annotations

import os
import sqlite3
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, Protocol

from fastshard._util.files import make_directory, sync_directory
from fastshard._util.writing.unclosed import Loss, warn_of
from fastshard.columnar.layout.connection import INDEX_ERRORS
from fastshard.columnar.layout.schema import INDEX_NAME, create, has_tables, read_fields
from fastshard.columnar.layout.shard_limit import ShardLimits
from fastshard.columnar.read.leases import create_lease_file
from fastshard.columnar.write.column import Column
from fastshard.columnar.write.connection import (
    begin,
    is_fatal,
    is_statement_error,
    open_writer,
    translate_writer_error,
)
from fastshard.columnar.write.creation import create_index, remove_unfinished
from fastshard.columnar.write.fields import has_shards
from fastshard.columnar.write.lock import (
    WriterLock,
    find_writer,
    hold_registry,
    register,
    unregister,
)
from fastshard.columnar.write.pending_rows import PendingRows
from fastshard.columnar.write.transaction import Transaction
from fastshard.errors import ClosedError, FastshardError, FormatError

__all__ = ["WriterSession"]

OPEN, CLOSED, BROKEN, FORKED = range(4)
REASONS = {
    CLOSED: "the writer of {root} is closed: open another",
    BROKEN: "the writer of {root} is closed because it could not store its samples: "
    "open another",
    FORKED: "the writer of {root} was opened by the parent process: use it there",
}


class Handle(Protocol):
    """Open shard handle, which ends with its session."""

    def end(self, *, cut: bool) -> None:
        """Discard the shard; with `cut`, restore its file."""

    def forget(self, sample_ids: Iterable[str]) -> None:
        """Drop the arrays of deleted samples."""


class WriterSession:
    """Open dataset of a writer: lock, mutex, connection, transaction, open handles.

    It is shared by the writer, its shard handles and its compactions, and closes
    when the last of them is dropped. Its connection calls it around commits; see
    `connection.CommitGuard`.

    Attributes
    ----------
    state : int
        OPEN (0), CLOSED, BROKEN or FORKED.
    mutex : threading.RLock
        Held during each call of the writer and its handles.
    busy : bool
        Whether an array is being encoded, whose own code may call the writer.
    limits : ShardLimits
    conn : WriterConnection
    pending : PendingRows
    transaction : Transaction
    handles : WeakSet
        Open shard handles.
    """

    def __init__(
        self,
        root: Path,
        limits: ShardLimits,
        *,
        allow_pickle: bool,
        packs: bool = False,
    ) -> None:
        self.state = CLOSED  # until it is open
        self.root = root
        self.home = os.path.abspath(root)  # stays valid after a chdir
        self.path = os.path.join(self.home, INDEX_NAME)
        self.mutex = threading.RLock()
        self.busy = False
        self.handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        self.limits = limits
        self.allow_pickle = allow_pickle
        self.packs = packs
        make_directory(self.home)
        with hold_registry():
            other = find_writer(self.home)
            if other is not None:
                other.close()
            self._lock = WriterLock(self.home)
            try:
                self._open()
            except BaseException as error:
                self.state = CLOSED
                self._lock.release()
                if isinstance(error, INDEX_ERRORS):
                    raise translate_writer_error(error, self.path) from error
                raise

    def _open(self) -> None:
        """Open the index, and make the files agree with it."""
        if not self._has_index():
            self._check_no_shards()
        remove_unfinished(self.home)
        is_new = not os.path.lexists(self.path)
        create_lease_file(self.home, is_new=is_new)
        if is_new:
            create_index(self.path)
        conn = self.conn = open_writer(self.path)
        transaction = self.transaction = Transaction(
            conn,
            self.home,
            self.path,
            allow_pickle=self.allow_pickle,
            packs=self.packs,
        )
        try:
            begin(conn)  # the tables are created all together
            if not has_tables(conn):  # another program was stopped while creating it
                self._check_no_shards()
            create(conn)
            transaction.add_columns(read_fields(conn, self.path), self.limits)
            transaction.load_last_id()
            transaction.record()
            sqlite3.Cursor(conn).execute("COMMIT")
            transaction.mark_committed()
            sync_directory(self.home)
        except BaseException:
            conn.finish()
            raise
        self.pending = conn.pending = PendingRows(conn, self.mutex)
        conn.guard = weakref.ref(self)
        self.state = OPEN
        try:
            register(self.home, self)
            self.remove_condemned()
        except BaseException:
            if self.state == OPEN:
                self._end(CLOSED)
            raise

    def _has_index(self) -> bool:
        """Return whether the index has bytes; `open_writer` refuses other files."""
        real = os.path.realpath(self.path)
        paths = filter(os.path.exists, (real, f"{real}-wal"))
        return any(os.path.getsize(p) or not os.path.isfile(p) for p in paths)

    def _check_no_shards(self) -> None:
        """Raise FormatError if there are shards: their index is missing."""
        for folder in sorted(Path(self.home).glob("*_shards")):
            if has_shards(str(folder)):
                reason = f"the shards in {folder} have no index: move them away"
                raise FormatError(reason, self.path, 0)

    @property
    def closed(self) -> bool:
        """True if nothing more can be written."""
        return self.state != OPEN

    def check_open(self) -> None:
        """Raise ClosedError unless this process may write."""
        if self.state != OPEN:
            raise ClosedError(REASONS[self.state].format(root=self.root))

    def check_idle(self) -> None:
        """Raise ClosedError if closed, RuntimeError within an array's own code."""
        self.check_open()
        if self.busy:
            raise RuntimeError(
                f"the writer of {self.root} is used by an array that is being added"
            )

    def flush(self) -> None:
        """Commit; see `ShardedDatasetWriter.flush`."""
        with self.mutex:
            if self._has_nothing_to_store():
                return
        with self.guard_commit():
            if self.conn.in_transaction:
                sqlite3.Cursor(self.conn).execute("COMMIT")

    def _has_nothing_to_store(self) -> bool:
        """Return whether there is nothing to commit, and no shard grows."""
        columns = self.transaction.columns.values()
        is_idle = not (self.state or self.busy)
        return (
            is_idle
            and self.pending.is_settled
            and not self.conn.in_transaction
            and not self.conn.has_begun
            and not any(column.file or column.pending for column in columns)
        )

    @contextmanager
    def guard_commit(self) -> Iterator[None]:
        """Store the arrays, then let the context commit.

        If SQLite refuses the context's statement itself, the user gets its error; any
        other error ends the session.
        """
        with self.mutex:
            if self.state or self.busy:
                self.check_idle()
            transaction = self.transaction
            try:
                if not self.pending.is_settled:
                    self.pending.settle()
                transaction.store()
                transaction.is_committing = True
                yield
            except (OSError, sqlite3.Error) as error:
                if (
                    transaction.is_committing
                    and is_statement_error(error)
                    and not transaction.is_lost()
                ):
                    raise
                self.fail(error)
            except BaseException:
                if transaction.is_committing and not self.conn.in_transaction:
                    transaction.mark_committed()  # the interrupt came after the commit
                raise
            finally:
                transaction.is_committing = False
            if not self.conn.in_transaction:
                transaction.mark_committed()

    def check_transaction(self, error: sqlite3.Error) -> None:
        """End the session if `error` has made SQLite roll the transaction back."""
        with self.mutex:
            if self.transaction.is_lost():
                self.fail(error)

    def fail(self, error: OSError | sqlite3.Error) -> NoReturn:
        """Raise the exception for an error; end the session if it must end.

        An error of SQLite that leaves the transaction open does not end it. Any other
        error does, and undoes the samples added since the last flush.
        """
        exception: Exception = error
        if isinstance(error, sqlite3.Error):
            exception = translate_writer_error(error, self.path)
            if not is_fatal(error) and not self.transaction.is_lost():
                raise exception from error
        self.transaction.undo()
        self._end(BROKEN)
        if isinstance(exception, OSError):
            reason = (
                f"{exception.strerror}; samples added since the last flush are not "
                f"stored, and the writer of {self.root} is closed"
            )
            raise OSError(exception.errno, reason, exception.filename) from error
        raise exception from error

    def remove_condemned(self) -> None:
        """Remove the shards that compactions replaced and no reader may open.

        The caller has flushed: nothing is uncommitted.
        """
        for column, numbers in self.transaction.find_removable():
            self.remove_shards(column, numbers)

    def remove_shards(self, column: Column, numbers: list[int]) -> None:
        """Remove condemned shards and their records, durably."""
        self.transaction.remove_shards(column, numbers)
        self.flush()

    def close(self) -> None:
        """Flush and end; see `ShardedDatasetWriter.close`."""
        with self.mutex:  # another thread may be closing it
            if self.state != OPEN:
                if self.state == FORKED:
                    self.check_open()
                self._lock.release()  # again: an interrupt may have stopped it
                unregister(self)
                return
            self.flush()
            with suppress(OSError, FastshardError, sqlite3.Error):  # all is stored
                self.remove_condemned()
            if self.state == OPEN:
                self._end(CLOSED)

    def close_dropped(self) -> None:
        """Close a session dropped without `close`, with a warning.

        Its samples are stored whole; the others are reported as lost.
        """
        count = self.pending.unflushed
        try:
            self.close()
        except (OSError, FastshardError, sqlite3.Error) as error:
            if not count:
                raise
            reason = str(error.__cause__ or error)
            warn_of(Loss("ShardedDatasetWriter", self.home, count, note=reason))
        else:
            reason = f"the writer of {self.root} was dropped without close()"
            warnings.warn(reason, ResourceWarning, stacklevel=3)
        finally:
            with self.mutex:  # still open if its samples could not be stored
                if self.state == OPEN:
                    self._end(CLOSED)

    def __del__(self) -> None:
        if getattr(self, "state", CLOSED) == OPEN:
            self.close_dropped()
        elif hasattr(self, "_lock") and self._lock.fd >= 0:
            self._lock.release()  # again: an interrupt may have stopped it

    def disable_in_child(self) -> list[object]:
        """Disable the session in a forked child; see `lock.OpenWriter`."""
        self.state = FORKED
        self.transaction.is_closed = True
        self.mutex = threading.RLock()  # another thread may have held it
        for handle in list(self.handles):
            handle.end(cut=False)
        return [self.conn, self]

    def _end(self, state: int) -> None:
        """Close handles, files and connection without writing; release the lock."""
        for handle in list(self.handles):
            handle.end(cut=state == CLOSED)
        self.state = state
        try:
            self.transaction.close()
        finally:
            self._lock.release()
            unregister(self)
