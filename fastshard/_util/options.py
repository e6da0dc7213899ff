"""Checks of option names and values, and suggestions of similar names in errors."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from types import MappingProxyType
from typing import ParamSpec, TypeVar

from fastshard._util.hints import explain_option

__all__ = [
    "check_choice",
    "check_index",
    "check_names",
    "check_option_names",
    "near_fields",
    "near_names",
    "other_forms",
    "spell",
    "suggest",
]

COMPARE_ALL = 256  # names; longer sequences are sampled
NEIGHBOURS = 16  # names compared on each side of a position in sorted order
MAX_LENGTH = 256  # characters of a compared name
MAX_SUGGESTIONS = 3
MIN_SIMILARITY = 0.75  # the cutoff of difflib.get_close_matches
FIELD_SIMILARITY = 0.7  # tells png from jpg
# Fields by names that columns have elsewhere, and by image specs of webdataset.
IMAGES = "jpg", "jpeg", "png", "webp"
MEANT = {
    **dict.fromkeys(("image", "img", "pil", "rgb", "rgb8"), IMAGES),
    **dict.fromkeys(("torch", "torchrgb", "torchrgb8"), IMAGES),
    **dict.fromkeys(("label", "labels", "target"), ("cls",)),
    **dict.fromkeys(("text", "caption"), ("txt",)),
}

P = ParamSpec("P")
T = TypeVar("T")

EMPTY: Mapping[str, str] = MappingProxyType({})
INDEXES = ("auto", "none", "rebuild")
NUMBER = re.compile(r"[0-9]+\Z")
WORD = re.compile(r"[A-Za-z_-]+")  # without suffix and folder: rarely a path


def other_forms(name: str, has: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the other Unicode forms (NFC, NFD) of a missing name that exist."""
    if name.isascii():
        return ()
    from unicodedata import normalize

    forms = {normalize("NFC", name), normalize("NFD", name)} - {name}
    return tuple(form for form in forms if has(form))


def near_names(
    name: str,
    count: int,
    at: Callable[[int], str],
    has: Callable[[str], bool] | None = None,
) -> tuple[str, ...]:
    """Return up to three names similar to a missing one, the best first.

    The work is bounded: all names of a short sequence are compared. Of a long one only
    the first are, and the neighbours of the position that the name would have if the
    sequence is sorted.
    """
    if has is not None and (found := other_forms(name, has)):
        return found
    if not count or len(name) > MAX_LENGTH:
        return ()
    from difflib import get_close_matches

    if count <= COMPARE_ALL:
        compared = [at(i) for i in range(count)]
    else:
        positions = dict.fromkeys(range(2 * NEIGHBOURS))
        for spelling in spell(name, at(0)):
            middle = _bisect(spelling, count, at)
            first, last = max(0, middle - NEIGHBOURS), min(count, middle + NEIGHBOURS)
            positions |= dict.fromkeys(range(first, last))
        compared = [at(i) for i in positions]
    compared = [text for text in compared if len(text) <= MAX_LENGTH]
    spellings = set(spell(name, compared[0] if compared else ""))
    exact = [text for text in dict.fromkeys(compared) if text in spellings]
    if "/" not in name:  # a key without its folder
        exact += (text for text in compared if text.rpartition("/")[2] in spellings)
    similar = get_close_matches(name, compared, MAX_SUGGESTIONS, MIN_SIMILARITY)
    return tuple(dict.fromkeys([*exact, *similar]))[:MAX_SUGGESTIONS]


def spell(name: str, like: str) -> list[str]:
    """Return variants of a name, itself the first.

    Without extension or folder; a number also with the folder of `like`, as many digits
    as `like`, and without leading zeros. A final number gets as many digits as that of
    `like`.
    """
    folder, slash, last = name.rpartition("/")
    stem = last.partition(".")[0]
    found = [name, folder + slash + stem, last, stem]
    if stem.isdigit():
        before, slash, other = like.rpartition("/")
        found.append(before + slash + stem.zfill(len(other)))
        found.append(before + slash + (stem.lstrip("0") or "0"))
    number, digits = NUMBER.search(stem), NUMBER.search(like)
    if number and digits:
        padded = number[0].lstrip("0").zfill(len(digits[0]))
        found.append(stem[: number.start()] + padded)
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


def near_fields(field: str, fields: Sequence[str]) -> tuple[str, ...]:
    """Return the field that a missing name is a variant of: ``.JPG`` for ``jpg``."""
    from difflib import get_close_matches

    if len(field) > MAX_LENGTH:
        return ()
    wanted = field.lower().lstrip(".")
    if found := other_forms(field, fields.__contains__):
        return found
    by_case = {name.lower(): name for name in fields}
    for spelling in (wanted, wanted.rpartition(".")[2]):
        if spelling in by_case:
            return (by_case[spelling],)
    meant = [name for name in MEANT.get(wanted, ()) if name in by_case]
    letters = sorted(wanted)  # jgp for jpg
    meant = meant or [name for name in by_case if sorted(name) == letters]
    near = meant or get_close_matches(wanted, by_case, 1, FIELD_SIMILARITY)
    return tuple(by_case[name] for name in near[:1])


def check_choice(name: str, value: object, choices: Collection[str | None]) -> None:
    """Check the value of an option; None is written without quotes."""
    if value in choices:
        return
    words = [choice for choice in choices if choice is not None]
    quoted = ["None"] * (len(words) < len(choices)) + [f'"{word}"' for word in words]
    valid = ", ".join([*quoted[:-2], " or ".join(quoted[-2:])])
    raise ValueError(f"{name} must be {valid}, got {value!r}{suggest(value, words)}")


def check_index(index: str) -> None:
    """Check an ``index=``: a single word must be a keyword or an existing path."""
    if not isinstance(index, str):
        kind = type(index).__name__
        raise TypeError(f"index must be a str or path-like, got {kind}")
    if index in INDEXES or not WORD.fullmatch(index) or os.path.lexists(index):
        return
    raise ValueError(
        'index must be "auto", "none", "rebuild" or an existing path, got '
        f"{index!r}{suggest(index, INDEXES)}"
    )


def check_names(call: str, given: Iterable[str], valid: Iterable[str]) -> None:
    """Check the names of keyword arguments."""
    valid = list(valid)
    for name in given:
        if name not in valid:
            hint = explain_option(name, valid)
            hint = (
                hint or f": it takes {', '.join(f'{k}=' for k in sorted(set(valid)))}"
            )
            raise TypeError(f"{call}() has no argument {name}={hint}")


def check_option_names(
    call: str,
    aliases: Mapping[str, str] = EMPTY,
    notes: Mapping[str, str] = EMPTY,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function or method to check its arguments by `check_names`."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        code = function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        valid = list(
            dict.fromkeys(name for name in (*names, *aliases) if name != "self")
        )
        positions = {name: i for i, name in enumerate(names[: code.co_argcount])}

        @wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            if kwargs:
                for name in kwargs.keys() & notes.keys():
                    raise TypeError(f"{call}() has no argument {name}=: {notes[name]}")
                check_names(call, kwargs, valid)
                for alias in kwargs.keys() & aliases.keys():
                    name = aliases[alias]
                    if name in kwargs or positions.get(name, len(args)) < len(args):
                        raise TypeError(
                            f"{call}() takes {name}= or {alias}=, its other name; got "
                            "both"
                        )
                    kwargs[name] = kwargs.pop(alias)
            return function(*args, **kwargs)

        return wrapper

    return decorate


def suggest(value: object, choices: Iterable[str], suffix: str = "") -> str:
    """Return the end of a message that suggests a similar choice, or ""."""
    from difflib import get_close_matches  # takes 5 ms to import

    if not isinstance(value, str):
        return ""
    found = get_close_matches(value.lower(), list(choices), 1)
    return f"; did you mean {found[0]}{suffix}?" if found else ""
