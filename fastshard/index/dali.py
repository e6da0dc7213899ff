"""DALI's index of a shard, ``.idx``, as its ``wds2idx`` writes it.

Text: a line ``v1.2 <number of samples>``, then one for each sample, with
``<extension> <offset> <size> <name>`` for each member, blanks between. Version
1.1 has no names. Members follow each other as in the shard; a sample is a run of
neighbours with the same key, which ends at the first dot of a name's last part.
Hidden files are left out. A name without a dot is its own extension.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import groupby
from typing import NoReturn

from fastshard._core.extents import ExtentTable
from fastshard._core.scan import scan_tar
from fastshard._core.source import LocalFile, PreadSource
from fastshard.errors import FastshardError, FormatError, StaleIndexError
from fastshard.files import replacing
from fastshard.index.columns import Extent, table_from
from fastshard.index.contents import Contents

__all__ = ["read_dali", "write_dali"]

BLOCK = 512  # bytes
FIELDS = {b"v1.1": 3, b"v1.2": 4}  # words of a member, by version
NUMBER = re.compile(rb"[0-9]{1,19}")
TOKEN = re.compile(rb"[^ ]+")
# What GNU tar writes as an escape, or what the words cannot hold.
UNFIT = re.compile(r"[\x00-\x20\x7f\\\udc80-\udcff]")


def read_dali(path: str, file: LocalFile) -> Contents:
    """Read a DALI index.

    Parameters
    ----------
    path : str
    file : LocalFile
        The shard. It is scanned where the index has no names.

    Raises
    ------
    StaleIndexError
        The index lists what the shard does not hold.
    FormatError
        It is no such index, or points outside the shard; the error names the byte.
    OSError
        It cannot be read.
    """
    with LocalFile(path) as index:
        text = PreadSource(index).read(0, index.nbytes)
    fields, lines = _lines(text, path)
    extents = [
        extent
        for at, line in lines
        for extent in _members(line, at, fields, path, file)
    ]
    if fields == 3:
        return Contents(_named(extents, path, file), index=path)
    return Contents(table_from(extents, path), index=path)


def _lines(text: bytes, path: str) -> tuple[int, list[tuple[int, bytes]]]:
    """Return the words of a member, and each sample's line and where it begins."""
    first, newline, rest = text.partition(b"\n")
    words = first.split(b" ")
    if len(words) != 2 or words[0] not in FIELDS or not NUMBER.fullmatch(words[1]):
        raise FormatError("not an index of DALI, version 1.1 or 1.2", path, 0)
    if not newline or (rest and not rest.endswith(b"\n")):
        raise FormatError("cut inside a line", path, len(text))
    at = len(first) + 1
    lines = []
    for line in rest.split(b"\n")[:-1]:
        lines.append((at, line))
        at += len(line) + 1
    if len(lines) != int(words[1]):
        reason = f"{len(lines):,} samples, where its first line says {int(words[1]):,}"
        raise FormatError(reason, path, 0)
    return FIELDS[words[0]], lines


def _members(
    line: bytes, at: int, fields: int, path: str, file: LocalFile
) -> Iterator[Extent]:
    """Read the members of a sample; without names, extensions stand for them."""
    words = [(found.start(), found.group()) for found in TOKEN.finditer(line)]
    if not words or len(words) % fields:
        raise FormatError(f"not {fields} words for each member", path, at)
    for i in range(0, len(words), fields):
        numbers = []
        for where, word in words[i + 1 : i + 3]:
            if not NUMBER.fullmatch(word):
                raise FormatError("not a number", path, at + where)
            numbers.append(int(word))
        offset, size = numbers
        name = words[i + fields - 1][1] if fields == 4 else words[i][1]
        if offset % BLOCK or not BLOCK <= offset <= file.nbytes - size:
            raise FormatError(
                f"{size:,} bytes at byte {offset:,} are no member of {file.path}",
                path,
                at + words[i + 1][0],
                os.fsdecode(name),
            )
        yield offset, size, name


def _named(extents: list[Extent], path: str, file: LocalFile) -> ExtentTable:
    """Find the names of listed members by a scan of the shard."""
    table, _, _ = scan_tar(file)
    stored = {table.extent(i): table.name_of(i) for i in range(len(table))}
    named = []
    for offset, size, extension in extents:
        name = stored.get((offset, size))
        if name is None or _split(name)[1] != os.fsdecode(extension):
            raise StaleIndexError(
                f"{file.path} has no {os.fsdecode(extension)} of {size:,} bytes "
                f"at byte {offset:,}",
                path,
                0,
            )
        named.append((offset, size, os.fsencode(name)))
    return table_from(named, path)


def _split(name: str) -> tuple[str, str]:
    """Split a name as DALI's writer does, names without a dot included."""
    dot = name.find(".", name.rfind("/") + 1)
    return name[:dot], name[dot + 1 :]


def write_dali(
    path: str, contents: Contents, file: LocalFile, version: str = "1.2"
) -> None:
    """Write a DALI index; the bytes that its own writer makes of the shard.

    Parameters
    ----------
    path : str
    contents : Contents
    file : LocalFile
        The shard, for messages.
    version : {"1.2", "1.1"}

    Raises
    ------
    FastshardError
        A name has blanks, or characters that the writer escapes; or the shard
        has no samples.
    OSError
        It cannot be written.
    """
    if version not in ("1.1", "1.2"):
        raise ValueError(f'version is "1.2" or "1.1", not {version!r}')
    table = contents.table
    members = []
    for i in range(len(table)):
        name = table.name_of(i)
        key, extension = _split(name)
        if not key or key.endswith("/"):
            continue  # a hidden file
        if UNFIT.search(name):
            _refuse(file, f"cannot hold the name of member {name!r}")
        offset, size = table.extent(i)
        words = f"{extension} {offset} {size}" + (
            f" {name}" if version == "1.2" else ""
        )
        members.append((key, words))
    samples = [
        " ".join(words for _, words in run)
        for _, run in groupby(members, key=lambda member: member[0])
    ]
    if not samples:
        _refuse(file, "needs a sample at least")
    text = "".join(f"{line}\n" for line in (f"v{version} {len(samples)}", *samples))
    with replacing(path) as index:
        index.write(text.encode("utf-8"))


def _refuse(file: LocalFile, reason: str) -> NoReturn:
    raise FastshardError(f"{file.path}: an index of DALI {reason}")
