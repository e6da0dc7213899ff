"""Names close to one that was not found, for error messages."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["near_names"]

ALL = 256  # names that are compared one by one; of more, those around
AROUND = 16  # names on each side of where a sorted sequence would have it
LONGEST = 256  # characters of a name that is compared
SHOWN = 3  # names
ALIKE = 0.75  # see difflib.get_close_matches


def near_names(name: str, count: int, at: Callable[[int], str]) -> tuple[str, ...]:
    """Return up to three names that resemble one that is absent, the best first.

    Bounded work: of a long sequence the first names are compared, and those where
    this one would be if the sequence were sorted.

    Parameters
    ----------
    name : str
    count : int
        Length of the sequence.
    at : callable
        ``at(i)`` is the name at a position.
    """
    if not count or len(name) > LONGEST:
        return ()
    from difflib import get_close_matches

    if count <= ALL:
        known = [at(i) for i in range(count)]
    else:
        places = dict.fromkeys(range(2 * AROUND))
        for wanted in _spellings(name, at(0)):
            middle = _bisect(wanted, count, at)
            first, last = max(0, middle - AROUND), min(count, middle + AROUND)
            places |= dict.fromkeys(range(first, last))
        known = [at(i) for i in places]
    known = [text for text in known if len(text) <= LONGEST]
    spelled = set(_spellings(name, known[0] if known else ""))
    sure = [text for text in dict.fromkeys(known) if text in spelled]
    alike = get_close_matches(name, known, SHOWN, ALIKE)
    return tuple(dict.fromkeys([*sure, *alike]))[:SHOWN]


def _spellings(name: str, like: str) -> list[str]:
    """Return what may be meant: without an extension or a folder, more zeros."""
    folder, slash, last = name.rpartition("/")
    stem = last.partition(".")[0]
    found = [name, folder + slash + stem, last, stem]
    if stem.isdigit():
        before, slash, other = like.rpartition("/")
        found.append(before + slash + stem.zfill(len(other)))
        found.append(before + slash + (stem.lstrip("0") or "0"))
    return list(dict.fromkeys(found))


def _bisect(name: str, count: int, at: Callable[[int], str]) -> int:
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if at(middle) < name:
            low = middle + 1
        else:
            high = middle
    return low
