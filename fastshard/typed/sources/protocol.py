"""The protocol of a source of shards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Protocol, runtime_checkable

__all__ = ["DataSource"]


@runtime_checkable
class DataSource(Protocol):
    """A source of shards: names them, and opens them as binary files.

    `URLSource` and `S3Source` are sources, and every object with these three members is
    one. An iteration in order reads the shards of other sources as streams, from the
    first member to the last, where the members of a sample stand side by side.
    Random access (``ds[i]``, ``len``, shuffled iteration, the state of an iteration)
    reads the headers once and then seeks; a file that cannot seek is copied once, to a
    temporary file.

    Examples
    --------
    >>> import io
    >>> from pathlib import Path
    >>> from fastshard import typed
    >>> class Folder:
    ...     def __init__(self, path):
    ...         self.path = Path(path)
    ...     def list_shards(self):
    ...         return sorted(path.name for path in self.path.glob("*.tar"))
    ...     def open_shard(self, shard_id):
    ...         if shard_id not in self.list_shards():
    ...             raise KeyError(shard_id)
    ...         return open(self.path / shard_id, "rb")
    ...     @property
    ...     def shards(self):
    ...         for shard_id in self.list_shards():
    ...             yield shard_id, self.open_shard(shard_id)
    >>> isinstance(Folder("data"), typed.DataSource)
    True
    """

    def list_shards(self) -> list[str]:
        """Return the names of the shards, without opening them."""

    @property
    def shards(self) -> Iterator[tuple[str, IO[bytes]]]:
        """The names of the shards and the shards as open files, one after another."""

    def open_shard(self, shard_id: str) -> IO[bytes]:
        """Return a shard as an open file; raise KeyError for an unknown name."""
