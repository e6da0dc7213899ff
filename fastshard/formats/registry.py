"""Protocol and registry of formats whose datasets are directories.

A tar dataset is a list of shards; a directory of another format is recognized by its
mark. A format is a module with an object `FORMAT`. `register` takes the module's name,
and the module is imported when a directory is opened.
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
        Arguments of `fastshard.open` that it accepts beyond those of every format
        (decoders, mode, max_mapped, max_memory, keep_cache, prefetch), its own ones
        included.
    is_remote : bool
        Whether its datasets may be URLs.
    """

    name: ClassVar[str]
    options: ClassVar[frozenset[str]] = frozenset()
    is_remote: ClassVar[bool] = False

    def marks(self, folder: Folder) -> bool:
        """Return whether a directory is a dataset of this format.

        If the mark is a common file name, check its contents too.
        """
        raise NotImplementedError

    def open_set(self, root: str, **options: Any) -> Any:
        """Return the `ShardSet` of a dataset.

        Parameters
        ----------
        root : str
        **options
            ``mode``, ``limit``, ``reading`` and ``remote`` as for `ShardSet`, and the
            given arguments of `options`.
        """
        raise NotImplementedError

    def list_lines(self, root: str, *, long: bool, as_json: bool) -> Iterable[str]:
        """Return the lines of ``fastshard ls``, one for each sample."""
        raise NotImplementedError

    def stat(self, root: str, *, deep: bool) -> dict[str, Any]:
        """Return the object that ``fastshard stat --json`` prints."""
        raise NotImplementedError

    def stat_lines(self, figures: Mapping[str, Any]) -> Iterable[str]:
        """Return the lines of ``fastshard stat`` for the result of `stat`."""
        raise NotImplementedError

    def verify(self, root: str) -> list[Any]:
        """Return the faults of a dataset, as `Fault` objects."""
        raise NotImplementedError

    def add_commands(self, commands: Any) -> None:
        """Add the format's own commands to the argument parser."""


_modules: list[str] = []


def register(module: str) -> None:
    """Add a format by the name of its module, which has an object ``FORMAT``."""
    if module not in _modules:
        _modules.append(module)


def formats() -> list[Format]:
    """Import and return all registered formats."""
    return [import_module(module).FORMAT for module in _modules]


def find_format(folder: Folder) -> Format | None:
    """Return the directory's format, or None for a plain tar dataset."""
    for each in formats():
        if (each.is_remote or not folder.is_remote) and each.marks(folder):
            return each
    return None
