"""Text that no repr, log, traceback or pickle shows."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["Secret"]


class Secret:
    """A password or a token.

    Equal to a secret of the same text.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text, to send it."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "<secret>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret does not pickle")
