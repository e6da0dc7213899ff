"""Shared memory that worker processes put batches into, again and again.

torch sends each tensor of a worker in shared memory of its own: a file made, mapped
and faulted in twice, and its descriptor passed through a socket. A slot is passed
once. It is free for the next batch when neither process has an array on it any more,
which four counters at its start tell.
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

__all__ = ["Slot", "Slots", "received"]

CONTROL = 64  # bytes before the data
PLACED, DROPPED, SENT, RELEASED, KNOWN = range(5)  # counters
ALIGNED = 64  # bytes
MOST = 8  # slots of a worker; beyond, its batches go the usual way

Key = tuple[int, bytes]  # a process, and a random number
Message = tuple[Key, Any, int]

_mapped: dict[Key, _Received] = {}  # slots that were received, until their process ends
_looked = 0.0  # when, for processes that ended
_made: WeakSet[Slot] = WeakSet()  # by this process
_held: WeakSet[_Release] = WeakSet()  # for arrays on slots that were received


class Slot:
    """Shared memory of this process, for one batch at a time."""

    def __init__(self, size: int) -> None:
        import numpy as np

        self.key = (os.getpid(), os.urandom(16))
        self.size = CONTROL + size
        self._fd = os.memfd_create("fastshard", os.MFD_CLOEXEC)
        finalize(self, os.close, self._fd)
        os.truncate(self._fd, self.size)
        self._memory = mmap.mmap(self._fd, self.size)
        first = np.frombuffer(self._memory, "u1", 1)
        self._start: int = first.__array_interface__["data"][0]
        self.counters = Counters(self._memory, 5)
        self._used = CONTROL
        self.is_lost = False  # a forked child may have arrays that nobody counts
        _made.add(self)

    @property
    def room(self) -> int:
        """Bytes that a batch may have."""
        return self.size - CONTROL

    @property
    def is_free(self) -> bool:
        """Whether nobody has an array on it."""
        count = self.counters
        if self.is_lost:
            return False
        return count[PLACED] == count[DROPPED] and count[SENT] == count[RELEASED]

    def clear(self) -> None:
        """Begin a batch."""
        self._used = CONTROL

    def place(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any] | None:
        """Return an array in it, or None if there is no room."""
        import numpy as np

        dtype = np.dtype(dtype)
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if size == 0 or size > self.size - self._used:
            return None
        array: NDArray[Any] = np.ndarray(shape, dtype, self._memory, self._used)
        self._used = min(self._used + -(-size // ALIGNED) * ALIGNED, self.size)
        self.counters.add(PLACED)
        finalize(array, self._drop, self.key[0]).atexit = False
        return array

    def _drop(self, pid: int) -> None:
        if os.getpid() == pid:  # not in a child that was forked meanwhile
            self.counters.add(DROPPED)

    def offset_of(self, address: int, size: int) -> int | None:
        """Return where some bytes lie in it, or None if they do not."""
        offset = address - self._start
        inside = offset >= CONTROL and size <= self.size - offset
        return offset if inside else None

    def message(self) -> Message:
        """Return what `received` takes, to be pickled now."""
        self.counters.add(SENT)
        known = self.counters[KNOWN] > 0
        return self.key, None if known else DupFd(self._fd), self.size


class Slots(threading.local):
    """The slots of a thread of a worker process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._slots: list[Slot] = []

    def take(self, size: int) -> Slot | None:
        """Return a free slot with so much room; None: there is none."""
        if not hasattr(os, "memfd_create"):  # not Linux
            return None
        if self._pid != os.getpid():  # a forked child has its own
            self.__init__()  # type: ignore[misc]
        free = [slot for slot in self._slots if slot.is_free]
        for slot in free:
            if slot.room >= size:
                slot.clear()
                return slot
        if len(self._slots) == MOST:
            if not free:
                return None
            self._slots.remove(free[0])  # too small
            size = max(size, 2 * free[0].room)
        try:
            slot = Slot(size)
        except OSError:  # no memory, no descriptor, or not allowed
            return None
        self._slots.append(slot)
        return slot


class _Received:
    """A slot of another process."""

    def __init__(self, fd: int, size: int) -> None:
        self.memory = mmap.mmap(fd, size)
        self.counters = Counters(self.memory, 5)
        self.counters.add(KNOWN)


class _Release:
    """Says that an array on a slot of another process is gone."""

    def __init__(self, slot: _Received) -> None:
        self.slot = slot
        self.owner = os.getpid()
        self.is_lost = False  # a forked child may have the array too
        _held.add(self)

    def __call__(self) -> None:
        if os.getpid() == self.owner and not self.is_lost:
            self.slot.counters.add(RELEASED)
        _forget_the_dead()


def received(
    message: Message, offset: int, shape: tuple[int, ...], dtype: Any
) -> NDArray[Any]:
    """Return the array that another process put into a slot.

    While anything refers to it the slot is not used again.
    """
    import numpy as np

    key, duplicate, size = message
    slot = _mapped.get(key)
    if duplicate is not None:
        fd = duplicate.detach()
        try:
            if slot is None:
                _forget_the_dead(0)
                slot = _mapped[key] = _Received(fd, size)
        finally:
            os.close(fd)
    if slot is None:
        raise FastshardError("a worker's batch is for the process that reads them")
    array: NDArray[Any] = np.ndarray(shape, dtype, slot.memory, offset)
    finalize(array, _Release(slot)).atexit = False
    return array


def _before_fork() -> None:
    """Keep for good what a child may look at: nobody counts its arrays."""
    for release in _all_of(_held):
        release.is_lost = True
    for slot in _all_of(_made):
        slot.is_lost = slot.is_lost or not slot.is_free


def _all_of(things: WeakSet[Any]) -> list[Any]:
    while True:
        try:
            return list(things)
        except RuntimeError:  # another thread added one meanwhile
            continue


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)


def _forget_the_dead(seconds: float = 1) -> None:
    """Let go of slots whose processes ended, now and then; arrays keep theirs."""
    global _looked
    now = time.monotonic()
    if now - _looked < seconds:
        return
    _looked = now
    for key in list(_mapped):
        try:
            os.kill(key[0], 0)
        except ProcessLookupError:
            _mapped.pop(key, None)
        except OSError:
            continue
