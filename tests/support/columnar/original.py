"""Columnar datasets as the original package writes and reads them, with its faults.

Made after the description of the format, with the standard library and NumPy, so
that what fastshard reads and writes is compared with something that is not its own.
"""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

INDEX = "index.sqlite"
Arrays = Mapping[str, Any]

TABLES = (
    "CREATE TABLE IF NOT EXISTS samples (id TEXT PRIMARY KEY, meta_json TEXT)",
    "CREATE TABLE IF NOT EXISTS fields "
    "(name TEXT PRIMARY KEY, num_shards INTEGER, base_dir TEXT)",
    "CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER)",
    "INSERT OR IGNORE INTO counters VALUES ('sample_id', 0)",
)


def npy(array: Any) -> bytes:
    """Return the bytes that `np.save` writes."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def shard_path(folder: Path, shard: int) -> Path:
    return folder / f"shard_{shard:04d}.tar"


class _Tar:
    """A shard open for appending, and its payload bytes since it was opened.

    The sum is what the original calls an offset: it leaves out headers and padding,
    and whatever the file held before (fault 1).
    """

    def __init__(self, path: Path, mode: str, form: int) -> None:
        self.tar = tarfile.open(path, mode, format=form)  # noqa: SIM115
        self.total = 0

    def append(self, sample_id: str, array: Any) -> int:
        data = npy(array)
        member = tarfile.TarInfo(f"{sample_id}.npy")
        member.size = len(data)
        self.tar.addfile(member, io.BytesIO(data))
        before = self.total
        self.total += len(data)
        return before


class OriginalShard:
    """The handle of `open_shard`: a shard written anew over an existing one."""

    def __init__(self, writer: OriginalWriter, field: str, shard: int) -> None:
        self._writer = writer
        self._field = field
        self._shard = shard
        path = shard_path(writer.folder(field), shard)
        self._tar = _Tar(path, "w", writer.form)

    def add_sample(self, sample_id: str, array: Any) -> None:
        offset = self._tar.append(sample_id, array)
        self._writer.point(sample_id, self._field, self._shard, offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._tar.tar.close()
        self._writer.conn.commit()


class OriginalWriter:
    """Write a dataset by the original's algorithm.

    Its faults: offsets that are sums of payloads; each writer begins at shard 0
    with a count of 0, so that shards grow past `samples_per_shard`; `num_shards` is
    set by `write_shard` alone; a shard written again is truncated under its rows; an
    update leaves two members of one name; commits come every `commit_every` samples
    and at generated ids, whether or not the bytes are in the files.

    Parameters
    ----------
    root : Path
    samples_per_shard : int
    form : int
        Of the tars, as `tarfile` counts them: an old Python wrote GNU.
    commit_every : int
        Samples between commits; the original has 10,000.
    """

    def __init__(
        self,
        root: Path,
        samples_per_shard: int = 1000,
        *,
        form: int = tarfile.PAX_FORMAT,
        commit_every: int = 10_000,
    ) -> None:
        self.root = root
        self.samples_per_shard = samples_per_shard
        self.form = form
        self.commit_every = commit_every
        root.mkdir(parents=True, exist_ok=True)
        self.conn = sqlite3.connect(root / INDEX)
        self.conn.execute("PRAGMA journal_mode=WAL")
        self.conn.execute("PRAGMA synchronous=NORMAL")
        for statement in TABLES:
            self.conn.execute(statement)
        self.conn.commit()
        self._open: dict[tuple[str, int], _Tar] = {}
        self._current: dict[str, tuple[int, int]] = {}  # shard, samples in it
        self._uncommitted = 0

    # ------------------------------------------------------------ fields, rows

    def add_field(self, name: str) -> None:
        self.add_fields([name])

    def add_fields(self, names: Iterable[str]) -> None:
        known = {row[1] for row in self.conn.execute("PRAGMA table_info(samples)")}
        for name in names:
            folder = self.root / f"{name}_shards"
            folder.mkdir(exist_ok=True)
            for column in (f"{name}_offset", f"{name}_shard"):
                if column not in known:
                    self.conn.execute(
                        f"ALTER TABLE samples ADD COLUMN {column} INTEGER"
                    )
            row = (name, 0, str(folder))
            self.conn.execute("INSERT OR IGNORE INTO fields VALUES (?, ?, ?)", row)
        self.conn.commit()

    def folder(self, field: str) -> Path:
        """Return the folder of a field's shards, as `fields` has it."""
        sql = "SELECT base_dir FROM fields WHERE name = ?"
        row = self.conn.execute(sql, (field,)).fetchone()
        if row is None:
            raise ValueError(f"no field {field!r}")
        return Path(row[0])

    def point(self, sample_id: str, field: str, shard: int, offset: int) -> None:
        self.conn.execute(
            f"UPDATE samples SET {field}_offset = ?, {field}_shard = ? WHERE id = ?",
            (offset, shard, sample_id),
        )

    def register_samples(
        self, sample_ids: Iterable[str], metadata: list[Any] | None = None
    ) -> None:
        for i, sample_id in enumerate(sample_ids):
            self._insert(sample_id, metadata[i] if metadata else None)
        self.conn.commit()

    def _insert(self, sample_id: str, metadata: Any) -> None:
        row = (sample_id, json.dumps(metadata) if metadata else "{}")
        sql = "INSERT OR IGNORE INTO samples (id, meta_json) VALUES (?, ?)"
        self.conn.execute(sql, row)

    def _next_id(self) -> str:
        self.conn.execute(
            "UPDATE counters SET value = value + 1 WHERE name = 'sample_id'"
        )
        ((number,),) = self.conn.execute(
            "SELECT value FROM counters WHERE name = 'sample_id'"
        )
        self.conn.commit()
        return f"sample_{number:012d}"

    # ------------------------------------------------------------ arrays

    def write_shard(
        self, field_name: str, shard_id: int, samples: list[str], arrays: list[Any]
    ) -> None:
        with self.open_shard(field_name, shard_id) as shard:
            for sample_id, array in zip(samples, arrays, strict=True):
                shard.add_sample(sample_id, array)
        row = (shard_id + 1, field_name)
        self.conn.execute("UPDATE fields SET num_shards = ? WHERE name = ?", row)
        self.conn.commit()

    def open_shard(self, field_name: str, shard_id: int) -> OriginalShard:
        return OriginalShard(self, field_name, shard_id)

    def add_sample(
        self, arrays: Arrays, sample_id: str | None = None, metadata: Any = None
    ) -> str:
        if sample_id is None:
            sample_id = self._next_id()
        self._insert(sample_id, metadata)
        self._append(sample_id, arrays)
        return sample_id

    def update_sample(
        self, sample_id: str, arrays: Arrays, metadata: Any = None
    ) -> None:
        sql = "SELECT 1 FROM samples WHERE id = ?"
        if self.conn.execute(sql, (sample_id,)).fetchone() is None:
            raise ValueError(f"no sample {sample_id!r}")
        if metadata is not None:
            row = (json.dumps(metadata), sample_id)
            self.conn.execute("UPDATE samples SET meta_json = ? WHERE id = ?", row)
        self._append(sample_id, arrays)

    def _append(self, sample_id: str, arrays: Arrays) -> None:
        for field, array in arrays.items():
            shard = self._place(field)
            offset = self._open[field, shard].append(sample_id, array)
            self.point(sample_id, field, shard, offset)
        self._uncommitted += 1
        if self._uncommitted >= self.commit_every:
            self.conn.commit()
            self._uncommitted = 0

    def _place(self, field: str) -> int:
        """Count a sample; return its shard, which is open then."""
        shard, count = self._current.get(field, (0, 0))
        if count >= self.samples_per_shard:
            full = self._open.pop((field, shard), None)
            if full is not None:
                full.tar.close()
            shard, count = shard + 1, 0
        if (field, shard) not in self._open:
            folder = self.folder(field)
            folder.mkdir(exist_ok=True)
            tar = _Tar(shard_path(folder, shard), "a", self.form)
            self._open[field, shard] = tar
        self._current[field] = shard, count + 1
        return shard

    # ------------------------------------------------------------ end

    def close_tars(self) -> None:
        for shard in self._open.values():
            shard.tar.close()
        self._open.clear()
        self.conn.commit()

    def close(self) -> None:
        try:
            self.close_tars()
        except sqlite3.ProgrammingError:  # closed before
            return
        self.conn.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class OriginalReader:
    """Read a dataset by the original's algorithm, which ignores offsets.

    A member is found by its name in the shard that the row says; of several of one
    name the last counts. Of `base_dir` only the last part is used, below `root`.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.conn = sqlite3.connect(self.root / INDEX)
        self.conn.row_factory = sqlite3.Row
        self._tars: dict[tuple[str, int], tarfile.TarFile] = {}

    def __len__(self) -> int:
        return self.conn.execute("SELECT count(*) FROM samples").fetchone()[0]

    def list_fields(self) -> list[str]:
        return [row["name"] for row in self.conn.execute("SELECT name FROM fields")]

    def shard_counts(self, field: str) -> dict[int, int]:
        sql = (
            f"SELECT {field}_shard, count(*) FROM samples "
            f"WHERE {field}_shard IS NOT NULL GROUP BY {field}_shard"
        )
        return dict(self.conn.execute(sql).fetchall())

    def query_ids(
        self, where: str | None = None, params: tuple[Any, ...] = ()
    ) -> list[str]:
        sql = "SELECT id FROM samples" + (f" WHERE {where}" if where else "")
        return [row["id"] for row in self.conn.execute(sql, params)]

    def get_sample(
        self, sample_id: str, fields: list[str] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        sql = "SELECT * FROM samples WHERE id = ?"
        row = self.conn.execute(sql, (sample_id,)).fetchone()
        if row is None:
            raise KeyError(sample_id)
        columns = row.keys()
        if not fields:
            suffix = "_offset"
            fields = [c[: -len(suffix)] for c in columns if c.endswith(suffix)]
        arrays = {}
        for field in fields:
            if f"{field}_offset" in columns and row[f"{field}_offset"] is not None:
                arrays[field] = self._array(field, row[f"{field}_shard"], sample_id)
        return arrays, json.loads(row["meta_json"] or "{}")

    def _array(self, field: str, shard: int, sample_id: str) -> np.ndarray:
        if (field, shard) not in self._tars:
            sql = "SELECT base_dir FROM fields WHERE name = ?"
            base_dir = self.conn.execute(sql, (field,)).fetchone()["base_dir"]
            path = shard_path(self.root / Path(base_dir).name, shard)
            self._tars[field, shard] = tarfile.open(path)  # noqa: SIM115
        tar = self._tars[field, shard]
        member = tar.extractfile(tar.getmember(f"{sample_id}.npy"))
        assert member is not None
        return np.load(io.BytesIO(member.read()), allow_pickle=True)

    def close(self) -> None:
        for tar in self._tars.values():
            tar.close()
        self.conn.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# ---------------------------------------------------------------- what tests put in

FIELDS = ["history", "target"]


def arrays_of(i: int, version: int = 0) -> dict[str, np.ndarray]:
    """Make the arrays of a sample; lengths differ, so that sums of payloads do."""
    history = np.arange(3 + i % 5, dtype=np.float32) + 100 * i + version / 10
    return {"history": history, "target": np.array([[i, version]], np.int64)}
