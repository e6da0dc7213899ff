"""Streams of a user's source, read from the first member to the last."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO, Any, NamedTuple

from fastshard._core.io.source import RemoteSource
from fastshard._core.parse.tar import HeaderWalk
from fastshard._core.table.grouping import Grouping
from fastshard._util.paths.urls import redact
from fastshard.errors import (
    FastshardError,
    FormatError,
    RemoteError,
    UnreadEntryWarning,
)
from fastshard.formats.foreign import explain_fault
from fastshard.formats.sample import Sample, Samples
from fastshard.formats.tar import TarOptions, TarShard
from fastshard.index.contents import NO_IDENTITY, Contents
from fastshard.typed.shardset import PackedSet
from fastshard.typed.sources.files import SourceSettings, check_read, open_file

__all__ = ["SourceSet", "read_windows"]

WINDOW = 64 << 10  # bytes that are read at a time
UNKNOWN = 1 << 62  # bytes of an unfinished stream


class SourceSet(PackedSet):
    """The shards of a user's source.

    An iteration in order that begins before the samples are counted reads them as
    streams; everything else reads ranges of their files.
    """

    def stream(self, sizes: list[int | None]) -> Callable[[int], Any] | None:
        if self.is_counted() or any(
            samples is not None for samples in self.open_samples
        ):
            return None
        assert isinstance(self.remote, SourceSettings)
        sizes[:] = [None]
        return WindowOpener(self, sizes)


class WindowOpener:
    """Opens the parts of streams in order, each like a shard."""

    def __init__(self, shards: SourceSet, sizes: list[int | None]) -> None:
        self._set = shards
        self._sizes = sizes
        self._names = deque(shards.paths)
        self._windows: Iterator[Window] | None = None
        self._path = ""
        self._failed: dict[int, Exception] = {}  # a stream cannot be read twice

    def __call__(self, k: int) -> Any:
        """Return the samples of part `k`, an empty list at the end."""
        self._set.check_open()
        if k in self._failed:
            raise self._failed[k]
        try:
            window = self._next_window()
        except BaseException as error:
            self._windows = None
            if not isinstance(error, Exception):
                failed: Exception = RemoteError("the read was interrupted", self._path)
            else:
                failed = error
            self._failed[k] = failed
            self._sizes.append(None)
            raise
        if window is None:
            window = Window(b"", 0, HeaderWalk(0, 0, ""))
        else:
            self._sizes.append(None)
        return self._samples_of(window)

    def _next_window(self) -> Window | None:
        """Read the next part of a shard, or of the next one; None: there is none."""
        while True:
            if self._windows is None:
                if not self._names:
                    return None
                name = self._names.popleft()
                self._path = redact(name)
                assert isinstance(self._set.remote, SourceSettings)
                file = open_file(self._set.remote.source, name)
                last_dot = self._set.options["key"] == "last"
                self._windows = read_windows(file, self._path, last_dot)
            window = next(self._windows, None)
            if window is not None:
                return window
            self._windows = None

    def _samples_of(self, window: Window) -> Any:
        table = window.walk.table()
        options = self._set.options
        grouping = Grouping(table, options["key"] == "last", options["lower"])
        file = WindowFile(self._path, window.start + len(window.data))
        shard = TarShard(
            RemoteSource(file, {window.start: window.data}),
            table,
            self._path,
            "remote",
            location=self._path,
            index="none",
            contents=Contents(table),
            grouping=grouping,
            identity=(file.nbytes, NO_IDENTITY),
            options=TarOptions("none", "pread"),
        )
        return self._set.wrap_samples(Samples(shard, grouping, Sample))


class Window(NamedTuple):
    """Bytes of a shard from a header on, with the members walked in them.

    Attributes
    ----------
    data : bytes
    start : int
        Offset of the bytes in the shard.
    walk : HeaderWalk
    """

    data: bytes
    start: int
    walk: HeaderWalk


class WindowFile:
    """A shard whose bytes are all in the memory of a `RemoteSource`."""

    def __init__(self, path: str, nbytes: int) -> None:
        self.path = path
        self.nbytes = nbytes

    def read(self, offset: int, size: int) -> bytes:
        """Raise an error: a stream cannot go back."""
        raise FastshardError(f"byte {offset:,} of the stream {self.path} was passed by")


def read_windows(file: IO[bytes], path: str, last_dot: bool) -> Iterator[Window]:
    """Read a tar from a stream; yield its members by groups of whole samples.

    Members of one sample stand side by side. The stream is closed at the end.
    """
    try:
        stream = StreamBytes(file, path)
        needed = 1
        has_warned = False
        while True:
            stream.fill(needed)
            part = walk_window(stream, path, last_dot)
            if part.links and not has_warned:
                has_warned = True
                text = f"{path}: links are not read from a stream; download the shard"
                warnings.warn(text, UnreadEntryWarning, stacklevel=2)
            if part.members:
                yield Window(stream.data, stream.start, part.walk)
            if part.fault is not None:
                raise part.fault
            if part.ended:
                return
            stream.drop(part.next)
            needed = part.needed - part.next
    finally:
        with suppress(AttributeError):
            file.close()


class StreamBytes:
    """The unconsumed bytes of a stream.

    Attributes
    ----------
    data : bytes
    start : int
        Their offset.
    at_end : bool
        Whether they are the last ones.
    """

    def __init__(self, file: IO[bytes], path: str) -> None:
        self.file = file
        self.path = path
        self.data = b""
        self.start = 0
        self.at_end = False

    @property
    def end(self) -> int:
        """The offset behind the bytes."""
        return self.start + len(self.data)

    def fill(self, size: int) -> None:
        """Read until there are `size` bytes, or the stream ends."""
        parts, have = [self.data], len(self.data)
        while have < size and not self.at_end:
            data = check_read(self.file.read(WINDOW))
            if not data:
                self.at_end = True
            parts.append(bytes(data))
            have += len(data)
        self.data = b"".join(parts)

    def drop(self, offset: int) -> None:
        """Discard the bytes before an offset, also unread ones."""
        while self.end < offset and not self.at_end:
            self.start, self.data = self.end, b""
            self.fill(1)
        self.data = self.data[max(0, offset - self.start) :]
        self.start = offset


class WalkedPart(NamedTuple):
    """Result of a walk over the bytes of a stream.

    Attributes
    ----------
    members : int
        Those that are whole, and whose sample is.
    walk : HeaderWalk
        Over them alone.
    next : int
        Offset of the first header behind them.
    needed : int
        Offset up to which bytes must be there to continue.
    ended : bool
        Whether the archive ended.
    fault : FormatError or None
        The error behind the members.
    links : int
        Links among the entries, which a stream cannot follow.
    """

    members: int
    walk: HeaderWalk
    next: int
    needed: int
    ended: bool
    fault: FormatError | None
    links: int


def walk_window(stream: StreamBytes, path: str, last_dot: bool) -> WalkedPart:
    """Walk over the headers in the bytes of a stream."""
    data, base = stream.data, stream.start
    nbytes = stream.end if stream.at_end else UNKNOWN
    if stream.at_end and not stream.end:
        raise FormatError("an empty file is not a tar", path, 0)
    walk = HeaderWalk(nbytes, base, path)
    starts: list[int] = []
    needed, fault = stream.end + 1, None
    while not walk.ended:
        before, count = walk.at, walk.count
        try:
            asked = walk.advance(data, base, before + 1)
        except FormatError as error:
            fault = explain_fault(error, data if base == 0 else b"")
            break
        if walk.count > count:
            starts.append(before)
        if asked is not None:
            needed = max(needed, sum(asked))
            break
    end, ended, has_global = walk.at, walk.ended, walk.has_global
    links = walk.link_count
    table = walk.table()
    extents = [table.extent(i) for i in range(len(table))]
    whole = sum(offset + size <= stream.end for offset, size in extents)
    count = whole
    if not (ended or stream.at_end or fault):
        # The last sample may continue. A global header holds for all that follows.
        names = [table.name_of(i) for i in range(len(table))]
        count = 0 if has_global else min(whole, last_group(names, last_dot))
    if count:
        next_at = end if count == len(extents) else starts[count]
    else:  # only entries that are not members are skipped
        next_at = base if extents or has_global else end
    walk = HeaderWalk(nbytes, base, path)
    if count:
        walk.advance(data, base, next_at)
    at_end = ended or stream.at_end
    return WalkedPart(count, walk, next_at, needed, at_end, fault, links)


def last_group(names: list[str], last_dot: bool) -> int:
    """Return the position of the first member of the last key."""
    keys = [key_of(name, last_dot) for name in names]
    at = len(keys)
    while at and keys[at - 1] == keys[-1]:
        at -= 1
    return at


def key_of(name: str, last_dot: bool) -> str:
    folder, slash, last = name.rpartition("/")
    key = last.rpartition(".")[0] if last_dot else last.partition(".")[0]
    return folder + slash + key
