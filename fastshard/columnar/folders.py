"""The directories of a dataset."""

from __future__ import annotations

import os

from fastshard._util.files import sync_directory

__all__ = ["make_folder", "make_root"]


def make_root(root: str) -> None:
    """Make a directory, and those above it that are missing, on the disk."""
    folder = root
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    os.makedirs(root, exist_ok=True)
    for made in missing:
        sync_directory(os.path.dirname(made))


def make_folder(folder: str) -> bool:
    """Make a field's directory; say whether it was not there.

    Raises
    ------
    FileExistsError
        Something else has its name.
    """
    if os.path.isdir(folder):
        return False
    os.mkdir(folder)
    return True
