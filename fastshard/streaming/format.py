"""Registration of the streaming format."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from fastshard._util.json import parse_value
from fastshard._util.paths.urls import redact
from fastshard.formats.folder import Folder
from fastshard.formats.registry import Format

if TYPE_CHECKING:
    from fastshard.formats.tar import Mode
    from fastshard.remote.options import Settings
    from fastshard.streaming.shardset import StreamSet

__all__ = ["FORMAT"]

INDEX_NAME = "index.json"
HEAD_BYTES = 16 << 10  # of an index, to know it by; a remote file has them when opened
MAX_SPLITS = 20  # that an error names
SPLIT_LEVELS = 2  # of directories in which it looks for them
MAX_HEAD = 4 << 20  # bytes that hold the first shard of very many columns
# "shards" comes first or last: keys of shards are sorted, an index's may be.
SHARDS = re.compile(rb'"shards"\s*:\s*\[')
VERSION = re.compile(rb'"version"\s*:\s*2\b')


class StreamingFormat(Format):
    """Streaming format: MDS, JSON, CSV, TSV and XSV shards under one ``index.json``."""

    name = "streaming"
    title = "MDS"
    mark = INDEX_NAME
    joins = True
    options = frozenset(
        {"split", "validate_hash", "allow_unsafe_types", "check_size", "cache_dir"}
    )
    reading = frozenset({"mode"})
    is_remote = True

    def marks(self, folder: Folder) -> bool:
        head = folder.read(INDEX_NAME, HEAD_BYTES)
        if not head or head.lstrip()[:1] != b"{":
            return False
        if len(head) < HEAD_BYTES:
            try:
                index = parse_value(head, INDEX_NAME)
            except ValueError:  # damaged: reading it reports where
                return SHARDS.search(head) is not None
            else:
                return index.get("version") == 2 and isinstance(
                    index.get("shards"), list
                )
        if not SHARDS.search(head):
            return False
        if not VERSION.search(head) and len(head) == HEAD_BYTES:
            head = folder.read(INDEX_NAME, MAX_HEAD) or b""
        return VERSION.search(head) is not None

    def subfolder(self, options: Mapping[str, Any]) -> str:
        split = os.fspath(options.get("split") or "")
        if os.path.isabs(split) or ".." in split.replace(os.sep, "/").split("/"):
            raise ValueError(
                f"split= is a directory below the dataset's, got {split!r}"
            )
        return split

    def explain_missing(self, folder: Folder, options: Mapping[str, Any]) -> str | None:
        split = self.subfolder(options)
        if not split:
            return None
        index = f"{split}/{INDEX_NAME}"
        is_there = folder.below(split).has(INDEX_NAME)
        fault = "is not an index of streaming shards" if is_there else "does not exist"
        reason = f"no split {split!r} in {redact(folder.path)}: {index} {fault}"
        if folder.is_remote:
            return reason
        splits = list(islice(self._splits(folder), MAX_SPLITS))
        return f"{reason}; splits there: {', '.join(splits) or 'none'}"

    def _splits(self, folder: Folder, levels: int = SPLIT_LEVELS) -> Iterator[str]:
        """Yield the directories below one that have an index."""
        for name in folder.folders():
            below = folder.below(name)
            if self.marks(below):
                yield name
            if levels > 1:
                for inner in self._splits(below, levels - 1):
                    yield f"{name}/{inner}"

    def open_set(self, root: str, **options: Any) -> StreamSet:
        from fastshard.streaming.shardset import StreamSet

        return StreamSet(root, **options)

    def open_all(self, roots: Sequence[str], **options: Any) -> StreamSet:
        from fastshard.streaming.shardset import StreamSet, split_roots

        root, folders = split_roots(roots)
        return StreamSet(root, folders=folders, **options)

    def list_lines(
        self,
        root: str,
        *,
        long: bool,
        as_json: bool,
        remote: Settings | None = None,
        mode: Mode = "mmap",
    ) -> Iterable[str]:
        from fastshard.streaming.commands import list_lines, open_shards

        shards = open_shards(root, remote, mode)
        return list_lines(shards, long=long, as_json=as_json)

    def stat(
        self,
        root: str,
        *,
        deep: bool,
        remote: Settings | None = None,
        mode: Mode = "mmap",
    ) -> dict[str, Any]:
        from fastshard.streaming.commands import open_shards, stat

        return stat(open_shards(root, remote, mode), deep=deep)

    def stat_lines(self, figures: Mapping[str, Any]) -> Iterable[str]:
        from fastshard.streaming.commands import stat_lines

        return stat_lines(figures)

    def verify(
        self,
        root: str,
        *,
        hashes: bool = False,
        remote: Settings | None = None,
        mode: Mode = "mmap",
    ) -> list[Any]:
        from fastshard.streaming.commands import open_shards, verify

        return verify(open_shards(root, remote, mode), hashes=hashes)


FORMAT = StreamingFormat()
