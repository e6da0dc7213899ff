"""Semantic versions: their order, the latest of several, the next one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["FIRST_VERSION", "Version", "latest_version", "next_patch", "parse_version"]

FIRST_VERSION = "1.0.0"
MAX_VERSION = 100  # characters, as the lexicon limits them
NUMBER = r"(0|[1-9][0-9]*)"
WORDS = r"([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)"
PATTERN = re.compile(
    rf"{NUMBER}\.{NUMBER}\.{NUMBER}(?:-{WORDS})?(?:\+{WORDS})?", re.ASCII
)


class Version(NamedTuple):
    """A semantic version; its order is that of semver.org, version 2.0.0.

    Attributes
    ----------
    major, minor, patch : int
    is_release : bool
        False with a pre-release (``1.0.0-rc.1``), which comes before its release.
    prerelease : tuple of (bool, int, str)
        Its parts; numbers come before words. The text after ``+`` has no order.
    """

    major: int
    minor: int
    patch: int
    is_release: bool = True
    prerelease: tuple[tuple[bool, int, str], ...] = ()


def parse_version(text: str) -> Version:
    """Return the parts of a semantic version."""
    if not isinstance(text, str):
        raise TypeError(f"a version must be a str, got {type(text).__name__}")
    found = PATTERN.fullmatch(text) if len(text) <= MAX_VERSION else None
    if found is None:
        shown = repr(text if len(text) <= MAX_VERSION else f"{text[:MAX_VERSION]}...")
        raise ValueError(f"{shown} is not a semantic version such as '1.0.0'")
    major, minor, patch, before, _ = found.groups()
    parts = [] if before is None else before.split(".")
    if any(part.isdigit() and part[0] == "0" and part != "0" for part in parts):
        raise ValueError(f"{text!r}: a number of a version begins with 0")
    return Version(
        int(major),
        int(minor),
        int(patch),
        before is None,
        tuple(
            (False, int(part), "") if part.isdigit() else (True, 0, part)
            for part in parts
        ),
    )


def latest_version(versions: Iterable[str]) -> str | None:
    """Return the latest of several semantic versions, or None if one is invalid."""
    try:
        parsed = [(parse_version(each), each) for each in versions]
    except (TypeError, ValueError):
        return None
    return max(parsed)[1] if parsed else None


def next_patch(versions: Iterable[str]) -> str:
    """Return the version after the latest: its patch + 1; ``"1.0.0"`` is the first.

    Versions that are not semantic are ignored.
    """
    parsed = []
    for each in versions:
        try:
            parsed.append(parse_version(each))
        except (TypeError, ValueError):
            continue
    if not parsed:
        return FIRST_VERSION
    latest = max(parsed)
    return f"{latest.major}.{latest.minor}.{latest.patch + 1}"
