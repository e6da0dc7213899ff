"""Differences of two structures: fields that were added, removed, changed."""

from __future__ import annotations

from typing import NamedTuple

from fastshard.typed.descriptions.structure import Structure

__all__ = ["FieldChange", "diff"]


class FieldChange(NamedTuple):
    """A field in which two structures differ.

    Attributes
    ----------
    field : str
    change : str
        added, removed, or changed.
    before, after : str or None
        Type of the field; None where there is none.
    is_compatible : bool
        Whether samples that were written before are read as samples of the structure
        after: an optional field may be added, any may be removed, a field may become
        optional, an int a float, and an array's dtype any.
    """

    field: str
    change: str
    before: str | None
    after: str | None
    is_compatible: bool

    def __str__(self) -> str:
        if self.change == "added":
            return f"+ {self.field}: {self.after}"
        if self.change == "removed":
            return f"- {self.field}: {self.before}"
        return f"~ {self.field}: {self.before} -> {self.after}"


def diff(before: Structure, after: Structure) -> list[FieldChange]:
    """Return the differing fields of two structures."""
    others = {each.name: each for each in after.fields}
    known = {each.name for each in before.fields}
    found = []
    for each in before.fields:
        other = others.get(each.name)
        if other is None:
            found.append(FieldChange(each.name, "removed", str(each), None, True))
        elif each.optional != other.optional or not each.type.is_like(other.type):
            is_compatible = (other.optional or not each.optional) and other.type.reads(
                each.type
            )
            found.append(
                FieldChange(each.name, "changed", str(each), str(other), is_compatible)
            )
    for other in after.fields:
        if other.name not in known:
            found.append(
                FieldChange(other.name, "added", None, str(other), other.optional)
            )
    return found
