"""Sidecar files of remote shards: finding and reading indexes."""

from __future__ import annotations

import os
from collections.abc import Callable
from urllib.parse import quote

from fastshard._core.io.source import LocalFile
from fastshard._util.paths.urls import (
    HTTP,
    Url,
    base_of,
    is_folder,
    join_url,
    parse_path_or_url,
    url_basename,
)
from fastshard.errors import FormatError, RemoteError
from fastshard.index.binary import parse_binary
from fastshard.index.contents import (
    Contents,
    Warn,
    warn_ignored_index,
    warn_old_version,
)
from fastshard.index.freshness import check_binary
from fastshard.index.remote_scan import scan_or_load
from fastshard.index.sidecar import (
    SEARCHED,
    infer_format,
    parse_json_sidecar,
    sidecar_path,
)
from fastshard.remote.file import RemoteFile, is_not_found, read_remote
from fastshard.remote.options import Settings

__all__ = [
    "find_contents",
    "find_remote_index",
    "read_remote_index",
    "remote_sidecar_path",
]


def find_contents(
    file: RemoteFile,
    index: str | Url,
    progress: Callable[[int], object] | None,
    *,
    last_dot: bool,
    lower: bool,
    warn: Warn = warn_ignored_index,
) -> Contents:
    """Return the contents of a remote shard, from an index or from a scan."""
    contents = None
    if index == "auto" or (index not in ("none", "rebuild") and is_folder(index)):
        folder = None if index == "auto" else index
        contents = find_remote_index(
            folder, file, last_dot=last_dot, lower=lower, warn=warn
        )
    elif index not in ("none", "rebuild"):
        contents = read_remote_index(index, file, last_dot=last_dot, lower=lower)
    if contents is None:
        contents = scan_or_load(file, progress, again=index == "rebuild")
    return contents


def find_remote_index(
    folder: str | Url | None,
    file: RemoteFile | LocalFile,
    *,
    last_dot: bool,
    lower: bool,
    settings: Settings | None = None,
    warn: Warn = warn_ignored_index,
) -> Contents | None:
    """Return the contents that a fresh index of a shard lists, or None.

    The shard or the folder of its index is remote.

    A stale or damaged index is ignored with a `StaleIndexWarning`.
    """
    if isinstance(file, RemoteFile):
        shard = file.location
    else:
        shard = Url(os.path.basename(file.path))
    for kind in SEARCHED:
        path = _sidecar_location(shard, kind, folder)
        try:
            return _read_index(
                path, kind, file, last_dot=last_dot, lower=lower, settings=settings
            )
        except OSError as error:
            if not is_not_found(error):
                raise
        except FormatError as error:
            warn(error)
    return None


def remote_sidecar_path(url: str, kind: str, folder: str | None) -> str:
    """Return the URL or path of a remote shard's index."""
    path = _sidecar_location(
        Url(url), kind, None if folder is None else parse_path_or_url(folder)
    )
    return path.text if isinstance(path, Url) else path


def _sidecar_location(url: Url, kind: str, folder: str | Url | None) -> str | Url:
    if folder is None:
        return Url(sidecar_path(url.base, kind) + url.query)
    name = sidecar_path(url_basename(url.base), kind)
    if isinstance(folder, Url):
        name = quote(name) if folder.scheme in HTTP else name
        return Url(join_url(folder.text, name))
    return os.path.join(folder, name)


def read_remote_index(
    path: str | Url,
    file: RemoteFile | LocalFile,
    *,
    last_dot: bool,
    lower: bool,
    settings: Settings | None = None,
) -> Contents:
    """Read an index and check it against its shard; either is remote."""
    if isinstance(path, str):
        path = parse_path_or_url(path)
    kind = infer_format(path.base if isinstance(path, Url) else base_of(path))
    if kind not in SEARCHED:
        raise RemoteError(
            f"an index of format {kind} can be read for local shards only; expected "
            + " or ".join(SEARCHED),
            path.redacted if isinstance(path, Url) else path,
        )
    return _read_index(
        path, kind, file, last_dot=last_dot, lower=lower, settings=settings
    )


def _read_index(
    path: str | Url,
    kind: str,
    file: RemoteFile | LocalFile,
    *,
    last_dot: bool,
    lower: bool,
    settings: Settings | None,
) -> Contents:
    """Read an index of a known format; see `read_remote_index`."""
    shown = path.redacted if isinstance(path, Url) else path
    if settings is None:
        assert isinstance(file, RemoteFile)
        settings = file.settings
    data = _read_bytes(path, settings)
    if kind == "json":
        return parse_json_sidecar(data, shown, file)
    index = parse_binary(data, shown)
    contents = index.contents(last_dot, lower)
    check_binary(shown, index.header, file, contents.table)
    contents.fingerprint = index.header.fingerprint
    if index.header.version == 1:
        warn_old_version(shown)
    return contents


def _read_bytes(path: str | Url, settings: Settings) -> bytes:
    """Return the bytes of a small file, local or remote."""
    if isinstance(path, Url):
        return read_remote(path, settings)
    with open(path, "rb") as stored:
        return stored.read()
