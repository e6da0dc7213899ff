from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.mapped cimport MappedFile


cdef enum:
    TRUSTED_READS = 256            # reads between two looks at the clock
    SETTLE = 50_000_000            # ns that pages may be on their way
    MOST_PROBES = 128              # descriptors of the process that are kept to ask by
    SIZE_EVERY = 5_000_000         # ns between two looks at a file's size by its path
    LOOK_EVERY = 200_000_000       # ns; asking about a GB takes some 100 us
    MOST_ASKED = 16 << 10          # MiB: asking about a larger file takes too long
    MOST_BROUGHT = 16 << 20        # bytes of one member that are waited for


cdef class Descriptor:
    cdef int fd
    cdef bint stays                # it counts among those that are kept
    cdef bint may_stay(self) noexcept


cdef class Residency:
    cdef MappedFile file
    cdef uint64_t device
    cdef uint64_t inode
    cdef bint told                 # the kernel says which of its pages are cached
    cdef Descriptor checked        # to ask for the size by at every read, or None
    cdef Descriptor probe          # to ask for parts by, or None
    cdef uint64_t asking           # since when a thread is, ns, or 0
    cdef uint64_t calm_from        # until then pages may be on their way, ns
    cdef uint64_t next_look        # when the cache is asked again, ns
    cdef bint whole                # what it said
    cdef bint is_whole(self) except -1
    cdef uint64_t next_size        # when the size is asked for by path again, ns
    cdef int check_size(self) except -1
    cdef int prepare(self) except -1
    cdef int bring(self, uint64_t offset, uint64_t size) except -1
    cdef bint has(self, uint64_t offset, uint64_t size) noexcept
    cdef int ask(self, Descriptor probe) except -1
    cdef Descriptor open_again(self)
    cdef object failure(self, uint64_t offset, int code)
