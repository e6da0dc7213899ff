"""Statistics of a columnar dataset."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from contextlib import suppress
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from fastshard._util.progress import iterate_with_bar
from fastshard.columnar.layout.connection import (
    INDEX_ERRORS,
    ReaderConnection,
    open_reader,
    translate_error,
)
from fastshard.columnar.layout.headers import ArrayType, HeaderChecker
from fastshard.columnar.layout.metadata_columns import read_metadata_columns
from fastshard.columnar.layout.packs import pack_name, row_column
from fastshard.columnar.layout.schema import (
    INDEX_NAME,
    Field,
    quote_name,
    read_fields,
    shard_name,
)
from fastshard.columnar.layout.stored_arrays import LayoutParser
from fastshard.columnar.read.dataset_schema import describe_schema
from fastshard.columnar.read.leases import Lease
from fastshard.columnar.read.samples import load_samples
from fastshard.columnar.read.shard_members import ShardMembers, scan_members
from fastshard.columnar.read.snapshot import Snapshot
from fastshard.columnar.write.recovery import list_leftovers

__all__ = ["stat"]

MAX_ARRAY_TYPES = 20  # listed for each field


def stat(
    root: str | os.PathLike[str], *, deep: bool = False, schema: bool = False
) -> dict[str, Any]:
    """Count the samples, shards and bytes of a columnar dataset.

    On the command line: ``fastshard stat ROOT``.

    Parameters
    ----------
    root : str or path-like
        The dataset's directory.
    deep : bool
        Read the headers of all shards too.
    schema : bool
        Read the headers of the arrays that samples refer to, for dtypes and shapes; see
        `ShardedDatasetReader.schema`. The command does.

    Returns
    -------
    dict
        ``dataset``, ``samples``, ``index_bytes``, ``bytes`` (of all shard files),
        ``columns`` (metadata columns: declared type by name), and ``fields``: by name a
        dict of

        - ``samples``, ``shards``, ``bytes``; ``packed``: samples whose array is a row
          of a pack;
        - ``missing``: numbers of shards whose file is absent or empty;
        - ``replaced``, ``replaced_bytes``: files that `compact` has replaced and
          readers may still open;
        - ``uncommitted``, ``uncommitted_bytes``: files of an interrupted writer, which
          the next writer removes;
        - with `deep`: ``live_bytes``: of members that rows refer to; ``dead_bytes``,
          ``dead_members``: of the others, and bytes of rows of packs without a sample;
          ``packs``: number of packs with a sample; ``arrays``: the most frequent dtypes
          and shapes, and the count of each.

        With `schema` also ``schema``: ``fields``, by name ``dtype``, ``shape``,
        ``max_shape`` (lists, None, or ``"ragged"``), ``samples`` and ``packed``, or the
        ``error`` of a damaged field; and ``columns``, by name ``path`` and ``type``.

    Raises
    ------
    FormatError
        The index, or with `deep` a shard, is damaged.
    OSError
        The index or a shard cannot be read.

    Examples
    --------
    >>> import numpy as np
    >>> from fastshard.columnar import ShardedDatasetWriter, stat
    >>> with ShardedDatasetWriter("weather") as writer:
    ...     writer.add_field("history")
    ...     sample_id = writer.add_sample({"history": np.zeros(100, "f4")})
    >>> figures = stat("weather", deep=True)
    >>> history = figures["fields"]["history"]
    >>> history["samples"], history["shards"], history["live_bytes"]
    (1, 1, 528)
    >>> history["arrays"]
    [{'dtype': 'float32', 'shape': [100], 'count': 1}]
    """
    name = os.fsdecode(root)
    with Lease(name):  # keeps the shards from removal by a compaction
        figures = _count(name, deep)
    if schema:
        figures["schema"] = _describe(name)
    return figures


def _describe(name: str) -> dict[str, Any]:
    """Return the schema of a dataset, as JSON can represent it."""
    snapshot = Snapshot(name, "mmap")
    try:
        return describe_schema(snapshot, load_samples(snapshot))
    finally:
        snapshot.close()


def _count(name: str, deep: bool) -> dict[str, Any]:
    """Return the result of `stat`; the caller holds a lease."""
    conn = open_reader(os.path.join(name, INDEX_NAME))
    try:
        fields = read_fields(conn, conn.path)
        (samples,) = conn.execute("SELECT count(*) FROM samples").fetchone()
        figures = {field.name: _count_field(conn, name, field) for field in fields}
        if deep:
            for field in fields:
                count = figures[field.name]["shards"]
                figures[field.name].update(_count_members(conn, name, field, count))
        columns = _metadata_columns(conn, fields)
    except INDEX_ERRORS as error:
        raise translate_error(error, conn.path) from error
    finally:
        conn.close()
    return {
        "dataset": name,
        "samples": samples,
        "index_bytes": _file_size(conn.path) + _file_size(f"{conn.path}-wal"),
        "bytes": sum(of["bytes"] for of in figures.values()),
        "columns": columns,
        "fields": figures,
    }


def _metadata_columns(conn: ReaderConnection, fields: list[Field]) -> dict[str, str]:
    """Return the declared types of the columns that belong to no field, by name."""
    columns = read_metadata_columns(
        conn,
        [field.name for field in fields],
        {field.name for field in fields if field.is_packed},
    )
    return {column.name: column.type for column in columns.values()}


def _count_field(conn: ReaderConnection, root: str, field: Field) -> dict[str, Any]:
    """Count the samples and the shard files of a field."""
    column = f"{field.name}_shard"
    rows = conn.execute(
        f"SELECT {column}, count(*) FROM samples WHERE {column} IS NOT NULL "
        f"GROUP BY {column} ORDER BY {column}"
    ).fetchall()
    packed = 0
    if field.is_packed:
        sql = f"SELECT count({quote_name(row_column(field.name))}) FROM samples"
        (packed,) = conn.execute(sql).fetchone()
    shards = [shard for shard, _ in rows]
    shards += _list_unused(conn, field, set(shards))
    sizes = {shard: _file_size(_shard_path(root, field, shard)) for shard in shards}
    leftovers = list_leftovers(conn, root, field)
    return {
        "samples": sum(count for _, count in rows),
        "shards": len(shards),
        "bytes": sum(sizes.values()),
        "packed": packed,
        "missing": [shard for shard, nbytes in sizes.items() if not nbytes],
        "replaced": len(leftovers.replaced),
        "replaced_bytes": sum(leftovers.replaced.values()),
        "uncommitted": len(leftovers.uncommitted),
        "uncommitted_bytes": sum(leftovers.uncommitted.values()),
    }


def _list_unused(conn: ReaderConnection, field: Field, used: set[Any]) -> list[int]:
    """Return the recorded shards that no row refers to."""
    sql = (
        "SELECT shard FROM fastshard_shards WHERE field = ? "
        "AND typeof(shard) = 'integer' AND nbytes > 0 ORDER BY shard"
    )
    with suppress(sqlite3.OperationalError):  # fastshard never wrote to the index
        rows = conn.execute(sql, (field.name,)).fetchall()
        return [shard for (shard,) in rows if shard not in used]
    return []


def _count_members(
    conn: ReaderConnection, root: str, field: Field, shards: int
) -> dict[str, Any]:
    """Count the members of a field that rows refer to, and the others."""
    check = HeaderChecker()
    sums: Counter[str] = Counter(live_bytes=0, dead_bytes=0, dead_members=0, packs=0)
    kinds: Counter[ArrayType] = Counter()
    row = quote_name(row_column(field.name)) if field.is_packed else "NULL"
    rows = conn.execute(
        f"SELECT {field.name}_shard, {field.name}_offset, {row}, id FROM samples "
        f"WHERE {field.name}_shard IS NOT NULL ORDER BY {field.name}_shard"
    )
    used = {
        shard
        for (shard,) in conn.execute(f"SELECT DISTINCT {field.name}_shard FROM samples")
    }
    unused = ((shard, ()) for shard in _list_unused(conn, field, used))
    by_shard = chain(groupby(rows, itemgetter(0)), unused)
    for shard, of_shard in iterate_with_bar(by_shard, shards, f"counting {field.name}"):
        try:
            members = scan_members(_shard_path(root, field, shard))
        except FileNotFoundError:
            continue
        with members:
            if members.error is not None:
                raise members.error
            names = []
            in_packs: dict[Any, set[Any]] = {}  # rows by offset
            for _, offset, place, sample_id in of_shard:
                if place is None:
                    names.append((f"{sample_id}.npy", offset))
                else:
                    in_packs.setdefault(offset, set()).add(place)
            extents = ((members.find(*named), named[0]) for named in names)
            live = {(*extent, name) for extent, name in extents if extent is not None}
            for _, _, kind in check.check(members.file, sorted(live)):
                kinds[kind if isinstance(kind, ArrayType) else ArrayType(kind, ())] += 1
            live |= _count_packs(members, in_packs, sums, kinds)
            sums["live_bytes"] += sum(size for _, size, _ in live)
            for name, at, size in members.sizes():
                if (at, size, name) not in live:
                    sums["dead_bytes"] += size
                    sums["dead_members"] += 1
    arrays = [
        {"dtype": kind.dtype, "shape": list(kind.shape), "count": count}
        for kind, count in kinds.most_common(MAX_ARRAY_TYPES)
    ]
    return {**sums, "arrays": arrays}


def _count_packs(
    members: ShardMembers,
    used: dict[Any, set[Any]],
    sums: Counter[str],
    kinds: Counter[ArrayType],
) -> set[tuple[int, int, str]]:
    """Count the packs of a shard; return offset, size and name of each."""
    parser = LayoutParser()
    live = set()
    for offset, rows in used.items():
        if type(offset) is not int:
            continue
        size = members.size_at(pack_name(offset), offset)
        if size is None:
            continue
        live.add((offset, size, pack_name(offset)))
        pack = parser.parse_pack(members.file, offset, size)
        if isinstance(pack, str):
            kinds[ArrayType(pack, ())] += len(rows)
            continue
        sums["packs"] += 1
        dead = max(pack.rows - len(rows), 0) * pack.layout.row_size
        sums["dead_bytes"] += dead
        sums["live_bytes"] -= dead
        kinds[ArrayType(pack.layout.dtype, pack.layout.shape)] += len(rows)
    return live


def _shard_path(root: str, field: Field, shard: Any) -> str:
    number = shard if type(shard) is int else -1  # a file that does not exist
    return os.path.join(root, field.folder, shard_name(number))


def _file_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
