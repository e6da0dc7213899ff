"""Aggregates rule out shards without a matching row, never one that has a row."""

import math
import random

import pytest

from fastshard.typed.manifest.aggregates import create_aggregate
from fastshard.typed.manifest.rows import ManifestRows
from fastshard.where.bounds import bounds_of, is_ruled_out
from fastshard.where.predicate import F
from support.inside.typed import compare

INTS = [0, 1, -1, 2, 5, 2**53, 2**53 + 1, 2**53 - 1, -(2**53) - 1, 2**63, -(2**63)]
FLOATS = [0.0, -0.0, 0.1, 1.0, 2.5, 1e300, math.inf, -math.inf, math.nan, 1e16]
TEXTS = ["a", "b", "", "1", "True", "None", "\u00e4"]
POOLS = {
    "numeric": [*INTS, *FLOATS, True, False],
    "categorical": [*TEXTS, *INTS, *FLOATS, True, False],
}
OPS = ["gt", "lt", "ge", "le", "eq", "ne", "isin"]


def summed(kind, values):
    aggregate = create_aggregate(kind)
    for value in values:
        if value is not None:
            aggregate.add(value)
    return aggregate.to_dict()


def condition(random, depth, pool):
    if depth and random.random() < 0.6:
        first = condition(random, depth - 1, pool)
        if random.random() < 0.3:
            return ~first
        other = condition(random, depth - 1, pool)
        return first & other if random.random() < 0.5 else first | other
    op = random.choice(OPS)
    value = random.choice([*pool, None])
    if op not in ("eq", "ne", "isin") and not isinstance(value, (int, float)):
        value = 1
    if op == "isin":
        value = random.sample(pool, 2)
    return compare(F.x, op, value)


@pytest.mark.parametrize("kind", ["numeric", "categorical"])
@pytest.mark.parametrize("seed", range(8))
def test_no_shard_with_a_row_is_ruled_out(kind, seed):
    rng = random.Random(seed)
    ruled_out = 0
    for _ in range(400):
        pool = POOLS[kind]
        numbers = [value for value in pool if not isinstance(value, str)]
        some = rng.choice(
            [pool, numbers, [1, 2], ["a", "b"] if kind != "numeric" else [1]]
        )
        values = [rng.choice([*some, None]) for _ in range(rng.randrange(4))]
        where = condition(rng, 3, pool)
        try:
            selected = where.select(ManifestRows.of({"x": values}))
        except TypeError:  # text and numbers have no order
            continue
        bounds = bounds_of(where, {"x": summed(kind, values)}, len(values))

        if any(selected):
            assert bounds.some, (where, values)
        if bounds.every and values:
            assert all(selected), (where, values)
        ruled_out += not bounds.some
    assert ruled_out > 20  # it is of use


NUMBERS = {"type": "numeric", "min": 1.0, "max": 3.0, "mean": 2.0, "count": 10}
LABELS = {"type": "categorical", "cardinality": 2, "value_counts": {"cat": 9, "1": 1}}
TAGS = {"type": "set", "all_values": ["day", "1"]}
KNOWN = {"x": NUMBERS, "label": LABELS, "tags": TAGS}


@pytest.mark.parametrize(
    "where",
    [
        F.x > 3,
        F.x >= 3.1,
        F.x < 1,
        F.x <= 0,
        F.x == 4,
        F.x.isin([0, 4]),
        F.x.isin([]),
        F.x.between(4, 5),
        ~(F.x >= 1),
        ~F.x.between(1, 3),
        (F.x > 3) | (F.label == "dog"),
        (F.x > 3) & (F.other == 1),
        F.label == "dog",
        F.label == 2,
        F.label.isin(["dog", "eel"]),
        F.tags.contains("night"),
        F.tags == ["day", "night"],
    ],
    ids=repr,
)
def test_shards_that_aggregates_rule_out(where):
    assert is_ruled_out(where, KNOWN, 10)


@pytest.mark.parametrize(
    "where",
    [
        F.x > 2,
        F.x != 2,
        ~(F.x > 2),
        F.label == 1,  # "1" may be the text of a number
        F.label == 1.0,
        F.label == True,  # noqa: E712
        F.label == "1",
        F.label != "cat",
        F.label > "z",
        F.tags.contains("day"),
        F.tags.contains(1),
        F.tags == [],
        F.other == 1,
        (F.x > 3) | (F.label == "cat"),
        F.x == math.nan,
        F.x == "text",
    ],
    ids=repr,
)
def test_shards_that_aggregates_do_not_rule_out(where):
    if "True" in repr(where):
        known = {"label": {**LABELS, "value_counts": {"True": 10}}}
        assert not is_ruled_out(where, known, 10)
    else:
        assert not is_ruled_out(where, KNOWN, 10)


def test_rows_without_a_value_are_allowed_for():
    known = {"x": {**NUMBERS, "min": 2.0, "max": 2.0, "count": 9}}
    assert not is_ruled_out(F.x != 2, known, 10)
    assert not is_ruled_out(~(F.x == 2), known, 10)
    assert is_ruled_out(F.x != 2, {"x": {**known["x"], "count": 10}}, 10)


def test_integers_beyond_2_to_the_53rd_are_rounded():
    known = {"x": summed("numeric", [2**53 + 1])}
    assert known["x"]["max"] == 2**53
    assert not is_ruled_out(F.x > 2**53, known, 1)
    assert not is_ruled_out(F.x == 2**53 + 1, known, 1)
    assert is_ruled_out(F.x > 2**53 + 10, known, 1)


@pytest.mark.parametrize("low", [math.inf, None])
def test_empty_aggregates(low):
    high = None if low is None else -math.inf
    empty = {"type": "numeric", "min": low, "max": high, "mean": 0.0, "count": 0}
    assert is_ruled_out(F.x > 0, {"x": empty}, 5)
    assert not is_ruled_out(F.x != 0, {"x": empty}, 5)
    assert is_ruled_out(F.x != 0, {"x": empty}, 0)


def test_unknown_aggregates_rule_out_nothing():
    assert not is_ruled_out(F.x == 1, {"x": {"type": "histogram"}}, 5)
    assert not is_ruled_out(F.x == 10**400, {"x": LABELS}, 5)
    assert not is_ruled_out(F.x == 1, {"x": {**NUMBERS, "max": None}}, 5)
