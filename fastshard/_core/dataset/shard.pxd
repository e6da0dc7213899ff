from libc.stdint cimport int64_t, uint8_t, uint64_t

from fastshard._core.table.extents cimport ExtentTable
from fastshard._core.table.grouping cimport Grouping
from fastshard._core.table.order cimport Order
from fastshard._core.io.source cimport MappedSource, Source

ctypedef object (*array_maker_t)(Shard, Py_ssize_t, object, object)

cdef array_maker_t array_maker     # NULL until NumPy was asked for


cdef class Shard:
    cdef Source source             # None once closed
    cdef MappedSource direct       # the same, where `view_of` may use it; or None
    cdef ExtentTable table
    cdef readonly str path
    cdef readonly str mode
    cdef object seen               # what arrays.pyx remembers of its members
    cdef object __weakref__
    cdef Source open_source(self)
    cdef Py_ssize_t find(self, object key) except -1
    cdef int extent(self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size) except -1
    cdef int check_extent(
        self, Source source, Py_ssize_t i, uint64_t offset, uint64_t size
    ) except -1
    cdef bint guess(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) noexcept
    cdef int prove(self, Source source, Py_ssize_t i) except -1
    cdef object hold(self, Py_ssize_t i, uint8_t **at, uint64_t *size)
    cdef object of_member(self, object error, Py_ssize_t i)
    cdef object view_at(self, Py_ssize_t i)


cdef enum:                         # samples until one is made: what it needs first
    FAR = 24                       # where its members are listed
    NEARER = 16                    # where its first member is
    NEAR = 8                       # that one's name and first bytes


cdef class SamplesBase:
    cdef readonly Shard shard      # that holds all of them; None: there are several
    cdef type sample_type          # the subclass of `SampleBase` to make
    cdef Py_ssize_t find(self, object key) except -1
    cdef object item(self, Py_ssize_t i)
    cdef object sample_at(self, Py_ssize_t i)
    cdef Py_ssize_t count(self) except -1
    cdef str key(self, Py_ssize_t i)
    cdef Py_ssize_t search(self, object key) except -2
    cdef str where(self)
    cdef list fields(self, Py_ssize_t i)
    cdef Py_ssize_t width(self, Py_ssize_t i) except -1
    cdef Py_ssize_t member(self, Py_ssize_t i, object field) except -2
    cdef Shard holder(self, Py_ssize_t i, object field)
    cdef bint is_resident(self, SampleBase sample) except -1
    cdef list places(self, SampleBase sample)
    cdef void expect(self, Py_ssize_t i, int away) noexcept


cdef class SampleBase:
    cdef readonly SamplesBase samples  # that it is one of
    cdef readonly Py_ssize_t position
    cdef tuple only                # the fields that it shows; None: all
    cdef public object decoders    # of the caller's own; None: none
    cdef Py_ssize_t width(self) except -1
    cdef int show(self, tuple only, bint required, object decoders) except -1
    cdef Py_ssize_t member_of(self, object field) except -1


cdef class GroupedSamples(SamplesBase):
    cdef readonly Grouping grouping


cdef class SampleLocator:
    cdef object kept               # the array that `starts` is of
    cdef const int64_t *starts    # of each shard, and how many there are
    cdef readonly Py_ssize_t total  # samples of all shards
    cdef readonly Py_ssize_t count  # of those that are in the order
    cdef Order order               # None: all, as they come
    cdef Py_ssize_t shards
    cdef list samples
    cdef bytearray used
    cdef object bring
    cdef Py_ssize_t wrapped(self, Py_ssize_t i) except -1
    cdef Py_ssize_t shard_of(self, Py_ssize_t i) noexcept
    cdef void locate(self, Py_ssize_t i, Py_ssize_t *shard, Py_ssize_t *at) noexcept
    cdef object sample_in(self, Py_ssize_t k, Py_ssize_t at)
