"""Names of numbered shards."""

from __future__ import annotations

import re
import string

__all__ = ["ShardPattern"]

NUMBER = re.compile(r"%0?[0-9]*d")


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

    def __str__(self) -> str:
        return self._text
