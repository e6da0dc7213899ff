"""Contents of a columnar dataset, read without fastshard, and with it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import re
import sqlite3
import tarfile
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from support.columnar.identity import row_of

LOCKS = {"writer.lock", "readers.lock"}  # which stay


class Broken(AssertionError):  # noqa: N818
    """The dataset on disk is not one that may be there."""


def need(truth: object, reason: str) -> None:
    if not truth:
        raise Broken(reason)


class Found(NamedTuple):
    """Contents of a dataset as an independent reader sees them."""

    fields: tuple[str, ...]
    rows: dict[str, tuple[str, dict[str, str]]]  # metadata, digest of each array


def read(root: Path, *, whole: bool = False) -> Found:
    """Read a dataset by sqlite3, tarfile and NumPy alone.

    It changes the database, as SQLite does after a crash, so give it a copy. `whole`
    says that a writer has closed it since: then no torn tail is left.
    """
    path = root / "index.sqlite"
    if not path.exists():
        check_nothing(root)
        return Found((), {})
    conn = sqlite3.connect(path)
    try:
        need(conn.execute("PRAGMA integrity_check").fetchone() == ("ok",), "SQLite")
        tables = {name for (name,) in conn.execute("SELECT name FROM sqlite_master")}
        need(tables >= {"samples", "fields", "counters"}, f"only tables {tables}")
        names = conn.execute("SELECT name, num_shards FROM fields ORDER BY rowid")
        shards = dict(names)
        query = "SELECT field, shard, nbytes, members FROM fastshard_shards"
        records = list(conn.execute(query)) if "fastshard_shards" in tables else []
        cursor = conn.execute("SELECT * FROM samples ORDER BY rowid")
        columns = [item[0] for item in cursor.description]
        rows = [dict(zip(columns, row, strict=True)) for row in cursor]
    finally:
        conn.close()
    found = Found(tuple(shards), {r["id"]: (r["meta_json"], {}) for r in rows})
    for field, count in shards.items():
        shard_files = list_shards(root / f"{field}_shards", whole)
        if whole:
            own = [record[1:] for record in records if record[0] == field]
            check_records(field, count, own, shard_files)
        for row in rows:
            shard, offset = row[f"{field}_shard"], row[f"{field}_offset"]
            where = f"{row['id']!r}'s {field} at byte {offset} of shard {shard}"
            need((shard is None) == (offset is None), where)
            if shard is not None:
                need(shard in shard_files, f"{where}: no such shard")
                members = shard_files[shard]
                try:
                    place = row_of(
                        row.get(f"{field}_row"), field, row["id"], shard, offset
                    )
                except ValueError as error:
                    raise Broken(f"{where}: {error}") from error
                name = f"pack_{offset:012d}.npy"
                if place is None:
                    name = f"{row['id']}.npy"
                array = load(where, name, offset, members, place)
                found.rows[row["id"]][1][field] = array
    return found


def check_nothing(root: Path) -> None:
    """Check that files left by a crash before the index existed hold no data."""
    if root.exists():
        names = {path.name for path in root.iterdir()}
        begun = {f".index.sqlite.new{end}" for end in ("", "-wal", "-shm", "-journal")}
        need(names <= begun | LOCKS, f"no index, and {sorted(names)}")


def check_debris(root: Path) -> None:
    """Check that a closed dataset holds the files that its rows need, and no others."""
    conn = sqlite3.connect(f"file:{root / 'index.sqlite'}?immutable=1", uri=True)
    try:
        needed = {"index.sqlite"}
        for (field,) in conn.execute("SELECT name FROM fields").fetchall():
            query = "SELECT shard FROM fastshard_shards WHERE field = ? AND members"
            for (shard,) in conn.execute(query, (field,)):
                needed.add(f"{field}_shards/shard_{shard:04d}.tar")
    finally:
        conn.close()
    found = {str(p.relative_to(root)) for p in root.rglob("*") if not p.is_dir()}
    need(needed <= found, f"not there: {sorted(needed - found)}")
    need(found - needed <= LOCKS, f"debris: {sorted(found - needed - LOCKS)}")
    held = (root / "writer.lock").read_bytes()
    need(held == b"", f"writer.lock names {held!r}")


def check_records(field: str, count: int, records: list, shards: dict) -> None:
    """Check the writer's record of its shards, and that the shards are whole tars."""
    unnamed = shards.keys() - {shard for shard, _, _ in records}
    need(not unnamed, f"shards {sorted(unnamed)} of {field} are left over")
    for shard, size, members in records:
        if size < 0:  # replaced, and readers may open it
            continue
        where = f"shard {shard} of {field}"
        need(shard in shards or not size, f"{where} is recorded, and not there")
        if shard in shards:
            data, found, end = shards[shard]
            arrays = sum(count_arrays(data, at, *found[at]) for at in found)
            need((end, arrays) == (size, members), f"{where}: {size}, {members}")
            rest = data[end:]
            need(len(rest) >= 1024 and not any(rest), f"{where}: no zeros at {end}")
    held = sum(size > 0 < members for _, size, members in records)
    need(count == held, f"num_shards of {field} is {count}, {held} have members")


def list_shards(folder: Path, whole: bool) -> dict[int, Members]:
    """List the members of a field's shards."""
    found = {}
    for path in sorted(folder.glob("*")) if folder.is_dir() else ():
        match = re.fullmatch(r"shard_(\d{4,})\.tar", path.name)
        if match is not None:
            found[int(match[1])] = list_members(path)
        else:
            need(not whole, f"{path} is left over")
    return found


def list_members(path: Path) -> Members:
    """List the members of a tar, up to the first damaged header."""
    data = path.read_bytes()
    found: dict[int, tuple[str, int]] = {}
    end = 0
    stream = io.BytesIO(data)
    with contextlib.suppress(tarfile.TarError), tarfile.open(None, "r:", stream) as tar:
        for member in tar:
            found[member.offset_data] = member.name, member.size
            end = tar.offset
    return Members(data, found, end)


class Members(NamedTuple):
    """A shard's bytes, and its members by `tarfile`."""

    data: bytes
    found: dict[int, tuple[str, int]]  # by offset of the data: name, size
    end: int


def count_arrays(data: bytes, at: int, name: str, size: int) -> int:
    """Return the number of arrays of samples in a member."""
    if re.fullmatch(r"dead_\d+\.bin", name):
        need(not any(data[at : at + size]), f"{name} is not empty")
        return 0
    if name == f"pack_{at:012d}.npy":
        return len(np.load(io.BytesIO(data[at : at + size])))
    return 1


def load(
    where: str, name: str, offset: int, members: Members, row: int | None = None
) -> str:
    """Return the digest of the array at an offset, or of a row of it."""
    there, size = members.found.get(offset, (None, 0))
    need(there == name, f"{where}: {there} is there")
    data = members.data[offset : offset + size]
    need(len(data) == size, f"{where}: is cut off")
    try:
        return digest_of(data, row)
    except ValueError as error:
        raise Broken(f"{where}: {error}") from error


@functools.lru_cache(50_000)
def digest_of(data: bytes, row: int | None) -> str:
    stream = io.BytesIO(data)
    array = np.lib.format.read_array(stream, allow_pickle=False)
    if stream.tell() != len(data):
        raise ValueError(f"{len(data) - stream.tell()} bytes too many")
    if row is not None:
        if not 0 <= row < len(array):
            raise ValueError(f"row {row} of {len(array)}")
        array = array[row : row + 1].reshape(array.shape[1:])
    return digest(array)


def digest(array: np.ndarray) -> str:
    data = hashlib.sha1(array.tobytes()).hexdigest()[:12]
    return f"{array.dtype.str} {array.shape} {data}"


def read_with_fastshard(root: Path) -> Found:
    """Read the same by fastshard's reader."""
    from fastshard.columnar import ShardedDatasetReader

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ShardedDatasetReader(root) as reader:
            return read_by(reader)


def read_by(reader, in_order=False) -> Found:
    """Read all samples by an open reader; `in_order` reads arrays through `scan`."""
    ids = reader.query_ids()
    need(len(reader) == len(ids), f"{len(reader)} is the length of {ids}")
    rows = reader.get_many(ids)
    if in_order and reader.list_fields():
        scanned = {sample.pop("__key__"): sample for sample in reader.scan()}
        need(scanned.keys() == set(ids), "a scan passed samples over")
        rows = [
            (scanned[sample], meta) for sample, (_, meta) in zip(ids, rows, strict=True)
        ]
    found = {
        sample: (
            json.dumps(meta),
            {field: digest(array) for field, array in arrays.items()},
        )
        for sample, (arrays, meta) in zip(ids, rows, strict=True)
    }
    return Found(tuple(reader.list_fields()), found)
