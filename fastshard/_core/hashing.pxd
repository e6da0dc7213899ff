from libc.stdint cimport uint32_t, uint64_t

from fastshard._core.span cimport span_t

cdef enum:
    MAX_ENTRIES = 0xfffffffe       # what a slot of 32 bits can number

# Gives the text of an entry; `context` is the caller's.
ctypedef span_t (*text_at_t)(const void *context, uint32_t entry) noexcept nogil

cdef struct slots_t:               # a hash table of entry numbers, no texts in it
    uint32_t *slots                # 0: empty; else high bits of the hash | entry + 1
    size_t mask                    # slots - 1
    uint32_t entry_mask            # the bits of a slot that hold entry + 1

cdef uint64_t hash_bytes(span_t text, const uint64_t *key) noexcept nogil
cdef bint slots_init(slots_t *table, size_t entries) noexcept nogil
cdef void slots_free(slots_t *table) noexcept nogil
cdef uint64_t slots_hash(span_t text) noexcept nogil
cdef uint32_t slots_likely(const slots_t *table, uint64_t hashed) noexcept nogil
cdef uint32_t *slots_find(
    const slots_t *table, span_t text, text_at_t text_at, const void *context,
    uint32_t *filling,
) noexcept nogil

cdef uint32_t *slots_find_hashed(
    const slots_t *table, uint64_t hashed, span_t text, text_at_t text_at,
    const void *context, uint32_t *filling,
) noexcept nogil


cdef inline const uint32_t *slots_home(
    const slots_t *table, uint64_t hashed
) noexcept nogil:
    """The slot where a text is looked for first."""
    return &table.slots[<size_t> hashed & table.mask]


cdef inline uint32_t slot_entry(const slots_t *table, uint32_t slot) noexcept nogil:
    """The entry in a slot that is not empty."""
    return (slot & table.entry_mask) - 1
