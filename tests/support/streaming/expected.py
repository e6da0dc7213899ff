"""Decoded values and hashes of the datasets in ``tests/data/streaming.tar.xz``.

mosaicml-streaming 0.13.0 wrote the datasets and decoded them for ``expected.json``,
where a value is the name of its type and the SHA-256 of its canonical bytes.
"""

from __future__ import annotations

import hashlib
import json
import struct
import tarfile
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from support.paths import DATA

ARCHIVE = DATA / "streaming.tar.xz"


@dataclass
class Expected:
    """One dataset: its folder, and what `expected.json` says of it.

    `shards` has a dict a shard: format, class, samples, size, len, raw_size, zip_size
    (None: no compression), max_size, persistent_size_keep, persistent_size_drop.
    `samples` has a dict a sample: shard, index (in the shard), data_len, data_sha256
    (of ``get_sample_data``), keys, and ``fields[name]``: type, sha256, in MDS enc_len
    and enc_sha256 (of the stored bytes), of short values repr. Corrupt datasets have
    no `samples` here.
    """

    name: str  # "mds/zstd", "edge/splits#train"
    root: Path  # with `split`, the folder that holds index.json
    split: str | None
    note: str | None
    files: dict[str, dict[str, Any]]
    shards: list[dict[str, Any]]
    samples: list[dict[str, Any]]

    @property
    def folder(self) -> Path:
        """The folder that holds ``index.json``."""
        return self.root / (self.split or "")

    @property
    def index(self) -> dict[str, Any]:
        return json.loads((self.folder / "index.json").read_bytes())

    def moved(self, root: Path) -> Expected:
        """Return the same of a copy in another folder."""
        return Expected(**{**vars(self), "root": root})


def unpack(folder: Path) -> dict[str, Expected]:
    """Unpack all datasets into a folder; return them by name."""
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(folder, filter="data")
    known = json.loads((folder / "expected.json").read_bytes())["datasets"]
    return {
        name: Expected(name, folder / name.partition("#")[0], **known[name])
        for name in known
    }


def names(*kinds: str) -> list[str]:
    """Return the names of the datasets of some kinds ("mds", "edge"), sorted.

    Needs nothing unpacked: for ``pytest.mark.parametrize``.
    """
    return [name for name in NAMES if name.partition("/")[0] in (kinds or KINDS)]


COMPRESSIONS = ("br", "bz2", "gz", "none", "snappy", "zstd", "zstd7")
KINDS = ("csv", "edge", "json", "mds", "tsv", "xsv")  # those that can be read
EDGES = (
    "all_hashes",
    "bytes_passthrough",
    "column_names",
    "empty_fields",
    "fixed_only",
    "good_for_corrupt",
    "json_bool",
    "mds_bool",
    "merged",
    "ndarray_matrix",
    "no_samples",
    "one_sample",
    "pkl",
    "raw_only",
    "sequence_1000",
    "size_limit_str",
    "splits#train",
    "splits#val/nested",
    "zip_and_raw",
)
DAMAGES = (
    "bad_field_size",
    "bad_offset",
    "bitflip",
    "empty_file",
    "missing_file",
    "truncated",
)
NAMES = (
    *(f"corrupt/{name}" for name in DAMAGES),
    *(f"csv/{name}" for name in COMPRESSIONS),
    *(f"edge/{name}" for name in EDGES),
    *(f"json/{name}" for name in sorted((*COMPRESSIONS, "newline_crlf"))),
    *(f"mds/{name}" for name in COMPRESSIONS),
    *(f"tsv/{name}" for name in COMPRESSIONS),
    "xsv/none",
    "xsv/zstd",
)


def described(value: Any) -> tuple[str, str]:
    """Return the type's name and the hash that ``expected.json`` has for a value."""
    kind, data = canonical(value)
    return kind, hashlib.sha256(data).hexdigest()


def canonical(value: Any) -> tuple[str, bytes]:
    """Return the name of a value's type, and bytes that identify it.

    Types are told apart as callers see them: NumPy scalars from numbers, bool from int.
    """
    for kinds, name, write in WRITERS:
        if isinstance(value, kinds):
            return name(value) if callable(name) else name, write(value)
    if hasattr(value, "tobytes") and hasattr(value, "mode"):  # of Pillow
        return "Image", written_image(value)
    raise TypeError(f"no canonical bytes for {type(value).__name__}")


def written_array(value: np.ndarray) -> bytes:
    head = f"{value.dtype.str}\0{','.join(map(str, value.shape))}\0"
    return head.encode() + value.tobytes("C")


def written_float(value: float) -> bytes:
    return b"nan" if value != value else value.hex().encode()


def written_image(value: Any) -> bytes:
    value.load()
    width, height = value.size
    return f"{value.mode}\0{width},{height}\0".encode() + value.tobytes()


def written_list(value: Any) -> bytes:
    return b"".join(tagged(item) for item in value)


def written_dict(value: dict[str, Any]) -> bytes:
    return b"".join(sized(key.encode()) + tagged(value[key]) for key in sorted(value))


def tagged(value: Any) -> bytes:
    kind, data = canonical(value)
    return kind.encode() + b"\0" + sized(data)


def sized(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


# The first that fits counts: np.float64 is a float, bool an int.
WRITERS = (
    (type(None), "NoneType", lambda value: b"null"),
    (bool, "bool", lambda value: b"true" if value else b"false"),
    (
        np.generic,
        lambda value: f"np.{value.dtype.name}",
        lambda value: value.dtype.str.encode() + b"\0" + value.tobytes(),
    ),
    (np.ndarray, "ndarray", written_array),
    ((bytes, bytearray, memoryview), "bytes", bytes),
    (str, "str", str.encode),
    (int, "int", lambda value: str(value).encode()),
    (float, "float", written_float),
    (Decimal, "Decimal", lambda value: str(value).encode()),
    ((list, tuple), "list", written_list),
    (dict, "dict", written_dict),
)
