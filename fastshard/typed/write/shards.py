"""Shards of payloads, each with its index and, if wanted, its manifest."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fastshard._util.sizes import parse_size
from fastshard.formats.writer import ShardWriter, escape_braces

if TYPE_CHECKING:
    from fastshard.formats.tar_writer import TarBuilder
    from fastshard.typed.manifest.builder import ManifestBuilder

__all__ = ["PackedWriter", "pattern_of"]

NUMBER = re.compile(r"%(0?[0-9]*)d")
BLOCK = 512  # bytes of tar
FIELD = "msgpack"


def pattern_of(path: str, *, several: bool) -> str:
    """Return the pattern of `ShardWriter` for the shards of a path."""
    folder, name = os.path.split(path)
    if not name.lower().endswith(".tar"):
        raise ValueError(
            f"the name of a shard ends in .tar, and shards are not compressed, got "
            f"{name!r}"
        )
    slots = NUMBER.findall(name)
    if several and not slots:
        stem, suffix = os.path.splitext(name)
        start, spec, end = f"{stem}-", "06", suffix
    elif len(slots) == 1:
        start, end = NUMBER.sub("\0", name).split("\0")
        spec = slots[0]
    else:
        return escape_braces(os.path.join(folder, name))
    before = escape_braces(os.path.join(folder, start))
    return f"{before}{{:{spec}d}}{escape_braces(end)}"


class PackedWriter:
    """Writer of payloads to shards; keeps the manifest of the unfinished one."""

    def __init__(
        self,
        path: str,
        maxcount: float | None,
        maxsize: float | str | None,
        manifest: Callable[[str], ManifestBuilder] | None,
        publish: Callable[[str, str], None] | None = None,
    ) -> None:
        several = maxcount is not None or maxsize is not None
        self._shards = ShardWriter(
            pattern_of(path, several=several),
            max_size=None if maxsize is None else whole_size(maxsize),
            max_count=None if maxcount is None else whole(maxcount),
            overwrite=True,
        )
        self._make = manifest
        self._publish = publish
        if publish is not None:
            self._shards._digests = {}
        self._builder: ManifestBuilder | None = None
        self._unfinished: TarBuilder | None = None  # the shard of the manifest

    @property
    def paths(self) -> list[str]:
        """The finished shards."""
        return self._shards.shards

    def has(self, key: str) -> bool:
        """Return whether the unfinished shard has a key."""
        unfinished = self._shards._builder
        return unfinished is not None and key in unfinished.keys

    def end_shard(self) -> None:
        """Finish the shard; the next sample begins another."""
        self._shards._finish()

    def write(self, key: str, payload: bytes, sample: Any) -> None:
        """Write a sample's payload."""
        self._shards.write({"__key__": key, FIELD: payload})
        unfinished = self._shards._builder
        assert unfinished is not None
        if unfinished is not self._unfinished:
            self._begin(unfinished)
        if self._builder is not None:
            size = len(payload)
            offset = unfinished.size - size - -size % BLOCK
            try:
                self._builder.add_sample(
                    key=key, offset=offset, size=size, sample=sample
                )
            except TypeError as error:
                raise TypeError(f"sample {key!r}, {error}") from error

    def _begin(self, unfinished: TarBuilder) -> None:
        """Begin the manifest of a shard, and finish that of the previous one."""
        self._end()
        self._unfinished = unfinished
        base = unfinished.path.removesuffix(".tar")
        remove_manifest(base)  # of a replaced shard
        if self._make is not None:
            self._builder = self._make(os.path.basename(base))

    def _end(self) -> None:
        """Write the manifest of the last finished shard, and publish it."""
        builder, self._builder = self._builder, None
        if builder is not None:
            from fastshard.typed.manifest.sidecar import save_manifest

            save_manifest(builder, self._shards.shards[-1])
        digests = self._shards._digests
        if self._publish is not None and digests:
            self._publish(*digests.popitem())

    def close(self) -> None:
        """Finish the last shard."""
        self._shards.close()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._shards.__exit__(kind, error, traceback)


def remove_manifest(base: str) -> None:
    """Remove the manifest of a shard whose samples are replaced."""
    for suffix in ("json", "parquet"):
        try:
            os.unlink(f"{base}.manifest.{suffix}")
        except FileNotFoundError:
            continue


def whole(count: float) -> int:
    """Return a number of samples, also of a float such as 1e3."""
    if isinstance(count, float) and count.is_integer():
        return int(count)
    return operator.index(count)  # type: ignore[arg-type]


def whole_size(size: float | str) -> int:
    return parse_size(size if isinstance(size, str) else whole(size))
