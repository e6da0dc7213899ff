"""Text for a terminal: single lines, without control or unencodable characters.

Names, paths, keys and messages come from files and servers. Commands print by
`write_line`, so that no such text moves the cursor, ends a line, reorders text or
raises `UnicodeEncodeError`.
"""

from __future__ import annotations

import sys
from typing import Protocol, TextIO

__all__ = [
    "UsageError",
    "escape_line",
    "escape_name",
    "escape_unencodable",
    "write_fault",
    "write_line",
]


class UsageError(Exception):
    """Wrong arguments of a command."""


class PrintableFault(Protocol):
    """Protocol of a fault that `write_fault` prints."""

    @property
    def path(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def member(self) -> str | None: ...
    @property
    def reason(self) -> str: ...
    def _asdict(self) -> dict[str, object]: ...


def escape_line(text: str) -> str:
    """Escape the characters that are not printable, as Python does: ``\\x1b``.

    Undecoded bytes (lone surrogates) become ``\\xff``. Backslashes are kept for paths;
    see `escape_name`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def escape_name(name: str) -> str:
    """Escape a name without ambiguity: backslashes are doubled, as by tar."""
    if "\\" in name:
        name = name.replace("\\", "\\\\")
    return escape_line(name)


def escape_unencodable(text: str, encoding: str | None) -> str:
    """Escape the characters that an encoding lacks: ``\\u00e9`` in ASCII."""
    if text.isascii():
        return text
    encoding = encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(c if _has(encoding, c) else _escape(c) for c in text)
    return text


def write_line(*columns: object, file: TextIO | None = None) -> None:
    """Print one line, to stdout unless a file is given; tabs between columns."""
    file = sys.stdout if file is None else file
    if file is not None:  # None in a program without a console
        line = "\t".join([escape_line(str(column)) for column in columns])
        file.write(escape_unencodable(line, getattr(file, "encoding", None)) + "\n")


def write_fault(fault: PrintableFault, as_json: bool) -> None:
    """Print a fault on one line."""
    if as_json:
        import json

        write_line(json.dumps(fault._asdict()))
        return
    member = "" if fault.member is None else f"{escape_name(fault.member)}: "
    write_line(f"{fault.path}: byte {fault.offset:,}: {member}{fault.reason}")


def _has(encoding: str, character: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte, by surrogateescape
        return f"\\x{code - 0xDC00:02x}"
    if code < 0xA0:
        return character.encode("unicode_escape").decode("ascii")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
