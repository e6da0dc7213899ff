"""Looking for faults in a shard, beyond those that keep it from opening."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import NamedTuple

from fastshard.errors import FormatError, StaleIndexWarning
from fastshard.formats.tar import Progress, TarShard, open_tar
from fastshard.index.dataset_file import GlobalIndex
from fastshard.index.dataset_lookup import match_known, match_remote_known
from fastshard.remote.file import open_remote
from fastshard.remote.options import Settings
from fastshard.shardset import ShardSet, root_of
from fastshard.verify_index import (
    indexes_of,
    remote_indexes_of,
    verify_index,
    verify_known,
)

__all__ = ["Fault", "archive_after", "verify_dataset", "verify_global", "verify_shard"]

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
        shard = open_tar(path, index=again, progress=progress, remote=remote)
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
    after = archive_after(shard)
    if after is not None:
        faults.append(Fault(shard.path, *after))
    found_at = (
        indexes_of(shard.path, index)
        if remote is None
        else remote_indexes_of(os.fspath(path), index, remote)
    )
    for found in found_at:
        faults.extend(Fault(*fault) for fault in verify_index(found, shard, hashes))
    return shard, faults


def verify_dataset(shards: ShardSet, *, hashes: bool = False) -> list[Fault]:
    """Check every shard of a dataset as `verify_shard` does, in threads.

    And ``dataset.fsi``: its table of keys, and that each shard is what it says.
    """
    if shards.verifier is not None:
        return shards.verifier()

    def verify(k: int) -> list[Fault]:
        path = shards.paths[k]
        try:
            shard, faults = verify_shard(
                path, index=shards.index_of(k), hashes=hashes, remote=shards.remote
            )
        except FileNotFoundError:
            return [Fault(path, 0, None, "the shard is not there")]
        if shard is not None:
            shard.close()
        return faults

    faults = [fault for found in shards.each(verify, "verifying") for fault in found]
    if shards.known is not None:
        faults.extend(_known_faults(shards))
    return faults


def verify_global(
    path: str, paths: Sequence[str], remote: Settings | None = None
) -> list[Fault]:
    """Check a ``dataset.fsi`` against the shards that it should list."""
    root = root_of(paths)
    try:
        if remote is not None:
            index = GlobalIndex(path, file=open_remote(path, remote))
            known = match_remote_known(index, paths, root, whole=True)
        else:
            index = GlobalIndex(path)
            known = match_known(index, paths, root, whole=True)
    except FormatError as error:
        return [Fault(error.path, error.offset, error.member, error.reason)]
    shards = ShardSet(
        paths,
        index="auto",
        root=root_of(paths),
        mode="mmap",
        key="last" if index.last_dot else "first",
        lower=True,
        known=known,
        remote=remote,
    )
    return _known_faults(shards)


def _known_faults(shards: ShardSet) -> list[Fault]:
    with warnings.catch_warnings():  # what is stale is a fault by now
        warnings.simplefilter("ignore", StaleIndexWarning)
        return [Fault(*fault) for fault in verify_known(shards)]


def _member_fault(shard: TarShard, i: int, reason: str) -> Fault:
    return Fault(shard.path, int(shard.offsets[i]), shard.names[i], reason)


def archive_after(shard: TarShard) -> tuple[int, None, str] | None:
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
