"""What samples and fields may be called, for readers to find the same again."""

from __future__ import annotations

import re

__all__ = ["check_field", "check_key", "check_name", "is_reserved"]

MAX_NAME = 4096  # bytes; nothing unpacks longer ones
# Keys that need no closer look; others may be good too.
PLAIN_KEY = re.compile(r"(?:[0-9A-Za-z][\w.+-]*/)*[0-9A-Za-z][\w+-]*", re.ASCII)
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
META = re.compile(r"__[^/]*__(/|\Z)")  # the first part of what is no sample


def check_key(key: str) -> None:
    """Refuse a key that would not read back equal, or that leaves a directory.

    Raises
    ------
    ValueError
        It says why.
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
            f"readers end it at the first dot of its last part, behind {last!r}"
            if last
            else "readers take what begins with a dot for no sample"
        )
    elif CONTROL.search(key) or not is_unicode(key):
        reason = "it has a control character or half a surrogate pair"
    else:
        return
    raise ValueError(f"no key {key!r}: {reason}")


def check_name(key: str, name: bytes) -> None:
    """Refuse a member's name that is too long, or that readers pass over."""
    if len(name) <= MAX_NAME and name[:2] != b"__":
        return
    if len(name) > MAX_NAME:
        raise ValueError(
            f"sample {key!r}: a member's name has at most {MAX_NAME:,} bytes"
        )
    text = name.decode()
    if META.match(text):
        raise ValueError(f"sample {key!r}: readers take {text!r} for no sample")


def is_reserved(field: object) -> bool:
    """Whether it is of the form ``__x__``, and so no field."""
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
    """Return the name of a field, unless it would not read back equal.

    Raises
    ------
    ValueError
        It says why.
    TypeError
        It is no str.
    """
    if not isinstance(field, str):
        raise TypeError(f"sample {key!r}: a field is a str, not {field!r}")
    if not field:
        reason = "it is empty"
    elif "/" in field:
        reason = "a key ends behind the last slash"
    elif CONTROL.search(field) or not is_unicode(field):
        reason = "it has a control character or half a surrogate pair"
    elif lower and field != field.lower():
        reason = f"it would be read as {field.lower()!r}; see lower="
    else:
        return field
    raise ValueError(f"sample {key!r}: no field {field!r}, for {reason}")
