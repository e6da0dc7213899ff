"""Function `load_dataset`: from a path to a dataset, or to one for each split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from fastshard._util.paths.remote_options import select_remote
from fastshard._util.paths.urls import redact
from fastshard.catalog.loading.named import (
    EntryIndex,
    are_blobs,
    is_reference,
    load_blobs,
    load_named,
)
from fastshard.dataset.paths.listing import Source
from fastshard.typed.dataset import Dataset
from fastshard.typed.dict_sample import DictSample
from fastshard.typed.loading.dataset_dict import DatasetDict
from fastshard.typed.loading.splits import DEFAULT_SPLIT, DataFiles, list_splits
from fastshard.typed.logs import get_logger
from fastshard.typed.sources.url import URLSource

if TYPE_CHECKING:
    from fastshard.catalog.index import Index

__all__ = ["load_dataset"]

T = TypeVar("T")


@overload
def load_dataset(
    path: Source,
    sample_type: type[T],
    *,
    split: str,
    data_files: DataFiles | None = None,
    streaming: bool = False,
    index: Index | EntryIndex | None = None,
    atmosphere: object = None,
    **options: Any,
) -> Dataset[T]: ...
@overload
def load_dataset(
    path: Source,
    sample_type: type[T],
    *,
    split: None = None,
    data_files: DataFiles | None = None,
    streaming: bool = False,
    index: Index | EntryIndex | None = None,
    atmosphere: object = None,
    **options: Any,
) -> DatasetDict[T]: ...
@overload
def load_dataset(
    path: Source,
    sample_type: None = None,
    *,
    split: str,
    data_files: DataFiles | None = None,
    streaming: bool = False,
    index: Index | EntryIndex | None = None,
    atmosphere: object = None,
    **options: Any,
) -> Dataset[DictSample]: ...
@overload
def load_dataset(
    path: Source,
    sample_type: None = None,
    *,
    split: None = None,
    data_files: DataFiles | None = None,
    streaming: bool = False,
    index: Index | EntryIndex | None = None,
    atmosphere: object = None,
    **options: Any,
) -> DatasetDict[DictSample]: ...
def load_dataset(
    path: Source,
    sample_type: type[Any] | None = None,
    *,
    split: str | None = None,
    data_files: DataFiles | None = None,
    streaming: bool = False,
    index: Index | EntryIndex | None = None,
    atmosphere: object = None,
    **options: Any,
) -> Dataset[Any] | DatasetDict[Any]:
    """Load a dataset of typed samples, or one for each split.

    Shards are listed; nothing of them is read or downloaded before samples are. A shard
    is of the split that its name says, after patterns were expanded, else its path:
    ``train-000.tar``, ``x-val-000.tar``, ``data/test/000.tar``. Shards whose names say
    nothing are of "train"; val, valid, dev and development mean "validation".

    Parameters
    ----------
    path : str, path-like or sequence of them
        A source of `fastshard.open`: a shard, a brace list, a glob, a directory with
        ``.tar`` files, a URL (``http``, ``s3``, ``gs``, ``az``, ``hf``), a list of
        these. ``"@handle/name"``, ``"@handle/name@version"``, ``"at://..."`` and
        ``"atdata://..."`` name an entry of an index; with `index` so does a name.
        ``"at://did/blob/cid"`` is a shard.
    sample_type : type, optional
        Class of the samples; by default `DictSample`, of an indexed path that of its
        schema.
    split : str, optional
        The split to return; without one all are returned, as a `DatasetDict`. An entry
        of an index, and blobs, are one split, of the name that is given, else "train".
    data_files : str, path-like, sequence of them, or Mapping by split, optional
        Instead of all that `path` has, these files of it, or patterns: of split "train"
        if no split is given with them. They have no effect on references and
        blobs.
    streaming : bool, default False
        Kept as `DatasetDict.streaming`; datasets are read on access in any case.
    index : Index, optional
        Where names are looked up: an `Index`, or an object with
        ``get_dataset(name)``, ``get_label(name, version)`` and
        ``get_schema_type(ref)``. By default that of `get_default_index`.
    atmosphere : Atmosphere, optional
        Client of the network, instead of that of the index.
    **options
        Options of `Dataset`, and those of `fastshard.open`: ``store=``, ``token=``,
        ``max_memory=``, ...

    Returns
    -------
    Dataset or DatasetDict
        A dataset if a split is named.

    Raises
    ------
    ShardNotFoundError
        There are no shards, or a named file does not exist. Also a `FileNotFoundError`.
    ValueError
        There is no such split, or a reference has no name.
    KeyError
        The index has no such entry.
    TypeError
        `sample_type` is not a class, or `data_files` come with a sequence of paths.

    Examples
    --------
    >>> from fastshard import typed
    >>> ds = typed.load_dataset("splits/train-*.tar", split="train")
    >>> ds[0].keys()
    ['image', 'label']
    >>> @typed.packable
    ... class Label:
    ...     label: str
    >>> typed.load_dataset("splits/", Label, split="test")[0]
    Label(label='label 0')
    >>> splits = typed.load_dataset("splits/", data_files={"a": "test-*.tar"})
    >>> splits.num_shards
    {'a': 1}
    >>> typed.load_dataset("images", index=index, split="train")[7].label
    'label 7'
    """
    if sample_type is not None and not isinstance(sample_type, type):
        name = type(sample_type).__name__
        raise TypeError(f"sample_type must be a class, got an object of {name}")
    get_logger().info(
        "load_dataset: path=%s, split=%s, sample_type=%s",
        redact(path) if isinstance(path, str) else path,
        split,
        getattr(sample_type, "__name__", None),
    )
    named: Dataset[Any] | None = None
    if are_blobs(path):
        named = load_blobs(path, sample_type or DictSample, atmosphere, options)
    elif isinstance(path, str) and (data_files is None or is_reference(path)):
        named = load_named(path, sample_type, index, atmosphere, options)
    if named is not None:
        kind, splits = named.sample_type, {split or DEFAULT_SPLIT: named}
    else:
        kind = sample_type or DictSample
        remote = select_remote(options)
        splits = {
            name: Dataset(URLSource._of_shards(shards), kind, **options)
            for name, shards in list_splits(path, data_files, remote).items()
        }
    if split is None:
        return DatasetDict(splits, kind, streaming)
    if split not in splits:
        raise ValueError(f"Split {split!r} not found. Available splits: {list(splits)}")
    return splits[split]
