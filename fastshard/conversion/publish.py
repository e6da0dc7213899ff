"""Output directory of a conversion: temporary, then renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from fastshard._util.files import make_directory, name_full_disk, sync_directory
from fastshard._util.paths.urls import is_remote, redact
from fastshard._util.processes.temporaries import temporary_folder

__all__ = ["NewDirectory", "check_out", "new_directory"]

EXISTS = "exists, and is not an empty directory"
TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)


def check_out(out: str) -> str:
    """Return the real path of the output directory, checked."""
    if is_remote(out):
        raise ValueError(
            f"the output must be a local directory, got {redact(out)}: convert to a "
            "path, and upload it"
        )
    path = os.path.realpath(out)
    if os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise FileExistsError(errno.EEXIST, EXISTS, out)
    if os.path.ismount(path):
        reason = "is a mount point: choose a directory below it"
        raise FileExistsError(errno.EEXIST, reason, out)
    return path


class NewDirectory(NamedTuple):
    """Directory that is renamed when complete.

    Attributes
    ----------
    path : str
        The temporary one.
    final : str
    """

    path: str
    final: str

    def commit(self) -> None:
        """Rename the directory."""
        sync_directory(self.path)
        if os.name == "nt":  # elsewhere a rename replaces an empty directory
            with suppress(OSError):
                os.rmdir(self.final)
        try:
            os.rename(self.path, self.final)
        except OSError as error:
            if error.errno not in TAKEN:
                raise
            raise FileExistsError(errno.EEXIST, EXISTS, self.final) from error
        sync_directory(os.path.dirname(self.final))


@contextmanager
def new_directory(path: str) -> Iterator[NewDirectory]:
    """Yield a new directory; remove it unless it was committed."""
    parent, name = os.path.split(path)
    make_directory(parent)
    with temporary_folder(name, parent) as folder:
        try:
            yield NewDirectory(folder, path)
        except OSError as error:
            name_full_disk(error, path)
            raise
