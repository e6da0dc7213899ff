"""Brace lists: ``train-{000..099}.tar`` and ``{a,b}``, as bash expands them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import NamedTuple

from fastshard.errors import FastshardError

__all__ = ["MAX_WORDS", "expand_braces"]

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
            f"{_shown(pattern)} stands for more than {MAX_WORDS:,} words"
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
                f"{_shown(self.pattern)} has braces nested deeper than {MAX_DEPTH}"
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


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 80 else pattern[:77] + "...")
