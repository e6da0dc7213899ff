"""The ordered shards of a dataset: opened on first use, evicted, bounded in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import cache
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple
from weakref import WeakSet

from fastshard._core.dataset.iterate import (
    ItemStream,
    PrefetchIterator,
    RemotePrefetchIterator,
)
from fastshard._core.dataset.shard import SampleLocator
from fastshard._core.io.page_ring import PageRing
from fastshard.dataset.order.state import Identity
from fastshard.formats.tar import Mode
from fastshard.index.dataset_lookup import DatasetIndexView
from fastshard.remote.options import Settings

__all__ = [
    "WINDOW",
    "Counts",
    "ReadOptions",
    "ShardSet",
    "mapping_limit",
    "memory_info",
]

WINDOW = 32  # items ahead of an iteration
MOST_AHEAD = 64 << 20  # bytes ahead of it
MOST_MAPPED = 16_384  # shards


class ReadOptions(NamedTuple):
    """What `fastshard.open` was told about memory.

    Attributes
    ----------
    prefetch : bool
        Bring bytes before they are touched.
    max_memory : int or None
        Bytes of mapped shards that may be resident; None: no bound.
    keep_cache : bool
        Leave in the page cache what was read.
    """

    prefetch: bool = True
    max_memory: int | None = None
    keep_cache: bool = True

    @property
    def window_bytes(self) -> int:
        """Bytes ahead of an iteration."""
        if self.max_memory is None:
            return MOST_AHEAD
        return max(1, min(MOST_AHEAD, self.max_memory // 4))

    def ring(self) -> PageRing | None:
        """Return what releases the pages of mapped shards; None: they stay.

        It keeps half of the bound: the window ahead of an iteration, and as much
        behind it. The rest is left to what cannot be counted: a batch that is larger
        than a quarter of it, readers in other threads.
        """
        if self.max_memory is None and self.keep_cache:
            return None
        most = 4 * MOST_AHEAD if self.max_memory is None else self.max_memory
        return PageRing(most // 2, forgets=not self.keep_cache)


Reading = ReadOptions  # the name in pickles of version 0.1


def memory_info(shards: ShardSet) -> dict[str, int | None]:
    """Return bytes that are mapped, resident and buffered."""
    ranges = shards.mapped_ranges()
    return {
        "mapped": sum(size for _, size in ranges),
        "resident": _resident(ranges),
        "buffered": sum(ahead.buffered for ahead in shards.active_iterations()),
    }


def _resident(ranges: list[tuple[int, int]]) -> int | None:
    """Add up what Linux says of mappings that begin where ours do."""
    starts = {address for address, _ in ranges}
    resident, counts = 0, False
    try:
        with open("/proc/self/smaps", "rb") as file:
            for line in file:
                if line[:1].isalpha() and line[:1].isupper():
                    if counts and line.startswith(b"Rss:"):
                        resident += int(line.split()[1]) << 10
                else:
                    counts = int(line.split(b"-")[0], 16) in starts
    except OSError:  # not Linux
        return None
    return resident


class Counts(NamedTuple):
    """How much a shard holds."""

    samples: int
    members: int


@cache
def mapping_limit() -> int:
    """Return how many shards may be mapped at a time.

    A process may have ``vm.max_map_count`` mappings, of which a shard with its
    index takes two, and others want some too.
    """
    try:
        with open("/proc/sys/vm/max_map_count") as file:
            return max(1, min(MOST_MAPPED, int(file.read()) // 4))
    except (OSError, ValueError):  # not Linux
        return MOST_MAPPED


class ShardSet(ABC):
    """Shards of one dataset, in order; positions of samples run through them.

    A format's set opens a shard and counts what it holds. This class keeps those that
    are open, and evicts the ones that were not used for longest when there are too
    many (clock replacement). Views keep theirs mapped.

    Parameters
    ----------
    count : int
        Shards, as far as positions are concerned: a format whose samples lie across
        its shards has one.
    root : str
        The directory that all of it lies below; of URLs the folder.
    mode : {"mmap", "private", "pread"}
    limit : int, optional
        How many shards may be mapped at a time; otherwise `mapping_limit`.
    reading : Reading
    remote : Settings, optional
        How shards are read that are not here.

    Attributes
    ----------
    format : str
        The format's name.
    paths : list of str
        Of its shards.
    """

    format: ClassVar[str]
    paths: list[str]
    known: DatasetIndexView | None = None  # what one index says of all shards

    def __init__(
        self,
        count: int,
        *,
        root: str,
        mode: Mode,
        limit: int | None = None,
        reading: ReadOptions = ReadOptions(),  # noqa: B008 - immutable
        remote: Settings | None = None,
    ) -> None:
        self.root = root
        self.mode: Mode = mode
        self.remote = remote  # None: the shards are here
        self.reading = reading
        self.ring = reading.ring()  # of all shards; None: their pages stay
        self.iterations: WeakSet[PrefetchIterator | RemotePrefetchIterator] = WeakSet()
        self.limit = limit or mapping_limit()
        self.closed = False
        self.identity: Identity | None = None  # once a state asked for it
        self.open_samples: list[Any] = [
            None
        ] * count  # samples of the shards that are open
        self.used: bytearray | None = None  # marks of the clock
        if count > self.limit:
            self.used = bytearray(count)
        self._hand = 0
        self.open_count = 0
        self._starts: list[int] | None = None
        self._member_starts: list[int] | None = None

    def __len__(self) -> int:
        return len(self.open_samples)

    @abstractmethod
    def open_shard(self, k: int) -> Any:
        """Open shard `k`, `keep` its samples and return them.

        Raises
        ------
        ClosedError
            The dataset is closed.
        FormatError, OSError
            As for `open_shard`.
        """

    @abstractmethod
    def counts(self) -> list[Counts]:
        """Return what each shard holds."""

    @abstractmethod
    def is_counted(self) -> bool:
        """Say whether it is known how much each shard holds."""

    @abstractmethod
    def data_bytes(self) -> int:
        """Return the sum of the sizes of all that samples hold."""

    @abstractmethod
    def mapped_ranges(self) -> list[tuple[int, int]]:
        """Return the address and the bytes of each shard that is mapped."""

    @abstractmethod
    def identify(self) -> Identity:
        """Return the identity of the dataset, the same wherever it lies."""

    def file_count(self) -> int:
        """Return how many files the shards are."""
        return len(self)

    def find_key(self, key: str) -> list[int] | None:
        """Return the positions of samples of a key; None: a table must be asked."""
        return None

    def verify(self) -> list[Any] | None:
        """Return the faults of a format that checks itself; None: it has tars."""
        return None

    def samples(self, k: int) -> Any:
        """Return the samples of shard `k`, which is opened if it is not."""
        samples = self.open_samples[k]
        if samples is None:
            samples = self.open_shard(k)
        if self.used is not None:
            self.used[k] = 1
        return samples

    def keep(self, k: int, samples: Any) -> Any:
        """Keep the samples of a shard that was opened; return those that are kept."""
        self.evict()
        faster = self.open_samples[k]  # of another thread: it may have been written to
        if faster is not None:
            return faster
        self.open_count += 1
        self.open_samples[k] = samples
        return samples

    def evict(self) -> None:
        """Evict one shard (CLOCK replacement)."""
        if self.used is None:
            return
        for _ in range(2 * len(self.open_samples)):  # the second round finds one
            if self.open_count < self.limit:
                return
            k = self._hand
            self._hand = (k + 1) % len(self.open_samples)
            if self.open_samples[k] is None:
                continue
            if self.used[k]:
                self.used[k] = 0
            else:
                self.open_samples[k] = None
                self.open_count -= 1
        self.open_count = sum(samples is not None for samples in self.open_samples)

    def sizes(self) -> list[int | None]:
        """Return how many samples each shard has, or Nones if that is not known."""
        if not self.is_counted():
            return [None] * len(self)
        return [count.samples for count in self.counts()]

    def map_shards(self, task: Callable[[int], Any], doing: str) -> Iterable[Any]:
        """Do something to each shard; yield the results in order."""
        return map(task, range(len(self)))

    def starts(self) -> list[int]:
        """Return where each shard's samples begin; and, last, how many there are."""
        if self._starts is None or self.closed:
            sizes = (count.samples for count in self.counts())
            self._starts = list(accumulate(sizes, initial=0))
        return self._starts

    def locator(self) -> SampleLocator:
        """Return what finds samples by position. It refers to this, not this to it."""
        return SampleLocator(
            self.starts(), self.open_samples, self.used, self.open_shard
        )

    def member_starts(self) -> list[int]:
        """Return where each shard's members begin; and, last, how many there are."""
        if self._member_starts is None:
            sizes = (count.members for count in self.counts())
            self._member_starts = list(accumulate(sizes, initial=0))
        return self._member_starts

    def close(self) -> None:
        """Close all shards; views stay valid, iterations raise."""
        self.closed = True
        for ahead in self.active_iterations():
            ahead.invalidate()
        # In place: locators refer to this list.
        self.open_samples[:] = [None] * len(self.open_samples)

    def iterate(
        self,
        feed: ItemStream,
        window: int,
        make: Callable[[Any], Any] | None = None,
        describe: Callable[[int, int], dict[str, Any]] | None = None,
        *,
        on_error: Callable[[Exception, int], bool] | None = None,
        skipped: int = 0,
    ) -> PrefetchIterator | RemotePrefetchIterator:
        """Return an iterator that prefetches the items of a stream."""
        reading = self.reading
        if self.remote is not None:
            fetched = RemotePrefetchIterator(
                feed,
                window if reading.prefetch else 0,
                reading.window_bytes,
                make=make,
                describe=describe,
                on_error=on_error,
                skipped=skipped,
            )
            self.iterations.add(fetched)
            return fetched
        ahead = PrefetchIterator(
            feed,
            window if reading.prefetch else 0,
            reading.window_bytes,
            ring=self.ring,
            make=make,
            describe=describe,
            on_error=on_error,
            skipped=skipped,
        )
        self.iterations.add(ahead)
        return ahead

    def active_iterations(self) -> list[PrefetchIterator | RemotePrefetchIterator]:
        """Return the iterations that there are."""
        while True:
            try:
                return list(self.iterations)
            except RuntimeError:  # another thread began one meanwhile
                continue
