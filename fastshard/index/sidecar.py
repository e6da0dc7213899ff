"""Sidecar files of shards: finding, reading and writing the index of one.

This module finds the one to use, reads one that is named, and writes one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastshard._core.io.source import LocalFile, PreadSource
from fastshard._core.table.grouping import Grouping
from fastshard.errors import FastshardError, FormatError
from fastshard.index.contents import Contents, warn_ignored_index, warn_old_version

if TYPE_CHECKING:
    from fastshard.index.freshness import Hashes
    from fastshard.remote.file import RemoteFile

__all__ = [
    "FORMATS",
    "find_index",
    "infer_format",
    "parse_json_sidecar",
    "peek_counts",
    "read_index",
    "save_index",
    "sidecar_path",
]

FORMATS = {  # suffix of the file, by name of the format
    "fsi": ".fsi",
    "json": ".json",
    "idx": ".idx",
    "tar.idx": ".tar.idx",
}
SEARCHED = "fsi", "json"  # those that are looked for: the others hold too little


def sidecar_path(shard: str, format: str, folder: str | None = None) -> str:  # noqa: A002
    """Return the path of a shard's index, beside it or in a folder."""
    stem = os.path.splitext(shard)[0]
    if format == "idx":  # DALI's own: up to the first dot
        head, tail = os.path.split(stem)
        stem = os.path.join(head, tail.split(".")[0])
    if folder is not None:
        stem = os.path.join(folder, os.path.basename(stem))
    return stem + FORMATS[format]


def infer_format(path: str) -> str:
    """Return the format that an index's suffix says.

    Raises
    ------
    ValueError
        It says none.
    """
    name = os.path.basename(path)
    for format in ("tar.idx", "fsi", "json", "idx"):  # noqa: A001
        if name.endswith(FORMATS[format]):
            return format
    raise ValueError(
        f"{path}: an index ends in {', '.join(FORMATS.values())}; or name its format"
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
    """Read an index that was named, of the format that its suffix says.

    Parameters
    ----------
    path : str
    file : LocalFile
        The shard.
    last_dot, lower : bool
        The rule for keys and fields; see `Grouping`.
    copied : bool
        Keep nothing mapped.
    progress : callable, optional
        Called as by `scan_tar`, where the shard has to be scanned.

    Raises
    ------
    StaleIndexError
        The index is of another shard, or of an earlier state of this one.
    FormatError
        The index is broken.
    OSError
        It cannot be read.
    """
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
        raise FastshardError(f"an index in the format {kind} is for local shards")
    if kind == "idx":
        from fastshard.index.dali import read_dali

        contents = read_dali(path, file)
        check_size_and_headers(path, None, file, contents.table)
        return contents
    from fastshard.index.energon import read_energon

    return read_energon(path, file, progress)


def parse_json_sidecar(
    text: bytes, path: str, file: LocalFile | RemoteFile
) -> Contents:
    """Parse a JSON index, and see that it is of a shard; see `read_index`."""
    from fastshard.index.freshness import check_size, check_size_and_headers
    from fastshard.index.jsonfile import parse_json

    try:
        contents, recorded = parse_json(text, path, file.nbytes)
    except FormatError:  # an extent outside the shard: was the shard larger?
        _, recorded = parse_json(text, path, None)
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
) -> Contents | None:
    """Read the fresh index of a shard, if there is one.

    A stale or broken one is passed over with a `StaleIndexWarning`.

    Parameters
    ----------
    file : LocalFile
        The shard.
    folder : str, optional
        Where indexes are; otherwise beside the shard.
    last_dot, lower, copied
        As for `read_index`.
    """
    for kind in SEARCHED:
        path = sidecar_path(file.path, kind, folder)
        try:
            return read_index(path, file, last_dot=last_dot, lower=lower, copied=copied)
        except OSError:
            if os.path.exists(path):  # asked afterwards: most shards have one
                raise
        except FormatError as error:
            warn_ignored_index(error)
    return None


def peek_counts(
    shard: str, folder: str | None = None, last_dot: bool = False
) -> tuple[int, int] | None:
    """Return how many samples and members a shard has, if its ``.fsi`` says.

    Nothing but the header is read. None where there is none of this very file, as one
    `stat` tells, or where it has another rule for keys: open the shard then.

    Raises
    ------
    OSError
        There is no such shard.
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
        return None  # opening the shard says what is wrong
    if header.shard_bytes != status.st_size or header.last_dot != last_dot:
        return None
    if not is_same_file(header.identity, identify_file(status)):
        return None
    return header.samples, header.members


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
    """Write an index of a shard; it appears whole.

    Parameters
    ----------
    contents : Contents
        What the shard holds.
    file : LocalFile or RemoteFile
        The shard.
    path : str
    format : {"fsi", "json", "idx", "tar.idx"}, optional
        Otherwise the suffix of `path` says it.
    grouping : Grouping, optional
        The samples to record in a binary index; by first dots without one.
    hashes : Hashes, optional
        Checksums to record; JSON and binary indexes can.
    progress : callable, optional
        Called as by `scan_tar`, where the shard has to be scanned for the format.

    Raises
    ------
    StaleIndexError
        The shard was written to meanwhile.
    FastshardError
        The format cannot carry something that the shard has.
    ValueError
        There is no such format.
    OSError
        It cannot be written.
    """
    kind = format or infer_format(path)
    if kind not in FORMATS:
        raise ValueError(f"{kind!r} is no format of an index: {', '.join(FORMATS)}")
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
            infos=None if hashes is None else hashes.infos(contents.table),
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
        raise FastshardError(f"an index in the format {kind} is made of local shards")
    elif hashes is not None:
        raise FastshardError(f"an index in the format {kind} holds no hashes")
    elif kind == "idx":
        from fastshard.index.dali import write_dali

        write_dali(path, contents, file)
    else:
        from fastshard.index.energon import write_energon

        write_energon(path, contents, file, progress)
