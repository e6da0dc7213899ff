"""Compaction: copy the members that rows refer to into new shards.

The new shards have numbers of their own and are condemned in the index while they are
written. One commit then records the new ones and condemns the old ones. So a crash
leaves the old shards or the new ones, and the next writer removes the others.

`repack` makes the new shards of fields with packs.
"""

from __future__ import annotations

import os
import sqlite3
from array import array
from collections import OrderedDict
from contextlib import suppress
from itertools import repeat
from typing import NamedTuple

from fastshard._util.files import sync_directory
from fastshard._util.progress import iterate_with_bar
from fastshard.columnar.layout.schema import check_sample_id
from fastshard.columnar.read.leases import next_generation
from fastshard.columnar.read.shard_members import ShardMembers, scan_members
from fastshard.columnar.write.append_file import (
    WRITE_BYTES,
    AppendFile,
    SyncQueue,
    new_buffer,
)
from fastshard.columnar.write.column import Column, ShardLength
from fastshard.columnar.write.compact.repack import (
    ArrayPlaces,
    copy_arrays,
    find_arrays,
    find_starts,
)
from fastshard.columnar.write.connection import savepoint
from fastshard.columnar.write.fields import pack_field, unpack_field
from fastshard.columnar.write.recovery import UNFINISHED
from fastshard.columnar.write.session import WriterSession
from fastshard.errors import FastshardError, FormatError

__all__ = ["Compaction", "compact_columns"]

OPEN_SHARDS = 64  # old shards that are kept open, with a table of their members


class Compaction(NamedTuple):
    """Result of a compaction: bytes and numbers of shard files.

    Attributes
    ----------
    bytes_before, bytes_after : int
        Bytes of all shard files.
    shards_before, shards_after : int
        Number of shard files.
    """

    bytes_before: int
    bytes_after: int
    shards_before: int
    shards_after: int


class CopiedRows(NamedTuple):
    """New positions of the copied arrays; the three arrays are parallel."""

    rowids: array[int]
    offsets: array[int]
    shards: array[int]
    rows: array[int] | None  # in packs, -1 for none; None: nothing is packed
    records: dict[int, ShardLength]  # of the new shards


def compact_columns(session: WriterSession, pack: bool | None) -> Compaction:
    """Rewrite the shards of all fields that have dead space or another layout."""
    columns = session.transaction.columns.values()
    for column in columns:
        if column.in_handles:
            raise ValueError(f"a shard of the field {column.name!r} is being written")
    _check_index(session)
    session.remove_condemned()
    before = [_measure(column) for column in columns]
    for column in columns:
        packs = column.is_packed if pack is None else pack
        _set_limit(session, column, packs)
        try:
            if packs or column.is_packed:
                _repack(session, column, packs)
            elif not _is_compact(session.conn, column):
                _compact(session, column)
        finally:
            if not session.closed:
                _set_limit(session, column, column.is_packed)
        if pack is not None:
            column.buffer.packs = session.packs and packs
    after = [_measure(column) for column in columns]
    return Compaction(
        sum(nbytes for nbytes, _ in before),
        sum(nbytes for nbytes, _ in after),
        sum(shards for _, shards in before),
        sum(shards for _, shards in after),
    )


def _check_index(session: WriterSession) -> None:
    """Raise FormatError if SQLite finds damage: lost rows would lose their arrays."""
    (message,) = session.conn.execute("PRAGMA integrity_check(1)").fetchone()
    if message != "ok":
        raise FormatError(f"SQLite: {message}", session.path, 0)


def _set_limit(session: WriterSession, column: Column, packed: bool) -> None:
    """Set the limit of a field's shards; complete the one that grows if it changes."""
    limit = session.limits.find(packed=packed)
    if limit != column.limit:
        column.finish()
        column.limit = limit


def _measure(column: Column) -> tuple[int, int]:
    """Return bytes and number of a field's shard files, without condemned ones."""
    sizes = []
    for number in column.live_shards():
        with suppress(FileNotFoundError):
            sizes.append(os.stat(column.path(number)).st_size)
    return sum(sizes), len(sizes)


def _is_compact(conn: sqlite3.Connection, column: Column) -> bool:
    """Return whether each member of a field's shards is a sample's current one.

    A shard with dead space has more members than rows. Rows whose offset cannot be
    one of ours are a reason to rewrite, too, and shards of other programs.
    """
    if column.foreign:
        return False
    offset, shard = column.offset_column, column.shard_column
    rows = conn.execute(
        f"SELECT {shard}, count(*), min({offset} >= 512 AND {offset} % 64 = 0) "
        f"FROM samples WHERE {shard} IS NOT NULL GROUP BY 1"
    ).fetchall()
    members = {n: r.members for n, r in column.records.items() if r.nbytes > 0}
    counts = {number: count for number, count, _ in rows}
    return counts == members and all(aligned for _, _, aligned in rows)


def _repack(session: WriterSession, column: Column, packs: bool) -> None:
    """Rewrite the shards of a field with packs, or add or remove packs."""
    column.finish()
    session.flush()
    found = find_arrays(session.conn, column, packs=packs)
    if not found.is_compact or packs != column.is_packed:
        _compact(session, column, found)


def _compact(
    session: WriterSession, column: Column, found: ArrayPlaces | None = None
) -> None:
    """Rewrite the shards of a field; `found` are its arrays if it has or gets packs."""
    column.finish()
    session.flush()
    _check_rows(session.conn, column)
    count = f"SELECT count({column.shard_column}) FROM samples"
    (rows,) = session.conn.execute(count).fetchone()
    first = column.next_number()
    if found is None:
        shards = -(-rows // column.limit.arrays)
    else:
        shards = len(find_starts(found))
    new = [*range(first, first + shards)]
    old = sorted(column.live_shards().difference(new))
    column.pending.update(dict.fromkeys(new, UNFINISHED))
    session.flush()
    try:
        with session.transaction.revert_on_error(column):
            if found is None:
                copied = _copy_members(session.conn, column, new, rows)
            else:
                places, records = copy_arrays(session.conn, column, new, found)
                copied = CopiedRows(*places, records)
            _switch_rows(session, column, copied, old, found)
            session.flush()
    except BaseException:
        if not session.closed:  # else the next writer removes the new shards
            undone = all(column.records.get(number) == UNFINISHED for number in new)
            with suppress(OSError, FastshardError):
                if undone:
                    session.remove_shards(column, new)
                else:
                    session.remove_condemned()
        raise
    session.remove_condemned()


def _check_rows(conn: sqlite3.Connection, column: Column) -> None:
    """Raise FormatError for a row without a shard: it would lose its array."""
    sql = (
        f"SELECT id FROM samples WHERE {column.shard_column} IS NULL "
        f"AND {column.offset_column} IS NOT NULL LIMIT 1"
    )
    row = conn.execute(sql).fetchone()
    if row is not None:
        reason = f"field {column.name!r} of sample {row[0]!r:.200} has no shard"
        raise FormatError(reason, column.folder, 0)


def _copy_members(
    conn: sqlite3.Connection, column: Column, numbers: list[int], count: int
) -> CopiedRows:
    """Copy the members that `count` rows refer to, in their order, to new shards."""
    offset, shard = column.offset_column, column.shard_column
    rows = conn.execute(
        f"SELECT rowid, id, {offset}, {shard} FROM samples "
        f"WHERE {shard} IS NOT NULL ORDER BY rowid"
    )
    copied = CopiedRows(array("q"), array("q"), array("q"), None, {})
    shards: OrderedDict[object, ShardMembers] = OrderedDict()
    buffer = new_buffer(allow_pickle=False)
    sync_queue = SyncQueue()
    file: AppendFile | None = None
    free = iter(numbers)
    try:
        for rowid, sample_id, at, old in iterate_with_bar(
            rows, count, f"compacting {column.name}", " samples"
        ):
            if file is None or buffer.left == 0:
                if file is not None:
                    _finish(file, column, copied, sync_queue)
                number = next(free)
                file = AppendFile(column.path(number), number, buffer, 0)
                buffer.left = column.limit.arrays
            name = _name_member(sample_id, column.path(0))
            at = None if old in column.foreign else at  # theirs are inexact
            data = _read_member(_open_shard(shards, column, old), name, at)
            copied.rowids.append(rowid)
            copied.offsets.append(buffer.append_bytes(name.encode(), data))
            copied.shards.append(file.number)
            buffer.left -= 1
            if len(buffer) >= WRITE_BYTES:
                file.write()
        if file is not None:
            _finish(file, column, copied, sync_queue)
        sync_queue.finish()
        sync_directory(column.folder)
    finally:
        for members in shards.values():
            members.file.close()
        sync_queue.abandon()
        if file is not None:
            file.close()
    return copied


def _finish(
    file: AppendFile, column: Column, copied: CopiedRows, sync_queue: SyncQueue
) -> None:
    """Complete a new shard and queue it for sync."""
    file.complete()
    members = column.limit.arrays - file.buffer.left
    copied.records[file.number] = ShardLength(file.buffer.end, members)
    sync_queue.add(file, close=True)


def _open_shard(
    shards: OrderedDict[object, ShardMembers], column: Column, number: object
) -> ShardMembers:
    """Return the members of an old shard, from the cache or a scan.

    The cache holds the `OPEN_SHARDS` that were used last.
    """
    members = shards.get(number)
    if members is None:
        if not isinstance(number, int) or number < 0:
            reason = f"a row has no shard number but {number!r:.80}"
            raise FormatError(reason, column.folder, 0)
        if len(shards) >= OPEN_SHARDS:
            shards.popitem(last=False)[1].file.close()
        members = scan_members(column.path(number))
        if members.error is not None:
            members.file.close()
            raise members.error
        shards[number] = members
    else:
        shards.move_to_end(number)
    return members


def _read_member(members: ShardMembers, name: str, offset: object) -> bytes:
    """Return the bytes of a member; see `ShardMembers.find`."""
    extent = members.find(name, offset)
    if extent is None:
        at = offset if isinstance(offset, int) else 0
        raise FormatError("no such member", members.file.path, max(at, 0), name)
    return members.file.read_many([extent])[0]


def _name_member(sample_id: object, path: str) -> str:
    """Return the name of a sample's members; `path` is for the error."""
    try:
        return check_sample_id(sample_id).decode()
    except (TypeError, ValueError) as error:
        raise FormatError(str(error), path, 0) from error


def _switch_rows(
    session: WriterSession,
    column: Column,
    copied: CopiedRows,
    old: list[int],
    found: ArrayPlaces | None,
) -> None:
    """Let rows refer to the new shards, condemn the old ones. The caller flushes."""
    offset, shard = column.offset_column, column.shard_column
    try:
        with savepoint(session.conn) as cursor:
            if copied.rows is not None and not column.is_packed:
                pack_field(cursor, column.name)
                column.is_packed = True
            if copied.rows is None:
                cursor.executemany(
                    f"UPDATE samples SET {offset} = ?, {shard} = ?{column.cleared_row} "
                    "WHERE rowid = ?",
                    zip(copied.offsets, copied.shards, copied.rowids, strict=True),
                )
            else:
                cursor.executemany(
                    f"UPDATE samples SET {offset} = ?1, {shard} = ?2, "
                    f"{column.row_column} = iif(?3 < 0, NULL, "
                    "fastshard_row(?5, id, ?2, ?1, ?3)) WHERE rowid = ?4",
                    zip(
                        copied.offsets,
                        copied.shards,
                        copied.rows,
                        copied.rowids,
                        repeat(column.name),
                        strict=False,
                    ),
                )
            if found is not None and not found.packs:
                column.is_packed = not unpack_field(cursor, column.name)
            column.pending.update(copied.records)
            condemned = ShardLength(-1, next_generation(cursor))
            column.pending.update(dict.fromkeys(old, condemned))
            column.foreign.clear()
            column.highest = max([column.highest, *copied.records])
    except sqlite3.Error as error:
        session.fail(error)
