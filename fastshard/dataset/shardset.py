"""Shard sets: the ordered shards of a dataset, opened on first use and evicted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from weakref import WeakSet

from fastshard._core.dataset.iterate import PrefetchIterator
from fastshard._core.dataset.remote_prefetch import RemotePrefetchIterator
from fastshard._core.dataset.shard import SampleDecoder
from fastshard._core.dataset.streams import ItemStream, SampleLocator
from fastshard._core.io.paging import PageRing
from fastshard._core.io.source import MappedSource, RemoteSource
from fastshard._util.lazy import lazy
from fastshard._util.processes.forks import LockOwner
from fastshard._util.progress import iterate_with_bar
from fastshard.dataset.display.text import Summary, describe_paths
from fastshard.dataset.order.state import Identity
from fastshard.errors import ClosedError, FastshardError
from fastshard.formats.codec import FieldCodec
from fastshard.formats.decoders import Decoder, kind_of_decoder, own_decoder
from fastshard.formats.sample import FIELDS
from fastshard.formats.tar import Mode
from fastshard.index.dataset_file import DatasetIndexView
from fastshard.index.freshness import FirstVersions, Opening
from fastshard.loader.threads.background import Background

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard.remote.options import Settings

__all__ = [
    "FIRST_SAMPLES",
    "Counts",
    "ReadOptions",
    "ShardSet",
    "mapping_limit",
    "memory_info",
]

MAX_WINDOW_BYTES = 64 << 20
MAX_MAPPED = 16_384  # shards
THREADS = 16  # open shards and scan headers, which waits for disks
MOST_THREADS = 64  # that open remote shards
FIRST_SAMPLES = 8  # examined for the fields
FIRST_SHARDS = 4  # searched for a field that a sample lacks


class ReadOptions(NamedTuple):
    """The options of `fastshard.open` for memory and prefetch.

    Attributes
    ----------
    prefetch : bool
        Bring bytes into memory before they are touched.
    max_memory : int or None
        Bytes of mapped shards that may be resident; None: no limit.
    keep_cache : bool
        Leave pages that were read in the page cache.
    """

    prefetch: bool = True
    max_memory: int | None = None
    keep_cache: bool = True

    @property
    def window_bytes(self) -> int:
        """Bytes prefetched ahead of an iteration."""
        if self.max_memory is None:
            return MAX_WINDOW_BYTES
        return max(1, min(MAX_WINDOW_BYTES, self.max_memory // 4))

    def make_ring(self) -> PageRing | None:
        """Return the ring that releases pages of mapped shards, or None for no limit.

        The ring holds half of `max_memory`: the window ahead of an iteration and as
        much behind it. The other half is a reserve for uncounted pages: batches
        above a quarter of the limit, and reads by other threads.
        """
        if self.max_memory is None and self.keep_cache:
            return None
        limit = 4 * MAX_WINDOW_BYTES if self.max_memory is None else self.max_memory
        return PageRing(limit // 2, evicts=not self.keep_cache)


def memory_info(shards: ShardSet) -> dict[str, int | None]:
    """Return the mapped, resident and buffered bytes of a shard set."""
    ranges = shards.mapped_ranges()
    buffered = sum(iterator.buffered for iterator in shards.active_iterations())
    return {
        "mapped": sum(size for _, size in ranges),
        "resident": _resident_bytes(ranges),
        "buffered": buffered,
    }


def _resident_bytes(ranges: list[tuple[int, int]]) -> int | None:
    """Add up the resident bytes of mappings, by start address; None: not Linux."""
    starts = {address for address, _ in ranges}
    resident, is_ours = 0, False
    try:
        with open("/proc/self/smaps", "rb") as file:
            for line in file:
                if line[:1].isalpha() and line[:1].isupper():
                    if is_ours and line.startswith(b"Rss:"):
                        resident += int(line.split()[1]) << 10
                else:
                    is_ours = int(line.split(b"-")[0], 16) in starts
    except OSError:
        return None
    return resident


class Counts(NamedTuple):
    """The numbers of samples and members of a shard."""

    samples: int
    members: int


@cache
def mapping_limit() -> int:
    """Return the number of shards that may be mapped at a time.

    A shard and its index take two of the process's ``vm.max_map_count`` mappings;
    half of them are left to other libraries.
    """
    try:
        with open("/proc/sys/vm/max_map_count") as file:
            return max(1, min(MAX_MAPPED, int(file.read()) // 4))
    except (OSError, ValueError):  # not Linux
        return MAX_MAPPED


class ShardSet(LockOwner, ABC):
    """The shards of one dataset, in order; positions of samples run through them.

    Subclasses open and count the shards of a format. This class keeps the open ones
    and evicts by the clock algorithm beyond `limit`. Views keep an evicted shard
    mapped; it is opened again only if it is the same file.

    Attributes
    ----------
    format : str
        The name of the format.
    paths : list of str
        The shards' paths or URLs.
    """

    format: ClassVar[str]
    examined: ClassVar[int] = FIRST_SAMPLES  # samples whose fields are compared
    paths: list[str]
    index_view: DatasetIndexView | None = None  # the index of all shards, if any
    _summary: Summary | None = None  # once shown

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
        super().__init__()  # the lock is that of the open shards
        self.root = root
        self.mode: Mode = mode
        self.remote = remote  # None: local shards
        self.reading = reading
        # Shared by all shards; None: no limit.
        self.ring: PageRing | None = reading.make_ring()
        self.iterations: WeakSet[PrefetchIterator | RemotePrefetchIterator] = WeakSet()
        self.limit: int = limit or mapping_limit()
        self.closed: bool = False
        self.is_cancelled: bool = False  # `map_shards` ends early
        self.identity: Identity | None = None  # computed for the first state
        self.open_samples: list[Any] = [None] * count  # None: a closed shard
        self.used: bytearray | None = None  # the clock's reference bits
        if count > self.limit:
            self.used = bytearray(count)
        self._clock_hand = 0
        self._found_fields: dict[str, bool] = {}  # by `has_field`
        self._field_sets: Counter[frozenset[str]] | None = None  # once requested
        self.open_count: int = 0
        self._starts: list[int] | None = None
        self._member_starts: list[int] | None = None

    def __len__(self) -> int:
        return len(self.open_samples)

    @lazy
    def versions(self) -> FirstVersions:
        """The versions of the files that shards had when they were first opened."""
        return FirstVersions(len(self))

    @lazy
    def background(self) -> Background:
        """The threads that open shards ahead."""
        background = Background()
        background.is_closed = self.closed
        return background

    @abstractmethod
    def open_shard(self, k: int) -> Any:
        """Open shard `k`, `keep` its samples and return them."""

    @abstractmethod
    def counts(self) -> list[Counts]:
        """Return the counts of each shard."""

    @abstractmethod
    def is_counted(self) -> bool:
        """Return whether the counts are known without opening shards."""

    @abstractmethod
    def data_bytes(self) -> int:
        """Return the total size of all samples' fields, in bytes."""

    @property
    def opens_ahead(self) -> bool:
        """True if an iteration opens the next shards ahead."""
        return not self.is_local and self.reading.prefetch and self.used is None

    @property
    def is_local(self) -> bool:
        """True if shards are local files; others are read by ranges."""
        return self.remote is None

    def mapped_ranges(self) -> list[tuple[int, int]]:
        """Return the address and length in bytes of each mapped shard."""
        ranges = []
        for samples in self.open_samples:
            if samples is not None and not samples.shard.closed:
                source = samples.shard.parts()[0]
                if isinstance(source, MappedSource):
                    ranges.append((source.address, source.nbytes))
        return ranges

    @abstractmethod
    def identify(self) -> Identity:
        """Return the identity of the dataset; it does not depend on the root."""

    def shard(self, k: int) -> Any:
        """Return shard `k`; open it if needed."""
        raise self.unlike_tars()

    def without(self, dropped: Collection[int]) -> ShardSet:
        """Return a set without some shards."""
        raise self.unlike_tars()

    def raw(self) -> ShardSet:
        """Return the set of the same shards as plain tars."""
        return self

    def unlike_tars(self) -> FastshardError:
        """Return the error of an operation that needs tar shards."""
        return FastshardError(
            f"expected a dataset of tar shards, got a {self.format} dataset: "
            f"{self.root}; its shards hold fields, not samples"
        )

    def file_count(self) -> int:
        """Return the number of files."""
        return len(self)

    def summary(self) -> Summary:
        """Return facts from local indexes; opens no shard and asks no server.

        It does not depend on counts of this object, so that equal sets in several
        processes have equal ones.
        """
        if self._summary is None:
            self._summary = self.summarize()
        return self._summary

    def summarize(self) -> Summary:
        """Compute the `summary`."""
        return Summary(describe_paths(self.paths, self.root), len(self))

    def kind_of(self, field: str, decoders: Mapping[str, Decoder] | None) -> str:
        """Return the kind of a field by its name; see `FieldInfo`."""
        own = own_decoder(field, decoders)
        return self.field_codec().kind(field) if own is None else kind_of_decoder(own)

    def field_codec(self) -> FieldCodec:
        """Return the codec of the first sample's fields."""
        return FIELDS

    def field_names(self) -> list[str]:
        """Return the fields of the first shard that has samples; opens it."""
        return list(dict.fromkeys(chain.from_iterable(self.first_samples())))

    def known_fields(self) -> Collection[str] | None:
        """Return all fields that samples may have; None: shards must be opened."""
        return None

    def has_field(self, field: str) -> bool:
        """Return whether a sample of the first shards has a field; reads names only.

        True if they cannot be opened, or have no samples.
        """
        known = self.known_fields()
        if known is not None:
            return field in known
        found = self._found_fields.get(field)
        if found is None:
            found = self._found_fields[field] = self._find_field(field)
        return found

    def _find_field(self, field: str) -> bool:
        is_empty = True
        for k in range(min(len(self), FIRST_SHARDS)):
            try:
                having = self.samples(k).having((field,))
            except (FastshardError, OSError):
                return True
            if 1 in having:
                return True
            is_empty = is_empty and not having
        return is_empty

    def field_sets(self) -> Mapping[frozenset[str], int]:
        """Return the fields of the first samples, with the number of such samples.

        Those of the first shard with samples; unreadable samples are left out.
        """
        if self._field_sets is None:
            found: Counter[frozenset[str]] = Counter()
            samples: Sequence[Any] = ()
            with suppress(FastshardError, OSError):
                samples = next(filter(len, map(self.samples, range(len(self)))), ())
            for i in range(min(self.examined, len(samples))):
                with suppress(FastshardError, OSError):
                    found[frozenset(samples[i].keys())] += 1
            self._field_sets = found
        return self._field_sets

    def first_samples(self) -> list[Any]:
        """Return the first few samples of the first shard that has any."""
        for k in range(len(self)):
            samples = self.samples(k)
            if len(samples):
                return [samples[i] for i in range(min(FIRST_SAMPLES, len(samples)))]
        return []

    def find_key(self, key: str) -> list[int] | None:
        """Return the positions of samples with a key, or None without a key index."""
        return None

    def stack_columns(
        self,
        locator: SampleLocator,
        positions: Any,
        fields: tuple[str, ...],
    ) -> dict[str, NDArray[Any]]:
        """Return fields of many samples that are arrays of one layout, by name.

        New arrays in the order of `fields`; some may be missing. A format of rows reads
        each row once for all fields; by default no field is returned, and the caller
        reads them one by one.
        """
        return {}

    def verify(self, *, hashes: bool = False) -> list[Any] | None:
        """Return the faults that the format's own check finds; None: no check."""
        return None

    def samples(self, k: int) -> Any:
        """Return the samples of shard `k`; open it if needed."""
        samples = self.open_samples[k]
        if samples is None:
            samples = self.open_shard(k)
        if self.used is not None:
            self.used[k] = 1
        return samples

    def keep(self, k: int, samples: Any, opening: Opening | None = None) -> Any:
        """Register the samples of an opened shard; return the registered ones.

        Samples registered by another thread take precedence: their private pages may be
        modified. `opening` is the check of the shard's file.
        """
        with self.lock:
            if not self.closed:
                first = self.open_samples[k]
                if first is not None:
                    return first
                self._evict()
                if opening is not None:
                    opening.settle()
                self.open_count += 1
                self.open_samples[k] = samples
                return samples
        self.close_samples(samples)
        raise self.closed_error()

    def close_samples(self, samples: Any) -> None:
        """Close the shard of some samples."""
        samples.shard.close()

    def drop(self, k: int) -> None:
        """Evict shard `k`, if it is open."""
        with self.lock:
            if self.open_samples[k] is not None:
                self.open_samples[k] = None
                self.open_count -= 1

    def _evict(self) -> None:
        """Evict one shard (CLOCK replacement), under the lock."""
        if self.used is None:
            return
        for _ in range(2 * len(self.open_samples)):  # the second round finds one
            if self.open_count < self.limit:
                return
            k = self._clock_hand
            self._clock_hand = (k + 1) % len(self.open_samples)
            if self.open_samples[k] is None:
                continue
            if self.used[k]:
                self.used[k] = 0
            else:
                self.open_samples[k] = None
                self.open_count -= 1
        self.open_count = sum(samples is not None for samples in self.open_samples)

    def drop_complete(self) -> None:
        """Evict shards that are read by ranges although the cache has all of them.

        They are mapped when they are opened again.
        """
        if self.remote is None or self.remote.cache_dir is None:
            return
        for k, samples in enumerate(self.open_samples):
            if samples is None or samples.shard.closed:
                continue
            if is_complete(samples.shard.parts()[0]):
                self.drop(k)

    def sizes(self) -> list[int | None]:
        """Return each shard's number of samples, or Nones before they are counted."""
        if not self.is_counted():
            return [None] * len(self)
        return [count.samples for count in self.counts()]

    def map_shards(self, task: Callable[[int], Any], label: str) -> Iterable[Any]:
        """Call a task with each shard's number, in threads; yield results in order.

        An error or an early end cancels the tasks that have not begun, and sets
        `is_cancelled` for those that run.
        """
        self.check_open()
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(self.opener_count(), len(self) or 1)) as pool:
            try:
                results = pool.map(task, range(len(self)))
                yield from iterate_with_bar(results, len(self), label)
            except BaseException:
                self.is_cancelled = True
                pool.shutdown(cancel_futures=True)
                raise
            finally:
                self.is_cancelled = False

    def opener_count(self) -> int:
        """Return the number of threads that open shards at the same time.

        Opening a remote shard is a few small requests one after another.
        """
        if self.remote is None:
            return THREADS
        return min(self.remote.openers, MOST_THREADS)

    def check_open(self) -> None:
        """Raise ClosedError if the dataset is closed."""
        if self.closed:
            raise self.closed_error()

    def closed_error(self) -> ClosedError:
        """Return the error of a use after `close`."""
        return ClosedError("the dataset is closed: open it again")

    def starts(self) -> list[int]:
        """Return the position of each shard's first sample, then the total."""
        if self._starts is None or self.closed:
            sizes = (count.samples for count in self.counts())
            self._starts = list(accumulate(sizes, initial=0))
        return self._starts

    def locator(self) -> SampleLocator:
        """Return a locator of samples by position; the set keeps no reference to it."""
        return SampleLocator(
            self.starts(), self.open_samples, self.used, self.open_shard
        )

    def sample_decoder(self) -> SampleDecoder | None:
        """Return a faster function for ``sample.decode()``, or None."""
        return None

    def member_starts(self) -> list[int]:
        """Return the position of each shard's first member, then the total."""
        if self._member_starts is None:
            sizes = (count.members for count in self.counts())
            self._member_starts = list(accumulate(sizes, initial=0))
        return self._member_starts

    def close(self) -> None:
        """Close all shards; views stay valid, iterations raise.

        A shard that another thread is opening is closed by `keep`. Work ahead has
        ended: no thread writes to a disk afterwards.
        """
        with self.lock:
            self.closed = True
            # In place: locators refer to this list.
            self.open_samples[:] = [None] * len(self.open_samples)
            self.open_count = 0
        for iterator in self.active_iterations():
            iterator.invalidate()
        self.background.close()

    def stream(self, sizes: list[int | None]) -> Callable[[int], Any] | None:
        """Return the function that opens shards for an iteration in order, or None."""
        return None

    def iterate(
        self,
        stream: ItemStream,
        window: int,
        make: Callable[[Any], Any] | None = None,
        describe: Callable[[int, int], dict[str, Any]] | None = None,
        *,
        on_error: Callable[[Exception, int], bool] | None = None,
        skipped: int = 0,
    ) -> PrefetchIterator | RemotePrefetchIterator:
        """Return an iterator that prefetches the items of a stream."""
        iterator: PrefetchIterator | RemotePrefetchIterator
        options: dict[str, Any] = {
            "make": make,
            "describe": describe,
            "on_error": on_error,
            "skipped": skipped,
        }
        ahead = window if self.reading.prefetch else 0
        most = self.reading.window_bytes
        if self.is_local:
            iterator = PrefetchIterator(stream, ahead, most, ring=self.ring, **options)
        else:
            iterator = RemotePrefetchIterator(stream, ahead, most, **options)
        self.iterations.add(iterator)
        return iterator

    def active_iterations(self) -> list[PrefetchIterator | RemotePrefetchIterator]:
        """Return the iterators that are alive."""
        while True:
            try:
                return list(self.iterations)
            except RuntimeError:  # another thread added one meanwhile
                continue


def is_complete(source: object) -> bool:
    """Return whether a source is a remote file of which the cache has all bytes."""
    entry = source.file.entry if isinstance(source, RemoteSource) else None
    return entry is not None and not entry.missing(0, entry.nbytes)
