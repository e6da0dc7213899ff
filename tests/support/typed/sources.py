"""Sources of a user, which count reads."""

from __future__ import annotations

import io
from pathlib import Path


class OwnSource:
    """The three methods of a source over files in a folder.

    With ``seekable=False`` its files have `read` and `close` alone.
    """

    def __init__(self, folder: Path, names: list[str], seekable: bool = True) -> None:
        self.folder = folder
        self.names = names
        self.seekable = seekable
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.bytes_read = 0

    def list_shards(self) -> list[str]:
        return list(self.names)

    def open_shard(self, shard_id: str):
        if shard_id not in self.names:
            raise KeyError(shard_id)
        self.opened.append(shard_id)
        kind = CountedFile if self.seekable else Stream
        return kind(self, shard_id)

    @property
    def shards(self):
        for name in self.names:
            yield name, self.open_shard(name)

    def __getstate__(self):
        return {**self.__dict__, "opened": [], "closed": [], "bytes_read": 0}


class Stream:
    """A file that can only be read from its start to its end."""

    def __init__(self, source: OwnSource, name: str) -> None:
        self.source = source
        self.name = name
        data = (source.folder / name).read_bytes()
        self.file = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.source.bytes_read += len(data)
        return data

    def close(self) -> None:
        self.source.closed.append(self.name)


class CountedFile(Stream):
    """A file that can seek."""

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()
