"""Faults of shards and of their indexes."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fastshard._core.io.source import LocalFile
from fastshard._core.table.grouping import Grouping
from fastshard.dataset.tarset import TarSet, common_root
from fastshard.errors import FormatError, StaleIndexError, StaleIndexWarning
from fastshard.formats.tar import Progress, TarOptions, TarShard, open_tar
from fastshard.index.contents import Contents
from fastshard.index.dataset_file import DatasetIndex
from fastshard.index.dataset_lookup import (
    match_dataset_index,
    match_remote_dataset_index,
)
from fastshard.index.remote_sidecar import read_remote_index, remote_sidecar_path
from fastshard.index.sidecar import SEARCHED, infer_format, read_index, sidecar_path
from fastshard.remote.file import RemoteFile, open_remote, read_remote, try_open_remote
from fastshard.remote.options import Settings
from fastshard.remote.urls import is_folder, is_remote

__all__ = [
    "Fault",
    "find_indexes",
    "find_remote_indexes",
    "find_trailing_data",
    "verify_dataset",
    "verify_dataset_index",
    "verify_index",
    "verify_shard",
    "verify_shards_listed",
]


MOST = 100  # faults of one kind that are told one by one

FaultTuple = tuple[str, int, str | None, str]  # path, offset, member, reason


def find_indexes(shard: str, index: str) -> list[str]:
    """Return the indexes of a shard: those beside it, none, or the one named."""
    if index == "none":
        return []
    if index != "auto" and not os.path.isdir(index):
        return [index]
    folder = None if index == "auto" else index
    paths = [sidecar_path(shard, kind, folder) for kind in SEARCHED]
    return [path for path in paths if os.path.exists(path)]


def find_remote_indexes(url: str, index: str, settings: Settings) -> list[str]:
    """Return the indexes of a remote shard, in the same way."""
    if index == "none":
        return []
    if index != "auto" and not is_folder(index):
        return [index]
    folder = None if index == "auto" else index
    paths = [remote_sidecar_path(url, kind, folder) for kind in SEARCHED]
    return [path for path in paths if _is_there(path, settings)]


def _is_there(path: str, settings: Settings) -> bool:
    if is_remote(path):
        return try_open_remote(path, settings) is not None
    return os.path.exists(path)


def verify_index(path: str, shard: TarShard, hashes: bool) -> Iterator[FaultTuple]:
    """Say what an index has that a scanned shard has not, and the reverse.

    Parameters
    ----------
    path : str
        The index.
    shard : TarShard
        Opened by a scan of its headers.
    hashes : bool
        Compare members with checksums that the index records.
    """
    try:
        with shard.file() as file:
            if isinstance(file, LocalFile):
                contents = read_index(path, file, last_dot=False, lower=True)
            else:
                contents = read_remote_index(path, file, last_dot=False, lower=True)
        if infer_format(path.partition("?")[0]) == "fsi":
            broken = list(_broken_parts(path, file))
            if broken:  # what it lists there is handed out to nobody
                yield from broken
                return
    except FormatError as error:
        yield error.path, error.offset, error.member, error.reason
        return
    names, offsets, sizes = shard.names, shard.offsets, shard.sizes
    stored = {
        (offset, size, name)
        for offset, size, name in zip(
            offsets.tolist(), sizes.tolist(), names, strict=True
        )
    }
    table = contents.table
    listed = {(*table.extent(i), table.name_of(i)) for i in range(len(table))}
    for offset, size, name in sorted(listed - stored)[:MOST]:
        reason = f"lists {size:,} bytes at byte {offset:,}, which the headers do not"
        yield path, 0, name, reason
    last = {name: (offset, size) for offset, size, name in sorted(stored)}
    for offset, size, name in sorted(stored - listed)[:MOST]:
        if contents.index == path and last[name] != (offset, size):
            continue  # one of several of this name: a dict lists the last alone
        yield path, 0, name, f"does not list the {size:,} bytes at byte {offset:,}"
    yield from _wrong_samples(path, contents)
    if hashes:
        yield from _wrong_hashes(path, shard, contents)


def _broken_parts(path: str, file: LocalFile | RemoteFile) -> Iterator[FaultTuple]:
    from fastshard.index.binary import parse_binary, read_binary

    if isinstance(file, LocalFile) or not is_remote(path):
        index = read_binary(path)
    else:
        index = parse_binary(read_remote(path, file.settings), path)
    for part, at in index.find_damage():
        yield path, at, None, f"the checksum of its {part} is wrong"


def _wrong_samples(path: str, contents: Contents) -> Iterator[FaultTuple]:
    """Compare the samples that an index lists with those that its names make."""
    from fastshard._core.table.grouping import copy_samples

    if contents.grouping is None:
        return
    rule = contents.grouping.last_dot, contents.grouping.lower
    if copy_samples(contents.grouping) != copy_samples(Grouping(contents.table, *rule)):
        yield path, 0, None, "its samples are not those that its names make"
    for i in Grouping(contents.table, rule[0], True).repeats()[:MOST]:
        if not contents.grouping.may_repeat:
            name = contents.table.name_of(i)
            yield path, 12, name, "says that no sample has a field twice"


def _wrong_hashes(
    path: str, shard: TarShard, contents: Contents
) -> Iterator[FaultTuple]:
    table = contents.table
    nbytes = shard.nbytes
    for i in range(len(table)):
        try:
            recorded = json.loads(table.info(i) or b"{}").get("sha256")
        except (ValueError, AttributeError, RecursionError):
            yield path, 0, table.name_of(i), "its info is no JSON object"
            continue
        offset, size = table.extent(i)
        if recorded is None or offset > nbytes or size > nbytes - offset:
            continue
        digest = hashlib.sha256(shard.parts()[0].read(offset, size)).hexdigest()
        if digest != recorded:
            yield shard.path, offset, table.name_of(i), "its sha256 is not the index's"


def verify_shards_listed(shards: TarSet) -> Iterator[FaultTuple]:
    """Say what a ``dataset.fsi`` has that its shards have not."""
    known = shards.index_view
    assert known is not None
    if known.file.has_damaged_rows():
        yield known.path, 76, None, "the checksum of its table of keys is wrong"
    for k in range(len(shards)):
        try:
            shards.shard(k)
        except StaleIndexError as error:
            yield error.path, error.offset, error.member, error.reason
        except (FormatError, OSError):
            continue  # the shard's own fault, told already
    yield from _wrong_rows(shards)


def _wrong_rows(shards: TarSet) -> Iterator[FaultTuple]:
    """Compare a table of keys with one made of the keys."""
    from fastshard.dataset.views import build_key_table

    known = shards.index_view
    assert known is not None
    if not known.has_keys:
        return
    try:
        made = build_key_table(shards, known.file.seed)
        same = made.tobytes() == known.file.copy_rows()
        if not same:
            made = build_key_table(shards, known.file.seed, older=True)
            same = made.tobytes() == known.file.copy_rows()
    except (FormatError, OSError):
        return  # told already
    if not same:
        yield known.path, 0, None, "its table of keys is not that of the keys"


BLOCK = 512  # bytes
CHUNK = 1 << 20  # bytes read at once, a multiple of BLOCK


class Fault(NamedTuple):
    """One thing that is wrong with a shard."""

    path: str
    offset: int  # bytes from the start of the file
    member: str | None
    reason: str


def verify_shard(
    path: str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    index: str = "auto",
    hashes: bool = False,
    remote: Settings | None = None,
) -> tuple[TarShard | None, list[Fault]]:
    """Check a shard's headers and bounds, its names, its indexes, and its end.

    Parameters
    ----------
    path : str or path-like
    progress : callable, optional
        Called now and then with the bytes walked over so far.
    index : str
        ``"auto"``: the indexes beside it; ``"none"``; or one that is named.
    hashes : bool
        Compare members with the checksums that an index records, which reads
        the whole shard.
    remote : Settings, optional
        How a URL is read.

    Returns
    -------
    shard : TarShard or None
        The open shard, its headers scanned, or None where it cannot be opened.
    faults : list of Fault
        Empty for a sound shard. Not only what keeps it from being read: names
        that occur twice, fields that a sample has twice, data behind the
        archive's end that no reader of tars sees, whatever an index says that
        the headers do not.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    try:
        again = "none" if remote is None else "rebuild"  # none that was kept
        shard = open_tar(path, TarOptions(again, remote=remote), progress=progress)
    except FormatError as error:
        return None, [Fault(error.path, error.offset, error.member, error.reason)]
    faults = [
        *(
            _member_fault(shard, i, "a later member has the same name")
            for i in shard.parts()[1].duplicates()
        ),
        *(
            _member_fault(shard, i, "its sample has this field twice")
            for i in shard.samples.grouping.repeats()
        ),
    ]
    after = find_trailing_data(shard)
    if after is not None:
        faults.append(Fault(shard.path, *after))
    found_at = (
        find_indexes(shard.path, index)
        if remote is None
        else find_remote_indexes(os.fspath(path), index, remote)
    )
    for found in found_at:
        faults.extend(Fault(*fault) for fault in verify_index(found, shard, hashes))
    return shard, faults


def verify_dataset(shards: TarSet, *, hashes: bool = False) -> list[Fault]:
    """Check every shard of a dataset as `verify_shard` does, in threads.

    And ``dataset.fsi``: its table of keys, and that each shard is what it says.
    """

    def verify(k: int) -> list[Fault]:
        path = shards.paths[k]
        try:
            shard, faults = verify_shard(
                path, index=shards.index_option(k), hashes=hashes, remote=shards.remote
            )
        except FileNotFoundError:
            return [Fault(path, 0, None, "the shard is not there")]
        if shard is not None:
            shard.close()
        return faults

    faults = [
        fault for found in shards.map_shards(verify, "verifying") for fault in found
    ]
    if shards.index_view is not None:
        faults.extend(_known_faults(shards))
    return faults


def verify_dataset_index(
    path: str, paths: Sequence[str], remote: Settings | None = None
) -> list[Fault]:
    """Check a ``dataset.fsi`` against the shards that it should list."""
    root = common_root(paths)
    try:
        if remote is not None:
            index = DatasetIndex(path, file=open_remote(path, remote))
            known = match_remote_dataset_index(index, paths, root, whole=True)
        else:
            index = DatasetIndex(path)
            known = match_dataset_index(index, paths, root, whole=True)
    except FormatError as error:
        return [Fault(error.path, error.offset, error.member, error.reason)]
    shards = TarSet(
        paths,
        index="auto",
        root=common_root(paths),
        mode="mmap",
        key="last" if index.last_dot else "first",
        lower=True,
        index_view=known,
        remote=remote,
    )
    return _known_faults(shards)


def _known_faults(shards: TarSet) -> list[Fault]:
    with warnings.catch_warnings():  # what is stale is a fault by now
        warnings.simplefilter("ignore", StaleIndexWarning)
        return [Fault(*fault) for fault in verify_shards_listed(shards)]


def _member_fault(shard: TarShard, i: int, reason: str) -> Fault:
    return Fault(shard.path, int(shard.offsets[i]), shard.names[i], reason)


def find_trailing_data(shard: TarShard) -> tuple[int, None, str] | None:
    """Say what follows the end of a shard's archive, unless it is padding.

    Returns
    -------
    (int, None, str) or None
        The byte it begins at, and whether it is another archive or other data.
        None too where the shard was opened with an index that has no end.
    """
    if shard.end is None:
        return None  # an index told of the members, and not of what follows
    with shard.file() as file:
        for at in range(shard.end, file.nbytes, CHUNK):
            (chunk,) = file.read_many([(at, min(CHUNK, file.nbytes - at))])
            data = len(chunk) - len(chunk.lstrip(b"\0"))
            if data < len(chunk):
                start = at + data - data % BLOCK
                return start, None, _kind_of(chunk[start - at : start - at + BLOCK])
    return None


def _kind_of(block: bytes) -> str:
    if block[257:262] == b"ustar":
        return "another archive follows the end of this one, and is not read"
    return "data follows the end of the archive, and is not read"
