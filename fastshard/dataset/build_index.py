"""Builder of indexes: one for each shard, and one for the dataset."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Literal, NamedTuple, Unpack, cast

from fastshard._core.io.source import LocalFile
from fastshard._util.options import check_names
from fastshard._util.paths.globs import list_tars, natural_key
from fastshard._util.paths.remote_options import RemoteOptions, check_local
from fastshard._util.paths.urls import is_remote, is_url, join_url, redact, url_basename
from fastshard._util.processes.locks import hold_file
from fastshard._util.processes.temporaries import sweep
from fastshard._util.progress import byte_bar
from fastshard.dataset.paths.listing import Source, list_shards, parse_source
from fastshard.dataset.tarset import TarSet, common_root, shard_name
from fastshard.dataset.views import build_key_table
from fastshard.errors import (
    FastshardError,
    FormatError,
    RemoteNotFoundError,
    StaleIndexWarning,
)
from fastshard.formats.tar import (
    IndexFormat,
    KeyRule,
    Progress,
    TarOptions,
    open_tar,
    warn_unread,
)
from fastshard.index.binary import read_header
from fastshard.index.contents import NO_IDENTITY
from fastshard.index.dataset_file import (
    MAX_SAMPLES,
    NAME,
    DatasetIndex,
    ShardRecord,
    derive_seed,
    write_dataset_index,
)
from fastshard.index.freshness import identify_file, is_same_file
from fastshard.index.sidecar import FORMATS, read_index, sidecar_path
from fastshard.remote.file import RemoteFile, open_remote
from fastshard.remote.options import Settings

__all__ = ["DatasetFormat", "Part", "build_index", "merge_indexes", "parse_part"]

DatasetFormat = IndexFormat | Literal["wids"]
WIDS_NAME = "shardindex.json"
MAX_NAMES = 3  # in a message
POLL_INTERVAL = 0.1  # seconds between updates of the progress bar


class Part(NamedTuple):
    """The i-th of n parts of the shards, i from 0: every n-th shard."""

    i: int
    n: int


def parse_part(text: str) -> Part:
    """Parse ``i/n``."""
    i, slash, n = text.partition("/")
    if not (slash and i.isdecimal() and n.isdecimal() and int(i) < int(n)):
        raise ValueError(f"a part must be i/n with i from 0 to n - 1, got {text!r}")
    return Part(int(i), int(n))


class Job(NamedTuple):
    """The options of `build_index` that are the same for each shard."""

    root: str
    format: str
    out: str | None
    key: KeyRule
    hashes: bool
    again: bool
    remote: Settings | None = None

    @property
    def folder(self) -> str:
        """The directory of the dataset's index."""
        return self.out or self.root

    def path_of(self, name: str) -> str:
        """Return the path or URL of a shard, from its name below the root."""
        if self.remote is None:
            return os.path.join(self.root, name)
        return join_url(self.root, name)

    def index_path(self, shard: str) -> str:
        """Return the path of a shard's index."""
        if self.out is None:
            return sidecar_path(shard, self.format)
        below = shard_name(shard, self.root).rpartition("/")[0]
        name = shard if self.remote is None else url_basename(shard)
        folder = os.path.normpath(os.path.join(self.out, below))
        return sidecar_path(name, self.format, folder)


def build_index(
    source: Source,
    *,
    format: DatasetFormat = "fsi",  # noqa: A002
    out: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    hashes: bool = False,
    part: Part | str | None = None,
    key: KeyRule = "first",
    again: bool = False,
    **remote: Unpack[RemoteOptions],
) -> list[str]:
    """Make an index for each shard of a dataset, and ``dataset.fsi`` for all.

    Shards with a fresh index are skipped, so that a stopped run can be resumed. Shows
    a progress bar on a terminal, in bytes. An interrupt takes effect within a moment,
    also inside a large shard.

    The ``dataset.fsi`` of a directory always has all of its shards. If some are
    indexed, their entries are renewed or added, and the others stay. If one of the
    others has no fresh index, the file is left as it is, or not made, with a
    `StaleIndexWarning`. Processes may index shards of one directory at the same time.

    Parameters
    ----------
    source : str, path-like or sequence
        Shards, as for `fastshard.open`: a directory, a glob, a brace list, a list of
        paths, or URLs.
    format : {"fsi", "json", "idx", "tar.idx", "wids"}, default "fsi"
        ``"fsi"``: fastshard's own binary format. ``"json"``: webshart's. ``"idx"``:
        DALI's. ``"tar.idx"``: Energon's. ``"wids"``: one file for all shards,
        ``shardindex.json``. Only ``"fsi"`` makes a ``dataset.fsi``.
    out : path-like, optional
        Directory of the indexes, laid out as the shards are below their common
        directory; by default indexes are beside their shards.
    threads : int, optional
        Shards to scan at a time; by default one for each processor.
    hashes : bool, default False
        Record the SHA-256 of members, which ``verify --hash`` compares; reads all
        bytes.
    part : (i, n) or "i/n", optional
        Index every n-th shard from shard i on, and leave ``dataset.fsi`` to
        `merge_indexes`: for n machines or processes at a time.
    key : {"first", "last"}, default "first"
        The key rule to record, as for `fastshard.open`.
    again : bool, default False
        Replace fresh indexes too.
    **remote
        How URLs are read, see `RemoteOptions`; remote shards need `out`.

    Returns
    -------
    list of str
        Paths of the indexes, made or fresh; ``dataset.fsi`` last, if it was made.

    Raises
    ------
    FormatError
        A shard is damaged, or has nothing but links that lead to no member.
    FastshardError
        The format cannot represent something that a shard has.
    OSError
        A shard cannot be read, or an index cannot be written: see `out`.
    ValueError
        `format` or `part` is another value.

    Examples
    --------
    >>> import fastshard
    >>> fastshard.build_index("data/")
    ['data/train-0000.fsi', ..., 'data/train-0003.fsi', '.../data/dataset.fsi']
    >>> fastshard.build_index("data/train-0000.tar", format="json", out="indexes")
    ['indexes/train-0000.json']
    """
    if format != "wids" and format not in FORMATS:
        expected = ", ".join((*FORMATS, "wids"))
        raise ValueError(f"format must be one of {expected}, got {format!r}")
    _check_options("build_index", build_index, remote)
    folder = None if out is None else os.fspath(out)
    paths, settings = _list_shards(source, folder, remote)
    job = Job(common_root(paths), format, folder, key, hashes, again, settings)
    if format == "wids":
        return [_write_wids(job, paths)]
    is_whole = part is None
    if isinstance(part, str):
        part = parse_part(part)
    if part is not None:
        paths = paths[part[0] :: part[1]]
    for where in {os.path.dirname(job.index_path(path)) for path in paths}:
        if folder is not None:
            os.makedirs(where or ".", exist_ok=True)
        sweep(where or ".")
    warned = count()  # of entries that are not read
    made = _build_all(job, paths, threads, warned)
    if format == "fsi" and is_whole:
        path, reason = _write_dataset_index(job, paths, warned)
        above, others = _renew_above(job, paths, warned)
        made += [path] * (reason is None) + above
        for text in filter(None, (reason, *others)):
            warnings.warn(text, StaleIndexWarning, stacklevel=2)
    return made


def _check_options(
    call: str, function: Callable[..., object], options: Mapping[str, object]
) -> None:
    """Raise TypeError for an unknown option, or one that indexes do not depend on."""
    for name in ("lower", "mode", "decoders", "index"):
        if name in options:
            raise TypeError(
                f"{call}() has no argument {name}=: an index holds names and extents "
                "as they are stored; give it to fastshard.open"
            )
    names = *(function.__kwdefaults__ or ()), *RemoteOptions.__optional_keys__
    check_names(call, options, names)


def _list_shards(
    source: Source, folder: str | None, remote: RemoteOptions
) -> tuple[list[str], Settings | None]:
    """Return the shards, and the settings for reading remote ones or None."""
    if folder is not None and is_remote(folder):
        raise FastshardError(f"indexes need a local directory, got {redact(folder)}")
    location = parse_source(source)
    if location.is_local:
        check_local(remote, caches=False)  # raises before shards are listed
    settings = location.settings(remote)
    listing = list_shards(location, remote=settings)
    if not listing.is_remote:
        check_local(remote, caches=False)
        return listing.paths, None
    if folder is None:
        raise FastshardError("indexes of remote shards need a directory: out=, --out")
    return listing.paths, settings


class _StoppedError(Exception):
    """The scan was stopped: another shard failed, or the user interrupted."""


class _ScanProgress:
    """Bytes done of each shard, and the signal that stops all scans.

    `warned` counts warnings of unread entries, of which only one is given. Each thread
    writes to its own item of `done`, without a lock.
    """

    def __init__(self, sizes: list[int], warned: Iterator[int]) -> None:
        self.sizes = sizes
        self.done = [0] * len(sizes)
        self.is_stopped = False
        self.warned = warned

    def callback(self, k: int, *, counts: bool) -> Progress:
        """Return the progress callback for a pass over shard `k`.

        Of several passes over a shard only the longest counts.
        """

        def report(done: int) -> None:
            if self.is_stopped:
                raise _StoppedError
            if counts:
                self.done[k] = done

        return report


def _build_all(
    job: Job, paths: Sequence[str], threads: int | None, warned: Iterator[int]
) -> list[str]:
    """Make the indexes in threads; the first error stops all scans."""
    from concurrent.futures import ThreadPoolExecutor, wait

    is_local = job.remote is None
    sizes = [os.path.getsize(p) if is_local else 0 for p in paths]
    progress = _ScanProgress(sizes, warned)
    total = sum(progress.sizes) if is_local else None
    with (
        byte_bar(total, "indexing") as bar,
        ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool,
    ):
        updated = time.monotonic()
        try:
            futures = [
                pool.submit(_build_one, job, path, progress, k)
                for k, path in enumerate(paths)
            ]
            for future in futures:
                while not wait([future], POLL_INTERVAL).done:
                    bar.update(sum(progress.done) - bar.n)
                future.result()
                if time.monotonic() - updated > POLL_INTERVAL:
                    bar.update(sum(progress.done) - bar.n)
                    updated = time.monotonic()
            return [future.result() for future in futures]
        except BaseException:
            progress.is_stopped = True
            pool.shutdown(cancel_futures=True)
            raise


def _build_one(job: Job, shard: str, progress: _ScanProgress, k: int) -> str:
    """Make the index of a shard, unless it has a fresh one; return its path."""
    path = job.index_path(shard)
    if not job.again and _is_fresh(
        job, shard, path, progress.callback(k, counts=False)
    ):
        progress.done[k] = progress.sizes[k]
        return path
    with open_tar(
        shard,
        TarOptions("none", key=job.key, remote=job.remote),
        progress=progress.callback(k, counts=not job.hashes),
    ) as opened:
        if opened.unread_links and not len(opened):
            reason = "has links alone, which lead to no member: make it with tar -h"
            raise FormatError(reason, shard, 0)
        warn_unread(opened, 2, progress.warned)
        try:
            opened.save_index(
                path,
                format=cast(IndexFormat, job.format),
                hashes=job.hashes,
                progress=progress.callback(k, counts=job.hashes),
            )
        except PermissionError as error:
            error.add_note("give another directory for indexes: out=, --out")
            raise
    progress.done[k] = progress.sizes[k] or progress.done[k]
    return path


def _is_fresh(job: Job, shard: str, path: str, progress: Progress) -> bool:
    """Return whether a shard has an index that `build_index` would write again."""
    if not os.path.exists(path):
        return False
    last_dot = job.key == "last"
    try:
        header = read_header(path) if job.format == "fsi" else None
        if header and (header.last_dot != last_dot or header.version == 1):
            return False
        with _open_file(job, shard) as file:
            is_same = header is None or is_same_file(
                header.identity, identify_file(file)
            )
            if isinstance(file, LocalFile) and not is_same:
                return False  # of a copy: a new index has its own identity
            contents = read_index(
                path, file, last_dot=last_dot, lower=True, progress=progress
            )
    except FormatError:
        return False
    if job.hashes and len(contents.table):
        return b'"sha256"' in contents.table.info(0)
    return True


def _open_file(job: Job, shard: str) -> LocalFile | RemoteFile:
    return LocalFile(shard) if job.remote is None else open_remote(shard, job.remote)


def _write_wids(job: Job, paths: Sequence[str]) -> str:
    """Write the wids index of local shards; return its path."""
    from fastshard.index.wids import write_wids

    if job.remote is not None:
        raise FastshardError("format wids needs local shards: download them first")
    path = os.path.join(job.folder, WIDS_NAME)
    os.makedirs(job.folder, exist_ok=True)
    with _lock_index(path):
        paths, gone = _join_wids(path, paths)
        root = common_root(paths)
        shards = TarSet(
            paths, index="auto", root=root, mode="mmap", key=job.key, lower=True
        )
        counts = (count.samples for count in shards.counts())
        write_wids(path, list(zip(paths, counts, strict=True)))
    _warn_dropped(path, gone)
    return path


def _join_wids(path: str, paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Merge the shards with those of a wids list; return them and the missing ones."""
    from fastshard.index.wids import read_wids

    try:
        known = [shard.url for shard in read_wids(path)]
    except (FileNotFoundError, FormatError):
        known = []
    listed = {os.path.realpath(shard): os.path.abspath(shard) for shard in paths}
    others = {shard for shard in known if os.path.realpath(shard) not in listed}
    if any(map(is_url, others)):
        raise FastshardError(f"{path} lists remote shards: remove it, or give out=")
    gone = sorted(shard for shard in others if not os.path.isfile(shard))
    if not others.difference(gone):
        return list(paths), gone
    return _join_names(known, [*listed.values(), *others.difference(gone)]), gone


@contextmanager
def _lock_index(path: str) -> Iterator[None]:
    """Hold the lock of the dataset's indexes."""
    folder, name = os.path.split(path)
    with hold_file(os.path.join(folder, f".{name}.lock")):
        yield


def _warn_dropped(path: str, names: Sequence[str]) -> None:
    """Warn of shards that an index of the dataset listed before."""
    if names:
        verb = "shard that does" if len(names) == 1 else "shards that do"
        text = (
            f"{path} no longer lists {len(names):,} {verb} not exist: "
            + ", ".join(map(redact, names[:MAX_NAMES]))
            + ", ..." * (len(names) > MAX_NAMES)
        )
        warnings.warn(text, StaleIndexWarning, stacklevel=4)


def merge_indexes(
    source: Source,
    *,
    out: str | os.PathLike[str] | None = None,
    key: KeyRule = "first",
    **remote: Unpack[RemoteOptions],
) -> str:
    """Make ``dataset.fsi`` from the shards' own indexes.

    It gives sample counts and keys without opening shards. `build_index` makes it too,
    unless it indexes a part of the shards. Further shards of the directory are listed
    too, as by `build_index`.

    Parameters
    ----------
    source, out, key, **remote
        As for `build_index`.

    Returns
    -------
    str
        The path of the ``dataset.fsi``.

    Raises
    ------
    FastshardError
        A shard, or another one of the directory, has no index, or one of another key
        rule.
    StaleIndexError
        A shard changed after its index was made.

    Examples
    --------
    >>> import fastshard
    >>> for part in ("0/2", "1/2"):  # on two machines
    ...     fastshard.build_index("data/", part=part)
    ['data/train-0000.fsi', 'data/train-0002.fsi']
    ['data/train-0001.fsi', 'data/train-0003.fsi']
    >>> fastshard.merge_indexes("data/")
    '.../data/dataset.fsi'
    """
    _check_options("merge_indexes", merge_indexes, remote)
    folder = None if out is None else os.fspath(out)
    paths, settings = _list_shards(source, folder, remote)
    job = Job(common_root(paths), "fsi", folder, key, False, False, settings)
    path, reason = _write_dataset_index(job, paths, count())
    if reason is not None:
        raise FastshardError(reason)
    return path


def _write_dataset_index(
    job: Job, paths: Sequence[str], warned: Iterator[int]
) -> tuple[str, str | None]:
    """Write ``dataset.fsi`` for shards, and for the others of their directory.

    Return its path, and a reason if it was not written: another shard has no fresh
    index.
    """
    path = os.path.join(job.folder, NAME)
    for shard in paths:
        _require_index(job, shard)
    with _lock_index(path):
        shards = {shard_name(shard, job.root): shard for shard in paths}
        records = {name: _make_record(job, shards[name]) for name in shards}
        known = _list_known(path)
        others, gone = _find_others(job, shards, known)
        try:
            gone += _add_records(job, records, others)
        except (FastshardError, OSError) as error:
            state = "left as it is" if os.path.exists(path) else "not made"
            return path, (
                f"{path} was {state}, for it has to list all shards of its directory: "
                f"{error}; index them all: fastshard index {redact(job.root)}"
            )
        names = _join_names(known, list(records)) if others else list(records)
        paths = [shards.get(name) or job.path_of(name) for name in names]
        listed = [records[name] for name in names]
        _write_records(job, path, paths, listed, warned)
    _warn_dropped(path, gone)
    return path, None


def _renew_above(
    job: Job, paths: Sequence[str], warned: Iterator[int]
) -> tuple[list[str], list[str]]:
    """Update the nearest parent ``dataset.fsi`` that lists some of the shards.

    Return its path, or the reason why it was not written.
    """
    root = job.root
    if job.remote is not None or job.out is not None:
        return [], []
    while root != (root := os.path.dirname(root)):
        names = {shard_name(path, root) for path in paths}
        above = os.path.join(root, NAME)
        try:
            if not names.isdisjoint(_list_known(above)):
                whole = job._replace(root=root)
                path, reason = _write_dataset_index(whole, paths, warned)
                return ([path], []) if reason is None else ([], [reason])
        except PermissionError as error:
            return [], [f"{above} was left as it is: {error}"]
    return [], []


def _write_records(
    job: Job,
    path: str,
    paths: Sequence[str],
    records: Sequence[ShardRecord],
    warned: Iterator[int],
) -> None:
    """Write ``dataset.fsi`` with the keys of the shards, unless they are too many."""
    shards = TarSet(
        paths,
        index=job.out or "auto",
        root=job.root,
        mode="mmap",
        key=job.key,
        lower=True,
        remote=job.remote,
    )
    shards.warned = warned
    seed = derive_seed(b"".join(record.fingerprint for record in records))
    rows = None
    if sum(record.samples for record in records) <= MAX_SAMPLES:
        rows = build_key_table(shards, seed)
    last_dot = job.key == "last"
    write_dataset_index(path, records, last_dot=last_dot, seed=seed, rows=rows)


def _list_known(path: str) -> list[str]:
    """Return the names of the shards in a ``dataset.fsi``; none if it is damaged."""
    try:
        return [shard.name for shard in DatasetIndex(path, copied=True).shards]
    except (FileNotFoundError, FormatError):
        return []


def _find_others(
    job: Job, names: Collection[str], known: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the directory's other shards, and those listed before that are missing.

    Of remote shards, the others are those that were listed before.
    """
    listed = [name for name in known if name not in names]
    if job.remote is not None:
        return listed, []
    gone = [name for name in listed if not os.path.isfile(job.path_of(name))]
    others = set(listed) - set(gone)
    for folder in {"", *(name.rpartition("/")[0] for name in names)}:
        with suppress(PermissionError):
            found = list_tars(job.path_of(folder), dangling="skip")
            others |= {shard_name(path, job.root) for path in found}
    return sorted(others.difference(names), key=natural_key), gone


def _add_records(
    job: Job, records: dict[str, ShardRecord], others: Sequence[str]
) -> list[str]:
    """Add the records of other shards; return the names of missing remote ones."""
    gone = []
    for name in others:
        _require_index(job, job.path_of(name))
    for name in others:
        try:
            records[name] = _make_record(job, job.path_of(name))
        except RemoteNotFoundError:
            gone.append(name)
    return gone


def _join_names(known: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return names in an index's order, new ones last or in natural order."""
    ordered = sorted(names, key=natural_key)
    listed = set(names)
    kept = [name for name in known if name in listed]
    if kept == sorted(kept, key=natural_key):
        return ordered
    return list(dict.fromkeys([*kept, *ordered]))


def _require_index(job: Job, shard: str) -> str:
    """Return the path of a shard's index; raise FastshardError without one."""
    path = job.index_path(shard)
    if not os.path.exists(path):
        raise FastshardError(f"{redact(shard)} has no index {path}")
    return path


def _make_record(job: Job, shard: str) -> ShardRecord:
    """Return the record of a shard in ``dataset.fsi``, from its checked index."""
    path = _require_index(job, shard)
    last_dot = job.key == "last"
    header = read_header(path)
    if header.last_dot != last_dot:
        found = "last" if header.last_dot else "first"
        raise FastshardError(f'{path} must have key="{job.key}", got key="{found}"')
    with _open_file(job, shard) as file:
        table = read_index(path, file, last_dot=last_dot, lower=True).table
        identity = identify_file(file)
    if not is_same_file(header.identity, identity):  # fresh by the shard's headers
        identity = NO_IDENTITY._replace(mtime_ns=identity.mtime_ns)
    return ShardRecord(
        name=shard_name(shard, job.root),
        shard_bytes=header.shard_bytes,
        identity=identity,
        fingerprint=header.fingerprint,
        samples=header.samples,
        members=header.members,
        data_bytes=table.data_bytes,
    )
