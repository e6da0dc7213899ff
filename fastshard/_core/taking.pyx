"""An iterator over a feed: one thread at a time, closed once, and how far it is."""

from libc.stdint cimport uint64_t

from fastshard._core.feeds cimport Feed
from fastshard._core.threads cimport fs_next, fs_put

from collections import deque

from fastshard.errors import ClosedError


cdef class Taking:
    """What iterators over a feed have in common, wherever its bytes are.

    Parameters
    ----------
    feed : Feed
    window : int
        Items to have ahead.
    window_bytes : int
        Bytes to have ahead at most, but for one item.
    make : callable, optional
        Makes of an item what the caller gets.
    describe : callable, optional
        ``describe(n)`` returns the state after `n` items.
    """

    def __cinit__(self, Feed feed not None, Py_ssize_t window, uint64_t window_bytes,
                  *, make=None, describe=None, **options):
        if window < 0:
            raise ValueError(f"a window is at least 0, not {window}")
        self.feed = feed
        self.make = make
        self.describe = describe
        self.window = window
        self.window_bytes = max(window_bytes, <uint64_t> 1)
        self.queue = deque()

    def __iter__(self):
        return self

    def __length_hint__(self):
        if fs_next(&self.entered) != 0:
            return 0               # another thread is in it
        try:
            return len(self.queue) + (0 if self.ended else self.feed.left())
        finally:
            fs_put(&self.entered, 0)

    def __next__(self):
        if fs_next(&self.entered) != 0:
            raise ValueError("another thread is in this iterator")
        try:
            if self.refused:
                self.ended = True
                self.finish()
                raise ClosedError("the dataset is closed")
            return self.advance()
        finally:
            fs_put(&self.entered, 0)

    @property
    def buffered(self):
        """Bytes of the items that were asked for and not yet handed out."""
        return self.ahead

    @property
    def taken(self):
        """Items that were handed out, or whose error was raised."""
        return self.taken_so_far

    def state_dict(self):
        """Return what `Dataset.resume` goes on from: all handed out so far is done."""
        if self.describe is None:
            raise TypeError("this iteration has no state: that of iter(dataset) has")
        return self.describe(self.taken_so_far)

    def close(self):
        """End the iteration, and its thread."""
        if fs_next(&self.entered) != 0:
            raise ValueError("another thread is in this iterator")
        self.ended = True
        try:
            self.finish()
        finally:
            fs_put(&self.entered, 0)

    def refuse(self):
        """Have the next step raise: what is iterated over was closed."""
        self.refused = True

    def __reduce__(self):
        raise TypeError("an iterator does not pickle")

    cdef object advance(self):
        raise NotImplementedError

    cdef int finish(self) except -1:
        return 0
