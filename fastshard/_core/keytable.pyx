"""Keys of a whole dataset as rows that can be sorted and searched.

A row is one u64: 32 bits of a key's hash above 32 bits of the sample's position
in the dataset. Equal keys have equal hashes, so that a key's candidates stand
together in sorted rows. The hash is SipHash-1-3 with a seed of 16 bytes that is
stored with the rows.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastshard._core.extents cimport name_at, text_to
from fastshard._core.grouping cimport Grouping
from fastshard._core.groups cimport (
    groups_t, key_at, member_at, places_of, plain_name,
)
from fastshard._core.hashing cimport hash_bytes
from fastshard._core.span cimport span_of, span_t

cdef uint64_t MOST = 0xffffffff    # positions that a row can hold


cdef int seed_words(bytes seed, uint64_t *words) except -1:
    if len(seed) != 16:
        raise ValueError(f"a seed has 16 bytes, not {len(seed)}")
    memcpy(words, <const char *> seed, 16)
    return 0


cdef span_t stored_key_at(const groups_t *groups, uint32_t sample) noexcept nogil:
    """The key of a sample with the ``./`` that stands before its first member."""
    cdef span_t key = key_at(groups, sample)
    cdef span_t name
    cdef uint32_t start, end
    places_of(groups, sample, &start, &end)
    if start == end:
        return key
    name = name_at(groups.columns, member_at(groups, start))
    return span_of(name.at, name.left - plain_name(name).left + key.left)


def key_rows(
    Grouping grouping not None, uint64_t first, bytes seed not None,
    uint64_t[::1] rows not None, *, bint older=False,
):
    """Write a row for each sample of a shard; makes them without the GIL.

    Parameters
    ----------
    grouping : Grouping
    first : int
        Position of the shard's first sample in the dataset.
    seed : bytes
        16 of them.
    rows : writable buffer of uint64 [samples]
    older : bool
        As earlier releases wrote them, to whom a leading ``./`` was part of a key.
    """
    cdef uint64_t[2] words
    cdef groups_t *groups = grouping.built()
    cdef uint32_t i
    cdef span_t key
    cdef uint64_t hashed
    grouping.check_all()
    seed_words(seed, words)
    if rows.shape[0] != groups.count:
        raise ValueError(f"{groups.count:,} samples, and {rows.shape[0]:,} rows")
    if first > MOST or groups.count > MOST - first:
        raise OverflowError("too many samples for a table of keys")
    with nogil:
        for i in range(groups.count):
            key = stored_key_at(groups, i) if older else key_at(groups, i)
            hashed = hash_bytes(key, words)
            rows[i] = (hashed >> 32) << 32 | (first + i)


def key_hash(str key not None, bytes seed not None):
    """Return the 32 bits that a key's rows begin with; None if no name has it."""
    cdef uint64_t[2] words
    cdef span_t text
    cdef object keeper = text_to(key, &text)
    seed_words(seed, words)
    return None if keeper is None else hash_bytes(text, words) >> 32


def plain_key(str key not None):
    """Return a key without a leading ``./``, which is part of no key."""
    cdef Py_ssize_t start = 0
    while key.startswith("./", start):
        start += 2
        while key.startswith("/", start):
            start += 1
    return key[start:] if start else key
