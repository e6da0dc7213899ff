"""A keyed permutation of the numbers below a count, in constant memory and time.

A Feistel network over a grid of two mixed radices (Black and Rogaway, "Ciphers with
Arbitrary Finite Domains", CT-RSA 2002), whose rounds mix with the finaliser of
SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). Numbers that fall beside the count
are put through again until they do not (cycle walking): fewer than one in the square
root of the count. Whole numbers only: the same on every machine.
"""

from libc.stdint cimport uint64_t

cdef enum:
    SMALL = 512                    # positions: below, rounds cost less than bad luck
    ROUNDS = 8
    SMALL_ROUNDS = 24

cdef uint64_t LOW = 0xFFFFFFFF
cdef uint64_t GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64's step


cdef inline uint64_t key_of(const uint64_t *keys, uint64_t tweak, int round) noexcept nogil:
    return (keys[round % KEYS] ^ tweak) + <uint64_t> (round // KEYS) * GOLDEN


cdef inline uint64_t mixed(uint64_t x) noexcept nogil:
    x = (x ^ (x >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t> 0x94D049BB133111EB
    return x ^ (x >> 31)


cdef inline uint64_t below(uint64_t x, uint64_t width) noexcept nogil:
    """Scale 64 random bits to a number below `width`, which is at most 2**32."""
    return ((x >> 32) * width + ((x & LOW) * width >> 32)) >> 32


cdef inline uint64_t plus(uint64_t a, uint64_t b, uint64_t width) noexcept nogil:
    a += b                         # both are below `width`
    return a - width if a >= width else a


cdef domain_t domain_of(uint64_t count) noexcept nogil:
    """A grid about as wide as high, of an even height, that holds `count`, < 2**63."""
    cdef domain_t domain
    cdef uint64_t low = 1
    cdef uint64_t high = <uint64_t> 1 << 32
    cdef uint64_t middle
    while low < high:              # the least whose square holds it
        middle = low + (high - low) // 2
        if middle * middle >= count:
            high = middle
        else:
            low = middle + 1
    domain.count = count
    domain.height = low + (low & 1)  # rounds of an even length: odd permutations too
    domain.width = count // domain.height + (count % domain.height != 0)
    if domain.width == 0:
        domain.width = 1
    domain.rounds = SMALL_ROUNDS if count < SMALL else ROUNDS
    return domain


cdef uint64_t encrypted(
    const domain_t *domain, const uint64_t *keys, uint64_t tweak, uint64_t value
) noexcept nogil:
    cdef uint64_t left, right
    cdef uint64_t width = domain.width
    cdef uint64_t height = domain.height
    cdef int k
    while True:
        left = value // height
        right = value % height
        for k in range(0, domain.rounds, 2):
            left = plus(left, below(mixed(right + key_of(keys, tweak, k)), width), width)
            right = plus(right, below(mixed(left + key_of(keys, tweak, k + 1)), height), height)
        value = left * height + right
        if value < domain.count:
            return value


cdef uint64_t decrypted(
    const domain_t *domain, const uint64_t *keys, uint64_t tweak, uint64_t value
) noexcept nogil:
    cdef uint64_t left, right
    cdef uint64_t width = domain.width
    cdef uint64_t height = domain.height
    cdef uint64_t back
    cdef int k
    while True:
        left = value // height
        right = value % height
        for k in range(domain.rounds - 1, 0, -2):
            back = height - below(mixed(left + key_of(keys, tweak, k)), height)
            right = plus(right, back, height)
            back = width - below(mixed(right + key_of(keys, tweak, k - 1)), width)
            left = plus(left, back, width)
        value = left * height + right
        if value < domain.count:
            return value


cdef inline const domain_t *block_domain(
    const shuffle_t *shuffle, uint64_t block
) noexcept nogil:
    return &shuffle.last if block == (shuffle.count - 1) // shuffle.block else &shuffle.inside


cdef void find_last(shuffle_t *shuffle) noexcept nogil:
    """Note where the last block comes, which may be shorter than the others."""
    cdef uint64_t last = (shuffle.count - 1) // shuffle.block
    shuffle.last_at = last
    if not shuffle.local:
        shuffle.last_at = decrypted(&shuffle.whole, shuffle.keys, 0, last)


cdef uint64_t shuffled(const shuffle_t *shuffle, uint64_t place) noexcept nogil:
    """The position that comes at a place; both are below the count."""
    cdef uint64_t start, rank, rest, block
    if shuffle.block == 0:
        return encrypted(&shuffle.whole, shuffle.keys, 0, place)
    start = shuffle.last_at * shuffle.block
    rank = shuffle.last_at         # of the block among the shuffled ones
    if place < start:
        rank = place // shuffle.block
        rest = place - rank * shuffle.block
    elif place - start < shuffle.last.count:
        rest = place - start
    else:
        rest = place - start - shuffle.last.count
        rank += 1 + rest // shuffle.block
        rest %= shuffle.block
    block = rank if shuffle.local else encrypted(&shuffle.whole, shuffle.keys, 0, rank)
    rest = encrypted(block_domain(shuffle, block), shuffle.inner_keys, mixed(block + 1), rest)
    return block * shuffle.block + rest


cdef uint64_t place_in(const shuffle_t *shuffle, uint64_t position) noexcept nogil:
    """The place where a position comes: the inverse of `shuffled`."""
    cdef uint64_t block, rest, rank
    if shuffle.block == 0:
        return decrypted(&shuffle.whole, shuffle.keys, 0, position)
    block = position // shuffle.block
    rest = decrypted(
        block_domain(shuffle, block), shuffle.inner_keys, mixed(block + 1),
        position % shuffle.block,
    )
    rank = block if shuffle.local else decrypted(&shuffle.whole, shuffle.keys, 0, block)
    rest += rank * shuffle.block
    if rank > shuffle.last_at:
        rest -= shuffle.block - shuffle.last.count
    return rest
