"""Base of sources that list paths and URLs, and open them."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import IO, ClassVar

from fastshard._util.paths.remote_options import RemoteOptions
from fastshard._util.paths.urls import Url, parse_path_or_url, redact
from fastshard.dataset.paths.listing import Location
from fastshard.dataset.tarset import TarSet
from fastshard.remote.file import open_remote
from fastshard.remote.member_file import open_range

__all__ = ["ListedSource"]


class ListedSource(ABC):
    """A source whose shards are paths and URLs; a `DataSource`.

    Attributes
    ----------
    set_type : type of TarSet or None
        Set of the shards once they are open; None: by `fastshard.open`.
    """

    set_type: ClassVar[type[TarSet] | None] = None

    @property
    @abstractmethod
    def location(self) -> Location:
        """The parsed source."""

    @property
    @abstractmethod
    def options(self) -> RemoteOptions:
        """The options with which URLs are read."""

    @abstractmethod
    def list_shards(self) -> list[str]:
        """Return the paths or URLs of the shards, in order."""

    @property
    def shards(self) -> Iterator[tuple[str, IO[bytes]]]:
        """The names of the shards and the shards as open files, one after another."""
        for shard_id in self.list_shards():
            yield shard_id, open_url(shard_id, self.options)

    def open_shard(self, shard_id: str) -> IO[bytes]:
        """Open a shard as a binary file; a remote one reads ranges.

        Parameters
        ----------
        shard_id : str
            One of `list_shards`.

        Returns
        -------
        file object
            Readable and seekable.

        Raises
        ------
        KeyError
            The source has no such shard.
        OSError, RemoteError
            It cannot be opened.

        Examples
        --------
        >>> source = typed.URLSource("data/train-{0000..0003}.tar")
        >>> with source.open_shard("data/train-0001.tar") as file:
        ...     file.read(10)
        b'000025.npy'
        """
        if shard_id not in self.list_shards():
            raise KeyError(f"Shard not found: {redact(shard_id)}")
        return open_url(shard_id, self.options)

    @property
    def shard_list(self) -> list[str]:
        """The same as ``list_shards()``; deprecated."""
        warnings.warn(
            "shard_list is deprecated, use list_shards()",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.list_shards()


def open_url(path: str, options: RemoteOptions) -> IO[bytes]:
    """Open a path or a URL as a seekable binary file."""
    url = parse_path_or_url(path)
    if isinstance(url, Url):
        settings = Location("url", (url,)).settings(options)
        file = open_remote(url, settings)
        return open_range(file, 0, file.nbytes, url.redacted)
    return open(url, "rb")
