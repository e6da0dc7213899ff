"""Texts to entry numbers: SipHash-1-3 over an open-addressing table.

SipHash (Aumasson and Bernstein, 2012; https://www.aumasson.jp/siphash/) with a
random key a process, never stored: a file cannot be made to collide. A slot is
32 bits: the entry's number + 1, and above it as many bits of the hash as fit,
so that most wrong texts are passed over without looking at them.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from fastshard._core.span cimport span_t, take

import os

cdef uint64_t[2] KEY
KEY[0] = int.from_bytes(os.urandom(8), "little")
KEY[1] = int.from_bytes(os.urandom(8), "little")


cdef inline uint64_t rotated(uint64_t word, int bits) noexcept nogil:
    return (word << bits) | (word >> (64 - bits))


cdef inline void sip_round(uint64_t *v) noexcept nogil:
    v[0] += v[1]
    v[1] = rotated(v[1], 13) ^ v[0]
    v[0] = rotated(v[0], 32)
    v[2] += v[3]
    v[3] = rotated(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = rotated(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = rotated(v[1], 17) ^ v[2]
    v[2] = rotated(v[2], 32)


cdef inline void absorb(uint64_t *v, uint64_t word) noexcept nogil:
    v[3] ^= word
    sip_round(v)
    v[0] ^= word


cdef uint64_t hash_bytes(span_t text, const uint64_t *key) noexcept nogil:
    cdef size_t i
    cdef size_t _
    cdef uint64_t[4] v
    cdef uint64_t word
    cdef uint64_t last = <uint64_t> text.left << 56
    cdef const uint8_t *part
    v[0] = key[0] ^ 0x736f6d6570736575ULL
    v[1] = key[1] ^ 0x646f72616e646f6dULL
    v[2] = key[0] ^ 0x6c7967656e657261ULL
    v[3] = key[1] ^ 0x7465646279746573ULL
    while text.left >= 8:
        part = take(&text, 8)
        memcpy(&word, part, 8)
        absorb(v, word)
    for i in range(text.left):
        last |= <uint64_t> text.at[i] << (8 * i)
    absorb(v, last)
    v[2] ^= 0xff
    for _ in range(3):
        sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


cdef bint slots_init(slots_t *table, size_t entries) noexcept nogil:
    """Make room for `entries` at a load of at most 3/4; False: no memory."""
    cdef size_t wanted = entries + entries // 3 + 1
    cdef size_t size = 8
    cdef uint64_t entry_mask = 1
    while size < wanted:
        size <<= 1
    while entry_mask < entries:    # entry + 1 is at most `entries`
        entry_mask = (entry_mask << 1) | 1
    table.slots = <uint32_t *> calloc(size, sizeof(uint32_t))
    table.mask = size - 1
    table.entry_mask = <uint32_t> entry_mask
    return table.slots != NULL


cdef void slots_free(slots_t *table) noexcept nogil:
    free(table.slots)
    table.slots = NULL


cdef uint64_t slots_hash(span_t text) noexcept nogil:
    return hash_bytes(text, KEY)


cdef uint32_t slots_likely(const slots_t *table, uint64_t hashed) noexcept nogil:
    """Return the first slot that may be a text's, by its hash alone; 0: none is."""
    cdef uint32_t tag = <uint32_t> (hashed >> 32) & ~table.entry_mask
    cdef size_t at = <size_t> hashed & table.mask
    while table.slots[at] != 0 and table.slots[at] & ~table.entry_mask != tag:
        at = (at + 1) & table.mask
    return table.slots[at]


cdef uint32_t *slots_find(
    const slots_t *table, span_t text, text_at_t text_at, const void *context,
    uint32_t *filling,
) noexcept nogil:
    """Return the slot of `text`, or the empty one where it would go.

    To put entry `e` there, store ``filling[0] | (e + 1)``.
    """
    return slots_find_hashed(
        table, hash_bytes(text, KEY), text, text_at, context, filling
    )


cdef uint32_t *slots_find_hashed(
    const slots_t *table, uint64_t hashed, span_t text, text_at_t text_at,
    const void *context, uint32_t *filling,
) noexcept nogil:
    """The same for a text whose hash is known."""
    cdef uint32_t tag = <uint32_t> (hashed >> 32) & ~table.entry_mask
    cdef size_t at = <size_t> hashed & table.mask
    cdef uint32_t slot
    cdef span_t found
    filling[0] = tag
    while True:
        slot = table.slots[at]
        if slot == 0:
            break
        if slot & ~table.entry_mask == tag:
            found = text_at(context, slot_entry(table, slot))
            if (
                found.left == text.left
                and memcmp(found.at, text.at, text.left) == 0
            ):
                break
        at = (at + 1) & table.mask
    return &table.slots[at]
