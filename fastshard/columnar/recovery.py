"""What a writer does before it writes: the files are made to be as the index says."""

from __future__ import annotations

import os
import sqlite3
import warnings
from contextlib import suppress

from fastshard._core.scan import scan_sound
from fastshard._core.source import LocalFile
from fastshard.columnar.adoption import take_over_tail
from fastshard.columnar.columns import Column, Record
from fastshard.columnar.growing import FLAGS, only_zeros, sync_file, write_at
from fastshard.columnar.names import shard_number
from fastshard.columnar.schema import quoted
from fastshard.columnar.swapping import settle_swaps
from fastshard.files import sync_directory
from fastshard.formats.tarheader import END

__all__ = ["read_records", "recover", "shards_of_rows"]


def recover(conn: sqlite3.Connection, column: Column) -> None:
    """Learn which shards a field has, and undo what was never acknowledged.

    Files that end behind what their record says are cut, unless rows refer to what
    is there: then another program appended it, and it is taken over. Files of
    other programs are not touched. The caller commits.

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
    _remove_condemned(conn, column)
    sizes = _sizes(column.folder)
    last = max(column.records, default=-1)
    for number, record in sorted(column.records.items()):
        size = sizes.get(number, 0)
        if size < record.nbytes:
            _warn_short(column, number, size, record)
        # What others append makes a file longer than this; what we did not finish
        # need not, but it can only be in the last one.
        elif size != record.nbytes + len(END) or number == last:
            _check_tail(conn, column, number, record)
    unrecorded = sizes.keys() - column.records.keys()
    if unrecorded or not column.records:
        column.foreign = shards_of_rows(conn, column.name) - column.records.keys()
    known = column.records.keys() | column.foreign
    if not column.records:  # then these were not left by a writer of ours
        known |= unrecorded
    column.highest = max(known, default=-1)
    if column.highest in column.foreign:
        column.take_over(column.highest)


def read_records(conn: sqlite3.Connection, field: str) -> dict[int, Record]:
    """Return what the index knows of a field's shard files."""
    rows = conn.execute(
        "SELECT shard, nbytes, members FROM fastshard_shards WHERE field = ? "
        "AND typeof(shard) = 'integer' AND typeof(nbytes) = 'integer' "
        "AND typeof(members) = 'integer' AND shard >= 0 AND members >= 0",
        (field,),
    )
    return {number: Record(*record) for number, *record in rows}


def shards_of_rows(conn: sqlite3.Connection, field: str) -> set[int]:
    """Return the shards that rows refer to. It reads them all."""
    column = quoted(f"{field}_shard")
    rows = conn.execute(
        f"SELECT DISTINCT {column} FROM samples "
        f"WHERE typeof({column}) = 'integer' AND {column} >= 0"
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
    column.unsound.add(number)
    warnings.warn(
        f"{column.path(number)} has {size:,} bytes of {record.nbytes:,} that were "
        "stored: arrays are lost; nothing is appended to it",
        RuntimeWarning,
        stacklevel=5,
    )


def _check_tail(
    conn: sqlite3.Connection, column: Column, number: int, record: Record
) -> None:
    """Cut what stands behind a record, or take it over."""
    path = column.path(number)
    try:
        with LocalFile(path) as file:
            has_end = file.nbytes >= record.nbytes + len(END)
            if only_zeros(file.fd, record.nbytes):
                if not record.nbytes or not has_end:  # a full disk had no room for it
                    _cut(path, record.nbytes)
                return
            table, end, _ = scan_sound(file)
    except FileNotFoundError:  # and nothing was stored in it
        return
    if end < record.nbytes:
        column.unsound.add(number)
        warnings.warn(
            f"{path} is damaged at byte {end:,}, before the end of what was stored: "
            "nothing is appended to it",
            RuntimeWarning,
            stacklevel=5,
        )
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


def _remove_condemned(conn: sqlite3.Connection, column: Column) -> None:
    """Remove files that a compaction has replaced, or has not finished."""
    condemned = {n for n, record in column.records.items() if record.nbytes < 0}
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
