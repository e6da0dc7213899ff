"""The JSON index, ``<stem>.json``, of webshart and hfutils.

``files`` is an object of members by name, or an array of members; `parse_index` reads
both. Written is the object, with the members in the shard's order::

    {"path": "s.tar", "filesize": 10240, "hash": "…", "hash_lfs": "…",
     "files": {"a.jpg": {"offset": 512, "length": 4, "sha256": "…", …}}}

``hash``, ``hash_lfs``, ``sha256`` and further values of a member are written if known.
In a name that is not UTF-8, each byte that cannot be decoded is an escaped lone
surrogate, U+DC80 to U+DCFF.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from fastshard._core.io.source import LocalFile, PreadSource
from fastshard._core.parse.json import parse_index
from fastshard._util.files import replace_file
from fastshard._util.json import parse_json
from fastshard.errors import FastshardError, FormatError
from fastshard.index.contents import Contents, ForeignFileError

__all__ = ["parse_info", "parse_json_index", "read_json", "write_json"]

# Values of a member that are its extent or name, not metadata.
NOT_INFO = {"offset", "size", "length", "path", "fname", "filename"}


def read_json(path: str, nbytes: int | None) -> tuple[Contents, int | None]:
    """Read a JSON index."""
    with LocalFile(path) as file:
        text = PreadSource(file).read(0, file.nbytes)
    return parse_json_index(text, path, nbytes)


def parse_json_index(
    text: bytes, path: str, nbytes: int | None
) -> tuple[Contents, int | None]:
    """Parse the text of a JSON index; see `read_json`.

    Without the word ``"files"`` it is that of another tool: a `ForeignFileError`.
    """
    try:
        table, filesize = parse_index(text, path, nbytes)
    except FormatError as error:
        if b'"files"' in text:
            raise
        raise ForeignFileError(error.reason, path, error.offset) from None
    return Contents(table, index=path), filesize


def parse_info(text: bytes) -> dict[str, Any]:
    """Return the values of a member's JSON object beside its extent and name."""
    if not text:
        return {}
    try:
        info = parse_json(text, "<info>", surrogates=True)
    except FormatError as error:
        raise ValueError(error.reason) from None
    if not isinstance(info, dict):
        raise ValueError(f"expected an object, got {type(info).__name__}")
    return {key: value for key, value in info.items() if key not in NOT_INFO}


def write_json(
    path: str,
    contents: Contents,
    nbytes: int,
    *,
    shard: str,
    sha256: Sequence[str] | None = None,
    hash: str | None = None,  # noqa: A002
    hash_lfs: str | None = None,
) -> None:
    """Write a JSON index, atomically."""
    table = contents.table
    if sha256 is not None and len(sha256) != len(table):
        raise ValueError(
            f"expected a checksum for each of {len(table):,} members, "
            f"got {len(sha256):,}"
        )
    repeated = table.duplicates()
    if repeated:
        raise FastshardError(
            f"a JSON index lists a name once, but {len(repeated):,} names of {shard} "
            f"are repeated, such as {table.name_of(repeated[0])!r}; use the fsi format"
        )
    values = {"path": shard, "filesize": nbytes, "hash": hash, "hash_lfs": hash_lfs}
    head = {key: value for key, value in values.items() if value is not None}
    with replace_file(path) as file:
        file.write(_dumps(head)[:-1] + b',"files":{')
        for entry in _encode_members(contents, sha256):
            file.write(entry)
        file.write(b"}}\n")


def _encode_members(
    contents: Contents, sha256: Sequence[str] | None
) -> Iterator[bytes]:
    """Yield the JSON of each member, on a line of its own."""
    table = contents.table
    for i in range(len(table)):
        name = table.name_of(i)
        offset, size = table.extent(i)
        extent = {"offset": offset, "length": size}
        digest = {} if sha256 is None else {"sha256": sha256[i]}
        text = table.info(i)
        try:
            info = parse_info(text) | digest
            if "\0" in name:
                raise ValueError("its name has a NUL")
            entry = _dumps(name) + b":" + _dumps(extent | info)
        except ValueError as error:
            reason = f"a JSON index cannot represent the member {name!r}: {error}"
            raise FastshardError(reason) from error
        yield b",\n" + entry if i > 0 else b"\n" + entry


def _dumps(value: object) -> bytes:
    """Return strict JSON in UTF-8; surrogates of undecodable bytes are escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        text.encode("utf-8", "surrogateescape")  # raises for other surrogates
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
