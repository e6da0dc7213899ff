"""The indexes of discovered shards: which each has, and what it says."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

from fastshard.dataset.tarset import TarSet
from fastshard.errors import FormatError, RemoteError, StaleIndexWarning
from fastshard.formats.sample import Samples
from fastshard.index.contents import Contents
from fastshard.index.sidecar import SEARCHED, sidecar_path
from fastshard.remote.file import is_not_found, read_remote
from fastshard.remote.options import Settings
from fastshard.remote.urls import is_remote, redact, scheme_of

__all__ = ["RemoteShards", "asked_at", "local_contents", "local_index"]


def local_index(root: str, name: str, index: str) -> str | None:
    """Return the index of a shard here, the JSON one first, as webshart would.

    Parameters
    ----------
    root : str
    name : str
        The shard's, below it, without a suffix.
    index : str
        Where indexes are; "auto" for beside the shards.
    """
    for kind in reversed(SEARCHED):
        path = sidecar_path(f"{name}.tar", kind)
        whole = os.path.join(root if index == "auto" else index, path)
        if os.path.exists(whole):
            return whole
    return None


def local_contents(path: str) -> Contents:
    """Read an index here without its shard."""
    if path.endswith(".json"):
        from fastshard.index.jsonfile import read_json

        return read_json(path, None)[0]
    from fastshard.index.binary import read_binary

    return read_binary(path).contents(True, False)


def asked_at(url: str, settings: Settings) -> str:
    """Return the address that a URL is asked for at, without what may be secret."""
    if scheme_of(url) == "hf":
        from fastshard.remote.hub import hub_for

        url = hub_for(settings).resolve_url(url)
    return redact(url)


class RemoteShards(TarSet):
    """Shards of which they, or their indexes, are remote.

    Parameters
    ----------
    paths : sequence of str
    places : sequence of sequence of str
        For each shard, where its index may be: URLs or paths, the best first. Those
        that turn out to hold no index of it are forgotten.
    settings : Settings
        How URLs are read.
    **options
        As for `TarSet`.
    """

    def __init__(
        self,
        paths: Sequence[str],
        places: Sequence[Sequence[str]],
        settings: Settings,
        **options: Any,
    ) -> None:
        super().__init__(paths, index="none", **options)
        self.settings = settings
        self.options["remote"] = settings  # also of shards that are here
        self.indexes = [tuple(some) for some in places]

    def index_option(self, k: int) -> str:
        """Return the ``index=`` that shard `k` is opened with."""
        return next(iter(self.indexes[k]), "none")

    def open_shard(self, k: int) -> Samples:
        """Open shard `k`, by the first of its indexes that holds."""
        while places := self.indexes[k]:
            try:
                return super().open_shard(k)
            except (FormatError, RemoteError) as error:
                at = self._place_of(error, places)
                if at is None:
                    raise
                if isinstance(error, FormatError):
                    _warn(error)
            self.indexes[k] = places[at + 1 :]
        return super().open_shard(k)

    def _place_of(self, error: Exception, places: Sequence[str]) -> int | None:
        """Say which index an error is about, if it is one to pass over."""
        for i, place in enumerate(places):
            if isinstance(error, FormatError):
                if error.path == redact(place):
                    return i
            elif (
                isinstance(error, RemoteError)
                and is_remote(place)
                and is_not_found(error)
                and error.url == asked_at(place, self.settings)
            ):
                return i
        return None

    def contents(self, k: int) -> Contents | None:
        """Read the index of shard `k`, and not the shard; None if it has none."""
        while places := self.indexes[k]:
            try:
                return self._read(places[0])
            except FormatError as error:
                _warn(error)
            except OSError as error:
                if not is_not_found(error):
                    raise
            self.indexes[k] = places[1:]
        return None

    def _read(self, place: str) -> Contents:
        if not is_remote(place):
            return local_contents(place)
        data = read_remote(place, self.settings)
        if place.partition("?")[0].endswith(".json"):
            from fastshard.index.jsonfile import parse_json

            return parse_json(data, redact(place), None)[0]
        from fastshard.index.binary import parse_binary

        return parse_binary(data, redact(place)).contents(True, False)


def _warn(error: FormatError) -> None:
    text = f"stale or broken index: {error}"
    warnings.warn(text, StaleIndexWarning, stacklevel=4)
