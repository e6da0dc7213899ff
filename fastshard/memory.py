"""How much memory a dataset's shards take."""

from __future__ import annotations

from fastshard.shardset import ShardSet

__all__ = ["memory_info"]


def memory_info(shards: ShardSet) -> dict[str, int | None]:
    """Return bytes that are mapped, resident and buffered."""
    ranges = shards.mapped()
    return {
        "mapped": sum(size for _, size in ranges),
        "resident": _resident(ranges),
        "buffered": sum(ahead.buffered for ahead in shards.running()),
    }


def _resident(ranges: list[tuple[int, int]]) -> int | None:
    """Add up what Linux says of mappings that begin where ours do."""
    starts = {address for address, _ in ranges}
    resident, counts = 0, False
    try:
        with open("/proc/self/smaps", "rb") as file:
            for line in file:
                if line[:1].isalpha() and line[:1].isupper():
                    if counts and line.startswith(b"Rss:"):
                        resident += int(line.split()[1]) << 10
                else:
                    counts = int(line.split(b"-")[0], 16) in starts
    except OSError:  # not Linux
        return None
    return resident
