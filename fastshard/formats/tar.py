"""Tar shards: opening them, and what is particular to tar."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack

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
from fastshard.errors import FastshardError, FormatError, StaleIndexError
from fastshard.formats.sample import Sample, Samples
from fastshard.index.contents import Contents, FileIdentity
from fastshard.index.freshness import (
    find_first_changed,
    identify_file,
    spread_positions,
)
from fastshard.index.sidecar import find_index, read_index, save_index, sidecar_path
from fastshard.remote.options import RemoteOptions, Settings, make_settings
from fastshard.remote.urls import Url, is_remote, parse_path_or_url, parse_url

if TYPE_CHECKING:
    from fastshard._core.io.page_ring import PageRing
    from fastshard._core.table.extents import ExtentTable
    from fastshard.index.freshness import Hashes
    from fastshard.remote.file import RemoteFile

__all__ = [
    "IndexFormat",
    "KeyRule",
    "Mode",
    "Progress",
    "TarShard",
    "open_local_tar",
    "open_remote_tar",
    "open_shard",
    "open_tar",
]

Mode = Literal["mmap", "private", "pread"]
ShardMode: TypeAlias = Mode | Literal["remote"]
KeyRule = Literal["first", "last"]
IndexFormat = Literal["fsi", "json", "idx", "tar.idx"]
Progress = Callable[[int], object]

COMPRESSED = {  # what a file that is no tar may begin with
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x04\x22\x4d\x18": "lz4",
}


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


class TarShard(Shard):
    """An open tar shard; see `fastshard.open_shard`.

    Attributes
    ----------
    index : str or None
        The index that was used; None where the headers were scanned.
    skipped : Mapping of str to int, or None
        How many of each kind the file stores that are no members: ``directory``,
        ``symbolic link``, ``hard link``, ``metadata`` and so on. None where the
        index does not say.
    end : int or None
        Where the archive ends, in bytes from the start of the file. What follows
        is padding, or another archive, which no reader of tars sees. None where
        the index does not say.
    """

    __slots__ = ("_contents", "_grouping", "_identity", "_options", "_remote")

    def __init__(
        self,
        source: Source,
        table: ExtentTable,
        path: str,
        mode: ShardMode,
        *,
        contents: Contents,
        grouping: Grouping,
        identity: tuple[int, FileIdentity],
        options: dict[str, Any],
        remote: RemoteFile | None = None,
    ) -> None:
        self._remote = remote
        self._contents = contents
        self._grouping = grouping
        self._identity = identity  # of the file: bytes, and what no copy keeps
        self._options = options

    @property
    def index(self) -> str | None:
        return self._contents.index

    @property
    def skipped(self) -> Mapping[str, int] | None:
        return self._contents.skipped

    @property
    def end(self) -> int | None:
        return self._contents.end

    @property
    def fingerprint(self) -> bytes | None:
        """Fingerprint of the shard, where its own index records one."""
        return self._contents.fingerprint

    @property
    def samples(self) -> Samples:
        """The members grouped into samples, by position or key.

        A key is a name up to the first dot of its last part, without a leading
        ``./``; the field is what follows, lower-cased. Names without a dot there,
        or whose last part begins with one, and those below ``__x__`` belong to no
        sample.
        """
        return Samples(self, self._grouping, Sample)

    def info(self, key: int | str) -> dict[str, Any]:
        """Return what the index says of a member beyond its extent.

        Captions, width and height, sha256, whatever its maker put there.

        Parameters
        ----------
        key : int or str
            Position or name.

        Returns
        -------
        dict
            Parsed anew each time; empty where there is nothing.

        Raises
        ------
        FormatError
            What the index has is no JSON object.
        MemberNotFoundError, IndexError, ClosedError
            As for ``shard[key]``.
        """
        from fastshard.index.jsonfile import parse_info

        table = self.parts()[1]
        i = self.position(key) if isinstance(key, str) else range(len(table))[key]
        text = table.info(i)
        try:
            return parse_info(text)
        except ValueError as error:
            path = self.index or self.path
            reason = f"its info is no JSON object: {error}"
            raise FormatError(reason, path, 0, table.name_of(i)) from error

    def save_index(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        format: IndexFormat | None = None,  # noqa: A002
        hashes: bool = False,
        progress: Progress | None = None,
    ) -> str:
        """Write an index of this shard; it appears whole.

        Parameters
        ----------
        path : str or path-like, optional
            Otherwise beside the shard, with the format's suffix.
        format : {"fsi", "json", "idx", "tar.idx"}, optional
            Otherwise what the suffix of `path` says; without a path, ``"fsi"``.
        hashes : bool
            Record checksums too, which reads the whole shard.
        progress : callable, optional
            Called for each MiB that is hashed, with how many of the shard's bytes
            are done.

        Returns
        -------
        str
            Where it was written.

        Raises
        ------
        StaleIndexError
            The shard was written to after it was opened.
        FastshardError
            The format cannot carry something that the shard has.
        ValueError
            There is no such format.
        OSError
            It cannot be written.
        """
        self.parts()  # a closed shard does not tell
        shard = self._options["path"]
        where = (
            sidecar_path(shard, format or "fsi") if path is None else os.fspath(path)
        )
        if self._remote is not None and (path is None or is_remote(where)):
            raise FastshardError(f"an index of {self.path} needs a path on this disk")
        with self.file() as file:
            if (file.nbytes, identify_file(file)) != self._identity:
                raise StaleIndexError("written to after it was opened", shard, 0)
            save_index(
                self._contents,
                file,
                where,
                format,
                grouping=self._grouping,
                hashes=self._hashes(file, progress) if hashes else None,
                progress=progress,
            )
        return where

    def _hashes(
        self, file: LocalFile | RemoteFile, progress: Progress | None
    ) -> Hashes:
        from fastshard.index.freshness import compute_hashes

        if not isinstance(file, LocalFile):
            raise FastshardError("checksums are made of local shards")
        return compute_hashes(file, self._contents.table, progress)

    def __copy__(self) -> TarShard:
        """Return another handle on the same mapping, for another thread."""
        return self.with_source(self.parts()[0])

    def with_source(self, source: Source) -> TarShard:
        """Return a handle that finds the same bytes in another source."""
        return TarShard(
            source,
            self.parts()[1],
            self.path,
            self.mode,
            contents=self._contents,
            grouping=self._grouping,
            identity=self._identity,
            options=self._options,
            remote=self._remote,
        )

    def file(self) -> LocalFile | RemoteFile:
        """Open the file that the shard is, without its members."""
        return self._remote or LocalFile(self._options["path"])

    def __reduce__(self) -> tuple[Any, ...]:
        self.parts()  # a closed shard does not pickle
        return _reopen, (self._options,)


def _reopen(options: dict[str, Any]) -> TarShard:
    return open_tar(**options)


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
    """Open a tar shard: find its members, and map it if it is on this machine.

    Parameters
    ----------
    path : str or path-like
        A tar file, not compressed: v7, ustar, GNU or pax; or the URL of one.
    index : {"auto", "none", "rebuild"} or path-like
        Where its members are listed.

        ``"auto"``
            A fresh index beside it is used: ``.fsi``, else ``.json``. A stale or
            broken one is passed over with a `StaleIndexWarning`. Without one the
            headers are scanned.
        ``"none"``
            The headers are scanned; no index is looked for.
        ``"rebuild"``
            The headers are scanned, and an ``.fsi`` is written beside it.
        a path
            That index (``.fsi``, ``.json``, ``.idx``, ``.tar.idx``), which must
            be fresh; or a directory to look for one in.
    mode : {"mmap", "private", "pread"}
        How its bytes are read.

        ``"mmap"``
            Mapped and read-only. Nothing is copied. No other process may
            truncate the file: touching what is gone kills this one (SIGBUS).
        ``"private"``
            Mapped copy-on-write: views and arrays are writable, and the file
            never changes. What in-place operations of NumPy and torch need.
        ``"pread"``
            Never mapped: each view is a copy of its own, and a file that was
            written to, but for what was appended, gives a `FormatError`. Keeps
            one descriptor open.
    key : {"first", "last"}
        At which dot of a name's last part a sample's key ends.
    lower : bool
        Lower-case the fields of samples, as WebDataset does.
    prefetch : bool
        Whether a member that is not in memory is brought, without the GIL, before a
        view of it is returned; of a large one the first 16 MiB.
    check_size : bool
        Where it is mapped: keep a descriptor, and raise a `FormatError` at every
        read after the file became shorter.
    **remote
        How a URL is read: see `RemoteOptions`. `mode`, `prefetch` and `check_size`
        are for files.

    Returns
    -------
    TarShard
        A sequence of views by position or name, with ``samples``, ``names``,
        ``offsets``, ``sizes``. Close it, or use it in a ``with`` statement.

    Raises
    ------
    FormatError
        The file is no tar, is cut or damaged, is compressed, is a directory or
        a device, or holds members that are not stored as they are (sparse,
        multi-volume, incremental). The error names the byte. Or an index that
        was named is broken.
    StaleIndexError
        An index that was named is of another shard, or of an earlier state.
    OSError
        The file cannot be opened, read or mapped.
    RemoteError
        A URL cannot be read.
    """
    known = (*(open_shard.__kwdefaults__ or ()), *RemoteOptions.__optional_keys__)
    check_names("open_shard", remote, known)
    name = os.fspath(path)
    place = parse_path_or_url(name) if isinstance(name, str) else path
    return open_tar(
        place,
        index=index,
        mode=mode,
        key=key,
        lower=lower,
        prefetch=prefetch,
        check_size=check_size,
        remote=make_settings(remote, [place]) if isinstance(place, Url) else None,
    )


def open_tar(
    path: str | os.PathLike[str] | Url,
    *,
    index: str | os.PathLike[str] = "auto",
    mode: Mode = "mmap",
    key: KeyRule = "first",
    lower: bool = True,
    prefetch: bool = True,
    check_size: bool = False,
    progress: Progress | None = None,
    remote: Settings | None = None,
    ring: PageRing | None = None,
) -> TarShard:
    """Open a tar shard; see `fastshard.open_shard`.

    Parameters
    ----------
    remote : Settings, optional
        How a URL is read, the shard's or its index's.
    """
    check_choice("mode", mode, ("mmap", "private", "pread"))
    check_choice("key", key, ("first", "last"))
    place = path
    if not isinstance(path, Url):
        name = os.fspath(path)
        if not isinstance(name, str):
            kind = type(path).__name__
            raise TypeError(f"a path is str or os.PathLike[str], not {kind}")
        place = parse_path_or_url(name)
    index = os.fspath(index)
    check_index(index)
    opening: Any = open_remote_tar if isinstance(place, Url) else open_local_tar
    shard: TarShard = opening(
        place,
        index=index,
        mode=mode,
        key=key,
        lower=lower,
        prefetch=prefetch,
        check_size=check_size,
        progress=progress,
        remote=remote,
        ring=ring,
    )
    return shard


def open_local_tar(
    name: str,
    *,
    index: str,
    mode: Mode,
    key: KeyRule,
    lower: bool,
    prefetch: bool,
    check_size: bool,
    progress: Progress | None = None,
    remote: Settings | None = None,
    ring: PageRing | None = None,
) -> TarShard:
    """Open a tar shard on this machine; `remote` is for its index alone."""
    rule = {"last_dot": key == "last", "lower": lower}
    place = index if index == "auto" else parse_path_or_url(index)
    file = LocalFile(name)
    try:
        if isinstance(place, Url):
            contents = _contents_from(place, file, rule, remote)
        else:
            contents = _contents_of(file, index, rule, mode == "pread", progress)
        grouping = contents.grouping or Grouping(contents.table, **rule)
        if index == "rebuild":
            save_index(contents, file, sidecar_path(name, "fsi"), grouping=grouping)
        table = contents.table
        source = source_of(
            file, mode, prefetch=prefetch, check_size=check_size, ring=ring
        )
        if mode == "pread":
            file.watch(lambda file: _is_longer(file, table))
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
        contents=contents,
        grouping=grouping,
        identity=(file.nbytes, identify_file(file)),
        options={
            "path": os.path.abspath(name),  # a worker may start elsewhere
            "index": _index_again(place),
            "mode": mode,
            "key": key,
            "lower": lower,
            "prefetch": prefetch,
            "check_size": check_size,
            **({"remote": remote} if isinstance(place, Url) else {}),
        },
    )


def open_remote_tar(
    url: str | Url,
    *,
    index: str,
    mode: Mode,
    key: KeyRule,
    lower: bool,
    prefetch: bool,
    check_size: bool,
    progress: Progress | None = None,
    remote: Settings | None = None,
    ring: PageRing | None = None,
) -> TarShard:
    """Open a tar shard that is read by ranges.

    `mode`, `prefetch` and `check_size` are for files: a shard that is kept whole on
    this machine is mapped.
    """
    from fastshard.index.remote_sidecar import find_contents
    from fastshard.remote.file import open_remote

    rule = {"last_dot": key == "last", "lower": lower}
    url = parse_url(url)
    settings = remote or make_settings({}, [url])
    place = index if index in ("auto", "none", "rebuild") else parse_path_or_url(index)
    file = open_remote(url, settings)
    contents = find_contents(file, place, progress, **rule)
    source = _kept_whole(file, ring) or RemoteSource(file)
    return TarShard(
        source,
        contents.table,
        file.path,
        "remote" if isinstance(source, RemoteSource) else "mmap",
        contents=contents,
        grouping=contents.grouping or Grouping(contents.table, **rule),
        identity=(file.nbytes, identify_file(file)),
        remote=file,
        options={
            "path": url.text,
            "index": _index_again(place),
            "key": key,
            "lower": lower,
            "remote": settings,
        },
    )


def _kept_whole(file: RemoteFile, ring: PageRing | None) -> MappedSource | None:
    """Map what is kept of a remote shard, if that is all of it."""
    if file.entry is None or not file.nbytes:
        return None
    try:
        with LocalFile(file.entry.path) as local:
            if local.nbytes != file.nbytes:
                return None
            mapped = MappedFile(local.fd, local.nbytes, file.path, ring=ring)
            if not file.entry.is_whole():  # asked last: it is of what is mapped
                return None
            identity = (local.device, local.inode, local.owner)
        return MappedSource(mapped, Residency(mapped, *identity, fd=-1))
    except (OSError, FormatError):
        return None


def _contents_of(
    file: LocalFile,
    index: str,
    rule: dict[str, bool],
    copied: bool,
    progress: Progress | None,
) -> Contents:
    """Find out what a shard holds: from an index, or by a scan."""
    if index not in ("none", "rebuild"):
        if index == "auto" or os.path.isdir(index):
            folder = None if index == "auto" else index
            found = find_index(file, folder, copied=copied, **rule)
        else:
            found = read_index(
                index,
                file,
                last_dot=rule["last_dot"],
                lower=rule["lower"],
                copied=copied,
                progress=progress,
            )
        if found is not None:
            return found
    table, skipped, end = _scan(file, progress)
    return Contents(table, end=end, skipped=MappingProxyType(skipped))


def _contents_from(
    url: Url, file: LocalFile, rule: dict[str, bool], settings: Settings | None
) -> Contents:
    """Read the remote index of a shard that is here."""
    from fastshard.index.remote_sidecar import read_remote_index

    settings = settings or make_settings({}, [url])
    return read_remote_index(url, file, settings=settings, **rule)


def _index_again(place: str | Url) -> str:
    """Say which index a pickled shard opens with: none is built twice."""
    if isinstance(place, Url):
        return place.text
    if place == "rebuild":
        return "auto"
    return place if place in ("auto", "none") else os.path.abspath(place)


def _is_longer(file: LocalFile, table: ExtentTable) -> bool:
    """Say whether a shard that grew has its members where they were."""
    return find_first_changed(file, table, spread_positions(len(table))) < 0


def _scan(
    file: LocalFile, progress: Progress | None
) -> tuple[ExtentTable, dict[str, int], int]:
    if file.nbytes == 0:
        raise FormatError("an empty file is not a tar", file.path, 0)
    try:
        return scan_tar(file, progress)
    except FormatError as error:
        if error.offset == 0:
            _refuse_compressed(file)
        raise


def _refuse_compressed(file: LocalFile) -> None:
    head = PreadSource(file).read(0, min(file.nbytes, 8))
    for magic, name in COMPRESSED.items():
        if head.startswith(magic):
            raise FormatError(
                f"a file compressed with {name}: mapping needs it unpacked",
                file.path,
                0,
            )
