"""Telling shards that a writer of ours made, by the mark in their headers."""

from __future__ import annotations

import os
import stat

from fastshard.formats.tar_writer import BLOCK, is_marked

__all__ = ["is_left"]

FLAGS = os.O_RDONLY
for _flag in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
    FLAGS |= getattr(os, _flag, 0)


def is_left(path: str) -> bool:
    """Say whether a shard that nothing refers to was made by a writer of ours.

    One is told by the mark in its first header. A file that has none, or zeros in its
    place, as a power loss leaves them, is no archive of anything.
    """
    try:
        fd = os.open(path, FLAGS)
    except OSError:
        return False
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return False
        first = os.read(fd, BLOCK)
        return len(first) < BLOCK or is_marked(first)
    finally:
        os.close(fd)
