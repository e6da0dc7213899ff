"""fastshard reads sharded datasets at memory speed.

>>> import fastshard
>>> with fastshard.open_shard("train-0000.tar") as shard:
...     view = shard["000042.jpg"]
"""

from importlib import import_module

from fastshard import _moved
from fastshard.formats.registry import register

__version__ = "0.1.0"

_HOMES = {  # names by their modules, which are imported when a name is asked for
    "fastshard._core.dataset.shard": "Shard",
    "fastshard.adapters.webshart.batch": "BatchProcessor read_files_batch",
    "fastshard.adapters.webshart.discover": (
        "DiscoveredDataset ShardReader discover_dataset "
        "discover_dataset_async discover_datasets_batch"
    ),
    "fastshard.dataset.batch": "collate",
    "fastshard.dataset.build_index": "build_index merge_indexes",
    "fastshard.dataset.combine": "Mix Zip mix zip_by_key",
    "fastshard.dataset.dataset": "Dataset",
    "fastshard.dataset.iteration": "BatchIterator SampleIterator",
    "fastshard.dataset.open": "open",
    "fastshard.errors": (
        "AmbiguousKeyError CacheWarning ClosedError FastshardError FieldNotFoundError "
        "FormatError InfoNotFoundError MemberNotFoundError MissingLibraryError "
        "QueryError QueryTimeoutError RaggedError RemoteError RemoteNotFoundError "
        "SampleNotFoundError ShardNotFoundError StaleIndexError StaleIndexWarning "
        "StateError WriterLockedError"
    ),
    "fastshard.formats.sample": "Sample Samples",
    "fastshard.formats.tar": "TarShard open_shard",
    "fastshard.formats.writer": "ShardWriter",
    "fastshard.remote.options": "RemoteOptions",
}
_MODULES = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_MODULES)

_SUBMODULES = "adapters columnar decoders errors formats index sources"

_moved.install()
register("fastshard.columnar.format")


def __getattr__(name: str) -> object:
    if name in _SUBMODULES.split():
        return import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES.split()})
