"""Marks and skips: sanitized builds, programs that are not installed."""

from __future__ import annotations

import os
import shutil

import pytest

SANITIZED = os.environ.get("FASTSHARD_SANITIZED") == "1"

not_sanitized = pytest.mark.skipif(SANITIZED, reason="not under a sanitizer")

# GCC's AddressSanitizer does not guard its allocator over a fork: where another
# thread is inside malloc at that moment, the child waits for it for ever.
forks_beside_threads = pytest.mark.skipif(
    SANITIZED, reason="not under a sanitizer: threads beside a fork"
)


def needs(program: str) -> str:
    """Return a program's path, or skip the test."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found
