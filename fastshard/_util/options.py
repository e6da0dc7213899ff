"""Checks of option names and values; errors name the nearest known one."""

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


P = ParamSpec("P")
T = TypeVar("T")

INDEXES = ("auto", "none", "rebuild")
WORD = re.compile(r"[A-Za-z_-]+")  # no suffix and no folder: hardly a path


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Refuse what is none of an option's values.

    Raises
    ------
    ValueError
        The message names all of them, and the nearest one.
    """
    if value in choices:
        return
    known = list(choices)
    told = " or ".join(f'"{choice}"' for choice in known[-2:])
    told = "".join(f'"{choice}", ' for choice in known[:-2]) + told
    raise ValueError(f"{name} is {told}, not {value!r}{_nearest(value, known)}")


def check_index(index: str) -> None:
    """Refuse an ``index=`` that is a word, but none that means something.

    Raises
    ------
    ValueError
        It is no file or directory either.
    TypeError
        It is bytes.
    """
    if not isinstance(index, str):
        raise TypeError(f"index is str or path-like, not {type(index).__name__}")
    if index in INDEXES or not WORD.fullmatch(index) or os.path.lexists(index):
        return
    raise ValueError(
        'index is "auto", "none", "rebuild" or a path, and there is no file '
        f"{index!r}{_nearest(index, INDEXES)}"
    )


def check_names(call: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse keyword arguments that a call does not take.

    Raises
    ------
    TypeError
        The message names the nearest of those that it takes, or all.
    """
    known = list(known)
    for name in given:
        if name not in known:
            near = _nearest(name, known, "=")
            told = near or f": it takes {', '.join(f'{k}=' for k in sorted(known))}"
            raise TypeError(f"{call}() has no argument {name}={told}")


def named_options(call: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Have a function, or a class's ``__init__``, name the nearest of its arguments.

    Parameters
    ----------
    call : str
        What its callers call it.
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
    """Return the end of a message that proposes a choice; "" where none is near."""
    from difflib import get_close_matches  # 5 ms, for an error only

    if not isinstance(value, str):
        return ""
    found = get_close_matches(value.lower(), list(choices), 1)
    return f"; did you mean {found[0]}{end}?" if found else ""
