"""Shard set of a streaming dataset: positions are known from ``index.json`` alone."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any, overload
from urllib.parse import unquote

from fastshard._core.dataset.shard import SampleDecoder
from fastshard._core.streaming.shard import RowSamples, RowShard, decode_sample
from fastshard._util.paths.urls import (
    HTTP,
    Url,
    common_folder,
    is_remote,
    join_url,
    scheme_of,
)
from fastshard.dataset.display.text import Summary, describe_paths
from fastshard.dataset.order.state import Identity
from fastshard.dataset.shardset import Counts, ReadOptions, ShardSet
from fastshard.errors import FastshardError, StaleIndexError
from fastshard.formats.codec import FieldCodec
from fastshard.formats.layout import VALUE
from fastshard.formats.tar import Mode, check_modes
from fastshard.index.freshness import Opening
from fastshard.streaming.compressed import CompressedShards
from fastshard.streaming.files import StreamFiles
from fastshard.streaming.index import (
    INDEX_NAME,
    StreamIndex,
    join_indexes,
    parse_remote,
    read_index,
)
from fastshard.streaming.samples import (
    RowCodec,
    StreamSample,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard._core.dataset.streams import SampleLocator
    from fastshard.dataset.verify import Fault
    from fastshard.remote.options import Settings

__all__ = ["StreamSet"]

OpenedShard = tuple[RowShard, Opening]


class ShardPaths(Sequence[str]):
    """Paths or URLs of a set's shards, made on access."""

    def __init__(self, files: StreamFiles, numbers: Sequence[int]) -> None:
        self._files = files
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, k: int) -> str: ...
    @overload
    def __getitem__(self, k: slice) -> list[str]: ...
    def __getitem__(self, k: int | slice) -> str | list[str]:
        numbers = self._numbers[k]
        if isinstance(numbers, int):
            return self._files.path(self._files.index.name(numbers))
        return [self._files.path(self._files.index.name(number)) for number in numbers]


class StreamSet(ShardSet):
    """Shard set of a streaming dataset; its shards may have several formats."""

    format = "streaming"

    def __init__(
        self,
        root: str,
        *,
        mode: Mode,
        limit: int | None,
        reading: ReadOptions,
        remote: Settings | None = None,
        folders: Sequence[str] | None = None,
        split: str | None = None,
        validate_hash: str | None = None,
        allow_unsafe_types: bool = False,
        check_size: bool = False,
        cache_dir: str | os.PathLike[str] | None = None,
        index: StreamIndex | None = None,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.split = os.fspath(split or "")
        self.folders = None if folders is None else tuple(folders)
        below = self.split if folders is None else ""
        self.dirname = _join(root, below, remote)
        if index is None and folders is None:
            index = _read(self.dirname, remote)
        elif index is None:
            index = self._read_all(root, remote)
        if validate_hash is None and not any(c.compression for c in index.configs):
            check_modes(mode, check_size=check_size, remote=remote)
        self.index = index
        self.numbers: Sequence[int] = range(len(index)) if numbers is None else numbers
        super().__init__(
            len(self.numbers),
            root=root,
            mode=mode,
            limit=limit,
            reading=reading,
            remote=remote,
        )
        self._limit = limit  # as given, for pickles
        self.options: dict[str, Any] = {
            "validate_hash": validate_hash,
            "check_size": check_size,
            "cache_dir": None if cache_dir is None else os.fspath(cache_dir),
        }
        self.unsafe = allow_unsafe_types
        self.files = StreamFiles(
            index,
            mode=mode,
            reading=reading,
            ring=self.ring,
            remote=remote,
            unsafe=allow_unsafe_types,
            **self.options,
        )
        self.paths = ShardPaths(self.files, self.numbers)  # type: ignore[assignment]
        self._index_starts = index.starts()
        self._codecs: dict[int, RowCodec] = {}
        self._compressed = CompressedShards(self)

    def _read_all(self, root: str, remote: Settings | None) -> StreamIndex:
        """Read the indexes of several datasets, remote ones concurrently."""
        assert self.folders is not None
        names = [f"{folder}/{self.split}".strip("/") for folder in self.folders]
        roots = [_join(root, name, remote) for name in names]
        if remote is None:
            indexes = [_read(each, remote) for each in roots]
        else:
            with ThreadPoolExecutor(remote.connections) as pool:
                indexes = list(pool.map(_read, roots, repeat(remote)))
            if scheme_of(root) in HTTP:  # names are not URLs
                names = [unquote(name, errors="surrogateescape") for name in names]
        return join_indexes(indexes, names, self.dirname)

    def describe_root(self) -> str:
        """Return the directory, or the pattern of several, without secrets."""
        paths = [
            _join(self.dirname, each, self.remote) for each in self.folders or [""]
        ]
        return describe_paths([self.files.shown(path) for path in paths], self.dirname)

    def sample_decoder(self) -> SampleDecoder:
        return decode_sample

    def path(self, k: int) -> str:
        """Return the path or URL of shard `k`'s raw file of rows."""
        return self.files.path(self.index.name(self.numbers[k]))

    def open_shard(self, k: int) -> RowSamples:
        """Open shard `k`."""
        self.check_open()
        if self.codec(k).config.compression:
            found: RowSamples = self._compressed.open(k)
            return found
        return self.open_now(k)

    def open_now(self, k: int, opened: OpenedShard | None = None) -> RowSamples:
        """Keep the samples of shard `k`; open it unless they are given."""
        shard, opening = opened or self.open_files(k)
        codec = self.codec(k)
        first = self._index_starts[self.numbers[k]]
        samples = RowSamples(shard, StreamSample, first, codec.key_column)
        kept: RowSamples = self.keep(k, samples, opening)
        return kept

    def open_files(self, k: int) -> OpenedShard:
        """Open shard `k`, and check that its file is the one that was opened first."""
        opening = self.versions.opening(k)
        return self.files.open_shard(self.numbers[k], self.codec(k), opening), opening

    def shard(self, k: int) -> RowShard:
        """Return shard `k`; open it if needed."""
        shard = self.samples(k).shard
        assert isinstance(shard, RowShard)
        return shard

    def codec(self, k: int) -> RowCodec:
        """Return the encodings of shard `k`."""
        number = self.index.table.schema(self.numbers[k])
        found = self._codecs.get(number)
        if found is None:
            found = RowCodec(self.index.configs[number], self.unsafe)
            found = self._codecs.setdefault(number, found)
        return found

    def is_counted(self) -> bool:
        return True

    def starts(self) -> list[int]:
        if self._starts is None:
            if isinstance(self.numbers, range):
                self._starts = self._index_starts.tolist()
            else:
                counts = map(self.index.table.samples, self.numbers)
                self._starts = list(accumulate(counts, initial=0))
        return self._starts

    def sizes(self) -> list[int | None]:
        table = self.index.table
        return [table.samples(number) for number in self.numbers]

    def counts(self) -> list[Counts]:
        table = self.index.table
        found = []
        for k, number in enumerate(self.numbers):
            samples = table.samples(number)
            found.append(Counts(samples, samples * len(self.codec(k).field_names)))
        return found

    def data_bytes(self) -> int:
        """Return the bytes of all raw files of rows, as the index states them."""
        return sum(map(self.index.data_bytes, self.numbers))

    def first_codec(self) -> RowCodec | None:
        """Return the encodings of the first shard that has samples."""
        for k, number in enumerate(self.numbers):
            if self.index.table.samples(number):
                return self.codec(k)
        return None

    def summarize(self) -> Summary:
        codec = self.first_codec()
        fields = () if codec is None else tuple(codec.field_names)
        where = self.describe_root()
        return Summary(where, len(self), self.starts()[-1], fields, self.format)

    def known_fields(self) -> Collection[str] | None:
        names = (name for config in self.index.configs for name in config.names)
        return tuple(dict.fromkeys(names)) or None

    def field_names(self) -> list[str]:
        codec = self.first_codec()
        return [] if codec is None else codec.field_names

    def field_codec(self) -> FieldCodec:
        return self.first_codec() or super().field_codec()

    def close(self) -> None:
        self.files.is_closed = True
        super().close()
        self._compressed.drop_ready()

    def find_key(self, key: str) -> list[int]:
        """Return the positions of samples with a key; searches columns of keys."""
        found = []
        starts = self.starts()
        if key.isascii() and key.isdecimal() and len(key) < 19 and str(int(key)) == key:
            number = bisect_right(self._index_starts, int(key)) - 1
            k = self._find_number(number)
            if k is not None and self.codec(k).key_column < 0:
                found.append(starts[k] + int(key) - self._index_starts[number])
        for k in range(len(self)):
            if self.codec(k).key_column >= 0:
                found += [starts[k] + i for i in self.samples(k).search_all(key)]
        return sorted(found)

    def _find_number(self, number: int) -> int | None:
        """Return the position in this set of a shard of the index."""
        k = bisect_right(self.numbers, number) - 1
        return k if k >= 0 and self.numbers[k] == number else None

    def stack_columns(
        self,
        locator: SampleLocator,
        positions: Any,
        fields: tuple[str, ...],
    ) -> dict[str, NDArray[Any]]:
        from fastshard._core.streaming.columns import read_columns

        codec = self.first_codec() if self.remote is not None else None
        if codec is not None and any(
            codec.stored_layout(each) == VALUE for each in fields
        ):
            return {}  # rows are requested once, for all fields
        return read_columns(locator, positions, fields)

    def verify(self, *, hashes: bool = False) -> list[Fault]:
        """Return the faults of all shards: of headers, rows and fields."""
        from fastshard.streaming.verify import verify_set

        return verify_set(self, hashes=hashes)

    def identify(self) -> Identity:
        """Return the identity of the shards; it does not depend on the root."""
        digest = blake2b(digest_size=8)
        for number in self.numbers:
            found = self.index.table.file(number, 0)
            assert found is not None
            samples = self.index.table.samples(number)
            facts = f"{self.index.stored_name(number)}\n{found[1]}\n{samples}\n"
            digest.update(facts.encode("utf-8", "surrogateescape"))
        name = os.path.basename(self.root.rstrip("/")) or self.root
        return Identity(name, self.starts()[-1], digest.hexdigest())

    def without(self, dropped: Collection[int]) -> StreamSet:
        """Return a set without some shards; it opens its own handles."""
        dropped = frozenset(dropped)
        kept = [n for k, n in enumerate(self.numbers) if k not in dropped]
        shards = StreamSet(self.root, index=self.index, numbers=kept, **self.state())
        shards.ring = shards.files.ring = self.ring
        return shards

    def state(self) -> dict[str, Any]:
        """Return the options that open an equal set."""
        return {
            "mode": self.mode,
            "limit": self._limit,
            "reading": self.reading,
            "remote": self.remote,
            "folders": self.folders,
            "split": self.split,
            "allow_unsafe_types": self.unsafe,
            **self.options,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        self.check_open()
        root = self.root if self.remote is not None else os.path.abspath(self.root)
        numbers = None if isinstance(self.numbers, range) else list(self.numbers)
        facts = (len(self.index), self._index_starts[-1])
        return _restore, (root, self.state(), numbers, facts)


def split_roots(roots: Sequence[str]) -> tuple[str, list[str]]:
    """Return the common directory of several, and their paths below it.

    The directory of URLs keeps their query.
    """
    if not is_remote(roots[0]):
        paths = list(map(os.path.abspath, roots))
        root = os.path.commonpath(paths)
        return root, [
            "" if path == root else path[len(root) :].lstrip(os.sep) for path in paths
        ]
    urls = list(map(Url, roots))
    bases = [url.base.rstrip("/") for url in urls]
    root = common_folder([f"{base}/{INDEX_NAME}" for base in bases])
    if not root or len({url.query for url in urls}) > 1:
        raise FastshardError(
            "MDS datasets at several hosts, or of URLs with several queries, are "
            "opened one by one, and added: "
            f"sum(map(fastshard.open, [{urls[0].redacted}, ...]))"
        )
    return root + urls[0].query, [base[len(root) :].lstrip("/") for base in bases]


def _restore(
    root: str, state: dict[str, Any], numbers: list[int] | None, facts: tuple[int, int]
) -> StreamSet:
    """Open a shard set from its pickle."""
    shards = StreamSet(root, numbers=numbers, **state)
    index = shards.index
    if (len(index), index.starts()[-1]) != facts:
        raise StaleIndexError(
            f"expected {facts[1]:,} samples in {facts[0]:,} shards, as when the "
            f"dataset was opened, got {index.starts()[-1]:,} in {len(index):,}",
            index.path,
            0,
        )
    return shards


def _read(folder: str, remote: Settings | None) -> StreamIndex:
    """Read the index of a directory or a URL."""
    if remote is not None:
        return parse_remote(folder, remote)
    return read_index(os.path.join(folder, INDEX_NAME), folder)


def _join(root: str, split: str, remote: Settings | None) -> str:
    if not split:
        return root
    return os.path.join(root, split) if remote is None else join_url(root, split)
