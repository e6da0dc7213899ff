from fastshard._core.shard cimport Shard

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
    cdef bint is_near(self, SampleBase sample) except -1
    cdef list places(self, SampleBase sample)
    cdef void expect(self, Py_ssize_t i, int away) noexcept


cdef class SampleBase:
    cdef readonly SamplesBase samples  # that it is one of
    cdef tuple only                # the fields that it shows; None: all
    cdef public object decoders    # of the caller's own; None: none
    cdef Py_ssize_t width(self) except -1
    cpdef narrow(self, tuple only, bint required, object decoders)
    cdef readonly Py_ssize_t position
    cpdef Py_ssize_t member(self, field) except -1
