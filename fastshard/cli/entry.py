"""Entry point of the command line: maps errors and signals to an exit status.

Data goes to stdout, messages to stderr. The commands are imported in `main`, so that
an interrupt meanwhile is quiet, too.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from fastshard._util.terminal import UsageError, print_error, write_output
from fastshard.errors import FastshardError

__all__ = ["main"]

SIGNALLED = 128  # and the signal's number, as shells report it
INTERRUPTED = SIGNALLED + 2  # SIGINT
OUTPUT_CLOSED = SIGNALLED + 13  # SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status."""
    with interrupted_by_signals() as received:
        status = run(argv)
    return SIGNALLED + received[0] if received else status


@contextmanager
def interrupted_by_signals() -> Iterator[list[int]]:
    """Make SIGTERM and SIGHUP interrupt like Ctrl-C; yield those received.

    Only the first one interrupts: closed terminals send several, and the files are
    removed meanwhile. A signal that is ignored, as SIGHUP under ``nohup``, or that the
    calling program handles, is left alone; so are all in a thread.
    """
    received: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        received.append(number)
        if len(received) == 1:
            raise KeyboardInterrupt

    taken = []
    if threading.current_thread() is threading.main_thread():
        known = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]
        taken = [n for n in known if n and signal.getsignal(n) == signal.SIG_DFL]
    try:
        for number in taken:
            signal.signal(number, interrupt)
        yield received
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def run(argv: Sequence[str] | None) -> int:
    """Run a command; return its exit status."""
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
            redirect(sys.stdout)  # a flush would wait for a stopped reader
        return INTERRUPTED
    finally:
        discard(sys.stderr)
    return status


def flush_output() -> None:
    """Flush stdout, to report errors of the disk."""
    if sys.stdout is not None:  # nothing was written, or it has raised
        write_output(flush=True)


def discard(file: TextIO | None) -> None:
    """Discard a failed file's buffer: later flushes must not raise."""
    if file is None:
        return
    try:
        file.flush()
    except OSError:
        redirect(file)


def redirect(file: TextIO | None) -> None:
    """Redirect a file to the null device."""
    if file is not None:
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), file.fileno())
