from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.span cimport span_t

cdef enum pax_status_t:
    PAX_OK
    PAX_MALFORMED
    PAX_BAD_NUMBER
    PAX_BAD_NAME
    PAX_NO_MEMORY

cdef enum pax_refused_t:           # members that are not stored as they are
    PAX_NOT_REFUSED
    PAX_SPARSE
    PAX_MULTI_VOLUME
    PAX_INCREMENTAL

cdef enum pax_value_t:
    PAX_UNSAID
    PAX_SAID
    PAX_DELETED                    # a record without a value: the header's counts

cdef struct pax_t:                 # what extension headers say of members
    uint8_t *path                  # owned
    size_t path_size
    size_t path_room
    uint64_t size
    uint64_t real_size             # of a sparse file, by star
    int path_state                 # three pax_value_t
    int size_state
    int real_size_state
    int refused                    # a pax_refused_t

cdef int pax_set_path(pax_t *pax, span_t path) noexcept nogil
cdef void pax_clear(pax_t *pax) noexcept nogil
cdef void pax_free(pax_t *pax) noexcept nogil
cdef void pax_replace(pax_t *pax, pax_t *later) noexcept nogil
cdef int pax_parse(pax_t *pax, span_t text, size_t *fault) noexcept nogil
