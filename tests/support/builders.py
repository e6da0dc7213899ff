"""The same samples in every format that `fastshard.open` knows."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fastshard
from fastshard.columnar import ShardedDatasetWriter
from fastshard.streaming import CSVWriter, JSONWriter, MDSWriter

__all__ = ["BUILDERS", "Builder", "Samples", "npy"]

Samples = Sequence[tuple[str, Mapping[str, np.ndarray]]]
PER_SHARD = 25


def npy(array: np.ndarray) -> bytes:
    """The bytes of an ``.npy`` file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def same(array: np.ndarray, field: str) -> Any:
    return array


@dataclass(frozen=True)
class Builder:
    """How a format stores samples of arrays.

    Attributes
    ----------
    format : str
        Name of the registered format; "tar" for plain shards.
    build : callable
        ``build(folder, samples)`` makes a dataset of more than two shards.
    stored : callable
        ``stored(array, field)`` returns the bytes of a field.
    shards : str
        Glob of the files that are shards.
    suffix : str
        Follows a field's name.
    value : callable
        ``value(array, field)`` returns what is stored in an array's place.
    has_arrays : bool
        `Sample.array` reads its fields.
    may_lack : bool
        A sample may lack a field that others have.
    opens_whole : bool
        A truncated shard does not open; otherwise its whole samples are read.
    counts_shards : bool
        Samples are counted in the shards, not in an index.
    options : Mapping
        Arguments of `fastshard.open` that it needs.
    members : int, optional
        Members of a sample; by default one for each field.
    """

    format: str
    build: Callable[[Path, Samples], None]
    stored: Callable[[np.ndarray, str], bytes]
    shards: str
    suffix: str = ""
    value: Callable[[np.ndarray, str], Any] = same
    has_arrays: bool = True
    may_lack: bool = True
    opens_whole: bool = False
    counts_shards: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    members: int | None = None

    def open(self, path: Path, **options: Any) -> Any:
        """Open a dataset of this format."""
        return fastshard.open(path, **self.options, **options)

    def name(self, field: str) -> str:
        """Return the name that a field has in this format."""
        return field + self.suffix

    def read(self, sample: Any, field: str) -> Any:
        """Return a field of a sample in the format's usual way."""
        if self.has_arrays:
            return sample.array(field)
        return sample.decode(field)[field]

    def shard_paths(self, folder: Path) -> list[Path]:
        return sorted(folder.rglob(self.shards))


def store_npy(array: np.ndarray, field: str) -> bytes:
    return npy(array)


def build_tar(folder: Path, samples: Samples) -> None:
    folder.mkdir()
    for start in range(0, len(samples), PER_SHARD):
        path = folder / f"s-{start:05}.tar"
        with fastshard.ShardWriter(str(path)) as writer:
            for key, arrays in samples[start : start + PER_SHARD]:
                fields = {f"{name}.npy": npy(array) for name, array in arrays.items()}
                writer.write({"__key__": key} | fields)


def build_columnar(folder: Path, samples: Samples) -> None:
    with ShardedDatasetWriter(folder, samples_per_shard=PER_SHARD) as writer:
        names = dict.fromkeys(name for _, arrays in samples for name in arrays)
        writer.add_fields(list(names))
        for key, arrays in samples:
            writer.add_sample(dict(arrays), key)


def store_mds(array: np.ndarray, field: str) -> bytes:
    """x has dtype and shape in its encoding, y in a header."""
    header = b"" if field == "x" else bytes([34, 1 << 2, len(array)])
    return header + array.tobytes()


def text_value(array: np.ndarray, field: str) -> int | str:
    """x is a number, y a text."""
    return int(array[0]) if field == "x" else f"no. {int(array[0])}"


def store_json(array: np.ndarray, field: str) -> bytes:
    return json.dumps(text_value(array, field)).encode()


def store_csv(array: np.ndarray, field: str) -> bytes:
    return str(text_value(array, field)).encode()


def build_mds(folder: Path, samples: Samples) -> None:
    columns = {"__key__": "str", "x": "ndarray:float32:40", "y": "ndarray"}
    with MDSWriter(columns=columns, out=str(folder), size_limit=6000) as writer:
        for key, arrays in samples:
            writer.write({"__key__": key, **arrays})


def build_text(folder: Path, samples: Samples, make: Any) -> None:
    columns = {"__key__": "str", "x": "int", "y": "str"}
    with make(columns=columns, out=str(folder), size_limit=1000) as writer:
        for key, arrays in samples:
            values = {name: text_value(array, name) for name, array in arrays.items()}
            writer.write({"__key__": key, **values})


def store_packed(array: np.ndarray, field: str) -> bytes:
    """x is compact, y is npy."""
    if field == "y":
        return npy(array)
    dtype = array.dtype.str.encode()
    lead = bytes([len(dtype)]) + dtype + bytes([array.ndim])
    return lead + np.array(array.shape, "<i8").tobytes() + array.tobytes()


def build_packed(folder: Path, samples: Samples) -> None:
    import msgspec

    folder.mkdir()
    for start in range(0, len(samples), PER_SHARD):
        path = folder / f"s-{start:05}.tar"
        with fastshard.ShardWriter(str(path)) as writer:
            for key, arrays in samples[start : start + PER_SHARD]:
                stored = {
                    name: store_packed(array, name) for name, array in arrays.items()
                }
                payload = msgspec.msgpack.encode(stored)
                writer.write({"__key__": key, "msgpack": payload})


ROWS: dict[str, Any] = {"format": "streaming", "may_lack": False, "opens_whole": True}
TEXT: dict[str, Any] = {**ROWS, "has_arrays": False, "value": text_value}

BUILDERS = {
    "tar": Builder(
        "tar",
        build_tar,
        store_npy,
        "*.tar",
        suffix=".npy",
        opens_whole=True,
        counts_shards=True,
    ),
    "packed": Builder(
        "packed",
        build_packed,
        store_packed,
        "*.tar",
        opens_whole=True,
        counts_shards=True,
        options={"packed": True},
        members=1,
    ),
    "columnar": Builder("columnar", build_columnar, store_npy, "*.tar"),
    "mds": Builder(build=build_mds, stored=store_mds, shards="shard.*.mds", **ROWS),
    "json": Builder(
        build=partial(build_text, make=JSONWriter),
        stored=store_json,
        shards="shard.*.json",
        **TEXT,
    ),
    "csv": Builder(
        build=partial(build_text, make=CSVWriter),
        stored=store_csv,
        shards="shard.*.csv",
        **TEXT,
    ),
}
