from libc.stdint cimport uint64_t

cdef enum:
    KEYS = 8                       # of a permutation; in small grids each serves often


cdef struct domain_t:              # the grid of `width * height` that `count` lies in
    uint64_t count
    uint64_t width
    uint64_t height
    int rounds


cdef struct shuffle_t:
    uint64_t count
    uint64_t block                 # samples of a block; 0: one permutation of all
    bint local                     # blocks stay where they are
    domain_t whole                 # of positions, or of blocks
    domain_t inside                # of the positions in a block
    domain_t last                  # in the last block, which may be shorter
    uint64_t last_at               # the place where the last block comes
    uint64_t[KEYS] keys
    uint64_t[KEYS] inner_keys


cdef domain_t domain_of(uint64_t count) noexcept nogil
cdef uint64_t shuffled(const shuffle_t *shuffle, uint64_t place) noexcept nogil
cdef uint64_t place_in(const shuffle_t *shuffle, uint64_t position) noexcept nogil
cdef void find_last(shuffle_t *shuffle) noexcept nogil
