"""Creating a dataset's index: a crash leaves a whole one, or none."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress

from fastshard._util.files import sync_directory
from fastshard.columnar.connection import SIDE_SUFFIXES
from fastshard.columnar.schema import INDEX_NAME, create
from fastshard.columnar.write.column import sync_file

__all__ = ["clear_unfinished", "create_index", "is_unfinished"]

UNFINISHED = f".{INDEX_NAME}.new"  # what an index is called until it is whole


def is_unfinished(name: str) -> bool:
    """Say whether a file's name is that of an index that was never finished."""
    return name.startswith(UNFINISHED) and name[len(UNFINISHED) :] in (
        "",
        *SIDE_SUFFIXES,
    )


def create_index(path: str) -> None:
    """Make an index without samples or fields, unless one is there.

    The caller has the writer's lock.

    Raises
    ------
    OSError, sqlite3.Error
        It cannot be made. Nothing is left.
    """
    folder = os.path.dirname(path)
    new = os.path.join(folder, UNFINISHED)
    try:
        with closing(sqlite3.connect(new)) as conn:
            conn.execute("PRAGMA synchronous=FULL")
            conn.execute("PRAGMA fullfsync=ON")
            # Now: changing it later would leave a journal behind in a crash.
            conn.execute("PRAGMA journal_mode=WAL").fetchone()
            conn.execute("BEGIN IMMEDIATE")
            create(conn)
            conn.commit()
            # Closing it does the same, and says nothing of an error.
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        fd = os.open(new, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        try:
            sync_file(fd)
        finally:
            os.close(fd)
        _rename(new, path)
    finally:
        clear_unfinished(folder)
    sync_directory(folder)


def clear_unfinished(folder: str) -> None:
    """Remove what a crash has left of an index that was being made."""
    for end in ("", *SIDE_SUFFIXES):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, UNFINISHED + end))


def _rename(new: str, path: str) -> None:
    """Give a file its name, which another program may have taken meanwhile."""
    if os.name == "nt":
        with suppress(FileExistsError):
            os.rename(new, path)  # there it replaces nothing
        return
    try:
        os.link(new, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        if not os.path.lexists(path):
            os.rename(new, path)
