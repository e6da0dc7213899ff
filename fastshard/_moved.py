"""Old names of modules, which pickles hold, as aliases of where the code is now.

An alias is imported only when a pickle, or code that was written for version 0.1,
names it; its attributes are those of the new module.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

__all__ = ["MOVED", "install"]

MOVED = {
    "fastshard._core.arrays": "fastshard._core.dataset.npy",
    "fastshard._core.columnfile": "fastshard._core.columnar.column_file",
    "fastshard._core.columnsamples": "fastshard._core.columnar.rows",
    "fastshard._core.extents": "fastshard._core.table.extents",
    "fastshard._core.feeds": "fastshard._core.dataset.locator",
    "fastshard._core.grouping": "fastshard._core.table.grouping",
    "fastshard._core.mapped": "fastshard._core.io.source",
    "fastshard._core.npywrite": "fastshard._core.dataset.npy",
    "fastshard._core.orders": "fastshard._core.table.order",
    "fastshard._core.permutation": "fastshard._core.table.order",
    "fastshard._core.places": "fastshard._core.dataset.locator",
    "fastshard._core.samples": "fastshard._core.dataset.shard",
    "fastshard._core.shard": "fastshard._core.dataset.shard",
    "fastshard._core.source": "fastshard._core.io.source",
    "fastshard.batch": "fastshard.adapters.webshart.batch",
    "fastshard.batches": "fastshard.dataset.iteration",
    "fastshard.bulk": "fastshard.dataset.dataset",
    "fastshard.build": "fastshard.dataset.build_index",
    "fastshard.cli.parser": "fastshard.cli.entry",  # scripts of older installations
    "fastshard.collation": "fastshard.dataset.batch",
    "fastshard.columnar.arrays": "fastshard.columnar.read.reader",
    "fastshard.columnar.dataset": "fastshard.columnar.shardset",
    "fastshard.columnar.figures": "fastshard.columnar.stats",
    "fastshard.columnar.offline": "fastshard.columnar.compaction",
    "fastshard.columnar.reader": "fastshard.columnar.read.reader",
    "fastshard.columnar.verifying": "fastshard.columnar.verification",
    "fastshard.columnar.writer": "fastshard.columnar.write.writer",
    "fastshard.combined": "fastshard.dataset.combined.combine",
    "fastshard.dataset.combine": "fastshard.dataset.combined.combine",
    "fastshard.dataset.listing": "fastshard.dataset.paths.listing",
    "fastshard.dataset.not_found": "fastshard.dataset.paths.not_found",
    "fastshard.decoders": "fastshard.formats.decoders",
    "fastshard.discover": "fastshard.adapters.webshart.discover",
    "fastshard.discovered": "fastshard.adapters.webshart.dataset",
    "fastshard.encoders": "fastshard.formats.encoders",
    "fastshard.formats.base": "fastshard.formats.sample",
    "fastshard.formats.columnar": "fastshard.columnar.samples",
    "fastshard.gathering": "fastshard.dataset.batch",
    "fastshard.identity": "fastshard.dataset.tarset",
    "fastshard.index.global_file": "fastshard.index.dataset_file",
    "fastshard.index.hashes": "fastshard.index.checksums",
    "fastshard.index.known": "fastshard.index.dataset_lookup",
    "fastshard.iteration": "fastshard.dataset.iteration",
    "fastshard.joining": "fastshard.dataset.combined.combine",
    "fastshard.keys": "fastshard.dataset.views",
    "fastshard.located": "fastshard.adapters.webshart.listing",
    "fastshard.members": "fastshard.dataset.views",
    "fastshard.mixing": "fastshard.dataset.combined.combine",
    "fastshard.npz": "fastshard.formats.npz",
    "fastshard.ordered": "fastshard.dataset.base",
    "fastshard.plan": "fastshard.dataset.order.plan",
    "fastshard.reading": "fastshard.dataset.shardset",
    "fastshard.selection": "fastshard.dataset.order.selection",
    "fastshard.shards": "fastshard.dataset.views",
    "fastshard.shardset": "fastshard.dataset.tarset",
    "fastshard.sources": "fastshard.remote",
    "fastshard.sources.remote": "fastshard.remote.file",
    "fastshard.sources.settings": "fastshard.remote.options",
    "fastshard.state": "fastshard.dataset.order.state",
    "fastshard.verify": "fastshard.dataset.verify",
    "fastshard.workers": "fastshard.dataset.order.worker",
    "fastshard.writer": "fastshard.formats.writer",
}
RENAMED = {("fastshard.columnar.arrays", "_again"): "_samples_again"}


class Alias(ModuleType):
    """A module of an old name, to read from: what is set here, is set here alone."""

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return import_module(MOVED[self.__name__]).__doc__

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name not in ("__all__", "__doc__"):
            raise AttributeError(name)  # what the import system asks for
        home = import_module(MOVED[self.__name__])
        return getattr(home, RENAMED.get((self.__name__, name), name))

    def __dir__(self) -> list[str]:
        return dir(import_module(MOVED[self.__name__]))


class AliasFinder:
    """Finder and loader of aliases, behind those of the modules that exist."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in MOVED:
            return None
        inside = any(other.startswith(f"{name}.") for other in MOVED)
        return ModuleSpec(name, cast("Loader", cls()), is_package=inside)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Alias(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: attributes are looked up when they are asked for."""


def install() -> None:
    """Have imports find old names; once a process."""
    if AliasFinder not in sys.meta_path:
        sys.meta_path.append(AliasFinder)
