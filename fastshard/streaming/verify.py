"""Verification of streaming datasets: headers, rows, fields, hashes of files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastshard.dataset.verify import Fault
from fastshard.errors import FormatError, ShardNotFoundError

__all__ = ["verify_set"]


def verify_set(shards: Any, *, hashes: bool = False) -> list[Fault]:
    """Return the faults of a dataset's shards.

    Parameters
    ----------
    shards : StreamSet
    hashes : bool
        Compare local files with the hashes of the index.
    """
    checked = shards.map_shards(
        lambda k: list(_verify_shard(shards, k, hashes)), "verifying"
    )
    return [fault for faults in checked for fault in faults]


def _verify_shard(shards: Any, k: int, hashes: bool) -> Iterator[Fault]:
    if hashes:
        yield from _verify_hashes(shards, k)
    try:
        shard = shards.files.open_shard(shards.numbers[k], shards.facts(k))
    except FormatError as error:
        yield Fault(error.path, error.offset, error.member, error.reason)
        return
    except ShardNotFoundError as error:
        yield Fault(error.path or shards.path(k), 0, None, error.reason)
        return
    width = shard.rows.width
    for i in range(shard.rows.count):
        try:
            for member in range(i * width, (i + 1) * width):
                shard.extent_of(member)
        except FormatError as error:
            yield Fault(error.path, error.offset, error.member, error.reason)


def _verify_hashes(shards: Any, k: int) -> Iterator[Fault]:
    """Yield a fault for each local file that differs from its hashes."""
    from fastshard.streaming.codecs.hashes import compute_hash

    if shards.remote is not None:
        return
    for pair in shards.index[shards.numbers[k]].file_pairs:
        for info in filter(None, pair):
            path = shards.files.path(info.basename)
            try:
                with open(path, "rb") as file:
                    data = file.read(info.bytes + 1)
            except FileNotFoundError:  # raw or compressed alone: opening tells
                continue
            for algo, expected in info.hashes.items():
                found = compute_hash(algo, data)
                if found != expected:
                    reason = f"{algo} is {found}; the index states {expected}"
                    yield Fault(path, 0, None, reason)
