"""Writers that nobody closed: they are closed when they are dropped, and at exit."""

from __future__ import annotations

import atexit
import sys
import warnings
from typing import TYPE_CHECKING, Any

from fastshard.columnar.lock import open_writers

if TYPE_CHECKING:
    from fastshard.columnar.storing import Storing

__all__ = ["close_dropped"]


def close_dropped(writer: Storing) -> None:
    """Close a writer that nobody closed, and say so."""
    try:
        writer.close()
    finally:
        writer.let_go()  # if its samples cannot be stored, for now
        warnings.warn(
            f"the writer of {writer.root} was dropped without close()",
            ResourceWarning,
            stacklevel=3,
        )


def close_all() -> None:
    """Close them all. One that fails is no reason to leave the others."""
    for writer in open_writers():
        dropped: Any = writer
        try:
            close_dropped(dropped)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)


atexit.register(close_all)
