"""Crash recovery: truncate shards to the lengths committed in the index."""

from __future__ import annotations

import os
import sqlite3
import stat
import warnings
from contextlib import suppress

from fastshard._core.io.source import LocalFile
from fastshard._core.parse.tar import scan_until_fault
from fastshard._core.table.extents import ExtentTable
from fastshard._util.files import sync_directory
from fastshard.columnar.schema import MAX_SHARD, quote_name, shard_number
from fastshard.columnar.write.column import (
    FLAGS,
    Column,
    Record,
    only_zeros,
    sync_file,
    write_at,
)
from fastshard.columnar.write.replace import settle_swaps
from fastshard.formats.tar_writer import BLOCK, END, is_marked

__all__ = [
    "is_left",
    "read_records",
    "recover",
    "shards_of_rows",
    "take_over_shard",
    "take_over_tail",
]


LOOK_FLAGS = os.O_RDONLY
for _flag in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
    LOOK_FLAGS |= getattr(os, _flag, 0)


def is_left(path: str) -> bool:
    """Say whether a shard that nothing refers to was made by a writer of ours.

    One is told by the mark in its first header. A file that has none, or zeros in its
    place, as a power loss leaves them, is no archive of anything.
    """
    try:
        fd = os.open(path, LOOK_FLAGS)
    except OSError:
        return False
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return False
        first = os.read(fd, BLOCK)
        return len(first) < BLOCK or is_marked(first)
    finally:
        os.close(fd)


def take_over_shard(cursor: sqlite3.Cursor, column: Column, number: int) -> None:
    """Correct the rows of another program's shard that is gone on with.

    The caller commits it with the shard's record.

    Raises
    ------
    OSError
        The shard cannot be read.
    """
    before = column.scanned.get(number)
    if before is None:  # nothing was kept of it
        return
    with LocalFile(column.path(number)) as file:
        table = scan_until_fault(file)[0]
    last: dict[str, int] = {}
    for i in range(before.members):
        last[table.name_of(i)] = table.extent(i)[0]
    offset, shard = (
        quote_name(f"{column.name}_offset"),
        quote_name(f"{column.name}_shard"),
    )
    cursor.executemany(
        f"UPDATE samples SET {offset} = ? WHERE id = ? AND {shard} = ? "
        f"AND (typeof({offset}) <> 'integer' OR {offset} < ?)",
        (
            (at, name.removesuffix(".npy"), number, before.nbytes)
            for name, at in last.items()
        ),
    )


def take_over_tail(
    conn: sqlite3.Connection,
    column: Column,
    number: int,
    record: Record,
    table: ExtentTable,
) -> Record:
    """Take over what stands behind a record, if other programs appended it.

    They did if a member there has not our mark, and a row is of its name; or if a
    row says that a member with our mark is there. Else it is what a crash has left,
    of which no row says so. The caller commits.

    Returns
    -------
    Record
        Up to the last such member; the same one if there is none.
    """
    behind = [i for i in range(len(table)) if table.extent(i)[0] >= record.nbytes]
    places = [table.extent(i)[0] for i in behind]
    names = [table.name_of(i) for i in behind]
    with LocalFile(column.path(number)) as file:
        blocks = file.read_many([(at - BLOCK, BLOCK) for at in places])
    last = dict(zip(names, range(len(names)), strict=True))
    offset, shard = (
        quote_name(f"{column.name}_offset"),
        quote_name(f"{column.name}_shard"),
    )
    find = f"SELECT {offset} FROM samples WHERE id = ? AND {shard} = ?"
    found: dict[str, int] = {}
    for k, name in enumerate(names):
        row = conn.execute(find, (name.removesuffix(".npy"), number)).fetchone()
        if row is None:
            continue
        # Of several without our mark the last counts; of ours what the row says.
        if row[0] == places[k] if is_marked(blocks[k]) else last[name] == k:
            found[name] = k
    if not found:
        return record
    conn.executemany(
        f"UPDATE samples SET {offset} = ? WHERE id = ?",
        [(places[k], name.removesuffix(".npy")) for name, k in found.items()],
    )
    i = behind[max(found.values())]
    at, size = table.extent(i)
    return Record(at + size + -size % BLOCK, i + 1)


UNFINISHED = Record(-1, 0)  # see `compacting`
MOST_BYTES = 1 << 62  # of a shard; offsets are int64 in SQLite


def recover(conn: sqlite3.Connection, column: Column) -> None:
    """Learn which shards a field has, and undo what was never acknowledged.

    Files that end behind what their record says are cut, unless rows refer to what
    is there: then another program appended it, and it is taken over. Files of ours
    that have neither a record nor rows are removed. Files of other programs are not
    touched. The caller commits.

    Parameters
    ----------
    conn : sqlite3.Connection
    column : Column
        New; its shards are filled in.

    Warns
    -----
    RuntimeWarning
        A file is missing, or shorter than its record: arrays are lost.

    Raises
    ------
    OSError
        A file can be neither read nor cut.
    """
    settle_swaps(conn, column.folder)
    column.records = read_records(conn, column.name)
    column.unsound |= _unsound_records(conn, column)
    _remove_condemned(conn, column)
    sizes = _sizes(column.folder)
    for number, record in sorted(column.records.items()):
        if record.nbytes < 0:
            continue
        size = sizes.get(number, 0)
        if size < record.nbytes:
            _warn_short(column, number, size, record)
        else:  # of any size: a member may take as much room as the archive's end
            _check_tail(conn, column, number, record)
    unrecorded = sizes.keys() - column.records.keys() - column.unsound
    if unrecorded or not column.records:
        column.foreign = shards_of_rows(conn, column.name) - column.records.keys()
    unrecorded -= _remove_left(column, unrecorded - column.foreign)
    known = column.records.keys() | column.foreign | column.unsound | unrecorded
    column.highest = max(known, default=-1)
    if column.highest in column.foreign:
        column.take_over(column.highest)


def read_records(conn: sqlite3.Connection, field: str) -> dict[int, Record]:
    """Return what the index knows of a field's shard files, where it can be so."""
    rows = conn.execute(
        "SELECT shard, nbytes, members FROM fastshard_shards WHERE field = ? "
        "AND typeof(shard) = 'integer' AND typeof(nbytes) = 'integer' "
        "AND typeof(members) = 'integer' AND shard BETWEEN 0 AND ? AND members >= 0 "
        f"AND (nbytes = -1 OR nbytes BETWEEN 0 AND {MOST_BYTES} "
        f"AND nbytes % {BLOCK} = 0 AND members <= nbytes / {BLOCK})",
        (field, MAX_SHARD),
    )
    return {number: Record(*record) for number, *record in rows}


def _unsound_records(conn: sqlite3.Connection, column: Column) -> set[int]:
    """Return the shards of which the index knows what cannot be."""
    rows = conn.execute(
        "SELECT shard FROM fastshard_shards WHERE field = ? "
        "AND typeof(shard) = 'integer' AND shard BETWEEN 0 AND ?",
        (column.name, MAX_SHARD),
    )
    return {number for (number,) in rows} - column.records.keys()


def shards_of_rows(conn: sqlite3.Connection, field: str) -> set[int]:
    """Return the shards that rows refer to. It reads them all."""
    column = quote_name(f"{field}_shard")
    rows = conn.execute(
        f"SELECT DISTINCT {column} FROM samples "
        f"WHERE typeof({column}) = 'integer' AND {column} BETWEEN 0 AND ?",
        (MAX_SHARD,),
    )
    return {number for (number,) in rows}


def _sizes(folder: str) -> dict[int, int]:
    """Return the size of each shard file; of what is no regular file too."""
    sizes = {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            number = shard_number(entry.name)
            if number is not None:
                with suppress(FileNotFoundError):
                    sizes[number] = entry.stat().st_size
    return sizes


def _warn_short(column: Column, number: int, size: int, record: Record) -> None:
    reason = f"has {size:,} bytes of {record.nbytes:,} that were stored"
    _warn(column, number, f"{column.path(number)} {reason}: arrays are lost")


def _warn(column: Column, number: int, reason: str) -> None:
    column.unsound.add(number)
    reason += "; nothing is appended to it"
    warnings.warn(reason, RuntimeWarning, stacklevel=6)


def _check_tail(
    conn: sqlite3.Connection, column: Column, number: int, record: Record
) -> None:
    """Cut what stands behind a record, or take it over."""
    path = column.path(number)
    try:
        with LocalFile(path) as file:
            has_end = file.nbytes >= record.nbytes + len(END)
            if only_zeros(file.fd, record.nbytes):
                # A full disk had no room for the end.
                unended = not (record.nbytes and has_end)
                if unended and column.may_grow(number, record.nbytes):
                    _cut(path, record.nbytes)
                return
            table, end, _ = scan_until_fault(file)
    except FileNotFoundError:  # and nothing was stored in it
        return
    if end < record.nbytes:
        _warn(column, number, f"{path} is damaged at byte {end:,}, of what was stored")
        return
    if record.nbytes and not column.may_grow(number, record.nbytes):
        _warn(column, number, f"{path} is a link, and more is in it than was stored")
        return
    taken = take_over_tail(conn, column, number, record, table)
    _cut(path, taken.nbytes)
    if taken != record:
        column.records[number] = taken
        conn.execute(
            "UPDATE fastshard_shards SET nbytes = ?, members = ? "
            "WHERE field = ? AND shard = ?",
            (*taken, column.name, number),
        )


def _cut(path: str, nbytes: int) -> None:
    """Let a file end after some bytes, on the disk too. Of 0 bytes nothing is left."""
    if nbytes == 0:
        os.unlink(path)
        sync_directory(os.path.dirname(path))
        return
    fd = os.open(path, FLAGS)
    try:
        os.ftruncate(fd, nbytes)
        with suppress(OSError):  # a full disk; the end is written with what follows
            write_at(fd, memoryview(END), nbytes)
        sync_file(fd)
    finally:
        os.close(fd)


def _remove_left(column: Column, numbers: set[int]) -> set[int]:
    """Remove what a writer that was stopped has left of shards; return which."""
    left = {number for number in numbers if is_left(column.path(number))}
    for number in left:
        with suppress(FileNotFoundError):
            os.unlink(column.path(number))
    if left:
        sync_directory(column.folder)
    return left


def _remove_condemned(conn: sqlite3.Connection, column: Column) -> None:
    """Remove files that a compaction has not finished; what it replaced may be read."""
    condemned = {n for n, record in column.records.items() if record == UNFINISHED}
    if not condemned:
        return
    used = shards_of_rows(conn, column.name)
    for number in condemned - used:
        with suppress(FileNotFoundError):
            os.unlink(column.path(number))
    with suppress(FileNotFoundError):
        sync_directory(column.folder)
    for number in condemned:
        del column.records[number]
        conn.execute(
            "DELETE FROM fastshard_shards WHERE field = ? AND shard = ?",
            (column.name, number),
        )
