"""Structures of sample types: names and kinds of fields, without classes."""

from __future__ import annotations

import keyword
import unicodedata
from typing import NamedTuple

from fastshard.errors import DescriptionError
from fastshard.typed.fields import declared_fields
from fastshard.typed.kinds.value_type import MAX_FIELDS, ValueType, shorten

__all__ = ["Structure", "StructureField", "describe"]

MAX_NAME = 200  # characters of a type's name, and of a field's
# Names of fields that would hide the type's own methods.
TAKEN = frozenset({"as_wds", "from_bytes", "from_data", "packed"})


class StructureField(NamedTuple):
    """A field of a `Structure`.

    Attributes
    ----------
    name : str
    type : ValueType
    optional : bool
        Whether None is a value, and the default.
    """

    name: str
    type: ValueType
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.type} | None" if self.optional else str(self.type)


class Structure(NamedTuple):
    """A sample type without its class."""

    name: str
    fields: tuple[StructureField, ...]
    version: str | None = None
    description: str | None = None

    def equals(self, other: Structure) -> bool:
        """Return whether two structures have the same name and the same fields.

        The order of the fields has no meaning: records do not keep it. Versions and
        descriptions are not compared.
        """
        if self.name != other.name or len(self.fields) != len(other.fields):
            return False
        others = {each.name: each for each in other.fields}
        return all(
            each.name in others
            and each.optional == others[each.name].optional
            and each.type.is_like(others[each.name].type)
            for each in self.fields
        )

    def check(self, where: str | None = None) -> None:
        """Raise for names that a class and its fields cannot have."""
        where = where or f"schema {shorten(self.name)}"
        check_name(self.name, "class", where)
        if not self.fields:
            raise DescriptionError("must have at least one field", where)
        if len(self.fields) > MAX_FIELDS:
            raise DescriptionError(
                f"has {len(self.fields):,} fields, more than {MAX_FIELDS:,}", where
            )
        seen: set[str] = set()
        for each in self.fields:
            check_name(each.name, "field", where)
            if each.name in TAKEN or each.name.startswith("__"):
                raise DescriptionError(
                    f"Invalid field name {each.name!r}: samples have a method or an "
                    "attribute of this name",
                    where,
                )
            if each.name in seen:
                raise DescriptionError(f"has the field {each.name!r} twice", where)
            seen.add(each.name)


def check_name(name: str, what: str, where: str) -> None:
    is_name = len(name) <= MAX_NAME and name.isidentifier()
    if (
        not is_name
        or keyword.iskeyword(name)
        or unicodedata.normalize("NFKC", name) != name  # as Python reads source
    ):
        raise DescriptionError(
            f"Invalid {what} name {shorten(name)}: must be a valid Python identifier "
            f"of at most {MAX_NAME} characters",
            where,
        )


def describe(cls: type) -> Structure:
    """Return the structure of a packable class.

    Lists whose items are of several types or may be None are described as lists of
    anything, tuples as lists, dicts without the types of their values; literals and
    enumerations are described by the type of their values.
    """
    known = cls.__dict__.get("__schema_structure__")
    if isinstance(known, Structure):
        return known._replace(version=None)
    fields = []
    for each in declared_fields(cls):
        try:
            found = each.kind.value_type()
        except TypeError as error:
            raise TypeError(f"{cls.__qualname__}.{each.name}: {error}") from None
        fields.append(StructureField(each.name, found, each.kind.optional))
    return Structure(cls.__name__, tuple(fields), description=docstring_of(cls))


def docstring_of(cls: type) -> str | None:
    """Return a class's own docstring, not the one by `dataclass`."""
    text = cls.__doc__
    if not text or text.startswith(f"{cls.__name__}("):
        return None
    return text
