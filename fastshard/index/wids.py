"""The shard list of wids: JSON with the url and the number of samples of each shard.

::

    {"wids_version": 1, "shardlist": [{"url": "t-0.tar", "nsamples": 2}, …],
     "datasets": [{"shardlist": […], "base": …}, {"source_url": "other.json"}]}

It holds no extents. Urls are relative to ``base``, or to the file itself.
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
from fastshard.errors import FastshardError, FormatError

__all__ = ["WidsShard", "read_wids", "write_wids"]

KIND = "wids-shard-index-v1"
CHUNK = 1 << 20  # bytes read at once
MOST = (1 << 63) - 1  # samples or bytes
FILE = re.compile(r"file://(?:localhost)?(?=/)", re.IGNORECASE)
REMOTE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^/]*)|pipe:")


class WidsShard(NamedTuple):
    """One shard of a list."""

    url: str  # an absolute path; what has another scheme than file:// as it is
    nsamples: int
    filesize: int | None  # bytes
    md5sum: str | None  # hexadecimal


def read_wids(path: str, read: Callable[[str], bytes] | None = None) -> list[WidsShard]:
    """Read a shard list.

    Parameters
    ----------
    path : str

    Returns
    -------
    list of WidsShard
        In the file's order: its own list, then those of its datasets.

    Raises
    ------
    FormatError
        It is no shard list of version 1.
    FastshardError
        It names another that is remote.
    OSError
        It cannot be read, or another that it names.
    """
    found = _loaded(path, read)
    shards = list(_shards(found, path))
    others: set[str] = set()
    for part in _list(found, "datasets", path):
        if not isinstance(part, dict):
            raise FormatError("a dataset is no object", path, 0)
        _check_facts(part, path)
        whose = path
        if "source_url" in part:
            whose = _source_of(part, path)
            if whose in others:
                raise FormatError(f"{whose} is named twice", path, 0)
            others.add(whose)
            part = _loaded(whose)
        shards += _shards(_without_parts(part, whose), whose)
    return shards


def _loaded(path: str, read: Callable[[str], bytes] | None = None) -> dict[str, Any]:
    if read is None:
        with LocalFile(path) as file:
            raw = PreadSource(file).read(0, file.nbytes)
    else:
        raw = read(path)
    try:
        text = raw.decode("utf-8")
        found = json.loads(text)
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8: {error.reason}", path, error.start) from error
    except json.JSONDecodeError as error:
        at = len(text[: error.pos].encode())
        raise FormatError(f"not JSON: {error.msg}", path, at) from error
    except (RecursionError, ValueError) as error:
        raise FormatError(f"not JSON: {error}", path, 0) from error
    if not isinstance(found, dict) or not _is_one(found.get("wids_version")):
        raise FormatError("not a shard list of wids, version 1", path, 0)
    _check_facts(found, path)
    return found


def _is_one(version: Any) -> bool:
    return type(version) is int and version == 1  # True and 1.0 are equal to it


def _check_facts(found: dict[str, Any], path: str) -> None:
    """Raise unless what is said of a dataset is of the right kind."""
    name, weight = found.get("name"), found.get("weight")
    if name is not None and not isinstance(name, str):
        raise FormatError("name is no text", path, 0)
    if weight is not None and type(weight) not in (int, float):
        raise FormatError("weight is no number", path, 0)


def _without_parts(part: dict[str, Any], path: str) -> dict[str, Any]:
    if "source_url" in part or _list(part, "datasets", path):
        raise FormatError("datasets inside datasets", path, 0)
    if "shardlist" not in part:
        raise FormatError("a dataset without a shard list", path, 0)
    return part


def _source_of(part: dict[str, Any], path: str) -> str:
    """Return where the shard list of a dataset is."""
    source = _joined(_folder_of(path), _text(part, "source_url", path))
    if REMOTE.match(source):
        raise FastshardError(
            f"{source}, which {path} names, is remote, "
            "and only local shard lists can be read"
        )
    return os.path.normpath(source)


def _shards(found: dict[str, Any], path: str) -> Iterator[WidsShard]:
    base = _folder_of(path)
    if found.get("base") is not None:
        base = _joined(base, _text(found, "base", path))
    for shard in _list(found, "shardlist", path):
        yield _shard(shard, base, path)


def _folder_of(path: str) -> str:
    if REMOTE.match(path):
        return path.rpartition("/")[0]
    return os.path.dirname(os.path.abspath(path))


def _list(found: dict[str, Any], name: str, path: str) -> list[Any]:
    value = found.get(name, [])
    if not isinstance(value, list):
        raise FormatError(f"{name} is no array", path, 0)
    return value


def _text(found: dict[str, Any], name: str, path: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not value or "\0" in value:
        raise FormatError(f"{name} is no text", path, 0)
    try:
        os.fsencode(value)
    except UnicodeEncodeError as error:
        raise FormatError(f"{name} is not Unicode: {error.reason}", path, 0) from error
    return value


def _joined(base: str, url: str) -> str:
    """Return where a url leads: a path, unless it or its base is remote."""
    local = FILE.match(url)
    if local is not None:
        return url[local.end() :]
    if REMOTE.match(url):
        return url
    remote = REMOTE.match(base)
    if remote is None:
        return os.path.join(base, url.removeprefix("./"))
    if url.startswith("/"):  # from the root of the same host
        return (remote[1] or "") + url
    return base.rstrip("/") + "/" + url


def _shard(shard: Any, base: str, path: str) -> WidsShard:
    if not isinstance(shard, dict):
        raise FormatError("a shard is no object", path, 0)
    url = _joined(base, _text(shard, "url", path))
    md5sum = shard.get("md5sum")
    if md5sum is not None and not isinstance(md5sum, str):
        raise FormatError(f"md5sum of {url} is no text", path, 0)
    filesize = None
    if shard.get("filesize") is not None:
        filesize = _count(shard, "filesize", url, path)
    return WidsShard(url, _count(shard, "nsamples", url, path), filesize, md5sum)


def _count(shard: dict[str, Any], name: str, url: str, path: str) -> int:
    value = shard.get(name)
    if type(value) is not int or not 0 <= value <= MOST:
        raise FormatError(f"{name} of {url} is no count", path, 0)
    return value


def write_wids(
    path: str,
    shards: Sequence[tuple[str, int]],
    *,
    name: str | None = None,
    md5: bool = False,
) -> None:
    """Write a shard list; it appears whole.

    Parameters
    ----------
    path : str
    shards : sequence of (path, number of samples)
        Those below the list's directory are named relative to it.
    name : str, optional
        Of the dataset; otherwise the directory's.
    md5 : bool
        Record a checksum of each shard, which reads all of it.

    Raises
    ------
    FastshardError
        A shard's path means another to wids, as with a ``?`` in it.
    ValueError
        There are no shards, or a number of samples is negative.
    OSError
        A shard cannot be read, or the list not be written.
    """
    if not shards:
        raise ValueError("a shard list of wids needs a shard at least")
    folder = _folder_of(path)
    listed = []
    for shard, count in shards:
        if count < 0:
            raise ValueError(f"{shard} cannot have {count:,} samples")
        facts: dict[str, Any] = {"url": _url_of(shard, folder)}
        if md5:
            facts["md5sum"] = _md5_of(shard)
        listed.append(facts | {"nsamples": count, "filesize": os.stat(shard).st_size})
    whole = {
        "__kind__": KIND,
        "wids_version": 1,
        "name": name or os.path.basename(folder),
        "shardlist": listed,
    }
    with replace_file(path) as file:
        file.write(json.dumps(whole, indent=2).encode() + b"\n")


def _url_of(shard: str, folder: str) -> str:
    """Return what wids takes for a shard's path."""
    from urllib.parse import urlparse

    whole = os.path.abspath(shard)
    below = whole.startswith(os.path.join(folder, ""))
    url = os.path.relpath(whole, folder) if below else whole
    url = url.replace(os.sep, "/")
    if ":" in url.partition("/")[0] and below:  # no scheme
        url = "./" + url
    try:
        plain = urlparse(url).path == url
        url.encode()
    except ValueError:  # brackets, or bytes that are no text
        plain = False
    if not plain:
        raise FastshardError(f"a shard list of wids cannot hold the path {shard!r}")
    return url


def _md5_of(path: str) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with LocalFile(path) as file:
        source = PreadSource(file)
        for at in range(0, file.nbytes, CHUNK):
            digest.update(source.read(at, min(CHUNK, file.nbytes - at)))
    return digest.hexdigest()
