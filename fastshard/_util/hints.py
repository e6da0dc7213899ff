"""Hints in errors: the right call for a misplaced option or name."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Iterable
from types import ModuleType
from typing import Any

__all__ = [
    "METHODS",
    "HintingType",
    "MissingAttribute",
    "explain_option",
    "is_missing",
    "missing_name",
]

SIMILAR = 0.77  # of option names; "resampled" is not a misspelt "sampler"

OPEN = "fastshard.open(...)"
SHUFFLE = f"shuffle is a method, {OPEN}.shuffle(seed, epoch)"
SPLIT = f"the share of a rank is a method, {OPEN}.split_by_rank(rank, world_size)"
BATCHES = f"batches are a method, {OPEN}.batches(batch_size), or torch's DataLoader"
LOADER = "it belongs to torch's DataLoader, DataLoader(dataset, ...)"
MAP = f"map is a method, {OPEN}.map(fn)"
FIELDS = f"fields are selected by a method, {OPEN}.select_fields(*fields)"
ITERATE = f"it belongs to iteration, {OPEN}.iter(...) and .batches(...)"
WRITER = "it belongs to fastshard.ShardWriter"
DATASET = "it belongs to fastshard.open"
INDEX = "it belongs to fastshard.build_index"
SOURCE = "paths, globs, brace lists and URLs are the first argument"
EPOCH = f"an epoch has each sample once, {OPEN}.shuffle(seed, epoch)"
LENGTH = f"the length of an epoch is len(dataset); a shorter one is {OPEN}[:n]"
MIX = "datasets are mixed by fastshard.mix(datasets, weights)"
WORKERS = "workers of torch's DataLoader share the samples by themselves"
AHEAD = "what is read ahead is bounded by max_memory="
IN_PLACE = (
    "files are read where they are, remote ones by ranges: none is downloaded first"
)
VALUES = f"fields are decoded by their suffix, {OPEN}.decode(*fields)"
SUBSET = "a subset is a directory, a glob or a brace list, the first argument"
CACHE = "remote bytes that were read are kept by cache_dir="
COMPRESSED = "members of compressed tars cannot be reached: shards are plain tars"
VERIFY = f"shards are checked by a method, {OPEN}.verify()"

# Names that options have in webdataset, wids, datasets, torch and streaming: ours, of
# which the first that a call takes is meant.
SYNONYMS = {
    **dict.fromkeys(("collate_fn", "collation_fn"), ("collate",)),
    **dict.fromkeys(("num_workers", "num_proc", "max_workers"), ("workers", "threads")),
    **dict.fromkeys(("use_auth_token", "hf_token"), ("token",)),
    **dict.fromkeys(("download_retry", "retry"), ("attempts",)),
    "prefetch_factor": ("ahead",),
    "handler": ("on_error",),
    "storage_options": ("store",),
    "cache_size": ("cache_limit",),
    "lru_size": ("max_mapped",),
    "local": ("cache_dir",),
    "download_timeout": ("timeout",),
    "size_limit": ("max_size",),
    "exist_ok": ("overwrite",),
    "start_shard": ("start",),
    "probabilities": ("weights",),
    "stopping_strategy": ("stop",),
    "format": ("to",),
    "predownload": ("ahead",),
}

# Options of other calls, ours and those of the same libraries: their place. A
# call that takes an option, or a synonym of it, does not look here.
OPTIONS = {
    **dict.fromkeys(("shuffle", "seed", "epoch", "block", "shardshuffle"), SHUFFLE),
    **dict.fromkeys(("shuffle_seed", "buffer_size", "shuffle_block_size"), SHUFFLE),
    **dict.fromkeys(("detshuffle", "shuffle_algo", "generator"), SHUFFLE),
    **dict.fromkeys(("rank", "world_size", "num_replicas", "nodesplitter"), SPLIT),
    **dict.fromkeys(("num_canonical_nodes", "partition_algo", "num_shards"), SPLIT),
    **dict.fromkeys(("workersplitter", "num_proc", "max_workers"), WORKERS),
    **dict.fromkeys(("url_to_name", "localname", "keep"), CACHE),
    **dict.fromkeys(("batch_size", "drop_last", "collate", "collate_fn"), BATCHES),
    **dict.fromkeys(("resampled", "repeat", "sampling_granularity"), EPOCH),
    **dict.fromkeys(("epoch_size", "samples_per_epoch"), LENGTH),
    **dict.fromkeys(("streams", "proportion", "choose", "sampling_method"), MIX),
    **dict.fromkeys(("batching_method", "probabilities", "stopping_strategy"), MIX),
    **dict.fromkeys(("streaming", "download_config", "download_mode"), IN_PLACE),
    **dict.fromkeys(("keep_in_memory", "keep_zip", "keep_local"), IN_PLACE),
    **dict.fromkeys(("features", "task", "encoding"), VALUES),
    **dict.fromkeys(("name", "dataset_name", "stream_name"), SUBSET),
    **dict.fromkeys(("verification_mode", "ignore_verifications"), VERIFY),
    **dict.fromkeys(("ragged", "state", "window", "on_error"), ITERATE),
    **dict.fromkeys(("num_workers", "pin_memory", "prefetch_factor"), LOADER),
    **dict.fromkeys(("persistent_workers", "sampler", "worker_init_fn"), LOADER),
    **dict.fromkeys(("batch_sampler", "multiprocessing_context", "in_order"), LOADER),
    **dict.fromkeys(("pin_memory_device", "dataset"), LOADER),
    **dict.fromkeys(("transform", "transforms", "map", "transformations"), MAP),
    **dict.fromkeys(("fields", "columns", "select_fields", "select_files"), FIELDS),
    **dict.fromkeys(("max_count", "max_size", "maxcount", "maxsize"), WRITER),
    **dict.fromkeys(("overwrite", "append", "start", "start_shard"), WRITER),
    **dict.fromkeys(("size_limit", "exist_ok", "mtime"), WRITER),
    **dict.fromkeys(("decoders", "max_mapped", "max_memory", "keep_cache"), DATASET),
    **dict.fromkeys(("mode", "key", "lower", "prefetch", "check_size"), DATASET),
    **dict.fromkeys(("cache_dir", "cache_limit", "offline", "private_hosts"), DATASET),
    **dict.fromkeys(("token", "headers", "sign", "store", "timeout"), DATASET),
    **dict.fromkeys(("attempts", "connections", "revision", "endpoint"), DATASET),
    **dict.fromkeys(("validate_hash", "allow_unsafe_types", "packed"), DATASET),
    **dict.fromkeys(("hashes", "threads", "again", "part"), INDEX),
    **dict.fromkeys(("urls", "data_dir", "data_files", "remote", "local"), SOURCE),
    **dict.fromkeys(("path", "shards", "pattern"), SOURCE),
    "predownload": AHEAD,
    "keys": "batches without keys are those of collate=fastshard.collate(keys=False)",
    "partial": "drop_last=True leaves out a last batch that is not full",
    "replication": "ranks of the same samples take the same share, "
    f"{OPEN}.split_by_rank(rank // replication, world_size // replication)",
    "trust_remote_code": "no code of a dataset is run",
    "decode": f"decode is a method, {OPEN}.decode(*fields)",
    "filter": f"filter is a method, {OPEN}.filter(fn)",
    "split": 'name the shards of a split as the source, "DIR/train-*.tar"',
    "handler": f"errors are handled by iteration, {OPEN}.iter(on_error=)",
    "batched": BATCHES,
    **dict.fromkeys(("compress", "compression"), COMPRESSED),
    "encoder": "values are encoded by their field's suffix, and bytes are stored as "
    "they are",
}


TUPLES = 'decode("jpg", "cls").map(lambda values: (values["jpg"], values["cls"]))'

# Methods and attributes of webdataset's, datasets' and torch's datasets: ours.
METHODS = {
    **dict.fromkeys(("batch", "batched"), "batches(batch_size)"),
    **dict.fromkeys(("to_tuple", "map_tuple"), TUPLES),
    **dict.fromkeys(("map_dict", "set_transform", "with_transform"), "map(fn)"),
    **dict.fromkeys(("rename", "rename_column", "rename_columns"), "map(fn)"),
    **dict.fromkeys(("set_format", "with_format"), "decode(*fields)"),
    **dict.fromkeys(("select_columns", "remove_columns"), "select_fields(*fields)"),
    **dict.fromkeys(("features", "column_names"), "fields"),
    **dict.fromkeys(("num_rows", "num_samples", "size", "with_length"), "len(ds)"),
    **dict.fromkeys(("repeat", "with_epoch", "set_epoch"), "shuffle(seed, epoch)"),
    **dict.fromkeys(("resampled", "random_batch"), "shuffle(seed, epoch)"),
    **dict.fromkeys(("shard", "split_by_node"), "split_by_rank(rank, world_size)"),
    **dict.fromkeys(("rename_keys", "cast", "cast_column", "rename_files"), "map(fn)"),
    "xdecode": "decode(*fields)",
    "split_by_worker": "torch's DataLoader, whose workers share the samples",
    "unbatched": "iter(ds)",
    **dict.fromkeys(("save_to_disk", "push_to_hub"), "fastshard.ShardWriter"),
    "select": "ds[positions], or filter(fn)",
    **dict.fromkeys(("scan", "iterate"), "iter(order=)"),
    "skip": "ds[n:]",
    "slice": "ds[start:stop]",
    "train_test_split": "split([0.9, 0.1], seed=)",
    "to_iterable_dataset": "iter(ds)",
    "compose": "map(fn)",
}

# Calls of other libraries: ours.
CALLS = {
    **dict.fromkeys(("WebDataset", "ShardListDataset", "wids"), "fastshard.open"),
    **dict.fromkeys(("load_dataset", "load_from_disk"), "fastshard.open"),
    **dict.fromkeys(("StreamingDataset", "IterableDataset"), "fastshard.open"),
    **dict.fromkeys(("LocalDataset", "StreamingVisionDataset"), "fastshard.open"),
    **dict.fromkeys(("open_dataset", "load", "read"), "fastshard.open"),
    **dict.fromkeys(("TarWriter", "Writer"), "fastshard.ShardWriter"),
    **dict.fromkeys(("WebLoader", "DataLoader"), "torch.utils.data.DataLoader"),
    "StreamingDataLoader": "torch.utils.data.DataLoader",
    "split_by_node": "ds.split_by_rank",
    "split_by_worker": "torch's DataLoader, whose workers share the samples",
    "MDSWriter": "fastshard.streaming.MDSWriter",
    **dict.fromkeys(("RandomMix", "interleave_datasets", "Stream"), "fastshard.mix"),
    "concatenate_datasets": "a + b",
    "TarReader": "fastshard.open_shard",
    "ShardedDatasetReader": "fastshard.columnar.ShardedDatasetReader",
    "ShardedDatasetWriter": "fastshard.columnar.ShardedDatasetWriter",
}


class MissingAttribute:
    """Attribute of another library's datasets: absent here, with a hint.

    A class with `__getattr__` would have slower access to all of its attributes.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> object:
        message = (
            f"{owner.__name__!r} object has no attribute {self.name!r}; "
            f"use {METHODS[self.name]}"
        )
        raise AttributeError(message, name=self.name, obj=instance)


class HintingType(ABCMeta):
    """Metaclass with all `MissingAttribute`, which `dir` and `help` leave out."""

    def __init__(cls, name: str, bases: tuple[type, ...], *args: Any) -> None:
        super().__init__(name, bases, *args)
        if not any(isinstance(base, HintingType) for base in bases):
            for missing in METHODS:
                setattr(cls, missing, MissingAttribute(missing))

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if not is_missing(cls, name)]


def is_missing(cls: type, name: str) -> bool:
    """Return whether a class has only a hint in place of a method."""
    for base in cls.__mro__:
        if name in vars(base):  # not getattr: it would raise
            return isinstance(vars(base)[name], MissingAttribute)
    return False


def missing_name(name: str, module: ModuleType) -> AttributeError:
    """Return the error for a name that the package does not have."""
    hint = f"; use {CALLS[name]}" if name in CALLS else ""
    message = f"module {module.__name__!r} has no attribute {name!r}{hint}"
    return AttributeError(message, name=name, obj=module)


def explain_option(name: str, valid: Iterable[str]) -> str:
    """Return a hint on the call that takes an argument, or ``""``."""
    from difflib import get_close_matches  # takes 5 ms to import

    valid = list(valid)
    known = [*valid, *SYNONYMS, *OPTIONS, *METHODS]
    near = (
        [name] if name in known else get_close_matches(name.lower(), known, 1, SIMILAR)
    )
    if not near:
        return ""
    names = near[0], *SYNONYMS.get(near[0], ())
    for each in names:
        if each in valid:
            return f"; did you mean {each}=?"
    for each in names:
        if each in OPTIONS:
            return f": {OPTIONS[each]}" + f", as {each}=" * (each != near[0])
    return f": of a dataset, {METHODS[near[0]]}" if near[0] in METHODS else ""
