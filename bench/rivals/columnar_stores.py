"""Rivals without ids: stores of whole columns, and one file a sample.

The column stores look ids up in a dict in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rivals.columnar_data import BATCH, FIELDS, PER_SHARD, Columns, Found, Row, text_of


def collect(rows: Iterable[Row]) -> tuple[list[str], list[str], Columns]:
    """Return ids, metadata as text, and columns of all samples."""
    ids, arrays, metadata = zip(*rows, strict=True)
    columns = {field: np.stack([some[field] for some in arrays]) for field in FIELDS}
    return list(ids), [text_of(some) for some in metadata], columns


def write_arrow(folder: Path, rows: Iterable[Row]) -> None:
    """Write Arrow as Hugging Face's datasets saves it, in lists of fixed size."""
    pa = pytest.importorskip("pyarrow")
    datasets = pytest.importorskip("datasets")
    ids, texts, columns = collect(rows)
    table = {"id": ids, "meta": texts}
    for field, column in columns.items():
        flat = pa.array(column.reshape(-1))
        table[field] = pa.FixedSizeListArray.from_arrays(flat, FIELDS[field])
    datasets.disable_progress_bars()
    datasets.Dataset(pa.table(table)).save_to_disk(folder / "saved")


class Arrow:
    """Mapped dataset of Hugging Face's datasets, with NumPy results."""

    def __init__(self, folder: Path) -> None:
        datasets = pytest.importorskip("datasets")
        ds = datasets.load_from_disk(str(folder / "saved"))
        self.positions = {key: i for i, key in enumerate(ds["id"][:])}
        self.ds = ds.with_format("numpy", columns=[*FIELDS, "meta"])
        self.arrays = ds.with_format("numpy", columns=list(FIELDS))

    def get_sample(self, key: str) -> Found:
        row = self.ds[self.positions[key]]
        return {field: row[field] for field in FIELDS}, json.loads(str(row["meta"]))

    def __getitem__(self, i: int) -> Any:
        return self.arrays[i]

    def get_many(self, keys: Sequence[str]) -> list[Found]:
        found = self.ds[[self.positions[key] for key in keys]]
        return [
            ({field: found[field][k] for field in FIELDS}, json.loads(text))
            for k, text in enumerate(found["meta"].tolist())
        ]

    def columns_at(self, chosen: Any) -> Any:
        return self.arrays[chosen.tolist()]

    def batches(self) -> Iterator[Columns]:
        yield from self.arrays.iter(batch_size=BATCH)


def write_zarr(folder: Path, rows: Iterable[Row]) -> None:
    """Write uncompressed chunks of `PER_SHARD` samples."""
    zarr: Any = pytest.importorskip("zarr")
    ids, texts, columns = collect(rows)
    (folder / "ids.json").write_text(json.dumps([ids, texts]))
    group = zarr.open_group(folder / "z", mode="w")
    for field, column in columns.items():
        chunks = PER_SHARD, FIELDS[field]
        array = group.create_array(
            field, shape=column.shape, dtype="f4", chunks=chunks, compressors=None
        )
        array[:] = column


class Zarr:
    """Reader of zarr arrays; metadata and ids are in memory."""

    def __init__(self, folder: Path) -> None:
        zarr: Any = pytest.importorskip("zarr")
        ids, self.texts = json.loads((folder / "ids.json").read_text())
        self.positions = {key: i for i, key in enumerate(ids)}
        group = zarr.open_group(folder / "z", mode="r")
        self.fields = {field: group[field] for field in FIELDS}

    def get_sample(self, key: str) -> Found:
        i = self.positions[key]
        return self[i], json.loads(self.texts[i])

    def __getitem__(self, i: int) -> Columns:
        return {field: array[i] for field, array in self.fields.items()}

    def columns_at(self, chosen: Any) -> Columns:
        return {field: array.oindex[chosen] for field, array in self.fields.items()}

    def batches(self) -> Iterator[Columns]:
        """Iterate over whole chunks, the fastest way."""
        for at in range(0, len(self.texts), PER_SHARD):
            yield {
                field: array[at : at + PER_SHARD]
                for field, array in self.fields.items()
            }


def write_npz(folder: Path, rows: Iterable[Row]) -> None:
    """Write one file a sample."""
    for key, arrays, metadata in rows:
        values: dict[str, Any] = {**arrays, "meta": np.array(text_of(metadata))}
        np.savez(folder / f"{key}.npz", **values)


class Npz:
    """Reader of a sample's file by `np.load`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get_sample(self, key: str) -> Found:
        with np.load(self.folder / f"{key}.npz") as file:
            arrays = {field: file[field] for field in FIELDS}
            return arrays, json.loads(str(file["meta"]))
