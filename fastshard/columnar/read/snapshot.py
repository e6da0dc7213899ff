"""Snapshot of a columnar dataset: one state of its index, and its shard files."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakMethod

from fastshard._core.io.paging import PageRing
from fastshard._util.options import near_fields, near_names, spell
from fastshard._util.processes.forks import ForkAware
from fastshard.columnar.layout.connection import (
    INDEX_ERRORS,
    ReaderConnection,
    begin,
    open_readers,
    translate_error,
)
from fastshard.columnar.layout.headers import Unpickle
from fastshard.columnar.layout.schema import INDEX_NAME, parse_metadata, read_fields
from fastshard.columnar.layout.shard_files import REPLACED, ColumnFiles
from fastshard.columnar.read.leases import Lease, read_generation
from fastshard.dataset.shardset import mapping_limit
from fastshard.errors import ClosedError, FieldNotFoundError, SampleNotFoundError
from fastshard.formats.tar import Mode

__all__ = ["Snapshot"]

T = TypeVar("T")

NEIGHBOURS = (
    "SELECT id FROM samples WHERE id >= ? ORDER BY id LIMIT 16",
    "SELECT id FROM samples WHERE id < ? ORDER BY id DESC LIMIT 16",
)
MAX_SIZE_QUERIES = 16  # shards whose recorded size is queried one by one
CACHE_SIZE = "PRAGMA cache_size = -4096"  # KiB: interior pages of some million rows
SIZES = "SELECT field, shard, nbytes FROM fastshard_shards"
SIZE = f"{SIZES} WHERE field = ? AND shard = ?"
HAS_SIZES = (
    "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'fastshard_shards'"
)
METADATA = "SELECT meta_json FROM samples WHERE id = ?"
inherited_connections: list[ReaderConnection] = []  # the parent's; never closed


class Snapshot(ForkAware):
    """State of a columnar dataset when it was opened or last refreshed.

    A forked child opens the index again at its first use and sees the state of that
    moment.

    Attributes
    ----------
    home : str
        Absolute path of the dataset's directory.
    path : str
        Absolute path of the index.
    folders : dict of str to str
        Folder of each field, below `root`, in the order the fields were added.
    packed : dict of str to bool
        Fields that may have packs, and whether the stored rows have identities.
    files : ColumnFiles
    lookup_connection : ReaderConnection or None
        For row lookups. None after `close`, and after a fork or a failed refresh
        until the next `connect`.
    query_connection : ReaderConnection or None
        The same for user queries, which may hold its lock for long.
    generation : int
        Number of the state; changed by a refresh, a fork and `close`.
    closed : bool
    """

    def __init__(
        self,
        root: str,
        mode: Mode,
        limit: int | None = None,
        ring: PageRing | None = None,
        *,
        keep_shards: bool = True,
        unpickle: Unpickle | None = None,
    ) -> None:
        self.root = root
        self.home = os.path.abspath(root)
        self.path = os.path.join(self.home, INDEX_NAME)
        self.keep_shards = keep_shards
        self.unpickle = unpickle
        self.generation = 0
        size_method = WeakMethod(self._read_size)  # no reference cycle
        self.files = ColumnFiles(
            self.home,
            {},
            mode=mode,
            limit=limit or mapping_limit(),
            recorded=lambda field, shard: _call(size_method, field, shard),
            ring=ring,
        )
        self.lookup_connection: ReaderConnection | None = None
        self.query_connection: ReaderConnection | None = None
        self.closed = False
        self._opening = Lock()
        self._lease = Lease(self.home)
        self._inherited_lease: Lease | None = None  # the parent's, after a fork
        self.connect()
        super().__init__()

    def reset_after_fork(self) -> None:
        """Drop the parent's connections and lock: a fork inherits no SQLite locks."""
        for connection in (self.lookup_connection, self.query_connection):
            if connection is not None:
                # Closing it would drop the parent's locks.
                inherited_connections.append(connection)
        self.lookup_connection = self.query_connection = None
        self._opening = Lock()
        if self._inherited_lease is None:  # rows read before the fork are still used
            self._lease, self._inherited_lease = Lease(self.home), self._lease
        self.files.reset_after_fork()
        self.generation += 1

    def _read_schema(self, connection: ReaderConnection) -> None:
        fields = read_fields(connection, self.path)
        self.folders = {field.name: field.folder for field in fields}
        self.packed = {f.name: f.has_identities for f in fields if f.is_packed}
        self.files.folders = self.folders
        self.files.sizes = None
        self._has_sizes = True  # until a query finds no table
        self._size_queries = 0

    def connect(self) -> ReaderConnection:
        """Return the connection for row lookups; hold its lock to use it."""
        connection = self.lookup_connection
        if connection is not None:
            return connection
        with self._opening:
            if self.closed:
                raise self.closed_error()
            if self.lookup_connection is None:
                self._lease.widen()
                try:
                    self.lookup_connection, self.query_connection = self._open_index()
                except BaseException:
                    self._lease.close()
                    raise
                if self.closed:  # by another thread, meanwhile
                    self._close_index()
            connection = self.lookup_connection
        if connection is None:
            raise self.closed_error()
        return connection

    def connect_query(self) -> ReaderConnection:
        """Return the connection for user queries; see `connect`."""
        self.connect()
        connection = self.query_connection
        if connection is None:  # another thread closed the snapshot
            raise self.closed_error()
        return connection

    def _open_index(self) -> tuple[ReaderConnection, ReaderConnection]:
        """Open both connections at one state; narrow the lease to that state."""
        lookups, queries = open_readers(self.path, 2)
        try:
            lookups.execute(CACHE_SIZE)
            self._read_schema(lookups)
            inherited = self._inherited_lease
            before = () if inherited is None else inherited.generations
            self._lease.narrow(read_generation(lookups), *before)
            if inherited is not None:
                inherited.close()
                self._inherited_lease = None
        except BaseException as error:
            lookups.close()
            queries.close()
            if isinstance(error, INDEX_ERRORS):
                raise translate_error(error, self.path) from error
            raise
        return lookups, queries

    def refresh(self) -> None:
        """Move to the dataset's present state."""
        lookups, queries = self.connect(), self.connect_query()
        try:
            if lookups.is_frozen:
                self.generation += 1
                self.lookup_connection = self.query_connection = None
                self.connect()
            else:
                self._begin_state(lookups, queries)
        finally:
            self.files.renew()  # a mapped shard may have grown

    def _begin_state(
        self, lookups: ReaderConnection, queries: ReaderConnection
    ) -> None:
        """Move both connections to the present state; close them after an error."""
        with lookups.lock, queries.lock:
            self.generation += 1
            try:
                self._lease.widen()
                begin(lookups, queries)
                self._read_schema(lookups)
                self._lease.narrow(read_generation(lookups))
            except BaseException as error:
                self.lookup_connection = self.query_connection = None
                lookups.close()
                queries.close()
                self._lease.close()
                if isinstance(error, INDEX_ERRORS):
                    raise self.translate_error(error) from error
                raise

    def resolve_fields(self, fields: str | Iterable[str] | None) -> list[str]:
        """Return a list of field names; None stands for all fields."""
        folders = self.folders
        if fields is None:
            return list(folders)
        names = [fields] if isinstance(fields, str) else list(fields)
        for name in names:
            if name not in folders:
                raise FieldNotFoundError(
                    name,
                    f"{self.root}, which has {', '.join(folders)}",
                    partial(near_fields, name, list(folders)),
                )
        return names

    def select(self, sql: str, params: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, run on the connection for row lookups."""
        return self.read(lambda conn: conn.execute(sql, params).fetchall())

    def read(self, task: Callable[[ReaderConnection], T]) -> T:
        """Call a function with the connection for row lookups; raises as `select`."""
        connection = self.connect()
        try:
            with connection.lock:
                return task(connection)
        except INDEX_ERRORS as error:
            raise self.translate_error(error) from error

    def translate_error(self, error: Exception) -> Exception:
        """Return the exception to raise for one of `INDEX_ERRORS`."""
        if self.closed:  # by another thread, during the statement
            return self.closed_error()
        return translate_error(error, self.path)

    def closed_error(self) -> ClosedError:
        """Return the error of a use after `close`."""
        return ClosedError(f"the reader of {self.root} is closed: open another")

    def metadata(self, sample_id: str, text: str | None = None) -> Any:
        """Return a sample's metadata, parsed from `text` or else from the index."""
        if text is None:
            rows = self.select(METADATA, (sample_id,))
            if not rows:
                raise self.sample_error(sample_id)
            text = rows[0][0]
        return parse_metadata(text, sample_id, self.path)

    def sample_error(self, sample_id: str) -> SampleNotFoundError:
        """Return the error for an id without a sample."""
        near = partial(self._similar, sample_id)
        return SampleNotFoundError(sample_id, self.root, near)

    def _similar(self, sample_id: str) -> tuple[str, ...]:
        """Return ids similar to an absent one, of its neighbours in sorted order."""
        first = self.select("SELECT min(id) FROM samples")[0][0] or ""
        found = [
            row[0]
            for spelling in spell(sample_id, first)
            for sql in NEIGHBOURS
            for row in self.select(sql, (spelling,))
        ]
        return near_names(sample_id, len(found), found.__getitem__)

    def release_shards(self) -> None:
        """Release the open shards at the end of a call, unless they are to be kept."""
        if not self.keep_shards:
            self.files.release()

    def _read_size(self, field: str, shard: int) -> int | None:
        """Return a shard's recorded size; see `ColumnFiles`."""
        self._size_queries += 1
        all_sizes = self._size_queries > MAX_SIZE_QUERIES
        rows = self._select_sizes(*((SIZES,) if all_sizes else (SIZE, (field, shard))))
        sizes: dict[tuple[str, int], int] = {
            (name, number): nbytes
            for name, number, nbytes in rows
            if type(nbytes) is int and nbytes >= REPLACED
        }
        if all_sizes:
            self.files.sizes = sizes
        return sizes.get((field, shard))

    def _select_sizes(self, sql: str, params: tuple[Any, ...] = ()) -> list[Any]:
        """Return rows of ``fastshard_shards``; none if other software made the index.

        The table's absence is looked up only when a query fails.
        """
        connection = self.connect()
        if not self._has_sizes:
            return []
        try:
            with connection.lock:
                try:
                    return connection.execute(sql, params).fetchall()
                except sqlite3.OperationalError:
                    if connection.execute(HAS_SIZES).fetchone() is not None:
                        raise
                    self._has_sizes = False
                    return []
        except INDEX_ERRORS as error:
            raise translate_error(error, self.path) from error

    def close(self) -> None:
        """Close the index and release all shards; arrays stay valid."""
        self.closed = True
        self.generation += 1  # lookups of the last state are outdated too
        self.files.close()
        self._close_index()

    def _close_index(self) -> None:
        """Close the connections and end the leases."""
        connections = (self.lookup_connection, self.query_connection)
        self.lookup_connection = self.query_connection = None
        for connection in connections:
            if connection is not None:
                with connection.lock:  # waits for a running query
                    connection.close()
        self._lease.close()
        if self._inherited_lease is not None:
            self._inherited_lease.close()

    def __del__(self) -> None:
        if getattr(self, "lookup_connection", None) is not None:
            self.close()


def _call(method: WeakMethod[Any], *args: Any) -> Any:
    """Call a method of a snapshot."""
    bound = method()
    if bound is None:
        raise ClosedError("the reader of these shards no longer exists")
    return bound(*args)
