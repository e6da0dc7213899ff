from fastshard._core.places cimport Places

cdef enum:
    RING = 32                      # a power of two above FAR


cdef struct place_t:
    Py_ssize_t shard
    Py_ssize_t at                  # of the sample among those of the shard


cdef class Coming:
    cdef Places places
    cdef tuple positions           # places; None: from 0 on
    cdef Py_ssize_t count
    cdef Py_ssize_t known          # places that were looked up
    cdef place_t[RING] ring
    cdef object sample(self, Py_ssize_t i)
    cdef int look_ahead(self, Py_ssize_t i) except -1
    cdef void expect(self, const place_t *place, int away) noexcept
