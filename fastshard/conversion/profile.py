"""Profiles of a source's columns, from a scan before the conversion."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from fastshard.conversion.columns import SCALARS, field_encoding
from fastshard.conversion.values import MAX_INT, MIN_INT

__all__ = ["ColumnProfile", "Problem", "merge_profiles", "resolve_encoding"]

IMAGES = {"jpeg": b"\xff\xd8", "png": b"\x89PNG"}  # magic bytes
JSON_KINDS = {"str", "int", "float", "json"}


@dataclass
class ColumnProfile:
    """Profile of one column, from a scan of some of the samples.

    Attributes
    ----------
    count : int
        Samples that have the column.
    encodings : set of str
        How they store it.
    kinds : set of str
        Types of its values, where the encoding leaves them open: dtypes of arrays
        without dimensions, ``"array"``, types of JSON values, or ``"bytes"``,
        ``"jpeg"``, ``"png"``.
    is_big : bool
        An int is beyond 64 bits.
    nils : int
        Samples that have the column without a value: msgpack's nil.
    """

    count: int = 0
    encodings: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    is_big: bool = False
    nils: int = 0

    def add_int(self, value: Any) -> None:
        """Add an int; a row of JSON may have others, which `check` finds."""
        if isinstance(value, int) and not MIN_INT <= value <= MAX_INT:
            self.is_big = True

    def add_array(self, array: Any) -> None:
        self.kinds.add("array" if array.shape else str(array.dtype))

    def add_json(self, value: Any) -> None:
        """Add a JSON value: str, int, float or another one."""
        kind = type(value).__name__
        self.kinds.add(kind if kind in ("str", "int", "float") else "json")
        if kind == "int":
            self.add_int(value)

    def add_packed(self, value: Any, *, keeps_arrays: bool) -> None:
        """Add a value of a msgpack map."""
        if value is None:
            self.nils += 1
        elif isinstance(value, bytes | memoryview):
            self.kinds.add(image_of(value))
        elif not hasattr(value, "dtype"):
            self.add_json(value)
        elif keeps_arrays:
            self.kinds.add("array")
        else:
            self.add_array(value)

    def merged(self, other: ColumnProfile) -> ColumnProfile:
        return replace(
            self,
            count=self.count + other.count,
            encodings=self.encodings | other.encodings,
            kinds=self.kinds | other.kinds,
            is_big=self.is_big or other.is_big,
            nils=self.nils + other.nils,
        )


def image_of(data: Any) -> str:
    """Return the encoding of bytes, that of a picture by its magic bytes."""
    for encoding, magic in IMAGES.items():
        if data[: len(magic)] == magic:
            return encoding
    return "bytes"


@dataclass
class Problem:
    """A sample that the target cannot hold.

    Attributes
    ----------
    position : int
        Of the sample.
    column : str or None
    reason : str
    """

    position: int
    column: str | None
    reason: str


def merge_profiles(
    parts: Iterable[dict[str, ColumnProfile]],
) -> dict[str, ColumnProfile]:
    """Merge the profiles of consecutive parts of a source."""
    merged: dict[str, ColumnProfile] = {}
    for part in parts:
        for name, profile in part.items():
            found = merged.get(name)
            merged[name] = profile if found is None else found.merged(profile)
    return merged


def resolve_encoding(profile: ColumnProfile, name: str) -> str | None:
    """Return the encoding of a column by its profile; None: shards disagree.

    Arrays without dimensions of one dtype are scalars. Values of metadata are ``str``,
    ``int``, ``float`` or ``json``; always ``json`` if the name is a field of JSON.
    """
    encodings = profile.encodings
    if encodings == {"packed"}:
        return resolve_packed(profile)
    if encodings == {"float", "float64"}:
        return "float64"
    if len(encodings) != 1:
        return None
    (encoding,) = encodings
    if encoding == "npy" and len(profile.kinds) == 1:
        (kind,) = profile.kinds
        return kind if kind in SCALARS else "npy"
    if encoding == "metadata":
        is_json = len(profile.kinds) > 1 or field_encoding(name) == "json"
        encoding = "json" if is_json else next(iter(profile.kinds))
    if encoding == "int" and profile.is_big:
        return "str_int"
    return encoding


def resolve_packed(profile: ColumnProfile) -> str | None:
    """Return the encoding of a field of msgpack maps; None: its values disagree.

    Bytes are pictures if all of them are of one kind. Values of several types that JSON
    has are ``json``.
    """
    kinds = profile.kinds
    if kinds <= JSON_KINDS:
        encoding = next(iter(kinds)) if len(kinds) == 1 else "json"
        return "str_int" if encoding == "int" and profile.is_big else encoding
    if kinds & JSON_KINDS:
        return None
    if not kinds & {"bytes", *IMAGES}:  # arrays
        kind = next(iter(kinds))
        return kind if len(kinds) == 1 and kind in SCALARS else "npy"
    return next(iter(kinds)) if len(kinds) == 1 else "bytes"
