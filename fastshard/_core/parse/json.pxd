from libc.stdint cimport int32_t, uint8_t, uint64_t

from fastshard._core.span cimport span_t

cdef enum json_status_t:
    JSON_OK
    JSON_END                       # of an object or an array
    JSON_NO_MEMORY
    JSON_CUT                       # from here on: faults, at `fault_at`
    JSON_NO_VALUE
    JSON_NO_KEY
    JSON_NO_STRING
    JSON_NO_COLON
    JSON_NO_COMMA
    JSON_NO_OBJECT
    JSON_BAD_NUMBER
    JSON_NOT_UNSIGNED
    JSON_OVERFLOW
    JSON_CONTROL
    JSON_BAD_UTF8
    JSON_BAD_ESCAPE
    JSON_SURROGATE
    JSON_DEEP
    JSON_TRAILING
    JSON_STATUSES

cdef struct json_t:                # state of a parser
    span_t rest                    # text not read yet; borrowed
    size_t size                    # bytes of the whole text
    size_t fault_at                # offset of a fault in bytes
    int depth                      # open objects and arrays
    bint any_surrogate             # lone surrogates are accepted: no name

cdef struct json_string_t:
    span_t raw                     # between the quotes; validated, still escaped
    bint escaped

cdef size_t json_at(const json_t *json) noexcept nogil
cdef int json_fault_at(json_t *json, int status, size_t at) noexcept nogil
cdef int json_fault(json_t *json, int status) noexcept nogil
cdef uint8_t json_next(const json_t *json) noexcept nogil
cdef void json_space(json_t *json) noexcept nogil
cdef int json_string(json_t *json, json_string_t *text) noexcept nogil
cdef size_t json_unescape(span_t raw, uint8_t *to) noexcept nogil
cdef int json_unsigned(json_t *json, uint64_t *value) noexcept nogil
cdef int json_open(json_t *json) noexcept nogil
cdef int json_item(json_t *json, bint first, uint8_t end) noexcept nogil
cdef int json_key(json_t *json, bint first, json_string_t *key) noexcept nogil
cdef int json_skip(json_t *json) noexcept nogil
