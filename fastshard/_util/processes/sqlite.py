"""SQLite on file systems without shared mappings, which the index of a WAL needs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from typing import TypeVar

__all__ = ["is_unshared", "open_with_wal"]

Opened = TypeVar("Opened", bound=sqlite3.Connection)

UNSHARED = (
    sqlite3.SQLITE_IOERR_SHMOPEN,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_SHMMAP,
)


def is_unshared(error: BaseException | None) -> bool:
    """Return whether SQLite could not share memory with other users of a WAL."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) in UNSHARED


def open_with_wal(
    connect: Callable[..., Opened],
    lock: Callable[[Opened], AbstractContextManager[object]] = nullcontext,
) -> tuple[Opened, str]:
    """Open a database to write it, with a WAL where memory can be shared.

    Elsewhere a WAL written on another file system is stored first, by its only user.
    """
    connection = connect()
    try:
        with lock(connection):
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except BaseException as error:
        connection.close()
        if not is_unshared(error):
            raise
    else:
        return connection, str(mode)
    with closing(connect("locking_mode = EXCLUSIVE")) as only, lock(only):
        only.execute("PRAGMA journal_mode = DELETE").fetchone()
    return connect(), "delete"
