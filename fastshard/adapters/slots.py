"""Slots: shared memory that a worker process reuses for its batches.

torch sends each tensor in its own shared memory: a file is created, mapped and faulted
in by two processes, and its descriptor sent through a socket. The descriptor of a slot
is sent once. A slot is free when neither process has an array on it, by four counters
at its start.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from multiprocessing.reduction import DupFd
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, finalize

from fastshard._core.io.prefetch import Counters
from fastshard.errors import FastshardError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Slot", "Slots", "open_array"]

HEADER = 64  # bytes before the data: the counters
ALLOCATED, DROPPED, SENT, RELEASED, RECEIVED = range(5)  # counters
ALIGNMENT = 64  # bytes
MAX_SLOTS = 8  # of a worker; further batches are sent as torch does

Key = tuple[int, bytes]  # process id, random bytes
Message = tuple[Key, Any, int]

_received: dict[Key, _PeerSlot] = {}  # until their process ends
_checked_at = 0.0  # seconds: the last search for ended processes
_own: WeakSet[Slot] = WeakSet()  # of this process
_releases: WeakSet[_Release] = WeakSet()  # of arrays on slots of other processes


class Slot:
    """Shared memory of this process for one batch at a time."""

    def __init__(self, size: int) -> None:
        import numpy as np

        self.key = (os.getpid(), os.urandom(16))
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
        """Return an array on the slot, or None if it is full or the array empty."""
        import numpy as np

        dtype = np.dtype(dtype)
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if size == 0 or size > self.size - self._used:
            return None
        array: NDArray[Any] = np.ndarray(shape, dtype, self._memory, self._used)
        self._used = min(self._used + -(-size // ALIGNMENT) * ALIGNMENT, self.size)
        self.counters.add(ALLOCATED)
        finalize(array, self._drop, self.key[0]).atexit = False
        return array

    def _drop(self, pid: int) -> None:
        if os.getpid() == pid:  # not in a forked child
            self.counters.add(DROPPED)

    def offset_of(self, address: int, size: int) -> int | None:
        """Return the offset of bytes in the slot, or None if they are elsewhere."""
        offset = address - self._start
        is_inside = offset >= HEADER and size <= self.size - offset
        return offset if is_inside else None

    def message(self) -> Message:
        """Return the message for `open_array`; pickle it at once: it counts as sent."""
        self.counters.add(SENT)
        is_mapped = self.counters[RECEIVED] > 0
        return self.key, None if is_mapped else DupFd(self._fd), self.size


class Slots(threading.local):
    """The slots of a thread of a worker process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._slots: list[Slot] = []

    def acquire(self, size: int) -> Slot | None:
        """Return a free slot for `size` bytes, or None if all are in use."""
        if not hasattr(os, "memfd_create"):  # not Linux
            return None
        if self._pid != os.getpid():  # a forked child makes its own
            self.__init__()  # type: ignore[misc]
        free = [slot for slot in self._slots if slot.is_free]
        for slot in free:
            if slot.capacity >= size:
                slot.reset()
                return slot
        if len(self._slots) == MAX_SLOTS:
            if not free:
                return None
            self._slots.remove(free[0])  # replace one that is too small
            size = max(size, 2 * free[0].capacity)
        try:
            slot = Slot(size)
        except OSError:  # out of memory or descriptors, or not permitted
            return None
        self._slots.append(slot)
        return slot


class _PeerSlot:
    """A slot of another process, mapped here."""

    def __init__(self, fd: int, size: int) -> None:
        self.memory = mmap.mmap(fd, size)
        self.counters = Counters(self.memory, 5)
        self.counters.add(RECEIVED)


class _Release:
    """Finalizer of an array on a slot of another process: counts it as released."""

    def __init__(self, slot: _PeerSlot) -> None:
        self.slot = slot
        self.owner = os.getpid()
        self.is_lost = False  # never released: a forked child may have the array
        _releases.add(self)

    def __call__(self) -> None:
        if os.getpid() == self.owner and not self.is_lost:
            self.slot.counters.add(RELEASED)
        _drop_dead_slots()


def open_array(
    message: Message, offset: int, shape: tuple[int, ...], dtype: Any
) -> NDArray[Any]:
    """Return the array that another process wrote to a slot.

    The slot is not reused while the array is referenced.
    """
    import numpy as np

    key, duplicate, size = message
    slot = _received.get(key)
    if duplicate is not None:
        fd = duplicate.detach()
        try:
            if slot is None:
                _drop_dead_slots(0)
                slot = _received[key] = _PeerSlot(fd, size)
        finally:
            os.close(fd)
    if slot is None:
        raise FastshardError(
            "a worker's batch can be unpickled only in the process that loads batches"
        )
    array: NDArray[Any] = np.ndarray(shape, dtype, slot.memory, offset)
    finalize(array, _Release(slot)).atexit = False
    return array


def _before_fork() -> None:
    """Stop reuse of slots in use: the arrays of a forked child are not counted."""
    for release in _snapshot(_releases):
        release.is_lost = True
    for slot in _snapshot(_own):
        slot.is_lost = slot.is_lost or not slot.is_free


def _snapshot(things: WeakSet[Any]) -> list[Any]:
    """Return the members of a set that other threads change."""
    while True:
        try:
            return list(things)
        except RuntimeError:  # another thread added one meanwhile
            continue


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)


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
