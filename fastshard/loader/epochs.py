"""Epochs of a loader: where its next iteration begins, and how far the last one is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from warnings import warn

from fastshard.loader.recorder import LoaderRecorder
from fastshard.loader.source import BatchSource, EpochSource

__all__ = ["FINISHED", "Epochs", "Position"]

FINISHED = "finished"  # in a state: the iteration ended, the next epoch follows
FEW_BATCHES = 2  # an iteration that ends before counts as a look at the data
REPEATED = (
    "two iterations of epoch {} ended early: both began with the same batches, as the "
    "next one will; call loader.set_epoch(n) for those of another epoch"
)


class Position:
    """Position of one iteration, after the batches that it returned.

    Attributes
    ----------
    start : EpochSource
        Where the iteration began.
    source : BatchSource
    recorder : LoaderRecorder
        Statistics of the iteration.
    done : tuple of int
        Samples since `start`, and skipped ones among them.
    batches : int
    """

    __slots__ = ("batches", "done", "recorder", "source", "start")

    def __init__(self, start: EpochSource, recorder: LoaderRecorder) -> None:
        self.start = start
        self.source: BatchSource = start.source()
        self.recorder = recorder
        self.done = 0, 0
        self.batches = 0

    def state(self) -> dict[str, Any]:
        """Return the state after the batches so far."""
        return self.source.state_after(*self.done)


class Epochs:
    """The epoch that a loader's iterations are in; they share it."""

    def __init__(self, start: EpochSource) -> None:
        self.start = start
        self.last: Position | None = None  # of the last iteration that gave a batch
        self.is_closed = False
        self._finished: Position | None = None  # of the epoch before `start`
        self._ended_early = 0  # iterations from `start`
        self._has_warned = False

    def begin(self, start: EpochSource) -> None:
        """Set where the next iteration begins."""
        self.start = start
        self._finished = None
        self._ended_early = 0

    def set_epoch(self, number: int) -> bool:
        """Start the next iteration at an epoch; return False if it is current."""
        if number == self.start.number:
            return False
        self.begin(self.start.at(number))
        return True

    def resume(self, state: Mapping[str, Any]) -> None:
        """Start the next iteration at a state."""
        self.begin(self.start.resumed(state))

    def state(self) -> dict[str, Any]:
        """Return the state after the batches that were returned last."""
        last = self.last
        if last is not None and last is self._finished:
            return last.state() | {FINISHED: True}
        if last is not None and last.start is self.start:
            return last.state()
        return self.start.source().state_after(0, 0)

    def finish(self, position: Position) -> None:
        """Begin the next epoch: an iteration of this one is exhausted."""
        if position.start is self.start:
            self.begin(self.start.at(self.start.number + 1))
            self._finished = position

    def end_early(self, position: Position) -> None:
        """Warn at the second iteration of an epoch that ended early."""
        if position.start is not self.start or position.batches < FEW_BATCHES:
            return
        self._ended_early += 1
        if self._ended_early > 1 and not (self.is_closed or self._has_warned):
            self._has_warned = True
            warn(REPEATED.format(self.start.number), stacklevel=4)
