"""The same samples in every format that `fastshard.open` knows."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

import fastshard
from fastshard.columnar import ShardedDatasetWriter

__all__ = ["BUILDERS", "Samples", "npy"]

Samples = Sequence[tuple[str, Mapping[str, np.ndarray]]]
PER_SHARD = 25


def npy(array: np.ndarray) -> bytes:
    """The bytes of an ``.npy`` file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


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


# By format: what builds a dataset, and what comes behind a field's name there.
BUILDERS: dict[str, tuple[Callable[[Path, Samples], None], str]] = {
    "tar": (build_tar, ".npy"),
    "columnar": (build_columnar, ""),
}
