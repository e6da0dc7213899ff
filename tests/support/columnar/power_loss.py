"""Files after a simulated power loss, from a journal that watched.so wrote.

The simulated disk keeps synced changes: bytes of a file by fsync of the file, names by
fsync of their directory. Each later change may be lost, kept, or kept in part; the
names of one directory change in order. Changes dropped by a failed fsync are not
restored by a later one.
"""

from __future__ import annotations

import itertools
import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HEAD = struct.Struct("<IIQqQ")  # as struct record of watched.c
SECTOR = 512

OPEN, DROPPED, SURE = range(3)  # not synced, synced in vain, on the disk

# Outcomes of changes that were not synced.
STYLES = ("lost", "kept", "cut", "torn", "zeros", "mixed")


class Record(NamedTuple):
    kind: str  # a letter of watched.c
    paths: list[str]
    inode: int
    offset: int
    data: bytes


def records(journal: bytes) -> Iterator[Record]:
    """Parse a journal; a record that a kill cut off is left out."""
    at = 0
    while at + HEAD.size <= len(journal):
        kind, paths, inode, offset, size = HEAD.unpack_from(journal, at)
        at += HEAD.size
        names = journal[at : at + paths].decode().split("\0")
        at += paths
        data = b""
        if chr(kind) in "wn":
            data = journal[at : at + size]
            at += size
        if at <= len(journal):
            yield Record(chr(kind), names, inode, offset, data)


class File:
    """A file's synced bytes, and its writes that may or may not be on the disk."""

    def __init__(self, data: bytes = b"") -> None:
        self.safe = bytearray(data)
        self.changes: list[list] = []  # offset, bytes (None: a size), SURE or so

    def write(self, offset: int, data: bytes | None) -> None:
        self.changes.append([offset, data, OPEN])

    def sync(self, *, fails: bool = False) -> None:
        """Mark writes as synced, except those that a failed fsync dropped."""
        for item in self.changes:
            if item[2] == OPEN:
                item[2] = DROPPED if fails else SURE
        while self.changes and self.changes[0][2] == SURE:
            change(self.safe, *self.changes.pop(0)[:2])

    def content(self, style: str, rng: random.Random) -> bytes:
        """Return the bytes that a power loss leaves."""
        found = bytearray(self.safe)
        keep = rng.randrange(len(self.changes) + 1)
        for i, (offset, data, state) in enumerate(self.changes):
            how = style
            if state == SURE:
                how = "kept"
            elif style == "mixed":
                how = rng.choice(["lost", "kept", "torn", "zeros"])
            elif style == "cut":
                how = "kept" if i < keep else "torn" if i == keep else "lost"
            if how == "lost":
                continue
            if data is not None and how in ("torn", "zeros"):
                damage(found, offset, data, how, rng)
            elif how != "torn" or rng.random() < 0.5:
                change(found, offset, data)
        return bytes(found)


def change(found: bytearray, offset: int, data: bytes | None) -> None:
    """Write, or set the size; fill between the old end and the new with zeros."""
    end = offset + (0 if data is None else len(data))
    if data is None:
        del found[offset:]
    if end > len(found):
        found.extend(bytes(end - len(found)))
    if data is not None:
        found[offset:end] = data


def damage(
    found: bytearray, offset: int, data: bytes, how: str, rng: random.Random
) -> None:
    """Write only some sectors, the first or any; zero the others, or leave them."""
    end = offset + len(data)
    size = len(found)
    edges = [offset, *range(-(-(offset + 1) // SECTOR) * SECTOR, end, SECTOR), end]
    first = rng.choice([None, rng.randrange(len(edges))])
    grows = rng.random() < 0.5
    for i, (start, stop) in enumerate(itertools.pairwise(edges)):
        if i < first if first is not None else rng.random() < 0.5:
            change(found, start, data[start - offset : stop - offset])
        elif how == "zeros" and start >= size:  # space was taken, nothing written
            change(found, start, bytes(stop - start))
    if grows:
        change(found, max(len(found), end), None)


class Folder:
    """A directory's synced names, and the changes since."""

    def __init__(self) -> None:
        self.names: dict[str, File | Folder] = {}
        self.safe: dict[str, File | Folder] = {}
        self.changes: list[dict[str, File | Folder | None]] = []

    def set(self, changes: dict[str, File | Folder | None]) -> None:
        """Change several names atomically; None removes a name."""
        self.changes.append(changes)
        apply(self.names, changes)

    def sync(self) -> None:
        self.safe = dict(self.names)
        self.changes.clear()

    def content(self, style: str, rng: random.Random) -> dict[str, File | Folder]:
        found = dict(self.safe)
        keep = {"lost": 0, "kept": len(self.changes)}.get(style)
        if keep is None:
            keep = rng.randrange(len(self.changes) + 1)
        for changes in self.changes[:keep]:
            apply(found, changes)
        return found


def apply(names: dict, changes: dict) -> None:
    for name, thing in changes.items():
        if thing is None:
            names.pop(name, None)
        else:
            names[name] = thing


class Disk:
    """Files below a directory, replayed from a journal; all synced at the start."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self.inodes: dict[int, File] = {}
        self.top = self._taken(Path(self.root))

    def _taken(self, path: Path) -> Folder:
        folder = Folder()
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            if entry.is_dir():
                folder.safe[entry.name] = self._taken(Path(entry.path))
            elif not entry.name.endswith("-shm"):
                inode = entry.inode()
                if inode not in self.inodes:
                    self.inodes[inode] = File(Path(entry.path).read_bytes())
                folder.safe[entry.name] = self.inodes[inode]
        folder.names = dict(folder.safe)
        return folder

    def _folder(self, path: str) -> Folder:
        folder = self.top
        for part in os.path.relpath(path, self.root).split(os.sep):
            if part != ".":
                folder = folder.names[part]
        return folder

    def _place(self, path: str) -> tuple[Folder, str]:
        return self._folder(os.path.dirname(path)), os.path.basename(path)

    def follow(self, record: Record) -> None:
        """Apply a record of the journal."""
        kind, paths = record.kind, record.paths
        if kind in "wtse":
            self._bytes(record)
        elif kind in "cd":
            folder, name = self._place(paths[0])
            thing = File() if kind == "c" else Folder()
            if kind == "c":
                self.inodes[record.inode] = thing
            folder.set({name: thing})
        elif kind in "rlu":
            folder, name = self._place(paths[0])
            thing = folder.names[name]
            if kind != "u":
                other, target = self._place(paths[1])
                if kind == "r" and other is folder:
                    folder.set({name: None, target: thing})
                    return
                other.set({target: thing})
            if kind != "l":
                folder.set({name: None})
        else:
            assert kind == "n", f"{paths[0]} is mapped for writing"

    def _bytes(self, record: Record) -> None:
        thing = self.inodes.get(record.inode)
        if record.kind == "s":
            (thing or self._folder(record.paths[0])).sync()
        elif record.kind == "e":
            if thing is not None:  # a directory's names are in a log, and kept there
                thing.sync(fails=True)
        else:
            thing.write(record.offset, record.data if record.kind == "w" else None)

    def build(self, target: Path, style: str, rng: random.Random) -> None:
        """Make a directory as a power loss at this moment may leave it."""
        made: dict[File, Path] = {}
        self._build(self.top, target, style, rng, made)

    def _build(self, folder, target, style, rng, made) -> None:
        target.mkdir()
        own = rng.choice(STYLES) if style == "mixed" else style
        for name, thing in folder.content(own, rng).items():
            path = target / name
            if isinstance(thing, Folder):
                self._build(thing, path, style, rng, made)
            elif thing in made:
                os.link(made[thing], path)
            else:
                path.write_bytes(thing.content(style, rng))
                made[thing] = path
