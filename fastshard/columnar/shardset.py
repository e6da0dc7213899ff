"""Shard set of a columnar dataset, for `fastshard.open`."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from fastshard._core.io.source import MappedSource
from fastshard.columnar.read.column_sample import ARRAYS
from fastshard.columnar.read.samples import load_samples
from fastshard.columnar.read.snapshot import Snapshot
from fastshard.columnar.read.stacks.metadata import MetadataTable
from fastshard.columnar.read.stacks.sample_values import SampleValues
from fastshard.dataset.display.text import Summary, describe_paths
from fastshard.dataset.order.state import Identity
from fastshard.dataset.shardset import Counts, ReadOptions, ShardSet
from fastshard.errors import FastshardError
from fastshard.formats.codec import FieldCodec
from fastshard.formats.tar import Mode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard._core.columnar.rows import ColumnSamples
    from fastshard._core.dataset.streams import SampleLocator
    from fastshard.columnar.read.selection import RowSelection

__all__ = ["ColumnSet", "update_keys"]

KEYS_PER_UPDATE = 4096
METADATA_TIMEOUT = 30.0  # seconds to read a metadata column
COUNT = "SELECT count(*) FROM samples"


class ColumnSet(ShardSet):
    """Shard set of a columnar dataset: its index is the one shard."""

    format = "columnar"

    def __init__(
        self,
        root: str,
        *,
        mode: Mode,
        limit: int | None,
        reading: ReadOptions,
        selection: RowSelection | None = None,
    ) -> None:
        super().__init__(1, root=root, mode=mode, limit=limit, reading=reading)
        self.paths = [root]
        self.selection = selection
        if selection is None:
            self.snapshot = Snapshot(os.path.abspath(root), mode, limit, self.ring)
        else:
            self.snapshot, self.ring = selection.snapshot, selection.ring
        self._limit = limit  # as given, for pickles
        self._counts: list[Counts] | None = None
        self._known_fields: tuple[str, ...] | None = None  # once requested

    def open_shard(self, k: int) -> ColumnSamples:
        """Load the rows of the index."""
        self.check_open()
        if self.selection is not None:
            samples = self.selection.load()
        else:
            samples = load_samples(self.snapshot)
        if samples.metadata is None:
            samples.metadata = SampleValues(self.snapshot, METADATA_TIMEOUT)
        kept: ColumnSamples = self.keep(k, samples)
        return kept

    def close_samples(self, samples: ColumnSamples) -> None:
        """Do nothing: `close` closes the snapshot, which has the shards."""

    def rows(self) -> ColumnSamples:
        """Return all samples."""
        samples: ColumnSamples = self.samples(0)
        return samples

    def check_open(self) -> None:
        super().check_open()
        if self.snapshot.closed:
            raise self.snapshot.closed_error()

    def summarize(self) -> Summary:
        snapshot, selection = self.snapshot, self.selection
        samples = None if selection is None else selection.count
        if samples is None:
            with suppress(FastshardError, OSError):  # reading reports a fault
                ((samples,),) = snapshot.select(COUNT)
        where = describe_paths([snapshot.home], snapshot.home)
        return Summary(where, None, samples, tuple(snapshot.folders), self.format)

    def field_codec(self) -> FieldCodec:
        return ARRAYS

    def field_names(self) -> list[str]:
        return self.rows().field_names

    def known_fields(self) -> Collection[str] | None:
        if self._known_fields is None and not self.snapshot.closed:
            table = MetadataTable(self.snapshot, METADATA_TIMEOUT)
            self._known_fields = (*self.snapshot.folders, *table.columns)
        return self._known_fields

    def is_counted(self) -> bool:
        return True

    def sizes(self) -> list[int | None]:
        return [len(self.rows())]

    def counts(self) -> list[Counts]:
        """Return the number of samples, and of arrays in all fields."""
        self.check_open()
        if self._counts is None:
            rows = self.rows()
            members = sum(column.count for column in rows.columns)
            self._counts = [Counts(len(rows), members)]
        return self._counts

    def data_bytes(self) -> int:
        """Return the stored bytes of all arrays; reads all headers."""
        rows = self.rows()
        return sum(column.data_bytes() for column in rows.columns)

    def close(self) -> None:
        super().close()
        if self.selection is None:
            self.snapshot.close()

    def file_count(self) -> int:
        return sum(len(column.numbers) for column in self.rows().columns)

    def find_key(self, key: str) -> list[int]:
        i = self.rows().search_key(key)
        return [] if i < 0 else [i]

    def stack_columns(
        self,
        locator: SampleLocator,
        positions: Any,
        fields: tuple[str, ...],
    ) -> dict[str, NDArray[Any]]:
        from fastshard._core.columnar.batch import read_fields
        from fastshard.columnar.read.batch import stack_equal

        return read_fields(locator, positions, fields, stack_equal)

    def verify(self, *, hashes: bool = False) -> list[Any]:
        """Return the faults of the index and the shards."""
        from fastshard.columnar.verification import verify

        return list(verify(self.snapshot.root))

    def identify(self) -> Identity:
        """Return the identity of the dataset: a digest of its fields and ids."""
        rows = self.rows()
        digest = blake2b("\n".join(rows.field_names).encode(), digest_size=8)
        update_keys(digest, rows)
        name = os.path.basename(self.snapshot.home)
        if self.selection is not None:
            name = self.selection.describe(name)
        return Identity(name, len(rows), digest.hexdigest())

    def map_shards(self, task: Callable[[int], Any], label: str) -> Iterable[Any]:
        """Call a task with the number of the one shard."""
        return map(task, range(len(self)))

    def mapped_ranges(self) -> list[tuple[int, int]]:
        """Return address and size of each mapped shard."""
        sources = self.snapshot.files.sources()
        return [
            (source.address, source.nbytes)
            for source in sources
            if isinstance(source, MappedSource)
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        self.check_open()
        if self.selection is not None:
            return self.selection.reduction
        return _restore, (self.snapshot.root, self.mode, self._limit, self.reading)


def update_keys(digest: Any, samples: ColumnSamples) -> None:
    """Update a digest with the keys of all samples."""
    for start in range(0, len(samples), KEYS_PER_UPDATE):
        part = range(start, min(start + KEYS_PER_UPDATE, len(samples)))
        keys = samples.keys_of(array("q", part))
        digest.update("\n".join(["", *keys]).encode())


def _restore(
    root: str, mode: Mode, limit: int | None, reading: ReadOptions
) -> ColumnSet:
    """Open a shard set from its pickle."""
    return ColumnSet(root, mode=mode, limit=limit, reading=reading)
