cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t

from fastshard._core.io.source cimport MappedSource, Source
from fastshard._core.platform cimport (
    fs_load_relaxed, fs_has_bit, fs_load, fs_load_pointer, fs_store_relaxed,
)
from fastshard._core.table.extents cimport ExtentTable
from fastshard._core.table.grouping cimport Grouping

cdef extern from *:
    bint FREE_THREADED "CYTHON_COMPILING_IN_CPYTHON_FREETHREADING"

ctypedef object (*array_maker_t)(Shard, Py_ssize_t, object, object)

cdef array_maker_t array_maker     # NULL until npy.pyx is imported


cdef enum:                         # stages of a look-up: samples ahead of the sample
    STAGE_LIST = 24                # where its members are listed
    STAGE_EXTENT = 16              # the extent of its first member
    STAGE_BYTES = 8                # that member's name and first bytes


cdef class Shard:
    cdef Source source             # None once closed
    cdef MappedSource direct       # the source, if `resident_view` may use it; or None
    cdef ExtentTable table
    cdef readonly str path
    cdef readonly str mode
    cdef object layouts            # LayoutCache of npy.pyx; None until it is used
    cdef bint builds               # the bytes of members are built by `pin`
    cdef object __weakref__
    cdef Source open_source(self)
    cdef Py_ssize_t find(self, object key) except -1
    cdef Py_ssize_t member_count(self) except -1
    cdef str member_name(self, Py_ssize_t i)
    cdef int extent(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) except -1
    cdef int check_extent(
        self, Source source, Py_ssize_t i, uint64_t offset, uint64_t size
    ) except -1
    cdef bint estimate_extent(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) noexcept
    cdef int check_header(self, Source source, Py_ssize_t i) except -1
    cdef object pin(self, Py_ssize_t i, uint8_t **at, uint64_t *size)
    cdef object make_view(self, Py_ssize_t i)
    cdef object annotate(self, object error, Py_ssize_t i)
    cdef object view_at(self, Py_ssize_t i)


cdef class SamplesBase:
    cdef readonly Shard shard      # holds all samples; None: several shards do
    cdef type sample_type          # subclass of `SampleBase` to create
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
    cdef list visible_members(self, SampleBase sample)
    cdef SamplesBase with_shard(self, Shard shard)
    cdef void prefetch(self, Py_ssize_t i, int stage) noexcept


cdef class SampleBase:
    cdef readonly SamplesBase samples  # the sequence it is an item of
    cdef readonly Py_ssize_t position
    cdef tuple only                # visible fields; None: all
    cdef public object decoders    # custom decoders, or None
    cdef Py_ssize_t width(self) except -1
    cdef int show(self, tuple only, bint required, object decoders) except -1
    cdef Py_ssize_t member_of(self, object field) except -1


cdef class GroupedSamples(SamplesBase):
    cdef readonly Grouping grouping


cdef class SampleDecoder:
    cdef object decode_resident(self, SamplesBase samples, Py_ssize_t i)


cdef object decode_item(SampleDecoder decoder, object samples, Py_ssize_t i)
cdef object call_decoder(SampleDecoder decoder, object sample, object where)


cdef list members_of_fields(SampleBase sample, tuple only)


cdef inline bint use_resident(Shard shard):
    """Count a read of a shard whose bytes are surely resident; False: ask the source.

    See `MappedSource.trusted`.
    """
    cdef MappedSource direct
    cdef Py_ssize_t trusted
    with cython.critical_section(shard):  # another thread may close it
        direct = shard.direct
    if direct is None:
        return False
    trusted = fs_load_relaxed(&direct.trusted)
    if trusted <= 0:
        return False
    fs_store_relaxed(&direct.trusted, trusted - 1)
    return True


cdef inline object resident_view(Shard shard, Py_ssize_t i):
    """Return a view of the member at a position in range, or None for the slow path.

    The fast path of a mapped file: its pages are surely resident and not bounded by a
    ring, and the member's extent and header are checked. `Shard.pin` is the slow path.
    """
    cdef MappedSource held
    # Borrowed: `MappedFile.view` uses it before any release.
    cdef PyObject *direct
    cdef uint64_t offset, size
    cdef Py_ssize_t trusted
    if FREE_THREADED:              # another thread may close it
        with cython.critical_section(shard):
            held = shard.direct
        direct = <PyObject *> held
    else:
        direct = <PyObject *> shard.direct
    if (
        direct != <PyObject *> None
        and fs_load_pointer(<void **> &shard.table.columns.blocks) == NULL
        and (shard.table.verified == NULL or fs_has_bit(shard.table.verified, i))
    ):
        trusted = fs_load_relaxed(&(<MappedSource> direct).trusted)
        offset = fs_load(shard.table.columns.offsets + i)
        size = fs_load(shard.table.columns.sizes + i)
        if trusted > 0 and offset <= (<MappedSource> direct).nbytes and (
            size <= (<MappedSource> direct).nbytes - offset
        ):
            fs_store_relaxed(&(<MappedSource> direct).trusted, trusted - 1)
            return (<MappedSource> direct).file.view(offset, size)
    return None
