"""Alternatives of a field, ``"jpg;png"``: the first one that a sample has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeAlias

from fastshard._util.options import near_fields
from fastshard.dataset.fields.wrapped import WrappedSample
from fastshard.errors import FieldNotFoundError
from fastshard.formats.sample import Sample

__all__ = [
    "ChosenSample",
    "FieldPicker",
    "PickedMaker",
    "lacking",
    "missing_from",
    "parse_names",
    "split_name",
    "stored_names",
    "visible_names",
]

SEPARATOR = ";"  # as in webdataset

# By name, the stored fields that it may stand for, the best first.
Choices: TypeAlias = Mapping[str, tuple[str, ...]]


def split_name(name: str) -> tuple[str, ...]:
    """Return the alternatives of a name, ``("jpg", "png")`` of ``"jpg;png"``."""
    names = tuple(dict.fromkeys(name.split(SEPARATOR)))
    if len(names) > 1 and not all(names):
        raise ValueError(f"an alternative of the field {name!r} is empty")
    return names


def parse_names(
    names: Iterable[str], choices: Choices
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return the names of some fields, and the alternatives of those that have several.

    The name of ``"jpg;png"`` is ``"jpg"``.
    """
    parsed: dict[str, tuple[str, ...]] = {}
    for name in names:
        alternatives = split_name(name)
        parsed[alternatives[0]] = stored_names(alternatives, choices)
    several = {name: found for name, found in parsed.items() if found != (name,)}
    return tuple(parsed), several


def stored_names(names: Iterable[str], choices: Choices) -> tuple[str, ...]:
    """Return all stored fields that names may stand for."""
    stored = (
        alternative for name in names for alternative in choices.get(name, (name,))
    )
    return tuple(dict.fromkeys(stored))


def visible_names(stored: Iterable[str], choices: Choices) -> list[str]:
    """Return the names under which samples have some stored fields."""
    shown = {field: name for name in choices for field in choices[name]}
    return list(dict.fromkeys(shown.get(field, field) for field in stored))


class ChosenSample(WrappedSample):
    """Sample with names that stand for the first of several stored fields.

    The other alternatives are left out.
    """

    __slots__ = ("_choices", "_names", "_only")

    def __init__(
        self, stored: Any, choices: Choices, only: tuple[str, ...] | None
    ) -> None:
        self.stored = stored
        self._choices = choices
        self._only = only
        self._names = self._choose()  # by visible name, the stored one

    def _choose(self) -> dict[str, str]:
        stored, choices = self.stored, self._choices
        names = self._only
        if names is None:
            names = tuple(visible_names(stored.keys(), choices))
        found = (
            (
                name,
                next(
                    (one for one in choices.get(name, (name,)) if one in stored), None
                ),
            )
            for name in names
        )
        return {name: field for name, field in found if field is not None}

    def _stored_name(self, field: str) -> str:
        found = self._names.get(field)
        if found is not None:
            return found
        if field in self:  # a metadata column
            return field
        raise lacking(self, (field,), self._names)

    def keys(self) -> list[str]:
        return list(self._names)

    def __contains__(self, field: object) -> bool:
        if field in self._names:
            return True
        if self._only is not None or any(field in of for of in self._choices.values()):
            return False
        return field in self.stored

    def infos(self) -> Mapping[str, dict[str, Any]]:
        infos = self.stored.infos()
        return {name: infos[field] for name, field in self._names.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return ChosenSample, (self.stored, self._choices, self._only)


class FieldPicker(NamedTuple):
    """Checks that stored samples have some fields, and chooses among alternatives.

    Attributes
    ----------
    needed : tuple of tuple of str
        Alternatives of which each sample must have one.
    choices, only
        As for `ChosenSample`; without `choices` samples are left as they are.
    """

    needed: tuple[tuple[str, ...], ...]
    choices: Choices
    only: tuple[str, ...] | None

    def check(self, sample: Any) -> None:
        """Raise FieldNotFoundError if a stored sample lacks a field."""
        for names in self.needed:
            for name in names:
                if name in sample:
                    break
            else:
                try:
                    raise_lacking(sample, names)
                except FieldNotFoundError as error:
                    if any(name in sample for group in self.needed for name in group):
                        error.add_note(self.advice)
                    raise

    @property
    def advice(self) -> str:
        """Hint to name a field with alternatives."""
        names = (name for group in self.needed for name in group)
        return f"{SEPARATOR.join(names)!r} is the first of these that a sample has"

    def is_met(self, fields: Collection[str]) -> bool:
        """Return whether these fields include the needed ones."""
        return all(any(name in fields for name in names) for names in self.needed)

    def choose(self, sample: Any) -> Any:
        """Return a stored sample with the names of its alternatives."""
        if not self.choices:
            return sample
        return ChosenSample(sample, self.choices, self.only)


class PickedMaker:
    """Function of an iteration: picks the fields of a stored sample, and maps it."""

    def __init__(self, picker: FieldPicker, make: Callable[[Any], Any] | None) -> None:
        self._picker = picker
        self._make = make

    def __call__(self, sample: Any) -> Any:
        self._picker.check(sample)
        sample = self._picker.choose(sample)
        return sample if self._make is None else self._make(sample)


def missing_from(
    where: str, names: tuple[str, ...], fields: Iterable[str]
) -> FieldNotFoundError:
    """Return the error of a dataset without any of the alternatives.

    `where` is followed by the existing fields.
    """
    fields = list(fields)
    return _lacking(names, f"{where} {', '.join(fields)}", fields)


def raise_lacking(sample: Any, names: tuple[str, ...]) -> NoReturn:
    """Raise the error of a sample without any of the alternatives."""
    try:
        sample.member(names[0])
    except FieldNotFoundError as error:
        if len(names) == 1:
            raise
        raise _lacking(names, error.where, list(sample.keys())) from None
    raise AssertionError(names)


def lacking(
    sample: Any, names: tuple[str, ...], fields: Iterable[str]
) -> FieldNotFoundError:
    """Return the error for a sample, stored or decoded, that lacks a field."""
    where = "the sample"
    if isinstance(sample, Sample):
        path = getattr(sample.shard, "path", None)
        where = f"sample {sample.key!r}" + ("" if path is None else f" of {path}")
    elif isinstance(sample, Mapping):
        where = f"sample {sample.get('__key__', '?')!r}"
    fields = [field for field in fields if field != "__key__"]
    return _lacking(names, f"{where}, which has {', '.join(fields)}", fields)


def _lacking(
    names: tuple[str, ...], where: str, fields: list[str]
) -> FieldNotFoundError:
    near = partial(_similar_fields, names, fields)
    return FieldNotFoundError(SEPARATOR.join(names), where, near)


def _similar_fields(names: tuple[str, ...], fields: list[str]) -> tuple[str, ...]:
    """Return the existing fields similar to the alternatives."""
    found = (near for name in names for near in near_fields(name, fields))
    return tuple(dict.fromkeys(found))
