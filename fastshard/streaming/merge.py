"""Indexes of partitions, merged into one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from fastshard._core.streaming.index import LARGEST_INDEX
from fastshard._util.files import make_directory
from fastshard._util.json import parse_json
from fastshard.errors import FormatError, ShardNotFoundError
from fastshard.streaming.index import FORMATS, INDEX_NAME, read_index
from fastshard.streaming.write.base import URL, save_index

__all__ = ["merge_index"]

FILES = ("raw_data", "zip_data", "raw_meta", "zip_meta")
Partition = str | os.PathLike[str] | tuple[str, str]


def merge_index(
    source: str | os.PathLike[str] | Sequence[Partition],
    out: str | os.PathLike[str] | None = None,
    keep_local: bool = True,
) -> str:
    """Write one ``index.json`` for the shards of several partitions.

    Shards stay where they are: the index names them by their paths below `out`, of any
    depth. Partitions that are not all below `out` are named by their paths below the
    directory that they have in common; their files have to be moved beside the index.

    Parameters
    ----------
    source : str, path-like, or sequence of these
        Root of all partitions: each ``index.json`` below it is merged, in the order of
        their paths. Or the partitions in their order: paths of directories or of
        ``index.json``; repeated ones count once. Of a pair (local, remote), as
        mosaicml-streaming takes it, the local path counts.
    out : str or path-like, optional
        Directory for the index, which replaces one that is there. Required for a
        sequence; by default the root.
    keep_local : bool
        Must be True: there is no other copy.

    Returns
    -------
    str
        Path of the index.

    Raises
    ------
    FileNotFoundError
        An index does not exist, or there is none below the root.
    FormatError
        An index is invalid, or two name the same file.
    ValueError
        A path is a URL, `out` is missing, or `keep_local` is False.

    Examples
    --------
    >>> from fastshard.streaming import MDSWriter, merge_index
    >>> for part in ("a", "b"):
    ...     with MDSWriter(columns={"id": "str"}, out=f"parts/{part}") as writer:
    ...         writer.write({"id": part})
    >>> merge_index("parts")
    'parts/index.json'
    >>> import json
    >>> from pathlib import Path
    >>> shards = json.loads(Path("parts/index.json").read_text())["shards"]
    >>> [shard["raw_data"]["basename"] for shard in shards]
    ['a/shard.00000.mds', 'b/shard.00000.mds']
    """
    if not keep_local:
        raise ValueError(
            "keep_local=False would remove the only copy: fastshard does not upload"
        )
    if isinstance(source, (str, os.PathLike)):
        root = _local(source)
        folder = root if out is None else _local(out)
        indexes = _indexes_below(root, folder)
    else:
        if out is None:
            raise ValueError("partitions in a sequence need out=")
        folder = _local(out)
        indexes = list(dict.fromkeys(map(_index_path, source)))
        if not indexes:
            raise ValueError("no partitions to merge")
    base = _common_base(folder, indexes)
    shards = [shard for path in indexes for shard in _shards_of(path, base)]
    text = json.dumps({"version": 2, "shards": shards}).encode()
    if all(shard.get("format") in FORMATS for shard in shards):
        read_index(text, folder)  # raises for an index that readers refuse
    make_directory(os.path.abspath(folder))
    save_index(folder, text)
    return os.path.join(folder, INDEX_NAME)


def _local(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if URL.match(text):
        raise ValueError(f"merge_index reads and writes local files, got {text!r}")
    return os.path.expanduser(text)


def _index_path(partition: Partition) -> str:
    if isinstance(partition, tuple):
        partition = partition[0]
    path = _local(partition).strip().rstrip("/")
    return path if path.endswith(".json") else os.path.join(path, INDEX_NAME)


def _indexes_below(root: str, folder: str) -> list[str]:
    """Return the indexes below a directory, except those of root and output."""
    own = {os.path.abspath(root), os.path.abspath(folder)}
    found = [
        os.path.join(directory, INDEX_NAME)
        for directory, _, names in os.walk(root, onerror=_fail)
        if INDEX_NAME in names and os.path.abspath(directory) not in own
    ]
    if not found:
        raise ShardNotFoundError(f"no index.json below {root}", root)
    return sorted(found)


def _fail(error: OSError) -> None:
    raise error


def _common_base(folder: str, indexes: Iterable[str]) -> str:
    """Return the directory that paths of shards begin at."""
    base = os.path.abspath(folder)
    folders = [os.path.dirname(os.path.abspath(path)) for path in indexes]
    if all(os.path.commonpath([base, each]) == base for each in folders):
        return base
    return os.path.commonpath([os.path.dirname(each) for each in folders])


def _shards_of(path: str, base: str) -> list[dict[str, Any]]:
    """Return the shards of an index, with their names below `base`."""
    shards = _read_shards(path)
    below = os.path.relpath(os.path.dirname(os.path.abspath(path)), base)
    prefix = "" if below == os.curdir else below.replace(os.sep, "/") + "/"
    for i, shard in enumerate(shards):
        for key in FILES:
            info = shard.get(key)
            if info is None:
                continue
            name = info.get("basename") if isinstance(info, dict) else None
            if not isinstance(name, str) or not _is_inside(name):
                raise FormatError(f"shard {i}: no basename of {key}", path, 0)
            info["basename"] = prefix + name
    return shards


def _read_shards(path: str) -> list[dict[str, Any]]:
    with open(path, "rb") as file:
        text = file.read(LARGEST_INDEX + 1)
    index = parse_json(text, path, limit=LARGEST_INDEX, surrogates=True)
    shards = index.get("shards") if isinstance(index, dict) else None
    if not isinstance(shards, list) or not all(isinstance(s, dict) for s in shards):
        raise FormatError("not an index: no list of shards", path, 0)
    if index.get("version") != 2:
        raise FormatError(f"version {index.get('version')!r} of an index", path, 0)
    return shards


def _is_inside(name: str) -> bool:
    """Return whether a basename stays in its directory."""
    parts = re.split(r"[/\\]" if os.sep == "\\" else "/", name)
    return bool(name) and not os.path.isabs(name) and ".." not in parts
