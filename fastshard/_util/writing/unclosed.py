"""Warnings for writers that were never closed, with the lost samples."""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections.abc import Callable
from typing import NamedTuple, Protocol
from weakref import ref

from fastshard._util.processes.forks import at_fork
from fastshard._util.terminal import escape_line
from fastshard.errors import UnclosedWriterWarning

__all__ = ["ExitCall", "Loss", "report_dropped", "report_ended", "warn_of", "watch"]


class Loss(NamedTuple):
    """Samples written but not stored.

    Attributes
    ----------
    writer : str
        Name of the writer's class.
    path : str
        Of the shard or the dataset.
    samples : int
        Number of samples.
    close : str
        Name of the method that stores them.
    note : str
        Reason or consequence, if there is one.
    """

    writer: str
    path: str
    samples: int
    close: str = "close"
    note: str = ""


class Watched(Protocol):
    """A writer that reports its unstored samples."""

    def _find_loss(self) -> Loss:
        """Return the samples lost without `close`; none once closed."""
        ...


class ExitCall:
    """Function called at the end of the process, also of a worker process.

    Workers of multiprocessing do not call functions of `atexit`.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._worker = 0  # process id of the worker that calls it
        atexit.register(function)

    def arm(self) -> None:
        """Register the call in a worker process."""
        processes = sys.modules.get("multiprocessing.process")
        if processes is None or processes.parent_process() is None:
            return
        if self._worker != os.getpid():  # a fork drops registrations
            from multiprocessing.util import Finalize

            self._worker = os.getpid()
            Finalize(None, self._function, exitpriority=0)


_writers: dict[int, ref[Watched]] = {}  # by id; empty in a forked child


def watch(writer: Watched) -> None:
    """Report a writer at exit unless it is closed; keep a weak reference."""
    _writers[id(writer)] = ref(writer)
    _exit_call.arm()


def report_dropped(writer: Watched) -> None:
    """Warn of the loss of a writer that is being finalized, unless it is reported."""
    if _writers.pop(id(writer), None) is not None:
        warn_of(writer._find_loss())


def report_ended(writer: Watched, cause: type[BaseException]) -> None:
    """Warn of the loss at the end of a ``with``, unless the user sees the exception.

    The user does not see an exit, an interrupt, or the end of a generator or task.
    """
    if not issubclass(cause, Exception) and _writers.pop(id(writer), None) is not None:
        warn_of(writer._find_loss(), cause)


def warn_of(loss: Loss, cause: type[BaseException] | None = None) -> None:
    """Warn of a loss, on one line without a place in the user's code."""
    if not loss.samples:
        return
    end = f"was ended by {cause.__name__}" if cause else "was not closed"
    count = loss.samples
    samples = "1 sample is" if count == 1 else f"{count:,} samples are"
    note = f" ({loss.note})" if loss.note else ""
    advice = "" if cause else f"; call {loss.close}() or use `with`"
    text = f"{loss.writer} of {loss.path} {end}: {samples} not stored{note}{advice}"
    warnings.warn_explicit(
        escape_line(text), UnclosedWriterWarning, "<fastshard>", 0, "fastshard"
    )


def _report_all() -> None:
    """Report all open writers; an error of one does not hide the others."""
    for known in list(_writers.values()):
        writer = known()
        try:
            if writer is not None:
                report_dropped(writer)
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)


_exit_call = ExitCall(_report_all)
at_fork(after_in_child=_writers.clear)
