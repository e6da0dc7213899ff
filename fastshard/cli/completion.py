"""Option ``--completion``: completion scripts for shells.

The scripts are static, made by shtab: pressing Tab starts no Python.
"""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn

from fastshard._util.arguments import Parser
from fastshard._util.terminal import Painted, UsageError, write_line

__all__ = ["SHELLS", "ShowCompletion", "make_script"]

SHELLS = ("bash", "zsh", "fish")
INSTALL = "pip install 'shtab>=1.13'"
FILES = {"SOURCE", "FILE", "PATH|DSN|URL"}  # placeholders of arguments that are paths
FOLDERS = {"DIR", "ROOT"}
DETAILS = r"[;:]| \("  # end of the part of a help text that fits a menu


class ShowCompletion(argparse.Action):
    """Action that prints the completion script for a shell."""

    def __call__(self, parser: Any, _: object, shell: Any, *args: object) -> NoReturn:
        for line in make_script(parser, shell).splitlines():
            write_line(Painted(line))
        raise SystemExit


def make_script(parser: Parser, shell: str) -> str:
    """Return the completion script of a parser's commands for a shell."""
    try:
        import shtab
    except ImportError:
        raise UsageError(f"--completion needs shtab: {INSTALL}") from None
    if shell not in shtab.SUPPORTED_SHELLS:
        raise UsageError(f"--completion {shell} needs a newer shtab: {INSTALL}")
    for each in parser.walk():
        if each.commands is not None:
            for listed in each.commands._choices_actions:
                each.commands.choices[listed.dest].description = listed.help
        actions: list[Any] = each._actions
        for action in actions:
            action.help = re.split(DETAILS, action.help or "")[0]
            if action.metavar in FILES:
                action.complete = shtab.FILE
            elif action.metavar in FOLDERS:
                action.complete = shtab.DIRECTORY
            elif action.metavar == "COMMAND" and action.choices is None:  # of help
                action.choices = list(parser.commands.choices)
            elif not action.option_strings and action.choices is None:
                action.complete = {"zsh": "_files"}  # without one, no options
    script: str = shtab.complete(parser, shell)
    if shell == "zsh":  # shtab 1.13 completes the first of several arguments only
        script = re.sub(r'^  "\(\*\)::?', '  "*:', script, flags=re.MULTILINE)
    return script
