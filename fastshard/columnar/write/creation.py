"""Creation of a dataset's index: after a crash it is complete or absent."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from functools import partial

from fastshard._util.files import sync_directory
from fastshard._util.processes.sqlite import open_with_wal
from fastshard.columnar.layout.connection import SIDE_SUFFIXES
from fastshard.columnar.layout.schema import INDEX_NAME, create
from fastshard.columnar.write.append_file import sync_path

__all__ = ["create_index", "is_unfinished", "remove_unfinished"]

UNFINISHED = f".{INDEX_NAME}.new"  # the index's name until it is complete
SUFFIXES = ("", *SIDE_SUFFIXES)


def is_unfinished(name: str) -> bool:
    """Return whether a file name is that of an index whose creation was stopped."""
    return name.startswith(UNFINISHED) and name[len(UNFINISHED) :] in SUFFIXES


def create_index(path: str) -> None:
    """Create an index without samples and fields; keep one that exists.

    The caller holds the writer's lock.
    """
    folder = os.path.dirname(path)
    new = os.path.join(folder, UNFINISHED)
    try:
        # With a WAL now: a crash during a later change would leave a journal.
        with closing(open_with_wal(partial(_connect, new))[0]) as conn:
            conn.execute("BEGIN IMMEDIATE")
            create(conn)
            conn.commit()
            # `close` checkpoints as well, but ignores errors.
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        sync_path(new, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        _rename(new, path)
    finally:
        remove_unfinished(folder)
    sync_directory(folder)


def _connect(path: str, *settings: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    for setting in (*settings, "synchronous = FULL", "fullfsync = ON"):
        connection.execute(f"PRAGMA {setting}")
    return connection


def remove_unfinished(folder: str) -> None:
    """Remove the files of an index whose creation was stopped."""
    for suffix in SUFFIXES:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, UNFINISHED + suffix))


def _rename(new: str, path: str) -> None:
    """Rename a file, unless another program has made `path` meanwhile."""
    if os.name == "nt":
        with suppress(FileExistsError):
            os.rename(new, path)  # on Windows it does not replace a file
        return
    try:
        os.link(new, path)
    except FileExistsError:
        pass
    except OSError:  # the file system has no hard links
        if not os.path.lexists(path):
            os.rename(new, path)
