"""Aggregates of manifests: summaries of a field over a whole shard."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from fastshard.typed.manifest.fields import AggregateKind
from fastshard.where.columns import plain_value

__all__ = [
    "Aggregate",
    "CategoricalAggregate",
    "NumericAggregate",
    "SetAggregate",
    "create_aggregate",
]


class CategoricalAggregate:
    """Number of occurrences of each value.

    Attributes
    ----------
    value_counts : dict of str to int
        By ``str(value)``.
    """

    def __init__(self) -> None:
        self.value_counts: dict[str, int] = {}

    @property
    def cardinality(self) -> int:
        """Number of different values."""
        return len(self.value_counts)

    def add(self, value: Any) -> None:
        """Count a value."""
        key = str(plain_value(value))
        self.value_counts[key] = self.value_counts.get(key, 0) + 1

    def to_dict(self) -> dict[str, Any]:
        """Return the aggregate as manifests store it."""
        counts = dict(self.value_counts)
        return {
            "type": "categorical",
            "cardinality": len(counts),
            "value_counts": counts,
        }


class NumericAggregate:
    """Least and largest value, mean and number of values.

    Attributes
    ----------
    min, max : float
        ``inf`` and ``-inf`` without values; NaN changes neither.
    count : int
        Also of NaN.
    """

    def __init__(self) -> None:
        self.min = math.inf
        self.max = -math.inf
        self.count = 0
        self._sum = 0.0

    @property
    def mean(self) -> float:
        """Mean of the values, 0.0 without any."""
        return self._sum / self.count if self.count else 0.0

    def add(self, value: float) -> None:
        """Add a number."""
        number = float(plain_value(value))
        if number < self.min:
            self.min = number
        if number > self.max:
            self.max = number
        self._sum += number
        self.count += 1

    def to_dict(self) -> dict[str, Any]:
        """Return the aggregate as manifests store it."""
        return {
            "type": "numeric",
            "min": self.min,
            "max": self.max,
            "mean": self.mean,
            "count": self.count,
        }


class SetAggregate:
    """Union of the lists of a field.

    Attributes
    ----------
    all_values : set of str
        ``str(value)`` of each value.
    """

    def __init__(self) -> None:
        self.all_values: set[str] = set()

    def add(self, values: Iterable[Any]) -> None:
        """Add the values of a list."""
        self.all_values.update(str(plain_value(value)) for value in values)

    def to_dict(self) -> dict[str, Any]:
        """Return the aggregate as manifests store it."""
        return {"type": "set", "all_values": sorted(self.all_values)}


Aggregate = CategoricalAggregate | NumericAggregate | SetAggregate
TYPES: dict[str, type[Aggregate]] = {
    "categorical": CategoricalAggregate,
    "numeric": NumericAggregate,
    "set": SetAggregate,
}


def create_aggregate(kind: AggregateKind | str) -> Aggregate:
    """Return an empty aggregate."""
    if kind not in TYPES:
        raise ValueError(f"Unknown aggregate kind: {kind!r}")
    return TYPES[kind]()
