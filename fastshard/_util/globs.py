"""Brace lists and globs of paths; shards of a directory in natural order."""

from __future__ import annotations

import errno
import fnmatch
import itertools
import os
import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from fastshard.errors import FastshardError

__all__ = [
    "MAX_WORDS",
    "expand_braces",
    "glob",
    "has_magic",
    "lexists",
    "list_tars",
    "natural_key",
    "walk_folders",
]


MAX_WORDS = 1_000_000
MAX_DEPTH = 64

# Of 18 digits at most: bash too takes longer numbers for text.
NUMBERS = re.compile(r"(-?[0-9]{1,18})\.\.(-?[0-9]{1,18})(?:\.\.(-?[0-9]{1,18}))?")
LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?[0-9]{1,18}))?")
PADDED = re.compile(r"-?0[0-9]")


def expand_braces(pattern: str) -> list[str]:
    """Return the words that a brace list stands for, in its order.

    As in bash: numbers keep their zeros (``{08..10}``), go either way and in
    steps (``{0..10..2}``); so do letters; lists nest, and what is no list or
    range, or has no partner, stays as it is. Neither backslashes nor ``$`` mean
    anything here: they are parts of names.

    Raises
    ------
    FastshardError
        It stands for more than a million words, or nests deeper than 64.
    """
    words = _Parser(pattern).series(0, len(pattern), 0)
    if words.number > MAX_WORDS:
        raise FastshardError(
            f"{_describe(pattern)} stands for more than {MAX_WORDS:,} words"
        )
    return words.build()


class _Words(NamedTuple):
    """Words that are counted before they are built."""

    number: int  # at most MAX_WORDS + 1, which stands for any more
    build: Callable[[], list[str]]


def _literal(text: str) -> _Words:
    return _Words(1, lambda: [text])


def _either(options: list[_Words]) -> _Words:
    number = min(sum(option.number for option in options), MAX_WORDS + 1)
    return _Words(
        number, lambda: [word for option in options for word in option.build()]
    )


def _joined(parts: list[_Words]) -> _Words:
    if len(parts) == 1:
        return parts[0]
    number = 1
    for part in parts:
        number = min(number * part.number, MAX_WORDS + 1)
    return _Words(
        number,
        lambda: [
            "".join(word)
            for word in itertools.product(*[part.build() for part in parts])
        ],
    )


def _ranged(text: str) -> _Words | None:
    """Make the words of ``1..9``, ``a..f``, with a step or without."""
    if found := NUMBERS.fullmatch(text):
        first, last, step = found.groups()
        padded = any(PADDED.match(end) for end in (first, last))
        width = max(len(first), len(last)) if padded else 0
        numbers = _stepped(int(first), int(last), step)
        return _Words(_length(numbers), lambda: [f"{n:0{width}d}" for n in numbers])
    if found := LETTERS.fullmatch(text):
        first, last, step = found.groups()
        codes = _stepped(ord(first), ord(last), step)
        return _Words(_length(codes), lambda: [chr(code) for code in codes])
    return None


def _stepped(first: int, last: int, step: str | None) -> range:
    size = abs(int(step or 1)) or 1  # the ends say which way, and 0 is 1
    return (
        range(first, last + 1, size) if first <= last else range(first, last - 1, -size)
    )


def _length(numbers: range) -> int:
    return min(len(numbers), MAX_WORDS + 1)


class _Parser:
    """Read a pattern whose braces have been paired."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.partner: dict[int, int] = {}  # "{" to its "}", where both are there
        opened: list[int] = []
        for at, character in enumerate(pattern):
            if character == "{":
                opened.append(at)
            elif character == "}" and opened:
                self.partner[opened.pop()] = at

    def series(self, start: int, end: int, depth: int) -> _Words:
        """Read text and groups that follow one another."""
        if depth > MAX_DEPTH:
            raise FastshardError(
                f"{_describe(self.pattern)} has braces nested deeper than {MAX_DEPTH}"
            )
        parts: list[_Words] = []
        text = at = start
        while (at := self.pattern.find("{", at, end)) >= 0:
            close = self.partner.get(at)
            if close is None:
                at += 1
                continue
            parts.append(_literal(self.pattern[text:at]))
            parts.append(self.group(at, close, depth + 1))
            text = at = close + 1
        parts.append(_literal(self.pattern[text:end]))
        return _joined(parts)

    def group(self, opens: int, closes: int, depth: int) -> _Words:
        """Read what stands between a brace and its partner."""
        ends = [*self.commas(opens + 1, closes), closes]
        if len(ends) > 1:
            starts = [opens + 1, *[comma + 1 for comma in ends[:-1]]]
            return _either(
                [
                    self.series(start, end, depth)
                    for start, end in zip(starts, ends, strict=True)
                ]
            )
        words = _ranged(self.pattern[opens + 1 : closes])
        if words is None:
            inner = self.series(opens + 1, closes, depth)
            words = _joined([_literal("{"), inner, _literal("}")])
        return words

    def commas(self, start: int, end: int) -> list[int]:
        """Find the commas of a group that are not those of one inside it."""
        found = []
        at = start
        while at < end:
            if self.pattern[at] == ",":
                found.append(at)
            at = self.partner.get(at, at) + 1
        return found


def _describe(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 80 else pattern[:77] + "...")


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


def lexists(path: str) -> bool:
    """Whether there is something of this name, were it a link that leads nowhere.

    Raises
    ------
    OSError
        That cannot be told.
    """
    return _stat(os.lstat, path) is not None


def target_exists(path: str) -> bool:
    """Whether there is a file or a directory behind a name; OSError as `lexists`."""
    return _stat(os.stat, path) is not None


def _stat(call: Callable[[str], os.stat_result], path: str) -> os.stat_result | None:
    try:
        return call(path)
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise


def list_tars(folder: str) -> list[str]:
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
        elif entry.is_symlink() and not target_exists(path):
            raise FileNotFoundError(errno.ENOENT, "a link that leads nowhere", path)
    return sorted(shards, key=natural_key)


def walk_folders(top: str) -> list[str]:
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
    if lexists(path):
        return [path]
    if part == "**":
        return walk_folders(base) if os.path.isdir(base or os.curdir) else []
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
