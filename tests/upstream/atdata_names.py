"""Modules of atdata, with its names for parts of `fastshard.typed`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import atdata_codecs
import atdata_index
import atdata_lists
import pytest

from fastshard import typed
from fastshard._util.paths import globs
from fastshard._util.paths.urls import is_remote
from fastshard.typed.loading import splits

SOURCES = "src/atdata/**/*.py"
OTHERS = ("_exceptions", "_hf_api", "_sources", "_helpers", "_protocols", "_logging")


def lens(get: Any) -> Any:
    """Make a lens that without a putter returns the source, as atdata's."""
    made = typed.Lens(get, upstream_put=True)
    typed.LensNetwork().register(made)
    return made


def resolve_shards(path: Any, data_files: Any = None) -> dict[str, list[str]]:
    return splits.list_splits(path, data_files, {})


# Functions of its private modules whose tests hold here.
PRIVATE = {
    "_hf_api": {
        "_detect_split_from_path": splits.detect_split,
        "_expand_local_glob": globs.glob,
        "_group_shards_by_split": splits.group_by_split,
        "_is_brace_pattern": lambda path: globs.expand_braces(path) != [path],
        "_is_glob_pattern": globs.has_magic,
        "_is_remote_url": is_remote,
        "_resolve_data_files": resolve_shards,
        "_resolve_shards": resolve_shards,
    },
    **atdata_codecs.modules(),
}


class Alias(ModuleType):
    """A module whose other names are those of `fastshard.typed`, or absent."""

    def __init__(self, name: str, contents: dict[str, Any]) -> None:
        super().__init__(name)
        vars(self).update(contents)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in typed.__all__:  # the function `lens` before the module
            value = getattr(typed, name)
        else:
            absent = type(name, (), {"__init__": refuse})
            value = sys.modules.get(f"{self.__name__}.{name}", absent)
        setattr(self, name, value)
        return value


def refuse(self: object, *args: object, **options: object) -> None:
    """Skip the test if `atdata_lists` has the reason, else fail it."""
    name = type(self).__name__
    for reason, names in atdata_lists.NAMES.items():
        if name in names.split():
            pytest.skip(reason)
    raise NotImplementedError(f"fastshard.typed has no {name}")


class ListStage:
    """Stand-in for a stage of webdataset: one dict a shard."""

    def __init__(self, source: typed.DataSource) -> None:
        self.source = source

    def __call__(self) -> Iterator[dict[str, Any]]:
        for name in self.source.list_shards():
            yield {"url": name}


class OpenStage:
    """Stand-in for a stage of webdataset: opens the shards of `ListStage`."""

    def __init__(self, source: typed.DataSource) -> None:
        self.source = source

    def __call__(self, shards: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for shard in shards:
            yield shard | {"stream": self.source.open_shard(shard["url"])}


def enter() -> None:
    """Enter atdata's modules, before pytest imports tests."""
    found = modules()
    for name, contents in atdata_index.modules().items():
        found.setdefault(f"atdata.{name}", {}).update(contents)
    for path in sorted(Path(os.environ["FASTSHARD_ATDATA_TESTS"], "..").glob(SOURCES)):
        parts = path.with_suffix("").parts
        name = ".".join(parts[parts.index("src") + 1 :]).removesuffix(".__init__")
        found.setdefault(name, {})
    for name, contents in {**found, **atdata_index.sdk()}.items():
        sys.modules[name] = Alias(name, contents)


def modules() -> dict[str, dict[str, Any]]:
    manifest = importlib.import_module("fastshard.typed.manifest")
    testing = importlib.import_module("fastshard.typed.testing")
    return {
        "atdata": {"lens": lens},
        "atdata.dataset": {
            "WDSRawSample": dict,
            "_ShardListStage": ListStage,
            "_StreamOpenerStage": OpenStage,
        },
        "atdata.lens": {},
        "atdata.manifest": {
            n: getattr(manifest, n) for n in vars(manifest) if not n.startswith("_")
        },
        "atdata.testing": {n: getattr(testing, n) for n in testing.__all__},
        **{f"atdata.{name}": PRIVATE.get(name, {}) for name in {*OTHERS, *PRIVATE}},
    }
