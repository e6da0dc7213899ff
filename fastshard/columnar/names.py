"""What fields, samples and shard files of a columnar dataset may be called."""

from __future__ import annotations

import re
from collections.abc import Container

__all__ = [
    "LARGEST_ID",
    "LARGEST_SHARD",
    "check_column_name",
    "check_field_name",
    "check_sample_id",
    "shard_name",
    "shard_number",
]

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SHARD = re.compile(r"shard_([0-9]{4,10})\.tar")
LARGEST_SHARD = 10**9  # no number of a shard is larger
LARGEST_ID = (1 << 63) - 1  # that is counted: a larger one is no integer of SQLite
MAX_ID = 64 << 10  # bytes of a sample's id
# SQLite compares names without regard to case. The last three are its own.
COLUMNS = frozenset({"id", "meta_json", "rowid", "oid", "_rowid_"})
FIELDS = frozenset({"id", "meta_json", "__key__"})  # the last is the id's own, in dicts
SUFFIXES = ("_offset", "_shard")  # of the two columns of a field
MAX_NAME = 128  # characters: a folder's name is longer, and no file system's limit


def check_field_name(name: object, taken: Container[str]) -> str:
    """Return a field's name, or say why it cannot be one.

    Parameters
    ----------
    name : str
    taken : container of str
        Lower-cased names of the columns that there are.

    Raises
    ------
    ValueError
        It is no identifier, is too long, or it is or has a column that is taken.
    TypeError
        It is no str.
    """
    checked = _identifier(name, "a field", FIELDS)
    columns = [checked + suffix for suffix in SUFFIXES]
    if checked.lower().endswith(SUFFIXES):  # as another field's columns are
        columns.append(checked)
    for column in columns:
        if column.lower() in taken:
            raise ValueError(
                f"a field cannot be named {checked!r}: there is a column {column!r}"
            )
    return checked


def check_column_name(name: object, taken: Container[str]) -> str:
    """Return a metadata column's name, or say why it cannot be one.

    Raises
    ------
    ValueError
        It is no identifier, is too long, is taken, or ends as a field's columns do.
    TypeError
        It is no str.
    """
    checked = _identifier(name, "a column", COLUMNS)
    if checked.lower().endswith(SUFFIXES):
        raise ValueError(f"a column's name cannot end with _offset or _shard: {name!r}")
    if checked.lower() in taken:
        raise ValueError(f"there is a column {checked!r} already")
    return checked


def _identifier(name: object, what: str, reserved: Container[str]) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of {what} is a str, not {type(name).__name__}")
    if not IDENTIFIER.fullmatch(name) or len(name) > MAX_NAME:
        raise ValueError(
            f"{name!r:.200} names no {what[2:]}: letters, digits and _ only, "
            f"no digit first, at most {MAX_NAME}"
        )
    if name.lower() in reserved:
        raise ValueError(f"{what} cannot be named {name!r}: the name is reserved")
    return str(name)


def check_sample_id(sample_id: object) -> bytes:
    """Return the name of the member that holds a sample's array.

    Raises
    ------
    ValueError
        The id is empty, too long, has a NUL, or cannot be encoded as UTF-8.
    TypeError
        It is no str.
    """
    if not isinstance(sample_id, str):
        raise TypeError(f"a sample's id is a str, not {type(sample_id).__name__}")
    if not sample_id or "\0" in sample_id:
        what = "has a NUL" if sample_id else "is empty"
        raise ValueError(f"a sample's id {what}: {sample_id!r:.200}")
    try:
        encoded = sample_id.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"a sample's id cannot be encoded as UTF-8: {sample_id!r:.200}"
        ) from None
    if len(encoded) > MAX_ID:
        raise ValueError(
            f"a sample's id has {MAX_ID:,} bytes at most, not {len(encoded):,}"
        )
    return b"%b.npy" % encoded


def shard_name(shard: int) -> str:
    """Return the name of a shard's file."""
    return f"shard_{shard:04d}.tar"


def shard_number(name: str) -> int | None:
    """Return the number of a shard from its file's name, None if it names none."""
    found = SHARD.fullmatch(name)
    if found is None:
        return None
    number = int(found[1])
    known = number <= LARGEST_SHARD and shard_name(number) == name
    return number if known else None
