"""The program's parser: its commands, help and completion."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from fastshard._util.arguments import Parser
from fastshard._util.terminal import (
    Color,
    output_options,
    write_line,
)
from fastshard.catalog.commands.datasets import add_datasets
from fastshard.catalog.commands.schemas import add_schemas
from fastshard.cli.cache import add_cache
from fastshard.cli.common import (
    Commands,
    short_warnings,
)
from fastshard.cli.completion import SHELLS, ShowCompletion
from fastshard.cli.convert import add_convert
from fastshard.cli.index import add_index
from fastshard.cli.ls import add_cat, add_ls
from fastshard.cli.stat import add_stat
from fastshard.cli.verify import add_verify
from fastshard.formats.registry import formats

__all__ = ["make_parser", "run_command"]

SYNONYMS = {  # words of other programs
    "check": "verify",
    "count": "stat",
    "delete": "clear",
    "download": "warm",
    "find": "query",
    "info": "stat",
    "list": "ls",
    "remove": "clear",
    "rm": "clear",
    "select": "query",
    "show": "cat",
    "validate": "verify",
    "version": "--version",
}
EPILOG = """\
start here:
  fastshard demo
  fastshard help ls

exit status:
    0  done
    1  a fault in the data; or a file, server or output that failed
    2  wrong usage: options, arguments, or a query that is refused
  129  terminal closed (SIGHUP)
  130  interrupted
  141  the reader of the output, such as head, has ended
  143  terminated (SIGTERM)

environment:
  NO_COLOR, FORCE_COLOR   no colours, or colours in pipes too
  FASTSHARD_CACHE         directory of the indexes of remote shards
  HF_TOKEN, HF_ENDPOINT   access token and server for hf://
"""


def cmd_demo(args: argparse.Namespace) -> int:
    """Write a sample dataset, read it in every way, and compare with tarfile."""
    from fastshard.cli.demo import run_demo

    return run_demo(args.out, args.json)


def add_demo(commands: Commands) -> None:
    parser = commands.add_parser(
        "demo",
        help="write some shards, read them, and compare the speed with tarfile",
        usage="fastshard demo [OPTION]...",
        description="Write shards and a dataset into a temporary directory, read them\n"
        "in every way, and compare the speed with Python's tarfile. Takes\n"
        "some seconds and 30 MB.",
        examples=[
            ("see whether it works here", "fastshard demo"),
            ("keep the shards, to try the other commands", "fastshard demo --out demo"),
        ],
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="write into a new directory DIR, and keep it (default: keep nothing)",
    )
    parser.add_output(json="print a JSON object with the figures")
    parser.set_defaults(run=cmd_demo)


class ShowVersion(argparse.Action):
    """Action that prints the versions of the package, Python and NumPy."""

    def __call__(self, parser: Any, *args: object) -> NoReturn:
        from importlib.metadata import version

        write_line(f"fastshard {version('fastshard')}")
        raise SystemExit


def add_help(commands: Commands, program: Parser) -> None:
    def cmd_help(args: argparse.Namespace) -> int:
        program.parse_args([*args.command, "--help"])  # exits
        return 0

    parser = commands.add_parser(
        "help",
        help="show the help of a command",
        usage="fastshard help [COMMAND]...",
        description="Show the help of a command.",
        examples=[
            ("of a command", "fastshard help index"),
            ("of a command's command", "fastshard help cache warm"),
        ],
    )
    parser.add_argument(
        "command", nargs="*", metavar="COMMAND", help="as cache warm (default: all)"
    )
    parser.set_defaults(run=cmd_help)


def make_parser() -> Parser:
    parser = Parser(
        prog="fastshard",
        usage="fastshard [--help] COMMAND ...",
        description="Read sharded datasets at memory speed.",
        epilog=EPILOG,
        synonyms=SYNONYMS,
    )
    parser.add_argument(
        "--version", action=ShowVersion, nargs=0, help="show the version and exit"
    )
    parser.add_argument(
        "--completion",
        action=ShowCompletion,
        choices=SHELLS,
        help="print a script with which a shell completes commands, and exit",
    )
    commands = parser.add_subparsers(metavar="COMMAND")
    add_ls(commands)
    add_cat(commands)
    add_stat(commands)
    add_verify(commands)
    add_index(commands)
    add_convert(commands)
    for each in formats():
        each.add_commands(commands)
    add_datasets(commands)
    add_schemas(commands)
    add_cache(commands)
    add_demo(commands)
    add_help(commands, parser)
    return parser


def run_command(argv: Sequence[str] | None) -> int:
    """Parse arguments, run the command, and return its exit status."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if not hasattr(args, "run"):  # no command: help, but not success for a script
        asked = [p for p in parser.walk() if p.commands and isinstance(p.given, list)]
        part = asked[-1] if asked else parser
        with suppress(OSError):
            if sys.stderr is not None:
                part.print_help(sys.stderr)
        return 2
    color: Color = getattr(args, "color", "auto")
    quiet: bool = getattr(args, "quiet", False)
    with output_options(color=color, quiet=quiet), short_warnings():
        status: int = args.run(args)
    return status
