"""What tells a dataset from others: its shards' names, counts and first bytes."""

from __future__ import annotations

import os
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
    starts = shards.starts()
    folders = [os.path.dirname(path) for path in paths]
    prefix = len(os.path.commonprefix(folders))  # noqa: RUF071 - no path is made of it
    digest = blake2b(digest_size=8)
    names = "\n".join(path[prefix:].replace(os.sep, "/").lstrip("/") for path in paths)
    digest.update(names.encode("utf-8", "surrogateescape"))
    digest.update(repr((starts, shards.options["key"])).encode())
    for path in dict.fromkeys(paths[:1] + paths[-1:]):
        with open(path, "rb", buffering=0) as file:
            digest.update(f"\n{os.fstat(file.fileno()).st_size}\n".encode())
            digest.update(file.read(HEAD))
    name = os.path.basename(shards.root) or "".join(map(os.path.basename, paths[:1]))
    return Identity(name, starts[-1], digest.hexdigest())
