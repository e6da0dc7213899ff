"""Option ``--completion``: scripts with which shells complete commands.

The scripts are static, made by shtab: pressing Tab starts no Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, NoReturn

from fastshard._util.arguments import Parser
from fastshard._util.terminal import Painted, UsageError, write_line

__all__ = ["SHELLS", "ShowCompletion", "make_script"]

SHELLS = ("bash", "zsh", "fish")
FILES = {"SOURCE", "FILE"}  # placeholders of arguments that are paths
FOLDERS = {"DIR", "ROOT"}


class ShowCompletion(argparse.Action):
    """Action that prints the completion script for a shell."""

    def __call__(self, parser: Any, _: object, shell: Any, *args: object) -> NoReturn:
        for line in make_script(parser, shell).splitlines():
            write_line(Painted(line))
        raise SystemExit


def make_script(parser: Parser, shell: str) -> str:
    """Return the script with which a shell completes the commands of a parser.

    Raises
    ------
    UsageError
        shtab is not installed.
    """
    try:
        import shtab
    except ImportError:
        raise UsageError(
            "--completion needs shtab: pip install 'fastshard[completion]'"
        ) from None
    for action in _list_actions(parser):
        if action.metavar in FILES:
            action.complete = shtab.FILE
        elif action.metavar in FOLDERS:
            action.complete = shtab.DIRECTORY
    script: str = shtab.complete(parser, shell)
    return script


def _list_actions(parser: Parser) -> Iterator[Any]:
    for each in parser.walk():
        yield from each._actions
