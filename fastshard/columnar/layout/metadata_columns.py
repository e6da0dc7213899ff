"""Metadata columns of an index: those of ``samples`` that belong to no field."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, NamedTuple

from fastshard.columnar.layout.packs import row_column
from fastshard.columnar.layout.schema import fold_case

if TYPE_CHECKING:
    import sqlite3

__all__ = ["MetadataColumn", "read_metadata_columns"]

HIDDEN = 1  # kind in PRAGMA table_xinfo: a column of a virtual table
TABLE_SQL = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = 'samples'"
MAX_TABLE_SQL = 1 << 20  # characters of the table's text that are searched
GENERATED = re.compile(  # as `add_metadata_column` spells it
    r'"(\w{1,128})" \w{0,16} GENERATED ALWAYS AS '
    r"\(json_extract\(meta_json, '((?:[^']|''){1,4096}+)'\)\)",
    re.ASCII,
)


class MetadataColumn(NamedTuple):
    """Metadata column of a columnar dataset.

    Attributes
    ----------
    name : str
    path : str or None
        JSON path of its values in the metadata; None if the column was not made by
        `ShardedDatasetWriter.add_metadata_column`.
    type : str
        As declared: ``"INTEGER"``, ``"REAL"``, ``"TEXT"``, ``"NUMERIC"``, another name,
        or empty.
    """

    name: str
    path: str | None
    type: str


def read_metadata_columns(
    conn: sqlite3.Connection, fields: Iterable[str], packed: Container[str]
) -> dict[str, MetadataColumn]:
    """Return the metadata columns of an index by name."""
    others = {"id", "meta_json"}
    for field in fields:
        columns = [f"{field}_offset", f"{field}_shard"]
        if field in packed:
            columns.append(row_column(field))
        others.update(map(str.lower, columns))
    rows = conn.execute("PRAGMA table_xinfo(samples)").fetchall()
    found = [
        (row[1], row[2])
        for row in rows
        if fold_case(row[1]) not in others and row[6] != HIDDEN
    ]
    if not found:
        return {}
    ((text,),) = conn.execute(TABLE_SQL).fetchall()
    paths = {
        name: path.replace("''", "'")
        for name, path in GENERATED.findall(str(text)[:MAX_TABLE_SQL])
    }
    return {
        name: MetadataColumn(name, paths.get(name), declared)
        for name, declared in found
    }
