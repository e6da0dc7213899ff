"""Suggestions of existing paths, for errors of missing ones."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from fastshard._util.paths.globs import natural_key

__all__ = ["suggest_path"]

MAX_COMPARED = 2000  # names of a directory compared with a missing one
MAX_SHOWN = 3
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")  # of the hub


def suggest_path(path: str) -> str:
    """Return the end of a message on a missing path: the nearest one, or ""."""
    if os.path.islink(path):
        return ": it is a dangling link"
    expanded = os.path.expandvars(os.path.expanduser(path))
    if expanded != path and os.path.lexists(expanded):
        return f"; did you mean {expanded}?"
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
        if not near and REPOSITORY.fullmatch(path) and not path.endswith(".tar"):
            return f"{hint}; a dataset of the hub is hf://datasets/{path}"
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
    """Return existing names near a missing one, the best first.

    Names that differ by a number are not misspelt: shard 7 is not shard 17.
    """
    from difflib import get_close_matches

    mask, numbers = _split_numbers(name)
    same = [other for other in names if _split_numbers(other) == (mask, numbers)]
    if same:  # other zeros before the numbers
        return same
    stem = name.removesuffix(".tar")
    cut = len(stem)
    longer = [other for other in names if stem and other.startswith(stem)]
    longer = [other for other in longer if not other[cut - 1 : cut + 1].isdigit()]
    if longer:
        return sorted(longer, key=natural_key)
    if len(names) == MAX_COMPARED:  # the nearest may not be among them
        return []
    by_case = {n.lower(): n for n in names if _split_numbers(n)[0] != mask}
    return [by_case[n] for n in get_close_matches(name.lower(), by_case, 1, 0.7)]


def _split_numbers(name: str) -> tuple[str, list[str]]:
    """Return a name without its numbers, and these without leading zeros."""
    numbers = [number.lstrip("0") for number in re.findall("[0-9]+", name)]
    return re.sub("[0-9]+", "0", name), numbers
