"""Comparing what an index says with what a scan of the headers found."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator

from fastshard._core.grouping import Grouping
from fastshard._core.source import LocalFile
from fastshard.errors import FormatError, StaleIndexError
from fastshard.formats.tar import TarShard
from fastshard.index import FOUND, format_of, read_index, sidecar
from fastshard.index.contents import Contents
from fastshard.index.remote_scan import read_remote_index, sidecar_of
from fastshard.remote.file import RemoteFile, open_if_there, remote_bytes
from fastshard.remote.options import Settings
from fastshard.remote.urls import is_folder, is_remote
from fastshard.shardset import ShardSet

__all__ = ["indexes_of", "remote_indexes_of", "verify_index", "verify_known"]

MOST = 100  # faults of one kind that are told one by one

FaultTuple = tuple[str, int, str | None, str]  # path, offset, member, reason


def indexes_of(shard: str, index: str) -> list[str]:
    """Return the indexes of a shard: those beside it, none, or the one named."""
    if index == "none":
        return []
    if index != "auto" and not os.path.isdir(index):
        return [index]
    folder = None if index == "auto" else index
    paths = [sidecar(shard, kind, folder) for kind in FOUND]
    return [path for path in paths if os.path.exists(path)]


def remote_indexes_of(url: str, index: str, settings: Settings) -> list[str]:
    """Return the indexes of a remote shard, in the same way."""
    if index == "none":
        return []
    if index != "auto" and not is_folder(index):
        return [index]
    folder = None if index == "auto" else index
    paths = [sidecar_of(url, kind, folder) for kind in FOUND]
    return [path for path in paths if _is_there(path, settings)]


def _is_there(path: str, settings: Settings) -> bool:
    if is_remote(path):
        return open_if_there(path, settings) is not None
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
        if format_of(path.partition("?")[0]) == "fsi":
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
        index = parse_binary(remote_bytes(path, file.settings), path)
    for part, at in index.broken_parts():
        yield path, at, None, f"the checksum of its {part} is wrong"


def _wrong_samples(path: str, contents: Contents) -> Iterator[FaultTuple]:
    """Compare the samples that an index lists with those that its names make."""
    from fastshard._core.borrowed import samples_of

    if contents.grouping is None:
        return
    rule = contents.grouping.last_dot, contents.grouping.lower
    if samples_of(contents.grouping) != samples_of(Grouping(contents.table, *rule)):
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


def verify_known(shards: ShardSet) -> Iterator[FaultTuple]:
    """Say what a ``dataset.fsi`` has that its shards have not."""
    known = shards.known
    assert known is not None
    if known.file.rows_are_broken():
        yield known.path, 76, None, "the checksum of its table of keys is wrong"
    for k in range(len(shards)):
        try:
            shards.shard(k)
        except StaleIndexError as error:
            yield error.path, error.offset, error.member, error.reason
        except (FormatError, OSError):
            continue  # the shard's own fault, told already
    yield from _wrong_rows(shards)


def _wrong_rows(shards: ShardSet) -> Iterator[FaultTuple]:
    """Compare a table of keys with one made of the keys."""
    from fastshard.keys import key_table

    known = shards.known
    assert known is not None
    if not known.has_keys:
        return
    try:
        made = key_table(shards, known.file.seed)
        same = made.tobytes() == known.file.row_bytes()
        if not same:
            made = key_table(shards, known.file.seed, older=True)
            same = made.tobytes() == known.file.row_bytes()
    except (FormatError, OSError):
        return  # told already
    if not same:
        yield known.path, 0, None, "its table of keys is not that of the keys"
