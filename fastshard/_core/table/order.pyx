"""Orders: which position comes at which place. All but listed ones take no memory.

A shuffle is a keyed permutation of the numbers below a count, in constant memory and
time: a Feistel network over a grid of two mixed radices (Black and Rogaway, "Ciphers
with Arbitrary Finite Domains", CT-RSA 2002), whose rounds mix with the finaliser of
SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). Numbers that fall beside the count
are put through again until they do not (cycle walking): fewer than one in the square
root of the count. Whole numbers only: the same on every machine.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.number cimport PyNumber_Index
from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.string cimport memset

from fastshard._core.buffers cimport int64s_of

from math import gcd

cdef enum:
    KEYS = 8                       # of a permutation; in small grids each serves often
    SMALL = 512                    # positions: below, rounds cost less than bad luck
    ROUNDS = 8
    SMALL_ROUNDS = 24
    MOST_DEEP = 1000               # orders that look one another up

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
    bint local                     # blocks stay where they are
    domain_t whole                 # of positions, or of blocks
    domain_t inside                # of the positions in a block
    domain_t last                  # in the last block, which may be shorter
    uint64_t last_at               # the place where the last block comes
    uint64_t[KEYS] keys
    uint64_t[KEYS] inner_keys


# Permutations.

cdef inline uint64_t key_of(
    const uint64_t *keys, uint64_t tweak, int round
) noexcept nogil:
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


# Orders.

cdef int depth_of(Order order):
    return (<Chain> order).depth if isinstance(order, Chain) else 0


cdef int64_t checked(object number, str what, int64_t least) except? -1:
    whole = PyNumber_Index(number)
    if not least <= whole <= INT64_MAX:
        raise ValueError(f"{what} is {whole}: not from {least} to 2**63 - 1")
    return whole


cdef class Order:
    """`count` positions below `limit`, in an order; immutable."""

    cdef int64_t at(self, int64_t place) noexcept:
        return place

    cdef int64_t place(self, int64_t position) except -2:
        """The first place of a position; -1: it has none."""
        return -1

    cdef bint may_repeat(self) except -1:
        """Whether a position may come at several places."""
        return False

    cpdef Order after(self, Order first):
        """Return the order whose places are looked up in `first`, and then in this."""
        cdef int64_t i
        cdef int64_t *found
        cdef Py_buffer buffer
        if first.limit > self.count:
            raise ValueError(f"places below {first.limit} of {self.count}")
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

    def __getitem__(self, place):
        """Return the position at a place; negative ones count back."""
        cdef int64_t i = PyNumber_Index(place)
        if not -self.count <= i < self.count:
            raise IndexError(f"position {i} is out of range: there are {self.count:,}")
        return self.at(i + self.count if i < 0 else i)

    def find(self, position):
        """Return the first place where a position comes, or -1."""
        cdef int64_t wanted = PyNumber_Index(position)
        return self.place(wanted) if 0 <= wanted < self.limit else -1

    def positions(self, start, stop):
        """Return the positions at the places from `start` to `stop`: int64."""
        import numpy

        cdef int64_t i
        cdef int64_t begin = PyNumber_Index(start)
        cdef int64_t end = PyNumber_Index(stop)
        cdef int64_t *found
        cdef Py_buffer buffer
        if not 0 <= begin <= end <= self.count:
            raise IndexError(f"{start} to {stop} of {self.count:,} places")
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
    """Every `step`-th position from `start`; with `wraps`, again from 0 at the limit."""

    cdef int64_t start
    cdef int64_t step
    cdef bint wraps

    def __cinit__(self, start, step, count, limit, *, bint wraps=False):
        self.start = checked(start, "a start", 0)
        self.step = checked(step, "a step", -INT64_MAX)
        if step == 0:
            raise ValueError("a step of 0")
        self.count = checked(count, "a count", 0)
        self.limit = checked(limit, "a limit", 0)
        self.wraps = wraps
        if count == 0:
            return
        last = int(start) + (int(count) - 1) * int(step)
        inside = self.limit > 0 and step > 0 and last <= INT64_MAX
        if not (inside if wraps else start < limit and 0 <= last < limit):
            raise ValueError(f"{count} positions from {start} by {step} below {limit}")

    cdef int64_t at(self, int64_t place) noexcept:
        cdef int64_t position = self.start + place * self.step
        return position % self.limit if self.wraps and position >= self.limit else position

    cdef int64_t place(self, int64_t position) except -2:
        cdef int64_t place
        if self.count == 0:
            return -1
        if self.wraps:
            return self.wrapped_place(position)
        if (position - self.start) % self.step != 0:
            return -1
        place = (position - self.start) // self.step
        return place if 0 <= place < self.count else -1

    cdef int64_t wrapped_place(self, int64_t position) except -2:
        """Solve ``position + k * limit == start + place * step`` for the least place."""
        common = gcd(self.limit, self.step)
        period = int(self.step) // common
        away = int(self.start) - position
        if away % common != 0:
            return -1
        k = away // common * pow(self.limit // common, -1, period) % period
        least = max(0, -(-away // self.limit))  # so that it is not before the start
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
                return Stride(start, int(self.step) * other.step, other.count, self.limit)
        return Order.after(self, first)

    def __reduce__(self):
        return _stride, (self.start, self.step, self.count, self.limit, self.wraps)


def _stride(start, step, count, limit, wraps):
    return Stride(start, step, count, limit, wraps=wraps)


@cython.final
cdef class Chunks(Order):
    """Every `workers`-th chunk of `size` positions from that of `worker` on."""

    cdef int64_t size
    cdef int64_t worker
    cdef int64_t workers

    def __cinit__(self, size, worker, workers, limit):
        cdef int64_t whole, rest
        self.size = checked(size, "a size", 1)
        self.worker = checked(worker, "a worker", 0)
        self.workers = checked(workers, "a number of workers", 1)
        self.limit = checked(limit, "a limit", 0)
        if self.worker >= self.workers:
            raise ValueError(f"worker {worker} of {workers}")
        whole = self.limit // self.size
        rest = self.limit - whole * self.size
        if whole > self.worker:
            self.count = (1 + (whole - 1 - self.worker) // self.workers) * self.size
        if rest > 0 and whole % self.workers == self.worker:
            self.count += rest

    cdef int64_t at(self, int64_t place) noexcept:
        cdef int64_t chunk = place // self.size
        return (chunk * self.workers + self.worker) * self.size + place - chunk * self.size

    cdef int64_t place(self, int64_t position) except -2:
        cdef int64_t chunk = position // self.size
        if chunk % self.workers != self.worker:
            return -1
        return chunk // self.workers * self.size + position - chunk * self.size

    def __reduce__(self):
        return Chunks, (self.size, self.worker, self.workers, self.limit)


@cython.final
cdef class PositionList(Order):
    """Positions in an array of int64."""

    cdef object numbers            # ndarray of int64
    cdef const int64_t *positions  # of `numbers`
    cdef object sorted             # their places by position, once one was asked for
    cdef bint unique               # no position comes twice, as far as it is known

    def __cinit__(self, numbers not None, limit, *, bint owned=False):
        import numpy

        cdef int64_t i
        cdef Py_buffer buffer
        if not owned:              # nobody else may change it
            numbers = numpy.array(numbers, numpy.int64)
        self.numbers = numpy.ascontiguousarray(numbers, numpy.int64)
        self.numbers.flags.writeable = False
        if self.numbers.ndim != 1:
            raise ValueError(f"positions in {self.numbers.ndim} dimensions, not in 1")
        self.positions = int64s_of(self.numbers, &buffer)
        self.count = buffer.len // 8
        PyBuffer_Release(&buffer)  # the array stays, and with it what it holds
        self.limit = checked(limit, "a limit", 0)
        for i in range(self.count):
            if not 0 <= self.positions[i] < self.limit:
                raise ValueError(f"position {self.positions[i]} is not below {limit}")

    cdef int64_t at(self, int64_t place) noexcept:
        return self.positions[place]

    cdef int64_t place(self, int64_t position) except -2:
        import numpy

        if self.sorted is None:    # stable: the first of equal ones is found
            places = numpy.argsort(self.numbers, kind="stable")
            self.unique = not (numpy.diff(self.numbers[places]) == 0).any()
            self.sorted = places
        i = numpy.searchsorted(self.numbers, position, sorter=self.sorted)
        if i == self.count or self.numbers[self.sorted[i]] != position:
            return -1
        return self.sorted[i]

    cpdef Order after(self, Order first):
        if isinstance(first, Stride) and first.limit <= self.count:
            places = first.positions(0, first.count)
            return PositionList(self.numbers[places], self.limit, owned=True)
        return Order.after(self, first)

    cdef bint may_repeat(self) except -1:
        self.place(0)              # sorts them
        return not self.unique

    def __reduce__(self):
        return Listed, (self.numbers, self.limit)


def Listed(numbers, limit):
    """Unpickle a `PositionList`: pickles of version 0.1 and digests of states name it."""
    return PositionList(numbers, limit)


@cython.final
cdef class Shuffle(Order):
    """A keyed permutation of all positions.

    Parameters
    ----------
    count : int
    keys : tuple of int
        Twice 8 numbers of 64 bits: of the whole, and of what is inside of blocks.
    block : int
        Positions of a block of neighbours that stay together; 0: none.
    local : bool
        Blocks stay where they are: only what is inside of them is shuffled.
    """

    cdef shuffle_t shuffle
    cdef object arguments

    def __cinit__(self, count, tuple keys not None, block=0, *, bint local=False):
        cdef int k
        memset(&self.shuffle, 0, sizeof(self.shuffle))
        if len(keys) != 2 * KEYS:
            raise ValueError(f"{len(keys)} keys for {2 * KEYS}")
        self.arguments = (count, keys, block, local)
        self.count = self.limit = checked(count, "a count", 0)
        self.shuffle.count = self.count
        self.shuffle.local = local
        self.shuffle.block = checked(block, "a block", 0)
        for k in range(KEYS):
            self.shuffle.keys[k] = keys[k]
            self.shuffle.inner_keys[k] = keys[KEYS + k]
        if self.count == 0 or self.shuffle.block == 0:
            self.shuffle.block = 0
            self.shuffle.whole = domain_of(self.count)
            return
        self.shuffle.block = min(self.shuffle.block, self.shuffle.count)
        self.shuffle.whole = domain_of((self.shuffle.count - 1) // self.shuffle.block + 1)
        self.shuffle.inside = domain_of(self.shuffle.block)
        self.shuffle.last = domain_of((self.shuffle.count - 1) % self.shuffle.block + 1)
        find_last(&self.shuffle)

    cdef int64_t at(self, int64_t place) noexcept:
        return shuffled(&self.shuffle, place)

    cdef int64_t place(self, int64_t position) except -2:
        return place_in(&self.shuffle, position)

    def __reduce__(self):
        return _shuffle, self.arguments


def _shuffle(count, keys, block, local):
    return Shuffle(count, keys, block, local=local)


@cython.final
cdef class Chain(Order):
    """The places of one order looked up in another."""

    cdef Order first
    cdef Order then
    cdef int depth

    def __cinit__(self, Order first not None, Order then not None):
        if first.limit > then.count:
            raise ValueError(f"places below {first.limit} of {then.count}")
        self.first = first
        self.then = then
        self.count = first.count
        self.limit = then.limit
        self.depth = 1 + max(depth_of(first), depth_of(then))
        if self.depth > MOST_DEEP:
            raise ValueError(f"more than {MOST_DEEP} selections of one another")

    cdef int64_t at(self, int64_t place) noexcept:
        return self.then.at(self.first.at(place))

    cdef bint may_repeat(self) except -1:
        return self.first.may_repeat() or self.then.may_repeat()

    cdef int64_t place(self, int64_t position) except -2:
        cdef int64_t place = self.then.place(position)
        if place < 0 or not self.then.may_repeat():
            return -1 if place < 0 else self.first.place(place)
        for place in range(self.count):
            if self.at(place) == position:
                return place
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
