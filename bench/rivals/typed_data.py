"""Data of the typed benches: tar shards of msgpack members, and stores of rivals.

A sample is ``{idx: int, label: str, x: float32[n]}``. The shards of atdata's form are
written from the bytes of the format, by no library: each member has a pax header, and
arrays are compact. `Store` writes each form once, when a bench asks for it.
"""

from __future__ import annotations

import gc
import json
import shutil
import struct
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastshard
from harness import SCALE, evict

Fields = tuple[int, str, Any]  # idx, label, x

BLOCK = 512  # bytes of a tar
NUMBERS = 512  # float32s of a sample
LARGE_NUMBERS = 25_600  # of the kind that is read cold: 100 KiB
BASE = np.random.default_rng(0).random(LARGE_NUMBERS, dtype=np.float32)

SMALL = max(int(20_000 * SCALE), 512)
LARGE = max(int(1_000_000 * SCALE), 1024)
COLD = max(int(10_000 * SCALE), 128)

MANIFESTS = max(int(1000 * SCALE), 100)
ROWS = 1000  # of a manifest
LABELS = ("cat", "dog", "eel")


def label_of(i: int) -> str:
    return f"label {i:08d}"


def sample_of(i: int, numbers: int = NUMBERS) -> Fields:
    """Return the fields of sample `i`; its array is its own."""
    x = BASE[:numbers].copy()
    x[0] = i
    return i * 7 - 3, label_of(i), x


def compact(array: Any) -> bytes:
    """Return an array in the compact form, by the text of the format."""
    dtype: bytes = array.dtype.str.encode()
    shape = struct.pack(f"<B{array.ndim}q", array.ndim, *array.shape)
    data: bytes = array.tobytes()
    return bytes([len(dtype)]) + dtype + shape + data


def packed(fields: Fields) -> bytes:
    """Return the payload that atdata writes of a sample."""
    msgspec = pytest.importorskip("msgspec")
    idx, label, x = fields
    found: bytes = msgspec.msgpack.encode({"idx": idx, "label": label, "x": compact(x)})
    return found


class Headers:
    """Tar headers of members that differ in key and size, made from one of each size.

    Each has a pax header before it, as of a writer with a time of fractions.
    """

    def __init__(self, key: int, *, pax: bool) -> None:
        self._zeros = "0" * key  # digits of a key
        self._pax = pax
        self._made: dict[int, tuple[bytes, int]] = {}

    def of(self, key: str, size: int) -> bytes:
        """Return the headers of ``KEY.msgpack``."""
        made = self._made.get(size)
        if made is None:
            made = self._made[size] = self._make(size)
        head, total = made
        name = key.encode()
        digits = b"%06o\0 " % (total + sum(name))
        at = len(head) - BLOCK
        head = head[:at] + name + head[at + len(name) :]
        return head[: at + 148] + digits + head[at + 156 :]

    def _make(self, size: int) -> tuple[bytes, int]:
        """Return headers of a key of zeros, and the sum of the rest of the last one."""
        member = tarfile.TarInfo(f"{self._zeros}.msgpack")
        member.size, member.mode, member.mtime = size, 0o444, 0
        if self._pax:
            member.mtime = 1.5
        member.uname = member.gname = "bigdata"
        head = member.tobuf(tarfile.PAX_FORMAT)  # a whole time needs no pax header
        last = head[-BLOCK:]
        blanked = last[:148] + b" " * 8 + last[156:]
        return head, sum(blanked) - sum(self._zeros.encode())


def write_tar(
    path: Path, members: Iterator[tuple[str, bytes]], key: int, *, pax: bool
) -> None:
    """Write members ``(key, payload)`` whose keys have `key` characters."""
    headers = Headers(key, pax=pax)
    with open(path, "wb", buffering=1 << 20) as file:
        for name, payload in members:
            file.write(headers.of(name, len(payload)))
            file.write(payload)
            file.write(bytes(-len(payload) % BLOCK))
        file.write(bytes(2 * BLOCK))


class Store:
    """Samples in the shards of each contender.

    Parameters
    ----------
    folder : Path
    count, per_shard : int
        Samples.
    numbers : int
        Of the array of a sample.
    """

    def __init__(
        self, folder: Path, count: int, per_shard: int, numbers: int = NUMBERS
    ) -> None:
        self.folder = folder
        self.count = count
        self.per_shard = per_shard
        self.numbers = numbers
        self._kept: dict[str, Any] = {}

    def keep(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the result of `make`, called once."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def path(self, name: str, write: Callable[[Path, Store], None]) -> Path:
        """Return the folder that `write` fills, once."""
        path = self.folder / name
        if not path.exists():
            path.mkdir(parents=True)
            write(path, self)
        return path

    def expected(self, i: int) -> Fields:
        return sample_of(i, self.numbers)

    def samples(self, count: int | None = None) -> Iterator[Fields]:
        return map(self.expected, range(self.count if count is None else count))

    @property
    def original(self) -> list[str]:
        """Shards as atdata writes them."""
        return shards_in(self.path("original", write_original))

    def evict(self) -> None:
        """Evict all files from the page cache."""
        gc.collect()  # unreferenced datasets in cycles stay mapped until then
        for path in self.folder.rglob("*"):
            if path.is_file():
                evict(path)


def shards_in(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob("*.tar"))


def write_original(folder: Path, store: Store) -> None:
    def members(start: int, stop: int) -> Iterator[tuple[str, bytes]]:
        for i in range(start, stop):
            key = f"{i:08d}-e538-11f1-8000-000000000000"
            yield key, packed(store.expected(i))

    for k, start in enumerate(range(0, store.count, store.per_shard)):
        stop = min(start + store.per_shard, store.count)
        write_tar(folder / f"s-{k:06d}.tar", members(start, stop), 36, pax=True)
    fastshard.build_index(folder)


def same(found: Sequence[Any], expected: Fields) -> bool:
    """Return whether fields are equal, and arrays of one dtype."""
    idx, label, x = found
    return (
        idx == expected[0]
        and label == expected[1]
        and getattr(x, "dtype", None) == expected[2].dtype
        and np.array_equal(x, expected[2])
    )


def positions(count: int, reads: int) -> list[int]:
    """Return random positions below `count`, the same in each run."""
    chosen: list[int] = np.random.default_rng(1).integers(0, count, reads).tolist()
    return chosen


# Shards with manifests. The payloads are not msgpack: a query that reads one fails.


def row_of(i: int) -> dict[str, Any]:
    """Return the manifest's fields of a row; a shard has scores of its own."""
    return {"score": i / ROWS, "label": LABELS[i % len(LABELS)]}


def write_manifests(folder: Path) -> None:
    """Write shards and manifests, 1 % of which have scores from `bound()` on.

    The manifests have the digest of the keys by which fastshard's own are believed.
    """
    from fastshard.typed.manifest.sidecar import digest_keys

    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for k in range(MANIFESTS):
        numbers = range(k * ROWS, (k + 1) * ROWS)
        rows = [row_of(i) for i in numbers]
        keys = [f"{i:012d}" for i in numbers]
        members = ((key, b"\xc1" * 32) for key in keys)
        write_tar(folder / f"m-{k:06d}.tar", members, 12, pax=False)
        columns = {
            "__key__": keys,
            "__offset__": [BLOCK + 2 * BLOCK * n for n in range(ROWS)],
            "__size__": [32] * ROWS,
            "score": [row["score"] for row in rows],
            "label": [row["label"] for row in rows],
        }
        base = folder / f"m-{k:06d}.manifest"
        parquet.write_table(pa.table(columns), f"{base}.parquet")
        header = header_of(k, rows)
        header["fastshard"] = {
            "shard_bytes": (folder / f"m-{k:06d}.tar").stat().st_size,
            "key_digest": digest_keys(keys),
        }
        Path(f"{base}.json").write_text(json.dumps(header))
    fastshard.build_index(folder)


def write_plain_manifests(folder: Path, digested: Path) -> None:
    """Link the shards of a folder, with manifests as atdata writes them."""
    for path in digested.glob("m-*"):
        if path.suffix == ".json":
            header = json.loads(path.read_text())
            del header["fastshard"]
            (folder / path.name).write_text(json.dumps(header))
        elif path.suffix != ".fsi":
            shutil.copyfile(path, folder / path.name)  # a link changes its time
    fastshard.build_index(folder)


def header_of(k: int, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON of a manifest."""
    scores = [row["score"] for row in rows]
    labels = [row["label"] for row in rows]
    return {
        "manifest_version": "1.0.0",
        "shard_id": f"m-{k:06d}",
        "schema_type": "Row",
        "schema_version": "1.0.0",
        "num_samples": len(rows),
        "size_bytes": 32 * len(rows),
        "created_at": "2026-11-20T23:17:12.476879+00:00",
        "aggregates": {
            "score": {
                "type": "numeric",
                "min": min(scores),
                "max": max(scores),
                "mean": sum(scores) / len(scores),
                "count": len(scores),
            },
            "label": {
                "type": "categorical",
                "cardinality": len(LABELS),
                "value_counts": {label: labels.count(label) for label in LABELS},
            },
        },
    }


def bound() -> float:
    """Return the score from which the last 1 % of the shards have theirs."""
    return float(MANIFESTS - MANIFESTS // 100)


def matching() -> list[str]:
    """Return the keys of the rows that the benches ask for, in order."""
    start = int(bound()) * ROWS
    numbers = range(start, MANIFESTS * ROWS)
    return [f"{i:012d}" for i in numbers if row_of(i)["label"] == "cat"]
