"""Warning about the tars of a directory that are no shards: ``.TAR``, ``.tar.gz``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from fastshard._util.paths.globs import SUFFIX
from fastshard._util.paths.urls import redact
from fastshard.formats.foreign import compression_of, suffix_of

__all__ = ["LeftOut"]


class LeftOut:
    """Files that the listing of a dataset leaves out, for one warning."""

    def __init__(self) -> None:
        self._found: dict[str, list[str]] = {}  # paths or URLs by suffix

    def select(self, paths: Iterable[str]) -> list[str]:
        """Return the shards of a directory's tars, and note the others."""
        shards = []
        for path in paths:
            if path.endswith(SUFFIX):
                shards.append(path)
            else:
                self._found.setdefault(_end_of(path), []).append(path)
        return shards

    def warn(self, stacklevel: int) -> None:
        """Warn of the files, if there are any."""
        if not self._found:
            return
        total = sum(map(len, self._found.values()))
        what = "1 tar is" if total == 1 else f"{total:,} tars are"
        text = f"{what} left out, for only names that end in .tar are shards: "
        text += "; ".join(map(_describe, self._found.values()))
        warnings.warn(text, UserWarning, stacklevel=stacklevel + 1)


def _describe(paths: list[str]) -> str:
    """Return the number of files with a suffix, an example, and what to do."""
    path = redact(min(paths))
    found = compression_of(path)
    advice = f"rename it to end in {SUFFIX}" if found is None else found.advise(path)
    return f"{len(paths):,} {_end_of(path)}, as {path}, {advice}"


def _end_of(path: str) -> str:
    """Return a file's suffix as it is written."""
    return path[len(path) - len(suffix_of(path)) :]
