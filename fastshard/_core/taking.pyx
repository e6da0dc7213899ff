"""An iterator over a feed: one thread at a time, closed once, and how far it is."""

from libc.stdint cimport uint64_t

from fastshard._core.feeds cimport Feed
from fastshard._core.threads cimport fs_next, fs_put

from collections import deque

from fastshard._core.samples import noted
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
        ``describe(n, skipped)`` returns the state after `n` items; its ``release()``
        is called when the iteration is closed.
    on_error : callable, optional
        ``on_error(error, position)`` says whether to go on after an item's error;
        without it every error is raised.
    skipped : int
        Items that were passed over before this iteration.
    """

    def __cinit__(self, Feed feed not None, Py_ssize_t window, uint64_t window_bytes,
                  *, make=None, describe=None, on_error=None, Py_ssize_t skipped=0,
                  **options):
        if window < 0:
            raise ValueError(f"a window is at least 0, not {window}")
        self.feed = feed
        self.make = make
        self.describe = describe
        self.on_error = on_error
        self.skipped_so_far = skipped
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
        cdef Py_ssize_t before
        if fs_next(&self.entered) != 0:
            raise ValueError("another thread is in this iterator")
        try:
            while True:
                if self.refused:
                    self.ended = True
                    self.finish()
                    raise ClosedError("the dataset is closed")
                if self.on_error is None:
                    return self.advance()
                before = self.taken_so_far
                try:
                    return self.advance()
                except StopIteration:
                    raise
                except Exception as error:
                    if self.taken_so_far == before:
                        raise      # no item's error: it would come again
                    if not self.on_error(error, self.taken_so_far - 1):
                        raise
                    self.skipped_so_far += 1
        finally:
            fs_put(&self.entered, 0)

    cdef object made(self, object item):
        """Return what the caller gets for an item; an error names the item."""
        if self.make is None:
            return item
        try:
            return self.make(item)
        except Exception as error:
            failure = noted(
                error, item, f"position {self.taken_so_far - 1:,} of the iteration"
            )
            if failure is error:
                raise
            raise failure from error

    @property
    def buffered(self):
        """Bytes of the items that were asked for and not yet handed out."""
        return self.ahead

    @property
    def position(self):
        """Position of the item that comes next, in what is iterated over."""
        return self.taken_so_far

    @property
    def skipped(self):
        """Items that were passed over, those before the state it began from included."""
        return self.skipped_so_far

    def state_dict(self):
        """Return what `Dataset.resume` goes on from: all so far is done, or skipped."""
        return self.state_after(self.taken_so_far, self.skipped_so_far)

    def state_after(self, Py_ssize_t done, Py_ssize_t skipped):
        """Return the state after some items of this iteration.

        Parameters
        ----------
        done : int
        skipped : int
            Items passed over, as `skipped` counts them.
        """
        if self.describe is None:
            raise TypeError("an iteration over members has no state")
        return self.describe(done, skipped)

    def close(self):
        """End the iteration, and its thread.

        It keeps no shard open: a state is to be had while the dataset is referenced.
        """
        if fs_next(&self.entered) != 0:
            raise ValueError("another thread is in this iterator")
        self.ended = True
        try:
            self.finish()
            self.make = self.on_error = None
            if self.describe is not None:
                self.describe.release()
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
