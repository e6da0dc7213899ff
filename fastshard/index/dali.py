"""The shard index of NVIDIA DALI, ``.idx``, as its ``wds2idx`` writes it.

Text: a line ``v1.2 <number of samples>``, then a line for each sample, with
``<extension> <offset> <size> <name>`` for each member, separated by blanks. Version
1.1 has no names. Members are in the shard's order; a sample is a run of consecutive
members with the same key, which ends at the first dot of a name's last part. Hidden
files are omitted. A name without a dot is its own extension.

Names are as GNU tar lists them, with escapes such as ``\\303`` for characters that are
not printable in the locale of the writer. Escapes are decoded here, and never written.

For a GNU tar with a name that does not fit a header, wds2idx lists the extent of the
name instead of the member. Such an index is stale here; the index written here has the
extent of the member. wds2idx omits links; here those that lead to a member are listed,
with its extent, unless their name has no dot.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Container, Iterator
from itertools import groupby
from typing import NamedTuple, NoReturn

from fastshard._core.io.source import LocalFile, PreadSource
from fastshard._core.parse.tar import scan_header_starts, scan_tar
from fastshard._core.table.extents import ExtentTable, order_extents
from fastshard._util.files import replace_file
from fastshard.errors import FastshardError, FormatError, StaleIndexError
from fastshard.index.contents import Contents, build_table
from fastshard.index.freshness import find_first_changed

__all__ = ["is_visible", "read_dali", "write_dali"]

BLOCK = 512  # bytes
NAME_WIDTH = 98  # bytes of the longest name that every tar writer fits in a header
MEMBER_WORDS = {b"v1.1": 3, b"v1.2": 4}  # words per member, by version
NUMBER = re.compile(rb"[0-9]{1,19}")
WORD = re.compile(rb"[^ \t\v\f\r]+")
ESCAPE = re.compile(rb"\\([abfnrtv\\]|[0-3][0-7][0-7]|)")
ESCAPE_BYTES = dict(zip(b"abfnrtv\\", b"\a\b\f\n\r\t\v\\", strict=True))
# Characters that GNU tar escapes in any locale, or that end a word.
UNREPRESENTABLE = re.compile(r"[\x00-\x20\x7f-\x9f\\\u2028\u2029\udc80-\udcff]")


class DaliMember(NamedTuple):
    """Member as an index lists it."""

    offset: int
    size: int
    extension: bytes
    name: bytes | None  # None in version 1.1
    at: int  # position of the offset's digits in the index, bytes
    escaped: bool  # whether the name has escapes


def read_dali(path: str, file: LocalFile) -> Contents:
    """Read a DALI index."""
    with LocalFile(path) as index:
        text = PreadSource(index).read(0, index.nbytes)
    width, lines = _split_lines(text, path)
    listed = [
        member
        for at, line in lines
        for member in _parse_members(line, at, width, path, file)
    ]
    if width == 3:
        listed = _find_names(listed, path, file)
    table = build_table(
        [(one.offset, one.size, one.name or b"") for one in listed], path
    )
    if width == 4:
        _check_suspects(listed, table, path, file)
    return Contents(table, index=path)


def _split_lines(text: bytes, path: str) -> tuple[int, list[tuple[int, bytes]]]:
    """Return the number of words per member, and the offset and text of each line."""
    first, newline, rest = text.partition(b"\n")
    words = list(WORD.finditer(first))
    if len(words) != 2 or words[0].group() not in MEMBER_WORDS:
        raise FormatError("not a DALI index of version 1.1 or 1.2", path, 0)
    version, count = words[0].group(), words[1].group()
    if not NUMBER.fullmatch(count) or not int(count):
        reason = f"expected a number of samples, got {os.fsdecode(count[:80])!r}"
        raise FormatError(reason, path, words[1].start())
    if not newline or not rest.endswith(b"\n"):
        raise FormatError("truncated inside a line", path, len(text))
    at = len(first) + 1
    lines = []
    for line in rest.split(b"\n")[:-1]:
        lines.append((at, line))
        at += len(line) + 1
    if len(lines) != int(count):
        reason = f"expected {int(count):,} samples by line 1, got {len(lines):,}"
        raise FormatError(reason, path, words[1].start())
    return MEMBER_WORDS[version], lines


def _parse_members(
    line: bytes, at: int, width: int, path: str, file: LocalFile
) -> Iterator[DaliMember]:
    """Parse a sample's line at byte `at`: `width` words for each member."""
    words = [(at + found.start(), found.group()) for found in WORD.finditer(line)]
    if not words or len(words) % width:
        reason = f"expected {width} words for each member, got {len(words)} in all"
        raise FormatError(reason, path, at)
    for i in range(0, len(words), width):
        offset, size = (_parse_number(*word, path) for word in words[i + 1 : i + 3])
        extension = _unescape(*words[i], path)
        name = _unescape(*words[i + 3], path) if width == 4 else None
        digits_at = words[i + 1][0]
        if offset % BLOCK or not BLOCK <= offset <= file.nbytes - size:
            reason = f"{file.path} has no member of {size:,} bytes at byte {offset:,}"
            raise FormatError(reason, path, digits_at, os.fsdecode(name or extension))
        if name is not None and not _has_extension(name, extension):
            reason = f"the name does not end in {os.fsdecode(extension)!r}"
            raise FormatError(reason, path, words[i][0], os.fsdecode(name))
        escaped = width == 4 and b"\\" in words[i + 3][1]
        yield DaliMember(offset, size, extension, name, digits_at, escaped)


def _parse_number(at: int, word: bytes, path: str) -> int:
    if not NUMBER.fullmatch(word):
        raise FormatError(
            f"expected a number, got {os.fsdecode(word[:80])!r}", path, at
        )
    return int(word)


def _unescape(at: int, word: bytes, path: str) -> bytes:
    """Decode the escapes of GNU tar in a word at byte `at`."""
    if b"\0" in word:
        raise FormatError("a name has a NUL", path, at + word.index(b"\0"))
    if b"\\" not in word:
        return word

    def decode(found: re.Match[bytes]) -> bytes:
        code = found.group(1)
        value = ESCAPE_BYTES[code[0]] if len(code) == 1 else int(code or b"0", 8)
        if not value:
            raise FormatError("not an escape of GNU tar", path, at + found.start())
        return bytes([value])

    return ESCAPE.sub(decode, word)


def _has_extension(name: bytes, extension: bytes) -> bool:
    return name == extension or name.endswith(b"." + extension)


def _find_names(
    listed: list[DaliMember], path: str, file: LocalFile
) -> list[DaliMember]:
    """Return the members with their names, from a scan of the shard."""
    stored = _names_by_extent(file)
    named = []
    for member in listed:
        names = stored[member.offset, member.size]
        name = next((n for n in names if _has_extension(n, member.extension)), None)
        if name is None:
            _raise_stale(member, path, file)
        names.remove(name)
        named.append(member._replace(name=name))
    return named


def _names_by_extent(file: LocalFile) -> dict[tuple[int, int], list[bytes]]:
    """Return the names of each extent, from a scan: the member's own, then links'."""
    regular = scan_header_starts(file)[0]
    names: dict[tuple[int, int], list[bytes]] = defaultdict(list)
    for table in (regular, scan_tar(file).table):
        for i in range(len(table)):
            own = names[table.extent(i)]
            name = os.fsencode(table.name_of(i))
            if name not in own:
                own.append(name)
    return names


def _check_suspects(
    listed: list[DaliMember], table: ExtentTable, path: str, file: LocalFile
) -> None:
    """Compare the headers of members whose extents wds2idx may list wrongly.

    These have a long name, or one with escapes.
    """
    ordered = order_extents(listed)
    suspects = [
        i
        for i, member in enumerate(ordered)
        if member.escaped or len(member.name or b"") > NAME_WIDTH
    ]
    i = find_first_changed(file, table, suspects)
    if i >= 0:
        _raise_stale(ordered[i], path, file)


def _raise_stale(member: DaliMember, path: str, file: LocalFile) -> NoReturn:
    reason = (
        f"{file.path} has no {os.fsdecode(member.extension)} of {member.size:,} bytes "
        f"at byte {member.offset:,}"
    )
    name = None if member.name is None else os.fsdecode(member.name)
    raise StaleIndexError(reason, path, member.at, name)


def write_dali(
    path: str, contents: Contents, file: LocalFile, version: str = "1.2"
) -> None:
    """Write a DALI index, byte for byte as wds2idx writes it."""
    if version not in ("1.1", "1.2"):
        raise ValueError(f'version must be "1.2" or "1.1", got {version!r}')
    links = _find_links(contents.table, file)
    members = _visible_members(contents.table, links)
    samples = []
    for _, run in groupby(members, key=lambda member: member[0]):
        words = []
        sample = list(run)
        for _, extension, i in sample:
            name = contents.table.name_of(i)
            _check_representable(name, extension, len(sample) > 1, version, file)
            offset, size = contents.table.extent(i)
            words += [extension, str(offset), str(size)]
            words += [name] if version == "1.2" else []
        samples.append(" ".join(words))
    if not samples:
        raise FastshardError(
            f"a DALI index needs at least one sample, {file.path} has 0"
        )
    text = "".join(f"{line}\n" for line in (f"v{version} {len(samples)}", *samples))
    with replace_file(path) as index:
        index.write(text.encode("utf-8"))


def is_visible(name: str) -> bool:
    """Return whether an index lists a member: no hidden file."""
    key, _ = _split_name(name)
    return bool(key) and not key.endswith("/")


def _split_name(name: str) -> tuple[str, str]:
    """Return key and extension as wds2idx does: if no dot, all but the last letter."""
    dot = name.find(".", name.rfind("/") + 1)
    return name[:dot], name[dot + 1 :]


def _find_links(table: ExtentTable, file: LocalFile) -> set[int]:
    """Return the positions of links; a scan tells them from their targets."""
    extents = [table.extent(i) for i in range(len(table))]
    if len(set(extents)) == len(extents):
        return set()
    regular = scan_header_starts(file)[0]
    own = {regular.extent(i): regular.name_of(i) for i in range(len(regular))}
    names = map(table.name_of, range(len(table)))
    return {
        i
        for i, (extent, name) in enumerate(zip(extents, names, strict=True))
        if own.get(extent) != name
    }


def _visible_members(
    table: ExtentTable, links: Container[int]
) -> Iterator[tuple[str, str, int]]:
    """Yield key, extension and position of each member that is not a hidden file.

    Links without a dot in their name are omitted: they would end a sample.
    """
    for i in range(len(table)):
        name = table.name_of(i)
        if i in links and "." not in name.rpartition("/")[2]:
            continue
        if is_visible(name):
            yield *_split_name(name), i


def _check_representable(
    name: str, extension: str, joined: bool, version: str, file: LocalFile
) -> None:
    """Raise FastshardError for a member that the format cannot represent."""
    if UNREPRESENTABLE.search(name if version == "1.2" else extension):
        reason = "the name of"
    elif not extension:
        reason = "the empty extension of"
    elif joined and extension == name:
        reason = "a name without a dot in a sample of several members:"
    else:
        return
    raise FastshardError(
        f"{file.path}: a DALI index cannot represent {reason} member {name!r}; "
        "use the fsi or json format"
    )
