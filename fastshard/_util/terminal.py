"""Text for a terminal: single lines, without control or unencodable characters.

Names, paths, keys and messages come from files and servers. Commands print by
`write_line`, so that no such text moves the cursor, ends a line, reorders text or
raises `UnicodeEncodeError`. Colours are those of `paint` alone.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Literal, Protocol, TextIO, TypeAlias

__all__ = [
    "Color",
    "Painted",
    "UsageError",
    "describe_error",
    "escape_line",
    "escape_name",
    "escape_unencodable",
    "has_color",
    "is_quiet",
    "join_names",
    "output_options",
    "paint",
    "print_error",
    "write_fault",
    "write_line",
    "write_lines",
    "write_note",
    "write_output",
]

Color: TypeAlias = Literal["auto", "always", "never"]

LINES_AT_ONCE = 1000
NO_COLOR_TERMS = ("dumb",) if os.name == "posix" else ("dumb", "")
STYLES = {  # SGR parameters, ECMA-48
    "bold": "1",
    "error": "1;31",  # red
    "good": "32",  # green
    "warning": "33",  # yellow
    "shard": "35",  # magenta, grep's colour of file names
}


MAX_NAMES = 12  # joined
MAX_NAME = 60  # characters of a joined name


class UsageError(Exception):
    """Wrong arguments of a command."""


class _Options:
    """Options of the running command; a library call has the defaults."""

    color: Color = "auto"
    quiet = False


@contextmanager
def output_options(*, color: Color = "auto", quiet: bool = False) -> Iterator[None]:
    """Set ``--color`` and ``--quiet`` for the commands of this process."""
    before = _Options.color, _Options.quiet
    _Options.color, _Options.quiet = color, quiet
    try:
        yield
    finally:
        _Options.color, _Options.quiet = before


def is_quiet() -> bool:
    """Return whether progress, notes and warnings are off."""
    return _Options.quiet


def has_color(file: TextIO | None) -> bool:
    """Return whether text for a file is coloured, by ``--color`` and the environment.

    ``NO_COLOR`` (https://no-color.org) and ``FORCE_COLOR`` count unless they are empty;
    the former has precedence, as in Python's own messages.
    """
    if _Options.color != "auto":
        return _Options.color == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    if file is None or os.environ.get("TERM", "") in NO_COLOR_TERMS:
        return False
    return file.isatty()


class Painted(str):
    """Text that `write_line` does not escape: it is escaped, and may have a colour."""

    __slots__ = ()


def paint(text: object, style: str, file: TextIO | None = None) -> Painted:
    """Escape text, and colour it if its file shows colours; stdout by default."""
    escaped = escape_line(str(text))
    if escaped and has_color(sys.stdout if file is None else file):
        return Painted(f"\x1b[{STYLES[style]}m{escaped}\x1b[0m")
    return Painted(escaped)


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


def join_names(names: Sequence[str]) -> str:
    """Join names by commas: the first ones, shortened, and how many there are more."""
    shown = [escape_name(name[:MAX_NAME]) for name in names[:MAX_NAMES]]
    more = len(names) - len(shown)
    return ", ".join(shown + [f"... {more:,} more"] * (more > 0))


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


def write_line(*columns: object, file: TextIO | None = None, sep: str = "\t") -> None:
    """Print one line, to stdout unless a file is given."""
    line = sep.join(
        [c if isinstance(c, Painted) else _escape_column(c) for c in columns]
    )
    encoding = getattr(sys.stdout if file is None else file, "encoding", None)
    line = escape_unencodable(line, encoding) + "\n"
    if file is None:
        write_output(line)
    else:
        file.write(line)


def write_output(data: str | memoryview = "", *, flush: bool = False) -> None:
    """Write text or bytes to stdout."""
    if sys.stdout is None:  # its descriptor was closed when the process began
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), "stdout")
    try:
        if isinstance(data, str):
            sys.stdout.write(data)
        else:
            sys.stdout.buffer.write(data)
        if flush:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "stdout") from error


def write_lines(lines: Iterator[str]) -> None:
    """Print many lines to stdout; they are escaped already."""
    encoding = getattr(sys.stdout, "encoding", None)
    while chunk := list(islice(lines, LINES_AT_ONCE)):
        write_output(escape_unencodable("\n".join(chunk) + "\n", encoding))


def write_note(*columns: object, sep: str = "") -> None:
    """Print one line that is not data, unless the command is quiet."""
    if not _Options.quiet:
        write_line(*columns, sep=sep)


def write_fault(fault: PrintableFault, as_json: bool) -> None:
    """Print a fault on one line."""
    if as_json:
        import json

        write_line(json.dumps(fault._asdict()))
        return
    member = "" if fault.member is None else f"{escape_name(fault.member)}: "
    where = paint(f"{fault.path}: byte {fault.offset:,}", "error")
    write_line(where, f": {member}{fault.reason}", sep="")


def _escape_column(column: object) -> str:
    return escape_line(str(column))


def print_error(message: object, *, is_warning: bool = False) -> None:
    """Print an error or a warning on stderr, if that can be written."""
    with suppress(OSError):
        if sys.stderr is None:
            return
        name = paint("fastshard:", "error", sys.stderr)
        kind = paint(" warning:", "warning", sys.stderr) if is_warning else ""
        if isinstance(message, OSError):
            message = describe_error(message)
        write_line(name, kind, f" {message}", file=sys.stderr, sep="")


def describe_error(error: Exception) -> str:
    """Return the message of an error; of the system's, without its number."""
    if not isinstance(error, OSError) or type(error).__module__ != "builtins":
        return str(error)
    if error.strerror is None:
        return str(error)
    if error.filename is None:
        return error.strerror
    return f"{os.fsdecode(error.filename)}: {error.strerror}"


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
