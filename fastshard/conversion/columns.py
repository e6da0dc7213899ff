"""Columns: names and encodings between the formats.

A column has a name and an encoding, whatever the format. The encodings are those of
MDS, ``float`` for Python's float, and ``npy`` for an array of any dtype and shape. A
field of a tar shard has its encoding in its suffix: ``image.jpg`` is the column
``image`` of encoding ``jpeg``. `to_column` and `to_field` are inverse to each other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fastshard.formats.decoders import kind_of

__all__ = [
    "FLOATS",
    "INTEGERS",
    "KEY",
    "SCALARS",
    "SourceColumn",
    "field_encoding",
    "name_columns",
    "name_fields",
    "parse_columns",
    "same_field",
    "to_column",
    "to_field",
]

KEY = "__key__"  # the column of the samples' keys
INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
FLOATS = ("float16", "float32", "float64")
SCALARS = (*INTEGERS, *FLOATS)  # encodings of NumPy scalars

# Encodings of a tar's fields, by kind and suffix, and the suffix of each encoding.
KINDS = {"text": "str", "int": "int", "json": "json", "array": "npy"}
IMAGES = {"jpg": "jpeg", "jpeg": "jpeg", "png": "png"}
SUFFIXES = {
    "str": "txt",
    "int": "cls",
    "str_int": "cls",
    "json": "json",
    "npy": "npy",
    "jpeg": "jpg",
    "png": "png",
    "bytes": "bin",
}
DIMENSIONS = re.compile(r"\d+")


class SourceColumn(NamedTuple):
    """A column of a source.

    Attributes
    ----------
    field : str
        Its name in the source; of metadata with ``metadata/`` before it.
    encoding : str
        How the source stores it.
    """

    field: str
    encoding: str


def field_encoding(field: str) -> str:
    """Return the encoding of a tar's field by its suffix."""
    image = IMAGES.get(field.rpartition(".")[2].lower())
    return image or KINDS.get(kind_of(field), "bytes")


def suffix_of(encoding: str) -> str:
    """Return the suffix of an encoding's fields in a tar."""
    return SUFFIXES.get(encoding, "npy")


def same_field(encoding: str) -> str:
    """Return the tar's encoding that stores an encoding's fields."""
    if encoding == "str_int":
        return "int"
    return encoding if encoding in SUFFIXES else "npy"


def to_column(field: str) -> str:
    """Return the column's name for a tar's field: without the suffix, if any."""
    encoding = field_encoding(field)
    stem, _, suffix = field.rpartition(".")
    if stem and suffix == suffix_of(encoding) and to_field(stem, encoding) == field:
        return stem
    return field


def to_field(name: str, encoding: str) -> str:
    """Return the tar's field of a column: with a suffix, unless the name has one."""
    encoding = same_field(encoding)
    if field_encoding(name) == encoding and to_column(name) == name:
        return name
    return f"{name}.{suffix_of(encoding)}"


def name_columns(fields: Iterable[str]) -> dict[str, str]:
    """Return the columns' names of a tar's fields.

    Fields that differ in their suffix alone keep it: ``left.jpg`` and ``left.json``.
    """
    names = {field: to_column(field) for field in fields}
    while True:
        used = Counter(names.values())
        shared = [field for field, name in names.items() if used[name] > 1]
        if not shared:
            return names
        names.update(zip(shared, shared, strict=True))


def name_fields(columns: Sequence[tuple[str, str]]) -> list[str]:
    """Return the tar's fields of columns, which are pairs of name and encoding."""
    stems = [to_column(name) for name, _ in columns]
    used = Counter(stems)
    return [
        name
        if used[stem] > 1 and field_encoding(name) == same_field(encoding)
        else to_field(name, encoding)
        for stem, (name, encoding) in zip(stems, columns, strict=True)
    ]


def parse_columns(text: str) -> dict[str, str | None]:
    """Parse ``NAME:ENCODING,NAME,...``; None: the column's own encoding."""
    items: list[str] = []
    for item in text.split(","):
        if items and items[-1].count(":") == 3 and DIMENSIONS.fullmatch(item):
            items[-1] += f",{item}"  # a dimension of NAME:ndarray:DTYPE:D,D
        else:
            items.append(item)
    columns: dict[str, str | None] = {}
    for item in items:
        name, colon, encoding = item.partition(":")
        if not name or (colon and not encoding):
            raise ValueError(f"a column must be NAME or NAME:ENCODING, got {item!r}")
        if name in columns:
            raise ValueError(f"column {name!r} is given twice")
        columns[name] = encoding or None
    return columns
