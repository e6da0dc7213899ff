"""Slots: shared memory that a worker process reuses for its batches.

torch sends each tensor in its own shared memory: a file is created, mapped and faulted
in by two processes, and its descriptor sent through a socket. The descriptor of a slot
is sent once. A slot is free when neither process has an array on it, by four counters
at its start.

The memory of slots is not that of ``/dev/shm``, which containers limit to 64 MB.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import DupFd
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, finalize

from fastshard._core.io.paging import Counters
from fastshard._core.loader.threads import MemoryLease
from fastshard._util.processes.forks import at_fork, list_members
from fastshard.errors import FastshardError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ALIGNMENT", "PeerSlot", "Slot", "Slots"]

HEADER = 64  # bytes before the data: the counters
ALLOCATED, DROPPED, SENT, RELEASED, RECEIVED = range(5)  # counters
ALIGNMENT = 64  # bytes
MAX_SLOTS = 8  # slots of a pool; further batches get slots that are not reused
LARGE = 1 << 16  # bytes: from here on a value is large
MIN_SIZE = 1 << 20  # bytes of a slot for small values; pages are free until touched

Key = tuple[int, bytes]  # process id, random bytes

_received: dict[Key, PeerSlot] = {}  # until their process ends
_checked_at = 0.0  # seconds: the last search for ended processes
_own: WeakSet[Slot] = WeakSet()  # of this process
_leases: WeakSet[MemoryLease] = WeakSet()  # of arrays on slots of other processes


class Slot:
    """Shared memory of this process for one batch at a time."""

    def __init__(self, size: int, is_reused: bool = True) -> None:
        import numpy as np

        self.key = (os.getpid(), os.urandom(16))
        self.is_reused = is_reused
        self.size = HEADER + size
        self._fd = os.memfd_create("fastshard", os.MFD_CLOEXEC)
        finalize(self, os.close, self._fd)
        os.truncate(self._fd, self.size)
        self._memory = mmap.mmap(self._fd, self.size)
        first = np.frombuffer(self._memory, "u1", 1)
        self._start: int = first.__array_interface__["data"][0]
        self.counters = Counters(self._memory, 5)
        self._used = HEADER
        self.is_lost = False  # never free: a forked child may have uncounted arrays
        _own.add(self)

    @property
    def capacity(self) -> int:
        """Bytes for the arrays of a batch."""
        return self.size - HEADER

    @property
    def is_free(self) -> bool:
        """True if no process has an array on the slot."""
        count = self.counters
        if self.is_lost:
            return False
        return count[ALLOCATED] == count[DROPPED] and count[SENT] == count[RELEASED]

    def reset(self) -> None:
        """Begin a new batch."""
        self._used = HEADER

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any] | None:
        """Return an array on the slot, or None if it is full."""
        import numpy as np

        dtype = np.dtype(dtype)
        size = math.prod(map(int, shape)) * int(dtype.itemsize)
        if size > self.size - self._used:
            return None
        memory = memoryview(self._memory)[self._used : self._used + size]
        self._used = min(self._used + -(-size // ALIGNMENT) * ALIGNMENT, self.size)
        self.counters.add(ALLOCATED)
        lease: Any = MemoryLease(memory, None, self.counters, DROPPED)
        return np.ndarray(shape, dtype, lease)

    def offset_of(self, address: int, size: int) -> int | None:
        """Return the offset of bytes in the slot, or None if they are elsewhere."""
        offset = address - self._start
        is_inside = offset >= HEADER and size <= self.size - offset
        return offset if is_inside else None

    def count_sent(self) -> None:
        """Count an array as sent; the slot is not free until it is released."""
        self.counters.add(SENT)

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled once in a batch, however many of its arrays refer to it.
        is_mapped = self.is_reused and self.counters[RECEIVED] > 0
        duplicate = None if is_mapped else DupFd(self._fd)
        return _receive, (self.key, duplicate, self.size, self.is_reused)


class Slots(threading.local):
    """The slots of a thread of a worker process.

    Large values of a batch have other slots than small ones: a label that the user
    keeps keeps no pictures.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._small, self._large = Pool(MIN_SIZE), Pool(0)
        self.is_open = False  # True inside of `batch`

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Allocate the arrays of this thread in slots, until the end of the block."""
        if self._pid != os.getpid():  # a forked child makes its own
            self.__init__()  # type: ignore[misc]
        if self.is_open:  # a batch within a batch
            yield
            return
        self.is_open = True
        self._small.begin()
        self._large.begin()
        try:
            yield
        finally:
            self._small.end()
            self._large.end()
            self.is_open = False

    def allocate(
        self, shape: tuple[int, ...], dtype: Any, together: int = 0
    ) -> NDArray[Any] | None:
        """Return an array in a slot of the batch.

        None: the array has no bytes or has objects, there is no batch, or the system
        gives no memory.
        """
        import numpy as np

        dtype = np.dtype(dtype)
        size = math.prod(map(int, shape)) * int(dtype.itemsize)
        if not self.is_open or size == 0 or dtype.hasobject:
            return None
        whole = max(size, together)
        pool = self._small if whole < LARGE else self._large
        return pool.allocate(shape, dtype, size, whole)

    def find(self, address: int, size: int) -> Slot | None:
        """Return the slot of the batch that has some bytes."""
        for slot in self._small.batch + self._large.batch:
            if slot.offset_of(address, size) is not None:
                return slot
        return None


class Pool:
    """Slots that are reused, and those of the batch in progress."""

    def __init__(self, smallest: int) -> None:
        self.slots: list[Slot] = []
        self.batch: list[Slot] = []
        self._smallest = smallest  # bytes of a slot
        self._wanted = 0  # bytes of the batch in progress
        self._largest = 0  # bytes: the maximum of earlier batches

    def begin(self) -> None:
        """Begin a batch, in a slot if the size of earlier ones is known."""
        slot = self.acquire(self._largest) if self._largest else None
        self.batch = [] if slot is None else [slot]
        self._wanted = 0

    def end(self) -> None:
        """End a batch."""
        self.batch = []
        self._largest = max(self._largest, self._wanted)

    def acquire(self, size: int) -> Slot | None:
        """Return a free slot for `size` bytes, or None if all are in use."""
        free = [slot for slot in self.slots if slot.is_free]
        for slot in free:
            if slot.capacity >= size:
                slot.reset()
                return slot
        if len(self.slots) == MAX_SLOTS:
            if not free:
                return None
            self.slots.remove(free[0])  # replace one that is too small
            size = max(size, 2 * free[0].capacity)
        made = make_slot(size, is_reused=True)
        if made is not None:
            self.slots.append(made)
        return made

    def allocate(
        self, shape: tuple[int, ...], dtype: Any, size: int, whole: int
    ) -> NDArray[Any] | None:
        """Return an array in a slot of the batch; if full, in a new one.

        None: the system gives no memory.
        """
        self._wanted += size + ALIGNMENT
        for slot in self.batch:
            array = slot.allocate(shape, dtype)
            if array is not None:
                return array
        made = make_slot(max(whole, self._smallest))
        if made is None:
            return None
        self.batch.append(made)
        return made.allocate(shape, dtype)


def make_slot(size: int, is_reused: bool = False) -> Slot | None:
    """Return a new slot, or None if the system refuses."""
    if not hasattr(os, "memfd_create"):  # not Linux
        return None
    try:
        return Slot(size, is_reused)
    except OSError:  # out of memory or descriptors, or not permitted
        return None


class PeerSlot:
    """A mapped slot of another process."""

    def __init__(self, fd: int, size: int) -> None:
        self.memory = mmap.mmap(fd, size)
        self.counters = Counters(self.memory, 5)
        self.counters.add(RECEIVED)

    def array(self, offset: int, size: int) -> NDArray[np.uint8]:
        """Return bytes written by the other process and counted as sent.

        The slot is not used again while they are referenced.
        """
        import numpy as np

        memory = memoryview(self.memory)[offset : offset + size]
        lease: Any = MemoryLease(memory, None, self.counters, RELEASED)
        _leases.add(lease)
        finalize(lease, _drop_dead_slots).atexit = False
        return np.ndarray((size,), np.uint8, lease)


def _receive(key: Key, duplicate: Any, size: int, is_reused: bool) -> PeerSlot:
    """Unpickle a `Slot`: return another process's slot."""
    slot = _received.get(key)
    if duplicate is not None:
        fd = duplicate.detach()
        try:
            if slot is None:
                slot = PeerSlot(fd, size)
        finally:
            os.close(fd)
        if is_reused and key not in _received:
            _drop_dead_slots(0)
            _received[key] = slot
    if slot is None:
        raise FastshardError(
            "a worker's batch can be unpickled only in the process that loads batches"
        )
    return slot


def _before_fork() -> None:
    """Stop reuse of slots in use: the arrays of a forked child are not counted."""
    for lease in list_members(_leases):
        lease.is_lost = True
    for slot in list_members(_own):
        slot.is_lost = slot.is_lost or not slot.is_free


at_fork(before=_before_fork)


def _drop_dead_slots(seconds: float = 1) -> None:
    """Unmap slots of ended processes, at most once in `seconds`; arrays keep theirs."""
    global _checked_at
    now = time.monotonic()
    if now - _checked_at < seconds:
        return
    _checked_at = now
    for key in list(_received):
        try:
            os.kill(key[0], 0)
        except ProcessLookupError:
            _received.pop(key, None)
        except OSError:
            continue
