"""Samples that every contender stores, and the orders of reading them."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness import evict

FIELDS = {"history": 100, "target": 50, "forecast": 50}  # float32s of a sample
PER_SHARD = 1000  # samples of a shard, or of a chunk
BATCH = 256

Floats = npt.NDArray[np.float32]
Columns = dict[str, Floats]
Row = tuple[str, Columns, dict[str, Any]]  # id, arrays, metadata
Found = tuple[Columns, dict[str, Any]]
Write = Callable[[Path, Iterable[Row]], None]
Run = Callable[["Order"], Any]  # returns the last result


class Data:
    """Samples in memory, and in the stores of contenders, each written once."""

    def __init__(self, folder: Path, count: int) -> None:
        numbers = np.random.default_rng(0)
        self.folder = folder
        self.count = count
        self.ids = [f"sample_{i:012d}" for i in range(1, count + 1)]
        self.columns: Columns = {
            field: numbers.standard_normal((count, size), np.float32)
            for field, size in FIELDS.items()
        }

    def metadata(self, i: int) -> dict[str, Any]:
        return {"length": 100 + i % 100, "source": "synthetic"}

    @cached_property
    def rows(self) -> list[Row]:
        """All samples, as arguments of writers."""
        return list(self.iterate_rows())

    def iterate_rows(self) -> Iterator[Row]:
        """Yield the samples: a million of them as objects take a gigabyte."""
        fields = self.columns.items()
        for i, key in enumerate(self.ids):
            yield key, {field: column[i] for field, column in fields}, self.metadata(i)

    def store(self, write: Write, max_samples: int | None = None) -> Path:
        """Return the folder that `write` fills with `max_samples` samples at most."""
        folder = self.folder / write.__name__
        if not folder.exists():
            folder.mkdir()
            write(folder, islice(self.iterate_rows(), max_samples))
        return folder

    def check(self, i: int, columns: Any, metadata: dict[str, Any]) -> None:
        """Assert that a contender has read sample `i`."""
        for field, column in self.columns.items():
            assert np.array_equal(columns[field], column[i])
            assert columns[field].dtype == np.float32
        assert metadata == self.metadata(i)

    def check_columns(self, chosen: Any, columns: Any) -> None:
        for field, column in self.columns.items():
            assert np.array_equal(columns[field], column[chosen])


class Order:
    """Samples to read: positions, ids, and both in batches."""

    def __init__(
        self, data: Data, positions: Sequence[int], batch_size: int = BATCH
    ) -> None:
        self.positions = list(positions)
        self.ids = [data.ids[i] for i in positions]
        at = range(0, len(self.ids), batch_size)
        self.batches = [np.array(self.positions[a : a + batch_size]) for a in at]
        self.batches_of_ids = [self.ids[a : a + batch_size] for a in at]

    def __len__(self) -> int:
        return len(self.positions)


def shards(root: Path) -> list[Path]:
    return sorted(root.glob("*_shards/*.tar"))


def evict_all(root: Path) -> None:
    gc.collect()  # dropped readers keep shards mapped until then
    for path in root.rglob("*"):
        if path.is_file():
            evict(path)


def text_of(metadata: dict[str, Any]) -> str:
    return json.dumps(metadata)


def one_by_one(get: Callable[[str], Any]) -> Run:
    """Return a run that reads each sample by its id."""

    def run(order: Order) -> Any:
        for key in order.ids:
            found = get(key)
        return found

    return run


def by_position(samples: Any) -> Run:
    """Return a run that reads each sample by its position."""

    def run(order: Order) -> Any:
        for i in order.positions:
            found = samples[i]
        return found

    return run


def over_positions(get: Callable[[Any], Any]) -> Run:
    """Return a run that reads batches by positions."""

    def run(order: Order) -> Any:
        for chosen in order.batches:
            found = get(chosen)
        return found

    return run


def over_ids(get: Callable[[list[str]], Any]) -> Run:
    """Return a run that reads batches by ids."""

    def run(order: Order) -> Any:
        for keys in order.batches_of_ids:
            found = get(keys)
        return found

    return run


def columns_in_memory(data: Data) -> Run:
    """Return a run of NumPy's fancy indexing on the columns in memory."""
    columns = data.columns.items()
    return over_positions(
        lambda chosen: {field: column[chosen] for field, column in columns}
    )
