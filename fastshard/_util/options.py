"""Checks of option names and values; errors propose the nearest valid one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = [
    "check_choice",
    "check_index",
    "check_names",
    "named_options",
    "near_names",
]

ALL = 256  # names; all of a shorter sequence are compared
AROUND = 16  # names compared on each side of the name's position in sorted order
LONGEST = 256  # characters of a compared name
SHOWN = 3  # names in an error
ALIKE = 0.75  # see difflib.get_close_matches

P = ParamSpec("P")
T = TypeVar("T")

INDEXES = ("auto", "none", "rebuild")
WORD = re.compile(r"[A-Za-z_-]+")  # no suffix, no folder: probably not a path


def near_names(name: str, count: int, at: Callable[[int], str]) -> tuple[str, ...]:
    """Return up to three names similar to a missing one, the best first.

    The work is bounded: of a long sequence only the first names are compared, and
    those around the name's position if the sequence is sorted.

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
        positions = dict.fromkeys(range(2 * AROUND))
        for spelling in _spellings(name, at(0)):
            middle = _bisect(spelling, count, at)
            first, last = max(0, middle - AROUND), min(count, middle + AROUND)
            positions |= dict.fromkeys(range(first, last))
        known = [at(i) for i in positions]
    known = [text for text in known if len(text) <= LONGEST]
    spellings = set(_spellings(name, known[0] if known else ""))
    exact = [text for text in dict.fromkeys(known) if text in spellings]
    similar = get_close_matches(name, known, SHOWN, ALIKE)
    return tuple(dict.fromkeys([*exact, *similar]))[:SHOWN]


def _spellings(name: str, like: str) -> list[str]:
    """Return variants of a name: without extension or folder, with other zeros."""
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


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Check the value of an option.

    Raises
    ------
    ValueError
        The value is invalid; the message names all valid ones, and the nearest.
    """
    if value in choices:
        return
    known = list(choices)
    valid = " or ".join(f'"{choice}"' for choice in known[-2:])
    valid = "".join(f'"{choice}", ' for choice in known[:-2]) + valid
    raise ValueError(f"{name} must be {valid}, got {value!r}{_nearest(value, known)}")


def check_index(index: str) -> None:
    """Check an ``index=`` that is not a keyword: a lone word must be an existing path.

    Raises
    ------
    ValueError
        The word is neither a keyword nor an existing path.
    TypeError
        It is not a str.
    """
    if not isinstance(index, str):
        kind = type(index).__name__
        raise TypeError(f"index must be a str or path-like, got {kind}")
    if index in INDEXES or not WORD.fullmatch(index) or os.path.lexists(index):
        return
    raise ValueError(
        'index must be "auto", "none", "rebuild" or an existing path, got '
        f"{index!r}{_nearest(index, INDEXES)}"
    )


def check_names(call: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Check the names of keyword arguments.

    Raises
    ------
    TypeError
        A name is invalid; the message has the nearest valid one, or all.
    """
    known = list(known)
    for name in given:
        if name not in known:
            hint = _nearest(name, known, "=")
            hint = hint or f": it takes {', '.join(f'{k}=' for k in sorted(known))}"
            raise TypeError(f"{call}() has no argument {name}={hint}")


def named_options(call: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function or ``__init__`` to check its arguments by `check_names`.

    Parameters
    ----------
    call : str
        Name of the call in messages.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        code = function.__code__
        known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        own = [name for name in known if name != "self"]

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            if kwargs:
                check_names(call, kwargs, own)
            return function(*args, **kwargs)

        return checked

    return decorate


def _nearest(value: object, choices: Iterable[str], end: str = "") -> str:
    """Return the end of a message that proposes a similar choice, or ""."""
    from difflib import get_close_matches  # takes 5 ms to import

    if not isinstance(value, str):
        return ""
    found = get_close_matches(value.lower(), list(choices), 1)
    return f"; did you mean {found[0]}{end}?" if found else ""
