"""The reasons for which a test may be skipped under FASTSHARD_STRICT_SKIPS=1."""

from __future__ import annotations

import importlib.util
import re

__all__ = ["is_allowed"]

# Libraries without a wheel for some Python that .ci/run tests, and rivals.
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
    return found[1] is not None or importlib.util.find_spec(found[2]) is None
