"""Directories, as formats inspect them."""

from __future__ import annotations

import os
from typing import Protocol

from fastshard._util.paths.globs import is_shard_name

__all__ = ["Folder", "LocalFolder"]


class Folder(Protocol):
    """A local or remote directory, as `Format.marks` inspects it."""

    path: str
    is_remote: bool

    def below(self, name: str) -> Folder:
        """Return a directory below this one."""
        ...

    def has(self, name: str) -> bool:
        """Return whether the directory has a file of this name."""
        ...

    def folders(self) -> list[str]:
        """Return the names of the directories in this one; of a remote one none."""
        ...

    def read(self, name: str, most: int) -> bytes | None:
        """Return the first `most` bytes of a file, or None if it does not exist."""
        ...


class LocalFolder:
    """A local directory."""

    is_remote = False

    def __init__(self, path: str) -> None:
        self.path = path

    def below(self, name: str) -> LocalFolder:
        """Return a directory below this one."""
        return LocalFolder(os.path.join(self.path, name))

    def has(self, name: str) -> bool:
        """Return whether the directory has a file of this name."""
        return os.path.isfile(os.path.join(self.path, name))

    def has_shards(self) -> bool:
        """Return whether the directory has tar shards."""
        return any(map(is_shard_name, os.listdir(self.path)))

    def folders(self) -> list[str]:
        """Return the names of the directories in this one, sorted."""
        with os.scandir(self.path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def read(self, name: str, most: int) -> bytes | None:
        """Return the first `most` bytes of a file, or None if it does not exist."""
        if not self.has(name):
            return None
        with open(os.path.join(self.path, name), "rb") as file:
            return file.read(most)
