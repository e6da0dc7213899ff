"""Registration of packed datasets: tar shards that ``packed=True`` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastshard.formats.folder import Folder
from fastshard.formats.registry import Format

if TYPE_CHECKING:
    from fastshard.typed.shardset import PackedSet

__all__ = ["FORMAT"]


class PackedFormat(Format):
    """Tar shards of msgpack payloads, which no mark tells from others."""

    name = "packed"
    is_remote = True
    reads_tars = True

    def marks(self, folder: Folder) -> bool:
        return False

    def tar_set(self) -> type[PackedSet]:
        from fastshard.typed.shardset import PackedSet

        return PackedSet


FORMAT = PackedFormat()
