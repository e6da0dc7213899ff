"""What an iteration has read is given back: mapped pages, and those of the page cache."""

cimport cython
from libc.stdint cimport uint64_t
from libc.string cimport memset

from fastshard._core.pages cimport fs_drop_pages
from fastshard._core.prefetch cimport Prefetcher, task_t
from fastshard._core.shard cimport Shard
from fastshard._core.source cimport MappedSource, Source

cdef enum:
    GAP = 64 << 10                 # bytes between members of one part: headers, others
    AROUND = 64 << 10              # bytes that a fault may map around a page
    FOLIOS = 4 << 20               # bytes that hold a whole piece of the page cache
    MOST_FORGOTTEN = 4             # tasks that are not waited for


@cython.final
@cython.no_gc
cdef class Part:
    """What was read of a source and not yet given back."""


@cython.final
cdef class Behind:
    """What was read of all sources and not yet given back.

    Parameters
    ----------
    most : int
        Bytes that may be kept.
    """

    def __cinit__(self, uint64_t most):
        self.most = most
        self.parts = {}
        self.forgotten = []

    def __reduce__(self):
        raise TypeError("what is behind an iteration does not pickle")

    cdef int pass_by(self, list places, Prefetcher forgetter) except -1:
        """Note that an item was read: its memory may be given back.

        Parameters
        ----------
        places : list of (Shard, int)
            The members of the item.
        forgetter : Prefetcher or None
            Has the page cache forget them too.
        """
        cdef Shard shard
        cdef Source source
        cdef Part part
        cdef uint64_t offset, size
        self.passed_so_far += 1
        for shard, member in places:
            if shard.closed:
                continue
            source = shard.open_source()
            if not isinstance(source, MappedSource) or source.writable:
                continue           # what was written to a private mapping stays
            if not shard.guess(source, member, &offset, &size):
                continue
            part = self.parts.get(source)
            if part is None or offset < part.end or offset - part.end > GAP:
                part = self.begin(part, source, offset, forgetter)
            part.end = offset + size
            part.item = self.passed_so_far
            if part.end - part.start >= self.most // <uint64_t> len(self.parts):
                self.give_back(part, forgetter)
        return 0

    cdef Part begin(
        self, Part last, MappedSource source, uint64_t offset, Prefetcher forgetter
    ):
        """Begin another part, and give back what the items have left."""
        cdef Part part
        for part in list(self.parts.values()):
            if part is last or part.item + 1 < self.passed_so_far:
                self.give_back(part, forgetter)
                del self.parts[part.source]
        part = Part.__new__(Part)
        part.source = source
        part.start = offset
        self.parts[source] = part
        return part

    cdef int give_back(self, Part part, Prefetcher forgetter) except -1:
        """Give back what was read: views of it that are alive fault it in again."""
        cdef MappedSource source = part.source
        cdef uint64_t start = part.start
        cdef uint64_t end = part.end
        if end == start:
            return 0
        part.start = end
        start -= min(start % AROUND + AROUND, start)
        with nogil:                # faults map what lies around too
            fs_drop_pages(source.base + start, min(end + AROUND, source.nbytes) - start)
        if forgetter is not None and source.residency is not None:
            self.forget(source, start, end, forgetter)
        return 0

    cdef int forget(
        self, MappedSource source, uint64_t start, uint64_t end, Prefetcher forgetter
    ) except -1:
        cdef task_t task
        if self.descriptor_of is not source:
            self.descriptor = source.residency.open_again()
            self.descriptor_of = source
        if self.descriptor is None:
            return 0               # the file is not there any more
        memset(&task, 0, sizeof(task))
        task.forget = True
        task.fd = self.descriptor.fd
        task.offset = start - min(start, <uint64_t> FOLIOS)
        task.size = end - task.offset
        self.forgotten.append(forgetter.push(task, self.descriptor))
        if len(self.forgotten) > MOST_FORGOTTEN:  # a window was read since
            forgetter.wait(self.forgotten.pop(0))
        return 0

    cdef int finish(self, Prefetcher forgetter) except -1:
        """Give back the rest."""
        cdef Part part
        for part in self.parts.values():
            self.give_back(part, forgetter)
        if self.forgotten:
            forgetter.wait(self.forgotten[len(self.forgotten) - 1])
        return 0
