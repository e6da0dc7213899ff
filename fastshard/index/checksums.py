"""Checksums of a shard and its members, as JSON and binary indexes record them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fastshard._core.io.source import LocalFile, PreadSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastshard._core.table.extents import ExtentTable

__all__ = ["Hashes", "compute_hashes"]

CHUNK = 1 << 20  # bytes of a read


class Hashes(NamedTuple):
    """Checksums of a shard and its members, in hexadecimal.

    Attributes
    ----------
    hash : str
        SHA-1 of the shard as a git blob, as the Hub identifies small files.
    hash_lfs : str
        SHA-256 of the shard, as the Hub identifies large files.
    sha256 : list of str
        SHA-256 of each member.
    """

    hash: str
    hash_lfs: str
    sha256: list[str]

    def merge_infos(self, table: ExtentTable) -> list[bytes]:
        """Return each member's info with its checksum added, as JSON."""
        import json

        from fastshard.index.jsonfile import parse_info

        return [
            json.dumps(parse_info(table.info(i)) | {"sha256": digest}).encode()
            for i, digest in enumerate(self.sha256)
        ]


def compute_hashes(
    file: LocalFile,
    table: ExtentTable,
    progress: Callable[[int], object] | None = None,
) -> Hashes:
    """Hash a shard and each of its members, in two passes over the file."""
    import hashlib

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
