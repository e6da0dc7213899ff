"""Making the indexes of many shards, and the one of their dataset."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple, Unpack

from fastshard._core.io.source import LocalFile
from fastshard._util.progress import byte_bar
from fastshard.dataset.listing import Source, list_shards, parse_source
from fastshard.dataset.tarset import TarSet, common_root
from fastshard.dataset.views import build_key_table
from fastshard.errors import FastshardError, FormatError
from fastshard.formats.tar import IndexFormat, KeyRule, Progress, TarOptions, open_tar
from fastshard.index.binary import read_header
from fastshard.index.contents import NO_IDENTITY
from fastshard.index.dataset_file import (
    MOST_SAMPLES,
    NAME,
    ShardRecord,
    derive_seed,
    write_dataset_index,
)
from fastshard.index.freshness import identify_file, is_same_file
from fastshard.index.sidecar import FORMATS, read_index, sidecar_path
from fastshard.remote.file import RemoteFile, open_remote
from fastshard.remote.options import RemoteOptions, Settings
from fastshard.remote.urls import is_remote, redact, relative_path, url_basename

__all__ = ["DatasetFormat", "Part", "build_index", "merge_indexes", "parse_part"]

DatasetFormat = IndexFormat | Literal["wids"]
WIDS_NAME = "shardindex.json"
POLL = 0.1  # seconds between looks at what is done


class Part(NamedTuple):
    """Which of the shards to do: the i-th of n parts, i from 0."""

    i: int
    n: int


def parse_part(text: str) -> Part:
    """Read ``i/n``.

    Raises
    ------
    ValueError
        It is not of that form, or `i` is not from 0 to n - 1.
    """
    i, slash, n = text.partition("/")
    if not (slash and i.isdecimal() and n.isdecimal() and int(i) < int(n)):
        raise ValueError(f"a part is i/n with i from 0 to n - 1, not {text!r}")
    return Part(int(i), int(n))


class Job(NamedTuple):
    """What `build_index` was asked for, the same for each shard."""

    root: str
    format: str
    out: str | None
    key: KeyRule
    hashes: bool
    again: bool
    remote: Settings | None = None

    def path(self, shard: str) -> str:
        """Return where the index of a shard goes."""
        if self.remote is not None:
            below = os.path.dirname(relative_path(shard, self.root))
            folder = os.path.normpath(os.path.join(self.out or ".", below))
            return sidecar_path(url_basename(shard), self.format, folder)
        if self.out is None:
            return sidecar_path(shard, self.format)
        below = os.path.relpath(os.path.dirname(os.path.abspath(shard)), self.root)
        return sidecar_path(
            shard, self.format, os.path.normpath(os.path.join(self.out, below))
        )


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

    Shards whose index is fresh are passed over, so that a run that was stopped
    goes on where it was. Shows its progress on a terminal, by bytes. An interrupt
    ends it within a moment, also inside a large shard.

    Parameters
    ----------
    source : str, path-like or sequence
        As for `fastshard.open`.
    format : {"fsi", "json", "idx", "tar.idx", "wids"}
        ``"wids"`` is one file for all shards, ``shardindex.json``. ``"fsi"``
        alone makes a ``dataset.fsi``.
    out : path-like, optional
        Where indexes go, as the shards lie below their common directory;
        otherwise beside them.
    threads : int, optional
        How many scan at a time; otherwise one for each processor.
    hashes : bool
        Record checksums, for which all bytes are read.
    part : (i, n) or "i/n", optional
        Do every n-th shard from shard i on, and leave ``dataset.fsi`` to
        `merge_indexes`.
    key : {"first", "last"}
        The rule for keys that is recorded.
    again : bool
        Make indexes that are fresh too.
    **remote
        How URLs are read; their indexes need `out`.

    Returns
    -------
    list of str
        The indexes, made or found fresh; ``dataset.fsi`` last.

    Raises
    ------
    FormatError
        A shard is broken.
    FastshardError
        The format cannot carry something that a shard has.
    OSError
        A shard cannot be read or an index not be written: see `out`.
    """
    if format != "wids" and format not in FORMATS:
        raise ValueError(f"{format!r} is no format of an index")
    folder = None if out is None else os.fspath(out)
    paths, settings = _shards_of(source, folder, remote)
    if format == "wids":
        return [_write_wids(paths, folder, key, settings)]
    job = Job(common_root(paths), format, folder, key, hashes, again, settings)
    whole = part is None
    if isinstance(part, str):
        part = parse_part(part)
    if part is not None:
        paths = paths[part[0] :: part[1]]
    if folder is not None:
        for path in paths:
            os.makedirs(os.path.dirname(job.path(path)) or ".", exist_ok=True)
    made = _in_threads(job, paths, threads)
    if format == "fsi" and whole:
        made.append(merge_indexes(source, out=out, key=key, **remote))
    return made


def _shards_of(
    source: Source, folder: str | None, remote: RemoteOptions
) -> tuple[list[str], Settings | None]:
    """Return the shards, and how they are read if they are not here."""
    if folder is not None and is_remote(folder):
        raise FastshardError(f"{redact(folder)} is no directory on this disk")
    location = parse_source(source)
    settings = location.settings(remote)
    listing = list_shards(location, remote=settings)
    if not listing.is_remote:
        return listing.paths, None
    if folder is None:
        raise FastshardError("indexes of remote shards need a directory: out=, --out")
    return listing.paths, settings


class _StoppedError(Exception):
    """Another shard failed, or the user interrupted."""


class _Meter:
    """How many bytes of each shard are done; ends the work on all of them.

    Threads write to one place each, so that nothing is locked.
    """

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.done = [0] * len(sizes)
        self.stopped = False

    def of(self, k: int, *, counts: bool) -> Progress:
        """Return what is called with the bytes of shard `k` that are done.

        Of several walks over a shard one counts, the longest.
        """

        def show(done: int) -> None:
            if self.stopped:
                raise _StoppedError
            if counts:
                self.done[k] = done

        return show


def _in_threads(job: Job, paths: Sequence[str], threads: int | None) -> list[str]:
    """Make the indexes; an interrupt ends all work within a moment."""
    from concurrent.futures import ThreadPoolExecutor, wait

    local = job.remote is None
    meter = _Meter([os.path.getsize(path) if local else 0 for path in paths])
    with (
        byte_bar(sum(meter.sizes) if local else None, "indexing") as bar,
        ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool,
    ):
        shown = time.monotonic()
        try:
            futures = [
                pool.submit(_build, job, path, meter, k) for k, path in enumerate(paths)
            ]
            for future in futures:
                while not wait([future], POLL).done:
                    bar.update(sum(meter.done) - bar.n)
                future.result()
                if time.monotonic() - shown > POLL:
                    bar.update(sum(meter.done) - bar.n)
                    shown = time.monotonic()
            return [future.result() for future in futures]
        except BaseException:
            meter.stopped = True
            pool.shutdown(cancel_futures=True)
            raise


def _build(job: Job, shard: str, meter: _Meter, k: int) -> str:
    """Make the index of a shard, unless a fresh one is there."""
    where = job.path(shard)
    if not job.again and _is_fresh(job, shard, where, meter.of(k, counts=False)):
        meter.done[k] = meter.sizes[k]
        return where
    with open_tar(
        shard,
        TarOptions("none", key=job.key, remote=job.remote),
        progress=meter.of(k, counts=not job.hashes),
    ) as opened:
        try:
            opened.save_index(
                where,
                format=_format(job),
                hashes=job.hashes,
                progress=meter.of(k, counts=job.hashes),
            )
        except PermissionError as error:
            error.add_note("give another directory for indexes: out=, --out")
            raise
    meter.done[k] = meter.sizes[k] or meter.done[k]
    return where


def _format(job: Job) -> IndexFormat:
    kind: IndexFormat = job.format  # type: ignore[assignment]
    return kind


def _is_fresh(job: Job, shard: str, where: str, progress: Progress) -> bool:
    if not os.path.exists(where):
        return False
    last_dot = job.key == "last"
    try:
        header = read_header(where) if job.format == "fsi" else None
        if header and (header.last_dot != last_dot or header.version == 1):
            return False
        with _opened(job, shard) as file:
            known = header is None or is_same_file(header.identity, identify_file(file))
            if isinstance(file, LocalFile) and not known:  # a copy's is made anew
                return False
            contents = read_index(
                where, file, last_dot=last_dot, lower=True, progress=progress
            )
    except FormatError:
        return False
    if job.hashes and len(contents.table):
        return b'"sha256"' in contents.table.info(0)
    return True


def _opened(job: Job, shard: str) -> LocalFile | RemoteFile:
    return LocalFile(shard) if job.remote is None else open_remote(shard, job.remote)


def _write_wids(
    paths: Sequence[str], folder: str | None, key: KeyRule, remote: Settings | None
) -> str:
    from fastshard.index.wids import write_wids

    if remote is not None:
        raise FastshardError("an index in the format wids is made of local shards")
    root = common_root(paths)
    shards = TarSet(paths, index="auto", root=root, mode="mmap", key=key, lower=True)
    where = os.path.join(folder or root, WIDS_NAME)
    if folder is not None:
        os.makedirs(folder, exist_ok=True)
    counts = (count.samples for count in shards.counts())
    write_wids(where, list(zip(paths, counts, strict=True)))
    return where


def merge_indexes(
    source: Source,
    *,
    out: str | os.PathLike[str] | None = None,
    key: KeyRule = "first",
    **remote: Unpack[RemoteOptions],
) -> str:
    """Make ``dataset.fsi`` of the indexes that the shards have.

    Parameters
    ----------
    source, out, key, remote
        As for `build_index`.

    Returns
    -------
    str
        Its path.

    Raises
    ------
    FastshardError
        A shard has no index, or one made by another rule for keys.
    StaleIndexError
        A shard was written to after its index was made.
    """
    folder = None if out is None else os.fspath(out)
    paths, settings = _shards_of(source, folder, remote)
    root = common_root(paths)
    job = Job(root, "fsi", folder, key, False, False, settings)
    facts = [_facts(job, path) for path in paths]
    where = os.path.join(folder or root, NAME)
    shards = TarSet(
        paths,
        index=folder or "auto",
        root=root,
        mode="mmap",
        key=key,
        lower=True,
        remote=settings,
    )
    marks = b"".join(fact.fingerprint for fact in facts)
    seed = derive_seed(marks)
    rows = None
    if sum(fact.samples for fact in facts) <= MOST_SAMPLES:
        rows = build_key_table(shards, seed)
    write_dataset_index(where, facts, last_dot=key == "last", seed=seed, rows=rows)
    return where


def _facts(job: Job, shard: str) -> ShardRecord:
    """Return what the index of a shard says of it, checked."""
    where = job.path(shard)
    last_dot = job.key == "last"
    if not os.path.exists(where):
        raise FastshardError(f"{shard} has no index {where}")
    header = read_header(where)
    if header.last_dot != last_dot:
        raise FastshardError(f"{where} was made by another rule for keys")
    with _opened(job, shard) as file:
        table = read_index(where, file, last_dot=last_dot, lower=True).table
        identity = identify_file(file)
    if not is_same_file(header.identity, identity):  # its headers decided
        identity = NO_IDENTITY._replace(mtime_ns=identity.mtime_ns)
    return ShardRecord(
        name=_name_of(job, shard),
        shard_bytes=header.shard_bytes,
        identity=identity,
        fingerprint=header.fingerprint,
        samples=header.samples,
        members=header.members,
        data_bytes=table.data_bytes,
    )


def _name_of(job: Job, shard: str) -> str:
    """Return a shard's name below the dataset's directory."""
    if job.remote is not None:
        return relative_path(shard, job.root)
    return os.path.relpath(shard, job.root).replace(os.sep, "/")
