"""Paths of shards: brace expansion, globs, directories in natural order."""

from __future__ import annotations

import errno
import fnmatch
import itertools
import os
import re
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from fastshard.errors import FastshardError, ShardNotFoundError

__all__ = [
    "MAX_WORDS",
    "expand_braces",
    "glob",
    "has_magic",
    "is_shard_name",
    "lexists",
    "list_tars",
    "matches_parts",
    "natural_key",
    "walk_folders",
]

MAX_WORDS = 1_000_000
MAX_DEPTH = 64

# Of 18 digits at most: bash too takes longer numbers for text.
NUMBERS = re.compile(r"(-?[0-9]{1,18})\.\.(-?[0-9]{1,18})(?:\.\.(-?[0-9]{1,18}))?")
LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?[0-9]{1,18}))?")
PADDED = re.compile(r"-?0[0-9]")

HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*")  # with the scheme, of a URL

SUFFIX = ".tar"
SEPARATORS = re.escape(os.sep + (os.altsep or ""))
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL)

NaturalKey = tuple[tuple[str | tuple[int, str], ...], str]


def expand_braces(pattern: str) -> list[str]:
    """Expand brace lists as bash does, in the same order.

    Ranges of numbers keep leading zeros (``{08..10}``), may descend and have steps
    (``{0..10..2}``), as ranges of letters may; lists nest. Unpaired braces and braces
    without a list or range are literal. Unlike in bash, backslashes and ``$`` are
    literal too.
    """
    words = _Parser(pattern).series(0, len(pattern), 0)
    if words.number > MAX_WORDS:
        raise FastshardError(
            f"{_describe(pattern)} expands to more than {MAX_WORDS:,} words"
        )
    return words.build()


class _Words(NamedTuple):
    """Words, counted before they are built."""

    number: int  # capped at MAX_WORDS + 1
    build: Callable[[], list[str]]


def _literal(text: str) -> _Words:
    return _Words(1, lambda: [text])


def _alternate(options: list[_Words]) -> _Words:
    number = min(sum(option.number for option in options), MAX_WORDS + 1)
    return _Words(
        number, lambda: [word for option in options for word in option.build()]
    )


def _concatenate(parts: list[_Words]) -> _Words:
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


def _expand_range(text: str) -> _Words | None:
    """Return the words of ``1..9`` or ``a..f``, optionally with a step; or None."""
    if found := NUMBERS.fullmatch(text):
        first, last, step = found.groups()
        padded = any(PADDED.match(end) for end in (first, last))
        width = max(len(first), len(last)) if padded else 0
        numbers = _make_range(int(first), int(last), step)
        return _Words(_length(numbers), lambda: [f"{n:0{width}d}" for n in numbers])
    if found := LETTERS.fullmatch(text):
        first, last, step = found.groups()
        codes = _make_range(ord(first), ord(last), step)
        return _Words(_length(codes), lambda: [chr(code) for code in codes])
    return None


def _make_range(first: int, last: int, step: str | None) -> range:
    size = abs(int(step or 1)) or 1  # the sign is ignored, and 0 is 1
    return (
        range(first, last + 1, size) if first <= last else range(first, last - 1, -size)
    )


def _length(numbers: range) -> int:
    return min(len(numbers), MAX_WORDS + 1)


class _Parser:
    """Parser of a pattern; pairs its braces first."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.partner: dict[int, int] = {}  # position of "{" to that of its "}"
        opened: list[int] = []
        for at, character in enumerate(pattern):
            if character == "{":
                opened.append(at)
            elif character == "}" and opened:
                self.partner[opened.pop()] = at

    def series(self, start: int, end: int, depth: int) -> _Words:
        """Parse a sequence of text and groups."""
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
        return _concatenate(parts)

    def group(self, opens: int, closes: int, depth: int) -> _Words:
        """Parse the text between two paired braces."""
        ends = [*self.commas(opens + 1, closes), closes]
        if len(ends) > 1:
            starts = [opens + 1, *[comma + 1 for comma in ends[:-1]]]
            return _alternate(
                [
                    self.series(start, end, depth)
                    for start, end in zip(starts, ends, strict=True)
                ]
            )
        words = _expand_range(self.pattern[opens + 1 : closes])
        if words is None:
            inner = self.series(opens + 1, closes, depth)
            words = _concatenate([_literal("{"), inner, _literal("}")])
        return words

    def commas(self, start: int, end: int) -> list[int]:
        """Return the positions of a group's commas, without those of nested groups."""
        found = []
        at = start
        while at < end:
            if self.pattern[at] == ",":
                found.append(at)
            at = self.partner.get(at, at) + 1
        return found


def _describe(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 80 else pattern[:77] + "...")


def natural_key(path: str) -> NaturalKey:
    """Return a key for natural order: ``shard-2`` before ``shard-10``.

    Digits 0 to 9 compare as numbers of any length, other characters as text. Names
    that differ only in leading zeros compare as text.
    """
    parts = re.split("([0-9]+)", path.replace(os.sep, "/"))
    return tuple([_number(p) if i % 2 else p for i, p in enumerate(parts)]), path


def _number(digits: str) -> tuple[int, str]:
    digits = digits.lstrip("0")
    return len(digits), digits


def has_magic(path: str) -> bool:
    """Return whether a path, or that of a URL, has a special character of globs.

    Brackets of a URL's host are those of an IPv6 address.
    """
    host = HOST.match(path)
    return any(character in path[host.end() if host else 0 :] for character in "*?[")


def lexists(path: str) -> bool:
    """Return whether a path exists; a dangling link does."""
    return _stat(os.lstat, path) is not None


def target_exists(path: str) -> bool:
    """Return whether a path exists; a dangling link does not. Raises as `lexists`."""
    return _stat(os.stat, path) is not None


def _stat(call: Callable[[str], os.stat_result], path: str) -> os.stat_result | None:
    try:
        return call(path)
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise


def is_shard_name(name: str) -> bool:
    """Return whether a file name is that of a visible shard."""
    return name.endswith(SUFFIX) and not name.startswith(".")


def list_tars(
    folder: str,
    *,
    dangling: Literal["raise", "skip"] = "raise",
    also: Callable[[str], bool] = lambda name: False,
) -> list[str]:
    """Return the tar files of a directory in natural order, without hidden ones."""
    files = []
    for entry in _entries(folder, lambda name: is_shard_name(name) or also(name)):
        path = os.path.join(folder, entry.name)
        if entry.is_file():
            files.append(path)
        elif dangling == "raise" and entry.is_symlink() and not target_exists(path):
            raise ShardNotFoundError(f"{path} is a dangling link", path)
    return sorted(files, key=natural_key)


def matches_parts(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the parts of a path match those of a pattern, as by `glob`."""
    if not pattern or not parts:
        return not pattern and not parts
    part, wanted = parts[0], pattern[0]
    is_hidden = part.startswith(".") and not wanted.startswith(".")
    if wanted == "**" and len(pattern) > 1:
        return matches_parts(parts, pattern[1:]) or (
            not is_hidden and len(parts) > 1 and matches_parts(parts[1:], pattern)
        )
    if is_hidden or not fnmatch.fnmatchcase(part, wanted):
        return False
    return matches_parts(parts[1:], pattern[1:])


def walk_folders(top: str) -> list[str]:
    """Return a directory and its subdirectories at any depth, without hidden ones.

    Each directory occurs once: by its own path, or if it is reached only by links, by
    that of the first link.
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
    """Return the names of subdirectories, and whether each is a link."""
    found = [
        (entry.name, entry.is_symlink())
        for entry in _entries(folder, lambda name: not name.startswith("."))
        if _is_folder(entry)
    ]
    return sorted(found, key=lambda pair: natural_key(pair[0]))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link to itself
            return False
        raise


def glob(pattern: str) -> list[str]:
    """Return the files and directories that match a pattern, in natural order.

    A part of the pattern that exists literally matches only itself. ``**`` matches
    any number of directories. Hidden names match only a part that begins with a dot.
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
    """Return the paths in a directory that match one part of a pattern."""
    path = os.path.join(base, part)
    if lexists(path):
        return [path]
    if part == "**":
        return walk_folders(base) if os.path.isdir(base or os.curdir) else []
    if not has_magic(part):
        return []
    matches = re.compile(fnmatch.translate(os.path.normcase(part))).match
    hidden = part.startswith(".")

    def is_match(name: str) -> bool:
        found = matches(os.path.normcase(name)) is not None
        return found and (hidden or not name.startswith("."))

    return [os.path.join(base, entry.name) for entry in _entries(base, is_match)]


def _entries(folder: str, is_wanted: Callable[[str], bool]) -> list[os.DirEntry[str]]:
    """Return a directory's entries of wanted names; none if it does not exist."""
    with (
        suppress(FileNotFoundError, NotADirectoryError),
        os.scandir(folder or os.curdir) as entries,
    ):
        return [entry for entry in entries if is_wanted(entry.name)]
    return []
