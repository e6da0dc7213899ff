"""Version files of cached objects: which version of which object an entry holds."""

from __future__ import annotations

import hashlib
import json
import os
from typing import NamedTuple

from fastshard._util.json import parse_json
from fastshard._util.processes.descriptors import open_regular
from fastshard.remote.transport import MAX_NBYTES, ObjectInfo

__all__ = ["ObjectVersion", "hash_url", "hash_version", "read_version"]

MOST_TEXT = 1 << 20  # bytes of a version file that are read


class ObjectVersion(NamedTuple):
    """Version of an object, stored as a JSON file beside its cached bytes.

    Attributes
    ----------
    url : str
        Without secrets: it is stored.
    info : ObjectInfo
    """

    url: str
    info: ObjectInfo

    def dump(self) -> bytes:
        """Return the file's content for `read_version`: JSON in UTF-8."""
        table = {"url": self.url, **self.info._asdict(), "check": self._check()}
        return json.dumps(table, indent=1).encode()

    def _check(self) -> str:
        """Return a checksum of all fields."""
        return _sha256(repr((self.url, *self.info)))[:16]


def hash_url(url: str) -> str:
    """Return the part of an entry's name that all versions of an object share."""
    return _sha256(url)[:40]


def hash_version(info: ObjectInfo) -> str:
    """Return the part of an entry's name that differs between versions."""
    return _sha256(f"{info.tag}\n{info.nbytes}")[:24]


def read_version(path: str) -> ObjectVersion | None:
    """Read a version file; return None if it is missing or damaged."""
    try:
        with open(open_regular(path, os.O_RDONLY), "rb") as file:
            table = parse_json(file.read(MOST_TEXT), path, surrogates=True)
        info = ObjectInfo(table["nbytes"], table["tag"], table["mtime_ns"])
        version = ObjectVersion(table["url"], info)
        texts = version.url, info.tag, table["check"]
    except (OSError, ValueError, TypeError, LookupError):
        return None
    if any(type(text) is not str for text in texts):
        return None
    if any(type(n) is not int for n in (info.nbytes, info.mtime_ns)):
        return None
    if not 0 <= info.nbytes < MAX_NBYTES:
        return None
    return version if table["check"] == version._check() else None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
