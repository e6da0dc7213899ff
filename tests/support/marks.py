"""Marks and skips: sanitized builds, programs that are not installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import TypeVar

import pytest

SANITIZED = os.environ.get("FASTSHARD_SANITIZED") == "1"
LONG = os.environ.get("FASTSHARD_LONG") == "1"  # set by .ci/long

T = TypeVar("T")

not_sanitized = pytest.mark.skipif(SANITIZED, reason="not under a sanitizer")

# GCC's AddressSanitizer does not guard its allocator over a fork: where another
# thread is inside malloc at that moment, the child waits for it for ever.
forks_beside_threads = pytest.mark.skipif(
    SANITIZED, reason="not under a sanitizer: threads beside a fork"
)


# Seconds long, and seldom broken: run if FASTSHARD_LONG=1, else deselected.
slow = pytest.mark.slow


def thin(items: Sequence[T], step: int) -> Sequence[T]:
    """Return every step-th item; all of them if FASTSHARD_LONG=1."""
    return items if LONG else items[::step]


def needs(program: str) -> str:
    """Return a program's path, or skip the test."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found
