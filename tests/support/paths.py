"""Paths of the tests' own files, and of the source tree around them."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
DATA = TESTS / "data"
TREE = TESTS.parent  # only ``tests`` and pyproject.toml where a wheel is tested
README = TREE / "README.md"
