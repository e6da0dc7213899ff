"""File descriptors: opening of regular files, and the limit to keep open."""

from __future__ import annotations

import errno
import os
import stat
import sys

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = ["kept_limit", "open_regular"]

# Follow no link, do not block on a pipe, do not translate line ends.
SAFELY = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOINHERIT", 0)
)
SPARE = 80  # reserved descriptors: 64, and those of files that threads open


def kept_limit(*, spared: bool = False) -> int:
    """Return the number below which a descriptor may be kept open.

    Descriptors are kept for speed alone: their files can be opened again. The kernel
    gives out the lowest free number, so that all numbers from this limit on stay free,
    however many descriptors other parts of the process have.
    """
    if resource is None:
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit < 0:  # RLIM_INFINITY
        return sys.maxsize
    return limit // 2 - SPARE // 2 if spared else limit - SPARE


def open_regular(path: str, flags: int, mode: int = 0o600) -> int:
    """Open a file that is not a link, pipe or directory; return its descriptor.

    A new file is private by default: its bytes may have needed credentials.
    """
    fd = os.open(path, flags | SAFELY, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd
