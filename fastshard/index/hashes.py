"""Checksums of a shard and of its members, for an index to record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastshard._core.source import LocalFile, PreadSource

if TYPE_CHECKING:
    from fastshard._core.extents import ExtentTable

__all__ = ["Hashes", "hashes_of"]

CHUNK = 1 << 20  # bytes read at once


@dataclass(frozen=True, slots=True)
class Hashes:
    """Checksums, in hexadecimal.

    Attributes
    ----------
    hash : str
        SHA-1 of the shard as a git blob, as the Hub names small files.
    hash_lfs : str
        SHA-256 of the shard, as the Hub names large files.
    sha256 : list of str
        SHA-256 of each member.
    """

    hash: str
    hash_lfs: str
    sha256: list[str]

    def infos(self, table: ExtentTable) -> list[bytes]:
        """Return each member's info with its checksum in it, as JSON."""
        from fastshard.index.jsonfile import parse_info

        return [
            json.dumps(parse_info(table.info(i)) | {"sha256": digest}).encode()
            for i, digest in enumerate(self.sha256)
        ]


def hashes_of(
    file: LocalFile,
    table: ExtentTable,
    progress: Callable[[int], object] | None = None,
) -> Hashes:
    """Read a shard twice: hash it, and its members.

    Parameters
    ----------
    file : LocalFile
    table : ExtentTable
    progress : callable, optional
        Called for each MiB, with the part that is done, scaled to the shard's bytes.
        What it raises ends the work.

    Raises
    ------
    FormatError
        The table points outside the file, or the file shrank.
    OSError
        Reading failed.
    """
    source = PreadSource(file)
    progress = progress or (lambda done: None)
    blob = hashlib.sha1(b"blob %d\0" % file.nbytes, usedforsecurity=False)
    whole = hashlib.sha256()
    for at in range(0, file.nbytes, CHUNK):
        chunk = source.read(at, min(CHUNK, file.nbytes - at))
        blob.update(chunk)
        whole.update(chunk)
        progress((at + len(chunk)) // 2)
    members = []
    for i in range(len(table)):
        offset, size = table.extent(i)
        digest = hashlib.sha256()
        for at in range(0, size, CHUNK):
            digest.update(source.read(offset + at, min(CHUNK, size - at)))
            progress((file.nbytes + offset + at) // 2)
        members.append(digest.hexdigest())
    return Hashes(blob.hexdigest(), whole.hexdigest(), members)
