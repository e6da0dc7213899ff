"""Registration of the columnar format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fastshard.columnar.layout.schema import INDEX_NAME
from fastshard.formats.folder import Folder
from fastshard.formats.registry import Format

if TYPE_CHECKING:
    from fastshard.columnar.shardset import ColumnSet
    from fastshard.remote.options import Settings

__all__ = ["FORMAT"]


class ColumnarFormat(Format):
    """Columnar format: arrays by field in tar shards, under one SQLite index."""

    name = "columnar"
    mark = INDEX_NAME

    def marks(self, folder: Folder) -> bool:
        return folder.has(INDEX_NAME)

    def open_set(self, root: str, **options: Any) -> ColumnSet:
        from fastshard.columnar.shardset import ColumnSet

        return ColumnSet(root, **options)

    def list_lines(
        self, root: str, *, long: bool, as_json: bool, remote: Settings | None = None
    ) -> Iterable[str]:
        from fastshard.columnar.commands import list_lines

        return list_lines(root, long, as_json)

    def stat(
        self, root: str, *, deep: bool, remote: Settings | None = None
    ) -> dict[str, Any]:
        from fastshard.columnar.stats import stat

        return stat(root, deep=deep, schema=True)

    def stat_lines(self, figures: Mapping[str, Any]) -> Iterable[str]:
        from fastshard.columnar.commands import stat_lines

        return stat_lines(figures)

    def verify(
        self, root: str, *, hashes: bool = False, remote: Settings | None = None
    ) -> list[Any]:
        from fastshard.columnar.verification import verify

        return list(verify(root))

    def add_commands(self, commands: Any) -> None:
        from fastshard.columnar.commands import add_compact, add_query

        add_query(commands)
        add_compact(commands)


FORMAT = ColumnarFormat()
