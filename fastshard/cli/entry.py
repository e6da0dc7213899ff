"""Entry point of the command line: its errors and signals are an exit status.

Data goes to stdout, messages to stderr. The commands are imported in `main`, so that
an interrupt meanwhile is quiet, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from fastshard._util.terminal import UsageError, print_error, write_output
from fastshard.errors import FastshardError

__all__ = ["main"]

INTERRUPTED = 128 + 2  # as shells report SIGINT
OUTPUT_CLOSED = 128 + 13  # as shells report SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status."""
    try:
        try:
            from fastshard.cli.program import run_command

            status = run_command(argv)
        except SystemExit:  # of --help, --version, wrong usage
            flush_output()
            raise
        flush_output()
    except BrokenPipeError:
        discard(sys.stdout)
        return OUTPUT_CLOSED
    except UsageError as error:
        print_error(error)
        return 2
    except (FastshardError, OSError) as error:
        discard(sys.stdout)
        print_error(error)
        return 1
    except KeyboardInterrupt:
        if sys.stdout is sys.__stdout__:
            redirect(sys.stdout)  # a flush would wait for a reader that has stopped
        return INTERRUPTED
    finally:
        discard(sys.stderr)
    return status


def flush_output() -> None:
    """Write what stdout buffers, so that an error of the disk is reported."""
    if sys.stdout is not None:  # nothing was written, or that has raised
        write_output(flush=True)


def discard(file: TextIO | None) -> None:
    """Let no later flush of a failed file raise."""
    if file is None:
        return
    try:
        file.flush()
    except OSError:
        redirect(file)


def redirect(file: TextIO | None) -> None:
    """Send what a file buffers, and will write, to nowhere."""
    if file is not None:
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), file.fileno())
