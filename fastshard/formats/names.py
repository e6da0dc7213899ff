"""Checks that readers parse written keys, fields and member names back equal."""

from __future__ import annotations

import re

__all__ = ["check_field", "check_key", "check_name", "is_reserved"]

MAX_NAME = 4096  # bytes; no tool unpacks longer names
# Keys that are valid without further checks; others may be valid too.
PLAIN_KEY = re.compile(r"(?:[0-9A-Za-z][\w.+-]*/)*[0-9A-Za-z][\w+-]*", re.ASCII)
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
META = re.compile(r"__[^/]*__(/|\Z)")  # first part of a name that is not a sample's


def check_key(key: str) -> None:
    """Raise ValueError for a key that reads back differently or leaves the directory.

    The message gives the reason.
    """
    if PLAIN_KEY.fullmatch(key):
        return
    parts = key.split("/")
    if not key:
        reason = "it is empty"
    elif key.startswith("/"):
        reason = "it begins with a slash"
    elif "" in parts or ".." in parts:
        reason = 'it has a part that is empty or ".."'
    elif "." in parts[-1]:
        last = parts[-1].split(".")[0]
        reason = (
            f"readers end it at the first dot of its last part, after {last!r}"
            if last
            else "readers ignore names that begin with a dot"
        )
    elif CONTROL.search(key) or not is_unicode(key):
        reason = "it has a control character or a lone surrogate"
    else:
        return
    raise ValueError(f"invalid key {key!r}: {reason}")


def check_name(key: str, name: bytes) -> None:
    """Raise ValueError for a member's name that is too long or ignored by readers."""
    if len(name) <= MAX_NAME and name[:2] != b"__":
        return
    if len(name) > MAX_NAME:
        raise ValueError(
            f"sample {key!r}: a member's name must have at most {MAX_NAME:,} bytes, "
            f"got {len(name):,}"
        )
    text = name.decode()
    if META.match(text):
        raise ValueError(f"sample {key!r}: readers ignore the name {text!r}")


def is_reserved(field: object) -> bool:
    """Return whether a name has the form ``__x__``, and so is not a field."""
    return (
        isinstance(field, str)
        and len(field) > 4
        and field.startswith("__")
        and field.endswith("__")
    )


def is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_field(key: str, field: object, lower: bool) -> str:
    """Return a field's name, if readers parse it back equal."""
    if not isinstance(field, str):
        raise TypeError(f"sample {key!r}: a field must be a str, got {field!r}")
    if not field:
        reason = "it is empty"
    elif "/" in field:
        reason = "a key ends after the last slash"
    elif CONTROL.search(field) or not is_unicode(field):
        reason = "it has a control character or a lone surrogate"
    elif lower and field != field.lower():
        reason = f"it would be read as {field.lower()!r}; see lower="
    else:
        return field
    raise ValueError(f"sample {key!r}: invalid field {field!r}: {reason}")
