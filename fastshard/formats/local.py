"""Sources of local files, as every format opens them."""

from __future__ import annotations

from typing import Literal

from fastshard._core.mapped import MappedFile
from fastshard._core.residency import Residency
from fastshard._core.source import LocalFile, MappedSource, PreadSource, Source

__all__ = ["Mode", "source_of"]

Mode = Literal["mmap", "private", "pread"]


def source_of(
    file: LocalFile, mode: Mode, *, prefetch: bool = True, check_size: bool = False
) -> Source:
    """Return the source of a file, which ``"pread"`` keeps open; others need not.

    Parameters
    ----------
    file : LocalFile
    mode, prefetch, check_size
        As for `fastshard.open_shard`.

    Raises
    ------
    OSError
        It cannot be mapped.
    """
    if mode == "pread":
        return PreadSource(file)
    mapped = MappedFile(file.fd, file.nbytes, file.path, writable=mode == "private")
    identity = (file.device, file.inode, file.owner)
    residency = Residency(mapped, *identity, fd=file.fd if check_size else -1)
    return MappedSource(mapped, residency, watched=prefetch or check_size)
