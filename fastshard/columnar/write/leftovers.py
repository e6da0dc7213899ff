"""Files that a writer of ours made and never committed: nothing refers to them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from fastshard.columnar.schema import Field, shard_number
from fastshard.columnar.write.creation import is_unfinished
from fastshard.columnar.write.lock import is_locked
from fastshard.columnar.write.recovery import is_left, shards_of_rows
from fastshard.columnar.write.replace import is_passing

__all__ = ["Leftovers", "left_files", "left_in_root"]


class Leftovers(NamedTuple):
    """Files of a field that no sample needs; path to bytes.

    Attributes
    ----------
    uncommitted : dict
        A writer that was stopped has left them. The next one removes them.
    replaced : dict
        A compaction replaced them. Readers may still open them.
    """

    uncommitted: dict[str, int]
    replaced: dict[str, int]


def left_files(conn: sqlite3.Connection, root: str, field: Field) -> Leftovers:
    """Return the files of a field that no sample needs.

    While a writer is at work none counts as uncommitted: they are its own.
    """
    folder = os.path.join(root, field.folder)
    condemned: set[int] = set()
    known: set[int] = set()
    with suppress(sqlite3.OperationalError):  # no writer of ours was here
        sql = "SELECT shard, nbytes FROM fastshard_shards WHERE field = ?"
        for shard, nbytes in conn.execute(sql, (field.name,)):
            if nbytes != 0:  # else nothing of it was committed
                known.add(shard)
            if nbytes == -1:
                condemned.add(shard)
    replaced, others = {}, {}
    for number, path, nbytes in _shards_in(folder):
        if number in condemned:
            replaced[path] = nbytes
        elif number not in known:
            others[path] = number, nbytes
    uncommitted = {}
    if not is_locked(root):
        used = shards_of_rows(conn, field.name) if others else set()
        for path, (number, nbytes) in others.items():
            if number not in used and is_left(path):
                uncommitted[path] = nbytes
        uncommitted |= _sizes_of(folder, is_passing)
    return Leftovers(uncommitted, replaced)


def left_in_root(root: str) -> dict[str, int]:
    """Return what is left of an index that was never finished; path to bytes."""
    return {} if is_locked(root) else _sizes_of(root, is_unfinished)


def _shards_in(folder: str) -> Iterator[tuple[int, str, int]]:
    """Yield number, path and bytes of shard files."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            number = shard_number(entry.name)
            if number is not None:
                with suppress(FileNotFoundError):
                    size = entry.stat(follow_symlinks=False).st_size
                    yield number, entry.path, size


def _sizes_of(folder: str, is_meant: Callable[[str], bool]) -> dict[str, int]:
    found = {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if is_meant(entry.name):
                with suppress(FileNotFoundError):
                    found[entry.path] = entry.stat(follow_symlinks=False).st_size
    return found
