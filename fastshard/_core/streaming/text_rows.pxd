from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.streaming.plan cimport RowSchema, RowTable


cdef class JsonSchema(RowSchema):
    cdef readonly str newline
    cdef list keys                 # of each name, the bytes that json.dumps writes


cdef class XsvSchema(RowSchema):
    cdef readonly str newline
    cdef readonly str separator
    cdef readonly bint lenient     # drop columns beyond those of the schema
    cdef bytes newline_bytes
    cdef bytes separator_bytes
    cdef bytes header              # of a file: the names
    cdef int *kinds                # of the encodings; see text_rows.pyx


cdef class JsonRows(RowTable):
    cdef JsonSchema json_schema
    cdef object decode_json(
        self, Py_ssize_t i, Py_ssize_t k, const uint8_t *at, uint64_t size,
        uint64_t start,
    )


cdef class XsvRows(RowTable):
    cdef XsvSchema xsv_schema
    cdef uint64_t body(
        self, Py_ssize_t i, const uint8_t *row, uint64_t size
    ) except? 0
    cdef object decode_value(self, Py_ssize_t k, const uint8_t *at, uint64_t size)
    cdef int check_count(self, Py_ssize_t i, Py_ssize_t found, bint more) except -1
    cdef object explain(self, Py_ssize_t i, Py_ssize_t k, uint64_t start, error)
