"""Parser and entry point of the command line.

Data goes to stdout, messages to stderr. Exit status: 0 for success, 1 for a fault in
the data, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from fastshard._util.terminal import UsageError, write_line
from fastshard.cli.cache import add_cache
from fastshard.cli.common import Commands, Parser, print_error, short_warnings
from fastshard.cli.index import add_index
from fastshard.cli.ls import add_cat, add_ls
from fastshard.cli.stat import add_stat
from fastshard.cli.verify import add_verify
from fastshard.errors import FastshardError
from fastshard.formats.registry import formats

__all__ = ["main", "make_parser"]


def cmd_demo(args: argparse.Namespace) -> int:
    """Write a sample dataset, read it in every way, and compare with tarfile."""
    from fastshard.cli.demo import run_demo

    return run_demo()


def add_demo(commands: Commands) -> None:
    parser = commands.add_parser("demo", help=cmd_demo.__doc__)
    parser.set_defaults(run=cmd_demo)


class ShowVersion(argparse.Action):
    """Action that prints the version of the installed package."""

    def __call__(self, parser: argparse.ArgumentParser, *args: object) -> NoReturn:
        from importlib.metadata import version

        write_line(f"fastshard {version('fastshard')}")
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="fastshard", description="Read sharded datasets at memory speed."
    )
    parser.add_argument(
        "--version", action=ShowVersion, nargs=0, help="show the version and exit"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (
        add_ls,
        add_cat,
        add_stat,
        add_verify,
        add_index,
        add_cache,
        add_demo,
    ):
        add(commands)
    for each in formats():
        each.add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status."""
    args = make_parser().parse_args(argv)
    try:
        with short_warnings():
            status: int = args.run(args)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (FastshardError, OSError) as error:
        print_error(error)
        return 1
    except UsageError as error:
        print_error(error)
        return 2
    except KeyboardInterrupt:
        return 130
    return status
