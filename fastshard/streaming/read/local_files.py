"""Files of a shard in its local directory: sizes, consistent states, eviction.

A shard has raw files, and compressed ones if it was written with a compression: one of
each, or two in formats that store offsets as meta. A kind is whole if all of its files
are there.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from fastshard.codecs.raw_files import StoredFile, locate
from fastshard.errors import FormatError

__all__ = [
    "LocalShard",
    "evict",
    "get_max_size",
    "get_persistent_size",
    "get_raw_size",
    "get_zip_size",
    "set_up_local",
]

File = tuple[str, StoredFile]  # path, and its entry in the index


class LocalShard(Protocol):
    """A reader's description of its files."""

    @property
    def dirname(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def compression(self) -> str | None: ...
    @property
    def file_pairs(self) -> Sequence[tuple[StoredFile, StoredFile | None]]: ...


def get_raw_size(shard: LocalShard) -> int:
    """Return the bytes of the raw files, by the index."""
    return sum(raw.bytes for raw, _ in shard.file_pairs)


def get_zip_size(shard: LocalShard) -> int | None:
    """Return the bytes of the compressed files; None if a file is not compressed."""
    total = 0
    for _, packed in shard.file_pairs:
        if packed is None:
            return None
        total += packed.bytes
    return total


def get_max_size(shard: LocalShard) -> int:
    """Return the bytes of all files: the most that the shard takes on disk."""
    return get_raw_size(shard) + (get_zip_size(shard) or 0)


def get_persistent_size(shard: LocalShard, keep_zip: bool) -> int:
    """Return the bytes of the files that stay after decompression."""
    if shard.compression and keep_zip:
        return get_max_size(shard)
    return get_raw_size(shard)


def set_up_local(
    shard: LocalShard, listing: Collection[str], safe_keep_zip: bool
) -> int:
    """Bring the files of a shard to a consistent state.

    An incomplete kind is removed if the other kind is whole. Compressed files beside
    whole raw ones are removed unless they are to be kept. The only copy stays.
    """
    raw, packed = _files(shard)
    here = [file for file in raw if file[0] in listing]
    packed_here = [file for file in packed if file[0] in listing]
    if packed_here and not shard.compression:
        raise ValueError(
            f"the shard is invalid: it has no compression, but {packed_here[0][0]}"
        )
    count = len(shard.file_pairs)
    has_raw = count > 0 and len(here) == count
    has_zip = count > 0 and len(packed_here) == count
    if has_zip and not has_raw:
        _remove(shard, here)
    elif has_raw and not (has_zip and safe_keep_zip):
        _remove(shard, packed_here)
        has_zip = False
    return has_raw * get_raw_size(shard) + has_zip * (get_zip_size(shard) or 0)


def evict(shard: LocalShard, *, force: bool = False) -> int:
    """Remove the files of a shard that exist.

    Raw files stay if compressed ones are missing, for they are the only copy; so do
    compressed files without a raw one.
    """
    raw, packed = _files(shard)
    here = [file for file in raw if os.path.lexists(file[0])]
    packed_here = [file for file in packed if os.path.lexists(file[0])]
    if not force and shard.compression and here and len(packed_here) < len(raw):
        redundant = {
            _path_of(shard, packed)
            for raw, packed in shard.file_pairs
            if packed is not None and os.path.lexists(_path_of(shard, raw))
        }
        return _remove(shard, [file for file in packed_here if file[0] in redundant])
    return _remove(shard, [*here, *packed_here])


def _files(shard: LocalShard) -> tuple[list[File], list[File]]:
    """Return the raw files and the compressed ones, with their paths."""
    raw = [(_path_of(shard, raw), raw) for raw, _ in shard.file_pairs]
    packed = [
        (_path_of(shard, packed), packed)
        for _, packed in shard.file_pairs
        if packed is not None
    ]
    return raw, packed


def _path_of(shard: LocalShard, file: StoredFile) -> str:
    return locate(os.path.join(shard.dirname, shard.split), file.basename)


def _remove(shard: LocalShard, files: Iterable[File]) -> int:
    """Remove files, or links to files; return the bytes of those that were there."""
    root = os.path.realpath(os.path.join(shard.dirname, shard.split))
    files = list(files)
    for path, _ in files:
        folder = os.path.realpath(os.path.dirname(path))
        if os.path.commonpath([root, folder]) != root:
            raise FormatError("a link leaves the directory of the dataset", path, 0)
    nbytes = 0
    for path, file in files:
        with suppress(FileNotFoundError):  # another process was faster
            os.remove(path)
            nbytes += file.bytes
    return nbytes
