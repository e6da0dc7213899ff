"""Shard set of a columnar dataset, for `fastshard.open`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from fastshard._core.io.source import MappedSource
from fastshard.columnar.read.samples import load_samples
from fastshard.columnar.read.snapshot import Snapshot
from fastshard.columnar.verification import verify
from fastshard.dataset.display.text import Summary, describe_paths
from fastshard.dataset.order.state import Identity
from fastshard.dataset.shardset import Counts, ReadOptions, ShardSet
from fastshard.errors import FastshardError
from fastshard.formats.decoders import Decoder
from fastshard.formats.field_info import kind_of
from fastshard.formats.tar import Mode

if TYPE_CHECKING:
    from fastshard._core.columnar.rows import ColumnSamples

__all__ = ["ColumnSet"]

COUNT = "SELECT count(*) FROM samples"


class ColumnSet(ShardSet):
    """Shard set of a columnar dataset: its index is the one shard.

    Parameters
    ----------
    root : str
    mode, limit, reading
        As for `ShardSet`.
    """

    format = "columnar"

    def __init__(
        self, root: str, *, mode: Mode, limit: int | None, reading: ReadOptions
    ) -> None:
        super().__init__(1, root=root, mode=mode, limit=limit, reading=reading)
        self.paths = [root]
        self.snapshot = Snapshot(os.path.abspath(root), mode, limit, self.ring)
        self._limit = limit  # as given, for pickles
        self._counts: list[Counts] | None = None

    def open_shard(self, k: int) -> ColumnSamples:
        """Load all rows of the index."""
        self.check_open()
        samples = load_samples(self.snapshot)
        self.open_samples[k] = samples
        return samples

    def rows(self) -> ColumnSamples:
        """Return all samples."""
        samples: ColumnSamples = self.samples(0)
        return samples

    def summarize(self) -> Summary:
        snapshot, samples = self.snapshot, None
        with suppress(FastshardError, OSError):  # reading the dataset reports a fault
            ((samples,),) = snapshot.select(COUNT)
        where = describe_paths([snapshot.home], snapshot.home)
        return Summary(where, None, samples, tuple(snapshot.folders), self.format)

    def kind_of(self, field: str, decoders: Mapping[str, Decoder] | None) -> str:
        own = kind_of(field, decoders)
        return own if own == "object" else "array"

    def field_names(self) -> list[str]:
        return self.rows().field_names

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
        self.snapshot.close()

    def file_count(self) -> int:
        return sum(len(column.numbers) for column in self.rows().columns)

    def find_key(self, key: str) -> list[int]:
        i = self.rows().search_key(key)
        return [] if i < 0 else [i]

    def verify(self, *, hashes: bool = False) -> list[Any]:
        """Return the faults of the index and the shards."""
        return list(verify(self.snapshot.root))

    def identify(self) -> Identity:
        """Return the identity of the dataset: a digest of its fields and ids."""
        rows = self.rows()
        digest = blake2b("\n".join(rows.field_names).encode(), digest_size=8)
        for i in range(len(rows)):
            digest.update(f"\n{rows.key_at(i)}".encode())
        name = os.path.basename(self.snapshot.root)
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
        return _restore, (self.snapshot.root, self.mode, self._limit, self.reading)


def _restore(
    root: str, mode: Mode, limit: int | None, reading: ReadOptions
) -> ColumnSet:
    """Open a shard set from its pickle."""
    return ColumnSet(root, mode=mode, limit=limit, reading=reading)


_again = _restore  # the name in pickles of version 0.1
