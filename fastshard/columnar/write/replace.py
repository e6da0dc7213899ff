"""A shard file that takes the place of another, with the commit that counts it."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sqlite3
from contextlib import suppress

from fastshard._util.files import sync_directory
from fastshard.columnar.schema import shard_name
from fastshard.columnar.write.column import Column, sync_file

__all__ = ["Swap", "Swaps", "is_passing", "new_name", "settle_swaps"]

TOKEN = "fastshard_replaced"  # the counter that holds that of the last one
KEPT = re.compile(r"\.(shard_[0-9]+\.tar)\.([0-9a-f]{16})\.old")
UNFINISHED = re.compile(r"\.shard_[0-9]+\.tar\.(new|[0-9a-f]{16}\.old\.new)")


def new_name(number: int) -> str:
    """Return what a shard is called before it counts."""
    return f".{shard_name(number)}.new"


def is_passing(name: str) -> bool:
    """Say whether a file has a name that it keeps until a commit."""
    return bool(KEPT.fullmatch(name) or UNFINISHED.fullmatch(name))


class Swap:
    """A new file for a shard, and the old one, which is kept until the commit.

    The old one's other name has a token in it. The commit that counts the new one
    writes the token to the index: so after a crash it is known which one counts.

    Parameters
    ----------
    column : Column
    number : int
        The shard.
    new : str
        The path of the new file, which is on the disk.
    """

    def __init__(self, column: Column, number: int, new: str) -> None:
        self.column = column
        self.number = number
        self.path = column.path(number)
        self.token = secrets.randbits(63)
        self.committed = False
        self._new = new
        self._kept = os.path.join(
            column.folder, f".{shard_name(number)}.{self.token:016x}.old"
        )

    def make(self, cursor: sqlite3.Cursor) -> None:
        """Give the new file its name, and write the token to the open transaction."""
        folder = self.column.folder
        if os.path.lexists(self.path):
            _link(self.path, self._kept)
            sync_directory(folder)
        cursor.execute(
            "INSERT OR REPLACE INTO counters (name, value) VALUES (?, ?)",
            (TOKEN, self.token),
        )
        os.replace(self._new, self.path)
        sync_directory(folder)

    def undo(self) -> None:
        """Give the old file its name back, if it is not committed."""
        if self.committed or os.path.lexists(self._new):
            self.finish()  # the new one has not got its name
        elif os.path.lexists(self._kept):
            os.replace(self._kept, self.path)
        else:
            os.unlink(self.path)

    def finish(self) -> None:
        """Remove the old file."""
        with suppress(FileNotFoundError):
            os.unlink(self._kept)


class Swaps:
    """Those that are made, and not committed or not finished."""

    def __init__(self) -> None:
        self._swaps: list[Swap] = []

    def make(self, swap: Swap, cursor: sqlite3.Cursor) -> None:
        """Make a swap; it is remembered also if that fails."""
        self._swaps.append(swap)
        swap.make(cursor)

    def commit(self) -> None:
        """Take them for committed, and remove the old files as far as that works."""
        for swap in self._swaps:
            swap.committed = True
        with suppress(OSError):  # it is tried again before the next one
            self.finish()

    def finish(self) -> None:
        """Remove the old files of those that are committed.

        Two tokens cannot be in the index: so it is done before another is made.
        """
        while self._swaps and self._swaps[-1].committed:
            self._swaps[-1].finish()
            self._swaps.pop()

    def undo(self) -> None:
        """Put the old files back, unless that is committed."""
        for swap in self._swaps:
            if not swap.committed:
                swap.column.pending.pop(swap.number, None)
            with suppress(OSError):
                swap.undo()
        self._swaps.clear()


def settle_swaps(conn: sqlite3.Connection, folder: str) -> None:
    """Finish, or undo, what a crash has stopped; remove files that were unfinished."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    changed = False
    for name in names:
        here = os.path.join(folder, name)
        found = KEPT.fullmatch(name)
        if found is not None:
            path = os.path.join(folder, found[1])
            if _is_committed(conn, int(found[2], 16)) or _are_one(here, path):
                os.unlink(here)
            else:
                os.replace(here, path)
        elif UNFINISHED.fullmatch(name):
            os.unlink(here)
        else:
            continue
        changed = True
    if changed:
        sync_directory(folder)


def _is_committed(conn: sqlite3.Connection, token: int) -> bool:
    row = conn.execute("SELECT value FROM counters WHERE name = ?", (TOKEN,)).fetchone()
    return row is not None and row[0] == token


def _are_one(first: str, second: str) -> bool:
    """Say whether two names are of one file, which no rename makes one name."""
    return os.path.lexists(second) and os.path.samefile(first, second)


def _link(path: str, other: str) -> None:
    """Give a file a second name; a copy where there are no hard links."""
    try:
        os.link(path, other, follow_symlinks=False)
        return
    except (OSError, NotImplementedError):
        pass
    unfinished = f"{other}.new"
    shutil.copyfile(path, unfinished)
    fd = os.open(unfinished, os.O_RDWR)
    try:
        sync_file(fd)
    finally:
        os.close(fd)
    os.replace(unfinished, other)
