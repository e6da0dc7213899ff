"""Files of a shard numbered by sorted name and paired with sidecars, as in webshart.

A key ends at a name's last dot. A ``.json`` is a sidecar if its key has a member of
another extension, a ``.txt`` if its key has a member that is neither ``.json`` nor
``.txt``. All other files are samples.
"""

from __future__ import annotations

from array import array
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from fastshard._core.table.extents import Names

if TYPE_CHECKING:
    from fastshard._core.table.extents import ExtentTable

__all__ = ["Files"]

JSON, TEXT = "json", "txt"


def split_name(name: str) -> tuple[str, str]:
    """Split a name at its last dot into key and extension, lower-cased."""
    key, dot, extension = name.rpartition(".")
    return (key, extension.lower()) if dot else (name, "")


class Files:
    """Files of a shard, numbered by sorted name.

    Attributes
    ----------
    order : array of int
        Position in the shard of each file, by its number.
    """

    def __init__(self, table: ExtentTable) -> None:
        self._table = table
        names = list(Names(table))
        order = range(len(names))
        if any(a > b for a, b in pairwise(names)):
            order = sorted(order, key=names.__getitem__)  # type: ignore[assignment]
        self.order = array("I", order)

    def __len__(self) -> int:
        return len(self.order)

    def names(self) -> list[str]:
        """Return the names, sorted."""
        return [self._table.name_of(i) for i in self.order]

    def position(self, number: int) -> int:
        """Return a file's position in the shard."""
        if not 0 <= number < len(self.order):
            raise IndexError(
                f"File index {number} out of range for shard: it has {len(self):,}"
            )
        return self.order[number]

    @cached_property
    def _extensions(self) -> dict[str, set[str]]:
        """Extensions of each key's members."""
        found: dict[str, set[str]] = {}
        for name in Names(self._table):
            key, extension = split_name(name)
            found.setdefault(key, set()).add(extension)
        return found

    @cached_property
    def samples(self) -> list[int]:
        """Numbers of the files that are samples."""
        return [
            number
            for number, name in enumerate(self.names())
            if not self._is_sidecar(*split_name(name))
        ]

    def _is_sidecar(self, key: str, extension: str) -> bool:
        if extension not in (JSON, TEXT):
            return False
        sidecars = {JSON} if extension == JSON else {JSON, TEXT}
        return bool(self._extensions[key] - sidecars)

    def sample_names(self) -> list[str]:
        """Return the names of the samples, sorted."""
        return [self._table.name_of(self.order[number]) for number in self.samples]

    def sample(self, number: int) -> int:
        """Return a sample's position in the shard by its number."""
        if not 0 <= number < len(self.samples):
            raise IndexError(
                f"Sample index {number} out of range for shard: "
                f"it has {len(self.samples):,}"
            )
        return self.order[self.samples[number]]

    @cached_property
    def _json(self) -> dict[str, int]:
        """Position of each key's JSON in the shard."""
        return {
            split_name(name)[0]: i
            for i, name in enumerate(Names(self._table))
            if split_name(name)[1] == JSON
        }

    def sample_json(self, number: int) -> int | None:
        """Return the position of a sample's paired JSON, or None."""
        member = self.sample(number)
        found = self._json.get(split_name(self._table.name_of(member))[0])
        return None if found == member else found
