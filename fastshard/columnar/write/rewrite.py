"""Rewriting shards without dead space, so that a crash leaves the old or the new."""

from __future__ import annotations

import os
import sqlite3
from array import array
from collections import OrderedDict
from contextlib import suppress
from typing import NamedTuple

from fastshard._util.files import sync_directory
from fastshard.columnar.read.leases import has_older_readers, next_generation
from fastshard.columnar.schema import check_sample_id, quote_name
from fastshard.columnar.verification import Members, members_of
from fastshard.columnar.write.column import (
    WRITE_BYTES,
    Column,
    Growing,
    Record,
    Syncing,
    new_buffer,
)
from fastshard.columnar.write.fields import savepoint
from fastshard.columnar.write.recovery import shards_of_rows
from fastshard.columnar.write.session import Session, Store
from fastshard.errors import FastshardError, FormatError

__all__ = ["Compaction", "compact_columns", "remove_condemned"]

OPEN_SHARDS = 64  # whose members are remembered
# Says that a file is to be removed. Its second number is the generation whose
# readers, and later ones, do not need it; 0: nobody ever did.
CONDEMNED = Record(-1, 0)


class Compaction(NamedTuple):
    """What a compaction did; bytes are those of shard files."""

    bytes_before: int
    bytes_after: int
    shards_before: int
    shards_after: int


class Places(NamedTuple):
    """Where each array lies that was copied."""

    rows: array[int]  # by their rowid
    offsets: array[int]
    shards: array[int]
    records: dict[int, Record]  # of the shards


def compact_columns(writer: Session) -> Compaction:
    """Rewrite the shards of those fields that have dead space.

    New shards take numbers of their own. Until the commit that lets them count,
    and from then on the old ones, are condemned in the index: they are removed when
    no reader may open them, if need be by the next writer.

    Raises
    ------
    FormatError
        A row refers to what is not there, or a shard is damaged. Nothing changes.
    OSError
        The new shards cannot be written. Nothing changes.
    """
    columns = writer._columns.values()
    for column in columns:
        if column.opened:
            raise ValueError(f"a shard of the field {column.name!r} is being written")
    remove_condemned(writer)
    before = [_size(column) for column in columns]
    for column in columns:
        if not _is_compact(writer._conn, column):
            _compact(writer, column)
    after = [_size(column) for column in columns]
    return Compaction(
        sum(nbytes for nbytes, _ in before),
        sum(nbytes for nbytes, _ in after),
        sum(shards for _, shards in before),
        sum(shards for _, shards in after),
    )


def _size(column: Column) -> tuple[int, int]:
    """Return bytes and number of a field's shard files."""
    sizes = []
    for number in _counting(column):
        with suppress(FileNotFoundError):
            sizes.append(os.stat(column.path(number)).st_size)
    return sum(sizes), len(sizes)


def _counting(column: Column) -> set[int]:
    """Return the shards that rows may refer to: those that are not condemned."""
    records = column.records.items()
    return {n for n, record in records if record.nbytes >= 0} | column.foreign


def _is_compact(conn: sqlite3.Connection, column: Column) -> bool:
    """Say whether each member of a field's shards is a sample's current one.

    A shard with one that is not has more members than rows. Rows with offsets that
    are none are a reason to rewrite, too.
    """
    offset, shard = (
        quote_name(f"{column.name}_offset"),
        quote_name(f"{column.name}_shard"),
    )
    rows = conn.execute(
        f"SELECT {shard}, count(*), min({offset} >= 512 AND {offset} % 64 = 0) "
        f"FROM samples WHERE {shard} IS NOT NULL GROUP BY 1"
    ).fetchall()
    members = {n: r.members for n, r in column.records.items() if r.nbytes > 0}
    found = {number: count for number, count, _ in rows}
    return found == members and all(aligned for _, _, aligned in rows)


def _compact(writer: Session, column: Column) -> None:
    column.finish()
    writer.flush()
    _check_rows(writer._conn, column)
    shard = quote_name(f"{column.name}_shard")
    count = f"SELECT count({shard}) FROM samples"
    (rows,) = writer._conn.execute(count).fetchone()
    first = column.next_number()
    new = [*range(first, first + -(-rows // column.limit))]
    old = sorted(_counting(column).difference(new))
    column.pending.update(dict.fromkeys(new, CONDEMNED))
    writer.flush()
    try:
        with writer.withdrawing(column):
            places = _copy(writer._conn, column, new)
            _switch(writer, column, places, old)
            writer.flush()
    except BaseException:
        if not writer.closed:  # else the next writer sees what counts
            undone = all(column.records.get(number) == CONDEMNED for number in new)
            with suppress(OSError, FastshardError):
                if undone:
                    _remove(writer, column, new)
                else:
                    remove_condemned(writer)
        raise
    remove_condemned(writer)


def _check_rows(conn: sqlite3.Connection, column: Column) -> None:
    """Refuse rows that have lost their shard: their arrays would be dead space."""
    offset, shard = (
        quote_name(f"{column.name}_offset"),
        quote_name(f"{column.name}_shard"),
    )
    sql = f"SELECT id FROM samples WHERE {shard} IS NULL AND {offset} IS NOT NULL"
    row = conn.execute(f"{sql} LIMIT 1").fetchone()
    if row is not None:
        reason = f"field {column.name!r} of sample {row[0]!r:.200} has no shard"
        raise FormatError(reason, column.folder, 0)


def _copy(conn: sqlite3.Connection, column: Column, numbers: list[int]) -> Places:
    """Copy the arrays that rows refer to, in the order of the rows, to new shards."""
    offset, shard = (
        quote_name(f"{column.name}_offset"),
        quote_name(f"{column.name}_shard"),
    )
    rows = conn.execute(
        f"SELECT rowid, id, {offset}, {shard} FROM samples "
        f"WHERE {shard} IS NOT NULL ORDER BY rowid"
    )
    places = Places(array("q"), array("q"), array("q"), {})
    shards: OrderedDict[object, Members] = OrderedDict()
    buffer = new_buffer(allow_pickle=False)
    syncing = Syncing()
    growing: Growing | None = None
    free = iter(numbers)
    try:
        for rowid, sample_id, at, number in rows:
            if growing is None or buffer.left == 0:
                if growing is not None:
                    _finish(growing, column, places, syncing)
                number_of_new = next(free)
                growing = Growing(column.path(number_of_new), number_of_new, buffer, 0)
                buffer.left = column.limit
            name = _name_of(sample_id, column.path(0))
            at = None if number in column.foreign else at  # others' say nothing
            data = _read(_members(shards, column, number), name, at)
            places.rows.append(rowid)
            places.offsets.append(buffer.append_bytes(name.encode(), data))
            places.shards.append(growing.number)
            buffer.left -= 1
            if len(buffer) >= WRITE_BYTES:
                growing.write()
        if growing is not None:
            _finish(growing, column, places, syncing)
        syncing.finish()
        sync_directory(column.folder)
    finally:
        for members in shards.values():
            members.file.close()
        syncing.abandon()
        if growing is not None:
            growing.close()
    return places


def _finish(growing: Growing, column: Column, places: Places, syncing: Syncing) -> None:
    """Let a new shard reach the disk."""
    growing.complete()
    members = column.limit - growing.buffer.left
    places.records[growing.number] = Record(growing.buffer.end, members)
    syncing.add(growing, close=True)


def _members(
    shards: OrderedDict[object, Members], column: Column, number: object
) -> Members:
    """Return what is in an old shard; a few are remembered."""
    members = shards.get(number)
    if members is None:
        if not isinstance(number, int) or number < 0:
            raise FormatError(f"no number of a shard: {number!r:.80}", column.folder, 0)
        if len(shards) >= OPEN_SHARDS:
            shards.popitem(last=False)[1].file.close()
        members = members_of(column.path(number))
        if members.error is not None:
            members.file.close()
            raise members.error
        shards[number] = members
    else:
        shards.move_to_end(number)
    return members


def _read(members: Members, name: str, offset: object) -> bytes:
    """Return the bytes of a sample's array; without an offset the last of the name."""
    extent = members.find(name, offset)
    if extent is None:
        at = offset if isinstance(offset, int) else 0
        raise FormatError("no such member", members.file.path, max(at, 0), name)
    return members.file.read_many([extent])[0]


def _name_of(sample_id: object, path: str) -> str:
    try:
        return check_sample_id(sample_id).decode()
    except (TypeError, ValueError) as error:
        raise FormatError(str(error), path, 0) from error


def _switch(writer: Session, column: Column, places: Places, old: list[int]) -> None:
    """Let rows refer to the new shards, which then count. The caller flushes."""
    offset, shard = (
        quote_name(f"{column.name}_offset"),
        quote_name(f"{column.name}_shard"),
    )
    try:
        with savepoint(writer._conn) as cursor:
            cursor.executemany(
                f"UPDATE samples SET {offset} = ?, {shard} = ? WHERE rowid = ?",
                zip(places.offsets, places.shards, places.rows, strict=True),
            )
            column.pending.update(places.records)
            last = Record(-1, next_generation(cursor))
            column.pending.update(dict.fromkeys(old, last))
            column.foreign.clear()
            column.highest = max([column.highest, *places.records])
    except sqlite3.Error as error:
        writer._failed(error)


def remove_condemned(writer: Store) -> None:
    """Remove the shards that were replaced, but for those that readers may open.

    Nothing is uncommitted when it begins.

    Raises
    ------
    OSError
        The index cannot be written.
    """
    free: dict[int, bool] = {}  # by generation
    for column in writer._columns.values():
        numbers = []
        for number, record in column.records.items():
            if record.nbytes >= 0:
                continue
            if record.members not in free:
                home, generation = writer._home, record.members
                free[generation] = not has_older_readers(writer._conn, home, generation)
            if free[record.members]:
                numbers.append(number)
        if numbers:
            _remove(writer, column, numbers)


def _remove(writer: Store, column: Column, condemned: list[int]) -> None:
    """Remove condemned files, and then what condemns them."""
    numbers = []
    used = shards_of_rows(writer._conn, column.name).intersection(condemned)
    for number in condemned:
        with suppress(OSError):  # where it cannot be now, it stays condemned
            if number not in used:  # by another program's rows
                with suppress(FileNotFoundError):
                    os.unlink(column.path(number))
            numbers.append(number)
    sync_directory(column.folder)
    with savepoint(writer._conn) as cursor:
        cursor.executemany(
            "DELETE FROM fastshard_shards WHERE field = ? AND shard = ?",
            ((column.name, number) for number in numbers),
        )
    for number in numbers:
        column.pending.pop(number, None)
        column.records.pop(number, None)
    column.foreign |= used
    writer.flush()
