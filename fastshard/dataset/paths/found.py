"""Shards that a listing finds, and a warning about other tars: ``.tar.gz``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fastshard._util.paths.globs import SUFFIX
from fastshard._util.paths.urls import redact
from fastshard.formats.foreign import compression_of, suffix_of

__all__ = ["ListedShard", "select_shards", "warn_left_out"]


class ListedShard(NamedTuple):
    """A shard, and the number of samples that a wids index lists for it."""

    path: str  # or URL
    samples: int | None = None
    is_remote: bool = False
    is_tar: bool = False  # by its first block, with any name


def select_shards(paths: Iterable[str], left_out: list[str]) -> list[str]:
    """Return the shards of a directory's tars, and note the others."""
    shards: list[str] = []
    for path in paths:
        (shards if path.endswith(SUFFIX) else left_out).append(path)
    return shards


def warn_left_out(paths: Sequence[str], stacklevel: int) -> None:
    """Warn of tars that are not shards by their names."""
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(_end_of(path), []).append(path)
    what = "1 tar is" if len(paths) == 1 else f"{len(paths):,} tars are"
    text = f"{what} left out, for only names that end in .tar are shards: "
    text += "; ".join(map(_describe, found.values()))
    warnings.warn(text, UserWarning, stacklevel=stacklevel + 1)


def _describe(paths: list[str]) -> str:
    """Return the number of files with a suffix, an example, and advice."""
    path = redact(min(paths))
    found = compression_of(path)
    advice = f"rename it to end in {SUFFIX}" if found is None else found.advise(path)
    return f"{len(paths):,} {_end_of(path)}, as {path}, {advice}"


def _end_of(path: str) -> str:
    """Return a file's suffix as it is written."""
    return path[len(path) - len(suffix_of(path)) :]
