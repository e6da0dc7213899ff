"""The limit of open files, and how many descriptors may be kept open."""

from __future__ import annotations

import sys

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = ["kept_limit"]

SPARE = 80  # descriptors that stay free: 64, and those of files that threads open


def kept_limit(*, spared: bool = False) -> int:
    """Return the number below which a descriptor may be kept open.

    Descriptors are kept for speed alone: their files can be opened again. The kernel
    gives out the lowest free number, so that all numbers from this limit on stay free,
    however many descriptors other parts of the process have.

    Parameters
    ----------
    spared : bool
        For descriptors that save little: half as many.
    """
    if resource is None:
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit < 0:  # RLIM_INFINITY
        return sys.maxsize
    return limit // 2 - SPARE // 2 if spared else limit - SPARE
