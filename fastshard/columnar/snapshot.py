"""One state of a columnar dataset: its index, and its shards where they are needed."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from typing import Any

from fastshard.columnar.connect import ReaderConnection, begin, fault_of, open_reader
from fastshard.columnar.metadata import parse_metadata
from fastshard.columnar.schema import NAME, quoted, read_fields
from fastshard.errors import ClosedError, SampleNotFoundError
from fastshard.formats.columnar import ColumnFiles, Columns
from fastshard.formats.local import Mode
from fastshard.shardset import mapping_limit

__all__ = ["Snapshot"]

RECORD = "SELECT 1 FROM fastshard_shards WHERE field = ? AND shard = ?"
HAS_RECORDS = (
    "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'fastshard_shards'"
)
METADATA = "SELECT meta_json FROM samples WHERE id = ?"
inherited: list[ReaderConnection] = []  # of the process that this was forked from


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

    Attributes
    ----------
    path : str
        The index.
    folders : dict of str to str
        Of each field, below `root`.
    files : ColumnFiles
    owner : Columns
    """

    def __init__(self, root: str, mode: Mode, limit: int | None = None) -> None:
        self.root = root
        self.path = os.path.join(root, NAME)
        self.files = ColumnFiles(
            root,
            {},
            mode=mode,
            limit=limit or mapping_limit(),
            believed=self._is_recorded,
        )
        self.owner = Columns(self.path, self.files, self.metadata)
        self._open()

    def _open(self) -> None:
        self._connection: ReaderConnection | None = open_reader(self.path)
        self._pid = os.getpid()
        try:
            self._read()
        except BaseException:
            self._connection.close()
            raise

    def _read(self) -> None:
        connection = self._connection
        assert connection is not None
        fields = read_fields(connection, self.path)
        self.folders = {field.name: field.folder for field in fields}
        self.files.folders = self.folders
        self._records = connection.execute(HAS_RECORDS).fetchone() is not None

    def connection(self) -> ReaderConnection:
        """Return a connection to this state; hold its lock to use it."""
        connection = self._connection
        if connection is None:
            raise ClosedError(f"the reader of {self.root} is closed")
        if self._pid != os.getpid():  # SQLite's locks do not outlive a fork
            inherited.append(connection)
            self._open()
            connection = self._connection
            assert connection is not None
        return connection

    def renew(self) -> None:
        """See the dataset as it is now."""
        connection = self.connection()
        with connection.lock:
            try:
                begin(connection)
                self._read()
            except sqlite3.Error as error:
                raise fault_of(error, self.path) from error
        self.files.forget()  # those that are mapped may have grown

    def row_sql(self, fields: Iterable[str]) -> str:
        """Return the query of an id's row: offset and shard of fields, metadata."""
        columns = [
            quoted(f"{field}_{what}")
            for field in fields
            for what in ("offset", "shard")
        ]
        wanted = ", ".join([*columns, "meta_json"])
        return f"SELECT {wanted} FROM samples WHERE id = ?"

    def metadata(self, sample_id: str) -> Any:
        """Return the metadata of a sample."""
        connection = self.connection()
        try:
            with connection.lock:
                row = connection.execute(METADATA, (sample_id,)).fetchone()
        except sqlite3.Error as error:
            raise fault_of(error, self.path) from error
        if row is None:
            raise SampleNotFoundError(sample_id, self.root)
        return parse_metadata(row[0], sample_id, self.path)

    def _is_recorded(self, field: str, shard: int) -> bool:
        """Say whether a shard is one that fastshard wrote, with true offsets."""
        connection = self.connection()
        if not self._records:
            return False
        try:
            with connection.lock:
                found = connection.execute(RECORD, (field, shard)).fetchone()
        except sqlite3.Error as error:
            raise fault_of(error, self.path) from error
        return found is not None

    def close(self) -> None:
        """Let go of the index and of all shards."""
        connection, self._connection = self._connection, None
        self.files.close()
        if connection is None:
            return
        if self._pid == os.getpid():
            connection.close()
        else:
            inherited.append(connection)

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:
            self.close()
