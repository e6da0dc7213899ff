"""Columnar datasets: each field's arrays in tar shards of its own."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from threading import Lock
from typing import Any, Protocol, TypeAlias

from fastshard._core.columnar.rows import (
    ColumnFile,
    ColumnSamples,
    open_column,
    read_image,
    read_rows,
)
from fastshard._core.dataset.shard import describe_item
from fastshard._core.io.page_ring import PageRing
from fastshard._core.io.source import LocalFile
from fastshard._core.parse.tar import scan_sound
from fastshard._core.table.extents import ExtentTable
from fastshard.errors import ClosedError, FastshardError, FormatError
from fastshard.formats.decoders import DECODERS, Decoder, decoder_for
from fastshard.formats.sample import CopiedSample, Infos, Sample
from fastshard.formats.tar import Mode
from fastshard.formats.tar_writer import BLOCK, END, is_marked

__all__ = [
    "REPLACED",
    "ColumnFiles",
    "ColumnSample",
    "Owner",
    "Unpickle",
    "build_samples",
    "build_samples_from_image",
    "is_unmodified",
]

REPLACED = -1  # bytes, of a shard that a compaction has replaced
Unpickle: TypeAlias = Callable[[bytes, FormatError], Any]


def is_unmodified(file: LocalFile, recorded: int) -> bool:
    """Say whether nobody else appended to a shard; its own writer may just do so.

    Others leave no file that ends where the archive's own end does.
    """
    if file.nbytes == recorded + len(END) or file.nbytes < recorded + BLOCK:
        return True
    (block,) = file.read_many([(recorded, BLOCK)])
    return len(block) < BLOCK or is_marked(block)  # a writer may just cut it off


def _end_of(path: str) -> int | None:
    """Return where the members of a replaced shard end; None: others wrote it.

    Before it was replaced it was complete, and what others had appended taken over.
    """
    with LocalFile(path) as file:
        (first,) = file.read_many([(0, BLOCK)])
        ours = is_marked(first) and any(first)
        return max(file.nbytes - len(END), 0) if ours else None


def _scanned(path: str) -> tuple[ExtentTable, FormatError | None]:
    """Return what a tar holds, and why that is not all of it; None: it is."""
    with LocalFile(path) as file:
        table, _, fault = scan_sound(file)
        return table, fault


class ColumnFiles:
    """The shards of a dataset's fields: opened when first needed, a bounded number.

    Parameters
    ----------
    root : str
        The dataset's directory.
    folders : mapping of str to str
        Of each field, below `root`.
    mode : {"mmap", "private", "pread"}
    limit : int
        How many may be open. The first to be opened is the first to go; what is
        being read, and arrays, keep theirs.
    recorded : callable
        ``recorded(field, shard)``: bytes of it that the index has true offsets of,
        or None; `REPLACED` of one that counts no more, as a forked process sees it
        that goes on with what its parent has read.
    ring : PageRing, optional
        Bounds the resident pages of all of them.
    """

    def __init__(
        self,
        root: str,
        folders: Mapping[str, str],
        *,
        mode: Mode,
        limit: int,
        recorded: Callable[[str, int], int | None],
        ring: PageRing | None = None,
    ) -> None:
        self.root = root
        self.folders = dict(folders)
        self.mode = mode
        self.limit = max(1, limit)
        self.closed = False
        self.ring = ring
        self._recorded = recorded
        self._open: dict[tuple[str, int], ColumnFile] = {}  # oldest first
        self._lock = Lock()

    def path_of(self, field: str, shard: int) -> str:
        """Return where a shard is."""
        return f"{self.root}{os.sep}{self.folders[field]}{os.sep}shard_{shard:04d}.tar"

    def file(self, field: str, shard: int) -> ColumnFile:
        """Return an open shard.

        Raises
        ------
        FileNotFoundError
            There is no such shard; `refresh` helps where it was compacted.
        FormatError, OSError
            As for `open_column`.
        """
        found = self._open.get((field, shard))
        if found is not None:
            return found
        with self._lock:
            found = self._open.get((field, shard))
            if found is not None:
                return found
            if self.closed:
                raise ClosedError(f"the dataset {self.root} is closed")
            found = self._opened(field, shard)
            while len(self._open) >= self.limit:
                self._open.pop(next(iter(self._open))).release()
            self._open[field, shard] = found
        return found

    def _opened(self, field: str, shard: int) -> ColumnFile:
        path = self.path_of(field, shard)
        recorded = self._recorded(field, shard)
        try:
            if recorded == REPLACED:
                recorded = _end_of(path)
            return open_column(
                path, shard, self.mode, recorded, is_unmodified, _scanned, self.ring
            )
        except FileNotFoundError:
            reason = "a shard that the index names is not there (compacted? refresh())"
            raise FileNotFoundError(errno.ENOENT, reason, path) from None

    def opener(self, field: str) -> Callable[[int], ColumnFile]:
        """Return what opens the shards of a field by their numbers."""
        return partial(self.file, field)

    def sources(self) -> list[Any]:
        """Return the sources of the shards that are open."""
        with self._lock:
            return [file.source for file in self._open.values()]

    def forget(self) -> None:
        """Let go of all shards; who uses one goes on, and arrays stay valid."""
        with self._lock:
            files = list(self._open.values())
            self._open.clear()
        for file in files:
            file.release()

    def renew(self) -> None:
        """Begin anew in a child of fork, where another thread may have had the lock."""
        self._lock = Lock()
        self.forget()

    def close(self) -> None:
        """Let go of all shards, for good."""
        self.closed = True
        self.forget()


class Owner(Protocol):
    """What samples belong to: a state of a dataset.

    Attributes
    ----------
    path : str
        The index, for messages.
    closed : bool
    files : ColumnFiles
    unpickle : callable or None
        As for `Rows`.
    """

    path: str
    closed: bool
    files: ColumnFiles
    unpickle: Unpickle | None

    def metadata(self, sample_id: str, text: str | None) -> Any:
        """Return a sample's metadata; None: their text is not known yet."""


def build_samples(
    chunks: Iterable[list[tuple[Any, ...]]], owner: Owner
) -> ColumnSamples:
    """Return the samples of some rows of an index.

    Parameters
    ----------
    chunks : iterable of list of tuple
        ``(id, offset, shard, offset, shard, ...)``, in the order of the fields.
    owner : Owner
        Stays as long as they do.

    Raises
    ------
    FormatError
        An id is no text. What is wrong with a field is raised when it is read.
    """
    files = owner.files
    columns, names = read_rows(chunks, list(files.folders), files.opener, owner.path)
    for rows in columns:
        rows.unpickle = owner.unpickle
    return ColumnSamples(columns, names, ColumnSample, owner)


def build_samples_from_image(
    image: bytes, root: int, places: list[int], owner: Owner, most: int
) -> ColumnSamples | None:
    """Return the samples of the image of an index, with their metadata.

    Parameters
    ----------
    image, root, places, most
        As for `read_image`.
    owner : Owner
        Stays as long as they do.

    Returns
    -------
    ColumnSamples, or None where they are to be read by SQL.
    """
    files = owner.files
    fields = list(files.folders)
    found = read_image(image, root, places, fields, files.opener, owner.path, most)
    if found is None:
        return None
    for rows in found[0]:
        rows.unpickle = owner.unpickle
    return ColumnSamples(*found, ColumnSample, owner, has_metadata=True)


class ArrayFields:
    """What samples have in common whose fields are arrays, whatever they are called."""

    __slots__ = ()

    decoders: Any

    keys: Any

    def decode(self, *fields: str) -> dict[str, Any]:
        """See `Sample.decode`; a field that is called as the key is in its way."""
        if "__key__" in (fields or self.keys()):
            raise FastshardError(
                "a field is called '__key__', as the key is: name other fields"
            )
        decoded: dict[str, Any] = super().decode(*fields)  # type: ignore[misc]
        return decoded

    def decoder_of(self, field: str) -> Decoder | None:
        """Return a decoder of the caller's own, or the one of arrays."""
        own = decoder_for(field, self.decoders)
        if own is None or any(own is one for one in DECODERS.values()):
            return DECODERS["npy"]
        return own


class ColumnSample(ArrayFields, Sample):
    """One sample of a columnar dataset: its fields are arrays.

    ``sample["history"]`` is an array on the shard's own memory, read-only unless the
    dataset is ``mode="private"``; `view` gives the stored bytes, an ``.npy`` file.
    """

    __slots__ = ()

    @property
    def metadata(self) -> dict[str, Any]:
        """What the index says of the sample, parsed anew each time."""
        samples: Any = self.samples
        text = None
        if samples.has_metadata:
            text = samples.metadata_text(self.position)
        found: dict[str, Any] = samples.owner.metadata(self.key, text)
        return found

    def __getitem__(self, field: str) -> Any:
        """Return a field as an array; see `Sample.array`.

        Raises
        ------
        FieldNotFoundError
            The sample has no such field.
        """
        return self.array(field)

    def infos(self) -> Mapping[str, dict[str, Any]]:
        """Return the metadata, as what the index says."""
        return Infos(
            describe_item(self)[0],
            {"metadata": lambda: self.metadata},
            "the metadata",
            "a writer's add_sample(arrays, metadata={...}) puts it there",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return CopiedArrays, (self.key, self.position, self._copied(), self.metadata)


class CopiedArrays(ArrayFields, CopiedSample):
    """A sample of arrays that has its own bytes; what a pickled one becomes."""

    __slots__ = ("metadata",)

    def __init__(
        self,
        key: str,
        position: int,
        fields: dict[str, bytes],
        metadata: dict[str, Any],
    ) -> None:
        super().__init__(key, position, fields)
        self.metadata = metadata

    def __getitem__(self, field: str) -> Any:
        return self.array(field)

    def __reduce__(self) -> tuple[Any, ...]:
        return CopiedArrays, (self.key, self.position, self._copied(), self.metadata)
