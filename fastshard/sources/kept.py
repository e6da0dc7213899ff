"""What is kept of remote objects on this machine, by what name, and where."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from fastshard.sources.cache import RangeCache
from fastshard.sources.entries import Entry
from fastshard.sources.facts import Facts
from fastshard.sources.settings import Settings
from fastshard.sources.urls import base_of

if TYPE_CHECKING:
    from fastshard.sources.answer import Answer
    from fastshard.sources.remote import RemoteFile

__all__ = ["cache_for", "default_folder", "downloaded", "index_entry", "kept_name"]

CHUNK = 1 << 20  # bytes that are kept at a time
COMMIT = re.compile(r"^(hf://datasets/[^/@]+/[^/@]+)@[0-9a-f]{40}(?=/|$)")


def kept_name(url: str) -> str:
    """Return the name that an object is kept by: nothing secret, and no commit.

    What is the same in two commits of a repository is kept once, for its tag tells.
    """
    return COMMIT.sub(r"\1", base_of(url))


def downloaded(
    url: str, settings: Settings, cache: RangeCache
) -> tuple[Facts, bytes, Entry]:
    """Keep a whole object of a server that knows no ranges."""
    from fastshard.sources.http import client_for

    def take(answer: Answer) -> tuple[Facts, bytes, Entry]:
        if not answer.facts.tag:
            raise answer.error(
                "the server sends whole objects only, and nothing that tells when they "
                "are written to: download them"
            )
        entry = cache.entry(kept_name(url), answer.facts)
        if entry.is_whole():
            return answer.facts, b"", entry
        chunk = memoryview(bytearray(CHUNK))
        for at in range(0, answer.facts.nbytes, CHUNK):
            part = chunk[: min(CHUNK, answer.facts.nbytes - at)]
            answer.read_into(part)
            entry.add(at, part)
        answer.finish()
        return answer.facts, b"", entry

    return client_for(settings).download(url, take)


class _Kept:
    """The cache that settings name."""

    def __init__(self, settings: Settings) -> None:
        assert settings.cache_dir is not None
        self.cache = RangeCache(settings.cache_dir, settings.cache_limit)


def cache_for(settings: Settings) -> RangeCache | None:
    """Return what keeps bytes on this machine, if something does."""
    return None if settings.cache_dir is None else settings.shared(_Kept).cache


def index_entry(file: RemoteFile) -> Entry | None:
    """Return where an index of an object is kept that was made here."""
    if file.entry is not None or not file.tag:
        return file.entry
    folder = default_folder()
    return None if folder is None else RangeCache(folder).entry(file.path, file.facts)


def default_folder() -> str | None:
    """Return where indexes are kept: ``FASTSHARD_CACHE``, or the user's cache."""
    told = os.environ.get("FASTSHARD_CACHE")
    if told is not None:
        return told or None
    above = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(above, "fastshard") if os.path.isabs(above) else None
