"""Data of the MDS benches, written from the bytes of the formats, by no library.

A `Kind` says what a row has; `Store` writes it once in each format that a bench asks
for: MDS, JSON and CSV shards beside an ``index.json``, tars with the same fields, and
the files of rivals.
"""

from __future__ import annotations

import itertools
import json
import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastshard
from harness import SCALE

Row = dict[str, Any]
Index = dict[str, Any]

POOL = random.Random(0).randbytes(1 << 16)
LETTERS = POOL.hex()
IMAGE = random.Random(1).randbytes(102_400 + 4096)
FLOATS = 20  # columns of the kind "floats"
VECTOR = 1024  # numbers of an array, 4 KB
TEXT = 500  # bytes of a text
BLOB = 24_000  # bytes of a blob
FIXED = {"int": 8, "float32": 4}


@dataclass(frozen=True)
class Kind:
    """Rows of a benchmark: their columns, their number and how one is made."""

    name: str
    title: str
    columns: dict[str, str]
    count: int
    per_shard: int
    row: Callable[[int], Row]


def scaled(count: int) -> int:
    return max(int(count * SCALE), 512)


def int_row(i: int) -> Row:
    return {"value": i * 7 - 3}


def text_of(i: int) -> str:
    at = i * 31 % 4096
    return f"{i:08d}" + LETTERS[at : at + TEXT - 8]


def text_row(i: int) -> Row:
    return {"text": text_of(i)}


def float_row(i: int) -> Row:
    return {f"c{k:02d}": np.float32(i + k / 32) for k in range(FLOATS)}


def vector_row(i: int) -> Row:
    vector = np.arange(VECTOR, dtype="f4")
    vector[0] = i
    return {"x": vector}


def blob_row(i: int) -> Row:
    at = i * 31 % 4096
    return {"data": b"%08d" % i + POOL[at : at + BLOB - 8]}


def image_row(i: int) -> Row:
    at = i * 31 % 4096
    return {"data": b"%08d" % i + IMAGE[at : at + 102_400 - 8]}


def document_row(i: int) -> Row:
    at = i * 31 % 4096
    return {"text": f"{i:08d}" + LETTERS[at : at + BLOB - 8]}


def record_row(i: int) -> Row:
    """Return a row that MDS, JSON and CSV hold alike."""
    text = text_of(i)[:100]
    return {"id": f"{i:08d}", "score": i / 8, "text": text, "value": i * 7 - 3}


INTS = Kind(
    "int",
    "one int",
    {"value": "int"},
    scaled(200_000),
    scaled(20_000),
    int_row,
)
TEXTS = Kind(
    "text",
    "a text of 500 bytes",
    {"text": "str"},
    scaled(100_000),
    scaled(20_000),
    text_row,
)
FLOAT_COLUMNS = Kind(
    "floats",
    "20 columns of float32",
    {f"c{k:02d}": "float32" for k in range(FLOATS)},
    scaled(100_000),
    scaled(20_000),
    float_row,
)
VECTORS = Kind(
    "vector",
    "an ndarray of 4 KB",
    {"x": "ndarray"},
    scaled(40_000),
    scaled(8000),
    vector_row,
)
STATIC = Kind(
    "static",
    "an ndarray of 4 KB, shape in the schema",
    {"x": f"ndarray:float32:{VECTOR}"},
    scaled(40_000),
    scaled(8000),
    vector_row,
)
BLOBS = Kind(
    "blob",
    "24 KB of bytes",
    {"data": "bytes"},
    scaled(8000),
    scaled(2000),
    blob_row,
)
IMAGES = Kind(
    "image",
    "100 KB of bytes",
    {"data": "bytes"},
    scaled(20_000),
    scaled(5000),
    image_row,
)
DOCUMENTS = Kind(
    "document",
    "a text of 24 KB",
    {"text": "str"},
    scaled(8000),
    scaled(2000),
    document_row,
)
RECORDS = Kind(
    "record",
    "4 columns",
    {"id": "str", "score": "float", "text": "str", "value": "int"},
    scaled(50_000),
    scaled(10_000),
    record_row,
)


def same(row: Mapping[str, Any], expected: Row) -> bool:
    """Tell whether a decoded row has the expected values, beside a key."""
    if row.keys() - {"__key__"} != expected.keys():
        return False
    return all(
        np.array_equal(row[name], value)
        if isinstance(value, np.ndarray)
        else bytes(row[name]) == value
        if isinstance(value, bytes)
        else row[name] == value
        for name, value in expected.items()
    )


class Store:
    """One kind of rows in several formats, each written when it is asked for."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.folder = folder / kind.name
        self.kind = kind
        self.kept: dict[str, Any] = {}  # opened readers of rivals

    def path(self, name: str, write: Callable[[Path, Kind], object]) -> Path:
        """Return the folder of a format; `write` fills it the first time."""
        path = self.folder / name
        if not path.exists():
            path.mkdir(parents=True)
            write(path, self.kind)
        return path

    @property
    def mds(self) -> Path:
        return self.path("mds", write_mds)

    @property
    def json(self) -> Path:
        return self.path("json", write_json)

    @property
    def csv(self) -> Path:
        return self.path("csv", write_csv)

    @property
    def tars(self) -> Path:
        return self.path("tars", write_tars)

    def keep(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the result of the first call of `make`."""
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    def entry(self, path: Path, number: int = 0) -> Index:
        """Return the entry of a shard in the index of a format's folder."""
        shard: Index = json.loads((path / "index.json").read_text())["shards"][number]
        return shard


def rows_of(kind: Kind) -> Iterator[Row]:
    return map(kind.row, range(kind.count))


def shards_of(kind: Kind) -> Iterator[list[Row]]:
    rows = rows_of(kind)
    while shard := list(itertools.islice(rows, kind.per_shard)):
        yield shard


def file_info(path: Path) -> Index:
    return {"basename": path.name, "bytes": path.stat().st_size, "hashes": {}}


def write_index(folder: Path, shards: Sequence[Index]) -> None:
    index = {"version": 2, "shards": shards}
    (folder / "index.json").write_text(json.dumps(index, sort_keys=True))


def config_of(kind: Kind, form: str) -> Index:
    """Return the common entries of a shard's config and the index."""
    common: Index = {
        "version": 2,
        "format": form,
        "compression": None,
        "hashes": [],
        "size_limit": 1 << 26,
    }
    names = sorted(kind.columns)
    encodings = [kind.columns[name] for name in names]
    if form == "mds":
        encodings = ["float64" if name == "float" else name for name in encodings]
        sizes = [mds_size(encoding) for encoding in encodings]
        return common | {
            "column_names": names,
            "column_encodings": encodings,
            "column_sizes": sizes,
        }
    common["newline"] = "\n"
    if form == "json":
        return common | {"columns": kind.columns}
    return common | {"column_names": names, "column_encodings": encodings}


def dump(config: Index) -> bytes:
    return json.dumps(config, sort_keys=True).encode()


def mds_size(encoding: str) -> int | None:
    """Return the bytes of a value of an encoding that the kinds have."""
    if encoding.startswith("ndarray:"):
        return 4 * VECTOR
    return {"int": 8, "float32": 4, "float64": 8}.get(encoding)


def encoded(value: Any, encoding: str) -> bytes:
    """Return the bytes of a value, by the text of the format."""
    if encoding == "int":
        return struct.pack("<q", value)
    if encoding == "float64":
        return struct.pack("<d", value)
    if encoding == "float32":
        return struct.pack("<f", value)
    if encoding == "str":
        return str(value).encode()
    if encoding == "bytes":
        return bytes(value)
    array: bytes = value.tobytes()
    if encoding == "ndarray":  # code of float32, ndim 1 with u16 dimensions
        return struct.pack("<BBH", 34, 1 << 2 | 1, len(value)) + array
    return array


def offsets_of(sizes: Sequence[int], begin: int) -> bytes:
    """Return the number of samples and the table of offsets."""
    ends = np.cumsum(np.array([begin, *sizes], np.uint64))
    return struct.pack("<I", len(sizes)) + ends.astype("<u4").tobytes()


def mds_rows(rows: Sequence[Row], config: Index) -> list[bytes]:
    columns = list(
        zip(
            config["column_names"],
            config["column_encodings"],
            config["column_sizes"],
            strict=True,
        )
    )
    samples = []
    for row in rows:
        values = [encoded(row[name], encoding) for name, encoding, _ in columns]
        sizes = [
            len(value)
            for value, (_, _, size) in zip(values, columns, strict=True)
            if not size
        ]
        samples.append(struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(values))
    return samples


def write_mds(folder: Path, kind: Kind) -> None:
    config = config_of(kind, "mds")
    text = dump(config)
    entries = []
    for number, rows in enumerate(shards_of(kind)):
        samples = mds_rows(rows, config)
        head = 4 + 4 * (len(samples) + 1) + len(text)
        path = folder / f"shard.{number:05}.mds"
        table = offsets_of([len(sample) for sample in samples], head)
        path.write_bytes(table + text + b"".join(samples))
        entries.append(
            config
            | {"samples": len(rows), "raw_data": file_info(path), "zip_data": None}
        )
    write_index(folder, entries)


def write_split(
    folder: Path, kind: Kind, form: str, head: bytes, line: Callable[[Row], bytes]
) -> None:
    """Write shards of lines, each beside the file of its offsets."""
    config = config_of(kind, form)
    entries = []
    for number, rows in enumerate(shards_of(kind)):
        lines = [line(row) for row in rows]
        data = folder / f"shard.{number:05}.{form}"
        data.write_bytes(head + b"".join(lines))
        meta = folder / f"shard.{number:05}.{form}.meta"
        meta.write_bytes(offsets_of([len(x) for x in lines], len(head)) + dump(config))
        entries.append(
            config
            | {
                "samples": len(rows),
                "raw_data": file_info(data),
                "raw_meta": file_info(meta),
                "zip_data": None,
                "zip_meta": None,
            }
        )
    write_index(folder, entries)


def write_json(folder: Path, kind: Kind) -> None:
    def line(row: Row) -> bytes:
        return json.dumps(row, sort_keys=True).encode() + b"\n"

    write_split(folder, kind, "json", b"", line)


def write_csv(folder: Path, kind: Kind) -> None:
    names = sorted(kind.columns)

    def line(row: Row) -> bytes:
        return ",".join(str(row[name]) for name in names).encode() + b"\n"

    write_split(folder, kind, "csv", ",".join(names).encode() + b"\n", line)


def write_tars(folder: Path, kind: Kind) -> None:
    """Write tars whose members have the bytes that MDS stores for the fields."""
    config = config_of(kind, "mds")
    encodings = dict(
        zip(config["column_names"], config["column_encodings"], strict=True)
    )
    writer = fastshard.ShardWriter(folder / "{:05}.tar", max_count=kind.per_shard)
    with writer:
        for i in range(kind.count):
            row = kind.row(i)
            fields = {
                name: encoded(row[name], encoding)
                for name, encoding in encodings.items()
            }
            writer.write({"__key__": f"{i:08d}", **fields})


def write_zstd(folder: Path, kind: Kind) -> None:
    """Write MDS shards that are compressed whole, and keep no raw file."""
    write_mds(folder, kind)
    path = folder / "index.json"
    shards = json.loads(path.read_text())["shards"]
    for shard in shards:
        raw = folder / shard["raw_data"]["basename"]
        zipped = folder / f"{raw.name}.zstd"
        zipped.write_bytes(compress(raw.read_bytes()))
        raw.unlink()
        shard["compression"] = "zstd"
        shard["zip_data"] = file_info(zipped)
    write_index(folder, shards)


def compress(data: bytes) -> bytes:
    zipped: bytes = pytest.importorskip("backports.zstd").compress(data)
    return zipped


def write_large_index(folder: Path, count: int) -> int:
    """Write an index of shards that are not there; return its bytes of hashes, names.

    Each shard has a row of text, a number and an array.
    """
    columns = {"array": "ndarray", "text": "str", "value": "int"}
    common = config_of(Kind("", "", columns, 0, 0, int_row), "mds")
    shards, total = [], 0
    for k in range(count):
        name = f"shard.{k:05}.mds"
        hashes = {"sha1": f"{k:040x}", "xxh64": f"{k:016x}"}
        info = {"basename": name, "bytes": 67_000_000 + k, "hashes": hashes}
        total += len(name) + sum(map(len, hashes.values()))
        shards.append(
            common
            | {
                "hashes": sorted(hashes),
                "samples": 100,
                "raw_data": info,
                "zip_data": None,
            }
        )
    write_index(folder, shards)
    return total


def positions(count: int, reads: int) -> list[int]:
    """Return random positions below `count`, the same in each run."""
    chosen: list[int] = np.random.default_rng(1).integers(0, count, reads).tolist()
    return chosen
