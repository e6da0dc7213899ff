"""Size limits of the shards that a writer fills."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ShardLimit", "ShardLimits"]

ANY_SIZE = 1 << 62  # bytes, of the largest shard


class ShardLimit(NamedTuple):
    """Limit of a shard: it is full when one of these is reached."""

    arrays: int
    nbytes: int = ANY_SIZE


# Opening a shard costs as much as some reads of it: few large ones.
PACKED = ShardLimit(50_000, 256 << 20)
UNPACKED = ShardLimit(1000)


class ShardLimits(NamedTuple):
    """Limits of the shards of fields, by whether a field has packs."""

    unpacked: ShardLimit = UNPACKED
    packed: ShardLimit = PACKED

    @classmethod
    def make(cls, samples_per_shard: int | None) -> ShardLimits:
        """Return the limits of a writer; None selects the defaults."""
        if samples_per_shard is None:
            return cls()
        limit = ShardLimit(samples_per_shard)
        return cls(limit, limit)

    def find(self, *, packed: bool) -> ShardLimit:
        """Return the limit of a field's shards."""
        return self.packed if packed else self.unpacked
