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
from multiprocessing.reduction import DupFd
from typing import TYPE_CHECKING, Any
from weakref import finalize

from fastshard._core.counters import Counters

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Slot", "Slots", "received"]

CONTROL = 64  # bytes before the data
PLACED, DROPPED, SENT, RELEASED, KNOWN = range(5)  # counters
ALIGNED = 64  # bytes
MOST = 8  # slots of a worker; beyond, its batches go the usual way

Key = tuple[int, int]  # of a process, and a number there
Message = tuple[Key, Any, int]

_mapped: dict[Key, _Received] = {}  # slots that were received, until their process ends


class Slot:
    """Shared memory of this process, for one batch at a time."""

    def __init__(self, number: int, size: int) -> None:
        import numpy as np

        self.key = (os.getpid(), number)
        self.size = CONTROL + size
        self._fd = os.memfd_create("fastshard", os.MFD_CLOEXEC)
        finalize(self, os.close, self._fd)
        os.truncate(self._fd, self.size)
        self._memory = mmap.mmap(self._fd, self.size)
        first = np.frombuffer(self._memory, "u1", 1)
        self._start: int = first.__array_interface__["data"][0]
        self.counters = Counters(self._memory, 5)
        self._used = CONTROL

    @property
    def room(self) -> int:
        """Bytes that a batch may have."""
        return self.size - CONTROL

    @property
    def is_free(self) -> bool:
        """Whether nobody has an array on it."""
        count = self.counters
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
        finalize(array, self.counters.add, DROPPED).atexit = False
        return array

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
        self._made = 0

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
        slot = Slot(self._made, size)
        self._made += 1
        self._slots.append(slot)
        return slot


class _Received:
    """A slot of another process."""

    def __init__(self, fd: int, size: int) -> None:
        self.memory = mmap.mmap(fd, size)
        self.counters = Counters(self.memory, 5)
        self.owner = os.getpid()
        self.counters.add(KNOWN)

    def release(self) -> None:
        if os.getpid() == self.owner:  # not in a child that was forked meanwhile
            self.counters.add(RELEASED)


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
                _forget_the_dead()
                slot = _mapped[key] = _Received(fd, size)
        finally:
            os.close(fd)
    assert slot is not None
    array: NDArray[Any] = np.ndarray(shape, dtype, slot.memory, offset)
    finalize(array, slot.release).atexit = False
    return array


def _forget_the_dead() -> None:
    """Let go of slots whose processes ended; arrays keep theirs."""
    for key in list(_mapped):
        try:
            os.kill(key[0], 0)
        except ProcessLookupError:
            _mapped.pop(key, None)
        except OSError:
            continue
