"""Shortening of foreign texts in messages."""

from __future__ import annotations

__all__ = ["shorten"]


def shorten(text: str, most: int = 100) -> str:
    """Return a text, or its first `most` characters and three dots."""
    return text if len(text) <= most else f"{text[:most]}..."
