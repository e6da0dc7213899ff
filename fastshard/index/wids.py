"""The shard list of wids: JSON with the URL and the number of samples of each shard.

::

    {"wids_version": 1, "shardlist": [{"url": "t-0.tar", "nsamples": 2}, …],
     "datasets": [{"shardlist": […], "base": …}, {"source_url": "other.json"}]}

The list has no extents. URLs are relative to ``base``, or to the list itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from fastshard._core.io.source import LocalFile, PreadSource
from fastshard._util.files import replace_file
from fastshard._util.json import parse_json
from fastshard._util.paths.urls import redact
from fastshard.errors import FastshardError, FormatError

__all__ = ["WidsShard", "read_wids", "write_wids"]

KIND = "wids-shard-index-v1"
CHUNK = 1 << 20  # bytes of a read
MAX_COUNT = (1 << 63) - 1  # samples or bytes of a shard
FILE_URL = re.compile(r"file:(?://(?:localhost)?(?=/)|(?!//))", re.IGNORECASE)
REMOTE_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^/]*)|pipe:")


class WidsShard(NamedTuple):
    """Entry of a shard list."""

    url: str  # an absolute path, or a URL of another scheme than file://
    nsamples: int
    filesize: int | None  # bytes
    md5sum: str | None  # hexadecimal


def read_wids(path: str, read: Callable[[str], bytes] | None = None) -> list[WidsShard]:
    """Read a shard list."""
    found = _load(path, read)
    shards = list(_parse_shards(found, path))
    others: set[str] = set()
    for part in _get_list(found, "datasets", path):
        if not isinstance(part, dict):
            kind = type(part).__name__
            raise FormatError(f"a dataset must be an object, got {kind}", path, 0)
        _check_metadata(part, path)
        origin = path
        if "source_url" in part:
            origin = _resolve_source(part, path)
            if origin in others:
                raise FormatError(f"{origin} is listed twice", path, 0)
            others.add(origin)
            part = _load(origin)
        shards += _parse_shards(_check_flat(part, origin), origin)
    return shards


def _load(path: str, read: Callable[[str], bytes] | None = None) -> dict[str, Any]:
    if read is None:
        with LocalFile(path) as file:
            raw = PreadSource(file).read(0, file.nbytes)
    else:
        raw = read(path)
    found = parse_json(raw, path)
    if not isinstance(found, dict) or not _is_version_1(found.get("wids_version")):
        raise FormatError("not a wids shard list of version 1", path, 0)
    _check_metadata(found, path)
    return found


def _is_version_1(version: object) -> bool:
    return type(version) is int and version == 1  # not True, not 1.0


def _check_metadata(found: dict[str, Any], path: str) -> None:
    """Raise FormatError unless a dataset's name and weight have the right types."""
    name, weight = found.get("name"), found.get("weight")
    if name is not None and not isinstance(name, str):
        raise FormatError(f"name must be a string, got {type(name).__name__}", path, 0)
    if weight is not None and type(weight) not in (int, float):
        raise FormatError(
            f"weight must be a number, got {type(weight).__name__}", path, 0
        )


def _check_flat(part: dict[str, Any], path: str) -> dict[str, Any]:
    if "source_url" in part or _get_list(part, "datasets", path):
        raise FormatError("a dataset has datasets of its own", path, 0)
    if "shardlist" not in part:
        raise FormatError("a dataset has no shardlist", path, 0)
    return part


def _resolve_source(part: dict[str, Any], path: str) -> str:
    """Return the path of a dataset's own shard list."""
    source = _resolve(_directory_of(path), _get_text(part, "source_url", path))
    if REMOTE_URL.match(source):
        raise FastshardError(
            f"{path} refers to the remote list {redact(source)}, but can refer to "
            "local lists only: download it, and refer to the copy"
        )
    return os.path.normpath(source)


def _parse_shards(found: dict[str, Any], path: str) -> Iterator[WidsShard]:
    base = _directory_of(path)
    if found.get("base") is not None:
        base = _resolve(base, _get_text(found, "base", path))
    for shard in _get_list(found, "shardlist", path):
        yield _parse_shard(shard, base, path)


def _directory_of(path: str) -> str:
    if REMOTE_URL.match(path):
        return path.rpartition("/")[0]
    return os.path.dirname(os.path.abspath(path))


def _get_list(found: dict[str, Any], name: str, path: str) -> list[Any]:
    value = found.get(name, [])
    if not isinstance(value, list):
        raise FormatError(
            f"{name} must be an array, got {type(value).__name__}", path, 0
        )
    return value


def _get_text(found: dict[str, Any], name: str, path: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not value or "\0" in value:
        raise FormatError(f"{name} must be a non-empty string without NUL", path, 0)
    try:
        os.fsencode(value)
    except UnicodeEncodeError as error:
        raise FormatError(f"{name} is not Unicode: {error.reason}", path, 0) from error
    return value


def _resolve(base: str, url: str) -> str:
    """Return a path, or a URL if `url` or `base` is remote."""
    local = FILE_URL.match(url)
    if local is not None:
        url = url[local.end() :]
        if url.startswith("/"):
            return url
    if REMOTE_URL.match(url):
        return url
    remote = REMOTE_URL.match(base)
    if remote is None:
        return os.path.join(base, url.removeprefix("./"))
    if url.startswith("/"):  # relative to the host
        return (remote[1] or "") + url
    return base.rstrip("/") + "/" + url


def _parse_shard(shard: object, base: str, path: str) -> WidsShard:
    if not isinstance(shard, dict):
        raise FormatError(
            f"a shard must be an object, got {type(shard).__name__}", path, 0
        )
    url = _resolve(base, _get_text(shard, "url", path))
    md5sum = shard.get("md5sum")
    if md5sum is not None and not isinstance(md5sum, str):
        raise FormatError(f"md5sum of {redact(url)} must be a string", path, 0)
    filesize = None
    if shard.get("filesize") is not None:
        filesize = _get_count(shard, "filesize", url, path)
    return WidsShard(url, _get_count(shard, "nsamples", url, path), filesize, md5sum)


def _get_count(shard: dict[str, Any], name: str, url: str, path: str) -> int:
    value = shard.get(name)
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        reason = f"{name} of {redact(url)} must be an int of 0 to 2**63 - 1"
        raise FormatError(reason, path, 0)
    return value


def write_wids(
    path: str,
    shards: Sequence[tuple[str, int]],
    *,
    name: str | None = None,
    md5: bool = False,
) -> None:
    """Write a shard list, atomically."""
    if not shards:
        raise ValueError("a wids shard list needs at least one shard")
    folder = _directory_of(path)
    listed = []
    for shard, count in shards:
        if count < 0:
            raise ValueError(f"samples of {shard} must not be negative, got {count:,}")
        entry: dict[str, Any] = {"url": _make_url(shard, folder)}
        if md5:
            entry["md5sum"] = _compute_md5(shard)
        listed.append(entry | {"nsamples": count, "filesize": os.stat(shard).st_size})
    content = {
        "__kind__": KIND,
        "wids_version": 1,
        "name": name or os.path.basename(folder),
        "shardlist": listed,
    }
    with replace_file(path) as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")


def _make_url(shard: str, folder: str) -> str:
    """Return the URL that wids resolves to a shard's path."""
    from urllib.parse import urlparse

    whole = os.path.abspath(shard)
    below = whole.startswith(os.path.join(folder, ""))
    url = os.path.relpath(whole, folder) if below else whole
    url = url.replace(os.sep, "/")
    if ":" in url.partition("/")[0] and below:
        url = "./" + url  # otherwise wids takes the first part for a scheme
    try:
        plain = urlparse(url).path == url
        url.encode()
    except ValueError:  # brackets, or bytes that are not UTF-8
        plain = False
    if not plain:
        raise FastshardError(
            f"a wids shard list cannot represent the path {shard!r}; rename the shard"
        )
    return url


def _compute_md5(path: str) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with LocalFile(path) as file:
        source = PreadSource(file)
        for at in range(0, file.nbytes, CHUNK):
            digest.update(source.read(at, min(CHUNK, file.nbytes - at)))
    return digest.hexdigest()
