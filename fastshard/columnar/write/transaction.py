"""Commit protocol of a writer: what is durable when, and rollback.

Rows of the SQLite index refer to members of tar shards by shard number and offset.
The table ``fastshard_shards`` records how many bytes of each shard are committed.

**Acknowledgement.** A change is acknowledged when a later call of
`ShardedDatasetWriter.flush` or ``close``, of a method documented as durable, or of
``commit`` on the writer's connection has returned. It then survives a killed process
and a power loss. A sample that is not acknowledged is present completely or not at all.

**Order.** Each step is complete before the next one begins:

1. Members are written after the recorded length of their shard, followed by an
   archive's end.
2. The shards are synced, then the directories of new ones.
3. Rows, records, shard counts and the last generated id are committed in one SQLite
   transaction that is on disk when it returns. From here on they count.
4. Files that no row refers to any more are removed: old files of replacements
   (`replace`), and shards that a compaction condemned, once no reader needs them.

So a committed row never refers to bytes that are not on disk, and no file is removed
while a committed row refers to it.

**Undo** of uncommitted changes:

- The index refuses a row: the sample's members are dropped from the buffers
  (`rows.RowWriter`).
- A shard handle or a compaction fails: `Transaction.revert_on_error` rolls the rows
  back, then reverts files and records.
- A write or a sync fails: `Transaction.undo` rolls back and cuts the shards to their
  committed records, and the writer is closed.
- The commit itself fails: it may have reached the disk. The files stay as they are,
  the writer is closed, and the next one cuts the shards.
- A crash: the next writer cuts the shards to their committed records
  (`recovery.recover`).
- The user rolls back: the rows are removed, their members remain as dead space.

**Deletion** removes rows alone (`rows.delete_rows`); no byte of a shard changes before
a compaction, so that an undone deletion has its members.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from fastshard._core.dataset.npy import MemberBuffer
from fastshard._util.files import sync_directory
from fastshard.columnar.layout.schema import Field
from fastshard.columnar.layout.shard_limit import ShardLimits
from fastshard.columnar.read.leases import has_older_readers
from fastshard.columnar.write.append_file import SyncQueue
from fastshard.columnar.write.column import Column, ShardLength
from fastshard.columnar.write.connection import WriterConnection, begin, savepoint
from fastshard.columnar.write.fields import add_identities, pack_field
from fastshard.columnar.write.recovery import (
    adopt_rows,
    read_records,
    recover,
    referenced_shards,
)
from fastshard.columnar.write.replace import Replacements
from fastshard.errors import FormatError

__all__ = ["Transaction"]


class Transaction:
    """Uncommitted state of a writer, for one transaction after another.

    The module's docstring states the protocol. `session.WriterSession` calls the
    methods under its mutex, in order, and handles errors.

    Attributes
    ----------
    columns : dict of str to Column
        By field.
    buffers : dict of str to MemberBuffer
        Those of the columns, for `append_all`.
    sync_queue : SyncQueue
    replacements : Replacements
    last_id : int
        Number of the last generated id.
    commits : int
        Number of commits.
    committed_at : float
        Time of the last commit, by `time.monotonic`.
    is_committing : bool
        Whether a commit may have been sent to SQLite.
    is_closed : bool
    """

    def __init__(
        self,
        conn: WriterConnection,
        home: str,
        path: str,
        *,
        allow_pickle: bool,
        packs: bool,
    ) -> None:
        self.conn = conn
        self.home = home
        self.path = path
        self.allow_pickle = allow_pickle
        self.packs = packs
        self.columns: dict[str, Column] = {}
        self.buffers: dict[str, MemberBuffer] = {}
        self.sync_queue = SyncQueue()
        self.replacements = Replacements()
        self.last_id = 0
        self.commits = 0
        self.committed_at = time.monotonic()
        self.is_committing = False
        self.is_closed = False
        self._unsynced_folders: set[str] = set()

    def find_column(self, field: object) -> Column:
        """Return the column of a field, or raise ValueError."""
        column = self.columns.get(field) if isinstance(field, str) else None
        if column is None:
            raise ValueError(
                f"the field {field!r:.200} is not registered: call add_field() first"
            )
        return column

    def add_columns(self, fields: Iterable[Field], limits: ShardLimits) -> None:
        """Load those fields of the index that have no column yet."""
        for field in fields:
            if field.name not in self.columns:
                self._add_column(field, limits)

    def _add_column(self, field: Field, limits: ShardLimits) -> None:
        """Load a field, pack it if the writer packs, and recover its shards."""
        column = Column(
            field.name,
            os.path.join(self.home, field.folder),
            limits.find(packed=self.packs or field.is_packed),
            self.sync_queue,
            allow_pickle=self.allow_pickle,
            packs=self.packs,
        )
        column.is_packed = field.is_packed
        if self.packs and not field.is_packed:
            with savepoint(self.conn) as cursor:
                pack_field(cursor, field.name)
            column.is_packed = True
        elif field.is_packed and not field.has_identities:
            with savepoint(self.conn) as cursor:
                add_identities(cursor, field.name)
        cursor = sqlite3.Cursor(self.conn)
        recover(cursor, column)
        row = cursor.execute(
            "SELECT num_shards FROM fields WHERE name = ?", (field.name,)
        ).fetchone()
        column.num_shards = column.new_count = -1 if row is None else row[0]
        self.make_folder(column.folder)
        self.columns[field.name] = column
        self.buffers[field.name] = column.buffer

    def make_folder(self, folder: str) -> None:
        """Create a field's directory if it is missing; `prepare` syncs it."""
        if not os.path.isdir(folder):
            os.mkdir(folder)
            self._unsynced_folders.add(self.home)

    def load_last_id(self) -> None:
        """Read the number of the last generated id."""
        cursor = sqlite3.Cursor(self.conn)
        cursor.execute("SELECT value FROM counters WHERE name = 'sample_id'")
        row = cursor.fetchone()
        value = row[0] if row else 0
        if not isinstance(value, int) or value < 0:
            reason = (
                "counters.value of 'sample_id' must be the number of the last "
                f"generated id, got {value!r:.80}: correct it"
            )
            raise FormatError(reason, self.path, 0)
        self.last_id = value

    def store(self) -> None:
        """Do all of a commit but the commit itself: steps 1, 2, the records of 3."""
        if self.prepare():
            begin(self.conn)
        if self.conn.in_transaction:
            self.record()

    def prepare(self) -> bool:
        """Write and sync all members; return whether there are records to commit."""
        for column in self.columns.values():
            column.store()
        self.sync_queue.finish()
        for column in self.columns.values():
            if column.folder_changed:
                self._unsynced_folders.add(column.folder)
        for folder in self._unsynced_folders:
            sync_directory(folder)
        self._unsynced_folders.clear()
        for column in self.columns.values():
            column.folder_changed = False
        return any(column.pending for column in self.columns.values())

    def record(self) -> None:
        """Write shard records, shard counts and the last id to the open transaction."""
        cursor = sqlite3.Cursor(self.conn)
        for column in self.columns.values():
            for number in column.foreign & column.pending.keys():
                adopt_rows(cursor, column, number)
            cursor.executemany(
                "INSERT OR REPLACE INTO fastshard_shards "
                "(field, shard, nbytes, members) VALUES (?, ?, ?, ?)",
                [(column.name, n, *record) for n, record in column.pending.items()],
            )
            count = column.count_shards()
            if count != column.num_shards:
                cursor.execute(
                    "UPDATE fields SET num_shards = ? WHERE name = ?",
                    (count, column.name),
                )
                column.new_count = count
        cursor.execute(
            "UPDATE counters SET value = ? WHERE name = 'sample_id' AND value IS NOT ?",
            (self.last_id, self.last_id),
        )

    def mark_committed(self) -> None:
        """Note that the open transaction was committed; remove replaced files."""
        for column in self.columns.values():
            if column.pending or column.new_count != column.num_shards:
                column.mark_committed()
        if self.replacements.installed:
            self.replacements.mark_committed()
        self.conn.has_begun = False
        if self.conn.pending is not None:
            self.conn.pending.unflushed = 0
        self.commits += 1
        self.committed_at = time.monotonic()

    def is_lost(self) -> bool:
        """Return whether SQLite rolled a transaction back by itself."""
        return self.conn.has_begun and not self.conn.in_transaction

    @contextmanager
    def revert_on_error(self, column: Column) -> Iterator[None]:
        """Undo changes of rows and of a column's shards if the context raises.

        Nothing is uncommitted when it is entered, and the changes are committed
        inside; after that commit nothing is undone.
        """
        commits = self.commits
        pending, foreign = dict(column.pending), set(column.foreign)
        highest, is_packed = column.highest, column.is_packed
        try:
            yield
        except BaseException:
            if not self.is_closed and self.commits == commits:
                # Rows first: a file must not go while a row refers to it.
                with suppress(sqlite3.Error):
                    sqlite3.Connection.rollback(self.conn)
                self.conn.has_begun = False
                self.replacements.undo()
                column.pending, column.foreign = pending, foreign
                column.highest, column.is_packed = highest, is_packed
            raise

    def undo(self) -> None:
        """Roll back, and cut the files to their committed records; ignore errors.

        During a commit the files stay as they are: it may have reached the disk.
        """
        records: dict[str, dict[int, ShardLength]] | None = None
        if self.conn.pending is not None:
            self.conn.pending.forget()
        with suppress(sqlite3.Error):
            sqlite3.Connection.rollback(self.conn)
            if not self.is_committing:
                cursor = sqlite3.Cursor(self.conn)
                records = {name: read_records(cursor, name) for name in self.columns}
        if records is not None:
            self.replacements.undo()
        self.sync_queue.abandon()
        for name, column in self.columns.items():
            column.discard(None if records is None else records[name])

    def close(self) -> None:
        """Close files and connection; nothing more is written."""
        self.is_closed = True
        with suppress(OSError):
            for column in self.columns.values():
                column.discard(None)
        with suppress(sqlite3.Error):
            self.conn.finish()

    def find_removable(self) -> Iterator[tuple[Column, list[int]]]:
        """Yield columns, and their condemned shards that no reader needs."""
        removable: dict[int, bool] = {}  # by generation
        for column in self.columns.values():
            numbers = []
            for number, record in column.records.items():
                if not record.is_condemned:
                    continue
                generation = record.members
                if generation not in removable:
                    removable[generation] = not has_older_readers(
                        self.conn, self.home, generation
                    )
                if removable[generation]:
                    numbers.append(number)
            if numbers:
                yield column, numbers

    def remove_shards(self, column: Column, condemned: list[int]) -> None:
        """Remove condemned files, then their records. The caller commits.

        A file that cannot be removed now stays condemned.
        """
        numbers = []
        used = referenced_shards(sqlite3.Cursor(self.conn), column.name).intersection(
            condemned
        )
        for number in condemned:
            with suppress(OSError):
                if number not in used:  # by rows of another program
                    with suppress(FileNotFoundError):
                        os.unlink(column.path(number))
                numbers.append(number)
        sync_directory(column.folder)
        with savepoint(self.conn) as cursor:
            cursor.executemany(
                "DELETE FROM fastshard_shards WHERE field = ? AND shard = ?",
                ((column.name, number) for number in numbers),
            )
        for number in numbers:
            column.pending.pop(number, None)
            column.records.pop(number, None)
        column.foreign |= used
