"""An index in an SQLite file, with the tables that atdata makes."""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

from fastshard.errors import ClosedError
from fastshard.typed.index.entry import DatasetEntry
from fastshard.typed.index.providers.protocol import (
    ChooseVersion,
    IndexProvider,
    LabelRow,
    latest_label,
    newest_version,
)
from fastshard.typed.index.providers.rows import (
    Row,
    check_label,
    check_text,
    check_version,
    is_text,
    no_entry,
    no_label,
    pack_entry,
)
from fastshard.typed.index.providers.sqlite_file import (
    IndexConnection,
    connect_reader,
    connect_writer,
    hold_for_fork,
    is_stale,
    translate_error,
)

__all__ = ["SqliteProvider"]

TIMEOUT = 30.0  # seconds for another process's lock, or for a query
ENTRY = (
    "SELECT cid, name, schema_ref, data_urls, metadata, legacy_uuid "
    "FROM dataset_entries"
)
# An upsert keeps the columns that a later version may have. The row comes last by
# `created_at`, and within one second, or where clocks differ, by its rowid.
WRITTEN_LAST = (
    "created_at = max(datetime('now'), coalesce(created_at, '')), "
    "rowid = (SELECT max(rowid) + 1 FROM {table})"
)
STORE_ENTRY = (
    "INSERT INTO dataset_entries "
    "(cid, name, schema_ref, data_urls, metadata, legacy_uuid) "
    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (cid) DO UPDATE SET "
    "name = excluded.name, schema_ref = excluded.schema_ref, "
    "data_urls = excluded.data_urls, metadata = excluded.metadata, "
    "legacy_uuid = excluded.legacy_uuid, "
    + WRITTEN_LAST.format(table="dataset_entries")
)
LABEL = "SELECT name, cid, version, description, created_at FROM labels"
LATEST = " ORDER BY created_at DESC, rowid DESC"
STORE_LABEL = (
    "INSERT INTO labels (name, cid, version, description) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (name, version) DO UPDATE SET cid = excluded.cid, "
    "description = excluded.description, " + WRITTEN_LAST.format(table="labels")
)

TABLES = {"schema": "schemas", "lens": "lenses"}
JSON = {
    kind: f"SELECT name, version, {kind}_json FROM {table}"
    for kind, table in TABLES.items()
}
STORE_JSON = {
    kind: f"INSERT INTO {table} (name, version, {kind}_json) VALUES (?, ?, ?) "
    f"ON CONFLICT (name, version) DO UPDATE SET {kind}_json = excluded.{kind}_json"
    for kind, table in TABLES.items()
}


class SqliteProvider(IndexProvider):
    """Index in an SQLite file.

    Each thread and process that uses it has a connection of its own. Reading makes no
    file: an index that does not exist is empty. A file on a disk that cannot be
    written is read, with the changes in a ``-wal`` beside it.

    Parameters
    ----------
    path : str or path-like, optional
        The file, by default ``~/.atdata/index.db``. It is made by the first write,
        with its folder.
    timeout : float
        Seconds to wait for another process's lock, and for a query.

    Examples
    --------
    >>> from fastshard import typed
    >>> with typed.create_provider("sqlite", path="index.db") as provider:
    ...     provider.store_label("train", "bafyreidataset")
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, timeout: float = TIMEOUT
    ) -> None:
        given = "~/.atdata/index.db" if path is None else os.fspath(path)
        self._path = Path(os.path.abspath(os.path.expanduser(given)))
        self._shown = given
        self._timeout = timeout
        self._idle: deque[IndexConnection] = deque()
        self._own: IndexConnection | None = None
        self._closed = False
        _providers.add(self)

    @property
    def path(self) -> Path:
        """The file, as an absolute path.

        Examples
        --------
        >>> typed.create_provider("sqlite", path="index.db").path.name
        'index.db'
        """
        return self._path

    @property
    def location(self) -> str:
        """The file, as given."""
        return self._shown

    def __repr__(self) -> str:
        return f"SqliteProvider({self._shown!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_provider, (str(self._path), self._shown, self._timeout)

    # Entries

    def store_entry(self, entry: DatasetEntry) -> None:
        with self._writing() as connection:
            connection.execute(STORE_ENTRY, pack_entry(entry))

    def get_entry_by_cid(self, cid: str) -> DatasetEntry:
        rows = self._select(f"{ENTRY} WHERE cid = ?", cid)
        if not rows:
            raise no_entry("cid", cid, self._shown)
        return self._entry(rows[0])

    def get_entry_by_name(self, name: str) -> DatasetEntry:
        rows = self._select(f"{ENTRY} WHERE name = ?{LATEST} LIMIT 1", name)
        if not rows:
            raise no_entry("name", name, self._shown)
        return self._entry(rows[0])

    def iter_entries(self) -> Iterator[DatasetEntry]:
        return map(self._entry, self._select(f"{ENTRY} ORDER BY rowid"))

    def remove_entry(self, cid: str) -> None:
        if not self._change("DELETE FROM dataset_entries WHERE cid = ?", cid):
            raise no_entry("cid", cid, self._shown)

    def _entry(self, row: Sequence[object]) -> DatasetEntry:
        return Row(self._shown, "dataset_entries", row[0]).entry(*row)

    # Labels

    def store_label(
        self,
        name: str,
        cid: str,
        version: str | None = None,
        description: str | None = None,
    ) -> None:
        values = check_label(name, cid, version, description)
        with self._writing() as connection:
            connection.execute(STORE_LABEL, values)

    def get_label(
        self, name: str, version: str | None = None
    ) -> tuple[str, str | None]:
        found = latest_label(self._labels(name, version))
        if found is None:
            raise no_label(name, version, self._shown)
        return found.cid, found.version

    def iter_labels(self) -> Iterator[tuple[str, str, str | None]]:
        return (row[:3] for row in self.iter_label_rows())

    def iter_label_rows(self, name: str | None = None) -> Iterator[LabelRow]:
        return iter(self._labels(name))

    def remove_label(self, name: str, version: str | None = None) -> None:
        sql = "DELETE FROM labels WHERE name = ? AND version = ?"
        if not self._change(sql, name, version or ""):
            raise no_label(name, version, self._shown)

    def _labels(
        self, name: str | None = None, version: str | None = None
    ) -> list[LabelRow]:
        """Return labels, those of one name with the one written last first."""
        if name is None:
            rows = self._select(f"{LABEL} ORDER BY rowid")
        elif version is None:
            rows = self._select(f"{LABEL} WHERE name = ?{LATEST}", name)
        else:
            where = "WHERE name = ? AND version = ?"
            rows = self._select(f"{LABEL} {where}", name, version)
        return list(map(self._label, rows))

    def _label(self, values: Sequence[object]) -> LabelRow:
        name, cid, version, description, created_at = values
        row = Row(self._shown, "labels", values[0::2][:2])
        return LabelRow(
            row.text(name, "name"),
            row.text(cid, "cid"),
            row.text(version, "version") or None,
            row.optional_text(description, "description"),
            row.optional_text(created_at, "created_at"),
        )

    # Schemas and lenses

    def store_schema(self, name: str, version: str, schema_json: str) -> None:
        self._store_json("schema", name, version, schema_json)

    def get_schema_json(self, name: str, version: str) -> str | None:
        return self._get_json("schema", name, version)

    def iter_schemas(self) -> Iterator[tuple[str, str, str]]:
        return self._iter_json("schema")

    def find_latest_version(self, name: str) -> str | None:
        return newest_version(self._versions("schema", name))

    def store_schema_version(self, name: str, choose: ChooseVersion) -> str:
        return self._store_version("schema", name, choose)

    def store_lens(self, name: str, version: str, lens_json: str) -> None:
        self._store_json("lens", name, version, lens_json)

    def get_lens_json(self, name: str, version: str) -> str | None:
        return self._get_json("lens", name, version)

    def iter_lenses(self) -> Iterator[tuple[str, str, str]]:
        return self._iter_json("lens")

    def find_latest_lens_version(self, name: str) -> str | None:
        return newest_version(self._versions("lens", name))

    def store_lens_version(self, name: str, choose: ChooseVersion) -> str:
        return self._store_version("lens", name, choose)

    def _store_json(self, kind: str, name: str, version: str, text: str) -> None:
        values = _check_json(kind, name, version, text)
        with self._writing() as connection:
            connection.execute(STORE_JSON[kind], values)

    def _get_json(self, kind: str, name: str, version: str) -> str | None:
        sql = f"{JSON[kind]} WHERE name = ? AND version = ?"
        rows = self._select(sql, name, version)
        return self._json(kind, rows[0])[2] if rows else None

    def _iter_json(self, kind: str) -> Iterator[tuple[str, str, str]]:
        rows = self._select(f"{JSON[kind]} ORDER BY rowid")
        return (self._json(kind, row) for row in rows)

    def _versions(self, kind: str, name: str) -> dict[str, str]:
        rows = self._select(f"{JSON[kind]} WHERE name = ? ORDER BY rowid", name)
        return dict(self._json(kind, row)[1:] for row in rows)

    def _store_version(self, kind: str, name: str, choose: ChooseVersion) -> str:
        check_text(name, "name")
        with self._writing() as connection:
            connection.execute("BEGIN IMMEDIATE")  # `_using` rolls back
            sql = f"{JSON[kind]} WHERE name = ? ORDER BY rowid"
            rows = connection.execute(sql, (name,)).fetchall()
            version, text = choose(dict(self._json(kind, row)[1:] for row in rows))
            if text is not None:
                values = _check_json(kind, name, version, text)
                connection.execute(STORE_JSON[kind], values)
            connection.execute("COMMIT")
        return version

    def _json(self, kind: str, values: Sequence[object]) -> tuple[str, str, str]:
        row = Row(self._shown, TABLES[kind], values[:2])
        name, version, text = values
        return (
            row.text(name, "name"),
            row.text(version, "version"),
            row.text(text, f"{kind}_json"),
        )

    # Connections

    def close(self) -> None:
        self._closed = True
        self._drop_idle()

    @property
    def _conn(self) -> IndexConnection:
        """A connection for SQL of one's own, as `atdata` has it."""
        if self._own is None:
            self._own = self._connect(True)
        return self._own

    def _select(self, sql: str, *values: str) -> list[Any]:
        if not all(map(is_text, values)):
            return []  # no row has it
        with self._using(False) as connection:
            return connection.execute(sql, values).fetchall()

    def _change(self, sql: str, *values: str) -> int:
        """Run a statement that changes rows; return their number."""
        with self._writing() as connection:
            changed: int = connection.execute(sql, values).rowcount
            return changed

    def _writing(self) -> AbstractContextManager[IndexConnection]:
        return self._using(True)

    @contextmanager
    def _using(self, writing: bool) -> Iterator[IndexConnection]:
        """Lend a connection to one thread, outside a transaction."""
        connection = self._take(writing)
        try:
            with connection.lock:
                connection.begin_call(self._timeout)
                yield connection
        except BaseException as error:
            connection.end_call()
            if isinstance(error, (sqlite3.Error, UnicodeError)):
                connection.close()
                raise translate_error(error, self._shown) from None
            self._give_back(connection)
            raise
        self._give_back(connection)

    def _take(self, writing: bool) -> IndexConnection:
        if self._closed:
            raise ClosedError(f"the index {self._shown} is closed")
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if is_stale(connection) or (writing and not connection.is_prepared):
                connection.close()
                continue
            return connection
        return self._connect(writing)

    def _connect(self, writing: bool) -> IndexConnection:
        connect = connect_writer if writing else connect_reader
        return connect(str(self._path), self._shown, self._timeout)

    def _give_back(self, connection: IndexConnection) -> None:
        if self._closed or connection.is_temporary:
            connection.close()
        else:
            self._idle.append(connection)

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _after_fork(self) -> None:
        """Forget the parent's connections."""
        _inherited.extend(self._idle)
        if self._own is not None:
            _inherited.append(self._own)
        self._idle, self._own = deque(), None


def _open_provider(path: str, shown: str, timeout: float) -> SqliteProvider:
    """Make a provider of what its pickle has."""
    provider = SqliteProvider(path, timeout=timeout)
    provider._shown = shown
    return provider


def _check_json(kind: str, name: str, version: str, text: str) -> tuple[str, ...]:
    return (
        check_text(name, "name"),
        check_version(version),
        check_text(text, f"{kind}_json"),
    )


_providers: WeakSet[SqliteProvider] = WeakSet()
_inherited: list[IndexConnection] = []  # the parent's; never used nor closed
_held: list[IndexConnection] = []


def _before_fork() -> None:
    _held.extend(hold_for_fork())


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop().lock.release()


def _after_fork_in_child() -> None:
    _inherited.extend(_held)
    _held.clear()
    for provider in list(_providers):
        provider._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
