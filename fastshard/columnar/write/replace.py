"""Replacement of a shard file, together with the commit that refers to the new one.

A replacement has four steps, each synced before the next:

1. The old file gets a second name, ``.shard_N.tar.TOKEN.old``.
2. The token is written to the index, in the transaction of the new rows.
3. The new file is renamed to ``shard_N.tar``.
4. The transaction is committed, and the second name is removed.

After a crash the token in the index tells whether step 4 was reached: if so the
second name is removed, else the old file gets its name back.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sqlite3
from contextlib import suppress

from fastshard._util.files import sync_directory
from fastshard.columnar.layout.schema import shard_name
from fastshard.columnar.write.append_file import sync_path
from fastshard.columnar.write.column import Column

__all__ = [
    "Replacements",
    "ShardReplacement",
    "is_temporary_name",
    "settle_replacements",
    "temporary_name",
]

TOKEN = "fastshard_replaced"  # the counter with the token of the last replacement
OLD = re.compile(r"\.(shard_[0-9]+\.tar)\.([0-9a-f]{16})\.old")
UNFINISHED = re.compile(r"\.shard_[0-9]+\.tar\.(new|[0-9a-f]{16}\.old\.new)")


def temporary_name(number: int) -> str:
    """Return the name of a replacement's new file before step 3."""
    return f".{shard_name(number)}.new"


def is_temporary_name(name: str) -> bool:
    """Return whether a file name is one that exists only until a commit."""
    return bool(OLD.fullmatch(name) or UNFINISHED.fullmatch(name))


class ShardReplacement:
    """New file for a shard, and the old one, kept under a second name."""

    def __init__(self, column: Column, number: int, new_path: str) -> None:
        self.column = column
        self.number = number
        self.path = column.path(number)
        self.token = secrets.randbits(63)
        self.committed = False
        self._new_path = new_path
        self._old_path = os.path.join(
            column.folder, f".{shard_name(number)}.{self.token:016x}.old"
        )

    def install(self, cursor: sqlite3.Cursor) -> None:
        """Do steps 1 to 3; the token goes to the cursor's open transaction."""
        folder = self.column.folder
        if os.path.lexists(self.path):
            _link(self.path, self._old_path)
            sync_directory(folder)
        cursor.execute(
            "INSERT OR REPLACE INTO counters (name, value) VALUES (?, ?)",
            (TOKEN, self.token),
        )
        os.replace(self._new_path, self.path)
        sync_directory(folder)

    def undo(self) -> None:
        """Give the old file its name back, unless the replacement is committed."""
        if self.committed or os.path.lexists(self._new_path):
            self.remove_old()  # step 3 was not reached
        elif os.path.lexists(self._old_path):
            os.replace(self._old_path, self.path)
        else:
            os.unlink(self.path)

    def remove_old(self) -> None:
        """Remove the second name of the old file."""
        with suppress(FileNotFoundError):
            os.unlink(self._old_path)


class Replacements:
    """Replacements of a transaction, and committed ones with an old file left."""

    def __init__(self) -> None:
        self.installed: list[ShardReplacement] = []

    def install(self, replacement: ShardReplacement, cursor: sqlite3.Cursor) -> None:
        """Install a replacement. One that fails is listed too, for `undo`."""
        self.installed.append(replacement)
        replacement.install(cursor)

    def mark_committed(self) -> None:
        """Mark all as committed, and remove the old files as far as possible."""
        for replacement in self.installed:
            replacement.committed = True
        with suppress(OSError):  # tried again before the next replacement
            self.remove_old()

    def remove_old(self) -> None:
        """Remove the old files of committed replacements.

        Call it before another replacement: the index holds one token only.
        """
        while self.installed and self.installed[-1].committed:
            self.installed[-1].remove_old()
            self.installed.pop()

    def undo(self) -> None:
        """Put the old files back, except for committed replacements."""
        for replacement in self.installed:
            if not replacement.committed:
                replacement.column.pending.pop(replacement.number, None)
            with suppress(OSError):
                replacement.undo()
        self.installed.clear()


def settle_replacements(cursor: sqlite3.Cursor, folder: str) -> None:
    """Finish or undo replacements interrupted by a crash; remove unfinished files."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    changed = False
    for name in names:
        here = os.path.join(folder, name)
        old = OLD.fullmatch(name)
        if old is not None:
            path = os.path.join(folder, old[1])
            if _is_committed(cursor, int(old[2], 16)) or _is_same_file(here, path):
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


def _is_committed(cursor: sqlite3.Cursor, token: int) -> bool:
    row = cursor.execute(
        "SELECT value FROM counters WHERE name = ?", (TOKEN,)
    ).fetchone()
    return row is not None and row[0] == token


def _is_same_file(first: str, second: str) -> bool:
    """Return whether both names are of one file; a rename would keep both."""
    return os.path.lexists(second) and os.path.samefile(first, second)


def _link(path: str, other: str) -> None:
    """Add a hard link to a file; copy it where links are unsupported."""
    try:
        os.link(path, other, follow_symlinks=False)
        return
    except (OSError, NotImplementedError):
        pass
    unfinished = f"{other}.new"
    shutil.copyfile(path, unfinished)
    sync_path(unfinished, os.O_RDWR)
    os.replace(unfinished, other)
