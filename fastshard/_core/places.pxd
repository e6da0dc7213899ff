from fastshard._core.table.order cimport Order


cdef class Places:
    cdef object kept               # the array that `starts` is of
    cdef const Py_ssize_t *starts
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
