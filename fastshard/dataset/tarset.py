"""Tar shard sets: opened through their indexes, counted, identified, pickled."""

from __future__ import annotations

import os
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fastshard._core.io.source import LocalFile
from fastshard._util.lazy import lazy
from fastshard._util.paths.urls import (
    HTTP,
    Url,
    base_of,
    common_folder,
    is_folder,
    is_remote,
    is_url,
    join_url,
    parse_path_or_url,
    relative_path,
)
from fastshard.dataset.display.text import Summary, describe_paths
from fastshard.dataset.order.state import Identity
from fastshard.dataset.shardset import Counts, ReadOptions, ShardSet
from fastshard.errors import ClosedError, FastshardError, StaleShardError
from fastshard.formats.sample import Samples
from fastshard.formats.tar import (
    KeyRule,
    Mode,
    TarOptions,
    TarShard,
    check_record,
    open_local_tar,
    open_remote_tar,
    warn_unread,
)
from fastshard.index.contents import IndexWarnings
from fastshard.index.dataset_file import DatasetIndexView
from fastshard.index.sidecar import (
    MAX_COUNTED,
    count_json,
    peek_counts,
    peek_fields,
)

if TYPE_CHECKING:
    from fastshard.remote.file import RemoteFile
    from fastshard.remote.options import Settings

__all__ = ["TarSet", "common_root", "require_tars", "shard_name"]

HEAD_BYTES = 4096  # of a shard, hashed for its identity
MAX_PEEKED = 1024  # shards whose own indexes are read for a summary
MAX_EMPTY = 16  # shards searched for one with samples


class TarSet(ShardSet):
    """The tar shards of a dataset, in order."""

    format = "tar"
    examined = 1000

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
        index_view: DatasetIndexView | None = None,
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
        self.paths: list[str] = list(paths)
        self.index = index
        self._index_folder: str | Url | None = None
        if index not in ("auto", "none") and is_folder(index):
            self._index_folder = parse_path_or_url(index)
        self.options: dict[str, Any] = {"mode": mode, "key": key, "lower": lower}
        self.options |= {"prefetch": reading.prefetch, "check_size": check_size}
        self.options |= {"remote": remote}
        self.index_view = index_view
        self.warned: Iterator[int] = count()  # of entries that are not read
        self._counts: list[Counts] | None = None
        if index_view is not None:
            self._counts = [Counts(*counts) for counts in index_view.counts()]

    @lazy
    def index_warnings(self) -> IndexWarnings:
        """The warnings of ignored indexes, of which a dataset has a few."""
        return IndexWarnings(len(self.paths), self._json_counter())

    def shard(self, k: int) -> TarShard:
        """Return shard `k`; open it if needed."""
        shard = self.samples(k).shard
        assert isinstance(shard, TarShard)
        return shard

    def open_shard(self, k: int) -> Any:
        """Open shard `k`."""
        self.check_open()
        path = self.paths[k]
        open_tar = open_local_tar if self.remote is None else open_remote_tar
        opening = self.versions.opening(k)
        shard = open_tar(
            path,
            TarOptions(self.index_option(k), **self.options),
            progress=self._check_cancelled,
            ring=self.ring,
            opening=opening,
            warn=self.index_warnings,
        )
        warn_unread(shard, 4, self.warned)
        samples = shard.samples
        if self.index_view is not None:
            check_record(shard, self.index_view, k)
        elif self._counts is not None and self._counts[k] != (
            found := Counts(len(samples), len(shard))
        ):
            before = self._counts[k]
            raise StaleShardError(
                f"expected {before.samples:,} samples and {before.members:,} members, "
                f"as counted before, got {found.samples:,} and {found.members:,}",
                path,
                0,
            )
        return self.keep(k, self.wrap_samples(samples), opening)

    def _json_counter(self) -> Callable[[], int]:
        """Return a function for the number of files with names of JSON indexes."""
        paths, folder = self.paths, self._index_folder
        if self.remote is not None or isinstance(folder, Url):
            return lambda: 0
        return lambda: count_json(paths, folder)

    def wrap_samples(self, samples: Samples) -> Any:
        """Return the samples of the set, for those of an opened tar shard."""
        return samples

    def index_option(self, k: int) -> str:
        """Return the ``index=`` argument for opening shard `k`."""
        folder = self._index_folder
        if folder is None:
            return self.index
        below = shard_name(self.paths[k], self.root).rpartition("/")[0]
        if isinstance(folder, Url):
            if self.remote is None and folder.scheme in HTTP:
                below = quote(below)  # a path, not part of a URL yet
            return join_url(folder.text, below) if below else folder.text
        return os.path.normpath(os.path.join(folder, below))

    def without(self, dropped: Collection[int]) -> TarSet:
        """Return a set without some shards; it opens its own handles."""
        kept = [k for k in range(len(self)) if k not in dropped]
        return self.copy(type(self), kept)

    def copy(self, kind: type[TarSet], kept: Sequence[int] | None = None) -> TarSet:
        """Return a set of a type, of some shards or all; it opens its own handles."""
        self.check_open()
        view = self.index_view
        if kept is None:
            kept = range(len(self))
        elif view is not None:
            view = view.some(list(kept))
        shards = kind(
            [self.paths[k] for k in kept],
            root=self.root,
            index_view=view,
            **(self.state() | {"index": self.index}),
        )
        if self._counts is not None:
            shards._counts = [self._counts[k] for k in kept]
        shards.ring = self.ring
        shards.index_warnings = self.index_warnings
        shards.warned = self.warned
        return shards

    def is_counted(self) -> bool:
        """Return whether the counts are known without opening shards."""
        return self._counts is not None

    def counts(self) -> list[Counts]:
        """Return the counts of each shard; open those without an index in threads."""
        self.check_open()
        if self._counts is None:
            self._counts = list(self.map_shards(self.count, "counting"))
        return self._counts

    def count(self, k: int) -> Counts:
        """Return the counts of shard `k`, from the header of a fresh index if any."""
        samples = self.open_samples[k]
        if samples is None and self.remote is None:
            found = self._peek_counts(k)
            if found is not None:
                return Counts(*found)
        if samples is None:
            samples = self.samples(k)
        return Counts(len(samples), len(self.shard(k)))

    def _peek_counts(self, k: int) -> tuple[int, int] | None:
        """Return the counts of local shard `k` from the header of a fresh index."""
        index = self.index_option(k)
        if index != "auto" and not os.path.isdir(index):
            return None
        folder = None if index == "auto" else index
        return peek_counts(self.paths[k], folder, self.options["key"] == "last")

    def _check_cancelled(self, _: int) -> None:
        """End a scan that `map_shards` or `close` cancelled; called with progress."""
        if self.is_cancelled or self.closed:
            raise ClosedError("opening was cancelled")

    def summarize(self) -> Summary:
        where = describe_paths(self.paths, self.root)
        if self.options["key"] != "first":
            where += f", key={self.options['key']}"
        if not self.options["lower"]:
            where += ", lower=False"
        samples = None
        fields: list[str] = []
        with suppress(FastshardError, OSError, ValueError):  # reading reports a fault
            samples = self._peek_total()
            fields = self._peek_fields()
        return Summary(where, len(self), samples, tuple(fields))

    def _peek_total(self) -> int | None:
        """Return the number of samples, if local indexes tell it at once."""
        if self.index_view is not None:
            return sum(samples for samples, _ in self.index_view.counts())
        if self.remote is not None or len(self) > MAX_PEEKED:
            return None
        total = 0
        for k in range(len(self)):
            counts = self._peek_counts(k)
            if counts is None:
                return None
            total += counts[0]
        return total

    def _peek_fields(self) -> list[str]:
        """Return the fields of the first shard with samples, if its index tells."""
        if self.remote is not None:
            return []
        view = self.index_view
        for k in range(min(len(self), MAX_EMPTY)):
            index = self.index_option(k)
            if index != "auto" and not os.path.isdir(index):
                return []
            fields = peek_fields(
                self.paths[k],
                None if index == "auto" else index,
                last_dot=self.options["key"] == "last",
                lower=self.options["lower"],
                fingerprint=None if view is None else view.record(k).fingerprint,
            )
            if fields:
                return fields
        return []

    def field_names(self) -> list[str]:
        for k in range(len(self)):
            fields = self.samples(k).grouping.field_counts(MAX_COUNTED)
            if fields:
                return list(fields)
        return []

    def identify(self) -> Identity:
        """Return the identity of the shards; it does not depend on the root.

        It is a hash of their names, key rule and sample counts, and of the size and
        first 4 KiB of the first and the last shard.
        """
        paths = self.paths
        if self.remote is not None:
            paths = [base_of(path) for path in paths]
        starts = array("q", self.starts())
        samples = starts[-1]
        ends = [min(paths), max(paths)] if paths else [""]
        prefix = os.path.commonprefix(ends)  # noqa: RUF071 - cut at a folder below
        start = prefix.replace(os.sep, "/").rfind("/") + 1
        names = "\n".join([path[start:] for path in paths]).replace(os.sep, "/")
        digest = blake2b(names.encode("utf-8", "surrogateescape"), digest_size=8)
        digest.update(f"\n{self.options['key']}\n".encode())
        if sys.byteorder == "big":
            starts.byteswap()  # the hash is of little-endian numbers
        digest.update(starts.tobytes())
        for path in dict.fromkeys(self.paths[:1] + self.paths[-1:]):
            with self._open_file(path) as file:
                digest.update(f"\n{file.nbytes}\n".encode())
                digest.update(file.read_many([(0, min(HEAD_BYTES, file.nbytes))])[0])
        name = os.path.basename(self.root) or "".join(map(os.path.basename, paths[:1]))
        return Identity(name, samples, digest.hexdigest())

    def _open_file(self, path: str) -> LocalFile | RemoteFile:
        if self.remote is None:
            return LocalFile(path)
        from fastshard.remote.file import open_remote

        return open_remote(path, self.remote)

    def data_bytes(self) -> int:
        """Return the total size of all members, in bytes.

        Without a dataset index, opens every shard.
        """
        if self.index_view is not None:
            return self.index_view.data_bytes()
        return sum(
            self.map_shards(
                lambda k: self.shard(k).parts()[1].data_bytes, "adding up sizes"
            )
        )

    def member(self, i: int) -> tuple[TarShard, int]:
        """Return the shard of member `i` of the dataset, and the position in it."""
        starts = self.member_starts()
        k = bisect_right(starts, i) - 1
        return self.shard(k), i - starts[k]

    def state(self) -> dict[str, Any]:
        """Return the options that open an equal set of the same paths."""
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
        self.check_open()
        root = self.root
        view = self.index_view
        names, counts = None, None
        if self.remote is not None:
            names = self.paths
        elif view is None or view.numbers is not None:
            root = os.path.abspath(root)
            names = [os.path.relpath(os.path.abspath(p), root) for p in self.paths]
        if view is None and self._counts is not None:
            counts = [tuple(count) for count in self._counts]
        arguments = (root, names, self.state(), counts, view)
        return _reopen, arguments if type(self) is TarSet else (*arguments, type(self))


def _reopen(
    root: str,
    names: list[str] | None,
    state: dict[str, Any],
    counts: list[tuple[int, int]] | None,
    view: DatasetIndexView | None,
    kind: type[TarSet] | None = None,
) -> TarSet:
    """Return an unpickled set; without names, ``dataset.fsi`` lists the shards."""
    if names is None:
        assert view is not None
        names = [shard.name for shard in view.file.shards]
    if state["remote"] is not None:
        paths = names
    else:
        paths = [os.path.join(root, name) for name in names]
    shards = (kind or TarSet)(paths, root=root, index_view=view, **state)
    if counts is not None:
        shards._counts = [Counts(*count) for count in counts]
    return shards


def require_tars(shards: ShardSet) -> TarSet:
    """Return the tar shards of a dataset."""
    if not isinstance(shards, TarSet):
        raise shards.unlike_tars()
    return shards


def shard_name(path: str, root: str) -> str:
    """Return a shard's path or URL relative to the root, with slashes."""
    if is_url(path):
        return relative_path(path, root)
    return os.path.relpath(path, root).replace(os.sep, "/")


def common_root(paths: Sequence[str]) -> str:
    """Return the deepest directory above all shards; for URLs, the deepest folder."""
    if is_url(paths[0]):
        return common_folder(list(paths))
    return os.path.commonpath([os.path.dirname(os.path.abspath(p)) for p in paths])
