"""Functions that tests send to spawned processes, which import them by name."""

from __future__ import annotations

import os


def digest(shard):
    """Read all of a shard, by position, name and sample; return sums and the pid."""
    total = sum(sum(view[:4]) for view in shard)
    return total, len(shard.names), shard.samples[7]["a"].nbytes, os.getpid()


def keys_and_starts(ds):
    """Return each sample's key and the first bytes of its field ``bin``."""
    return [(s.key, bytes(s["bin"][:9])) for s in ds]


def put_keys(ds, queue):
    """Put the length of a dataset, its keys, and one key looked up by key."""
    queue.put((len(ds), [sample.key for sample in ds], ds["07-3"].key))
