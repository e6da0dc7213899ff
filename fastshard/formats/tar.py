"""Tar shards: opening them, and what is particular to tar."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from fastshard._core.grouping import Grouping
from fastshard._core.mapped import MappedFile
from fastshard._core.scan import scan_tar
from fastshard._core.shard import Shard
from fastshard._core.source import LocalFile, MappedSource, PreadSource, Source
from fastshard.errors import FormatError
from fastshard.formats.base import Sample, Samples

if TYPE_CHECKING:
    from fastshard._core.extents import ExtentTable

__all__ = ["KeyRule", "Mode", "Progress", "TarShard", "open_tar"]

Mode = Literal["mmap", "private", "pread"]
KeyRule = Literal["first", "last"]
Progress = Callable[[int], object]

COMPRESSED = {  # what a file that is no tar may begin with
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x04\x22\x4d\x18": "lz4",
}


class TarShard(Shard):
    """An open tar shard; see `fastshard.open_shard`.

    Attributes
    ----------
    skipped : Mapping of str to int
        How many of each kind the file stores that are no members: ``directory``,
        ``symbolic link``, ``hard link``, ``metadata`` and so on.
    end : int
        Where the archive ends, in bytes from the start of the file. What follows
        is padding, or another archive, which no reader of tars sees.
    """

    __slots__ = ("_grouping", "_options", "end", "skipped")

    def __init__(
        self,
        source: Source,
        table: ExtentTable,
        path: str,
        mode: Mode,
        *,
        grouping: Grouping,
        skipped: Mapping[str, int],
        end: int,
        options: dict[str, Any],
    ) -> None:
        self._grouping = grouping
        self._options = options
        self.skipped = skipped
        self.end = end

    @property
    def samples(self) -> Samples:
        """The members grouped into samples, by position or key.

        A key is a name up to the first dot of its last part; the field is what
        follows, lower-cased. Names without a dot there, or whose last part
        begins with one, and those below ``__x__`` belong to no sample.
        """
        return Samples(self, self._grouping, Sample)

    def __copy__(self) -> TarShard:
        """Return another handle on the same mapping, for another thread."""
        source, table = self.parts()
        return TarShard(
            source,
            table,
            self.path,
            self.mode,
            grouping=self._grouping,
            skipped=self.skipped,
            end=self.end,
            options=self._options,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        self.parts()  # a closed shard does not pickle
        return _reopen, (self._options,)


def _reopen(options: dict[str, Any]) -> TarShard:
    return open_tar(**options)


def open_tar(
    path: str | os.PathLike[str],
    *,
    mode: Mode = "mmap",
    key: KeyRule = "first",
    lower: bool = True,
    progress: Progress | None = None,
) -> TarShard:
    """Open a tar shard; see `fastshard.open_shard`."""
    if mode not in ("mmap", "private", "pread"):
        raise ValueError(f'mode is "mmap", "private" or "pread", not {mode!r}')
    if key not in ("first", "last"):
        raise ValueError(f'key is "first" or "last", not {key!r}')
    name = os.fspath(path)
    if not isinstance(name, str):
        raise TypeError(f"a path is str or os.PathLike[str], not {type(path).__name__}")
    file = LocalFile(name)
    try:
        table, skipped, end = _scan(file, progress)
        source = _source_of(file, mode)
    except BaseException:
        file.close()
        raise
    if mode != "pread":
        file.close()  # a mapping needs no descriptor
    return TarShard(
        source,
        table,
        name,
        mode,
        grouping=Grouping(table, key == "last", lower),
        skipped=MappingProxyType(skipped),
        end=end,
        options={
            "path": os.path.abspath(name),  # a worker may start elsewhere
            "mode": mode,
            "key": key,
            "lower": lower,
        },
    )


def _source_of(file: LocalFile, mode: Mode) -> Source:
    if mode == "pread":
        return PreadSource(file)
    mapped = MappedFile(file.fd, file.nbytes, file.path, writable=mode == "private")
    return MappedSource(mapped)


def _scan(
    file: LocalFile, progress: Progress | None
) -> tuple[ExtentTable, dict[str, int], int]:
    if file.nbytes == 0:
        raise FormatError("an empty file is no tar", file.path, 0)
    try:
        return scan_tar(file, progress)
    except FormatError as error:
        if error.offset == 0:
            _refuse_compressed(file)
        raise


def _refuse_compressed(file: LocalFile) -> None:
    head = PreadSource(file).read(0, min(file.nbytes, 8))
    for magic, name in COMPRESSED.items():
        if head.startswith(magic):
            raise FormatError(
                f"a file compressed with {name}: mapping needs it unpacked",
                file.path,
                0,
            )
