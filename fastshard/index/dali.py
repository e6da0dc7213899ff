"""DALI's index of a shard, ``.idx``, as its ``wds2idx`` writes it.

Text: a line ``v1.2 <number of samples>``, then one for each sample, with
``<extension> <offset> <size> <name>`` for each member, blanks between. Version
1.1 has no names. Members follow each other as in the shard; a sample is a run of
neighbours with the same key, which ends at the first dot of a name's last part.
Hidden files are left out. A name without a dot is its own extension.

Names are as GNU tar lists them: with escapes such as ``\\303`` for what cannot be
printed where the index was made. They are undone here, and never written.

Where a name is longer than a header holds and the tar is of GNU's kind, wds2idx
takes the name's own bytes for the member's. Such an index is refused, and the one
written here has the member's offset instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple, NoReturn

from fastshard._core.io.source import LocalFile, PreadSource
from fastshard._core.parse.tar import scan_tar
from fastshard._core.table.extents import ExtentTable
from fastshard._util.files import replace_file
from fastshard.errors import FastshardError, FormatError, StaleIndexError
from fastshard.index.contents import Contents, build_table
from fastshard.index.freshness import find_first_changed

__all__ = ["read_dali", "write_dali"]

BLOCK = 512  # bytes
NAME_WIDTH = 98  # bytes of a name that every writer puts into the header itself
FIELDS = {b"v1.1": 3, b"v1.2": 4}  # words of a member, by version
NUMBER = re.compile(rb"[0-9]{1,19}")
WORD = re.compile(rb"[^ \t\v\f\r]+")
ESCAPE = re.compile(rb"\\([abfnrtv\\]|[0-3][0-7][0-7]|)")
ESCAPED = dict(zip(b"abfnrtv\\", b"\a\b\f\n\r\t\v\\", strict=True))
# What GNU tar lists as an escape wherever it runs, or what ends a word.
UNFIT = re.compile(r"[\x00-\x20\x7f-\x9f\\\u2028\u2029\udc80-\udcff]")


class DaliMember(NamedTuple):
    """A member as an index lists it."""

    offset: int
    size: int
    extension: bytes
    name: bytes | None  # None in version 1.1
    at: int  # of its offset's digits, bytes from the start of the index
    escaped: bool


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
    listed = [
        member
        for at, line in lines
        for member in _members(line, at, fields, path, file)
    ]
    if fields == 3:
        listed = _named(listed, path, file)
    table = build_table(
        [(one.offset, one.size, one.name or b"") for one in listed], path
    )
    if fields == 4:
        _check_doubtful(listed, table, path, file)
    return Contents(table, index=path)


def _lines(text: bytes, path: str) -> tuple[int, list[tuple[int, bytes]]]:
    """Return the words of a member, and each sample's line and where it begins."""
    first, newline, rest = text.partition(b"\n")
    words = list(WORD.finditer(first))
    if len(words) != 2 or words[0].group() not in FIELDS:
        raise FormatError("not an index of DALI, version 1.1 or 1.2", path, 0)
    version, count = words[0].group(), words[1].group()
    if not NUMBER.fullmatch(count) or not int(count):
        raise FormatError("not a number of samples", path, words[1].start())
    if not newline or not rest.endswith(b"\n"):
        raise FormatError("cut inside a line", path, len(text))
    at = len(first) + 1
    lines = []
    for line in rest.split(b"\n")[:-1]:
        lines.append((at, line))
        at += len(line) + 1
    if len(lines) != int(count):
        reason = f"{len(lines):,} samples, where the first line says {int(count):,}"
        raise FormatError(reason, path, words[1].start())
    return FIELDS[version], lines


def _members(
    line: bytes, at: int, fields: int, path: str, file: LocalFile
) -> Iterator[DaliMember]:
    """Read the members of a sample."""
    words = [(at + found.start(), found.group()) for found in WORD.finditer(line)]
    if not words or len(words) % fields:
        raise FormatError(f"not {fields} words for each member", path, at)
    for i in range(0, len(words), fields):
        offset, size = (_number(*word, path) for word in words[i + 1 : i + 3])
        extension = _unescaped(*words[i], path)
        name = _unescaped(*words[i + 3], path) if fields == 4 else None
        where = words[i + 1][0]
        if offset % BLOCK or not BLOCK <= offset <= file.nbytes - size:
            reason = f"{size:,} bytes at byte {offset:,} are no member of {file.path}"
            raise FormatError(reason, path, where, os.fsdecode(name or extension))
        if name is not None and not _fits(name, extension):
            reason = f"the extension is not {os.fsdecode(extension)!r}"
            raise FormatError(reason, path, words[i][0], os.fsdecode(name))
        escaped = fields == 4 and b"\\" in words[i + 3][1]
        yield DaliMember(offset, size, extension, name, where, escaped)


def _number(at: int, word: bytes, path: str) -> int:
    if not NUMBER.fullmatch(word):
        raise FormatError("not a number", path, at)
    return int(word)


def _unescaped(at: int, word: bytes, path: str) -> bytes:
    """Undo what GNU tar does to bytes that cannot be printed."""
    if b"\0" in word:
        raise FormatError("a name with a NUL in it", path, at + word.index(b"\0"))
    if b"\\" not in word:
        return word

    def byte(found: re.Match[bytes]) -> bytes:
        said = found.group(1)
        value = ESCAPED[said[0]] if len(said) == 1 else int(said or b"0", 8)
        if not value:
            raise FormatError("not an escape of GNU tar", path, at + found.start())
        return bytes([value])

    return ESCAPE.sub(byte, word)


def _fits(name: bytes, extension: bytes) -> bool:
    return name == extension or name.endswith(b"." + extension)


def _named(listed: list[DaliMember], path: str, file: LocalFile) -> list[DaliMember]:
    """Find the names of listed members by a scan of the shard."""
    table, _, _ = scan_tar(file)
    stored = {table.extent(i): i for i in range(len(table))}
    named = []
    for member in listed:
        i = stored.get((member.offset, member.size))
        name = None if i is None else os.fsencode(table.name_of(i))
        if name is None or not _fits(name, member.extension):
            _refuse_stale(member, path, file)
        named.append(member._replace(name=name))
    return named


def _check_doubtful(
    listed: list[DaliMember], table: ExtentTable, path: str, file: LocalFile
) -> None:
    """Look at the headers of members that wds2idx may have got wrong."""
    ordered = sorted(listed, key=lambda member: member.offset)
    doubtful = [
        i
        for i, member in enumerate(ordered)
        if member.escaped or len(member.name or b"") > NAME_WIDTH
    ]
    i = find_first_changed(file, table, doubtful)
    if i >= 0:
        _refuse_stale(ordered[i], path, file)


def _refuse_stale(member: DaliMember, path: str, file: LocalFile) -> NoReturn:
    reason = (
        f"{file.path} has no {os.fsdecode(member.extension)} of {member.size:,} bytes "
        f"at byte {member.offset:,}"
    )
    name = None if member.name is None else os.fsdecode(member.name)
    raise StaleIndexError(reason, path, member.at, name)


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
        A name or extension has blanks, or characters that the writer escapes; an
        extension is empty; a name without a dot would join another's sample; or
        the shard has no samples.
    OSError
        It cannot be written.
    """
    if version not in ("1.1", "1.2"):
        raise ValueError(f'version is "1.2" or "1.1", not {version!r}')
    members = _kept(contents.table)
    samples = []
    for _, run in groupby(members, key=lambda member: member[0]):
        words = []
        together = list(run)
        for _, extension, i in together:
            name = contents.table.name_of(i)
            _refuse_unfit(name, extension, len(together) > 1, version, file)
            offset, size = contents.table.extent(i)
            words += [extension, str(offset), str(size)]
            words += [name] if version == "1.2" else []
        samples.append(" ".join(words))
    if not samples:
        raise FastshardError(f"{file.path}: an index of DALI needs a sample at least")
    text = "".join(f"{line}\n" for line in (f"v{version} {len(samples)}", *samples))
    with replace_file(path) as index:
        index.write(text.encode("utf-8"))


def _kept(table: ExtentTable) -> Iterator[tuple[str, str, int]]:
    """Return key, extension and position of what is no hidden file."""
    for i in range(len(table)):
        name = table.name_of(i)
        dot = name.find(".", name.rfind("/") + 1)
        key = name[:dot]  # as wds2idx does: without a dot, all but the last letter
        if key and not key.endswith("/"):
            yield key, name[dot + 1 :], i


def _refuse_unfit(
    name: str, extension: str, joined: bool, version: str, file: LocalFile
) -> None:
    """Raise for a member that an index cannot hold."""
    if UNFIT.search(name if version == "1.2" else extension):
        reason = "the name of"
    elif not extension:
        reason = "the empty extension of"
    elif joined and extension == name:
        reason = "a name without a dot among a sample's:"
    else:
        return
    raise FastshardError(
        f"{file.path}: an index of DALI cannot hold {reason} member {name!r}"
    )
