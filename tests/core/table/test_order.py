"""Orders of positions: the permutation, strides, lists, and their compositions."""

import itertools
import math
import pickle
import random
from hashlib import blake2b
from struct import unpack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastshard._core.table.order import (
    Chain,
    Chunks,
    Order,
    PositionList,
    Shuffle,
    Stride,
)
from fastshard.dataset.order.plan import compose, order_digest, permutation_keys

MASK = (1 << 64) - 1
GOLDEN_10 = [0, 1, 8, 2, 7, 5, 4, 9, 3, 6]
GOLDEN_LARGE = [815224605143, 549200196346, 870588244642, 413988117552]
# Digests of orders in states saved by version 0.1.
GOLDEN_DIGESTS = ["87abb6125e0b9501", "af705560e505e58c", "9a12deb721e418e4"]
GOLDEN_BLOCKS = [450209, 450261, 993141]


def make_shuffle(count, seed, epoch=0, block=0):
    return Shuffle(count, permutation_keys(seed, epoch), block)


# Independent implementation of the permutation, from its description.


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def encrypt(count, keys, tweak, value):
    root = max(1, math.isqrt(count - 1) + 1)
    height = root + root % 2
    width = max(1, -(-count // height))
    while True:
        left, right = divmod(value, height)
        for k in range(24 if count < 512 else 8):
            key = (keys[k % 8] ^ tweak) + k // 8 * 0x9E3779B97F4A7C15 & MASK
            if k % 2 == 0:
                left = (left + (mix(right + key & MASK) * width >> 64)) % width
            else:
                right = (right + (mix(left + key & MASK) * height >> 64)) % height
        value = left * height + right
        if value < count:
            return value


def permutation(count, seed, epoch, block=None):
    text = f"{seed}:{epoch}".encode()
    whole, inside = (
        unpack("<8Q", blake2b(text, person=person).digest())
        for person in (b"whole", b"inside")
    )
    if block is None:
        return [encrypt(count, whole, 0, i) for i in range(count)]
    blocks = -(-count // block)
    found = []
    for rank in range(blocks):
        k = encrypt(blocks, whole, 0, rank)
        size = min(block, count - k * block)
        tweak = mix(k + 1)
        found += [k * block + encrypt(size, inside, tweak, i) for i in range(size)]
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 511, 512, 1000, 4097])
@pytest.mark.parametrize("block", [None, 1, 3, 64, 10_000])
def test_the_permutation_equals_the_reference_in_python(count, block):
    order = make_shuffle(count, -5, 9, block or 0)
    expected = permutation(count, -5, 9, block and min(block, count))
    assert np.asarray(order).tolist() == expected
    assert sorted(expected) == list(range(count))


def test_the_permutation_never_changes():
    """Saved states must keep their meaning in later versions."""
    assert np.asarray(make_shuffle(10, 7)).tolist() == GOLDEN_10
    assert [make_shuffle(10**12, 7, 3)[i] for i in range(4)] == GOLDEN_LARGE
    assert [make_shuffle(10**6, 2**70, 1, 1000)[i] for i in (0, 999, 10**6 - 1)] == (
        GOLDEN_BLOCKS
    )


@pytest.mark.parametrize("count", [1, 2, 5, 37, 600, 10**6 + 1, 2**40, 2**63 - 1])
@pytest.mark.parametrize("block", [0, 1, 100, 4096])
def test_find_inverts_the_permutation(count, block):
    order = make_shuffle(count, 3, 0, block)
    rng = random.Random(count)
    for _ in range(200):
        i = rng.randrange(count)
        position = order[i]
        assert 0 <= position < count
        assert order.find(position) == i


def chi_square(counts, expected):
    """Return the chi-square statistic, in standard deviations from its mean."""
    counts = np.asarray(counts, float).ravel()
    freedom = len(counts) - 1
    chi = ((counts - expected) ** 2 / expected).sum()
    return (chi - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_all_permutations_of_few_positions_are_equally_likely(count):
    found = dict.fromkeys(itertools.permutations(range(count)), 0)
    rounds = 200 * len(found)
    for seed in range(rounds):
        found[tuple(np.asarray(make_shuffle(count, seed)).tolist())] += 1
    assert chi_square(list(found.values()), 200) < 5


@pytest.mark.parametrize("count", [10, 100, 600])
def test_positions_and_their_distances_are_uniformly_distributed(count):
    seeds = 3000
    counts = np.zeros((count, count))
    steps = np.zeros(count)
    for seed in range(seeds):
        order = np.asarray(make_shuffle(count, seed))
        counts[np.arange(count), order] += 1
        steps += np.bincount(np.diff(order) % count, minlength=count)
    assert chi_square(counts, seeds / count) < 5
    assert chi_square(steps[1:], seeds) < 5


def test_epochs_and_seeds_are_uncorrelated():
    orders = [
        np.asarray(make_shuffle(10_000, seed, epoch))
        for seed, epoch in itertools.product(range(5), range(5))
    ]
    for one, other in itertools.combinations(orders, 2):
        assert (one == other).sum() < 12  # one is expected
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.06


def test_blocks_stay_together_and_are_shuffled():
    order = np.asarray(make_shuffle(1003, 1, 0, 10))
    ends = np.flatnonzero(np.diff(order // 10)) + 1
    blocks = np.split(order, ends)
    assert len(blocks) == 101  # the last block has three positions
    assert [len(set(block // 10)) for block in blocks] == [1] * 101
    assert [int(block[0]) // 10 for block in blocks] != list(range(101))
    insides = {tuple(block % 10) for block in blocks}
    assert len(insides) > 95  # each block has an order of its own


def test_local_blocks_stay_where_they_are():
    order = np.asarray(Shuffle(1003, permutation_keys(1, 0), 10, local=True))
    assert (order // 10).tolist() == [i // 10 for i in range(1003)]
    assert order.tolist() != list(range(1003))


@st.composite
def orders(draw, most=40):
    """Draw an order, and the equal list."""
    count = draw(st.integers(0, most))
    order, plain = Stride(0, 1, count, count), list(range(count))
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["slice", "list", "shuffle", "chunks", "wrap"]))
        size = len(plain)
        if kind == "slice":
            part = slice(*draw(st.tuples(*[st.integers(-size, size) | st.none()] * 2)))
            step = draw(st.sampled_from([-3, -1, 1, 2, 5]))
            positions = range(size)[part.start : part.stop : step]
            first = Stride(max(positions.start, 0), step, len(positions), size)
        elif kind == "list" and size:
            positions = draw(st.lists(st.integers(0, size - 1), max_size=most))
            first = PositionList(positions, size)
        elif kind == "shuffle":
            first = make_shuffle(
                size, draw(st.integers(0, 9)), 0, draw(st.integers(0, 5))
            )
            positions = np.asarray(first).tolist()
        elif kind == "chunks":
            chunk, workers = draw(st.integers(1, 5)), draw(st.integers(1, 4))
            worker = draw(st.integers(0, workers - 1))
            first = Chunks(chunk, worker, workers, size)
            positions = [i for i in range(size) if i // chunk % workers == worker]
        elif size:
            start, step = draw(st.integers(0, 2 * size)), draw(st.integers(1, 7))
            count = draw(st.integers(0, 3 * size))
            first = Stride(start, step, count, size, wraps=True)
            positions = [(start + i * step) % size for i in range(count)]
        else:
            continue
        order = compose(order, first)
        plain = [plain[i] for i in positions]
    return order, plain


@given(orders())
def test_orders_equal_lists(pair):
    order, plain = pair
    assert len(order) == len(plain)
    assert list(order) == plain
    assert np.asarray(order).tolist() == plain
    for position in range(-1, order.limit + 1):
        found = plain.index(position) if position in plain else -1
        assert order.find(position) == found
    again = pickle.loads(pickle.dumps(order))
    assert list(again) == plain
    assert order_digest(again) == order_digest(order)
    with pytest.raises(IndexError, match=f"there are {len(plain):,} positions"):
        order[len(plain)]
    with pytest.raises(IndexError, match=f"there are {len(plain):,} positions"):
        order[-len(plain) - 1]


def test_find_solves_wrapping_strides():
    """A search of these would not end in reasonable time."""
    for limit, step in ((5, 2**62), (6, 2**61), (2**40 + 1, 2**21), (10, 4)):
        order = Stride(3 % limit, step, (2**62 - 3) // step + 1, limit, wraps=True)
        indexes = range(min(len(order), 4))
        for i in indexes:
            first = min(k for k in indexes if order[k] == order[i])
            assert order.find(order[i]) == first
    assert Stride(0, 2**62, 0, 5, wraps=True).find(3) == -1


def test_a_position_list_copies_its_positions():
    numbers = np.arange(5)
    order = PositionList(numbers, 5)
    numbers[0] = 10**9
    assert list(order) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="read-only"):
        order.__reduce__()[1][0][0] = 7


def test_slices_of_slices_are_merged():
    order = make_shuffle(10**9, 1)
    for _ in range(100_000):
        order = compose(order, Stride(1, 1, len(order) - 1, len(order)))
    assert order[0] == make_shuffle(10**9, 1)[100_000]
    assert len(pickle.dumps(order)) < 1000


@pytest.mark.parametrize(
    "make",
    [
        lambda: Stride(0, 1, 5, 4),
        lambda: Stride(-1, 1, 1, 4),
        lambda: Stride(3, -2, 3, 4),
        lambda: Stride(0, 0, 1, 4),
        lambda: Stride(2**62, 2**62, 4, 2**63 - 1, wraps=True),
        lambda: Stride(0, 1, 1, 0, wraps=True),
        lambda: Stride(0, 1, 2**63, 2**63),
        lambda: Chunks(0, 0, 1, 5),
        lambda: Chunks(1, 3, 3, 5),
        lambda: PositionList([0, 5], 5),
        lambda: PositionList([-1], 5),
        lambda: Shuffle(5, (1, 2)),
        lambda: Shuffle(-1, permutation_keys(0, 0)),
        lambda: Chain(Stride(0, 1, 5, 5), Stride(0, 1, 4, 4)),
    ],
)
def test_impossible_orders_are_refused(make):
    with pytest.raises(ValueError, match=r"\d"):
        make()


def test_a_shuffle_of_a_trillion_takes_no_memory():
    order = make_shuffle(10**12, 1)
    assert isinstance(order, Order)
    assert len({order[i] for i in range(10_000)}) == 10_000
    assert order.__sizeof__() < 1024
    assert len(pickle.dumps(order)) < 1024


def test_digests_of_orders_match_saved_states():
    orders = [
        PositionList([3, 1, 2], 5),
        Chain(Chunks(2, 0, 2, 5), Shuffle(5, tuple(range(16)))),
        Chain(PositionList([3, 1], 5), PositionList([0, 1, 2, 3, 4], 9)),
    ]

    assert [order_digest(order) for order in orders] == GOLDEN_DIGESTS
