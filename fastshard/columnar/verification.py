"""Faults of a columnar dataset: every row against its shard."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from fastshard.columnar.connection import (
    INDEX_ERRORS,
    ReaderConnection,
    open_reader,
    translate_error,
)
from fastshard.columnar.headers import HeaderCheck
from fastshard.columnar.read.leases import Lease
from fastshard.columnar.read.query import limit_value_size
from fastshard.columnar.read.shard_members import ShardMembers, scan_members
from fastshard.columnar.schema import (
    INDEX_NAME,
    MAX_COUNTER,
    MAX_SHARD,
    Field,
    check_sample_id,
    quote_name,
    read_fields,
    shard_name,
)
from fastshard.columnar.write.connection import check_no_triggers
from fastshard.columnar.write.recovery import list_leftovers, list_unfinished_index
from fastshard.dataset.verify import Fault
from fastshard.errors import FastshardError, FormatError, QueryError

__all__ = ["verify"]


MOST = 100  # complaints of SQLite's own that are passed on
Row = tuple[Any, Any, Any]  # shard, offset, id


def verify(root: str | os.PathLike[str], *, allow_pickle: bool = False) -> list[Fault]:
    """Check a columnar dataset: its index, and every row against its members.

    Each shard's headers are read once, and of each member that a row refers to
    the beginning; its data are not.

    Parameters
    ----------
    root : str or path-like
        The dataset's directory.
    allow_pickle : bool
        Arrays of Python objects are no fault; they are not unpickled.

    Returns
    -------
    list of Fault
        Empty for a sound dataset. Among others: shards that are not there or are
        shorter than they were; rows without their member, or whose offset is not
        its own in a shard that fastshard wrote; members that are no arrays, or
        arrays of Python objects; metadata that are no JSON object; triggers; a
        counter of ids that is none; files that a writer that was stopped has left.
        No faults are members that no row refers to any more, shards that `compact`
        has replaced and readers may still open, and offsets that the original's
        writer made.

    Raises
    ------
    OSError
        The index cannot be read.
    """
    name = os.fsdecode(root)
    with Lease(name):  # else a compaction removes what is looked at
        try:
            conn = open_reader(os.path.join(name, INDEX_NAME))
        except FormatError as error:
            return [_fault_from(error)]
        try:
            return _verify(conn, name, HeaderCheck(allow_pickle=allow_pickle))
        finally:
            conn.close()


def _verify(conn: ReaderConnection, root: str, check: HeaderCheck) -> list[Fault]:
    faults = list(_integrity(conn))
    try:
        fields = read_fields(conn, conn.path)
        faults += _actors(conn)
        faults += _orphans(conn, fields)
        # Text that is none is found out below, a row at a time.
        conn.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        faults += _samples(conn)
        faults += _counter(conn)
        records = _records(conn)
        for field in fields:
            faults += _field(conn, root, field, records, check)
            left = list_leftovers(conn, root, field).uncommitted
            faults += _left(left, field.name)
        faults += _left(list_unfinished_index(root), INDEX_NAME)
    except FormatError as error:
        faults.append(_fault_from(error))
    except INDEX_ERRORS as error:
        said = translate_error(error, conn.path)
        if not isinstance(said, FormatError):
            raise said from error
        faults.append(_fault_from(said))
    return faults


def _fault_from(error: FormatError) -> Fault:
    return Fault(error.path, error.offset, error.member, error.reason)


def _integrity(conn: ReaderConnection) -> Iterator[Fault]:
    """Say what SQLite finds wrong with the file."""
    check = f"PRAGMA integrity_check({MOST})"
    whole = conn.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)
    try:
        program = conn.execute(f"EXPLAIN {check}").fetchall()
        conn.setlimit(
            sqlite3.SQLITE_LIMIT_LENGTH, limit_value_size(program, grown=whole)
        )
        for (said,) in conn.execute(check):
            if said != "ok":
                yield Fault(conn.path, 0, None, f"SQLite: {said}")
    except (*INDEX_ERRORS, QueryError) as error:
        yield Fault(conn.path, 0, None, f"SQLite: {error}")
    finally:
        conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, whole)


def _samples(conn: ReaderConnection) -> Iterator[Fault]:
    """Check ids and metadata."""
    sql = "SELECT id, meta_json FROM samples ORDER BY rowid"
    for sample_id, text in conn.execute(sql):
        try:
            check_sample_id(sample_id)
        except (TypeError, ValueError) as error:
            yield Fault(conn.path, 0, None, str(error))
            continue
        if not _is_object(text):
            reason = "its metadata are no JSON object"
            yield Fault(conn.path, 0, sample_id, reason)
    sql = "SELECT id, count(*) FROM samples GROUP BY id HAVING count(*) > 1"
    for sample_id, count in conn.execute(sql):
        if isinstance(sample_id, str):
            yield Fault(conn.path, 0, sample_id, f"its id is there {count:,} times")


def _counter(conn: ReaderConnection) -> Iterator[Fault]:
    """Check what generated ids are counted by."""
    sql = "SELECT value FROM counters WHERE name = 'sample_id'"
    for (value,) in conn.execute(sql):
        if type(value) is not int or not 0 <= value < MAX_COUNTER:
            reason = f"counters.value of 'sample_id' is {value!r:.80}, no count"
            yield Fault(conn.path, 0, None, reason)


def _left(files: dict[str, int], of: str) -> Iterator[Fault]:
    """Name files that the next writer removes."""
    for path, nbytes in files.items():
        reason = f"a writer of {of!r} was stopped: {nbytes:,} bytes that nothing names"
        yield Fault(path, 0, None, reason)


def _actors(conn: ReaderConnection) -> Iterator[Fault]:
    """Say what a writer refuses: an index that does more than to keep rows."""
    try:
        check_no_triggers(conn, conn.path)
    except FormatError as error:
        yield _fault_from(error)


def _orphans(conn: ReaderConnection, fields: list[Field]) -> Iterator[Fault]:
    """Find places of arrays in columns that are no field's."""
    known = {field.name.lower() for field in fields}
    columns = [str(row[1]) for row in conn.execute("PRAGMA table_info(samples)")]
    lowered = {name.lower() for name in columns}
    for column in columns:
        name = column.removesuffix("_shard")
        if name == column or name.lower() in known:
            continue
        if f"{name}_offset".lower() in lowered:
            sql = f"SELECT count({quote_name(column)}) FROM samples"
            (count,) = conn.execute(sql).fetchone()
            if count:
                reason = f"{count:,} samples have a {column!r} of no field {name!r}"
                yield Fault(conn.path, 0, None, reason)


def _is_object(text: Any) -> bool:
    """Say whether metadata are what `json.dumps` makes of a dict, or none."""
    if text is None or text == "":
        return True
    if not isinstance(text, str):
        return False
    try:
        text.encode()
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _records(conn: ReaderConnection) -> dict[tuple[Any, Any], Any]:
    """Return how many bytes each shard file has that fastshard wrote."""
    sql = "SELECT 1 FROM sqlite_master WHERE name = 'fastshard_shards'"
    if conn.execute(sql).fetchone() is None:
        return {}
    sql = "SELECT field, shard, nbytes FROM fastshard_shards"
    return {(field, shard): nbytes for field, shard, nbytes in conn.execute(sql)}


def _field(
    conn: ReaderConnection,
    root: str,
    field: Field,
    records: dict[tuple[Any, Any], Any],
    check: HeaderCheck,
) -> Iterator[Fault]:
    sql = (
        "SELECT {0}_shard, {0}_offset, id FROM samples "
        "WHERE {0}_shard IS NOT NULL OR {0}_offset IS NOT NULL "
        "ORDER BY {0}_shard, rowid"
    )
    rows = conn.execute(sql.format(field.name))
    for shard, of_shard in groupby(rows, itemgetter(0)):
        if type(shard) is not int or not 0 <= shard <= MAX_SHARD:
            yield from _misplaced(conn.path, field.name, shard, of_shard)
            continue
        path = os.path.join(root, field.folder, shard_name(shard))
        record = records.get((field.name, shard))
        yield from _shard(conn.path, path, field.name, record, list(of_shard), check)


def _misplaced(
    path: str, field: str, shard: Any, rows: Iterator[Row]
) -> Iterator[Fault]:
    for _, _, sample_id in rows:
        what = "no shard" if shard is None else f"the shard {shard!r:.40}"
        reason = f"its field {field!r} has an offset, and {what}"
        yield Fault(path, 0, _named(sample_id), reason)


def _named(sample_id: Any) -> str | None:
    return sample_id if isinstance(sample_id, str) else None


def _shard(
    index: str,
    path: str,
    field: str,
    record: Any,
    rows: list[Row],
    check: HeaderCheck,
) -> Iterator[Fault]:
    """Check the rows that refer to one shard."""
    recorded = record if type(record) is int and record >= 0 else None
    try:
        members = scan_members(path, recorded)
    except FileNotFoundError:
        reason = f"the shard is not there; samples of it: {len(rows):,}"
        yield Fault(path, 0, None, reason)
        return
    except (OSError, FastshardError) as error:
        yield Fault(path, 0, None, f"the shard cannot be read: {error}")
        return
    with members:
        if recorded is not None and members.nbytes < recorded:
            reason = f"the shard has {members.nbytes:,} bytes, it had {recorded:,}"
            yield Fault(path, members.nbytes, None, reason)
        if members.error is not None:
            yield _fault_from(members.error)
        elif recorded and members.is_unmodified and recorded not in members.ends:
            reason = f"the index says that byte {recorded:,} ends a member: none does"
            yield Fault(path, recorded, None, reason)
        found: list[tuple[int, int, str]] = []
        for _, offset, sample_id in rows:
            extent = members.find(f"{sample_id}.npy", offset)
            fault = _why_not(field, offset, extent, members)
            if fault is not None:
                yield Fault(index, 0, _named(sample_id), fault)
            elif extent is not None:
                found.append((*extent, f"{sample_id}.npy"))
        for at, name, kind in check.check(members.file, found):
            if isinstance(kind, str):
                yield Fault(path, at, name, kind)


def _why_not(
    field: str, offset: Any, extent: tuple[int, int] | None, members: ShardMembers
) -> str | None:
    """Say what is wrong with where a row says that its member is."""
    if offset is None:
        return f"its field {field!r} has a shard, and no offset"
    if type(offset) is not int or not 0 <= offset <= members.nbytes:
        return f"its field {field!r} has the offset {offset!r:.40}"
    if extent is None:
        return f"its field {field!r} is not in {members.file.path}"
    if members.is_unmodified and extent[0] != offset:
        return f"its field {field!r} has the offset {offset:,}, and is at {extent[0]:,}"
    return None
