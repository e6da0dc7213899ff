"""Argument parser of the commands: short usage, examples, suggestions, output options.

A format's own commands are made with it too, by `Format.add_commands`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from fastshard._util.terminal import escape_line, paint, write_line, write_output

__all__ = [
    "FLAGS",
    "Parser",
    "add_key",
    "add_reading",
    "get_reading",
    "parse_positive",
]

STATUS = """\
exit status:
  0 done; 1 a fault in the data, or a file that cannot be read or written;
  2 wrong usage"""
MIN_SIMILARITY = 0.6  # the default of difflib.get_close_matches
SHORT = 3  # characters

Examples = Sequence[tuple[str, str]]
FLAGS = {"key": "--key", "lower": "--keep-case", "mode": "--mode"}  # by argument


class Parser(argparse.ArgumentParser):
    """Parser of a command's arguments.

    Errors take few lines, whatever file names they contain, and suggest a similar
    command, option or choice, or the command that has the option.
    """

    def __init__(
        self,
        *args: Any,
        examples: Examples = (),
        root: Parser | None = None,
        synonyms: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options.setdefault("epilog", format_epilog(examples))
        super().__init__(*args, **options)
        self.examples = examples
        self.root = root or self
        self.synonyms = synonyms or {}
        self.commands: Any = None
        self.given: Sequence[str] = ()
        self._positionals.title = "arguments"

    def add_subparsers(self, **options: Any) -> Any:
        options.setdefault("parser_class", partial(Parser, root=self.root))
        options.setdefault("prog", self.prog)  # rather than the usage
        self._positionals.title = "commands"
        self.commands = super().add_subparsers(**options)
        return self.commands

    def walk(self) -> Iterable[Parser]:
        """Yield this parser and those of its commands, in order of depth."""
        yield self
        if self.commands is not None:
            for each in self.commands.choices.values():
                yield from each.walk()

    def has_option(self, name: str) -> bool:
        return name in self._option_string_actions

    def add_output(self, json: str | None = None) -> None:
        """Add the options for output; `json` is the help of ``--json``."""
        group = self.add_argument_group("output")
        if json is not None:
            group.add_argument("--json", action="store_true", help=json)
        group.add_argument(
            "-q",
            "--quiet",
            action="store_true",
            help="print data and errors only: no progress, notes or warnings",
        )
        group.add_argument(
            "--color",
            metavar="WHEN",
            choices=("auto", "always", "never"),
            default="auto",
            help="use colours: auto (default: on terminals without NO_COLOR), always "
            "or never",
        )

    def print_help(self, file: Any = None) -> None:
        """Write the help; unlike argparse's own, raise an error of the disk."""
        if file is None:
            write_output(self.format_help())
        else:
            file.write(self.format_help())

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; an unknown one is an error of its own command."""
        self.given = sys.argv[1:] if args is None else list(args)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.refuse(unknown)
        return found, unknown

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        option = next((text for text in unknown if text.startswith("-")), None)
        if option is not None:
            self.error(self.describe_option(option.partition("=")[0]))
        self.error(f"unexpected argument: {' '.join(unknown)}")

    def describe_option(self, name: str) -> str:
        """Return the message for an unknown option: a similar one, or its commands."""
        message = f"unknown option {name}"
        owners = [p.prog for p in self.root.walk() if p.has_option(name)]
        similar = _nearest(name, self._option_string_actions)
        if not owners and similar is not None:
            return f"{message}; did you mean {similar}?"
        if not owners:
            return message
        if self is self.root:
            command = next(
                (p for p in owners if p.split()[-1] in self.given), "COMMAND"
            )
            where = f"write it behind the command: {command} {name}"
            return f"{message} before the command; {where}"
        others = ", ".join(owners[:4]) + (", ..." if len(owners) > 4 else "")
        return f"{message}; it is an option of: {others}"

    def error(self, message: str) -> NoReturn:
        """Print an error and the usage on stderr, and exit with status 2."""
        if message.startswith("the following arguments are required"):
            message = self._explain_missing(message)
        with suppress(OSError):  # the exit status tells it, too
            if sys.stderr is not None:
                name = paint(f"{self.prog}:", "error", sys.stderr)
                write_line(name, f" {message}", file=sys.stderr, sep="")
                sys.stderr.write(self.format_usage())
                write_line(f"more: {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)

    def _explain_missing(self, message: str) -> str:
        """Return the message for a misspelt option in place of a consequent error."""
        for text in self.given:
            if text == "--":
                break
            name = text.partition("=")[0]
            options = self._option_string_actions
            is_long = len(name) > 2 and name.startswith("--")
            if is_long and not any(each.startswith(name) for each in options):
                return self.describe_option(name)
        return message.replace("the following arguments are required", "missing")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise ArgumentError for a value outside the choices."""
        choices = action.choices
        if choices is None or value in choices:
            return
        similar = _nearest(str(value), map(str, choices))
        is_command = self.commands is not None and action is self.commands
        synonym = self.root.synonyms.get(value) if is_command else None
        if synonym in choices or (synonym and self.has_option(synonym)):
            similar = synonym
        hint = "" if similar is None else f"; did you mean {similar}?"
        if is_command:
            listed = hint or f"; commands: {', '.join(choices)}"
            raise argparse.ArgumentError(None, f"unknown command {value!r}{listed}")
        expected = ", ".join(map(str, choices))
        raise argparse.ArgumentError(
            action, f"expected one of {expected}, got {value!r}{hint}"
        )


def _nearest(name: str, names: Iterable[str]) -> str | None:
    from difflib import get_close_matches  # takes 5 ms to import

    cutoff = 0.5 if len(name) <= SHORT else MIN_SIMILARITY  # sl: ls
    found = get_close_matches(name, list(names), 1, cutoff)
    return found[0] if found else None


def add_key(group: Any) -> None:
    """Add the option for the keys of samples to a parser or a group of it."""
    group.add_argument(
        "--key",
        choices=("first", "last"),
        default="first",
        help="where a member's name is cut into the sample's key and the field, as "
        "a.b.jpg: at the first dot of the file name (default), or at the last",
    )


def add_reading(parser: Parser) -> None:
    """Add the options of `fastshard.open` for how samples of tar shards are read."""
    group = parser.add_argument_group("samples")
    add_key(group)
    group.add_argument(
        "--keep-case",
        dest="lower",
        action="store_false",
        help="do not lower-case the names of fields",
    )
    group.add_argument(
        "--mode",
        choices=("mmap", "pread"),
        default="mmap",
        help="read local files as mapped (default), or by calls of pread",
    )


def get_reading(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `add_reading` that differ from their defaults."""
    defaults = {"key": "first", "lower": True, "mode": "mmap"}
    return {
        name: getattr(args, name)
        for name, default in defaults.items()
        if getattr(args, name) != default
    }


def format_epilog(examples: Examples) -> str:
    lines = [f"  {what}\n    {command}" for what, command in examples]
    return "\n".join(["examples:", *lines, "", STATUS] if lines else [])


def parse_positive(text: str) -> int:
    """Parse an int of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(
            f"must be an int of at least 1, got {escape_line(text)!r}"
        )
    return number
