"""Names of numbered shards."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterator

__all__ = ["ShardPattern"]

NUMBER = re.compile(r"%0?[0-9]*d")
BASES = (10, 16, 8, 2)  # that a format may write a number in


class ShardPattern:
    """A path with a place for a shard's number, or without one.

    Parameters
    ----------
    text : str
        ``"train-{:06d}.tar"`` or, WebDataset's way, ``"train-%06d.tar"``. With
        braces in it, a percent sign is only that.

    Raises
    ------
    ValueError
        There are several places, or numbers would not tell shards apart.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a pattern is a str, not {type(text).__name__}")
        self._text = text
        self._braces = "{" in text or "}" in text
        if self._braces:
            fields = [f for _, f, _, _ in string.Formatter().parse(text)]
            places = [field for field in fields if field is not None]
            if any(field not in ("", "0") for field in places):
                raise ValueError(f"{text}: a number's place is {{}} or {{:06d}}")
        else:
            places = NUMBER.findall(text)
        if len(places) > 1:
            raise ValueError(f"{text} has places for {len(places)} numbers, not one")
        self._places = len(places)
        try:
            same = self.path(0) == self.path(1)
        except LookupError:  # a place inside a place
            raise ValueError(f"{text}: a number's place is {{}} or {{:06d}}") from None
        if places and same:
            raise ValueError(f"{text} gives shards the same name")

    def path(self, number: int) -> str:
        """Return the path of a shard; one for all numbers where there is no place."""
        if self._braces:
            return self._text.format(number)
        if self._places:
            return NUMBER.sub(lambda place: place[0] % number, self._text)
        return self._text

    @property
    def has_number(self) -> bool:
        """Say whether the pattern has a place for a number."""
        return self._places > 0

    def numbers(self) -> Iterator[int]:
        """Find the shards that exist; yield their numbers, in no order.

        Raises
        ------
        OSError
            The directory cannot be listed.
        """
        before, after = self._around()
        folder, begin = os.path.split(before)
        end = re.split(r"[/\\]" if os.sep == "\\" else "/", after, maxsplit=1)[0]
        below = after[len(end) :]  # the number may be in a directory's name
        for name in os.listdir(folder or "."):
            if len(name) < len(begin) + len(end) + 1 or not name.endswith(end):
                continue
            digits = name[len(begin) : len(name) - len(end)]
            for number in _numbers_in(digits):
                path = self.path(number)
                if path == before + digits + after and name.startswith(begin):
                    if not below or os.path.lexists(path):
                        yield number
                    break

    def _around(self) -> tuple[str, str]:
        """Return the text on both sides of the number's place."""
        if not self._braces:
            before, after = NUMBER.split(self._text)
            return before, after
        parts = list(string.Formatter().parse(self._text))
        place = next(i for i, part in enumerate(parts) if part[1] is not None)
        return (
            "".join(part[0] for part in parts[: place + 1]),
            "".join(part[0] for part in parts[place + 1 :]),
        )

    def __str__(self) -> str:
        return self._text


def _numbers_in(digits: str) -> Iterator[int]:
    """Yield what digits may say, written by any of Python's formats for integers."""
    if len(digits) > 100:  # no shard's number
        return
    for base in BASES:
        try:
            number = int(digits.strip().replace(",", ""), base)
        except ValueError:
            continue
        if number >= 0:
            yield number
