"""Names of a dataset's fields: the selected ones, and those that its samples have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fastshard.dataset.fields.alternatives import (
    FieldPicker,
    missing_from,
    parse_names,
    split_name,
    stored_names,
    visible_names,
)
from fastshard.errors import FieldNotFoundError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard.dataset.shardset import ShardSet

__all__ = ["FieldNames"]


class FieldNames(NamedTuple):
    """Names of the fields of a dataset's samples, before mapped functions.

    Attributes
    ----------
    shards : ShardSet
    selected : tuple of str or None
        None: all fields.
    choices : Mapping of str to tuple of str
        Alternatives by name.
    """

    shards: ShardSet
    selected: tuple[str, ...] | None
    choices: Mapping[str, tuple[str, ...]]

    def all(self) -> list[str]:
        """Return the names of the first shard's fields, selected or not."""
        return visible_names(self.shards.field_names(), self.choices)

    def parse(
        self, fields: Iterable[str]
    ) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
        """Return names and alternatives of fields, as `parse_names`; check them."""
        for field in fields:
            alternatives = split_name(field)
            hidden = self._find_hidden(alternatives)
            if hidden is not None:
                raise hidden
            known = self.shards.known_fields()
            stored = stored_names(alternatives, self.choices)
            if known is not None and not {*stored} & {*known}:
                raise self._missing(alternatives, known)
        return parse_names(fields, self.choices)

    def _find_hidden(self, names: tuple[str, ...]) -> FieldNotFoundError | None:
        """Return the error of alternatives that are not selected."""
        if self.selected is None or {*names} & {*self.selected}:
            return None
        return missing_from("the selected fields,", names, self.selected)

    def _missing(
        self, names: tuple[str, ...], fields: Iterable[str]
    ) -> FieldNotFoundError:
        where = f"the dataset below {self.shards.root}, which has"
        return missing_from(where, names, fields)

    def find_absence(
        self, name: str, picker: FieldPicker | None
    ) -> FieldNotFoundError | None:
        """Return the error of a field that no sample of the first shards has.

        Also if no sample has it together with the other fields of `picker`.
        """
        names = split_name(name)
        hidden = self._find_hidden(names)
        if hidden is not None:
            return hidden
        if any(map(self.shards.has_field, stored_names(names, self.choices))):
            if picker is None or len(picker.needed) < 2:
                return None
            sets = self.shards.field_sets()
            if not sets or any(map(picker.is_met, sets)):
                return None
            where = "any sample of the first shard that has the other fields; "
            return FieldNotFoundError(name, where + picker.advice)
        return missing_from("the first shards, which have", names, self.all())

    def usual(self, picker: FieldPicker | None) -> frozenset[str]:
        """Return the usual fields of the first samples with the needed ones."""
        sets = self.shards.field_sets()
        complete = [f for f in sets if picker is None or picker.is_met(f)]
        usual = max(
            complete,
            key=lambda fields: (sets[fields], len(fields)),
            default=frozenset[str](),
        )
        return frozenset(visible_names(usual, self.choices))

    def mask(self, fields: Iterable[str]) -> NDArray[np.bool_]:
        """Return a mask of the samples that have the given fields."""
        shards = self.shards
        groups = [stored_names(split_name(field), self.choices) for field in fields]
        return _collect_mask(shards, lambda k: _having_all(shards.samples(k), groups))

    def require(self, fields: Iterable[str]) -> None:
        """Raise FieldNotFoundError if shards have samples, and all lack a field."""
        for field in fields:
            mask = self.mask((field,))
            if len(mask) and not mask.any():
                raise self._missing(split_name(field), self.all())


def _collect_mask(
    shards: ShardSet, mask_of: Callable[[int], NDArray[np.bool_]]
) -> NDArray[np.bool_]:
    """Return the mask of all samples, from one mask per shard."""
    import numpy as np

    masks = list(shards.map_shards(mask_of, "reading names"))
    return np.concatenate([np.empty(0, bool), *masks])


def _having_all(samples: Any, groups: Iterable[Iterable[str]]) -> NDArray[np.bool_]:
    """Return the mask of a shard's samples that have a field of each group."""
    import numpy as np

    mask = np.ones(len(samples), bool)
    for group in groups:
        found = [np.frombuffer(samples.having((field,)), bool) for field in group]
        mask &= np.logical_or.reduce(found)
    return mask
