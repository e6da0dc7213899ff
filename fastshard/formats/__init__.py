"""Formats of shards: one module each, over the common core.

Tar's datasets are lists of shards. Those of another format are directories that a
file marks; a line in `FORMATS` has `fastshard.open` know them.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, NamedTuple

__all__ = ["FORMATS", "Format", "format_of"]


class Format(NamedTuple):
    """A format whose datasets are directories.

    Attributes
    ----------
    name : str
    mark : str
        A file that such a directory has.
    home : str
        The module whose ``open_set(root, mode=, limit=, reading=)`` returns a
        `ShardSet`. It is imported when it is needed.
    """

    name: str
    mark: str
    home: str

    def marks(self, root: str | os.PathLike[str]) -> bool:
        """Say whether a path is a directory with the mark."""
        return os.path.isdir(root) and os.path.isfile(os.path.join(root, self.mark))

    def open_set(self, root: str, **options: Any) -> Any:
        """Return the shards of a dataset."""
        return import_module(self.home).open_set(root, **options)


FORMATS = (Format("columnar", "index.sqlite", "fastshard.columnar.shardset"),)


def format_of(source: object) -> Format | None:
    """Return the format of a directory; None: what it holds are tars, if anything."""
    if not isinstance(source, str | os.PathLike):
        return None
    return next((each for each in FORMATS if each.marks(source)), None)
