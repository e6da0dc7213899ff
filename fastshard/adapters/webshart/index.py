"""Candidate indexes of discovered shards, and a tar set that chooses among them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

from fastshard._util.paths.urls import is_remote, redact, scheme_of
from fastshard.dataset.tarset import TarSet
from fastshard.errors import FormatError, RemoteError, StaleIndexWarning
from fastshard.index.contents import Contents, ForeignFileError
from fastshard.index.sidecar import SEARCHED, sidecar_path
from fastshard.remote.file import is_not_found, read_remote
from fastshard.remote.options import Settings

__all__ = ["MultiIndexTarSet", "find_local_index", "read_local_index", "request_url"]


def find_local_index(root: str, name: str, index: str) -> str | None:
    """Return the path of a local shard's index, JSON first, as webshart does."""
    for kind in reversed(SEARCHED):
        sidecar = sidecar_path(f"{name}.tar", kind)
        path = os.path.join(root if index == "auto" else index, sidecar)
        if os.path.exists(path):
            return path
    return None


def read_local_index(path: str) -> Contents:
    """Read a local index; it is not checked against the shard."""
    if path.endswith(".json"):
        from fastshard.index.jsonfile import read_json

        return read_json(path, None)[0]
    from fastshard.index.binary import read_binary

    return read_binary(path).contents(True, False)


def request_url(url: str, settings: Settings) -> str:
    """Return the redacted URL of requests: for a file of the hub, https."""
    if scheme_of(url) == "hf":
        from fastshard.remote.hub import hub_for

        url = hub_for(settings).resolve_url(url)
    return redact(url)


class MultiIndexTarSet(TarSet):
    """Tar set with several candidate indexes for each shard.

    At least the shards or the indexes are remote. Absent, stale and damaged candidates
    are dropped.
    """

    def __init__(
        self,
        paths: Sequence[str],
        indexes: Sequence[Sequence[str]],
        settings: Settings,
        **options: Any,
    ) -> None:
        super().__init__(paths, index="none", **options)
        self.settings = settings
        self.options["remote"] = settings  # local shards have remote indexes
        self.indexes = [tuple(candidates) for candidates in indexes]

    def index_option(self, k: int) -> str:
        """Return the ``index=`` argument for opening shard `k`."""
        return next(iter(self.indexes[k]), "none")

    def open_shard(self, k: int) -> Any:
        """Open shard `k` with its first candidate that is a valid index."""
        while candidates := self.indexes[k]:
            try:
                return super().open_shard(k)
            except (FormatError, RemoteError) as error:
                failed = self._find_failed(error, candidates)
                if failed is None:
                    raise
                if isinstance(error, ForeignFileError):
                    self.index_warnings(error)
                elif isinstance(error, FormatError):
                    _warn(error)
            self.indexes[k] = candidates[failed + 1 :]
        return super().open_shard(k)

    def _find_failed(self, error: Exception, candidates: Sequence[str]) -> int | None:
        """Return which candidate an error concerns, or None."""
        for i, path in enumerate(candidates):
            if isinstance(error, FormatError):
                if error.path == redact(path):
                    return i
            elif (
                isinstance(error, RemoteError)
                and is_remote(path)
                and is_not_found(error)
                and error.url == request_url(path, self.settings)
            ):
                return i
        return None

    def contents(self, k: int) -> Contents | None:
        """Return the contents of the first valid index of shard `k`, or None."""
        while candidates := self.indexes[k]:
            try:
                return self._read(candidates[0])
            except FormatError as error:
                _warn(error)
            except OSError as error:
                if not is_not_found(error):
                    raise
            self.indexes[k] = candidates[1:]
        return None

    def _read(self, path: str) -> Contents:
        """Read an index; it is not checked against the shard."""
        if not is_remote(path):
            return read_local_index(path)
        data = read_remote(path, self.settings)
        if path.partition("?")[0].endswith(".json"):
            from fastshard.index.jsonfile import parse_json_index

            return parse_json_index(data, redact(path), None)[0]
        from fastshard.index.binary import parse_binary

        return parse_binary(data, redact(path)).contents(True, False)


def _warn(error: FormatError) -> None:
    """Warn of a candidate that is dropped."""
    text = f"stale or broken index: {error}"
    warnings.warn(text, StaleIndexWarning, stacklevel=4)
