"""Builder of packed datasets: tar headers by hand, the index by sqlite3."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from support.columnar.identity import identify

Arrays = Mapping[str, Any]  # of a sample, by field

BLOCK = 512  # bytes of a tar header
END = bytes(2 * BLOCK)
MARK = b"fastshard"  # the owner in headers


def npy_bytes(array: Any, *, version: tuple[int, int] = (1, 0)) -> bytes:
    """Return an ``.npy`` file whose data begins at a multiple of 64 bytes."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), version=version)
    return file.getvalue()


def tar_header(name: str, size: int) -> bytes:
    """Return the header of a file, as POSIX describes it."""
    head = bytearray(BLOCK)
    head[: len(name.encode())] = name.encode()
    head[100:108] = b"0000644\0"
    head[108:116] = head[116:124] = b"0000000\0"
    head[124:136] = b"%011o\0" % size
    head[136:148] = b"%011o\0" % 0
    head[148:156] = b" " * 8
    head[156:157] = b"0"
    head[257:265] = b"ustar\x0000"
    head[265 : 265 + len(MARK)] = MARK
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


def can_pack(array: Any) -> bool:
    """Return whether the rows of a pack may be arrays like this one."""
    return (
        array.flags.c_contiguous
        and not array.dtype.hasobject
        and 0 < array.nbytes <= 64 << 10
    )


class PackedShard:
    """Tar file of one field, of packs and of members of single samples."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.count = 0  # arrays of samples

    def add(self, name: str | None, payload: bytes, count: int = 1) -> int:
        """Append a member, a pack if it has no name; return its data's offset."""
        offset = len(self.data) + BLOCK
        name = f"pack_{offset:012d}.npy" if name is None else name
        self.data += tar_header(name, len(payload)) + payload
        self.data += bytes(-len(payload) % BLOCK)
        self.count += count
        return offset


def pack_field(
    items: Sequence[tuple[str, Any]],
    rows_per_pack: int,
    samples_per_shard: int,
    is_own: Callable[[str], bool],
) -> tuple[list[PackedShard], dict[str, tuple[int, int, int | None]]]:
    """Return the shards of a field, and (offset, shard, row) of each sample.

    Arrays with equal layouts in succession are rows of a pack, `rows_per_pack` at
    most; all others, and those of samples that `is_own`, are members of their own.
    """
    shards = [PackedShard()]
    places: dict[str, tuple[int, int, int | None]] = {}
    waiting: list[tuple[str, Any]] = []

    def end_pack() -> None:
        if not waiting:
            return
        stack = np.stack([array for _, array in waiting])
        payload = npy_bytes(stack.astype(waiting[0][1].dtype, copy=False))
        offset = shards[-1].add(None, payload, len(waiting))
        for row, (sample_id, _) in enumerate(waiting):
            places[sample_id] = offset, len(shards) - 1, row
        waiting.clear()

    for sample_id, value in items:
        array = np.asarray(value)
        if shards[-1].count + len(waiting) >= samples_per_shard:
            end_pack()
            shards.append(PackedShard())
        packs = can_pack(array) and not is_own(sample_id)
        if waiting and (
            not packs
            or len(waiting) >= rows_per_pack
            or (waiting[0][1].shape, waiting[0][1].dtype) != (array.shape, array.dtype)
        ):
            end_pack()
        if packs:
            waiting.append((sample_id, array))
        else:
            offset = shards[-1].add(f"{sample_id}.npy", npy_bytes(array))
            places[sample_id] = offset, len(shards) - 1, None
    end_pack()
    return shards, places


def write_packed(
    root: Path,
    samples: Sequence[Arrays],
    *,
    packed: Sequence[str] | None = None,
    rows_per_pack: int = 4,
    samples_per_shard: int = 10,
    is_own: Callable[[str], bool] = lambda sample_id: False,
    metadata: Callable[[int], Any] = lambda i: {"n": i},
    identities: bool = True,
) -> list[str]:
    """Write a packed dataset, and return the ids of its samples.

    Parameters
    ----------
    root : Path
        A directory that does not exist.
    samples : sequence of mapping
        Arrays by field; a sample may lack fields.
    packed : sequence of str, optional
        Fields that may have packs; all by default. Others have no column of rows.
    rows_per_pack, samples_per_shard : int
    is_own : callable
        ``is_own(sample_id)``: its arrays are members of their own.
    metadata : callable
        Of the sample at a position.
    identities : bool
        Whether rows in packs have the identities of their samples.
    """
    fields = list(dict.fromkeys(field for arrays in samples for field in arrays))
    packed = fields if packed is None else packed
    ids = [f"sample_{i + 1:012d}" for i in range(len(samples))]
    root.mkdir(parents=True)
    with closing(sqlite3.connect(root / "index.sqlite")) as conn, conn:
        columns = [
            f"{field}_{what}" for field in fields for what in ("offset", "shard")
        ]
        columns += [f"{field}_row" for field in packed]
        declared = "".join(f", {column} INTEGER" for column in columns)
        conn.execute(
            f"CREATE TABLE samples (id TEXT PRIMARY KEY, meta_json TEXT{declared})"
        )
        conn.execute(
            "CREATE TABLE fields (name TEXT PRIMARY KEY, num_shards INTEGER, "
            "base_dir TEXT)"
        )
        conn.execute("CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER)")
        conn.execute(
            "CREATE TABLE fastshard_shards (field TEXT, shard INTEGER, "
            "nbytes INTEGER, members INTEGER, PRIMARY KEY (field, shard))"
        )
        version = ", version INTEGER" if identities else ""
        conn.execute(f"CREATE TABLE fastshard_packed (field TEXT PRIMARY KEY{version})")
        conn.execute("INSERT INTO counters VALUES ('sample_id', ?)", (len(ids),))
        conn.executemany(
            "INSERT INTO samples (id, meta_json) VALUES (?, ?)",
            [(sample_id, json.dumps(metadata(i))) for i, sample_id in enumerate(ids)],
        )
        for field in fields:
            items = [
                (sample_id, arrays[field])
                for sample_id, arrays in zip(ids, samples, strict=True)
                if field in arrays
            ]
            shards, places = pack_field(
                items,
                rows_per_pack if field in packed else 1,
                samples_per_shard,
                is_own if field in packed else lambda sample_id: True,
            )
            write_field(root, conn, field, shards)
            row = f", {field}_row = :row" if field in packed else ""
            if field in packed:
                values = (field, 2) if identities else (field,)
                marks = ", ".join("?" * len(values))
                conn.execute(f"INSERT INTO fastshard_packed VALUES ({marks})", values)
            conn.executemany(
                f"UPDATE samples SET {field}_offset = :offset, {field}_shard = :shard"
                f"{row} WHERE id = :id",
                [
                    {
                        "offset": offset,
                        "shard": shard,
                        "row": at
                        if at is None or not identities
                        else identify(field, sample_id, shard, offset, at),
                        "id": sample_id,
                    }
                    for sample_id, (offset, shard, at) in places.items()
                ],
            )
    return ids


def write_field(
    root: Path, conn: sqlite3.Connection, field: str, shards: list[PackedShard]
) -> None:
    """Write the shards of a field, and their rows of the index."""
    folder = root / f"{field}_shards"
    folder.mkdir()
    conn.execute(
        "INSERT INTO fields VALUES (?, ?, ?)", (field, len(shards), str(folder))
    )
    for number, shard in enumerate(shards):
        (folder / f"shard_{number:04d}.tar").write_bytes(shard.data + END)
        conn.execute(
            "INSERT INTO fastshard_shards VALUES (?, ?, ?, ?)",
            (field, number, len(shard.data), shard.count),
        )
