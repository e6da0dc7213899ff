"""The page cache and the memory of this process: eviction, residency, mappings."""

import ctypes
import mmap
import os
import time
from pathlib import Path

import numpy as np


def evict(*paths: Path) -> None:
    """Evict files that are not mapped from the page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            for _ in range(100):  # pages that are being read stay
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                if cached(path) == 0:
                    break
                time.sleep(0.01)
        finally:
            os.close(fd)


def cached(path: Path, offset: int = 0, size: int | None = None) -> int:
    """Return the bytes of a file that the page cache has, in whole pages."""
    with open(path, "rb") as file:
        whole = os.fstat(file.fileno()).st_size
        if whole == 0 or size == 0:
            return 0
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    address = np.frombuffer(mapped, "u1").ctypes.data
    start = offset // mmap.PAGESIZE * mmap.PAGESIZE
    end = whole if size is None else offset + size
    present = np.zeros(-(-(end - start) // mmap.PAGESIZE), "u1")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    if libc.mincore(address + start, end - start, present.ctypes.data) != 0:
        raise OSError(ctypes.get_errno(), "mincore")
    return int((present & 1).sum()) * mmap.PAGESIZE


def is_cached(path: Path, offset: int, size: int) -> bool:
    """Say whether the page cache has all of an extent."""
    first = offset // mmap.PAGESIZE
    return cached(path, offset, size) == mmap.PAGESIZE * (
        -(-(offset + size) // mmap.PAGESIZE) - first if size else 0
    )


def resident(path: Path) -> int:
    """Return the resident bytes of a file's mappings in this process."""
    found, counts = 0, False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            if "-" in line.split()[0]:
                counts = str(path) in line
            elif counts and line.startswith("Rss:"):
                found += int(line.split()[1]) << 10
    return found


def mappings_of(path: Path) -> int:
    """Count the mappings of a file in this process."""
    with open("/proc/self/maps") as maps:
        return sum(str(path) in line for line in maps)
