"""Hints for errors: the nearest path, and calls that other libraries name otherwise."""

from __future__ import annotations

import os
from contextlib import suppress

from fastshard._util.globs import natural_key

__all__ = ["suggest_path"]

MAX_COMPARED = 2000  # names of a directory compared with a missing one
MAX_SHOWN = 3


def suggest_path(path: str) -> str:
    """Return the end of a message on a missing path: the nearest that exists, or ""."""
    if os.path.islink(path):
        return ": it is a dangling link"
    parent, name = os.path.split(path.rstrip("/" + os.sep))
    is_near = True
    while parent and not os.path.lexists(parent):
        above, name = os.path.split(parent)
        if above == parent:
            return ""
        parent, is_near = above, False
    if not os.path.isdir(parent or os.curdir):
        return f": {parent} is not a directory"
    names = _names_in(parent)
    near = _nearest_names(name, names)
    hint = ""
    if not is_near:
        where = parent or "the current directory"
        hint = f": there is no {name!r} in {where}"
    if near:
        return f"{hint}; did you mean {os.path.join(parent, near[0])}?"
    if names and parent:
        shown = sorted(names, key=natural_key)
        more = ", ..." if len(shown) > MAX_SHOWN else ""
        return f"{hint}; {parent} has {', '.join(shown[:MAX_SHOWN])}{more}"
    return hint


def _names_in(folder: str) -> list[str]:
    """Return up to `MAX_COMPARED` names of a directory, hidden ones left out."""
    names: list[str] = []
    with suppress(OSError), os.scandir(folder or os.curdir) as entries:
        for entry in entries:
            if len(names) == MAX_COMPARED:
                break
            if entry.name[0] != "." and not entry.name.endswith(".fsi"):
                names.append(entry.name)
    return names


def _nearest_names(name: str, names: list[str]) -> list[str]:
    """Return the names that begin with a missing one, else the similar ones."""
    from difflib import get_close_matches

    stem = name.removesuffix(".tar")
    longer = [other for other in names if stem and other.startswith(stem)]
    if longer:
        return sorted(longer, key=natural_key)
    by_case = {other.lower(): other for other in names}
    return [by_case[n] for n in get_close_matches(name.lower(), by_case, 1, 0.7)]
