"""Crash recovery: truncate shards to the lengths committed in the index.

Bytes after a record were never acknowledged, with one exception: another program may
have appended to the shard, and rows refer to its members. Then they are *adopted*: the
record is extended over them. `transaction` defines "acknowledged".

`recover` runs when a writer opens a dataset. `list_leftovers` and
`list_unfinished_index` list the files that it would remove.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from fastshard._core.io.source import LocalFile
from fastshard._core.parse.tar import scan_until_fault
from fastshard._core.table.extents import ExtentTable
from fastshard._util.files import sync_directory
from fastshard.columnar.layout.packs import pack_name
from fastshard.columnar.layout.schema import MAX_SHARD, Field, quote_name, shard_number
from fastshard.columnar.layout.stored_arrays import count_arrays
from fastshard.columnar.write.append_file import (
    OPEN_FLAGS,
    is_zero_from,
    sync_file,
    write_at,
)
from fastshard.columnar.write.column import Column, ShardLength
from fastshard.columnar.write.creation import is_unfinished
from fastshard.columnar.write.lock import is_locked
from fastshard.columnar.write.replace import is_temporary_name, settle_replacements
from fastshard.formats.tar_writer import BLOCK, END, is_marked

__all__ = [
    "UNFINISHED",
    "Leftovers",
    "adopt_rows",
    "is_leftover",
    "list_leftovers",
    "list_unfinished_index",
    "read_records",
    "recover",
    "referenced_shards",
]

# Record of a new shard of a compaction that is not committed: no reader needs it.
UNFINISHED = ShardLength(-1, 0)
MAX_BYTES = 1 << 62  # of a shard; SQLite's integers are int64
READ_FLAGS = os.O_RDONLY
for _flag in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
    READ_FLAGS |= getattr(os, _flag, 0)


def recover(cursor: sqlite3.Cursor, column: Column) -> None:
    """Load a field's shard records, and undo uncommitted changes of its files.

    Shards longer than their record are cut, or adopted. Files that a stopped writer
    left without a record and without rows are removed. Files of other programs are
    not touched. The caller commits.
    """
    settle_replacements(cursor, column.folder)
    column.records = read_records(cursor, column.name)
    column.unsound |= _find_invalid_records(cursor, column)
    _remove_unfinished(cursor, column)
    sizes = _list_sizes(column.folder)
    for number, record in sorted(column.records.items()):
        if record.is_condemned:
            continue
        path, size = column.path(number), sizes.get(number, 0)
        if size < record.nbytes:
            _warn(
                column,
                number,
                f"{path} has {size:,} of {record.nbytes:,} bytes that "
                "were stored: arrays are lost",
            )
        else:  # of any size: a member may be as long as the archive's end
            _check_tail(cursor, column, number, record, path)
    unrecorded = sizes.keys() - column.records.keys() - column.unsound
    if unrecorded or not column.records:
        column.foreign = referenced_shards(cursor, column.name) - column.records.keys()
    unrecorded -= _remove_leftovers(column, unrecorded - column.foreign)
    numbers = column.records.keys() | column.foreign | column.unsound | unrecorded
    column.highest = max(numbers, default=-1)
    if column.highest in column.foreign:
        column.adopt(column.highest)


def read_records(cursor: sqlite3.Cursor, field: str) -> dict[int, ShardLength]:
    """Return a field's valid shard records by number."""
    rows = cursor.execute(
        "SELECT shard, nbytes, members FROM fastshard_shards WHERE field = ? "
        "AND typeof(shard) = 'integer' AND typeof(nbytes) = 'integer' "
        "AND typeof(members) = 'integer' AND shard BETWEEN 0 AND ? AND members >= 0 "
        f"AND (nbytes = -1 OR nbytes BETWEEN 0 AND {MAX_BYTES} "
        f"AND nbytes % {BLOCK} = 0 AND members <= nbytes)",
        (field, MAX_SHARD),
    )
    return {number: ShardLength(*record) for number, *record in rows}


def referenced_shards(cursor: sqlite3.Cursor, field: str) -> set[int]:
    """Return the shards of a field that rows refer to; reads all rows."""
    column = quote_name(f"{field}_shard")
    rows = cursor.execute(
        f"SELECT DISTINCT {column} FROM samples "
        f"WHERE typeof({column}) = 'integer' AND {column} BETWEEN 0 AND ?",
        (MAX_SHARD,),
    )
    return {number for (number,) in rows}


def is_leftover(path: str) -> bool:
    """Return whether a shard that no row refers to was made by a stopped writer.

    Its first header has our mark. A file shorter than a header, or with zeros for
    one, as a power loss leaves them, is taken for a leftover as well.
    """
    try:
        fd = os.open(path, READ_FLAGS)
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


def adopt_rows(cursor: sqlite3.Cursor, column: Column, number: int) -> None:
    """Give rows of an adopted shard exact offsets: other programs' are inexact.

    They leave the row in a pack that a sample had before; it is removed. The caller
    commits them together with the shard's record.
    """
    before = column.scans.get(number)
    if before is None:  # it was not adopted whole
        return
    with LocalFile(column.path(number)) as file:
        table = scan_until_fault(file)[0]
    last: dict[str, int] = {}
    packs = []
    for i in range(len(table)):
        at = table.extent(i)[0]
        if at >= before.nbytes:
            break
        name = table.name_of(i)
        if name == pack_name(at):
            packs.append(at)
        last[name] = at
    offset, shard = column.offset_column, column.shard_column
    cursor.executemany(
        f"UPDATE samples SET {offset} = ?{column.cleared_row} "
        f"WHERE id = ? AND {shard} = ? "
        f"AND (typeof({offset}) <> 'integer' OR {offset} < ?) "
        f"AND ({column.selected_row} IS NULL "
        f"OR {offset} NOT IN (SELECT value FROM json_each(?)))",
        (
            (at, name.removesuffix(".npy"), number, before.nbytes, json.dumps(packs))
            for name, at in last.items()
        ),
    )


def _adopt_tail(
    cursor: sqlite3.Cursor,
    column: Column,
    number: int,
    record: ShardLength,
    table: ExtentTable,
) -> ShardLength:
    """Adopt members after a record that rows of other programs refer to.

    A member without our mark is theirs if a row has its name. One with our mark is
    adopted if a row has its offset, as is a pack; else a crash has left it. The caller
    commits.
    """
    tail = [i for i in range(len(table)) if table.extent(i)[0] >= record.nbytes]
    offsets = [table.extent(i)[0] for i in tail]
    names = [table.name_of(i) for i in tail]
    with LocalFile(column.path(number)) as file:
        blocks = file.read_many([(at - BLOCK, BLOCK) for at in offsets])
    last = dict(zip(names, range(len(names)), strict=True))
    offset, shard = column.offset_column, column.shard_column
    find = f"SELECT {offset} FROM samples WHERE id = ? AND {shard} = ?"
    adopted: dict[str, int] = {}
    packs = _find_used_packs(cursor, column, number, offsets, names)
    for k, name in enumerate(names):
        row = cursor.execute(find, (name.removesuffix(".npy"), number)).fetchone()
        if row is None:
            continue
        # Without our mark the last member of a name counts; with it, the row's offset.
        if row[0] == offsets[k] if is_marked(blocks[k]) else last[name] == k:
            adopted[name] = k
    if not adopted and not packs:
        return record
    cursor.executemany(
        f"UPDATE samples SET {offset} = ?{column.cleared_row} WHERE id = ?",
        [(offsets[k], name.removesuffix(".npy")) for name, k in adopted.items()],
    )
    i = tail[max([*adopted.values(), *packs])]
    at, size = table.extent(i)
    with LocalFile(column.path(number)) as file:
        arrays = count_arrays(file, table, i + 1)
    return ShardLength(at + size + -size % BLOCK, arrays)


def _find_used_packs(
    cursor: sqlite3.Cursor,
    column: Column,
    number: int,
    offsets: list[int],
    names: list[str],
) -> list[int]:
    """Return the positions of the members that are packs with rows."""
    packs = {at: k for k, at in enumerate(offsets) if names[k] == pack_name(at)}
    if not column.is_packed or not packs:
        return []
    offset, shard, row = column.offset_column, column.shard_column, column.row_column
    rows = cursor.execute(
        f"SELECT DISTINCT {offset} FROM samples WHERE {shard} = ? "
        f"AND {row} IS NOT NULL AND {offset} IN (SELECT value FROM json_each(?))",
        (number, json.dumps(list(packs))),
    )
    return [packs[at] for (at,) in rows]


def _find_invalid_records(cursor: sqlite3.Cursor, column: Column) -> set[int]:
    """Return the shards whose record `read_records` leaves out."""
    rows = cursor.execute(
        "SELECT shard FROM fastshard_shards WHERE field = ? "
        "AND typeof(shard) = 'integer' AND shard BETWEEN 0 AND ?",
        (column.name, MAX_SHARD),
    )
    return {number for (number,) in rows} - column.records.keys()


def _list_sizes(folder: str) -> dict[int, int]:
    """Return size by number of all entries named like a shard."""
    sizes = {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            number = shard_number(entry.name)
            if number is not None:
                with suppress(FileNotFoundError):
                    sizes[number] = entry.stat().st_size
    return sizes


def _warn(column: Column, number: int, reason: str) -> None:
    """Warn of a shard, and mark it as unsound."""
    column.unsound.add(number)
    reason += "; nothing is appended to it"
    warnings.warn(reason, RuntimeWarning, stacklevel=6)


def _check_tail(
    cursor: sqlite3.Cursor,
    column: Column,
    number: int,
    record: ShardLength,
    path: str,
) -> None:
    """Cut or adopt the bytes after a record."""
    try:
        with LocalFile(path) as file:
            has_end = file.nbytes >= record.nbytes + len(END)
            if is_zero_from(file.fd, record.nbytes):
                # A full disk may have had no room for the archive's end.
                unended = not (record.nbytes and has_end)
                if unended and column.may_append(number, record.nbytes):
                    _cut(path, record.nbytes)
                return
            table, end, _ = scan_until_fault(file)
    except FileNotFoundError:  # the record is of 0 bytes
        return
    if end < record.nbytes:
        reason = f"{path} is damaged at byte {end:,}, of {record.nbytes:,} stored"
        _warn(column, number, reason)
        return
    if record.nbytes and not column.may_append(number, record.nbytes):
        reason = f"{path} is a link, and longer than {record.nbytes:,} stored bytes"
        _warn(column, number, reason)
        return
    adopted = _adopt_tail(cursor, column, number, record, table)
    _cut(path, adopted.nbytes)
    if adopted != record:
        column.records[number] = adopted
        cursor.execute(
            "UPDATE fastshard_shards SET nbytes = ?, members = ? "
            "WHERE field = ? AND shard = ?",
            (*adopted, column.name, number),
        )


def _cut(path: str, nbytes: int) -> None:
    """Truncate a shard, write an archive's end and sync; remove it for 0 bytes.

    `cut_file` does the same for files that are open, and ignores errors.
    """
    if nbytes == 0:
        os.unlink(path)
        sync_directory(os.path.dirname(path))
        return
    fd = os.open(path, OPEN_FLAGS)
    try:
        os.ftruncate(fd, nbytes)
        with suppress(OSError):  # the disk is full; the next member writes an end
            write_at(fd, memoryview(END), nbytes)
        sync_file(fd)
    finally:
        os.close(fd)


def _remove_leftovers(column: Column, numbers: set[int]) -> set[int]:
    """Remove those of the shards that a stopped writer left; return their numbers."""
    leftovers = {number for number in numbers if is_leftover(column.path(number))}
    for number in leftovers:
        with suppress(FileNotFoundError):
            os.unlink(column.path(number))
    if leftovers:
        sync_directory(column.folder)
    return leftovers


def _remove_unfinished(cursor: sqlite3.Cursor, column: Column) -> None:
    """Remove the new shards of a compaction that was stopped, and their records.

    Shards that a compaction has replaced stay: readers may open them.
    """
    numbers = {n for n, record in column.records.items() if record == UNFINISHED}
    if not numbers:
        return
    for number in numbers - referenced_shards(cursor, column.name):
        with suppress(FileNotFoundError):
            os.unlink(column.path(number))
    with suppress(FileNotFoundError):
        sync_directory(column.folder)
    for number in numbers:
        del column.records[number]
        cursor.execute(
            "DELETE FROM fastshard_shards WHERE field = ? AND shard = ?",
            (column.name, number),
        )


class Leftovers(NamedTuple):
    """Files of a field without samples, with their sizes in bytes by path.

    Attributes
    ----------
    uncommitted : dict
        Left by a stopped writer. The next writer removes them.
    replaced : dict
        Replaced by a compaction. Readers may still open them.
    """

    uncommitted: dict[str, int]
    replaced: dict[str, int]


def list_leftovers(conn: sqlite3.Connection, root: str, field: Field) -> Leftovers:
    """Return the files of a field without samples.

    Nothing counts as uncommitted while the dataset has an open writer.
    """
    folder = os.path.join(root, field.folder)
    condemned: set[int] = set()
    recorded: set[int] = set()
    with suppress(sqlite3.OperationalError):  # fastshard never wrote to the index
        sql = "SELECT shard, nbytes FROM fastshard_shards WHERE field = ?"
        for shard, nbytes in conn.execute(sql, (field.name,)):
            if nbytes != 0:  # a record of 0 bytes is of a shard without a commit
                recorded.add(shard)
            if nbytes == -1:
                condemned.add(shard)
    replaced, others = {}, {}
    for number, path, nbytes in _list_shards(folder):
        if number in condemned:
            replaced[path] = nbytes
        elif number not in recorded:
            others[path] = number, nbytes
    uncommitted = {}
    if not is_locked(root):
        cursor = sqlite3.Cursor(conn)
        used = referenced_shards(cursor, field.name) if others else set()
        for path, (number, nbytes) in others.items():
            if number not in used and is_leftover(path):
                uncommitted[path] = nbytes
        uncommitted |= _list_files(folder, is_temporary_name)
    return Leftovers(uncommitted, replaced)


def list_unfinished_index(root: str) -> dict[str, int]:
    """Return the files of an index whose creation was stopped; size by path."""
    return {} if is_locked(root) else _list_files(root, is_unfinished)


def _list_shards(folder: str) -> Iterator[tuple[int, str, int]]:
    """Yield number, path and size of shard files, sorted by name."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            number = shard_number(entry.name)
            if number is not None:
                with suppress(FileNotFoundError):
                    size = entry.stat(follow_symlinks=False).st_size
                    yield number, entry.path, size


def _list_files(folder: str, is_wanted: Callable[[str], bool]) -> dict[str, int]:
    """Return size by path of the files whose name `is_wanted` accepts."""
    found = {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if is_wanted(entry.name):
                with suppress(FileNotFoundError):
                    found[entry.path] = entry.stat(follow_symlinks=False).st_size
    return found
