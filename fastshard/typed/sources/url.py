"""Sources of shards by path or URL."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Unpack, cast

from fastshard._util.paths.remote_options import RemoteOptions
from fastshard._util.paths.urls import parse_path_or_url, redact
from fastshard.dataset.paths.listing import Location, Source, list_shards, parse_source
from fastshard.errors import FastshardError
from fastshard.remote.options import Settings
from fastshard.typed.sources.listed import ListedSource

__all__ = ["URLSource"]


class URLSource(ListedSource):
    """The shards of paths or URLs: all that `fastshard.open` takes.

    Parameters
    ----------
    url : str, path-like or sequence of them
        A shard, a brace list, a glob, a directory, a URL; a list stays a list.
    **options
        How URLs are read: see `fastshard.RemoteOptions`. They stand in no repr.

    Attributes
    ----------
    url : str, path-like or sequence of them
        As given.

    Raises
    ------
    FastshardError
        The source is a command, ``pipe:...``: commands are never run.

    Examples
    --------
    >>> from fastshard import typed
    >>> source = typed.URLSource("data/train-{0000..0003}.tar")
    >>> source
    URLSource('data/train-{0000..0003}.tar')
    >>> source.list_shards()[:2]
    ['data/train-0000.tar', 'data/train-0001.tar']
    """

    def __init__(self, url: Source, **options: Unpack[RemoteOptions]) -> None:
        self.url = url
        self._options = options
        self._location: Location | None = None  # of listed shards
        self._listed: list[str] | None = None
        for item in [url] if isinstance(url, str | os.PathLike) else url:
            text = os.fspath(item)
            if isinstance(text, str) and text.lstrip().lower().startswith("pipe:"):
                raise FastshardError(f"{text} is a command; commands are never run")

    @classmethod
    def _of_shards(
        cls, shards: Iterable[str], **options: Unpack[RemoteOptions]
    ) -> URLSource:
        """Return the source of shards, whose names are not patterns."""
        listed = list(shards)
        source = cls(listed[0] if len(listed) == 1 else listed, **options)
        source._location = Location("shards", tuple(map(parse_path_or_url, listed)))
        return source

    def list_shards(self) -> list[str]:
        """Return the paths or URLs of the shards, in order.

        Local shards of a brace list need not exist. The list is made at the first call.

        Raises
        ------
        ShardNotFoundError
            A directory, a glob or a remote folder has no shard.
        RemoteError
            A remote folder cannot be listed.

        Examples
        --------
        >>> shards = ["data/train-0003.tar", "data/train-0001.tar"]
        >>> typed.URLSource(shards).list_shards()
        ['data/train-0003.tar', 'data/train-0001.tar']
        """
        if self._listed is None:
            location = self.location
            settings = location.settings(self._options)
            self._listed = list_shards(location, check=False, remote=settings).paths
        return list(self._listed)

    @property
    def location(self) -> Location:
        """The parsed source."""
        return self._location or parse_source(self.url)

    @property
    def options(self) -> RemoteOptions:
        """The options with which URLs are read."""
        return cast(RemoteOptions, dict(self._options))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, URLSource):
            return NotImplemented
        mine: tuple[Any, ...] = self.url, self._options, self._location
        return mine == (other.url, other._options, other._location)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle, unless an option is a secret."""
        Settings(self._options).__reduce__()
        return _make_again, (self.url, self._options, self._location is not None)

    def __repr__(self) -> str:
        url = self.url
        if isinstance(url, str | os.PathLike):
            shown = repr(redact(os.fspath(url)))
        else:
            shown = repr([redact(os.fspath(each)) for each in url])
        return f"URLSource({shown})"


def _make_again(url: Any, options: RemoteOptions, is_listed: bool) -> URLSource:
    """Unpickle a source."""
    if is_listed:
        shards = [url] if isinstance(url, str) else url
        return URLSource._of_shards(shards, **options)
    return URLSource(url, **options)
