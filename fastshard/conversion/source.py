"""Sources of conversions: datasets of any format, their columns and samples."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

from fastshard.conversion.columns import KEY, SourceColumn, field_encoding, name_columns
from fastshard.conversion.values import (
    ValueReader,
    key_reader,
    metadata_reader,
    npy_reader,
    packed_reader,
    streaming_reader,
    tar_reader,
)
from fastshard.dataset.dataset import Dataset

__all__ = ["RowSource"]

Columns = Mapping[str, tuple[SourceColumn, ValueReader]]  # by field
METADATA = "metadata/"  # before names of metadata; no field has a slash
MAX_COLUMNS = 10_000


class RowSource:
    """Samples of a dataset as rows of columns, in the order of their positions.

    Attributes
    ----------
    format : str
        Name of its format.
    is_open : bool
        Whether a sample may lack columns, which its fields alone tell.
    """

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset
        self.shards: Any = dataset._set
        self.format: str = self.shards.format
        self.is_open = self.format in ("tar", "packed", "columnar")
        self._columns: dict[Any, dict[str, tuple[SourceColumn, ValueReader]]] = {}

    @cached_property
    def starts(self) -> list[int]:
        """Position of each shard's first sample, then the total."""
        starts: list[int] = self.shards.starts()
        return starts

    def __len__(self) -> int:
        return self.starts[-1]

    def has_keys(self) -> bool:
        """True if keys are stored, False if they are positions."""
        if self.is_open:
            return True
        found = [columns.get(KEY) for columns in self.all_columns()]
        return bool(found) and all(each and each[0].encoding == "str" for each in found)

    def _schemas(self) -> Iterator[int]:
        """Yield a shard of each schema with samples; the source need not be open."""
        seen = set()
        for k, (start, stop) in enumerate(pairwise(self.starts)):
            codec = id(self.shards.codec(k)) if start < stop else None
            if codec is not None and codec not in seen:
                seen.add(codec)
                yield k

    def has_text_ints(self) -> bool:
        """True if a column stores ints as text, which may exceed 64 bits."""
        return any(
            column.encoding == "int" and reader.form != "mds:int"
            for columns in self.all_columns()
            for column, reader in columns.values()
        )

    def name_columns(self, fields: Iterable[str]) -> dict[str, str]:
        """Return the columns' names by field."""
        if self.format == "tar":
            return name_columns(fields)
        return {field: field.removeprefix(METADATA) for field in fields}

    def shard_bytes(self, k: int) -> int:
        """Return the size of shard `k`, 0 if unknown."""
        if not self.is_open:
            return int(self.shards.index.data_bytes(self.shards.numbers[k]))
        path = self.shards.paths[k]
        return os.path.getsize(path) if self.shards.remote is None else 0

    def columns_of(self, k: int) -> Columns:
        """Return the columns of shard `k`; the source need not be open."""
        codec = self.shards.codec(k)
        found = self._columns.get(codec)
        if found is None:
            config = codec.config
            kind = config.format if config.format in ("mds", "json") else "xsv"
            found = self._columns[codec] = {}
            for number, name in enumerate(config.names):
                encoding = config.encodings[number]
                is_key = number == codec.key_column
                reader = (
                    key_reader() if is_key else streaming_reader(name, encoding, kind)
                )
                found[name] = SourceColumn(name, encoding), reader
        return found

    def all_columns(self) -> Iterator[Columns]:
        """Yield the columns of each schema; the source need not be open."""
        return map(self.columns_of, self._schemas())

    def columns_in(self, sample: Any, k: int) -> Columns:
        """Return the columns of a sample of shard `k`."""
        if not self.is_open:
            return self.columns_of(k)
        fields = tuple(sample.keys())
        metadata: tuple[str, ...] = ()
        if self.format == "columnar":
            metadata = tuple(sample.metadata)
        found = self._columns.get((fields, metadata))
        if found is None:
            if len(self._columns) > MAX_COLUMNS:
                self._columns.clear()
            found = self._make_columns(fields, metadata)
            self._columns[fields, metadata] = found
        return found

    def _make_columns(
        self, fields: tuple[str, ...], metadata: tuple[str, ...]
    ) -> dict[str, tuple[SourceColumn, ValueReader]]:
        columns: dict[str, tuple[SourceColumn, ValueReader]] = {}
        for field in fields:
            if self.format == "tar":
                encoding = field_encoding(field)
                reader = tar_reader(field, encoding)
            elif self.format == "packed":
                encoding, reader = "packed", packed_reader(field)
            else:
                encoding, reader = "npy", npy_reader(field)
            columns[field] = SourceColumn(field, encoding), reader
        for name in metadata:
            column = SourceColumn(METADATA + name, "metadata")
            columns[column.field] = column, metadata_reader(name)
        return columns

    def segments(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (shard, start, stop) of the positions from `start` to `stop`."""
        k = bisect.bisect_right(self.starts, start) - 1
        while start < stop:
            end = min(stop, self.starts[k + 1])
            if end > start:
                yield k, start, end
            start, k = end, k + 1

    def each(self, start: int, stop: int) -> Iterator[Any]:
        """Iterate over samples without prefetch, for few bytes of each."""
        dataset = self.dataset
        if self.shards.remote is not None:  # one request for many samples
            return iter(dataset[start:stop])
        return map(dataset.__getitem__, range(start, stop))

    def samples(
        self, start: int, stop: int, fields: tuple[str, ...] | None
    ) -> Iterator[Any]:
        """Iterate over samples, prefetching `fields`; None for all."""
        dataset: Any = self.dataset[start:stop]
        if fields is not None:
            dataset = dataset.select_fields(*fields)
        return iter(dataset)
