"""Tar shards, and their opening: index or scan, mapping, sample grouping."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, Unpack

from fastshard._core.dataset.shard import Shard, register_functions
from fastshard._core.io.source import (
    LocalFile,
    MappedFile,
    MappedSource,
    PreadSource,
    RemoteSource,
    Residency,
    Source,
    source_of,
)
from fastshard._core.parse.tar import scan_tar
from fastshard._core.table.grouping import Grouping
from fastshard._util.options import check_choice, check_index, check_names
from fastshard._util.paths.remote_options import RemoteOptions, check_local
from fastshard._util.paths.suggestion import suggest_path
from fastshard._util.paths.urls import (
    Url,
    is_folder,
    is_remote,
    parse_path_or_url,
    parse_url,
)
from fastshard.errors import (
    FastshardError,
    FormatError,
    RemoteNotFoundError,
    RemoteShardNotFoundError,
    ShardNotFoundError,
    StaleIndexError,
    UnreadEntryWarning,
)
from fastshard.formats.foreign import HEAD, explain_fault
from fastshard.formats.sample import Sample, Samples
from fastshard.index.contents import (
    Contents,
    FileIdentity,
    Warn,
    warn_ignored_index,
)
from fastshard.index.freshness import (
    Opening,
    compute_fingerprint,
    find_first_changed,
    identify_file,
    is_same_file,
    spread_positions,
    version_of,
)
from fastshard.index.sidecar import find_index, read_index, save_index, sidecar_path

if TYPE_CHECKING:
    from fastshard._core.io.paging import PageRing
    from fastshard._core.parse.tar import UnreadLink
    from fastshard._core.table.extents import ExtentTable
    from fastshard.index.checksums import Hashes
    from fastshard.index.dataset_file import DatasetIndexView
    from fastshard.remote.file import RemoteFile
    from fastshard.remote.options import Settings

__all__ = [
    "IndexFormat",
    "KeyRule",
    "Mode",
    "Progress",
    "TarOptions",
    "TarShard",
    "check_modes",
    "check_record",
    "copy_settings",
    "map_cached_file",
    "open_local_tar",
    "open_remote_tar",
    "open_shard",
    "open_tar",
    "warn_unread",
]

Mode = Literal["mmap", "private", "pread"]
ShardMode: TypeAlias = Mode | Literal["remote"]
KeyRule = Literal["first", "last"]
IndexFormat = Literal["fsi", "json", "idx", "tar.idx"]
Progress = Callable[[int], object]


class TarOptions(NamedTuple):
    """Options of a tar shard; see `fastshard.open_shard`.

    Attributes
    ----------
    index_source : str
        The ``index=`` of `open_shard`.
    mode : {"mmap", "private", "pread"}
    key : {"first", "last"}
    lower : bool
    prefetch : bool
    check_size : bool
    remote : Settings, optional
        How to read URLs: the shard's own, or its index's.
    """

    index_source: str = "auto"
    mode: Mode = "mmap"
    key: KeyRule = "first"
    lower: bool = True
    prefetch: bool = True
    check_size: bool = False
    remote: Settings | None = None


DEFAULTS = TarOptions()


def _load_function(name: str) -> Callable[..., Any] | None:
    """Import a function behind a method of `Shard`; see `register_functions`."""
    if name == "scan_members":
        from fastshard._core.dataset.iterate import scan_members

        return scan_members
    if name == "read_members":
        from fastshard._core.dataset.gather import read_members

        return read_members
    from fastshard._core.dataset import npy

    return getattr(npy, name, None)


register_functions(_load_function)

MAX_COMPLETIONS = 1000  # names that a prompt completes


class TarShard(Shard):
    """Open tar shard, local or remote; see `fastshard.open_shard`.

    A sequence of views by position or name (`Shard`), whose members are also grouped
    into `samples`. It pickles by path and options, survives fork, and closes as a
    context manager.

    Examples
    --------
    >>> import fastshard
    >>> with fastshard.open_shard("data/train-0000.tar") as shard:
    ...     shard
    ...     shard.index
    ...     shard.samples["000003"].text("txt")
    TarShard('data/train-0000.tar'; 100 members, 103,424 bytes; mmap)
    'data/train-0000.fsi'
    'text 3'
    """

    __slots__ = (
        "_contents",
        "_grouping",
        "_identity",
        "_index",
        "_location",
        "_options",
        "_remote",
    )

    def __init__(
        self,
        source: Source,
        table: ExtentTable,
        path: str,
        mode: ShardMode,
        *,
        location: str,
        index: str,
        contents: Contents,
        grouping: Grouping,
        identity: tuple[int, FileIdentity],
        options: TarOptions,
        remote: RemoteFile | None = None,
    ) -> None:
        self._location = location  # absolute path, or URL with its query
        self._index = index  # for opening the shard again, as the options
        self._remote = remote
        self._contents = contents
        self._grouping = grouping
        self._identity = identity  # of the opened file: size in bytes, identity
        self._options = options

    @property
    def index(self) -> str | None:
        """Path of the index in use, or None if the headers were scanned."""
        return self._contents.index

    def _ipython_key_completions_(self) -> list[str]:
        """Return the first names, which IPython completes after ``shard["``."""
        return [] if self.closed else self.names[:MAX_COMPLETIONS]

    @property
    def skipped(self) -> Mapping[str, int] | None:
        """Number of archive entries that are not members, by kind.

        ``directory``, ``metadata`` and so on; ``hard link`` and ``symbolic link`` for
        links that lead to no member. None if the index does not record it.
        """
        return self._contents.skipped

    @property
    def unread_links(self) -> Sequence[UnreadLink]:
        """Links that lead to no member, the first 100: offset, kind, name, target.

        Empty if the headers were not scanned; `skipped` counts them in an index too.
        """
        return self._contents.unread

    @property
    def lone_zeros(self) -> int | None:
        """Offset of the first lone block of zeros in the middle of the archive.

        Other tar readers stop there. None if absent, or with an index.
        """
        return self._contents.lone_zeros

    @property
    def end(self) -> int | None:
        """End of the archive, in bytes from the start of the file.

        Padding may follow it, or another archive, which tar readers ignore. None if
        the index does not record it.
        """
        return self._contents.end

    @property
    def fingerprint(self) -> bytes | None:
        """Fingerprint of the shard, if its binary index records one."""
        return self._contents.fingerprint

    @property
    def samples(self) -> Samples:
        """The shard's samples: its members grouped by key.

        A key is a name up to the first dot of its last part, without a leading
        ``./``; the rest of the name is the field, lower-cased. Names without a dot in
        the last part, names whose last part begins with a dot, and names below
        ``__x__`` belong to no sample.
        """
        return Samples(self, self._grouping, Sample)

    def info(self, key: int | str) -> dict[str, Any]:
        """Return the metadata that the index records of a member.

        Captions, width and height, sha256: the metadata of a ``.json`` index, or of one
        made with ``hashes=True``.

        Parameters
        ----------
        key : int or str
            Position or name.

        Returns
        -------
        dict
            A new dict on each call; empty if the index has no metadata.

        Raises
        ------
        FormatError
            The metadata is not a JSON object.
        MemberNotFoundError, IndexError, ClosedError
            As for ``shard[key]``.

        Examples
        --------
        >>> path = shard.save_index("hashed.fsi", hashes=True)
        >>> hashed = fastshard.open_shard("data/train-0000.tar", index=path)
        >>> hashed.info("000000.txt")
        {'sha256': '...'}
        """
        from fastshard.index.jsonfile import parse_info

        table = self.parts()[1]
        i = self.position(key) if isinstance(key, str) else range(len(table))[key]
        text = table.info(i)
        try:
            return parse_info(text)
        except ValueError as error:
            path = self.index or self.path
            reason = f"its info is not a JSON object: {error}"
            raise FormatError(reason, path, 0, table.name_of(i)) from error

    def save_index(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        format: IndexFormat | None = None,  # noqa: A002
        hashes: bool = False,
        progress: Progress | None = None,
    ) -> str:
        """Write an index of this shard, atomically.

        Parameters
        ----------
        path : str or path-like, optional
            By default beside the shard, with the format's suffix.
        format : {"fsi", "json", "idx", "tar.idx"}, optional
            By default inferred from the suffix of `path`; ``"fsi"`` without a path.
        hashes : bool, default False
            Record checksums too, for which the whole shard is read.
        progress : callable, optional
            Called after each hashed MiB with the number of the shard's bytes done.

        Returns
        -------
        str
            Path of the index.

        Raises
        ------
        StaleIndexError
            The shard was written to after it was opened.
        FastshardError
            The format cannot represent the shard.
        ValueError
            `format` is not one of the above.
        OSError
            The index cannot be written.

        Examples
        --------
        >>> shard.save_index("train-0000.json")
        'train-0000.json'
        >>> fastshard.open_shard("data/train-0000.tar", index="train-0000.json").index
        'train-0000.json'
        """
        self.parts()  # raises ClosedError
        shard = self._location
        if path is None:
            where = sidecar_path(shard, format or "fsi")
        else:
            where = os.fspath(path)
        if self._remote is not None and (path is None or is_remote(where)):
            raise FastshardError(
                f"the index of a remote shard needs a local path: give one to "
                f"save_index of {self.path}"
            )
        with self.file() as file:
            if (file.nbytes, identify_file(file)) != self._identity:
                raise StaleIndexError("written to after it was opened", shard, 0)
            save_index(
                self._contents,
                file,
                where,
                format,
                grouping=self._grouping,
                hashes=self._compute_hashes(file, progress) if hashes else None,
                progress=progress,
            )
        return where

    def _compute_hashes(
        self, file: LocalFile | RemoteFile, progress: Progress | None
    ) -> Hashes:
        from fastshard.index.checksums import compute_hashes

        if not isinstance(file, LocalFile):
            raise FastshardError(
                f"hashes=True needs a local shard, got {self.path}: download it first"
            )
        return compute_hashes(file, self._contents.table, progress)

    def __copy__(self) -> TarShard:
        """Return another handle on the same mapping, for another thread."""
        return self.with_source(self.parts()[0])

    def with_source(self, source: Source) -> TarShard:
        """Return a handle that reads the same bytes from another source.

        Parameters
        ----------
        source : Source
            As the first of `parts`.

        Raises
        ------
        ClosedError
            The shard is closed.

        Examples
        --------
        >>> source, _ = shard.parts()
        >>> shard.with_source(source)[2] == shard[2]
        True
        """
        return TarShard(
            source,
            self.parts()[1],
            self.path,
            self.mode,
            location=self._location,
            index=self._index,
            contents=self._contents,
            grouping=self._grouping,
            identity=self._identity,
            options=self._options,
            remote=self._remote,
        )

    def file(self) -> LocalFile | RemoteFile:
        """Open the shard's file alone, without its members.

        Returns
        -------
        LocalFile or RemoteFile
            Close it, or use it in a ``with`` statement.

        Raises
        ------
        OSError
            The file cannot be opened.

        Examples
        --------
        >>> with shard.file() as file:
        ...     file.nbytes == shard.nbytes
        True
        """
        return self._remote or LocalFile(self._location)

    def __reduce__(self) -> tuple[Any, ...]:
        self.parts()  # raises ClosedError
        options = self._options._asdict()
        del options["index_source"]
        return _reopen, ({"path": self._location, "index": self._index, **options},)


def _reopen(options: dict[str, Any]) -> TarShard:
    """Open a pickled shard."""
    others = {name: options[name] for name in options.keys() - {"path", "index"}}
    return open_tar(options["path"], TarOptions(options["index"], **others))


def open_shard(
    path: str | os.PathLike[str],
    *,
    index: str | os.PathLike[str] = "auto",
    mode: Mode = "mmap",
    key: KeyRule = "first",
    lower: bool = True,
    prefetch: bool = True,
    check_size: bool = False,
    **remote: Unpack[RemoteOptions],
) -> TarShard:
    """Open a tar shard: find its members, and map it if it is local.

    Parameters
    ----------
    path : str or path-like
        An uncompressed tar file (v7, ustar, GNU or pax), ``"train-0000.tar"``, whose
        links read as the members that they lead to; or the
        URL of one, as for `fastshard.open`: ``"https://host/train-0000.tar"``.
    index : "auto", "none", "rebuild" or path-like, default "auto"
        Where to find the members.

        - ``"auto"``: use a fresh index beside the shard: ``.fsi``, else ``.json``.
          Ignore a stale or damaged one with a `StaleIndexWarning`. Without an index,
          scan the headers.
        - ``"none"``: scan the headers, and look for no index.
        - ``"rebuild"``: scan the headers, and write an ``.fsi`` beside the shard.
        - a path: use that index (``.fsi``, ``.json``, ``.idx``, ``.tar.idx``), which
          must be fresh; or look for one in that directory.
    mode : {"mmap", "private", "pread"}, default "mmap"
        How to read the file.

        - ``"mmap"``: mapped and read-only, without copies. No other process may
          truncate the file: access beyond its new end kills this process (SIGBUS).
        - ``"private"``: mapped copy-on-write: views and arrays are writable, and the
          file never changes. Needed by in-place operations of NumPy and torch.
        - ``"pread"``: not mapped: each view is a copy, and a file that was written to
          raises a `FormatError`, unless bytes were only appended. Keeps the file's
          descriptor open while the process has enough of them. Where the file system
          maps no files, ``"mmap"`` is ``"pread"``.
    key : {"first", "last"}, default "first"
        The dot of a name's last part at which the sample's key ends:
        ``"a.seg.png"`` is field ``seg.png`` of ``a``, or with ``"last"`` field
        ``png`` of ``a.seg``.
    lower : bool, default True
        Lower-case the fields of samples, as WebDataset does.
    prefetch : bool, default True
        Read a member that is not in memory, without the GIL, before a view of it is
        returned; of a large member the first 16 MiB.
    check_size : bool, default False
        For a mapped file: raise a `FormatError` at each read once the file has become
        shorter. Keeps a descriptor while the process has enough of them.
    **remote
        Options for URLs, see `RemoteOptions`, of which `cache_dir` is for local files
        too. `mode` and `check_size` are for local files without a `cache_dir`.

    Returns
    -------
    TarShard
        A sequence of views by position or name, with ``samples``, ``names``,
        ``offsets``, ``sizes``. Close it, or use it in a ``with`` statement.

    Raises
    ------
    FormatError
        The file is not a tar, is truncated, damaged or compressed, is a directory or
        a device, or has members that are not stored contiguously (sparse,
        multi-volume, incremental); the error names the byte. Or `index` names a
        damaged index.
    StaleIndexError
        `index` names an index of another shard, or of an earlier state of this one.
    OSError
        The file cannot be opened, read or mapped.
    RemoteError
        The URL cannot be read.
    ValueError, TypeError
        An option has an unknown value, or is unknown.

    Examples
    --------
    >>> import fastshard
    >>> with fastshard.open_shard("data/train-0000.tar") as shard:
    ...     len(shard), shard.names[2]
    ...     bytes(shard[2]), bytes(shard["000000.txt"])  # by position, by name
    ...     shard.array("000001.npy")                    # no copy
    ...     shard.samples["000002"].json("json")
    (100, '000000.txt')
    (b'text 0', b'text 0')
    array([1., 1., 1., 1.], dtype=float32)
    {'size': 4}
    """
    if remote:
        known = (*(open_shard.__kwdefaults__ or ()), *RemoteOptions.__optional_keys__)
        check_names("open_shard", remote, known)
    name = os.fspath(path)
    location = parse_path_or_url(name) if isinstance(name, str) else path
    settings: Settings | None
    if isinstance(location, Url):
        from fastshard.remote.options import make_settings

        settings = make_settings(remote, [location])
    else:
        settings = copy_settings(remote)
        if settings is not None:
            location = os.path.abspath(location)
    check_modes(mode, check_size=check_size, remote=settings)
    where = os.fspath(index)
    if where == "rebuild" and settings is not None and settings.client is not None:
        open_tar(location, TarOptions(where, key=key, lower=lower)).close()
        where = "auto"
    options = TarOptions(where, mode, key, lower, prefetch, check_size, settings)
    try:
        shard = open_tar(location, options)
    except RemoteShardNotFoundError:
        raise
    except ShardNotFoundError as error:
        reason = error.reason + suggest_path(error.path or "")
        raise ShardNotFoundError(reason, error.path) from None
    warn_unread(shard, 2)
    return shard


def warn_unread(
    shard: TarShard, stacklevel: int, warned: Iterator[int] | None = None
) -> None:
    """Warn of links that lead to no member, and of lone zeros.

    `warned` counts the warnings of a dataset, which has one: an ``itertools.count``.
    """
    text = shard._contents.describe_unread()
    if text and not (warned and next(warned)):
        text = f"{shard.path}: {text}"
        warnings.warn(text, UnreadEntryWarning, stacklevel=stacklevel + 1)


def check_record(shard: TarShard, view: DatasetIndexView, k: int) -> None:
    """Raise StaleIndexError unless a dataset index has an open shard as its `k`."""
    table, fingerprint = shard.parts()[1], shard.fingerprint
    nbytes, identity = shard._identity
    found = nbytes, len(shard.samples), len(table)
    record = view.record(k)
    same = found == (record.shard_bytes, record.samples, record.members)
    if same and not is_same_file(record.identity, identity):
        if fingerprint is None:
            with shard.file() as file:
                fingerprint = compute_fingerprint(file, table)
        same = fingerprint == record.fingerprint
    if not same:
        raise StaleIndexError(
            f"{shard.path} was written to after the index was made; "
            "rebuild it with: fastshard index",
            view.path,
            0,
        )


def copy_settings(options: RemoteOptions) -> Settings | None:
    """Return the settings to read local files through a cache; None without one."""
    check_local(options)
    if not options.get("cache_dir"):
        return None
    from fastshard.remote.cache.copies import CopySettings

    return CopySettings(options)


def check_modes(mode: str, *, check_size: bool, remote: Settings | None) -> None:
    """Check ``mode`` and ``check_size`` for shards that are not mapped local files."""
    check_choice("mode", mode, ("mmap", "private", "pread"))
    if remote is None or (mode == "mmap" and not check_size):
        return
    from fastshard.remote.cache.copies import CopySettings

    if remote.client is not None and not isinstance(remote, CopySettings):
        return  # blobs, and some sources, are files
    given = "check_size=True" if mode == "mmap" else f'mode="{mode}"'
    raise ValueError(
        f"{given} does nothing for URLs, nor for files behind cache_dir=: leave it out"
    )


def open_tar(
    path: str | os.PathLike[str] | Url,
    options: TarOptions = DEFAULTS,
    *,
    progress: Progress | None = None,
    ring: PageRing | None = None,
    warn: Warn = warn_ignored_index,
) -> TarShard:
    """Open a tar shard, local or remote, after checking its options."""
    check_choice("mode", options.mode, ("mmap", "private", "pread"))
    check_choice("key", options.key, ("first", "last"))
    location = path
    if not isinstance(path, Url):
        name = os.fspath(path)
        if not isinstance(name, str):
            kind = type(path).__name__
            raise TypeError(f"path must be a str or os.PathLike[str], got {kind}")
        location = parse_path_or_url(name)
    check_index(options.index_source)
    is_client = options.remote is not None and options.remote.client is not None
    where = location if isinstance(location, Url) else os.fspath(location)
    if isinstance(where, Url) or is_client:
        return open_remote_tar(where, options, progress=progress, ring=ring, warn=warn)
    return open_local_tar(where, options, progress=progress, ring=ring, warn=warn)


def open_local_tar(
    name: str,
    options: TarOptions,
    *,
    progress: Progress | None = None,
    ring: PageRing | None = None,
    opening: Opening | None = None,
    warn: Warn = warn_ignored_index,
) -> TarShard:
    """Open a local tar shard; `options.remote` is for its index. See `open_tar`.

    `opening` checks its file before it is read. `warn` is called with the error of an
    ignored index.
    """
    mode = options.mode
    rule = {"last_dot": options.key == "last", "lower": options.lower}
    index: str | Url = options.index_source
    if isinstance(index, str) and index != "auto":
        index = parse_path_or_url(index)
    try:
        file = LocalFile(name)
    except FileNotFoundError:
        raise ShardNotFoundError(f"{name} does not exist", name) from None
    try:
        if opening is not None:
            opening.check(name, version_of(file))
        if isinstance(index, Url):
            found = _read_contents(index, file, rule, options.remote, warn)
        else:
            found = _find_contents(index, file, rule, mode == "pread", progress, warn)
        contents = found or _scan_contents(file, progress)
        grouping = contents.grouping or Grouping(contents.table, **rule)
        if index == "rebuild":
            path = sidecar_path(name, "fsi")
            save_index(contents, file, path, grouping=grouping)
        table = contents.table
        source = source_of(
            file,
            mode,
            prefetch=options.prefetch,
            check_size=options.check_size,
            ring=ring,
        )
        if isinstance(source, PreadSource):
            mode = "pread"  # perhaps the file system maps no files
            file.watch(lambda file: _has_only_grown(file, table))
    except BaseException:
        file.close()
        raise
    if mode != "pread":
        file.close()  # a mapping needs no descriptor
    return TarShard(
        source,
        contents.table,
        name,
        mode,
        location=os.path.abspath(name),  # a worker may have another directory
        index=_index_for_reopening(index),
        contents=contents,
        grouping=grouping,
        identity=(file.nbytes, identify_file(file)),
        options=options,
    )


def open_remote_tar(
    url: str | Url,
    options: TarOptions,
    *,
    progress: Progress | None = None,
    ring: PageRing | None = None,
    opening: Opening | None = None,
    warn: Warn = warn_ignored_index,
) -> TarShard:
    """Open a remote tar shard, which is read by ranges; see `open_tar`.

    A shard of which the cache holds all bytes is mapped. `mode`, `prefetch` and
    `check_size` are ignored. `opening` checks its version before it is read, `warn` is
    called with the error of an ignored index.
    """
    from fastshard.index.remote_sidecar import find_contents
    from fastshard.remote.file import open_remote
    from fastshard.remote.options import make_settings

    url = parse_url(url)
    settings = options.remote or make_settings({}, [url])
    index: str | Url = options.index_source
    if isinstance(index, str) and index not in ("auto", "none", "rebuild"):
        index = parse_path_or_url(index)
    try:
        file = open_remote(url, settings)
    except RemoteNotFoundError as error:
        raise RemoteShardNotFoundError.of(error) from error
    if opening is not None:
        opening.check(file.path, version_of(file))
    rule = {"last_dot": options.key == "last", "lower": options.lower}
    try:
        contents = find_contents(file, index, progress, warn=warn, **rule)
    except FormatError as error:
        if error.path != file.path or error.offset != 0:
            raise
        raise explain_fault(error, file.read(0, min(file.nbytes, HEAD))) from None
    identity = file.nbytes, identify_file(file)
    source = map_cached_file(file, ring) or RemoteSource(file)
    return TarShard(
        source,
        contents.table,
        file.path,
        "remote" if isinstance(source, RemoteSource) else "mmap",
        location=url.text,
        index=_index_for_reopening(index),
        contents=contents,
        grouping=contents.grouping or Grouping(contents.table, **rule),
        identity=identity,
        remote=file,
        options=options._replace(remote=settings),
    )


def map_cached_file(file: RemoteFile, ring: PageRing | None) -> MappedSource | None:
    """Map the cached copy of a remote shard, if it is complete."""
    if file.entry is None or not file.nbytes:
        return None
    try:
        with LocalFile(file.entry.path) as local:
            if local.nbytes != file.nbytes:
                return None
            mapped = MappedFile(local.fd, local.nbytes, file.path, ring=ring)
            if not file.entry.is_whole():  # last, so that it holds for the mapping
                return None
            identity = (local.device, local.inode, local.owner)
        return MappedSource(mapped, Residency(mapped, *identity, fd=-1))
    except (OSError, FormatError):
        return None


def _find_contents(
    index: str,
    file: LocalFile,
    rule: dict[str, bool],
    copied: bool,
    progress: Progress | None,
    warn: Warn,
) -> Contents | None:
    """Return the contents of a local shard from a local index, or None."""
    if index in ("none", "rebuild"):
        return None
    if index == "auto" or os.path.isdir(index):
        folder = None if index == "auto" else index
        return find_index(file, folder, copied=copied, warn=warn, **rule)
    return read_index(
        index,
        file,
        last_dot=rule["last_dot"],
        lower=rule["lower"],
        copied=copied,
        progress=progress,
    )


def _read_contents(
    url: Url,
    file: LocalFile,
    rule: dict[str, bool],
    settings: Settings | None,
    warn: Warn,
) -> Contents | None:
    """Return the contents of a local shard from a remote index.

    None if the URL is of a folder without a fresh index of the shard.
    """
    from fastshard.index.remote_sidecar import find_remote_index, read_remote_index
    from fastshard.remote.options import make_settings

    settings = settings or make_settings({}, [url])
    if is_folder(url):
        return find_remote_index(url, file, settings=settings, warn=warn, **rule)
    return read_remote_index(url, file, settings=settings, **rule)


def _scan_contents(file: LocalFile, progress: Progress | None) -> Contents:
    """Return the contents of a local shard from a scan of its headers."""
    if file.nbytes == 0:
        raise FormatError("an empty file is not a tar", file.path, 0)
    try:
        return Contents.of_scan(scan_tar(file, progress))
    except FormatError as error:
        if error.offset != 0:
            raise
        head = PreadSource(file).read(0, min(file.nbytes, HEAD))
        raise explain_fault(error, head) from None


def _index_for_reopening(index: str | Url) -> str:
    """Return the ``index=`` of a pickled shard, which builds no index again."""
    if isinstance(index, Url):
        return index.text
    if index == "rebuild":
        return "auto"
    return index if index in ("auto", "none") else os.path.abspath(index)


def _has_only_grown(file: LocalFile, table: ExtentTable) -> bool:
    """Return whether a longer file still has the members of a table."""
    return find_first_changed(file, table, spread_positions(len(table))) < 0
