"""Checks of arguments, whose errors name what there is and what is nearest."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = ["check_choice", "check_index", "check_names", "named_options"]

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
    """
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
