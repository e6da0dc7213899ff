"""Directory of a conversion: written under a temporary name, then renamed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from secrets import token_hex

from fastshard._util.files import make_directory, sync_directory
from fastshard.remote.urls import is_remote, redact

__all__ = ["NewDirectory", "check_out", "new_directory"]


def check_out(out: str) -> str:
    """Return the absolute path of a directory that is to be made.

    Raises
    ------
    ValueError
        It is a URL.
    FileExistsError
        It exists, and is not an empty directory.
    """
    if is_remote(out):
        raise ValueError(
            f"the output must be a local directory, got {redact(out)}: convert to a "
            "path, and upload it"
        )
    path = os.path.abspath(out)
    if os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
        reason = "exists, and is not an empty directory"
        raise FileExistsError(errno.EEXIST, reason, out)
    return path


class NewDirectory:
    """A directory under a temporary name.

    Attributes
    ----------
    path : str
        The temporary one.
    """

    def __init__(self, path: str) -> None:
        self._final = path
        parent, name = os.path.split(path)
        make_directory(parent)
        self.path = os.path.join(parent, f".{name[:200]}.{token_hex(4)}.tmp")
        os.mkdir(self.path)

    def commit(self) -> None:
        """Rename the directory.

        Raises
        ------
        OSError
            The final path has been made meanwhile.
        """
        sync_directory(self.path)
        with suppress(FileNotFoundError):
            os.rmdir(self._final)  # an empty one
        os.rename(self.path, self._final)
        sync_directory(os.path.dirname(self._final))


@contextmanager
def new_directory(path: str) -> Iterator[NewDirectory]:
    """Yield a new directory; remove it unless it was committed."""
    new = NewDirectory(path)
    try:
        yield new
    finally:
        shutil.rmtree(new.path, ignore_errors=True)
