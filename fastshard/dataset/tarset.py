"""The tar shards of a dataset, and what its indexes say of them."""

from __future__ import annotations

import os
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import blake2b
from typing import Any

from fastshard._core.io.source import LocalFile, MappedSource
from fastshard._util.progress import iterate_with_bar
from fastshard.dataset.order.state import Identity
from fastshard.dataset.shardset import Counts, ReadOptions, ShardSet
from fastshard.errors import ClosedError, FastshardError, StaleIndexError
from fastshard.formats.sample import Samples
from fastshard.formats.tar import (
    KeyRule,
    Mode,
    TarOptions,
    TarShard,
    open_local_tar,
    open_remote_tar,
)
from fastshard.index.dataset_lookup import DatasetIndexView
from fastshard.index.sidecar import peek_counts
from fastshard.remote.file import RemoteFile, open_remote
from fastshard.remote.options import Settings
from fastshard.remote.urls import (
    Url,
    base_of,
    common_folder,
    folder_of,
    is_folder,
    is_remote,
    join_url,
    parse_path_or_url,
    relative_path,
)

__all__ = ["TarSet", "common_root", "require_tars"]

HEAD = 4096  # bytes of a shard that are looked at
THREADS = 16  # that scan headers, which waits for disks


class TarSet(ShardSet):
    """Tar shards in order; positions of samples and members that run through them.

    Parameters
    ----------
    paths : sequence of str
    index : str
        As for `open_shard`; a directory holds the indexes as the shards lie
        below `root`.
    root, mode, limit, reading, remote
        As for `ShardSet`.
    key, lower
        As for `open_shard`.
    known : DatasetIndexView, optional
        What ``dataset.fsi`` says of exactly these shards.
    check_size : bool
        As for `open_shard`.
    """

    format = "tar"

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
        known: DatasetIndexView | None = None,
        reading: ReadOptions = ReadOptions(),  # noqa: B008 - immutable
        check_size: bool = False,
        remote: Settings | None = None,
    ) -> None:
        super().__init__(
            len(paths),
            root=root,
            mode=mode,
            limit=limit,
            reading=reading,
            remote=remote,
        )
        self.paths = list(paths)
        self.index = index
        self._indexes: str | Url | None = None  # the folder that `index` names
        if index not in ("auto", "none") and is_folder(index):
            self._indexes = parse_path_or_url(index)
        self.options: dict[str, Any] = {"mode": mode, "key": key, "lower": lower}
        self.options |= {"prefetch": reading.prefetch, "check_size": check_size}
        self.options |= {"remote": remote}
        self.known = known
        self._given_up = False
        self._counts: list[Counts] | None = None
        if known is not None:
            self._counts = [Counts(*counts) for counts in known.counts()]

    def shard(self, k: int) -> TarShard:
        """Return shard `k`, which is opened if it is not."""
        shard = self.samples(k).shard
        assert isinstance(shard, TarShard)
        return shard

    def open_shard(self, k: int) -> Samples:
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
        open_tar = open_local_tar if self.remote is None else open_remote_tar
        shard = open_tar(
            path,
            TarOptions(self.index_option(k), **self.options),
            progress=self._go_on,
            ring=self.ring,
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
        kept: Samples = self.keep(k, samples)
        return kept

    def index_option(self, k: int) -> str:
        """Return the ``index=`` that shard `k` is opened with."""
        folder = self._indexes
        if folder is None:
            return self.index
        if self.remote is None:
            below = os.path.relpath(os.path.dirname(self.paths[k]), self.root)
        else:
            below = relative_path(folder_of(self.paths[k]) + "/", self.root)
            if isinstance(folder, Url):
                return join_url(folder.text, below)
        return os.path.normpath(os.path.join(self.index, below))

    def without(self, gone: Collection[int]) -> TarSet:
        """Return the set without some shards; opens its own."""
        kept = [k for k in range(len(self)) if k not in gone]
        known = self.known
        if known is not None:
            known = known.some(kept)
        shards = TarSet(
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

    def counts(self) -> list[Counts]:
        """Return what each shard holds; looks for what no index says, in parallel."""
        if self.closed:
            raise ClosedError("the dataset is closed")
        if self._counts is None:
            self._counts = list(self.map_shards(self.count, "counting"))
        return self._counts

    def count(self, k: int) -> Counts:
        samples = self.open_samples[k]
        if samples is None and self.remote is None:
            index = self.index_option(k)
            if index == "auto" or os.path.isdir(index):
                folder = None if index == "auto" else index
                found = peek_counts(
                    self.paths[k], folder, self.options["key"] == "last"
                )
                if found is not None:
                    return Counts(*found)
        if samples is None:
            samples = self.samples(k)
        return Counts(len(samples), len(samples.shard))

    def map_shards(self, task: Callable[[int], Any], doing: str) -> Iterable[Any]:
        """Do something to each shard in threads; yield the results in order."""
        if self.closed:
            raise ClosedError("the dataset is closed")
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(THREADS) as pool:
            try:
                results = pool.map(task, range(len(self)))
                yield from iterate_with_bar(results, len(self), doing)
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

    def mapped_ranges(self) -> list[tuple[int, int]]:
        """Return the address and the bytes of each shard that is mapped."""
        ranges = []
        for samples in self.open_samples:
            if samples is not None and not samples.shard.closed:
                source = samples.shard.parts()[0]
                if isinstance(source, MappedSource):
                    ranges.append((source.address, source.nbytes))
        return ranges

    def identify(self) -> Identity:
        """Return the identity of the shards, the same wherever they lie.

        Of the first and the last shard the sizes and the first 4 KiB are looked at.
        """
        paths = self.paths
        if self.remote is not None:
            paths = [base_of(path) for path in paths]
        starts = array("q", self.starts())
        samples = starts[-1]
        ends = [min(paths), max(paths)] if paths else [""]
        common = os.path.commonprefix(ends)  # noqa: RUF071 - of folders, after this
        below = common.replace(os.sep, "/").rfind("/") + 1
        names = "\n".join([path[below:] for path in paths]).replace(os.sep, "/")
        digest = blake2b(names.encode("utf-8", "surrogateescape"), digest_size=8)
        digest.update(f"\n{self.options['key']}\n".encode())
        digest.update(
            starts.tobytes() if sys.byteorder == "little" else _swapped(starts)
        )
        for path in dict.fromkeys(self.paths[:1] + self.paths[-1:]):
            with self._file(path) as file:
                digest.update(f"\n{file.nbytes}\n".encode())
                digest.update(file.read_many([(0, min(HEAD, file.nbytes))])[0])
        name = os.path.basename(self.root) or "".join(map(os.path.basename, paths[:1]))
        return Identity(name, samples, digest.hexdigest())

    def _file(self, path: str) -> LocalFile | RemoteFile:
        if self.remote is None:
            return LocalFile(path)
        return open_remote(path, self.remote)

    def data_bytes(self) -> int:
        """Return the sum of all members' sizes; opens shards that no index counts."""
        if self.known is not None:
            return self.known.data_bytes()
        sums = self.map_shards(
            lambda k: self.shard(k).parts()[1].data_bytes, "adding up sizes"
        )
        return sum(sums)

    def member(self, i: int) -> tuple[TarShard, int]:
        """Return the shard that holds member `i` of all, and its position there."""
        starts = self.member_starts()
        k = bisect_right(starts, i) - 1
        return self.shard(k), i - starts[k]

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
    known: DatasetIndexView | None,
) -> TarSet:
    """Make a set of what one pickled: what ``dataset.fsi`` says is left to it."""
    if below is None:
        assert known is not None
        below = [shard.name for shard in known.file.shards]
    if state["remote"] is not None:
        paths = below
    else:
        paths = [os.path.join(root, path) for path in below]
    shards = TarSet(paths, root=root, known=known, **state)
    if counts is not None:
        shards._counts = [Counts(*count) for count in counts]
    return shards


def require_tars(shards: ShardSet) -> TarSet:
    """Return the tar shards of a dataset.

    Raises
    ------
    FastshardError
        It is of another format.
    """
    if not isinstance(shards, TarSet):
        raise FastshardError(
            f"{shards.root} is a {shards.format} dataset: its samples' fields lie in "
            "shards of their own, which have no samples"
        )
    return shards


def common_root(paths: Sequence[str]) -> str:
    """Return the deepest directory above all shards; for URLs, the deepest folder."""
    if is_remote(paths[0]):
        return common_folder(list(paths))
    return os.path.commonpath([os.path.dirname(os.path.abspath(p)) for p in paths])


def _swapped(numbers: array[int]) -> bytes:
    """Return the bytes that a little-endian machine has."""
    numbers.byteswap()
    return numbers.tobytes()
