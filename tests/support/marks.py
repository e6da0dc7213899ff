"""Marks and skips: sanitized builds, programs that are not installed."""

from __future__ import annotations

import importlib.util
import os
import re
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


# Skips that FASTSHARD_STRICT_SKIPS=1 allows: of libraries without a wheel for some
# Python that .ci/run tests and of rivals, and for these reasons.
LIBRARIES = (
    "PIL atdata backports brotli cramjam datasets grain jax mkdocs ml_dtypes msgspec "
    "pandas psycopg pyarrow ray redis safetensors scipy simplejpeg streaming torch "
    "torchdata torchvision trio webdataset webshart wids xxhash"
)
ABSENT = re.compile(r"could not import '(\w+)|\b(\w+) is not installed")
REASONS = (
    "not under a sanitizer",
    "mounting is not allowed here",
    "this user reads every file",  # root
    "this Python has a GIL",
    "no CUDA on this machine",
    "this machine has CUDA",
    "no source tree",
    "no personal data server: tests/pds/run",
    "syntax of Python 3.12",
    "FASTSHARD_MOSAICML_TESTS is not set",  # to the tests of its source distribution
    "FASTSHARD_ATDATA_TESTS is not set",  # to the tests of its source distribution
    "FASTSHARD_PILLOW_IMAGES is not set",  # to the pictures of its source distribution
    "no redis-server on this machine",
    "no Postgres server on this machine",
    "the right column was run alone",  # a migration page, without the library
    "needs openssl",
    "pyright does not run",  # it could not be downloaded
    "bindfs is not installed",
    "fish is not installed",
    "zsh is not installed",
)


def is_allowed(skip: str) -> bool:
    """Return whether a skip is one of those that may be, and its reason true."""
    if any(reason in skip for reason in REASONS):
        return True
    found = ABSENT.search(skip)
    if found is None or (found[1] or found[2]) not in LIBRARIES.split():
        return False
    # importorskip tried the import; a test that skips by itself may be wrong.
    return found[1] is not None or not is_installed(found[2])


def is_installed(library: str) -> bool:
    """Return whether a library is installed; a bare folder of that name is not one."""
    spec = importlib.util.find_spec(library)
    return spec is not None and spec.origin is not None
