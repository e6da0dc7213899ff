"""The ordered shards of a dataset: opened on first use, evicted, bounded in memory."""

from __future__ import annotations

import os
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from hashlib import blake2b
from itertools import accumulate
from typing import Any, NamedTuple
from weakref import WeakSet

from fastshard._core.ahead import Ahead
from fastshard._core.feeds import Feed
from fastshard._core.fetched import Fetched
from fastshard._core.pagering import PageRing
from fastshard._core.places import Places
from fastshard._core.source import LocalFile, MappedSource
from fastshard._util.progress import counted
from fastshard.dataset.order.state import Identity
from fastshard.errors import ClosedError, StaleIndexError
from fastshard.formats.sample import Samples
from fastshard.formats.tar import KeyRule, Mode, TarShard, open_tar
from fastshard.index import peek
from fastshard.index.dataset_lookup import Known
from fastshard.remote.file import RemoteFile, open_remote
from fastshard.remote.options import Settings
from fastshard.remote.urls import (
    base_of,
    common_folder,
    folder_of,
    is_folder,
    is_remote,
    joined,
    relative,
)

__all__ = [
    "WINDOW",
    "Counts",
    "Reading",
    "ShardSet",
    "identity_of",
    "mapping_limit",
    "memory_info",
    "root_of",
]


HEAD = 4096  # bytes of a shard that are looked at


def identity_of(shards: ShardSet) -> Identity:
    """Return the identity of a dataset's shards, the same wherever they lie.

    Of the first and the last shard the sizes and the first 4 KiB are looked at.
    """
    paths = shards.paths
    if shards.remote is not None:
        paths = [base_of(path) for path in paths]
    starts = array("q", shards.starts())
    samples = starts[-1]
    ends = [min(paths), max(paths)] if paths else [""]
    common = os.path.commonprefix(ends)  # noqa: RUF071 - of folders, after this
    below = common.replace(os.sep, "/").rfind("/") + 1
    names = "\n".join([path[below:] for path in paths]).replace(os.sep, "/")
    digest = blake2b(names.encode("utf-8", "surrogateescape"), digest_size=8)
    digest.update(f"\n{shards.options['key']}\n".encode())
    digest.update(starts.tobytes() if sys.byteorder == "little" else _swapped(starts))
    for path in dict.fromkeys(shards.paths[:1] + shards.paths[-1:]):
        with _opened(path, shards) as file:
            digest.update(f"\n{file.nbytes}\n".encode())
            digest.update(file.read_many([(0, min(HEAD, file.nbytes))])[0])
    name = os.path.basename(shards.root) or "".join(map(os.path.basename, paths[:1]))
    return Identity(name, samples, digest.hexdigest())


def _opened(path: str, shards: ShardSet) -> LocalFile | RemoteFile:
    return (
        LocalFile(path) if shards.remote is None else open_remote(path, shards.remote)
    )


def _swapped(numbers: array[int]) -> bytes:
    """Return the bytes that a little-endian machine has."""
    numbers.byteswap()
    return numbers.tobytes()


WINDOW = 32  # items ahead of an iteration
MOST_AHEAD = 64 << 20  # bytes ahead of it


class Reading(NamedTuple):
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


def memory_info(shards: ShardSet) -> dict[str, int | None]:
    """Return bytes that are mapped, resident and buffered."""
    ranges = shards.mapped()
    return {
        "mapped": sum(size for _, size in ranges),
        "resident": _resident(ranges),
        "buffered": sum(ahead.buffered for ahead in shards.running()),
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


MOST_MAPPED = 16_384  # shards
THREADS = 16  # that scan headers, which waits for disks


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


class ShardSet:
    """Shards in order; positions of samples and members that run through them.

    Of the open shards those that were not used for longest are let go when
    there are too many (clock replacement). Views keep theirs mapped.

    Parameters
    ----------
    paths : sequence of str
    index : str
        As for `open_shard`; a directory holds the indexes as the shards lie
        below `root`.
    root : str
        The directory that all shards lie below.
    mode, key, lower
        As for `open_shard`.
    limit : int, optional
        How many shards may be mapped at a time; otherwise `mapping_limit`.
    known : Known, optional
        What ``dataset.fsi`` says of exactly these shards.
    reading : Reading
    check_size : bool
        As for `open_shard`.
    remote : Settings, optional
        How shards are read that are not here.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        index: str,
        root: str,
        mode: Mode,
        key: KeyRule,
        lower: bool,
        limit: int | None = None,
        known: Known | None = None,
        reading: Reading = Reading(),  # noqa: B008 - immutable
        check_size: bool = False,
        remote: Settings | None = None,
    ) -> None:
        count = len(paths)
        self.paths = list(paths)
        self.root = root
        self.index = index
        self.options: dict[str, Any] = {"mode": mode, "key": key, "lower": lower}
        self.options |= {"prefetch": reading.prefetch, "check_size": check_size}
        self.options |= {"remote": remote}
        self.remote = remote  # None: the shards are here
        self.reading = reading
        self.ring = reading.ring()  # of all shards; None: their pages stay
        self.verifier: Callable[[], list[Any]] | None = None  # of another format
        self.iterations: WeakSet[Ahead | Fetched] = WeakSet()
        self.limit = limit or mapping_limit()
        self.known = known
        self.closed = False
        self._given_up = False
        self.identity: Any = None  # once a state asked for it
        self.open: list[Samples | None] = [None] * count
        self.used: bytearray | None = None  # marks of the clock
        if count > self.limit:
            self.used = bytearray(count)
        self.hand = 0
        self.opened = 0
        self._counts: list[Counts] | None = None
        if known is not None:
            self._counts = [Counts(*counts) for counts in known.counts()]
        self._starts: list[int] | None = None
        self._member_starts: list[int] | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def samples(self, k: int) -> Samples:
        """Return the samples of shard `k`, which is opened if it is not."""
        samples = self.open[k]
        if samples is None:
            samples = self.bring(k)
        if self.used is not None:
            self.used[k] = 1
        return samples

    def shard(self, k: int) -> TarShard:
        """Return shard `k`, which is opened if it is not."""
        shard = self.samples(k).shard
        assert isinstance(shard, TarShard)
        return shard

    def bring(self, k: int) -> Samples:
        """Open shard `k`.

        Raises
        ------
        StaleIndexError
            It is not what ``dataset.fsi`` says.
        ClosedError
            The dataset is closed.
        FormatError, OSError
            As for `open_shard`.
        """
        if self.closed:
            raise ClosedError("the dataset is closed")
        path = self.paths[k]
        shard = open_tar(
            path,
            index=self.index_of(k),
            progress=self._go_on,
            ring=self.ring,
            **self.options,
        )
        samples = shard.samples
        if self.known is not None:
            with shard.file() as file:
                table, mark = shard.parts()[1], shard.fingerprint
                self.known.check(k, path, len(samples), table, file, mark)
        elif self._counts is not None and self._counts[k] != (
            found := Counts(len(samples), len(shard))
        ):
            raise StaleIndexError(
                f"it has {found.samples:,} samples and {found.members:,} members, and "
                f"had {self._counts[k].samples:,} and {self._counts[k].members:,}",
                path,
                0,
            )
        self.make_room()
        faster = self.open[k]  # of another thread: it may have been written to
        if faster is not None:
            return faster
        self.opened += 1
        self.open[k] = samples
        return samples

    def make_room(self) -> None:
        """Let go of a shard that was not used since the clock's hand passed."""
        if self.used is None:
            return
        for _ in range(2 * len(self.paths)):  # the second round finds one
            if self.opened < self.limit:
                return
            k = self.hand
            self.hand = (k + 1) % len(self.paths)
            if self.open[k] is None:
                continue
            if self.used[k]:
                self.used[k] = 0
            else:
                self.open[k] = None
                self.opened -= 1
        self.opened = sum(samples is not None for samples in self.open)

    def index_of(self, k: int) -> str:
        """Return the ``index=`` that shard `k` is opened with."""
        if self.index in ("auto", "none") or not is_folder(self.index):
            return self.index
        if self.remote is not None:
            below = relative(folder_of(self.paths[k]) + "/", self.root)
            if is_remote(self.index):
                return joined(self.index, below)
            return os.path.normpath(os.path.join(self.index, below))
        below = os.path.relpath(os.path.dirname(self.paths[k]), self.root)
        return os.path.normpath(os.path.join(self.index, below))

    def without(self, gone: Collection[int]) -> ShardSet:
        """Return the set without some shards; opens its own."""
        kept = [k for k in range(len(self)) if k not in gone]
        known = self.known
        if known is not None:
            known = known.some(kept)
        shards = ShardSet(
            [self.paths[k] for k in kept],
            root=self.root,
            known=known,
            **(self.state() | {"index": self.index}),
        )
        if self._counts is not None:
            shards._counts = [self._counts[k] for k in kept]
        shards.ring = self.ring
        return shards

    def is_counted(self) -> bool:
        """Say whether it is known how much each shard holds."""
        return self._counts is not None

    def sizes(self) -> list[int | None]:
        """Return how many samples each shard has, or Nones if that is not known."""
        if self._counts is None:
            return [None] * len(self)
        return [count.samples for count in self._counts]

    def counts(self) -> list[Counts]:
        """Return what each shard holds; looks for what no index says, in parallel."""
        if self.closed:
            raise ClosedError("the dataset is closed")
        if self._counts is None:
            self._counts = list(self.each(self.count, "counting"))
        return self._counts

    def count(self, k: int) -> Counts:
        samples = self.open[k]
        if samples is None and self.remote is None:
            index = self.index_of(k)
            if index == "auto" or os.path.isdir(index):
                folder = None if index == "auto" else index
                found = peek(self.paths[k], folder, self.options["key"] == "last")
                if found is not None:
                    return Counts(*found)
        if samples is None:
            samples = self.samples(k)
        return Counts(len(samples), len(samples.shard))

    def each(self, task: Callable[[int], Any], doing: str) -> Iterable[Any]:
        """Do something to each shard in threads; yield the results in order."""
        if self.closed:
            raise ClosedError("the dataset is closed")
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(THREADS) as pool:
            try:
                yield from counted(pool.map(task, range(len(self))), len(self), doing)
            except BaseException:
                self._given_up = True
                pool.shutdown(cancel_futures=True)
                raise
            finally:
                self._given_up = False

    def _go_on(self, _: int) -> None:
        """End the scan of a shard that nobody waits for any more."""
        if self._given_up:
            raise ClosedError("nobody waits for this shard")

    def starts(self) -> list[int]:
        """Return where each shard's samples begin; and, last, how many there are."""
        if self._starts is None or self.closed:
            sizes = (count.samples for count in self.counts())
            self._starts = list(accumulate(sizes, initial=0))
        return self._starts

    def places(self) -> Places:
        """Return what finds samples by position. It refers to this, not this to it."""
        return Places(self.starts(), self.open, self.used, self.bring)

    def file_count(self) -> int:
        """Return how many files the shards are."""
        return len(self)

    def mapped(self) -> list[tuple[int, int]]:
        """Return the address and the bytes of each shard that is mapped."""
        ranges = []
        for samples in self.open:
            if samples is not None and not samples.shard.closed:
                source = samples.shard.parts()[0]
                if isinstance(source, MappedSource):
                    ranges.append((source.address, source.nbytes))
        return ranges

    def find_key(self, key: str) -> list[int] | None:
        """Return the positions of samples of a key; None: a table must be asked."""
        return None

    def identify(self) -> Identity | None:
        """Say what dataset it is; None: the shards' bytes tell."""
        return None

    def member_starts(self) -> list[int]:
        """Return the same for members."""
        if self._member_starts is None:
            sizes = (count.members for count in self.counts())
            self._member_starts = list(accumulate(sizes, initial=0))
        return self._member_starts

    def data_bytes(self) -> int:
        """Return the sum of all members' sizes; opens shards that no index counts."""
        if self.known is not None:
            return self.known.data_bytes()
        sums = self.each(
            lambda k: self.shard(k).parts()[1].data_bytes, "adding up sizes"
        )
        return sum(sums)

    def member(self, i: int) -> tuple[TarShard, int]:
        """Return the shard that holds member `i` of all, and its position there."""
        starts = self.member_starts()
        k = bisect_right(starts, i) - 1
        return self.shard(k), i - starts[k]

    def close(self) -> None:
        """Let go of all shards; views stay valid, iterations raise."""
        self.closed = True
        for ahead in self.running():
            ahead.refuse()
        self.open[:] = [None] * len(self.paths)  # `places` has the same list

    def iterate(
        self,
        feed: Feed,
        window: int,
        make: Callable[[Any], Any] | None = None,
        describe: Callable[[int, int], dict[str, Any]] | None = None,
        *,
        on_error: Callable[[Exception, int], bool] | None = None,
        skipped: int = 0,
    ) -> Ahead | Fetched:
        """Return an iterator over a feed that brings what comes next; see `Ahead`."""
        reading = self.reading
        if self.remote is not None:
            fetched = Fetched(
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
        ahead = Ahead(
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

    def running(self) -> list[Ahead | Fetched]:
        """Return the iterations that there are."""
        while True:
            try:
                return list(self.iterations)
            except RuntimeError:  # another thread began one meanwhile
                continue

    def state(self) -> dict[str, Any]:
        """Return the options that make the same set of the same paths."""
        index = self.index
        if index not in ("auto", "none") and not is_remote(index):
            index = os.path.abspath(index)
        options = {key: self.options[key] for key in ("mode", "key", "lower", "remote")}
        return options | {
            "index": index,
            "limit": self.limit,
            "reading": self.reading,
            "check_size": self.options["check_size"],
        }

    def __reduce__(self) -> tuple[Any, ...]:
        if self.closed:
            raise ClosedError("the dataset is closed")
        root = self.root
        state = self.state()
        below, counts = None, None
        if self.remote is not None:
            below = self.paths
        elif self.known is None or self.known.numbers is not None:
            root = os.path.abspath(root)
            whole = map(os.path.abspath, self.paths)
            below = [os.path.relpath(path, root) for path in whole]
        if self.known is None and self._counts is not None:
            counts = [tuple(count) for count in self._counts]
        return _again, (root, below, state, counts, self.known)


def _again(
    root: str,
    below: list[str] | None,
    state: dict[str, Any],
    counts: list[tuple[int, int]] | None,
    known: Known | None,
) -> ShardSet:
    """Make a set of what one pickled: what ``dataset.fsi`` says is left to it."""
    if below is None:
        assert known is not None
        below = [shard.name for shard in known.file.shards]
    if state["remote"] is not None:
        paths = below
    else:
        paths = [os.path.join(root, path) for path in below]
    shards = ShardSet(paths, root=root, known=known, **state)
    if counts is not None:
        shards._counts = [Counts(*count) for count in counts]
    return shards


def root_of(paths: Sequence[str]) -> str:
    """Return the directory that all shards lie below; of URLs the folder."""
    if is_remote(paths[0]):
        return common_folder(list(paths))
    return os.path.commonpath([os.path.dirname(os.path.abspath(p)) for p in paths])
