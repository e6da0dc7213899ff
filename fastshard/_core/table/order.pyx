"""Orders: sequences of positions, in constant memory unless the positions are listed.

An order maps ordinals (0-based indices into the order) to positions. A shuffle is a
keyed permutation in constant memory and time: a Feistel network over a grid of two
mixed radices (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002),
whose rounds mix with the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
Numbers above the count are permuted again until they are below it (cycle walking):
fewer than one in the square root of the count. All arithmetic is in integers: results
are the same on every machine.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.number cimport PyNumber_Index
from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.string cimport memset

from fastshard._core.buffers cimport int64s_of

from math import gcd

cdef enum:
    KEYS = 8                       # of a permutation; reused in more than 8 rounds
    SMALL = 512                    # positions; smaller grids need more rounds to mix
    ROUNDS = 8
    SMALL_ROUNDS = 24
    MAX_DEPTH = 1000               # orders chained to one another

cdef uint64_t LOW = 0xFFFFFFFF
cdef uint64_t GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64's step

cdef struct domain_t:              # the grid of `width * height` that `count` lies in
    uint64_t count
    uint64_t width
    uint64_t height
    int rounds

cdef struct shuffle_t:
    uint64_t count
    uint64_t block                 # samples of a block; 0: one permutation of all
    bint local                     # blocks keep their order
    domain_t whole                 # of positions, or of blocks
    domain_t inside                # of the positions in a block
    domain_t last                  # of those in the last block, which may be shorter
    uint64_t last_at               # rank of the last block among the shuffled blocks
    uint64_t[KEYS] keys
    uint64_t[KEYS] inner_keys


# Permutations.

cdef inline uint64_t key_of(
    const uint64_t *keys, uint64_t tweak, int round
) noexcept nogil:
    """Return the key of a round."""
    return (keys[round % KEYS] ^ tweak) + <uint64_t> (round // KEYS) * GOLDEN


cdef inline uint64_t mix(uint64_t x) noexcept nogil:
    """Return the finalizer of SplitMix64."""
    x = (x ^ (x >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t> 0x94D049BB133111EB
    return x ^ (x >> 31)


cdef inline uint64_t scale_below(uint64_t x, uint64_t width) noexcept nogil:
    """Scale 64 random bits to a number below `width`, which is at most 2**32."""
    return ((x >> 32) * width + ((x & LOW) * width >> 32)) >> 32


cdef inline uint64_t add_mod(uint64_t a, uint64_t b, uint64_t width) noexcept nogil:
    a += b                         # both below `width`
    return a - width if a >= width else a


cdef domain_t domain_of(uint64_t count) noexcept nogil:
    """Return a nearly square grid of even height for `count` numbers, below 2**63."""
    cdef domain_t domain
    cdef uint64_t low = 1
    cdef uint64_t high = <uint64_t> 1 << 32
    cdef uint64_t middle
    while low < high:              # binary search of the square root, rounded up
        middle = low + (high - low) // 2
        if middle * middle >= count:
            high = middle
        else:
            low = middle + 1
    domain.count = count
    domain.height = low + (low & 1)  # even, so that odd permutations can occur too
    domain.width = count // domain.height + (count % domain.height != 0)
    if domain.width == 0:
        domain.width = 1
    domain.rounds = SMALL_ROUNDS if count < SMALL else ROUNDS
    return domain


cdef uint64_t permute(
    const domain_t *domain, const uint64_t *keys, uint64_t tweak, uint64_t value
) noexcept nogil:
    """Return the image of a value under the keyed permutation of a domain."""
    cdef uint64_t left, right, shift
    cdef uint64_t width = domain.width
    cdef uint64_t height = domain.height
    cdef int k
    while True:
        left = value // height
        right = value % height
        for k in range(0, domain.rounds, 2):
            shift = scale_below(mix(right + key_of(keys, tweak, k)), width)
            left = add_mod(left, shift, width)
            shift = scale_below(mix(left + key_of(keys, tweak, k + 1)), height)
            right = add_mod(right, shift, height)
        value = left * height + right
        if value < domain.count:
            return value


cdef uint64_t unpermute(
    const domain_t *domain, const uint64_t *keys, uint64_t tweak, uint64_t value
) noexcept nogil:
    """Invert `permute`."""
    cdef uint64_t left, right
    cdef uint64_t width = domain.width
    cdef uint64_t height = domain.height
    cdef uint64_t back
    cdef int k
    while True:
        left = value // height
        right = value % height
        for k in range(domain.rounds - 1, 0, -2):
            back = height - scale_below(mix(left + key_of(keys, tweak, k)), height)
            right = add_mod(right, back, height)
            back = width - scale_below(mix(right + key_of(keys, tweak, k - 1)), width)
            left = add_mod(left, back, width)
        value = left * height + right
        if value < domain.count:
            return value


cdef inline const domain_t *block_domain(
    const shuffle_t *shuffle, uint64_t block
) noexcept nogil:
    """Return the domain of the positions in a block."""
    if block == (shuffle.count - 1) // shuffle.block:
        return &shuffle.last
    return &shuffle.inside


cdef void find_last(shuffle_t *shuffle) noexcept nogil:
    """Set `last_at`: the last block may be shorter than the others."""
    cdef uint64_t last = (shuffle.count - 1) // shuffle.block
    shuffle.last_at = last
    if not shuffle.local:
        shuffle.last_at = unpermute(&shuffle.whole, shuffle.keys, 0, last)


cdef uint64_t shuffle_at(const shuffle_t *shuffle, uint64_t ordinal) noexcept nogil:
    """Return the position at an ordinal; both are below the count."""
    cdef uint64_t start, rank, rest, block
    if shuffle.block == 0:
        return permute(&shuffle.whole, shuffle.keys, 0, ordinal)
    start = shuffle.last_at * shuffle.block
    rank = shuffle.last_at         # of the block among the shuffled blocks
    if ordinal < start:
        rank = ordinal // shuffle.block
        rest = ordinal - rank * shuffle.block
    elif ordinal - start < shuffle.last.count:
        rest = ordinal - start
    else:
        rest = ordinal - start - shuffle.last.count
        rank += 1 + rest // shuffle.block
        rest %= shuffle.block
    block = rank if shuffle.local else permute(&shuffle.whole, shuffle.keys, 0, rank)
    rest = permute(
        block_domain(shuffle, block), shuffle.inner_keys, mix(block + 1), rest
    )
    return block * shuffle.block + rest


cdef uint64_t unshuffle(const shuffle_t *shuffle, uint64_t position) noexcept nogil:
    """Return the ordinal of a position: the inverse of `shuffle_at`."""
    cdef uint64_t block, rest, rank
    if shuffle.block == 0:
        return unpermute(&shuffle.whole, shuffle.keys, 0, position)
    block = position // shuffle.block
    rest = unpermute(
        block_domain(shuffle, block), shuffle.inner_keys, mix(block + 1),
        position % shuffle.block,
    )
    rank = block if shuffle.local else unpermute(&shuffle.whole, shuffle.keys, 0, block)
    rest += rank * shuffle.block
    if rank > shuffle.last_at:
        rest -= shuffle.block - shuffle.last.count
    return rest


# Orders.

cdef int depth_of(Order order):
    return (<Chain> order).depth if isinstance(order, Chain) else 0


cdef int64_t check_range(object number, str name, int64_t least) except? -1:
    """Return an argument as int64; raise ValueError unless it is at least `least`."""
    whole = PyNumber_Index(number)
    if not least <= whole <= INT64_MAX:
        raise ValueError(f"{name} must be from {least} to 2**63 - 1, got {whole}")
    return whole


cdef class Order:
    """Base of orders: a sequence of `count` positions below `limit`, immutable."""

    cdef int64_t at(self, int64_t ordinal) noexcept:
        """Return the position at an ordinal, which is in range."""
        return ordinal

    cdef int64_t ordinal_of(self, int64_t position) except -2:
        """Return the first ordinal of a position, or -1."""
        return -1

    cdef bint may_repeat(self) except -1:
        """Return whether a position may have several ordinals."""
        return False

    cpdef Order after(self, Order first):
        """Return the composition: look up ordinals in `first`, then in this order."""
        cdef int64_t i
        cdef int64_t *found
        cdef Py_buffer buffer
        if first.limit > self.count:
            raise ValueError(
                f"positions of `first` must be below {self.count}, got {first.limit}"
            )
        if not isinstance(first, PositionList):
            return Chain(first, self)
        numbers = first.positions(0, first.count)
        found = int64s_of(numbers, &buffer, writable=True)
        for i in range(first.count):
            found[i] = self.at(found[i])
        PyBuffer_Release(&buffer)
        return PositionList(numbers, self.limit, owned=True)

    def __len__(self):
        return self.count

    def __getitem__(self, ordinal):
        """Return the position at an ordinal; negative ones count from the end."""
        cdef int64_t i = PyNumber_Index(ordinal)
        if not -self.count <= i < self.count:
            raise IndexError(
                f"ordinal {i} is out of range: there are {self.count:,} positions"
            )
        return self.at(i + self.count if i < 0 else i)

    def find(self, position):
        """Return the first ordinal of a position, or -1."""
        cdef int64_t wanted = PyNumber_Index(position)
        return self.ordinal_of(wanted) if 0 <= wanted < self.limit else -1

    def positions(self, start, stop):
        """Return the positions at ordinals from `start` to `stop`, an int64 array."""
        import numpy

        cdef int64_t i
        cdef int64_t begin = PyNumber_Index(start)
        cdef int64_t end = PyNumber_Index(stop)
        cdef int64_t *found
        cdef Py_buffer buffer
        if not 0 <= begin <= end <= self.count:
            raise IndexError(
                f"expected 0 <= start <= stop <= {self.count:,}, got {start} and {stop}"
            )
        numbers = numpy.empty(end - begin, numpy.int64)
        found = int64s_of(numbers, &buffer, writable=True)
        for i in range(begin, end):
            found[i - begin] = self.at(i)
        PyBuffer_Release(&buffer)
        return numbers

    def __array__(self, dtype=None, copy=None):
        numbers = self.positions(0, self.count)
        return numbers if dtype is None else numbers.astype(dtype, copy=False)


@cython.final
cdef class Stride(Order):
    """Every `step`-th position from `start`, modulo `limit` if `wraps`."""

    cdef int64_t start
    cdef int64_t step
    cdef bint wraps

    def __cinit__(self, start, step, count, limit, *, bint wraps=False):
        self.start = check_range(start, "start", 0)
        self.step = check_range(step, "step", -INT64_MAX)
        if step == 0:
            raise ValueError("step must not be 0")
        self.count = check_range(count, "count", 0)
        self.limit = check_range(limit, "limit", 0)
        self.wraps = wraps
        if count == 0:
            return
        last = int(start) + (int(count) - 1) * int(step)
        inside = self.limit > 0 and step > 0 and last <= INT64_MAX
        if not (inside if wraps else start < limit and 0 <= last < limit):
            raise ValueError(
                f"{count} positions from {start} by {step} are not all below {limit}"
            )

    cdef int64_t at(self, int64_t ordinal) noexcept:
        cdef int64_t position = self.start + ordinal * self.step
        if self.wraps and position >= self.limit:
            return position % self.limit
        return position

    cdef int64_t ordinal_of(self, int64_t position) except -2:
        cdef int64_t ordinal
        if self.count == 0:
            return -1
        if self.wraps:
            return self.wrapped_ordinal(position)
        if (position - self.start) % self.step != 0:
            return -1
        ordinal = (position - self.start) // self.step
        return ordinal if 0 <= ordinal < self.count else -1

    cdef int64_t wrapped_ordinal(self, int64_t position) except -2:
        """Return the least ordinal of a position, or -1, if the order wraps.

        Solves ``position + k * limit == start + ordinal * step`` for the least `k`.
        """
        common = gcd(self.limit, self.step)
        period = int(self.step) // common
        away = int(self.start) - position
        if away % common != 0:
            return -1
        k = away // common * pow(self.limit // common, -1, period) % period
        least = max(0, -(-away // self.limit))  # the ordinal must not be negative
        k += -(-max(0, least - k) // period) * period
        found = (position + k * self.limit - self.start) // self.step
        return found if found < self.count else -1

    cdef bint may_repeat(self) except -1:
        return self.wraps

    cpdef Order after(self, Order first):
        cdef Stride other
        if isinstance(first, Stride) and not self.wraps and first.limit <= self.count:
            other = first
            if not other.wraps and other.count > 0:
                start = self.start + other.start * self.step
                step = int(self.step) * other.step
                return Stride(start, step, other.count, self.limit)
        return Order.after(self, first)

    def __reduce__(self):
        return _stride, (self.start, self.step, self.count, self.limit, self.wraps)


def _stride(start, step, count, limit, wraps):
    return Stride(start, step, count, limit, wraps=wraps)


@cython.final
cdef class Chunks(Order):
    """Every `workers`-th chunk of `size` positions, starting with chunk `worker`."""

    cdef int64_t size
    cdef int64_t worker
    cdef int64_t workers

    def __cinit__(self, size, worker, workers, limit):
        cdef int64_t whole, rest
        self.size = check_range(size, "size", 1)
        self.worker = check_range(worker, "worker", 0)
        self.workers = check_range(workers, "workers", 1)
        self.limit = check_range(limit, "limit", 0)
        if self.worker >= self.workers:
            raise ValueError(f"worker must be below {workers}, got {worker}")
        whole = self.limit // self.size
        rest = self.limit - whole * self.size
        if whole > self.worker:
            self.count = (1 + (whole - 1 - self.worker) // self.workers) * self.size
        if rest > 0 and whole % self.workers == self.worker:
            self.count += rest

    cdef int64_t at(self, int64_t ordinal) noexcept:
        cdef int64_t chunk = ordinal // self.size
        cdef int64_t rest = ordinal - chunk * self.size
        return (chunk * self.workers + self.worker) * self.size + rest

    cdef int64_t ordinal_of(self, int64_t position) except -2:
        cdef int64_t chunk = position // self.size
        if chunk % self.workers != self.worker:
            return -1
        return chunk // self.workers * self.size + position - chunk * self.size

    def __reduce__(self):
        return Chunks, (self.size, self.worker, self.workers, self.limit)


@cython.final
cdef class PositionList(Order):
    """Order of listed positions."""

    cdef object numbers            # ndarray of int64
    cdef const int64_t *values     # of `numbers`
    cdef object sorted             # ordinals sorted by position; None until needed
    cdef bint unique               # no position comes twice; valid once `sorted`

    def __cinit__(self, numbers not None, limit, *, bint owned=False):
        import numpy

        cdef int64_t i
        cdef Py_buffer buffer
        if not owned:              # the caller may change it
            numbers = numpy.array(numbers, numpy.int64)
        self.numbers = numpy.ascontiguousarray(numbers, numpy.int64)
        self.numbers.flags.writeable = False
        if self.numbers.ndim != 1:
            raise ValueError(f"expected 1 dimension, got {self.numbers.ndim}")
        self.values = int64s_of(self.numbers, &buffer)
        self.count = buffer.len // 8
        PyBuffer_Release(&buffer)  # `numbers` keeps the memory
        self.limit = check_range(limit, "limit", 0)
        for i in range(self.count):
            if not 0 <= self.values[i] < self.limit:
                raise ValueError(
                    f"positions must be from 0 to {limit} - 1, got {self.values[i]}"
                )

    cdef int64_t at(self, int64_t ordinal) noexcept:
        return self.values[ordinal]

    cdef int64_t ordinal_of(self, int64_t position) except -2:
        import numpy

        if self.sorted is None:    # stable, so that the first of equals is found
            ordinals = numpy.argsort(self.numbers, kind="stable")
            self.unique = not (numpy.diff(self.numbers[ordinals]) == 0).any()
            self.sorted = ordinals
        i = numpy.searchsorted(self.numbers, position, sorter=self.sorted)
        if i == self.count or self.numbers[self.sorted[i]] != position:
            return -1
        return self.sorted[i]

    cpdef Order after(self, Order first):
        if isinstance(first, Stride) and first.limit <= self.count:
            ordinals = first.positions(0, first.count)
            return PositionList(self.numbers[ordinals], self.limit, owned=True)
        return Order.after(self, first)

    cdef bint may_repeat(self) except -1:
        self.ordinal_of(0)         # sorts
        return not self.unique

    def __reduce__(self):
        return Listed, (self.numbers, self.limit)


def Listed(numbers, limit):
    """Return a `PositionList`: the name in digests of saved states."""
    return PositionList(numbers, limit)


@cython.final
cdef class Shuffle(Order):
    """Keyed permutation of all positions."""

    cdef shuffle_t shuffle
    cdef object arguments

    def __cinit__(self, count, tuple keys not None, block=0, *, bint local=False):
        cdef int k
        memset(&self.shuffle, 0, sizeof(self.shuffle))
        if len(keys) != 2 * KEYS:
            raise ValueError(f"expected {2 * KEYS} keys, got {len(keys)}")
        self.arguments = (count, keys, block, local)
        self.count = self.limit = check_range(count, "count", 0)
        self.shuffle.count = self.count
        self.shuffle.local = local
        self.shuffle.block = check_range(block, "block", 0)
        for k in range(KEYS):
            self.shuffle.keys[k] = keys[k]
            self.shuffle.inner_keys[k] = keys[KEYS + k]
        if self.count == 0 or self.shuffle.block == 0:
            self.shuffle.block = 0
            self.shuffle.whole = domain_of(self.count)
            return
        self.shuffle.block = min(self.shuffle.block, self.shuffle.count)
        self.shuffle.whole = domain_of(
            (self.shuffle.count - 1) // self.shuffle.block + 1
        )
        self.shuffle.inside = domain_of(self.shuffle.block)
        self.shuffle.last = domain_of((self.shuffle.count - 1) % self.shuffle.block + 1)
        find_last(&self.shuffle)

    cdef int64_t at(self, int64_t ordinal) noexcept:
        return shuffle_at(&self.shuffle, ordinal)

    cdef int64_t ordinal_of(self, int64_t position) except -2:
        return unshuffle(&self.shuffle, position)

    def __reduce__(self):
        return _shuffle, self.arguments


def _shuffle(count, keys, block, local):
    return Shuffle(count, keys, block, local=local)


@cython.final
cdef class Chain(Order):
    """Composition of two orders: positions of `first` are ordinals of `then`."""

    cdef Order first
    cdef Order then
    cdef int depth

    def __cinit__(self, Order first not None, Order then not None):
        if first.limit > then.count:
            raise ValueError(
                f"positions of `first` must be below {then.count}, got {first.limit}"
            )
        self.first = first
        self.then = then
        self.count = first.count
        self.limit = then.limit
        self.depth = 1 + max(depth_of(first), depth_of(then))
        if self.depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} chained selections of a dataset")

    cdef int64_t at(self, int64_t ordinal) noexcept:
        return self.then.at(self.first.at(ordinal))

    cdef bint may_repeat(self) except -1:
        return self.first.may_repeat() or self.then.may_repeat()

    cdef int64_t ordinal_of(self, int64_t position) except -2:
        cdef int64_t ordinal = self.then.ordinal_of(position)
        if ordinal < 0 or not self.then.may_repeat():
            return -1 if ordinal < 0 else self.first.ordinal_of(ordinal)
        for ordinal in range(self.count):
            if self.at(ordinal) == position:
                return ordinal
        return -1

    cpdef Order after(self, Order first):
        cdef Order merged
        if isinstance(first, Stride) and isinstance(self.first, Stride):
            merged = self.first.after(first)
            if isinstance(merged, Stride):
                return Chain(merged, self.then)
        return Order.after(self, first)

    def __reduce__(self):
        return Chain, (self.first, self.then)
