"""Base of the indexes in SQL tables: SQLite and Postgres."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fastshard.catalog.entry import DatasetEntry
from fastshard.catalog.providers.protocol import (
    ChooseVersion,
    IndexProvider,
    LabelRow,
    latest_label,
    newest_version,
)
from fastshard.catalog.providers.rows import (
    Row,
    check_label,
    check_text,
    check_version,
    is_storable,
    no_entry,
    no_label,
    pack_entry,
)

__all__ = ["Run", "SqlProvider"]

ENTRY = (
    "SELECT cid, name, schema_ref, data_urls, metadata, legacy_uuid "
    "FROM dataset_entries"
)
STORE_ENTRY = (
    "INSERT INTO dataset_entries "
    "(cid, name, schema_ref, data_urls, metadata, legacy_uuid, created_at) "
    "VALUES (?, ?, ?, ?, ?, ?, {now}) ON CONFLICT (cid) DO UPDATE SET "
    "name = excluded.name, schema_ref = excluded.schema_ref, "
    "data_urls = excluded.data_urls, metadata = excluded.metadata, "
    "legacy_uuid = excluded.legacy_uuid, created_at = excluded.created_at{last}"
)
LABEL = "SELECT name, cid, version, description, {created_at} FROM labels"
STORE_LABEL = (
    "INSERT INTO labels (name, cid, version, description, created_at) "
    "VALUES (?, ?, ?, ?, {now}) ON CONFLICT (name, version) DO UPDATE SET "
    "cid = excluded.cid, description = excluded.description, "
    "created_at = excluded.created_at{last}"
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
Run = Callable[..., list[Any]]  # a statement and its values; returns the rows


class SqlProvider(IndexProvider):
    """Index in four tables. An upsert keeps the columns of later versions.

    The row of a name that was written last has the latest `created_at`; where two are
    equal, `last` of the dialect decides.

    Attributes
    ----------
    now : str
        SQL of the time of a row; ``{table}`` is its table.
    last : str
        SQL added to an upsert of a row that exists.
    created_at : str
        SQL of the time as text.
    written : str
        SQL of the order in which rows were written; ``DESC`` can follow.
    """

    now = last = created_at = written = ""

    @abstractmethod
    def _select(self, sql: str, *values: str) -> list[Any]:
        """Return the rows of a query; empty if a value cannot be in rows."""

    @abstractmethod
    def _change(self, sql: str, *values: object) -> int:
        """Run a statement that changes rows; return their number."""

    @abstractmethod
    def _choosing(self, table: str, name: str) -> AbstractContextManager[Run]:
        """Begin a transaction that locks the rows of a name."""

    # Entries

    def store_entry(self, entry: DatasetEntry) -> None:
        cid, name, *values = pack_entry(entry)
        sql = self._dialect(STORE_ENTRY, "dataset_entries")
        self._change(sql, cid, name, *values, name)

    def get_entry_by_cid(self, cid: str) -> DatasetEntry:
        rows = self._select(f"{ENTRY} WHERE cid = ?", cid)
        if not rows:
            raise no_entry("cid", cid, self.location)
        return self._entry(rows[0])

    def get_entry_by_name(self, name: str) -> DatasetEntry:
        rows = self._select(
            f"{ENTRY} WHERE name = ? ORDER BY {self._latest} LIMIT 1", name
        )
        if not rows:
            raise no_entry("name", name, self.location)
        return self._entry(rows[0])

    def iter_entries(self) -> Iterator[DatasetEntry]:
        return map(self._entry, self._select(f"{ENTRY} ORDER BY {self.written}"))

    def remove_entry(self, cid: str) -> None:
        sql = "DELETE FROM dataset_entries WHERE cid = ?"
        if not (is_storable(cid) and self._change(sql, cid)):
            raise no_entry("cid", cid, self.location)

    def _entry(self, row: Sequence[object]) -> DatasetEntry:
        return Row(self.location, "dataset_entries", row[0]).entry(*row)

    # Labels

    def store_label(
        self,
        name: str,
        cid: str,
        version: str | None = None,
        description: str | None = None,
    ) -> None:
        values = check_label(name, cid, version, description)
        self._change(self._dialect(STORE_LABEL, "labels"), *values, values[0])

    def get_label(
        self, name: str, version: str | None = None
    ) -> tuple[str, str | None]:
        found = latest_label(self._labels(name, version))
        if found is None:
            raise no_label(name, version, self.location)
        return found.cid, found.version

    def iter_labels(self) -> Iterator[tuple[str, str, str | None]]:
        return (row[:3] for row in self.iter_label_rows())

    def iter_label_rows(self, name: str | None = None) -> Iterator[LabelRow]:
        return iter(self._labels(name))

    def remove_label(self, name: str, version: str | None = None) -> None:
        sql = "DELETE FROM labels WHERE name = ? AND version = ?"
        values = name, version or ""
        if not (all(map(is_storable, values)) and self._change(sql, *values)):
            raise no_label(name, version, self.location)

    def _labels(
        self, name: str | None = None, version: str | None = None
    ) -> list[LabelRow]:
        """Return labels; those of one name with the last one written first."""
        label = LABEL.format(created_at=self.created_at)
        if name is None:
            rows = self._select(f"{label} ORDER BY {self.written}")
        elif version is None:
            rows = self._select(f"{label} WHERE name = ? ORDER BY {self._latest}", name)
        else:
            where = "WHERE name = ? AND version = ?"
            rows = self._select(f"{label} {where}", name, version)
        return list(map(self._label, rows))

    def _label(self, values: Sequence[object]) -> LabelRow:
        name, cid, version, description, created_at = values
        row = Row(self.location, "labels", values[0::2][:2])
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
        self._change(STORE_JSON[kind], *_check_json(kind, name, version, text))

    def _get_json(self, kind: str, name: str, version: str) -> str | None:
        sql = f"{JSON[kind]} WHERE name = ? AND version = ?"
        rows = self._select(sql, name, version)
        return self._json(kind, rows[0])[2] if rows else None

    def _iter_json(self, kind: str) -> Iterator[tuple[str, str, str]]:
        rows = self._select(f"{JSON[kind]} ORDER BY {self.written}")
        return (self._json(kind, row) for row in rows)

    def _versions(self, kind: str, name: str) -> dict[str, str]:
        rows = self._select(
            f"{JSON[kind]} WHERE name = ? ORDER BY {self.written}", name
        )
        return dict(self._json(kind, row)[1:] for row in rows)

    def _store_version(self, kind: str, name: str, choose: ChooseVersion) -> str:
        check_text(name, "name")
        with self._choosing(TABLES[kind], name) as run:
            rows = run(f"{JSON[kind]} WHERE name = ? ORDER BY {self.written}", name)
            version, text = choose(dict(self._json(kind, row)[1:] for row in rows))
            if text is not None:
                run(STORE_JSON[kind], *_check_json(kind, name, version, text))
        return version

    def _json(self, kind: str, values: Sequence[object]) -> tuple[str, str, str]:
        row = Row(self.location, TABLES[kind], values[:2])
        name, version, text = values
        return (
            row.text(name, "name"),
            row.text(version, "version"),
            row.text(text, f"{kind}_json"),
        )

    @property
    def _latest(self) -> str:
        return self.written.replace(",", " DESC,") + " DESC"

    def _dialect(self, sql: str, table: str) -> str:
        return sql.format(
            now=self.now.format(table=table), last=self.last.format(table=table)
        )


def _check_json(kind: str, name: str, version: str, text: str) -> tuple[str, ...]:
    return (
        check_text(name, "name"),
        check_version(version),
        check_text(text, f"{kind}_json"),
    )
