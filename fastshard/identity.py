"""What tells a dataset from others: its shards' names, counts and first bytes."""

from __future__ import annotations

import os
import sys
from array import array
from hashlib import blake2b

from fastshard.shardset import ShardSet
from fastshard.state import Identity

__all__ = ["identity_of"]

HEAD = 4096  # bytes of a shard that are looked at


def identity_of(shards: ShardSet) -> Identity:
    """Return the identity of a dataset's shards, the same wherever they lie.

    Of the first and the last shard the sizes and the first 4 KiB are looked at.
    """
    paths = shards.paths
    starts = array("q", shards.starts())
    samples = starts[-1]
    ends = [min(paths), max(paths)] if paths else [""]
    common = os.path.commonprefix(ends)  # noqa: RUF071 - of folders, after this
    below = common.replace(os.sep, "/").rfind("/") + 1
    names = "\n".join([path[below:] for path in paths]).replace(os.sep, "/")
    digest = blake2b(names.encode("utf-8", "surrogateescape"), digest_size=8)
    digest.update(f"\n{shards.options['key']}\n".encode())
    digest.update(starts.tobytes() if sys.byteorder == "little" else _swapped(starts))
    for path in dict.fromkeys(paths[:1] + paths[-1:]):
        with open(path, "rb", buffering=0) as file:
            digest.update(f"\n{os.fstat(file.fileno()).st_size}\n".encode())
            digest.update(file.read(HEAD))
    name = os.path.basename(shards.root) or "".join(map(os.path.basename, paths[:1]))
    return Identity(name, samples, digest.hexdigest())


def _swapped(numbers: array[int]) -> bytes:
    """Return the bytes that a little-endian machine has."""
    numbers.byteswap()
    return numbers.tobytes()
