"""Index metadata of a sample: the columns that an index has for its fields."""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fastshard.errors import InfoNotFoundError

__all__ = ["Info", "Infos"]

MAX_LISTED = 8  # columns that an error lists


class Infos(collections.abc.Mapping[str, "Info"]):
    """Index metadata of a sample's fields, parsed on access.

    Parameters
    ----------
    sample : str
        Description of the sample, for errors.
    readers : dict of str to callable
        A function for each field that returns its metadata.
    where : str
        Description of the index, for errors.
    how : str
        How the index gets columns, for errors.
    """

    def __init__(
        self,
        sample: str,
        readers: dict[str, Callable[[], dict[str, Any]]],
        where: str,
        how: str,
    ) -> None:
        self._sample = sample
        self._readers = readers
        self._where = where
        self._how = how

    def __getitem__(self, field: str) -> Info:
        read = self._readers.get(field)
        if read is None:
            raise self.missing_error(field)
        return Info(read(), lambda name: self.missing_error(name, field))

    def __contains__(self, field: object) -> bool:
        return field in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def missing_error(self, name: str, field: str | None = None) -> InfoNotFoundError:
        """Return the error for a missing column or field."""
        columns_of = {each: list(read()) for each, read in self._readers.items()}
        holder = next((each for each in columns_of if name in columns_of[each]), None)
        if holder is not None:
            hint = f"field {holder!r} has it: info[{holder!r}][{name!r}]"
            return InfoNotFoundError(name, f"the infos of {self._sample}; {hint}")
        columns = columns_of.get(field or "") or [
            column for columns in columns_of.values() for column in columns
        ]
        known = f"which has {_join(columns)}" if columns else "which has no columns"
        hint = f"{self._where} for {self._sample}, {known}; {self._how}"
        return InfoNotFoundError(name, hint)


class Info(dict[str, Any]):
    """Index metadata of one field; the error for a missing column lists the others."""

    def __init__(
        self, found: dict[str, Any], missing: Callable[[str], InfoNotFoundError]
    ) -> None:
        super().__init__(found)
        self._missing = missing

    def __missing__(self, name: str) -> Any:
        raise self._missing(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _join(names: Iterable[str]) -> str:
    """Return the first few names, for an error."""
    unique = list(dict.fromkeys(names))
    shown = ", ".join(map(repr, unique[:MAX_LISTED]))
    return shown + (", ..." if len(unique) > MAX_LISTED else "")
