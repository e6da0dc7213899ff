"""Looking for shards in directories: natural order, globs, recursion.

Unlike the standard library's `glob` this raises for a directory that cannot be
read, and walks each directory once whatever links lead to it.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress

__all__ = [
    "folders_under",
    "glob",
    "has_magic",
    "natural_key",
    "present",
    "shards_in",
]

SUFFIX = ".tar"
SEPARATORS = re.escape(os.sep + (os.altsep or ""))
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL)

NaturalKey = tuple[tuple[str | tuple[int, str], ...], str]


def natural_key(path: str) -> NaturalKey:
    """Return a key that sorts names as people do: ``shard-2`` before ``shard-10``.

    Runs of the digits 0 to 9 compare as numbers of any length, all else as text;
    names that are alike but for leading zeros compare as text.
    """
    parts = re.split("([0-9]+)", path.replace(os.sep, "/"))
    return tuple([_number(p) if i % 2 else p for i, p in enumerate(parts)]), path


def _number(digits: str) -> tuple[int, str]:
    digits = digits.lstrip("0")
    return len(digits), digits


def has_magic(path: str) -> bool:
    """Whether a path has a character that a glob gives a meaning to."""
    return any(character in path for character in "*?[")


def present(path: str) -> bool:
    """Whether there is something of this name, were it a link that leads nowhere.

    Raises
    ------
    OSError
        That cannot be told.
    """
    return _stat(os.lstat, path) is not None


def leads_somewhere(path: str) -> bool:
    """Whether there is a file or a directory behind a name; OSError as `present`."""
    return _stat(os.stat, path) is not None


def _stat(call: Callable[[str], os.stat_result], path: str) -> os.stat_result | None:
    try:
        return call(path)
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise


def shards_in(folder: str) -> list[str]:
    """List a directory's own shards in natural order: regular files, not hidden.

    Raises
    ------
    FileNotFoundError
        A shard's name is a link that leads nowhere.
    OSError
        The directory cannot be read.
    """
    shards = []
    for entry in _entries(folder):
        if entry.name.startswith(".") or not entry.name.endswith(SUFFIX):
            continue
        path = os.path.join(folder, entry.name)
        if entry.is_file():
            shards.append(path)
        elif entry.is_symlink() and not leads_somewhere(path):
            raise FileNotFoundError(errno.ENOENT, "a link that leads nowhere", path)
    return sorted(shards, key=natural_key)


def folders_under(top: str) -> list[str]:
    """List a directory and those in it at any depth, but for hidden ones.

    A directory is listed once: under its own path, or, if only links lead to it,
    under the first of them.

    Raises
    ------
    OSError
        One of them cannot be read.
    """
    found: list[str] = []
    seen: set[tuple[int, int]] = set()
    folders, links = deque([top]), deque[str]()
    while folders or links:
        folder = folders.popleft() if folders else links.popleft()
        status = os.stat(folder or os.curdir)
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        found.append(folder)
        for name, linked in _subfolders(folder):
            (links if linked else folders).append(os.path.join(folder, name))
    return found


def _subfolders(folder: str) -> list[tuple[str, bool]]:
    """Name the directories in a directory, and tell which are links."""
    found = [
        (entry.name, entry.is_symlink())
        for entry in _entries(folder)
        if not entry.name.startswith(".") and _is_folder(entry)
    ]
    return sorted(found, key=lambda pair: natural_key(pair[0]))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link to itself leads nowhere
            return False
        raise


def glob(pattern: str) -> list[str]:
    """List what matches a pattern in natural order, directories too.

    A part of the pattern that exists by that very name means just that. ``**``
    stands for any number of directories. Hidden names match only a part that
    begins with a dot.

    Raises
    ------
    OSError
        A directory cannot be read.
    """
    drive, tail = os.path.splitdrive(pattern)
    relative = tail.lstrip(os.sep + (os.altsep or ""))
    found = [drive + tail[: len(tail) - len(relative)]]
    parts = [part for part in re.split(f"[{SEPARATORS}]+", relative) if part]
    for part, following in zip(parts, [*parts[1:], ""], strict=True):
        if part == following == "**":
            continue
        matches = [path for base in found for path in _matching(base, part)]
        found = list(dict.fromkeys(matches))
    return sorted(found, key=natural_key)


def _matching(base: str, part: str) -> list[str]:
    """List the paths that one part of a pattern leads to from a directory."""
    path = os.path.join(base, part)
    if present(path):
        return [path]
    if part == "**":
        return folders_under(base) if os.path.isdir(base or os.curdir) else []
    if not has_magic(part):
        return []
    matches = re.compile(fnmatch.translate(os.path.normcase(part))).match
    return [
        os.path.join(base, entry.name)
        for entry in _entries(base)
        if matches(os.path.normcase(entry.name))
        and (part.startswith(".") or not entry.name.startswith("."))
    ]


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """List a directory; nothing if there is none of this name."""
    with (
        suppress(FileNotFoundError, NotADirectoryError),
        os.scandir(folder or os.curdir) as entries,
    ):
        return list(entries)
    return []
