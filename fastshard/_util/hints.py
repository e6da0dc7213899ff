"""Hints for errors: the nearest path, and the calls to which an option belongs."""

from __future__ import annotations

import os
import re
from abc import ABCMeta
from collections.abc import Iterable
from contextlib import suppress
from types import ModuleType
from typing import Any

from fastshard._util.globs import natural_key

__all__ = [
    "METHODS",
    "HintingType",
    "MissingAttribute",
    "explain_option",
    "is_missing",
    "missing_name",
    "suggest_path",
]

MAX_COMPARED = 2000  # names of a directory compared with a missing one
MAX_SHOWN = 3
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")  # of the hub

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

# Options of other calls, ours and those of webdataset, wids, datasets, torch and
# streaming: where they belong. A call that takes an option does not look here.
OPTIONS = {
    **dict.fromkeys(("shuffle", "seed", "epoch", "block", "shardshuffle"), SHUFFLE),
    **dict.fromkeys(("shuffle_seed", "buffer_size", "shuffle_block_size"), SHUFFLE),
    **dict.fromkeys(("rank", "world_size", "num_replicas", "nodesplitter"), SPLIT),
    **dict.fromkeys(("batch_size", "drop_last", "collate", "collate_fn"), BATCHES),
    **dict.fromkeys(("ragged", "state", "window", "on_error"), ITERATE),
    **dict.fromkeys(("num_workers", "pin_memory", "prefetch_factor"), LOADER),
    **dict.fromkeys(("persistent_workers", "sampler", "worker_init_fn"), LOADER),
    **dict.fromkeys(("transform", "transforms", "map", "transformations"), MAP),
    **dict.fromkeys(("fields", "columns", "select_fields"), FIELDS),
    **dict.fromkeys(("max_count", "max_size", "maxcount", "maxsize"), WRITER),
    **dict.fromkeys(("overwrite", "append", "start"), WRITER),
    **dict.fromkeys(("decoders", "max_mapped", "max_memory", "keep_cache"), DATASET),
    **dict.fromkeys(("hashes", "threads", "again", "part"), INDEX),
    **dict.fromkeys(("urls", "data_dir", "data_files", "remote", "local"), SOURCE),
    "decode": f"decode is a method, {OPEN}.decode(*fields)",
    "filter": f"filter is a method, {OPEN}.filter(fn)",
    "split": 'name the shards of a split as the source, "DIR/train-*.tar"',
    "handler": f"errors are handled by iteration, {OPEN}.iter(on_error=)",
    "batched": BATCHES,
    "streaming": "remote shards are read by ranges, never downloaded first",
    "use_auth_token": "did you mean token=?",
    "hf_token": "did you mean token=?",
    "storage_options": "did you mean store=?",
    "cache_size": "did you mean cache_limit=?",
    "download_timeout": "did you mean timeout=?",
    "compress": "members of compressed tars cannot be reached: shards are plain tars",
    "encoder": "values are encoded by their field's suffix, and bytes are stored as "
    "they are",
    "start_shard": "did you mean start=?",
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
    **dict.fromkeys(("num_rows", "num_samples", "size"), "len(ds)"),
    **dict.fromkeys(("repeat", "with_epoch", "set_epoch"), "shuffle(seed, epoch)"),
    **dict.fromkeys(("shard", "split_by_node"), "split_by_rank(rank, world_size)"),
    **dict.fromkeys(("save_to_disk", "push_to_hub"), "fastshard.ShardWriter"),
    "select": "ds[positions], or filter(fn)",
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
    **dict.fromkeys(("open_dataset", "load", "read"), "fastshard.open"),
    **dict.fromkeys(("TarWriter", "MDSWriter", "Writer"), "fastshard.ShardWriter"),
    **dict.fromkeys(("WebLoader", "DataLoader"), "torch.utils.data.DataLoader"),
    **dict.fromkeys(("split_by_node", "split_by_worker"), "ds.split_by_rank"),
    "RandomMix": "fastshard.mix",
    "interleave_datasets": "fastshard.mix",
    "concatenate_datasets": "a + b",
    "TarReader": "fastshard.open_shard",
    "ShardedDatasetReader": "fastshard.columnar.ShardedDatasetReader",
    "ShardedDatasetWriter": "fastshard.columnar.ShardedDatasetWriter",
}


class MissingAttribute:
    """Attribute that another library's datasets have: absent here, with a hint.

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
    """Type of classes with all `MissingAttribute`, which `dir` and `help` leave out."""

    def __init__(cls, name: str, bases: tuple[type, ...], *args: Any) -> None:
        super().__init__(name, bases, *args)
        if not any(isinstance(base, HintingType) for base in bases):
            for missing in METHODS:
                setattr(cls, missing, MissingAttribute(missing))

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if not is_missing(cls, name)]


def is_missing(cls: type, name: str) -> bool:
    """Return whether a class has a hint instead of a method of this name."""
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
    """Return where an argument belongs that a call does not take, or ``""``.

    Parameters
    ----------
    name : str
        The argument; a misspelt one is explained as the nearest, if that is not a
        valid one.
    valid : iterable of str
        Arguments that the call takes.
    """
    from difflib import get_close_matches  # takes 5 ms to import

    valid = list(valid)
    if name in OPTIONS:
        near = [name]
    else:
        near = get_close_matches(name.lower(), [*valid, *OPTIONS], 1)
    if not near:
        return ""
    if near[0] in valid:
        return f"; did you mean {near[0]}=?"
    text = OPTIONS[near[0]]
    if text.startswith("did you mean"):
        wanted = text.removeprefix("did you mean ").removesuffix("=?")
        return f"; {text}" if wanted in valid else ""
    return f": {text}"


def suggest_path(path: str) -> str:
    """Return the end of a message on a missing path: the nearest that exists, or ""."""
    if os.path.islink(path):
        return ": it is a dangling link"
    expanded = os.path.expandvars(os.path.expanduser(path))
    if expanded != path and os.path.lexists(expanded):
        return f"; did you mean {expanded}?"
    parent, name = os.path.split(path.rstrip("/" + os.sep))
    is_near = True
    while parent and not os.path.lexists(parent):
        above, name = os.path.split(parent)
        if above == parent:
            return ""
        parent, is_near = above, False
    if not os.path.isdir(parent or os.curdir):
        return f": {parent} is not a directory"
    names = _names_in(parent)
    near = _nearest_names(name, names)
    hint = ""
    if not is_near:
        where = parent or "the current directory"
        hint = f": there is no {name!r} in {where}"
        if not near and REPOSITORY.fullmatch(path) and not path.endswith(".tar"):
            return f"{hint}; a dataset of the hub is hf://datasets/{path}"
    if near:
        return f"{hint}; did you mean {os.path.join(parent, near[0])}?"
    if names and parent:
        shown = sorted(names, key=natural_key)
        more = ", ..." if len(shown) > MAX_SHOWN else ""
        return f"{hint}; {parent} has {', '.join(shown[:MAX_SHOWN])}{more}"
    return hint


def _names_in(folder: str) -> list[str]:
    """Return up to `MAX_COMPARED` names of a directory, hidden ones left out."""
    names: list[str] = []
    with suppress(OSError), os.scandir(folder or os.curdir) as entries:
        for entry in entries:
            if len(names) == MAX_COMPARED:
                break
            if entry.name[0] != "." and not entry.name.endswith(".fsi"):
                names.append(entry.name)
    return names


def _nearest_names(name: str, names: list[str]) -> list[str]:
    """Return names that a missing one may stand for, the best first.

    Another number is none: shard 7 is not a misspelt shard 17.
    """
    from difflib import get_close_matches

    mask, numbers = _split_numbers(name)
    same = [other for other in names if _split_numbers(other) == (mask, numbers)]
    if same:  # other zeros before the numbers
        return same
    stem = name.removesuffix(".tar")
    cut = len(stem)
    longer = [other for other in names if stem and other.startswith(stem)]
    longer = [other for other in longer if not other[cut - 1 : cut + 1].isdigit()]
    if longer:
        return sorted(longer, key=natural_key)
    if len(names) == MAX_COMPARED:  # the nearest may not be among them
        return []
    by_case = {n.lower(): n for n in names if _split_numbers(n)[0] != mask}
    return [by_case[n] for n in get_close_matches(name.lower(), by_case, 1, 0.7)]


def _split_numbers(name: str) -> tuple[str, list[str]]:
    """Return a name without its numbers, and these without leading zeros."""
    numbers = [number.lstrip("0") for number in re.findall("[0-9]+", name)]
    return re.sub("[0-9]+", "0", name), numbers
