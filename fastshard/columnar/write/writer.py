"""Writer of columnar datasets: arrays in tar shards, under one SQLite index."""

from __future__ import annotations

import atexit
import errno
import operator
import os
import sqlite3
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from fastshard._core.dataset.npy import MemberBuffer, append_all
from fastshard._util.files import sync_directory
from fastshard._util.options import named_options
from fastshard.columnar.connection import file_size
from fastshard.columnar.read.leases import create_lease_file
from fastshard.columnar.schema import (
    INDEX_NAME,
    MAX_COUNTER,
    Field,
    check_sample_id,
    create,
    has_tables,
    quote_name,
    read_fields,
    select_fields,
    shard_number,
)
from fastshard.columnar.values import encode_metadata
from fastshard.columnar.write import fields
from fastshard.columnar.write.column import WRITE_BYTES, Column, Record, Syncing
from fastshard.columnar.write.connection import (
    WriterConnection,
    begin,
    error_of,
    is_fatal,
    is_wrong,
    open_writer,
)
from fastshard.columnar.write.creation import clear_unfinished, create_index
from fastshard.columnar.write.fields import make_folder, make_root, savepoint
from fastshard.columnar.write.lock import (
    WriterLock,
    open_writers,
    opening,
    register,
    registered,
    unregister,
)
from fastshard.columnar.write.recovery import read_records, recover, take_over_shard
from fastshard.columnar.write.replace import Swap, Swaps
from fastshard.columnar.write.rewrite import (
    Compaction,
    compact_columns,
    remove_condemned,
)
from fastshard.columnar.write.shard_handle import ShardHandle
from fastshard.errors import ClosedError, FastshardError, FormatError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


__all__ = [
    "Adding",
    "ShardedDatasetWriter",
    "Storing",
    "close_dropped",
    "register_rows",
]


def close_dropped(writer: Storing) -> None:
    """Close a writer that nobody closed, and say so."""
    try:
        writer.close()
    finally:
        writer.let_go()  # if its samples cannot be stored, for now
        warnings.warn(
            f"the writer of {writer.root} was dropped without close()",
            ResourceWarning,
            stacklevel=3,
        )


def close_all() -> None:
    """Close them all. One that fails is no reason to leave the others."""
    for writer in open_writers():
        dropped: Any = writer
        try:
            close_dropped(dropped)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)


atexit.register(close_all)

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
        self._path = os.path.join(self._home, INDEX_NAME)
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

    # What a connection asks for: see `fastshard.columnar.write.connection.Guard`.

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
        create_lease_file(self._home, is_new=is_new)
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


MOST_TEXTS = 256  # SQL that is kept, of each kind


class Adding(Storing):
    """The part of a writer that appends arrays and writes the rows for them.

    Arrays are appended first. If the row cannot be written they are taken back; so
    a row never refers to what is not there.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        samples_per_shard: int = 1000,
        *,
        allow_pickle: bool = False,
    ) -> None:
        self._inserts: dict[tuple[str, ...], str] = {}  # SQL by fields
        self._updates: dict[tuple[object, ...], str] = {}  # with metadata or not
        super().__init__(root, samples_per_shard, allow_pickle=allow_pickle)

    def adopt(
        self,
        column: Column,
        number: int,
        record: Record,
        rows: dict[str, int],
        swap: Swap | None,
        *,
        existed: bool,
    ) -> None:
        """Let a shard that was written as a whole count, durably.

        Parameters
        ----------
        column : Column
        number : int
            The shard.
        record : Record
            Where it ends. It is on the disk.
        rows : dict of str to int
            Samples, and where their arrays begin. Others lose theirs in this shard.
        swap : Swap or None
            Puts its file in the place of another.
        existed : bool
            Whether rows that refer to the shard so far lose it.
        """
        self.flush()
        with self.withdrawing(column):
            try:
                self._swaps.finish()
                column.finish()
                with savepoint(self._conn) as cursor:
                    if swap is not None:
                        self._swaps.make(swap, cursor)
                    move_rows(cursor, column.name, number, rows, existed)
                    column.pending[number] = record
                    column.highest = max(column.highest, number)
            except (OSError, sqlite3.Error) as error:
                self._failed(error)
            self.flush()
        column.unsound.discard(number)

    @contextmanager
    def withdrawing(self, column: Column) -> Iterator[None]:
        """Let what is done to rows and a column's shards be nothing if it fails.

        It is made to count by a flush inside. Before it nothing is uncommitted.
        """
        commits = self._commits
        pending, foreign = dict(column.pending), set(column.foreign)
        highest = column.highest
        try:
            yield
        except BaseException:
            if not self.closed and self._commits == commits:
                # First the rows: files that they refer to must not go before.
                with suppress(sqlite3.Error):
                    sqlite3.Connection.rollback(self._conn)
                self._conn.begun = False
                self._swaps.undo()
                column.pending, column.foreign = pending, foreign
                column.highest = highest
            raise

    def _insert(
        self, arrays: Mapping[str, Any], sample_id: str, name: bytes, text: str
    ) -> bool:
        """Append a sample's arrays and insert its row; False: the id is taken."""
        arrays = copied(arrays)
        row, largest = self._append(arrays, name)
        row.append(sample_id)
        row.append(text)
        key = tuple(arrays)
        sql = self._inserts.get(key)
        if sql is None:
            if len(self._inserts) >= MOST_TEXTS:
                self._inserts.clear()
            sql = self._inserts[key] = insert_sql(key)
        try:
            if not self._conn.in_transaction:
                begin(self._conn)
            self._cursor.execute(sql, row)
        except sqlite3.IntegrityError as error:
            if self._is_lost():
                self._failed(error)
            self._take_back(arrays)
            if str(error) != "UNIQUE constraint failed: samples.id":
                raise ValueError(f"sample {sample_id!r:.200}: {error}") from error
            return False
        except sqlite3.Error as error:
            self._refused(error, arrays)
        if largest >= WRITE_BYTES:
            self._write_out(arrays)
        return True

    def _update(
        self, arrays: Mapping[str, Any], sample_id: str, name: bytes, text: str | None
    ) -> bool:
        """Append arrays and change a sample's row; False: there is no such sample."""
        arrays = copied(arrays)
        row, largest = self._append(arrays, name)
        if text is not None:
            row.append(text)
        row.append(sample_id)
        key = (text is not None, *arrays)
        sql = self._updates.get(key)
        if sql is None:
            if len(self._updates) >= MOST_TEXTS:
                self._updates.clear()
            sql = self._updates[key] = update_sql(tuple(arrays), text is not None)
        try:
            begin(self._conn)
            self._cursor.execute(sql, row)
        except sqlite3.Error as error:
            self._refused(error, arrays)
        if not self._cursor.rowcount:
            self._take_back(arrays)
            return False
        if largest >= WRITE_BYTES:
            self._write_out(arrays)
        return True

    def _make_folders(self, names: Iterable[str]) -> None:
        """Make the directories of new fields."""
        taken = {os.path.basename(c.folder).lower() for c in self._columns.values()}
        for folder in [f"{name}_shards" for name in names]:
            if folder.lower() in taken:
                raise ValueError(f"another field has the folder {folder}")
            if make_folder(os.path.join(self._home, folder)):
                self._folders.add(self._home)

    def _column(self, field: object) -> Column:
        column = self._columns.get(field) if isinstance(field, str) else None
        if column is None:
            raise ValueError(
                f"the field {field!r:.200} is not registered: call add_field() first"
            )
        return column

    def _append(self, arrays: Mapping[str, Any], name: bytes) -> tuple[list[Any], int]:
        """Append arrays to their shards; see `append_all`."""
        self._busy = True  # an array's own code may call the writer
        try:
            return append_all(self._buffers, arrays, name, self._make_room)
        except OSError as error:
            self._failed(error)
        finally:
            self._busy = False

    def _make_room(self, field: str) -> None:
        """Have the next shard of a field begun."""
        self._column(field).next_shard()

    def _take_back(self, appended: Iterable[str]) -> None:
        """Drop what was appended last to each of these fields."""
        for field in appended:
            self._buffers[field].drop_last()

    def _refused(self, error: sqlite3.Error, appended: Iterable[str]) -> NoReturn:
        """Raise for a row that could not be written."""
        if not is_fatal(error) and not self._is_lost():
            self._take_back(appended)
        self._failed(error)

    def _write_out(self, appended: Iterable[str]) -> None:
        """Write buffers that are full enough, and flush once in a while."""
        try:
            for field in appended:
                if len(self._buffers[field]) >= WRITE_BYTES:
                    self._columns[field].write()
        except OSError as error:
            self._failed(error)
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()


def copied(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays by field in a dict of our own, that no array's code changes."""
    if type(arrays) is not dict and not isinstance(arrays, Mapping):
        kind = type(arrays).__name__
        raise TypeError(f"arrays are a mapping from fields, not {kind}")
    return dict(arrays)


def move_rows(
    cursor: sqlite3.Cursor, field: str, number: int, rows: dict[str, int], existed: bool
) -> None:
    """Let a shard hold the arrays of these samples, new ones too, and of no others."""
    offset, shard = quote_name(f"{field}_offset"), quote_name(f"{field}_shard")
    if existed:
        cursor.execute(
            f"UPDATE samples SET {offset} = NULL, {shard} = NULL WHERE {shard} = ?",
            (number,),
        )
    register_rows(cursor, ((sample_id, "{}") for sample_id in rows))
    cursor.executemany(
        f"UPDATE samples SET {offset} = ?, {shard} = ? WHERE id = ?",
        ((at, number, sample_id) for sample_id, at in rows.items()),
    )


def register_rows(cursor: sqlite3.Cursor, rows: Iterable[tuple[str, str]]) -> None:
    """Add samples (id, metadata) without arrays; those that exist stay as they are."""
    cursor.executemany(
        "INSERT INTO samples (id, meta_json) VALUES (?, ?) ON CONFLICT (id) DO NOTHING",
        rows,
    )


def insert_sql(names: Sequence[str]) -> str:
    """Return SQL that adds a sample: offset and shard of each field, id, text."""
    columns = [*_columns_of(names), "id", "meta_json"]
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO samples ({', '.join(columns)}) VALUES ({marks})"


def update_sql(names: Sequence[str], with_text: bool) -> str:
    """Return SQL that changes one: offset and shard of each field, text, id."""
    columns = [*_columns_of(names), *(["meta_json"] if with_text else [])]
    if not columns:
        return "UPDATE samples SET id = id WHERE id = ?"
    return f"UPDATE samples SET {', '.join(f'{c} = ?' for c in columns)} WHERE id = ?"


def _columns_of(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield quote_name(f"{name}_offset")
        yield quote_name(f"{name}_shard")


class ShardedDatasetWriter(Adding):
    """Write arrays by field, a sample at a time, durably.

    >>> with ShardedDatasetWriter("data") as writer:
    ...     writer.add_fields(["history", "target"])
    ...     writer.add_sample({"history": x, "target": y}, metadata={"length": 100})

    Each field has tar shards of its own; ``index.sqlite`` says where each sample's
    arrays are. `flush` and `close` return when all of it is on the disk, and what
    they have acknowledged survives a killed process and a power loss. Samples
    since then are whole or not there. A shard that is full is a reason to flush
    too, once a minute.

    There is one writer of a dataset at a time, and any number of readers. In one
    process a new writer closes the one before it. It may be used by several
    threads, not by forked processes. One that is dropped is closed, with a
    `ResourceWarning`.

    Parameters
    ----------
    root : str or path-like
        The dataset's directory; it is made if need be. One that is there goes on
        where it stands.
    samples_per_shard : int
        Members of a shard at most.
    allow_pickle : bool
        Whether arrays of Python objects are stored, pickled.

    Attributes
    ----------
    root : Path
    samples_per_shard : int
    conn : sqlite3.Connection
        The index's, to add columns and SQL indexes. Its `commit` flushes.
    closed : bool

    Raises
    ------
    WriterLockedError
        Another process writes to the dataset.
    FormatError
        The index is damaged, or none of such a dataset; or it is gone, and its
        shards are there.
    OSError
        It cannot be opened.
    """

    @named_options("ShardedDatasetWriter")
    def __init__(
        self,
        root: str | os.PathLike[str],
        samples_per_shard: int = 1000,
        *,
        allow_pickle: bool = False,
    ) -> None:
        super().__init__(root, samples_per_shard, allow_pickle=allow_pickle)

    def add_field(self, name: str) -> None:
        """Add a field; see `add_fields`."""
        self.add_fields([name])

    def add_fields(self, names: Sequence[str]) -> None:
        """Add fields, durably. Those that are there already are passed over.

        Raises
        ------
        ValueError
            A name is no identifier, or a column of it is taken. None is added.
        OSError
            A directory cannot be made, or a file is in its place. None is added.
        """
        if isinstance(names, str):
            raise TypeError(f"names of fields are a list, not the str {names!r:.80}")
        with self._mutex:
            self.check_idle()
            self._learn_missed()
            columns = fields.columns_of(self._conn)
            new = fields.check_new_fields(list(names), dict(self._columns), columns)
            self._make_folders(new)
            try:
                with fields.savepoint(self._conn) as cursor:
                    for name in new:
                        base = os.path.join(self._home, f"{name}_shards")
                        fields.new_field(cursor, name, base)
                self._learn(select_fields(self._conn, self._path))
            except (OSError, sqlite3.Error) as error:
                self._failed(error)
            self.flush()

    def _learn_missed(self) -> None:
        """Learn of fields that an interrupt kept back, or the user's own SQL added."""
        if len(select_fields(self._conn, self._path)) > len(self._columns):
            try:
                self._learn(read_fields(self._conn, self._path))
            except (OSError, sqlite3.Error) as error:
                self._failed(error)

    def add_sample(
        self,
        arrays: Mapping[str, ArrayLike],
        sample_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Add a sample, whole or not at all.

        Parameters
        ----------
        arrays : Mapping of str to array_like
            By field; a field may be missing. Any shape, and any dtype without
            Python objects; stored as `np.save` does.
        sample_id : str, optional
            Any text but the empty one. By default ``sample_000000000001`` and so on.
        metadata : Mapping, optional
            What JSON can say.

        Returns
        -------
        str
            The sample's id.

        Raises
        ------
        ValueError
            The id is taken, the field is not registered, an array or the metadata
            cannot be stored. Nothing is written.
        TypeError
            An argument is of a wrong type. Nothing is written.
        OSError
            A shard or the index cannot be written; see `flush`.
        ClosedError
            The writer is closed.
        FormatError
            The index has counted as many ids as it can.
        """
        with self._mutex:
            if self._state or self._busy:
                self.check_idle()
            text = (
                "{}"
                if metadata is None
                else encode_metadata(metadata, sample_id, self._conn)
            )
            if sample_id is not None:
                if not self._insert(
                    arrays, sample_id, check_sample_id(sample_id), text
                ):
                    raise ValueError(
                        f"there is a sample {sample_id!r:.200} already: "
                        "use update_sample()"
                    )
                return sample_id
            while True:
                number = self._last_id + 1
                if number > MAX_COUNTER:
                    reason = f"counters.value has reached {MAX_COUNTER:,}: name the ids"
                    raise FormatError(reason, self._path, 0)
                generated = f"sample_{number:012d}"
                name = b"%b.npy" % generated.encode()
                is_new = self._insert(arrays, generated, name, text)
                self._last_id = number
                if is_new:
                    return generated

    def update_sample(
        self,
        sample_id: str,
        arrays: Mapping[str, ArrayLike],
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Replace arrays of a sample, or add them, whole or not at all.

        Fields that are not named keep theirs. The bytes that are replaced become
        dead space, which `compact` removes.

        Parameters
        ----------
        sample_id : str
        arrays : Mapping of str to array_like
            By field.
        metadata : Mapping, optional
            Takes the place of what there is, as a whole; None: it stays.

        Raises
        ------
        ValueError
            There is no such sample; or as for `add_sample`. Nothing is changed.
        TypeError, OSError, ClosedError
            As for `add_sample`.
        """
        with self._mutex:
            self.check_idle()
            text = (
                None
                if metadata is None
                else encode_metadata(metadata, sample_id, self._conn)
            )
            name = check_sample_id(sample_id)
            if not self._update(arrays, sample_id, name, text):
                raise ValueError(
                    f"there is no sample {sample_id!r:.200}: use add_sample()"
                )

    def register_samples(
        self,
        sample_ids: Sequence[str],
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Add samples without arrays, durably. Those that exist stay as they are.

        Parameters
        ----------
        sample_ids : sequence of str
        metadata : sequence of Mapping, optional
            One for each id.

        Raises
        ------
        ValueError
            An id or its metadata cannot be stored; or their numbers differ, or an id
            is there twice with other metadata. None is added.
        """
        if isinstance(sample_ids, str):
            raise TypeError(f"ids are a list, not the str {sample_ids!r:.80}")
        with self._mutex:
            self.check_idle()
            ids = list(sample_ids)
            if isinstance(metadata, (str, bytes, Mapping)):
                kind = type(metadata).__name__
                raise TypeError(
                    f"metadata is a list, a mapping for each id, not {kind}"
                )
            every = [None] * len(ids) if metadata is None else list(metadata)
            if len(every) != len(ids):
                raise ValueError(f"{len(ids):,} ids, and metadata of {len(every):,}")
            for sample_id in ids:
                check_sample_id(sample_id)
            rows = [
                (sample_id, encode_metadata(one, sample_id, self._conn))
                for sample_id, one in zip(ids, every, strict=True)
            ]
            if len(set(rows)) != len(set(ids)):
                raise ValueError("an id is there twice, with other metadata")
            try:
                with fields.savepoint(self._conn) as cursor:
                    register_rows(cursor, rows)
            except sqlite3.IntegrityError as error:
                raise ValueError(f"the samples cannot be added: {error}") from error
            except sqlite3.Error as error:
                self._failed(error)
            self.flush()

    def write_shard(
        self,
        field_name: str,
        shard_id: int,
        samples: Sequence[str],
        arrays: Sequence[ArrayLike],
        *,
        overwrite: bool = False,
    ) -> None:
        """Write a whole new shard of a field, durably; see `open_shard`.

        Parameters
        ----------
        field_name : str
        shard_id : int
            The shard's number.
        samples : sequence of str
            Ids, each once. Those of no sample are registered, without metadata.
        arrays : sequence of array_like
            One for each.
        overwrite : bool
            Whether a shard that exists is replaced.

        Raises
        ------
        ValueError
            As for `open_shard`; or the numbers of ids and arrays differ, or an id
            is there twice.
        FileExistsError
            There is such a shard, and `overwrite` is not set.
        """
        if isinstance(samples, (str, bytes)):
            raise TypeError(f"samples are a list of ids, not {samples!r:.80}")
        if len(samples) != len(arrays):
            raise ValueError(f"{len(samples):,} samples, and {len(arrays):,} arrays")
        if len(set(samples)) != len(samples):
            raise ValueError("a sample is there twice")
        number = operator.index(shard_id)
        with self._mutex:
            self.check_idle()
            column = self._column(field_name)
            if not overwrite and column.has_shard(number):
                reason = "the shard exists, and overwrite is not set"
                path = column.path(number)
                raise FileExistsError(errno.EEXIST, reason, path)
        with self.open_shard(field_name, number, overwrite=overwrite) as shard:
            for sample_id, array in zip(samples, arrays, strict=True):
                shard.add_sample(sample_id, array)

    def open_shard(
        self, field_name: str, shard_id: int | None = None, *, overwrite: bool = False
    ) -> ShardHandle:
        """Return a context manager that writes a shard of a field.

        >>> with writer.open_shard("history", shard_id=7) as shard:
        ...     shard.add_sample("sample_000000000001", array)

        When it is left the shard and all else that was added is on the disk; an
        exception inside leaves everything as it was. A shard that exists is gone on
        with: the samples in it keep their arrays, but for those that are written again.

        Parameters
        ----------
        field_name : str
        shard_id : int, optional
            The shard's number; the next one by default.
        overwrite : bool
            Replace a shard that exists. Samples whose arrays were there and are not
            written again have no such field afterwards.

        Returns
        -------
        ShardHandle

        Raises
        ------
        ValueError
            The field is not registered, or the number is negative.
        FileExistsError
            Nothing may be appended to the shard that is there, and `overwrite` is not
            set; or a compaction has replaced it, and it is about to be removed.
        """
        with self._mutex:
            self.check_idle()
            return ShardHandle(self, self._column(field_name), shard_id, overwrite)

    def add_metadata_column(
        self,
        name: str,
        path: str,
        type: str | type[Any] = "TEXT",  # noqa: A002
    ) -> None:
        """Add a column that is computed from the metadata, with an SQL index.

        >>> writer.add_metadata_column("length", "$.length", "INTEGER")
        >>> reader.query_ids("length > 128")

        It is there for the samples that exist and for those to come.

        Parameters
        ----------
        name : str
            Letters, digits and ``_``.
        path : str
            Where in the metadata, as SQLite's ``json_extract`` takes it.
        type : {"TEXT", "INTEGER", "REAL", "NUMERIC"}, or str, int, float, bool
            What values are turned into where that loses nothing.

        Raises
        ------
        ValueError
            The name is taken or none, the path or the type is none, or a sample's
            metadata is no JSON. Nothing is changed.
        """
        with self._mutex:
            self.check_idle()
            try:
                with fields.savepoint(self._conn) as cursor:
                    fields.new_metadata_column(cursor, name, path, type)
            except sqlite3.Error as error:
                self._failed(error)
            self.flush()

    def compact(self) -> Compaction:
        """Rewrite the shards of fields that have dead space, durably.

        Stored bytes are copied into new shards, in the order of the samples; one
        commit lets them count. A crash leaves either state. The old files are removed
        when no reader may open them any more: those that open readers still see stay
        until they are refreshed, closed or gone, and go with the next `compact`, when
        this writer is closed or when another is opened.

        Returns
        -------
        Compaction
            Bytes and numbers of shard files, before and after.

        Raises
        ------
        FormatError
            A shard is damaged, or lacks what a row refers to. Nothing is changed.
        OSError
            There is no room for the new shards. Nothing is changed.
        """
        with self._mutex:
            self.flush()
            return compact_columns(self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<ShardedDatasetWriter of {self.root}, {state}>"
