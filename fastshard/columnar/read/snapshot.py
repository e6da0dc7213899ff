"""One state of a columnar dataset: its index, and its shards where they are needed."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from threading import Lock
from typing import Any
from weakref import WeakMethod, WeakSet

from fastshard._core.io.page_ring import PageRing
from fastshard.columnar.connection import (
    INDEX_ERRORS,
    ReaderConnection,
    begin,
    open_readers,
    translate_error,
)
from fastshard.columnar.read.leases import Lease, read_generation
from fastshard.columnar.samples import REPLACED, ColumnFiles, Unpickle
from fastshard.columnar.schema import (
    INDEX_NAME,
    parse_metadata,
    quote_name,
    read_fields,
)
from fastshard.dataset.shardset import mapping_limit
from fastshard.errors import ClosedError, SampleNotFoundError
from fastshard.formats.tar import Mode

__all__ = ["Snapshot", "row_sql", "rows_sql"]

WORTH_ALL = 16  # shards that are asked about one by one
CACHED = "PRAGMA cache_size = -65536"  # KiB: of a large index, most of its pages
ALL_RECORDS = "SELECT field, shard, nbytes FROM fastshard_shards"
RECORD = f"{ALL_RECORDS} WHERE field = ? AND shard = ?"
HAS_RECORDS = (
    "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'fastshard_shards'"
)
METADATA = "SELECT meta_json FROM samples WHERE id = ?"
living: WeakSet[Snapshot] = WeakSet()
inherited: list[ReaderConnection] = []  # of the process that this was forked from


def _leave_behind() -> None:
    """In a child of fork: SQLite's locks are the parent's, and its connections too."""
    for snapshot in list(living):
        snapshot.leave_behind()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_behind)


class Snapshot:
    """A dataset as it was when this was made, or renewed.

    A process that is forked from this one opens the index again, and sees it as it
    is then.

    Parameters
    ----------
    root : str
    mode : {"mmap", "private", "pread"}
    limit : int, optional
        How many shards may be open; otherwise `mapping_limit`.
    ring : PageRing, optional
        Bounds the resident pages of the shards.

    Attributes
    ----------
    path : str
        The index.
    folders : dict of str to str
        Of each field, below `root`.
    files : ColumnFiles
    open : ReaderConnection or None
        To look up rows of this state by; None: closed, or not opened again after a
        fork.
    asking : ReaderConnection or None
        The same for queries of users, which may take their time.
    generation : int
        Another one means another state.
    unpickle : callable or None
        What `Rows` take, to make arrays of Python objects.
    """

    def __init__(
        self,
        root: str,
        mode: Mode,
        limit: int | None = None,
        ring: PageRing | None = None,
    ) -> None:
        self.root = root
        self.path = os.path.join(root, INDEX_NAME)
        self.generation = 0
        self.unpickle: Unpickle | None = None
        recorded = WeakMethod(self._recorded)  # no cycle
        self.files = ColumnFiles(
            root,
            {},
            mode=mode,
            limit=limit or mapping_limit(),
            recorded=lambda field, shard: _called(recorded, field, shard),
            ring=ring,
        )
        self.open: ReaderConnection | None = None
        self.asking: ReaderConnection | None = None
        self._records: dict[tuple[str, int], int] | None = None
        self.closed = False
        self._opening = Lock()
        self._lease = Lease(root)
        self._inherited: Lease | None = None  # of the process that was forked
        self.connection()
        living.add(self)

    def leave_behind(self) -> None:
        """Forget the connections of the process that this one was forked from."""
        for connection in (self.open, self.asking):
            if connection is not None:
                inherited.append(connection)  # closing it would let go of the locks
        self.open = self.asking = None
        self._opening = Lock()
        if self._inherited is None:  # rows that were read before are still used
            self._lease, self._inherited = Lease(self.root), self._lease
        self.files.renew()
        self.generation += 1

    def _read(self, connection: ReaderConnection) -> None:
        fields = read_fields(connection, self.path)
        self.folders = {field.name: field.folder for field in fields}
        self.files.folders = self.folders
        self._records = None  # until shards are opened
        self._has_records = True  # until they are asked for
        self._asked = 0

    def connection(self) -> ReaderConnection:
        """Return a connection to this state; hold its lock to use it."""
        connection = self.open
        if connection is not None:
            return connection
        with self._opening:
            if self.closed:
                raise ClosedError(f"the reader of {self.root} is closed: open another")
            if self.open is None:
                self._lease.widen()
                try:
                    self.open, self.asking = self._connected()
                except BaseException:
                    self._lease.close()
                    raise
            return self.open

    def _connected(self) -> tuple[ReaderConnection, ReaderConnection]:
        """Open the index; the lease is narrowed to what is seen there."""
        connection, asking = open_readers(self.path, 2)
        try:
            connection.execute(CACHED)
            self._read(connection)
            inherited = self._inherited
            before = () if inherited is None else inherited.generations
            self._lease.narrow(read_generation(connection), *before)
            if inherited is not None:
                inherited.close()
                self._inherited = None
        except BaseException as error:
            connection.close()
            asking.close()
            if isinstance(error, INDEX_ERRORS):
                raise translate_error(error, self.path) from error
            raise
        return connection, asking

    def query_connection(self) -> ReaderConnection:
        """Return a connection to this state for queries of users."""
        self.connection()
        asking = self.asking
        if asking is None:
            raise ClosedError(f"the reader of {self.root} is closed: open another")
        return asking

    def renew(self) -> None:
        """See the dataset as it is now."""
        connection, asking = self.connection(), self.query_connection()
        with connection.lock, asking.lock:
            self.generation += 1
            try:
                self._lease.widen()
                begin(connection, asking)
                self._read(connection)
                self._lease.narrow(read_generation(connection))
            except BaseException as error:  # then it is opened again when it is used
                self.open = self.asking = None
                connection.close()
                asking.close()
                self._lease.close()
                if isinstance(error, INDEX_ERRORS):
                    raise translate_error(error, self.path) from error
                raise
        self.files.forget()  # those that are mapped may have grown

    def metadata(self, sample_id: str, text: str | None = None) -> Any:
        """Return the metadata of a sample, whose text may be known."""
        if text is not None:
            return parse_metadata(text, sample_id, self.path)
        connection = self.connection()
        try:
            with connection.lock:
                row = connection.execute(METADATA, (sample_id,)).fetchone()
        except INDEX_ERRORS as error:
            raise translate_error(error, self.path) from error
        if row is None:
            raise SampleNotFoundError(sample_id, self.root)
        return parse_metadata(row[0], sample_id, self.path)

    def _recorded(self, field: str, shard: int) -> int | None:
        """Return the bytes of a shard that fastshard wrote; see `ColumnFiles`."""
        self._asked += 1
        if self._records is None and self._asked > WORTH_ALL:
            self._records = {
                (name, number): nbytes
                for name, number, nbytes in self._read_records(ALL_RECORDS)
            }
        if self._records is not None:
            found = self._records.get((field, shard))
        else:
            rows = self._read_records(RECORD, (field, shard))
            found = rows[0][2] if rows else None
        return found if type(found) is int and found >= REPLACED else None

    def _read_records(self, sql: str, params: tuple[Any, ...] = ()) -> list[Any]:
        connection = self.connection()
        if not self._has_records:
            return []
        try:
            with connection.lock:
                try:
                    return connection.execute(sql, params).fetchall()
                except sqlite3.OperationalError:
                    if connection.execute(HAS_RECORDS).fetchone() is not None:
                        raise
                    self._has_records = False
                    return []
        except INDEX_ERRORS as error:
            raise translate_error(error, self.path) from error

    def close(self) -> None:
        """Let go of the index and of all shards."""
        self.closed = True
        connections = (self.open, self.asking)
        self.open = self.asking = None
        self.files.close()
        for connection in connections:
            if connection is not None:
                with connection.lock:  # a query goes on to its end
                    connection.close()
        self._lease.close()
        if self._inherited is not None:
            self._inherited.close()

    def __del__(self) -> None:
        if getattr(self, "open", None) is not None:
            self.close()


def row_sql(fields: Iterable[str]) -> str:
    """Return the query of an id's row: offset and shard of fields, metadata."""
    return f"SELECT {_columns(fields)} FROM samples WHERE id = ?"


def rows_sql(fields: Iterable[str]) -> str:
    """Return the same for a JSON array of ids; of one not there all is NULL.

    The row's own id comes last. One query takes less than one for each id.
    """
    return (
        f"SELECT {_columns(fields)}, samples.id FROM json_each(?) AS wanted "
        "LEFT JOIN samples ON samples.id = wanted.value"
    )


def _columns(fields: Iterable[str]) -> str:
    places = [
        quote_name(f"{field}_{what}")
        for field in fields
        for what in ("offset", "shard")
    ]
    return ", ".join([*places, "meta_json"])


def _called(method: WeakMethod[Any], *args: Any) -> Any:
    """Call a method of a snapshot, which must be there."""
    bound = method()
    if bound is None:
        raise ClosedError("the reader is gone")
    return bound(*args)
