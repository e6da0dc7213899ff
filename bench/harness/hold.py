"""Hold files in the page cache while a bench reads them.

A process of its own maps and locks them: machines that are short of memory, or shared,
reclaim the page cache of others between two contenders.
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

READY = "held"


@contextmanager
def hold_pages(folder: Path) -> Iterator[None]:
    """Keep all files below a folder in memory, if the process may lock so much."""
    command = [sys.executable, __file__, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        assert process.stdout.readline().strip() == READY
        try:
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()  # it ends


def lock(path: Path) -> None:
    """Map a file and lock its pages; without the right to, read them."""
    library = ctypes.CDLL(None, use_errno=True)
    number, whole = ctypes.c_size_t, ctypes.c_int
    library.mlock.argtypes = [ctypes.c_void_p, number]
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        *(ctypes.c_void_p, number, whole, whole, whole, ctypes.c_long)
    ]
    size = path.stat().st_size
    with open(path, "rb", buffering=0) as file:
        at = library.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        if at == ctypes.c_void_p(-1).value or library.mlock(at, size) != 0:
            buffer = bytearray(1 << 20)
            while file.readinto(buffer):
                pass


if __name__ == "__main__":
    for found in sorted(Path(sys.argv[1]).rglob("*")):
        if found.is_file() and found.stat().st_size:
            lock(found)
    print(READY, flush=True)
    sys.stdin.read()
