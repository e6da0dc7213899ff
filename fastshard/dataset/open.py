"""Function `open`: from a source to a dataset, through its format and indexes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from sys import modules
from typing import TYPE_CHECKING, Any, Unpack

from fastshard._util.options import check_choice, check_index, check_names
from fastshard._util.paths.remote_options import (
    RemoteOptions,
    check_local,
    select_remote,
)
from fastshard._util.paths.urls import is_folder, redact
from fastshard._util.sizes import parse_size
from fastshard.dataset.dataset import Dataset
from fastshard.dataset.paths.folders import (
    FormatFolders,
    find_folders,
    first_folder,
    list_or_find,
)
from fastshard.dataset.paths.listing import (
    Listing,
    Location,
    Source,
    list_shards,
    parse_source,
)
from fastshard.dataset.sequence.torch_collation import guard_collation
from fastshard.dataset.shardset import ReadOptions, ShardSet
from fastshard.dataset.tarset import TarSet, common_root
from fastshard.errors import (
    FastshardError,
    RemoteShardNotFoundError,
    ShardNotFoundError,
)
from fastshard.formats.folder import LocalFolder
from fastshard.formats.registry import Format, formats, tar_format
from fastshard.formats.tar import KeyRule, Mode, check_modes, copy_settings
from fastshard.index.dataset_file import NAME
from fastshard.index.dataset_lookup import find_dataset_index

if TYPE_CHECKING:
    from fastshard.formats.decoders import Decoder
    from fastshard.formats.sample import Sample
    from fastshard.remote.options import Settings

__all__ = ["OpenOptions", "open"]


class OpenOptions(RemoteOptions, total=False):
    """Options of `open` for URLs and for formats.

    Attributes
    ----------
    split : str
        Directory below the source, of a dataset in MosaicML Streaming's format.
    validate_hash : str
        Hash of its index by which files are checked before they are read.
    allow_unsafe_types : bool
        Decode its columns of pickles, which can run any code.
    """

    split: str | None
    validate_hash: str | None
    allow_unsafe_types: bool


def open(  # noqa: A001
    source: Source,
    *,
    index: str | os.PathLike[str] = "auto",
    key: KeyRule = "first",
    lower: bool = True,
    decoders: Mapping[str, Decoder] | None = None,
    mode: Mode = "mmap",
    max_mapped: int | None = None,
    max_memory: int | str | None = None,
    keep_cache: bool = True,
    prefetch: bool = True,
    check_size: bool = False,
    packed: bool = False,
    **remote: Unpack[OpenOptions],
) -> Dataset[Sample]:
    """Open a dataset, local or remote, as a sequence of samples.

    Nothing but the list of shards is read until samples are counted or accessed.

    Parameters
    ----------
    source : str, path-like or sequence of them
        Where the shards are; uncompressed tars.

        - ``"data/"``, ``"data/**"``: the ``.tar`` files in a directory; with ``**``
          also those below it. One warning names other tars there, as ``.tar.gz``.
        - ``"data/train-*.tar"``, ``"data/train-{0000..0099}.tar"``: a glob, or a brace
          list. All numbers of a list must exist.
        - ``["a/0.tar", "b/1.tar"]``, ``"a/0.tar"``: several of these, or one shard.
        - ``"https://host/train-{000..099}.tar"``: URLs. HTTP lists no directories:
          ``"https://host/data"`` needs a ``dataset.fsi`` there, made by `build_index`.
          A URL of any other name may be a shard, as ``"https://host/file/123"``.
        - ``"hf://datasets/owner/name/sub"``, ``"hf://datasets/owner/name@v1/*.tar"``: a
          repository of the Hugging Face hub, a directory of it, or a glob. A repository
          whose shards are all in one directory, such as ``data/``, is that directory.
        - ``"s3://bucket/data/"``, ``"gs://..."``, ``"az://..."``: an object store, by
          the library obstore.
        - ``"shardindex.json"``: a wids index, also by URL.
        - ``"series/"``: the directory of another format, see `fastshard.columnar`.
        - ``["en/", "de/"]``, ``"mds/{en,de}"``, ``"mds/*/"``: MDS datasets one after
          another, see `fastshard.streaming`.

        Directories and globs give shards in natural order, 2 before 10; lists keep
        their order.
    index : "auto", "none", "rebuild" or path-like, default "auto"
        Where to find the members of shards. ``"auto"``: fresh indexes beside the
        shards (``.fsi``, else ``.json``), and a fresh ``dataset.fsi``, with which
        samples are counted without opening shards; headers are scanned where there is
        none. ``"none"``: scan the headers. ``"rebuild"``: make all indexes first. A
        path: a directory, or the URL of one, of indexes that were made with ``out=``.
    key : {"first", "last"}, default "first"
        The dot of a name's last part at which a sample's key ends:
        ``"a.seg.png"`` is field ``seg.png`` of ``a``, or with ``"last"`` field
        ``png`` of ``a.seg``.
    lower : bool, default True
        Lower-case the fields of samples, as WebDataset does.
    decoders : Mapping of str to callable, optional
        ``fn(view) -> value`` by suffix of the field, for `Sample.decode`; they
        take precedence over the built-in ones, see `fastshard.decoders`.
        `fastshard.decoders.NpzDecoder` limits the memory of an ``.npz`` field.
    mode : {"mmap", "private", "pread"}, default "mmap"
        How to read local files. ``"mmap"``: mapped, read-only, no copies.
        ``"private"``: mapped copy-on-write, for views and arrays that are written to;
        files never change. ``"pread"``: each view is a copy, and a file that was
        truncated or written to raises a `FormatError`; access to a mapped file that
        another process truncates kills the process. Where the file system maps no
        files, ``"mmap"`` is ``"pread"``.
    max_mapped : int, optional
        Shards that may be mapped at a time; by default a quarter of the system's
        limit (``vm.max_map_count``), at most 16,384. One that is opened again must be
        the same file, or there is a `StaleShardError`.
    max_memory : int or str, optional
        Limit of the mapped shards' resident memory in this process: bytes, or
        ``"1GiB"``; by default none. The least recently read pages are released, by
        whatever call they were read; views of them stay valid and fault their bytes
        in again. Pages that were written to in ``mode="private"`` stay.
    keep_cache : bool, default True
        Leave pages that were read in the page cache. False is for datasets larger
        than memory that are read once.
    prefetch : bool, default True
        Bring bytes into memory, without the GIL, before a view of them is returned,
        and ahead of iterations.
    check_size : bool, default False
        For mapped files: raise a `FormatError` at each read once the file has become
        shorter. Keeps descriptors while the process has enough of them.
    packed : bool, default False
        The samples of tar shards are their members ``msgpack``: maps, whose entries
        are the fields, arrays among them. ``ds.raw`` has the same samples as members.
    **remote
        How URLs are read: ``token=``, ``headers=``, ``cache_dir=``,
        ``cache_limit="100GB"``, ``timeout=60`` (seconds), ``connections=16``,
        ``revision=``, ``endpoint=``, ``store=``, ...; see `RemoteOptions`. And options
        of formats: of MosaicML Streaming ``split=``, ``validate_hash=``,
        ``allow_unsafe_types=``.

    Returns
    -------
    Dataset
        A sequence of `Sample`. Each shard is opened on first use.

    Raises
    ------
    ShardNotFoundError
        A path or a split does not exist, or has no shard; the error lists what exists.
        Also a `FileNotFoundError`.
    FastshardError
        There are local and remote shards together, or one shard twice.
    FormatError
        On access: a shard is damaged or no tar.
    RemoteError
        A URL cannot be read.
    ValueError, TypeError
        An option has an unknown value, or is unknown.

    Examples
    --------
    >>> import fastshard
    >>> ds = fastshard.open("data/train-{0000..0003}.tar")
    >>> len(ds)
    100
    >>> ds[7].decode("cls", "txt")
    {'__key__': '000007', 'cls': 7, 'txt': 'text 7'}
    >>> for sample in ds.select_fields("txt").shuffle(seed=1).split_by_rank(0, 50):
    ...     print(sample.key, bytes(sample["txt"]))
    00... b'text ...'
    00... b'text ...'
    """
    check_choice("mode", mode, ("mmap", "private", "pread"))
    check_choice("key", key, ("first", "last"))
    if max_mapped is not None and max_mapped < 1:
        raise ValueError(f"max_mapped must be at least 1, got {max_mapped}")
    if "torch" in modules:
        guard_collation()
    index = os.fspath(index)
    check_index(index)
    limit = None if max_memory is None else parse_size(max_memory)
    reading = ReadOptions(prefetch, limit, keep_cache)
    tar_options = {"index": index, "key": key, "lower": lower, "check_size": check_size}
    tar_options |= {"packed": packed}
    location = parse_source(source)
    is_whole = location.is_whole
    settings: Settings | None = None
    if not location.is_local:
        settings = location.settings(select_remote(remote))
    listing: Listing | FormatFolders | None = find_folders(
        location, remote, settings=settings
    )
    if listing is None:
        if remote:
            _check_tar_options(location, remote)
        listing = list_or_find(location, remote, settings)
    if isinstance(listing, FormatFolders):
        shards = _open_format(listing, tar_options, remote, mode, max_mapped, reading)
        return Dataset(shards, decoders=decoders)
    if not listing.is_remote:
        settings = copy_settings(remote) if remote else None
    if settings is not None:
        check_modes(mode, check_size=check_size, remote=settings)
    folder = None
    if index not in ("auto", "none"):
        index, folder = _resolve_index(index, listing, key)
    paths = listing.paths
    if settings is not None and not listing.is_remote:
        paths = list(map(os.path.abspath, paths))  # names in the cache
    root = common_root(paths)
    view = None
    if folder is not None or index == "auto":
        view = find_dataset_index(
            paths,
            root,
            folder=folder,
            last_dot=key == "last",
            whole=is_whole,
            copied=mode == "pread",
            settings=settings,
        )
    make = tar_format("packed").tar_set() if packed else TarSet
    shards = make(
        paths,
        index=index,
        root=root,
        mode=mode,
        key=key,
        lower=lower,
        limit=max_mapped,
        index_view=view,
        reading=reading,
        check_size=check_size,
        remote=settings,
    )
    return Dataset(shards, decoders=decoders)


def _refuse_remote(found: Format, options: Mapping[str, Any]) -> None:
    """Raise ValueError for an option of URLs if the format is local only."""
    remote = select_remote(options)
    check_local(remote)
    if remote.get("cache_dir"):
        raise ValueError(
            f"cache_dir= is not an option of {found.name} datasets, whose files "
            "are always mapped: leave it out"
        )


def _option_names() -> tuple[str, ...]:
    """Return the names of the options that every format takes."""
    return (*(open.__kwdefaults__ or ()), *RemoteOptions.__optional_keys__)


def _check_tar_options(location: Location, options: OpenOptions) -> None:
    """Raise an error for an option that datasets of tar shards do not take."""
    names = _option_names()
    for name in options.keys() - set(names):
        for each in formats():
            if name in each.options:
                _check_subfolder(each, location, options)
                from fastshard._util.hints import DATASET, OPTIONS, explain_option

                hint = " for tar shards"
                if OPTIONS.get(name, DATASET) != DATASET:
                    hint = explain_option(name, names)
                raise TypeError(
                    f"open() has no argument {name}={hint}; it is an option of "
                    f"{each.name} datasets"
                )
    check_names("open", options, names)
    if location.is_local:
        copy_settings(options)  # raises before shards are listed


def _check_subfolder(
    wanted: Format, location: Location, options: Mapping[str, Any]
) -> None:
    """Raise ShardNotFoundError if a format's directory below the source is missing."""
    folder = first_folder(location, options)
    if folder is None:
        if location.kind == "path" and not os.path.exists(str(location.parts[0])):
            list_shards(location)  # no such directory, if it is not a glob of tars
        return
    if isinstance(folder, LocalFolder) and folder.has_shards():
        return
    reason = wanted.explain_missing(folder, options)
    if reason is None:
        return
    if folder.is_remote:
        raise RemoteShardNotFoundError(reason, redact(folder.path))
    path = os.path.join(folder.path, wanted.subfolder(options))
    raise ShardNotFoundError(reason, path)


def _open_format(
    folders: FormatFolders,
    tar_options: dict[str, Any],
    options: Mapping[str, Any],
    mode: Mode,
    limit: int | None,
    reading: ReadOptions,
) -> ShardSet:
    """Open a dataset's shards with the options that its format takes."""
    found = folders.format
    check_names("open", options, (*_option_names(), *found.options))
    defaults = {"index": "auto", "key": "first", "lower": True, "check_size": False}
    defaults |= {"packed": False}
    changed = {name for name in defaults if tar_options[name] != defaults[name]}
    if changed - found.options:
        name = next(name for name in defaults if name in changed - found.options)
        lacking = ", ".join(name for name in defaults if name not in found.options)
        raise ValueError(
            f"{name}= is an option of tar shards; a {found.name} dataset does not "
            f"take {lacking}: leave it out"
        )
    accepted = {name: value for name, value in options.items() if name in found.options}
    accepted |= {name: tar_options[name] for name in changed}
    roots = folders.roots
    if found.is_remote:
        settings = folders.settings
        if settings is None and (settings := copy_settings(select_remote(options))):
            roots = list(map(os.path.abspath, roots))
        accepted["remote"] = settings
    else:
        _refuse_remote(found, options)
    accepted |= {"mode": mode, "limit": limit, "reading": reading}
    shards: ShardSet
    if len(roots) == 1:
        shards = found.open_set(roots[0], **accepted)
    else:
        shards = found.open_all(roots, **accepted)
    return shards


def _resolve_index(
    index: str, listing: Listing, key: KeyRule
) -> tuple[str, str | None]:
    """Return the ``index=`` for the shards, and the folder if it is one.

    Makes the indexes for ``"rebuild"``.
    """
    if index == "rebuild":
        if listing.is_remote:
            raise FastshardError(
                'index="rebuild" is for local shards; index remote shards by '
                "build_index(..., out=DIRECTORY)"
            )
        from fastshard.dataset.build_index import build_index

        build_index(listing.paths, key=key, again=True)
        index = "auto"
    if os.path.basename(index) == NAME:
        index = os.path.dirname(index) or "."
    if index in ("auto", "none"):
        return index, None
    if is_folder(index):
        return index, index
    if len(listing.paths) > 1:
        raise ValueError(
            f"expected a directory of indexes for {len(listing.paths):,} shards, "
            f"got one index, {redact(index)}"
        )
    return index, None
