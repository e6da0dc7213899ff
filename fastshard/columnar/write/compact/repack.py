"""Compaction of fields with packs: arrays in their places, copied to new shards.

In a new shard the arrays of one layout are the rows of one pack, in the order of the
samples, or of several packs of `PACK_BYTES`. An array without an equal becomes a
member of its own, as do those that no pack may hold.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastshard._core.dataset.npy import fill_rows
from fastshard._core.io.source import LocalFile
from fastshard._core.table.checksums import find_row
from fastshard._util.files import sync_directory
from fastshard._util.progress import iterate_with_bar
from fastshard.columnar.layout.packs import pack_name
from fastshard.columnar.layout.schema import check_sample_id
from fastshard.columnar.layout.shard_limit import ShardLimit
from fastshard.columnar.layout.stored_arrays import (
    ArrayLayout,
    LayoutParser,
    StoredPack,
)
from fastshard.columnar.read.shard_members import ShardMembers, scan_members
from fastshard.columnar.write.append_file import (
    WRITE_BYTES,
    AppendFile,
    SyncQueue,
    new_buffer,
)
from fastshard.columnar.write.column import Column, ShardLength
from fastshard.errors import FormatError
from fastshard.formats.tar_writer import BLOCK

__all__ = ["ArrayPlaces", "copy_arrays", "find_arrays", "find_starts"]

PACK_BYTES = 16 << 20  # of the rows of one pack
OPEN_FILES = 64  # old shards that are kept open
HEAD = 256  # bytes of a member, for its header
SPAN = 4  # bytes read for each byte needed, at most
GAP = 64 << 10  # bytes that are read in vain at most, beside `SPAN`
AS_IT_IS = -1  # layout of a member that is copied with its header
OWN = -1  # row of a member of its own
Ints: TypeAlias = NDArray[np.int64]
Places: TypeAlias = "tuple[array[int], array[int], array[int], array[int] | None]"


class ArrayPlaces(NamedTuple):
    """Arrays of a field, in the order of the samples; the arrays are parallel."""

    packs: bool  # whether the new shards have packs
    limit: ShardLimit  # of a new shard
    is_compact: bool  # whether the shards are already in this layout
    rowids: Ints
    shards: Ints
    starts: Ints  # offsets of the data; of the member for `AS_IT_IS`
    sizes: Ints  # bytes from there
    layouts: Ints  # numbers, or `AS_IT_IS`
    types: list[ArrayLayout]  # by number


def find_arrays(
    conn: sqlite3.Connection, column: Column, *, packs: bool
) -> ArrayPlaces:
    """Find the arrays of a field in its shards."""
    shard = column.shard_column
    rows = conn.execute(
        f"SELECT {shard}, rowid, id, {column.offset_column}, {column.selected_row} "
        f"FROM samples WHERE {shard} IS NOT NULL ORDER BY {shard}, rowid"
    )
    (count,) = conn.execute(f"SELECT count(DISTINCT {shard}) FROM samples").fetchone()
    parser = LayoutParser()
    found = array("q")
    is_whole = True  # whether rows refer to all members
    for number, of_shard in iterate_with_bar(
        groupby(rows, itemgetter(0)), count, f"reading {column.name}"
    ):
        if type(number) is not int or number < 0:
            reason = f"a row has no shard number but {number!r:.80}"
            raise FormatError(reason, column.folder, 0)
        with scan_members(column.path(number)) as members:
            if members.error is not None:
                raise members.error
            resolver = _ShardArrays(column, number, members, parser)
            for _, rowid, sample_id, at, row in of_shard:
                found.extend(resolver.find(rowid, sample_id, at, row))
            is_whole = is_whole and resolver.is_whole(column)
    table = np.frombuffer(found, np.int64).reshape(-1, 7)
    _check_owners(conn, column, table)
    table = table[np.argsort(table[:, 0], kind="stable")]
    rowids, shards, starts, sizes, layouts, at, old_rows = table.T.copy()
    layout = packs, column.limit, False
    places = ArrayPlaces(
        *layout, rowids, shards, starts, sizes, layouts, parser.layouts
    )
    if is_whole and column.live_shards() == set(np.unique(shards).tolist()):
        is_compact = _is_arranged(places, at, old_rows)
        places = places._replace(is_compact=is_compact)
    return places


def _check_owners(conn: sqlite3.Connection, column: Column, table: Ints) -> None:
    """Raise FormatError if two rows of `find_arrays`' table share an array."""
    order = np.lexsort((table[:, 2], table[:, 1]))
    places = table[order, 1:3]
    (shared,) = (places[1:] == places[:-1]).all(axis=1).nonzero()
    if not len(shared):
        return
    rowids = table[order[shared[0] : shared[0] + 2], 0].tolist()
    ids = conn.execute("SELECT id FROM samples WHERE rowid IN (?, ?)", rowids)
    number, start = places[shared[0]].tolist()
    reason = f"field {column.name!r} has one array for two samples: "
    reason += ", ".join(repr(sample_id)[:200] for (sample_id,) in ids)
    raise FormatError(reason, column.path(number), start)


def find_starts(places: ArrayPlaces) -> list[int]:
    """Return the position of the first array of each new shard.

    A shard is full at its limit of arrays or, by the sizes of these, of bytes.
    """
    limit = places.limit
    ends = np.cumsum(places.sizes)
    starts: list[int] = []
    start, at = 0, 0
    while start < len(ends):
        starts.append(start)
        full = int(np.searchsorted(ends, at + limit.nbytes)) + 1
        start = min(start + limit.arrays, full)
        at = int(ends[min(start, len(ends)) - 1])
    return starts


class _ShardArrays:
    """Arrays of samples in one old shard."""

    def __init__(
        self, column: Column, number: int, members: ShardMembers, parser: LayoutParser
    ) -> None:
        self._field = column.name
        self._number = number
        self._is_foreign = number in column.foreign
        self._members = members
        self._parser = parser
        self._packs: dict[object, StoredPack] = {}
        self._own: set[int] = set()  # offsets
        self._count = 0
        self._data = b""  # of the shard, from `_data_at`
        self._data_at = 0

    def find(
        self, rowid: int, sample_id: object, at: object, row: object
    ) -> tuple[int, int, int, int, int, int, int]:
        """Return a row of `find_arrays`' table.

        The row's id, shard, start, size, layout, offset of the member and row in it.
        """
        self._count += 1
        if row is not None:
            value = row
            row = find_row(self._field, sample_id, self._number, at, value)
            if row is None:
                reason = f"its row {value!r:.40} of a pack has another identity"
                raise self._error(reason, sample_id, at)
            pack = self._packs.get(at) or self._open_pack(at, sample_id)
            if row >= pack.rows:
                reason = f"its row is {row:,}, of {pack.rows:,} rows of the pack"
                raise self._error(reason, sample_id, at)
            layout = pack.layout
            start = pack.data + row * layout.row_size
            assert isinstance(at, int)
            return (
                *(rowid, self._number, start),
                *(layout.row_size, layout.number, at, row),
            )
        try:
            name = check_sample_id(sample_id).decode()
        except (TypeError, ValueError) as error:
            raise FormatError(str(error), self._members.file.path, 0) from error
        extent = self._members.find(name, None if self._is_foreign else at)
        if extent is None:
            raise self._error("no such member", sample_id, at)
        offset, size = extent
        self._own.add(offset)
        parsed = self._parser.parse_member(self._read_head(offset, size), size)
        if parsed is None:
            return rowid, self._number, offset, size, AS_IT_IS, offset, OWN
        own, skipped = parsed
        return (
            *(rowid, self._number, offset + skipped),
            *(own.row_size, own.number, offset, OWN),
        )

    def is_whole(self, column: Column) -> bool:
        """Return whether rows refer to every array and member of the shard."""
        record = column.records.get(self._number)
        return (
            record is not None
            and record.members == self._count
            and len(self._own) + len(self._packs) == len(self._members.ends)
        )

    def _open_pack(self, at: object, sample_id: object) -> StoredPack:
        size = None
        if isinstance(at, int):
            size = self._members.size_at(pack_name(at), at)
        if size is None or not isinstance(at, int):
            raise self._error("no pack begins there", sample_id, at)
        pack = self._parser.parse_pack(self._members.file, at, size)
        if isinstance(pack, str):
            raise self._error(pack, sample_id, at)
        self._packs[at] = pack
        return pack

    def _read_head(self, at: int, size: int) -> bytes:
        """Return the first bytes of a member, read together with its neighbours."""
        end = at + min(size, HEAD)
        if not self._data_at <= at <= end <= self._data_at + len(self._data):
            if size >= WRITE_BYTES:
                return self._members.file.read_many([(at, HEAD)])[0]
            self._data_at = at
            (self._data,) = self._members.file.read_many([(at, WRITE_BYTES)])
        return self._data[at - self._data_at : end - self._data_at]

    def _error(self, reason: str, sample_id: object, at: object) -> FormatError:
        offset = at if isinstance(at, int) and at > 0 else 0
        name = f"{sample_id}.npy"
        reason = f"field {self._field!r} of sample {sample_id!r:.200}: {reason}"
        return FormatError(reason, self._members.file.path, offset, name)


class _Group(NamedTuple):
    """Arrays that become one pack, or members of their own."""

    layout: ArrayLayout | None  # of a pack; None: members of their own
    positions: Ints  # in `ArrayPlaces`


def _arrange(places: ArrayPlaces, start: int, stop: int) -> Iterator[_Group]:
    """Yield the groups of a new shard, for the arrays of some positions."""
    if not places.packs:
        yield _Group(None, np.arange(start, stop))
        return
    layouts = places.layouts[start:stop]
    order = np.argsort(layouts, kind="stable")
    bounds = np.flatnonzero(np.diff(layouts[order])) + 1
    own = []
    packed = []
    for positions in np.split(order, bounds):
        number = int(layouts[positions[0]])
        if number == AS_IT_IS or len(positions) == 1:
            own.append(positions)
            continue
        layout = places.types[number]
        rows = max(2, PACK_BYTES // layout.row_size)
        packed += [
            _Group(layout, positions[i : i + rows] + start)
            for i in range(0, len(positions), rows)
        ]
    yield from sorted(packed, key=lambda group: int(group.positions[0]))
    if own:
        yield _Group(None, np.sort(np.concatenate(own)) + start)


def _is_arranged(places: ArrayPlaces, at: Ints, rows: Ints) -> bool:
    """Return whether arrays lie in shards as `_arrange` groups them."""
    starts = find_starts(places)
    numbers = places.shards[starts]
    if (np.diff(numbers) <= 0).any():
        return False
    for k, start in enumerate(starts):
        stop = starts[k + 1] if k + 1 < len(starts) else len(rows)
        if (places.shards[start:stop] != numbers[k]).any():
            return False
        for layout, positions in _arrange(places, start, stop):
            if layout is None:
                if (rows[positions] != OWN).any():
                    return False
            elif (rows[positions] != np.arange(len(positions))).any() or (
                at[positions] != at[positions[0]]
            ).any():
                return False
    return True


def copy_arrays(
    conn: sqlite3.Connection, column: Column, numbers: list[int], places: ArrayPlaces
) -> tuple[Places, dict[int, ShardLength]]:
    """Copy the arrays of a field to new shards; sync these."""
    count = len(places.rowids)
    offsets = np.zeros(count, np.int64)
    rows = np.full(count, OWN, np.int64)
    starts = find_starts(places)
    lengths = np.diff([*starts, count])
    shards = np.repeat(np.array(numbers, np.int64), lengths)
    records = {}
    source = _ArraySource(column, places)
    sync_queue = SyncQueue()
    buffer = new_buffer(allow_pickle=False)
    file: AppendFile | None = None
    try:
        for k, number in iterate_with_bar(
            enumerate(numbers), len(numbers), f"compacting {column.name}"
        ):
            start = starts[k]
            stop = start + int(lengths[k])
            file = AppendFile(column.path(number), number, buffer, 0)
            for layout, positions in _arrange(places, start, stop):
                if layout is None:
                    ids = _select_ids(conn, column, places, start, stop, positions)
                    for position, name in zip(positions.tolist(), ids, strict=True):
                        data = source.read_member(position)
                        offsets[position] = buffer.append_bytes(name, data)
                        if len(buffer) >= WRITE_BYTES:
                            file.write()
                else:
                    at = buffer.end + BLOCK
                    header = fill_rows(layout.template, len(positions))
                    data = b"".join([header, *source.read_rows(positions)])
                    buffer.append_bytes(pack_name(at).encode(), data)
                    offsets[positions] = at
                    rows[positions] = np.arange(len(positions))
                if len(buffer) >= WRITE_BYTES:
                    file.write()
            file.complete()
            records[number] = ShardLength(buffer.end, stop - start)
            sync_queue.add(file, close=True)
        sync_queue.finish()
        sync_directory(column.folder)
    finally:
        source.close()
        sync_queue.abandon()
        if file is not None:
            file.close()
    found = (_to_array(places.rowids), _to_array(offsets), _to_array(shards))
    return (*found, _to_array(rows) if places.packs else None), records


def _to_array(values: Ints) -> array[int]:
    return array("q", values.tobytes())


def _select_ids(
    conn: sqlite3.Connection,
    column: Column,
    places: ArrayPlaces,
    start: int,
    stop: int,
    positions: Ints,
) -> list[bytes]:
    """Return the names of members of their own, of positions in a new shard."""
    rowids = places.rowids[start:stop]
    rows = conn.execute(
        "SELECT id FROM samples WHERE rowid BETWEEN ? AND ? "
        f"AND {column.shard_column} IS NOT NULL ORDER BY rowid",
        (int(rowids[0]), int(rowids[-1])),
    ).fetchall()
    names = [rows[i][0] for i in (positions - start).tolist()]
    return [check_sample_id(name) for name in names]


class _ArraySource:
    """Arrays in old shards, read in runs."""

    def __init__(self, column: Column, places: ArrayPlaces) -> None:
        self._column = column
        self._places = places
        self._files: OrderedDict[int, LocalFile] = OrderedDict()

    def read_member(self, position: int) -> bytes:
        """Return the bytes of a member of its own."""
        places = self._places
        (part,) = self.read_rows(np.array([position]))
        number = int(places.layouts[position])
        return part if number == AS_IT_IS else places.types[number].header + part

    def read_rows(self, positions: Ints) -> list[bytes]:
        """Return the bytes of arrays, adjacent ones in one piece."""
        places = self._places
        shards, starts = places.shards[positions], places.starts[positions]
        ends = starts + places.sizes[positions]
        joins = (shards[1:] == shards[:-1]) & (starts[1:] == ends[:-1])
        first = np.flatnonzero(np.concatenate([[True], ~joins]))
        last = np.concatenate([first[1:], [len(positions)]]) - 1
        shards, starts, ends = shards[first], starts[first], ends[last]
        bounds = np.flatnonzero(np.diff(shards)) + 1
        parts: list[bytes] = []
        for begin, end in zip([0, *bounds], [*bounds, len(first)], strict=True):
            file = self._open(int(shards[begin]))
            parts += _read_runs(file, starts[begin:end], ends[begin:end])
        return parts

    def _open(self, number: int) -> LocalFile:
        file = self._files.get(number)
        if file is None:
            if len(self._files) >= OPEN_FILES:
                self._files.popitem(last=False)[1].close()
            file = self._files[number] = LocalFile(self._column.path(number))
        else:
            self._files.move_to_end(number)
        return file

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def _read_runs(file: LocalFile, starts: Ints, ends: Ints) -> list[bytes]:
    """Return byte ranges of a file; near ones are read at once."""
    low, high = int(starts.min()), int(ends.max())
    needed = int((ends - starts).sum())
    pairs: list[tuple[Any, Any]]
    if high - low <= SPAN * needed + GAP:
        (data,) = file.read_many([(low, high - low)])
        pairs = list(zip((starts - low).tolist(), (ends - low).tolist(), strict=True))
        parts = [data[start:end] for start, end in pairs]
    else:
        pairs = list(zip(starts.tolist(), (ends - starts).tolist(), strict=True))
        parts = file.read_many(pairs)
    if sum(map(len, parts)) != needed:
        raise FormatError("an array is cut off", file.path, file.nbytes)
    return parts
