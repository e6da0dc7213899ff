"""The protocol of formats whose datasets are directories, and those there are.

Tar datasets are lists of shards. A directory of another format is told by its mark.
A format is one module with an object `FORMAT`; `register` is given the module's name,
which is imported when a directory is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from fastshard.formats.folder import Folder

__all__ = [
    "Format",
    "find_format",
    "formats",
    "register",
]


class Format:
    """A format whose datasets are directories.

    Attributes
    ----------
    name : str
    options : frozenset of str
        Arguments of `fastshard.open` that it takes beyond those of every format:
        decoders, mode, max_mapped, max_memory, keep_cache, prefetch. Its own ones too.
    is_remote : bool
        Whether its datasets may be URLs.
    """

    name: ClassVar[str]
    options: ClassVar[frozenset[str]] = frozenset()
    is_remote: ClassVar[bool] = False

    def marks(self, folder: Folder) -> bool:
        """Say whether a directory is a dataset of this format.

        A common file name is not enough: look inside.
        """
        raise NotImplementedError

    def open_set(self, root: str, **options: Any) -> Any:
        """Return the `ShardSet` of a dataset.

        Parameters
        ----------
        root : str
        **options
            ``mode``, ``limit``, ``reading`` and ``remote`` as for `ShardSet`, and
            those of `options` that were given.
        """
        raise NotImplementedError

    def list_lines(self, root: str, *, long: bool, as_json: bool) -> Iterable[str]:
        """Return what ``fastshard ls`` prints, a line for each sample."""
        raise NotImplementedError

    def stat(self, root: str, *, deep: bool) -> dict[str, Any]:
        """Return what ``fastshard stat --json`` prints."""
        raise NotImplementedError

    def stat_lines(self, figures: Mapping[str, Any]) -> Iterable[str]:
        """Return what ``fastshard stat`` prints of the figures of `stat`."""
        raise NotImplementedError

    def verify(self, root: str) -> list[Any]:
        """Return the faults of a dataset, each a `Fault`."""
        raise NotImplementedError

    def add_commands(self, commands: Any) -> None:
        """Declare the format's own commands to `argparse`."""


_modules: list[str] = []


def register(module: str) -> None:
    """Add a format by the name of its module, which has it as ``FORMAT``."""
    if module not in _modules:
        _modules.append(module)


def formats() -> list[Format]:
    """Return all formats of directories; their modules are imported."""
    return [import_module(module).FORMAT for module in _modules]


def find_format(folder: Folder) -> Format | None:
    """Return the directory's format, or None for a plain tar dataset."""
    for each in formats():
        if (each.is_remote or not folder.is_remote) and each.marks(folder):
            return each
    return None
