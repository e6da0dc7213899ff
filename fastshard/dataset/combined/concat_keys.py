"""Keys of a concatenation's samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, overload

from fastshard._util.options import other_forms
from fastshard.errors import AmbiguousKeyError, SampleNotFoundError

__all__ = ["ConcatKeys"]


class ConcatKeys(Sequence[str]):
    """The keys of a concatenation's samples; see `Dataset.keys`."""

    def __init__(self, dataset: Any) -> None:
        for part in dataset.datasets:
            if not hasattr(part, "keys"):
                kind = type(part).__name__
                raise TypeError(f"the samples of a {kind} have no keys: use positions")
        self._dataset = dataset
        self._parts: list[Any] = [part.keys() for part in dataset.datasets]

    def __len__(self) -> int:
        return len(self._dataset)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        numbers = range(len(self))[i]
        if isinstance(numbers, int):
            return self._key(numbers)
        return [self._key(number) for number in numbers]

    def _key(self, i: int) -> str:
        order = self._dataset._order()
        k, position = self._dataset.source_of(i if order is None else order[i])
        key: str = self._parts[k][position]
        return key

    def __iter__(self) -> Iterator[str]:
        return map(self._key, range(len(self)))

    def find(self, key: str) -> list[int]:
        """Return the positions of all samples with a key."""
        starts, order = self._dataset.starts, self._dataset._order()
        found = [
            starts[k] + position
            for k, keys in enumerate(self._parts)
            for position in keys.find(key)
        ]
        if order is None:
            return found
        return sorted(i for i in map(order.find, found) if i >= 0)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(self.find(key))

    def index(self, key: str, start: int = 0, stop: int | None = None) -> int:
        """Return the position of the only sample with a key."""
        within = range(len(self))[start:stop]
        found = [i for i in self.find(key) if i in within]
        if not found:
            where = f"the {len(self._parts)} concatenated datasets"
            near = partial(other_forms, key, self.__contains__)
            raise SampleNotFoundError(key, where, near)
        if len(found) > 1:
            raise AmbiguousKeyError(key, found)
        return found[0]

    def count(self, key: str) -> int:
        """Return the number of samples with a key."""
        return len(self.find(key))

    def __repr__(self) -> str:
        return f"<keys of {self._dataset!r}>"
