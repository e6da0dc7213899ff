"""Sidecar files of local shards: finding, reading and writing indexes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fastshard._core.io.source import LocalFile, PreadSource
from fastshard._core.table.grouping import Grouping
from fastshard.errors import FastshardError, FormatError
from fastshard.index.contents import (
    Contents,
    Warn,
    warn_ignored_index,
    warn_old_version,
)

if TYPE_CHECKING:
    from fastshard.index.checksums import Hashes
    from fastshard.remote.file import RemoteFile

__all__ = [
    "FORMATS",
    "MAX_COUNTED",
    "count_json",
    "find_index",
    "infer_format",
    "parse_json_sidecar",
    "peek_counts",
    "peek_fields",
    "read_index",
    "save_index",
    "sidecar_path",
]

FORMATS = {  # file suffix by format
    "fsi": ".fsi",
    "json": ".json",
    "idx": ".idx",
    "tar.idx": ".tar.idx",
}
SEARCHED = "fsi", "json"  # formats to look for; the others lack names or sizes

MAX_COUNTED = 100_000  # members whose fields are listed
MAX_COPIED = 16 << 20  # bytes of an unmapped index: a mapped one may shrink


def sidecar_path(shard: str, format: str, folder: str | None = None) -> str:  # noqa: A002
    """Return the path of a shard's index, beside the shard or in `folder`."""
    stem = os.path.splitext(shard)[0]
    if format == "idx":  # DALI's rule: the stem ends at the first dot
        head, tail = os.path.split(stem)
        stem = os.path.join(head, tail.split(".")[0])
    if folder is not None:
        stem = os.path.join(folder, os.path.basename(stem))
    return stem + FORMATS[format]


def infer_format(path: str) -> str:
    """Return the format of an index, from its suffix."""
    name = os.path.basename(path)
    for format in ("tar.idx", "fsi", "json", "idx"):  # noqa: A001
        if name.endswith(FORMATS[format]):
            return format
    raise ValueError(
        f"an index ends in {', '.join(FORMATS.values())}, got {path}; "
        "rename it, or name its format"
    )


def read_index(
    path: str,
    file: LocalFile | RemoteFile,
    *,
    last_dot: bool,
    lower: bool,
    copied: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Contents:
    """Read an index, in the format of its suffix, and check that it is fresh."""
    from fastshard.index.freshness import check_binary, check_size_and_headers

    kind = infer_format(path)
    if kind == "fsi":
        from fastshard.index.binary import read_binary

        index = read_binary(path, copied=copied)
        contents = index.contents(last_dot, lower)
        check_binary(path, index.header, file, contents.table)
        contents.fingerprint = index.header.fingerprint
        if index.header.version == 1:
            warn_old_version(path)
        return contents
    if kind == "json":
        with LocalFile(path) as sidecar_file:
            text = PreadSource(sidecar_file).read(0, sidecar_file.nbytes)
        return parse_json_sidecar(text, path, file)
    if not isinstance(file, LocalFile):
        raise FastshardError(
            f"an index of format {kind} can be read for local shards only, "
            f"got {file.path}"
        )
    if kind == "idx":
        from fastshard.index.dali import is_visible, read_dali

        contents = read_dali(path, file)
        check_size_and_headers(path, None, file, contents.table, is_visible)
        return contents
    from fastshard.index.energon import read_energon

    return read_energon(path, file, progress)


def parse_json_sidecar(
    text: bytes, path: str, file: LocalFile | RemoteFile
) -> Contents:
    """Parse a JSON index, and check that it is fresh; see `read_index`."""
    from fastshard.index.freshness import check_size, check_size_and_headers
    from fastshard.index.jsonfile import parse_json_index

    try:
        contents, recorded = parse_json_index(text, path, file.nbytes)
    except FormatError:  # an extent outside the shard, if the shard was larger
        _, recorded = parse_json_index(text, path, None)
        if recorded is not None:
            check_size(path, recorded, file)
        raise
    check_size_and_headers(path, recorded, file, contents.table)
    return contents


def find_index(
    file: LocalFile,
    folder: str | None = None,
    *,
    last_dot: bool,
    lower: bool,
    copied: bool = False,
    warn: Warn = warn_ignored_index,
) -> Contents | None:
    """Return the contents that a fresh index of a shard lists, or None.

    A stale or damaged index is ignored with a `StaleIndexWarning`.
    """
    for kind in SEARCHED:
        path = sidecar_path(file.path, kind, folder)
        try:
            return read_index(path, file, last_dot=last_dot, lower=lower, copied=copied)
        except FileNotFoundError:  # even if another process makes it now
            continue
        except OSError:
            if os.path.exists(path):  # not before the read: most shards have one
                raise
        except FormatError as error:
            warn(error)
    return None


def count_json(shards: Sequence[str], folder: str | None = None) -> int:
    """Return how many shards have a file with the name of a JSON index."""
    return sum(os.path.exists(sidecar_path(s, "json", folder)) for s in shards)


def peek_counts(
    shard: str, folder: str | None = None, last_dot: bool = False
) -> tuple[int, int] | None:
    """Return the numbers of samples and members of a shard, from its ``.fsi`` header.

    None if there is no ``.fsi``, if it may be stale (by one `stat` of the shard), or if
    it has another rule for keys: open the shard to count them.
    """
    status = os.stat(shard)
    path = sidecar_path(shard, "fsi", folder)
    if not os.path.exists(path):
        return None
    from fastshard.index.binary import read_header
    from fastshard.index.freshness import identify_file, is_same_file

    try:
        header = read_header(path)
    except (FormatError, FileNotFoundError):
        return None  # opening the shard reports the error
    if header.shard_bytes != status.st_size or header.last_dot != last_dot:
        return None
    if not is_same_file(header.identity, identify_file(status)):
        return None
    return header.samples, header.members


def peek_fields(
    shard: str,
    folder: str | None = None,
    *,
    last_dot: bool,
    lower: bool,
    fingerprint: bytes | None = None,
) -> list[str]:
    """Return the fields of a shard's first samples, from its ``.fsi``.

    Empty if there is no fresh one; see `peek_counts`.
    """
    status = os.stat(shard)
    path = sidecar_path(shard, "fsi", folder)
    if not os.path.exists(path):
        return []
    from fastshard.index.binary import read_binary
    from fastshard.index.freshness import identify_file, is_same_file

    copied = os.path.getsize(path) <= MAX_COPIED
    index = read_binary(path, copied=copied)
    header = index.header
    if header.shard_bytes != status.st_size or header.last_dot != last_dot:
        return []
    if header.fingerprint != fingerprint and not is_same_file(
        header.identity, identify_file(status)
    ):
        return []
    grouping = index.contents(last_dot, lower).grouping
    return [] if grouping is None else list(grouping.field_counts(MAX_COUNTED))


def save_index(
    contents: Contents,
    file: LocalFile | RemoteFile,
    path: str,
    format: str | None = None,  # noqa: A002
    *,
    grouping: Grouping | None = None,
    hashes: Hashes | None = None,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Write an index of a shard, atomically."""
    kind = format or infer_format(path)
    if kind not in FORMATS:
        raise ValueError(
            f"the format of an index must be one of {', '.join(FORMATS)}, got {kind!r}"
        )
    if kind == "fsi":
        from fastshard.index.binary import write_binary
        from fastshard.index.freshness import compute_fingerprint, settle_identity

        write_binary(
            path,
            contents,
            grouping or contents.grouping or Grouping(contents.table, False, True),
            shard_bytes=file.nbytes,
            identity=settle_identity(file),
            fingerprint=compute_fingerprint(file, contents.table),
            infos=None if hashes is None else hashes.merge_infos(contents.table),
        )
    elif kind == "json":
        from fastshard.index.jsonfile import write_json

        write_json(
            path,
            contents,
            file.nbytes,
            shard=os.path.basename(file.path),
            sha256=None if hashes is None else hashes.sha256,
            hash=None if hashes is None else hashes.hash,
            hash_lfs=None if hashes is None else hashes.hash_lfs,
        )
    elif not isinstance(file, LocalFile):
        raise FastshardError(
            f"an index of format {kind} can be made of local shards only, "
            f"got {file.path}"
        )
    elif hashes is not None:
        raise FastshardError(
            f"an index of format {kind} has no checksums: use fsi or json, got {path}"
        )
    elif kind == "idx":
        from fastshard.index.dali import write_dali

        write_dali(path, contents, file)
    else:
        from fastshard.index.energon import write_energon

        write_energon(path, contents, file, progress)
