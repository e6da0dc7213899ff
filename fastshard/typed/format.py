"""Registration of packed datasets: tar shards that ``packed=True`` reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastshard.formats.folder import Folder
from fastshard.formats.registry import Format

if TYPE_CHECKING:
    from fastshard.remote.options import Settings
    from fastshard.typed.shardset import PackedSet

__all__ = ["FORMAT"]


class PackedFormat(Format):
    """Tar shards of msgpack payloads, selected by ``packed=True``."""

    name = "packed"
    reading = frozenset({"key", "lower", "mode"})
    is_remote = True
    reads_tars = True

    def marks(self, folder: Folder) -> bool:
        return False

    def tar_set(self) -> type[PackedSet]:
        from fastshard.typed.shardset import PackedSet

        return PackedSet

    def list_lines(
        self,
        root: str | Sequence[str],
        *,
        long: bool,
        as_json: bool,
        remote: Settings | None = None,
        **reading: Any,
    ) -> Iterable[str]:
        from fastshard.typed.commands.listing import list_lines, open_packed

        ds = open_packed(paths_of(root), remote, **reading)
        return list_lines(ds, long=long, as_json=as_json)

    def stat(
        self,
        root: str | Sequence[str],
        *,
        deep: bool,
        remote: Settings | None = None,
        **reading: Any,
    ) -> dict[str, Any]:
        from fastshard.typed.commands.listing import open_packed, stat

        return stat(open_packed(paths_of(root), remote, **reading), deep=deep)

    def stat_lines(self, figures: Mapping[str, Any]) -> Iterable[str]:
        from fastshard.typed.commands.listing import stat_lines

        return stat_lines(figures)

    def verify(
        self,
        root: str | Sequence[str],
        *,
        hashes: bool = False,
        remote: Settings | None = None,
        **reading: Any,
    ) -> list[Any]:
        from fastshard.typed.commands.listing import open_packed

        with open_packed(paths_of(root), remote, **reading) as ds:
            return ds.verify(hashes=hashes)

    def add_commands(self, commands: Any) -> None:
        from fastshard.typed.commands.query import extend_query

        extend_query(commands)


def paths_of(root: str | Sequence[str]) -> Sequence[str]:
    """Return the shards of a source: its only one, or all of them."""
    return [root] if isinstance(root, str) else root


FORMAT = PackedFormat()
