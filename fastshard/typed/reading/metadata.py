"""Metadata of a typed dataset: a msgpack map in a file or at a URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fastshard._core.typed.msgpack import unpack_map
from fastshard._util.paths.remote_options import select_remote
from fastshard._util.paths.urls import is_remote, redact
from fastshard.errors import FormatError
from fastshard.remote.file import read_remote
from fastshard.remote.options import make_settings

__all__ = ["read_metadata"]

MAX_BYTES = 64 << 20


def read_metadata(
    url: str | os.PathLike[str], source: Any, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the metadata of a dataset."""
    name = os.fspath(url)
    data = _read(name, source, options)
    if len(data) > MAX_BYTES:
        reason = f"expected at most {MAX_BYTES:,} bytes of metadata, got {len(data):,}"
        raise FormatError(reason, redact(name), 0)
    try:
        return unpack_map(data)
    except FormatError as error:
        raise FormatError(error.reason, redact(name), error.offset) from None


def _read(name: str, source: Any, options: Mapping[str, Any]) -> bytes:
    if not is_remote(name):
        with open(name.removeprefix("file://"), "rb") as file:
            return file.read(MAX_BYTES + 1)
    given = select_remote(options)
    location = getattr(source, "location", None)  # empty for a source of another kind
    settings = (
        make_settings(given, ()) if location is None else location.settings(given)
    )
    return read_remote(name, settings)
