"""Sizes in bytes, or as text such as "1GiB"."""

from __future__ import annotations

import operator
import re
from fractions import Fraction

__all__ = ["parse_size"]

UNITS = {  # bytes
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
TEXT = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)")


def parse_size(size: int | str) -> int:
    """Return a size in bytes."""
    if isinstance(size, str):
        match = TEXT.fullmatch(size.strip())
        unit = UNITS.get(match[2].upper()) if match else None
        if match is None or unit is None:
            raise ValueError(
                f'a size must be in bytes, or text such as "500MB" or "1GiB", got '
                f"{size!r}"
            )
        nbytes = int(Fraction(match[1]) * unit)
    else:
        nbytes = operator.index(size)
    if nbytes <= 0:
        raise ValueError(f"a size must be positive, got {size!r}")
    return nbytes
