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
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fastshard._core.source import LocalFile, PreadSource
from fastshard.errors import FormatError
from fastshard.files import replacing

__all__ = ["WidsShard", "read_wids", "write_wids"]

KIND = "wids-shard-index-v1"
CHUNK = 1 << 20  # bytes read at once
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class WidsShard(NamedTuple):
    """One shard of a list."""

    url: str  # a path, or a url of another scheme as it is
    nsamples: int
    filesize: int | None  # bytes
    md5sum: str | None  # hexadecimal


def read_wids(path: str) -> list[WidsShard]:
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
    OSError
        It cannot be read, or another that it names.
    """
    return list(_shards(_loaded(path), path, nested=True))


def _loaded(path: str) -> dict[str, Any]:
    with LocalFile(path) as file:
        raw = PreadSource(file).read(0, file.nbytes)
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
    if not isinstance(found, dict) or found.get("wids_version") != 1:
        raise FormatError("not a shard list of wids, version 1", path, 0)
    return found


def _shards(found: dict[str, Any], path: str, *, nested: bool) -> Iterator[WidsShard]:
    base = _base(found, path)
    for shard in _list(found, "shardlist", path):
        yield _shard(shard, base, path)
    for part in _list(found, "datasets", path):
        if not nested:
            raise FormatError("datasets inside datasets", path, 0)
        if not isinstance(part, dict):
            raise FormatError("a dataset is no object", path, 0)
        if "source_url" in part:
            other = _joined(_base({}, path), _text(part, "source_url", path))
            yield from _shards(_loaded(other), other, nested=False)
        elif "shardlist" not in part:
            raise FormatError("a dataset without a shard list", path, 0)
        else:
            yield from _shards(part, path, nested=False)


def _list(found: dict[str, Any], name: str, path: str) -> list[Any]:
    value = found.get(name, [])
    if not isinstance(value, list):
        raise FormatError(f"{name} is no array", path, 0)
    return value


def _text(found: dict[str, Any], name: str, path: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not value or "\0" in value:
        raise FormatError(f"{name} is no text", path, 0)
    return value


def _base(found: dict[str, Any], path: str) -> str:
    """Return what urls are relative to: ``base``, else the file's directory."""
    folder = os.path.dirname(path)
    if found.get("base") is None:
        return folder
    return _joined(folder, _text(found, "base", path))


def _joined(base: str, url: str) -> str:
    """Return where a url leads: a path, unless it or its base has a scheme."""
    url = url.removeprefix("file://")
    if SCHEME.match(url) or os.path.isabs(url):
        return url
    if SCHEME.match(base):
        return base.rstrip("/") + "/" + url
    return os.path.join(base, url)


def _shard(shard: Any, base: str, path: str) -> WidsShard:
    if not isinstance(shard, dict):
        raise FormatError("a shard is no object", path, 0)
    url = _joined(base, _text(shard, "url", path))
    numbers: list[int | None] = []
    for name in ("nsamples", "filesize"):
        value = shard.get(name)
        if name == "filesize" and value is None:
            numbers.append(None)
        elif type(value) is not int or not 0 <= value < 1 << 63:
            raise FormatError(f"{name} of {url} is no count", path, 0)
        else:
            numbers.append(value)
    md5sum = shard.get("md5sum")
    if md5sum is not None and not isinstance(md5sum, str):
        raise FormatError(f"md5sum of {url} is no text", path, 0)
    count, filesize = numbers
    assert count is not None
    return WidsShard(url, count, filesize, md5sum)


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
    OSError
        A shard cannot be read, or the list not be written.
    """
    folder = os.path.dirname(os.path.abspath(path))
    listed = []
    for shard, count in shards:
        whole = os.path.abspath(shard)
        below = os.path.commonpath([folder, whole]) == folder
        facts: dict[str, Any] = {
            "url": os.path.relpath(whole, folder) if below else whole
        }
        if md5:
            facts["md5sum"] = _md5_of(whole)
        listed.append(facts | {"nsamples": count, "filesize": os.stat(whole).st_size})
    whole_list = {
        "__kind__": KIND,
        "wids_version": 1,
        "name": name or os.path.basename(folder),
        "shardlist": listed,
    }
    with replacing(path) as file:
        file.write(json.dumps(whole_list, indent=2).encode() + b"\n")


def _md5_of(path: str) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with LocalFile(path) as file:
        source = PreadSource(file)
        for at in range(0, file.nbytes, CHUNK):
            digest.update(source.read(at, min(CHUNK, file.nbytes - at)))
    return digest.hexdigest()
