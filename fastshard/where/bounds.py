"""Bounds of predicates: shards ruled out by the aggregates of a manifest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fastshard.where.predicate import Predicate

__all__ = ["Bounds", "bounds_of", "is_ruled_out"]

EXACT = 1 << 53  # larger integers are rounded in aggregates
LARGEST = 1 << 64
EQUALS = {0: {"False", "0.0", "-0.0"}, 1: {"True"}}  # other texts of a number
ROUNDED = 1e-2  # relative error of a float that was written with few digits


class Bounds(NamedTuple):
    """Bounds of a condition over the rows of a shard: for any row, for all rows.

    Attributes
    ----------
    some : bool
        Whether a row may meet the condition.
    every : bool
        Whether all rows surely meet it.
    """

    some: bool
    every: bool


UNKNOWN = Bounds(some=True, every=False)
NEVER = Bounds(some=False, every=False)


def is_ruled_out(
    predicate: Predicate, aggregates: Mapping[str, Mapping[str, Any]], count: int
) -> bool:
    """Return whether no row of a shard meets a condition."""
    return count == 0 or not bounds_of(predicate, aggregates, count).some


def bounds_of(
    predicate: Predicate, aggregates: Mapping[str, Mapping[str, Any]], count: int
) -> Bounds:
    """Return the bounds of a condition in a shard with `count` samples."""
    kind = predicate._kind
    if kind == "comparison":
        aggregate = aggregates.get(predicate._field)
        if aggregate is None:
            return UNKNOWN
        return compare(predicate._op, predicate._value, aggregate, count)
    if kind == "not":
        assert predicate._child is not None
        return negate(bounds_of(predicate._child, aggregates, count))
    parts = [bounds_of(child, aggregates, count) for child in predicate._children]
    join = all if kind == "and" else any
    return Bounds(join(p.some for p in parts), join(p.every for p in parts))


def negate(bounds: Bounds) -> Bounds:
    return Bounds(some=not bounds.every, every=not bounds.some)


def compare(op: str, value: Any, aggregate: Mapping[str, Any], count: int) -> Bounds:
    """Return the bounds of a comparison, by the aggregate of its field."""
    if op == "ne":
        return negate(compare("eq", value, aggregate, count))
    if op == "isin":
        parts = [compare("eq", each, aggregate, count) for each in value]
        return Bounds(any(p.some for p in parts), any(p.every for p in parts))
    kind = aggregate["type"]
    if kind == "numeric":
        return compare_number(op, value, aggregate, count)
    if kind == "categorical" and op == "eq":
        return find_value(value, aggregate["value_counts"], count)
    if kind == "set" and op == "contains":
        return Bounds(some=has_text(value, aggregate["all_values"]), every=False)
    if kind == "set" and op == "eq" and isinstance(value, (list, tuple)):
        values = aggregate["all_values"]
        return Bounds(all(has_text(each, values) for each in value), every=False)
    return UNKNOWN


def compare_number(
    op: str, value: Any, aggregate: Mapping[str, Any], count: int
) -> Bounds:
    """Compare with the least and the largest value.

    Rows with None are not counted. NaN is counted, and visible only in the mean.
    """
    if value is None:
        return null_bounds(op, aggregate["count"], count)
    if type(value) not in (int, float, bool) or value != value:
        return UNKNOWN
    if aggregate["count"] == 0 or count == 0:
        return NEVER
    low, high = aggregate.get("min"), aggregate.get("max")
    if low is None or high is None:  # infinities are written as null
        return UNKNOWN
    if not low <= high:  # NaN, or those of no value
        return UNKNOWN
    mean = aggregate.get("mean")
    whole = aggregate["count"] == count and mean is not None and math.isfinite(mean)
    below, above = widen(low, -math.inf), widen(high, math.inf)
    if op == "gt":
        return Bounds(above > value, whole and below > value)
    if op == "ge":
        return Bounds(above >= value, whole and below >= value)
    if op == "lt":
        return Bounds(below < value, whole and above < value)
    if op == "le":
        return Bounds(below <= value, whole and above <= value)
    if op == "eq":
        same = whole and low == high == value and below == above
        return Bounds(below <= value <= above, same)
    return UNKNOWN


def null_bounds(op: str, known: int, count: int) -> Bounds:
    """Compare with None; `known` of `count` rows are not None.

    NaN is counted, and matches like None.
    """
    return Bounds(some=True, every=known == 0) if op == "eq" else UNKNOWN


def widen(bound: float, towards: float) -> float:
    """Return a bound of the integers rounded to this one."""
    if math.isfinite(bound) and abs(bound) >= EXACT:
        return math.nextafter(bound, towards)
    return bound


def find_value(value: Any, counts: Mapping[str, int], count: int) -> Bounds:
    """Find a value among those counted, which are text."""
    if value is None:
        known = sum(counts.values())
        return null_bounds("eq", known, count)
    return Bounds(some=has_text(value, counts), every=False)


def has_text(value: Any, texts: Iterable[str]) -> bool:
    """Return whether one of several texts may be a value's.

    Equal numbers have several texts: 1, 1.0 and True.
    """
    if isinstance(value, str):
        return value in texts
    if type(value) not in (bool, int, float):
        return True
    if value != value or not -LARGEST <= value <= LARGEST:
        return True
    if value == int(value):
        names = {str(int(value)), str(value)}
        names |= EQUALS.get(int(value), set())
        if abs(value) < EXACT:
            names.add(str(float(value)))
            return any(name in texts for name in names)
    return any(is_near(value, text) for text in texts)


def is_near(value: float, text: str) -> bool:
    """Return whether a text is a number's, perhaps rounded to few digits."""
    try:
        number = float(text)
    except ValueError:
        return text in ("True", "False")
    return abs(number - value) <= ROUNDED * abs(value)
