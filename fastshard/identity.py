"""What tells a dataset from others: its shards' names, counts and first bytes."""

from __future__ import annotations

import os
import sys
from array import array
from hashlib import blake2b

from fastshard._core.source import LocalFile
from fastshard.remote.file import RemoteFile, open_remote
from fastshard.remote.urls import base_of
from fastshard.shardset import ShardSet
from fastshard.state import Identity

__all__ = ["identity_of"]

HEAD = 4096  # bytes of a shard that are looked at


def identity_of(shards: ShardSet) -> Identity:
    """Return the identity of a dataset's shards, the same wherever they lie.

    Of the first and the last shard the sizes and the first 4 KiB are looked at.
    """
    paths = shards.paths
    if shards.remote is not None:
        paths = [base_of(path) for path in paths]
    starts = array("q", shards.starts())
    samples = starts[-1]
    ends = [min(paths), max(paths)] if paths else [""]
    common = os.path.commonprefix(ends)  # noqa: RUF071 - of folders, after this
    below = common.replace(os.sep, "/").rfind("/") + 1
    names = "\n".join([path[below:] for path in paths]).replace(os.sep, "/")
    digest = blake2b(names.encode("utf-8", "surrogateescape"), digest_size=8)
    digest.update(f"\n{shards.options['key']}\n".encode())
    digest.update(starts.tobytes() if sys.byteorder == "little" else _swapped(starts))
    for path in dict.fromkeys(shards.paths[:1] + shards.paths[-1:]):
        with _opened(path, shards) as file:
            digest.update(f"\n{file.nbytes}\n".encode())
            digest.update(file.read_many([(0, min(HEAD, file.nbytes))])[0])
    name = os.path.basename(shards.root) or "".join(map(os.path.basename, paths[:1]))
    return Identity(name, samples, digest.hexdigest())


def _opened(path: str, shards: ShardSet) -> LocalFile | RemoteFile:
    return (
        LocalFile(path) if shards.remote is None else open_remote(path, shards.remote)
    )


def _swapped(numbers: array[int]) -> bytes:
    """Return the bytes that a little-endian machine has."""
    numbers.byteswap()
    return numbers.tobytes()
