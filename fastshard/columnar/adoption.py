"""Members that other programs wrote: rows are made to say where they are.

Other writers of the format keep sums of sizes for offsets, and find members by
name: of several of one name the last one counts. Such an offset may be that of an
older member of the name by chance. So it is not looked at where other programs
wrote; and where fastshard takes over what they wrote, it writes true ones.
"""

from __future__ import annotations

import sqlite3

from fastshard._core.extents import ExtentTable
from fastshard._core.scan import scan_sound
from fastshard._core.source import LocalFile
from fastshard.columnar.columns import Column, Record
from fastshard.columnar.schema import quoted
from fastshard.formats.tar_writer import BLOCK, is_marked

__all__ = ["take_over_shard", "take_over_tail"]


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
        table = scan_sound(file)[0]
    last: dict[str, int] = {}
    for i in range(before.members):
        last[table.name_of(i)] = table.extent(i)[0]
    offset, shard = quoted(f"{column.name}_offset"), quoted(f"{column.name}_shard")
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
    offset, shard = quoted(f"{column.name}_offset"), quoted(f"{column.name}_shard")
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
