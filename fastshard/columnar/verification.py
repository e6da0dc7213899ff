"""Verification of a columnar dataset: the index, and each row against its shard."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from fastshard._core.table.checksums import find_row
from fastshard._util.json import parse_value
from fastshard._util.progress import iterate_with_bar
from fastshard.columnar.layout.connection import (
    INDEX_ERRORS,
    ReaderConnection,
    open_reader,
    translate_error,
)
from fastshard.columnar.layout.headers import HeaderChecker
from fastshard.columnar.layout.packs import pack_name, row_column
from fastshard.columnar.layout.schema import (
    INDEX_NAME,
    MAX_COUNTER,
    MAX_SHARD,
    Field,
    check_sample_id,
    quote_name,
    read_fields,
    shard_name,
)
from fastshard.columnar.layout.stored_arrays import LayoutParser
from fastshard.columnar.read.leases import Lease
from fastshard.columnar.read.query import limit_value_size
from fastshard.columnar.read.shard_members import ShardMembers, scan_members
from fastshard.columnar.write.connection import check_no_triggers
from fastshard.columnar.write.recovery import list_leftovers, list_unfinished_index
from fastshard.dataset.verify import Fault
from fastshard.errors import FastshardError, FormatError, QueryError

__all__ = ["verify"]

MAX_SQLITE_FAULTS = 100  # messages of SQLite's integrity check that are reported
Row = tuple[Any, Any, Any, Any]  # shard, offset, row in a pack, id


def verify(root: str | os.PathLike[str], *, allow_pickle: bool = False) -> list[Fault]:
    """Check a columnar dataset: its index, and every row against its members.

    The headers of each shard are read, and the beginning of each member that a row
    refers to; arrays are not. On the command line: ``fastshard verify ROOT``.

    Parameters
    ----------
    root : str or path-like
        The dataset's directory.
    allow_pickle : bool
        Accept arrays of Python objects. They are not unpickled.

    Returns
    -------
    list of Fault
        Empty for a sound dataset. Faults are, among others: shards that are missing or
        shorter than recorded; rows without their member, or with a wrong offset in a
        shard that only fastshard wrote; packs that are missing, damaged, or shorter
        than a row says; rows of packs that have another sample's identity, or that
        two samples have; members that are not arrays, or are arrays of
        Python objects; metadata that is not a JSON object; triggers; an invalid counter
        of ids; files that a stopped writer left. Not reported are members that no row
        refers to, shards that `compact` has replaced and readers may still open, and
        offsets written by synthefy-dataset-utils.

    Raises
    ------
    OSError
        The index cannot be read.

    Examples
    --------
    >>> import os
    >>> import numpy as np
    >>> from fastshard.columnar import ShardedDatasetWriter, verify
    >>> with ShardedDatasetWriter("weather") as writer:
    ...     writer.add_field("history")
    ...     sample_id = writer.add_sample({"history": np.zeros(100)})
    >>> verify("weather")
    []
    >>> os.remove("weather/history_shards/shard_0000.tar")
    >>> verify("weather")[0].reason
    'the shard is missing; samples in it: 1'
    """
    name = os.fsdecode(root)
    with Lease(name):  # so that no compaction removes shards meanwhile
        try:
            conn = open_reader(os.path.join(name, INDEX_NAME))
        except FormatError as error:
            return [_make_fault(error)]
        try:
            return _verify(conn, name, HeaderChecker(allow_pickle=allow_pickle))
        finally:
            conn.close()


def _verify(conn: ReaderConnection, root: str, check: HeaderChecker) -> list[Fault]:
    """Run all checks; an error of the index ends them and is the last fault."""
    faults = list(_check_integrity(conn))
    try:
        fields = read_fields(conn, conn.path)
        faults += _check_triggers(conn)
        faults += _check_columns(conn, fields)
        # Text that is not UTF-8 must not raise here: rows are checked one by one.
        conn.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        faults += _check_samples(conn)
        faults += _check_counter(conn)
        records = _read_lengths(conn)
        for field in fields:
            faults += _check_field(conn, root, field, records, check)
            leftovers = list_leftovers(conn, root, field).uncommitted
            faults += _report_leftovers(leftovers, field.name)
        faults += _report_leftovers(list_unfinished_index(root), INDEX_NAME)
    except FormatError as error:
        faults.append(_make_fault(error))
    except INDEX_ERRORS as error:
        translated = translate_error(error, conn.path)
        if not isinstance(translated, FormatError):
            raise translated from error
        faults.append(_make_fault(translated))
    return faults


def _make_fault(error: FormatError) -> Fault:
    return Fault(error.path, error.offset, error.member, error.reason)


def _check_integrity(conn: ReaderConnection) -> Iterator[Fault]:
    """Report the findings of SQLite's own check."""
    check = f"PRAGMA integrity_check({MAX_SQLITE_FAULTS})"
    limit = conn.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)
    try:
        program = conn.execute(f"EXPLAIN {check}").fetchall()
        conn.setlimit(
            sqlite3.SQLITE_LIMIT_LENGTH, limit_value_size(program, grown=limit)
        )
        for (message,) in conn.execute(check):
            if message != "ok":
                yield Fault(conn.path, 0, None, f"SQLite: {message}")
    except (*INDEX_ERRORS, QueryError) as error:
        yield Fault(conn.path, 0, None, f"SQLite: {error}")
    finally:
        conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limit)


def _check_samples(conn: ReaderConnection) -> Iterator[Fault]:
    """Check ids and metadata."""
    sql = "SELECT id, meta_json FROM samples ORDER BY rowid"
    for sample_id, text in conn.execute(sql):
        try:
            check_sample_id(sample_id)
        except (TypeError, ValueError) as error:
            yield Fault(conn.path, 0, None, str(error))
            continue
        if not _is_json_object(text):
            yield Fault(conn.path, 0, sample_id, "its metadata is not a JSON object")
    sql = "SELECT id, count(*) FROM samples GROUP BY id HAVING count(*) > 1"
    for sample_id, count in conn.execute(sql):
        if isinstance(sample_id, str):
            yield Fault(conn.path, 0, sample_id, f"its id occurs {count:,} times")


def _check_counter(conn: ReaderConnection) -> Iterator[Fault]:
    """Check the counter of generated ids."""
    sql = "SELECT value FROM counters WHERE name = 'sample_id'"
    for (value,) in conn.execute(sql):
        if type(value) is not int or not 0 <= value < MAX_COUNTER:
            reason = f"counters.value of 'sample_id' is {value!r:.80}, not a count"
            yield Fault(conn.path, 0, None, reason)


def _report_leftovers(files: dict[str, int], owner: str) -> Iterator[Fault]:
    """Report files that the next writer removes; `owner` is a field or the index."""
    for path, nbytes in files.items():
        reason = f"a writer of {owner!r} was stopped and left {nbytes:,} unused bytes"
        yield Fault(path, 0, None, reason)


def _check_triggers(conn: ReaderConnection) -> Iterator[Fault]:
    """Report triggers: a writer refuses an index with them."""
    try:
        check_no_triggers(conn, conn.path)
    except FormatError as error:
        yield _make_fault(error)


def _check_columns(conn: ReaderConnection, fields: list[Field]) -> Iterator[Fault]:
    """Report filled columns named like those of a field that is not registered."""
    registered = {field.name.lower() for field in fields}
    columns = [str(row[1]) for row in conn.execute("PRAGMA table_info(samples)")]
    lowered = {name.lower() for name in columns}
    for column in columns:
        name = column.removesuffix("_shard")
        if name == column or name.lower() in registered:
            continue
        if f"{name}_offset".lower() in lowered:
            sql = f"SELECT count({quote_name(column)}) FROM samples"
            (count,) = conn.execute(sql).fetchone()
            if count:
                reason = (
                    f"{count:,} samples have a {column!r}, and the field {name!r} is "
                    "not registered"
                )
                yield Fault(conn.path, 0, None, reason)


def _is_json_object(text: Any) -> bool:
    """Return whether metadata is a JSON object as `json.dumps` writes it, or absent."""
    if text is None or text == "":
        return True
    if not isinstance(text, str):
        return False
    try:
        text.encode()
        return isinstance(parse_value(text, "<row>"), dict)
    except ValueError:
        return False


def _read_lengths(conn: ReaderConnection) -> dict[tuple[Any, Any], Any]:
    """Return the recorded length in bytes by field and shard, unchecked."""
    sql = "SELECT 1 FROM sqlite_master WHERE name = 'fastshard_shards'"
    if conn.execute(sql).fetchone() is None:
        return {}
    sql = "SELECT field, shard, nbytes FROM fastshard_shards"
    return {(field, shard): nbytes for field, shard, nbytes in conn.execute(sql)}


def _check_field(
    conn: ReaderConnection,
    root: str,
    field: Field,
    lengths: dict[tuple[Any, Any], Any],
    check: HeaderChecker,
) -> Iterator[Fault]:
    """Check the rows of a field, shard by shard."""
    sql = (
        "SELECT {0}_shard, {0}_offset, {1}, id FROM samples "
        "WHERE {0}_shard IS NOT NULL OR {0}_offset IS NOT NULL "
        "ORDER BY {0}_shard, rowid"
    )
    row = quote_name(row_column(field.name)) if field.is_packed else "NULL"
    rows = conn.execute(sql.format(field.name, row))
    count = f"SELECT count(DISTINCT {field.name}_shard) FROM samples"
    (shards,) = conn.execute(count).fetchone()
    by_shard = groupby(rows, itemgetter(0))
    for shard, of_shard in iterate_with_bar(
        by_shard, shards, f"verifying {field.name}"
    ):
        if type(shard) is not int or not 0 <= shard <= MAX_SHARD:
            yield from _report_misplaced(conn.path, field.name, shard, of_shard)
            continue
        path = os.path.join(root, field.folder, shard_name(shard))
        length = lengths.get((field.name, shard))
        yield from _check_shard(conn.path, path, field, length, list(of_shard), check)


def _report_misplaced(
    index: str, field: str, shard: Any, rows: Iterator[Row]
) -> Iterator[Fault]:
    """Report rows whose shard is missing or not a shard number."""
    for *_, sample_id in rows:
        found = "no shard" if shard is None else f"the shard {shard!r:.40}"
        reason = f"its field {field!r} has an offset, and {found}"
        yield Fault(index, 0, _name_sample(sample_id), reason)


def _name_sample(sample_id: Any) -> str | None:
    """Return an id for a fault, or None if it is not text."""
    return sample_id if isinstance(sample_id, str) else None


def _check_shard(
    index: str,
    path: str,
    field: Field,
    length: Any,
    rows: list[Row],
    check: HeaderChecker,
) -> Iterator[Fault]:
    """Check a shard, and the rows that refer to it."""
    recorded = length if type(length) is int and length >= 0 else None
    try:
        members = scan_members(path, recorded)
    except FileNotFoundError:
        yield Fault(
            path, 0, None, f"the shard is missing; samples in it: {len(rows):,}"
        )
        return
    except (OSError, FastshardError) as error:
        yield Fault(path, 0, None, f"the shard cannot be read: {error}")
        return
    with members:
        if recorded is not None and members.nbytes < recorded:
            reason = f"the shard has {members.nbytes:,} of {recorded:,} recorded bytes"
            yield Fault(path, members.nbytes, None, reason)
        if members.error is not None:
            yield _make_fault(members.error)
        elif recorded and members.is_unmodified and recorded not in members.ends:
            reason = f"no member ends at the recorded byte {recorded:,}"
            yield Fault(path, recorded, None, reason)
        found: list[tuple[int, int, str]] = []
        packs = PackChecker(members, field)
        for shard, offset, row, sample_id in rows:
            if row is not None:
                wrong_row = packs.check(shard, offset, row, sample_id)
                if wrong_row is not None:
                    yield Fault(index, 0, _name_sample(sample_id), wrong_row)
                continue
            extent = members.find(f"{sample_id}.npy", offset)
            wrong_offset = _check_offset(field.name, offset, extent, members)
            if wrong_offset is not None:
                yield Fault(index, 0, _name_sample(sample_id), wrong_offset)
            elif extent is not None:
                found.append((*extent, f"{sample_id}.npy"))
        yield from packs.faults
        for at, name, kind in check.check(members.file, found):
            if isinstance(kind, str):
                yield Fault(path, at, name, kind)


class PackChecker:
    """Checker of rows against the packs of a shard.

    Attributes
    ----------
    faults : list of Fault
        Of the packs themselves.
    """

    def __init__(self, members: ShardMembers, field: Field) -> None:
        self.faults: list[Fault] = []
        self._members = members
        self._field = field
        self._owners: dict[tuple[int, int], Any] = {}  # id by offset and row
        self._parser = LayoutParser()
        self._counts: dict[int, int | None] = {}  # rows of a pack; None: a fault

    def check(self, shard: int, offset: Any, row: Any, sample_id: Any) -> str | None:
        """Return why a row of `samples` is wrong, or None if it is right.

        It counts as right if its pack has a fault, which is reported once.
        """
        field = self._field.name
        path = self._members.file.path
        if self._field.has_identities:
            at = find_row(field, sample_id, shard, offset, row)
            if at is None:
                return (
                    f"its field {field!r} has the row {row!r:.40} of a pack of {path}, "
                    "without the sample's identity"
                )
            row = at
        if type(offset) is not int or offset not in self._counts:
            size = None
            if type(offset) is int:
                size = self._members.size_at(pack_name(offset), offset)
            if size is None:
                return f"its field {field!r} is in no pack at {offset!r:.40} of {path}"
            self._counts[offset] = self._count_rows(offset, size)
        count = self._counts[offset]
        if type(row) is int and (count is None or 0 <= row < count):
            owner = self._owners.setdefault((offset, row), sample_id)
            if owner is not sample_id:
                return (
                    f"its field {field!r} is row {row:,} of the pack at {offset:,} of "
                    f"{path}, as that of the sample {owner!r:.200} is"
                )
        if count is None or (type(row) is int and 0 <= row < count):
            return None
        return (
            f"its field {field!r} is row {row!r:.40} of the pack at {offset:,} of "
            f"{path}, which has {count:,}"
        )

    def _count_rows(self, offset: int, size: int) -> int | None:
        pack = self._parser.parse_pack(self._members.file, offset, size)
        if not isinstance(pack, str):
            return pack.rows
        path = self._members.file.path
        self.faults.append(Fault(path, offset, pack_name(offset), pack))
        return None


def _check_offset(
    field: str, offset: Any, extent: tuple[int, int] | None, members: ShardMembers
) -> str | None:
    """Return why a row's offset is wrong, or None if it is right."""
    if offset is None:
        return f"its field {field!r} has a shard, and no offset"
    if type(offset) is not int or not 0 <= offset <= members.nbytes:
        return (
            f"its field {field!r} has the offset {offset!r:.40}, "
            f"in a shard of {members.nbytes:,} bytes"
        )
    if extent is None:
        return f"its field {field!r} is not in {members.file.path}"
    if members.is_unmodified and extent[0] != offset:
        return f"its field {field!r} has the offset {offset:,}, and is at {extent[0]:,}"
    return None
