"""A columnar dataset as `fastshard.open` gives it: what its samples come from."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NoReturn

from fastshard._core.source import MappedSource
from fastshard.columnar.read.samples import load_samples
from fastshard.columnar.read.snapshot import Snapshot
from fastshard.dataset.order.state import Identity
from fastshard.dataset.shardset import Counts, Reading, ShardSet
from fastshard.errors import ClosedError, FastshardError
from fastshard.formats.tar import Mode

if TYPE_CHECKING:
    from fastshard._core.columnsamples import ColumnSamples

__all__ = ["ColumnSet", "open_set"]


def open_set(
    root: str, *, mode: Mode, limit: int | None, reading: Reading
) -> ColumnSet:
    """Open what `fastshard.open` makes a dataset of."""
    return ColumnSet(root, mode=mode, limit=limit, reading=reading)


class ColumnSet(ShardSet):
    """All samples of an index, in the place of one shard's.

    Parameters
    ----------
    root : str
    mode, limit, reading
        As for `ShardSet`.
    """

    def __init__(
        self, root: str, *, mode: Mode, limit: int | None, reading: Reading
    ) -> None:
        super().__init__(
            [root],
            index="auto",
            root=root,
            mode=mode,
            key="first",
            lower=True,
            limit=limit,
            reading=reading,
        )
        self.snapshot = Snapshot(os.path.abspath(root), mode, limit, self.ring)
        self.kept = limit  # as it was given
        self.verifier = self._verify

    def bring(self, k: int) -> Any:
        """Read all rows of the index."""
        if self.closed:
            raise ClosedError("the dataset is closed: open it again")
        samples = load_samples(self.snapshot)
        self.open[k] = samples  # type: ignore[call-overload]
        return samples

    def rows(self) -> ColumnSamples:
        """Return all samples."""
        samples: Any = self.samples(0)
        found: ColumnSamples = samples
        return found

    def is_counted(self) -> bool:
        return True

    def sizes(self) -> list[int | None]:
        return [len(self.rows())]

    def counts(self) -> list[Counts]:
        """Count the samples, and the arrays of all fields."""
        if self.closed:
            raise ClosedError("the dataset is closed: open it again")
        if self._counts is None:
            rows = self.rows()
            members = sum(column.count for column in rows.columns)
            self._counts = [Counts(len(rows), members)]
        return self._counts

    def data_bytes(self) -> int:
        """Return the sum of all arrays' sizes as they are stored; reads all headers."""
        rows = self.rows()
        return sum(column.data_bytes() for column in rows.columns)

    def shard(self, k: int) -> NoReturn:
        raise FastshardError(
            f"{self.root} is a columnar dataset: its samples' fields lie in shards of "
            "their own, which have no samples"
        )

    def member(self, i: int) -> NoReturn:
        self.shard(0)

    def without(self, gone: Collection[int]) -> ShardSet:
        self.shard(0)

    def each(self, task: Callable[[int], Any], doing: str) -> Iterable[Any]:
        return map(task, [0])

    def close(self) -> None:
        super().close()
        self.snapshot.close()

    def file_count(self) -> int:
        return sum(len(column.numbers) for column in self.rows().columns)

    def find_key(self, key: str) -> list[int]:
        i = self.rows().search_key(key)
        return [] if i < 0 else [i]

    def _verify(self) -> list[Any]:
        from fastshard.columnar.verify import verify

        return list(verify(self.snapshot.root))

    def identify(self) -> Identity:
        """Say what dataset it is: its fields, and its samples' ids."""
        rows = self.rows()
        digest = blake2b("\n".join(rows.field_names).encode(), digest_size=8)
        for i in range(len(rows)):
            digest.update(f"\n{rows.key_at(i)}".encode())
        name = os.path.basename(self.snapshot.root)
        return Identity(name, len(rows), digest.hexdigest())

    def mapped(self) -> list[tuple[int, int]]:
        """Return the address and the bytes of each shard that is mapped."""
        sources = self.snapshot.files.sources()
        return [
            (source.address, source.nbytes)
            for source in sources
            if isinstance(source, MappedSource)
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        if self.closed:
            raise ClosedError("the dataset is closed: open it again")
        mode = self.options["mode"]
        return _again, (self.snapshot.root, mode, self.kept, self.reading)


def _again(root: str, mode: Mode, limit: int | None, reading: Reading) -> ColumnSet:
    return ColumnSet(root, mode=mode, limit=limit, reading=reading)
