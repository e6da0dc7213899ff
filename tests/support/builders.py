"""The same samples in every format that `fastshard.open` knows."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fastshard
from fastshard.columnar import ShardedDatasetWriter
from fastshard.streaming import MDSWriter

__all__ = ["BUILDERS", "Builder", "Samples", "npy"]

Samples = Sequence[tuple[str, Mapping[str, np.ndarray]]]
PER_SHARD = 25


def npy(array: np.ndarray) -> bytes:
    """The bytes of an ``.npy`` file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def same(array: np.ndarray) -> Any:
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
        The value that is stored in an array's place.
    has_arrays : bool
        `Sample.array` reads its fields.
    may_lack : bool
        A sample may lack a field that others have.
    opens_whole : bool
        A truncated shard does not open; otherwise its whole samples are read.
    counts_shards : bool
        Samples are counted in the shards, not in an index.
    """

    format: str
    build: Callable[[Path, Samples], None]
    stored: Callable[[np.ndarray, str], bytes]
    shards: str
    suffix: str = ""
    value: Callable[[np.ndarray], Any] = same
    has_arrays: bool = True
    may_lack: bool = True
    opens_whole: bool = False
    counts_shards: bool = False

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
    """The bytes of an array of encoding ``ndarray``."""
    code = {"u": 0, "i": 1, "f": 2}[array.dtype.kind] + 8 * array.dtype.itemsize
    k = next(k for k in range(4) if max(array.shape) < 1 << (8 << k))
    lengths = np.array(array.shape, f"<u{1 << k}").tobytes()
    return bytes([code, array.ndim << 2 | k]) + lengths + array.tobytes()


def build_mds(folder: Path, samples: Samples) -> None:
    columns = dict.fromkeys(samples[0][1], "ndarray")
    size = sum(len(store_mds(a, f)) + 4 for f, a in samples[0][1].items()) + 20
    with MDSWriter(
        columns=columns | {"__key__": "str"},
        out=str(folder),
        size_limit=PER_SHARD * size,
    ) as writer:
        for key, arrays in samples:
            writer.write({"__key__": key, **arrays})


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
    "columnar": Builder("columnar", build_columnar, store_npy, "*.tar"),
    "mds": Builder(
        "streaming",
        build_mds,
        store_mds,
        "*.mds",
        may_lack=False,
        opens_whole=True,
    ),
}
