"""One batch in the making: its samples, its chunks and its errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from fastshard.loader.buffers import BufferSet
from fastshard.loader.source import BatchSource
from fastshard.loader.times import enter_step

__all__ = ["BatchSteps", "BatchWork", "LoaderOnError"]

LoaderOnError: TypeAlias = Literal["raise", "skip", "mask"]


class BatchWork:
    """A batch that threads are making.

    Attributes
    ----------
    number : int
        Of the batch, from 0 where the loader began.
    start, stop : int
        Positions of its samples.
    buffers : BufferSet or None
        Memory of the batch; None before one of its chunks was claimed.
    items : list
        By row: fetched items, later prepared ones; None for failed rows.
    failures : dict of int to Exception
        The errors of skipped samples, by row.
    error : BaseException or None
        Raised at the batch's turn; of several the first row's.
    error_row : int
        The row, or that of the first sample of its chunk.
    value : object
        The batch, once made.
    """

    __slots__ = (
        "_lock",
        "buffers",
        "claimed",
        "error",
        "error_row",
        "failures",
        "is_done",
        "is_fetched",
        "items",
        "left",
        "number",
        "start",
        "stop",
        "value",
    )

    def __init__(self, number: int, start: int, stop: int) -> None:
        self.number = number
        self.start = start
        self.stop = stop
        self.buffers: BufferSet | None = None
        self.items: list[Any] = []
        self.failures: dict[int, Exception] = {}
        self.error: BaseException | None = None
        self.error_row = 0
        self._lock = threading.Lock()  # of both
        self.value: Any = None
        # Of the pipeline, which locks them:
        self.is_fetched = False
        self.claimed = 0  # rows in claimed chunks
        self.left = stop - start  # rows in unfinished chunks
        self.is_done = False

    @property
    def rows(self) -> int:
        """The number of samples."""
        return self.stop - self.start

    def fail(self, error: BaseException, row: int) -> None:
        """Keep an error, unless one of an earlier row is known."""
        with self._lock:
            if self.error is None or row < self.error_row:
                self.error, self.error_row = error, row

    def fails_before(self, row: int) -> bool:
        """Return whether an error of a row up to this one is known."""
        with self._lock:
            return self.error is not None and self.error_row <= row


class BatchSteps:
    """The steps that make batches of a source, with the handling of errors.

    They never raise: errors are kept in the batch. Several threads may prepare chunks
    of a batch; one thread takes all other steps.
    """

    def __init__(
        self,
        source: BatchSource,
        on_error: LoaderOnError,
        is_skippable: Callable[[Exception], bool],
    ) -> None:
        self.source = source
        self._on_error = on_error
        self._is_skippable = is_skippable

    def fetch(self, work: BatchWork) -> None:
        """Fetch the samples of a batch."""
        enter_step("fetch")
        try:
            work.items = self._fetch(work, work.start, work.stop)
        except BaseException as error:
            work.fail(error, 0)

    def _fetch(self, work: BatchWork, start: int, stop: int) -> list[Any]:
        """Fetch samples together; bisect after the error of a skippable one."""
        try:
            return self.fetch_together(start, stop)
        except Exception as error:
            if not self._skips(error):
                raise
            return self._fetch_halves(work, start, stop, error)

    def fetch_together(self, start: int, stop: int) -> list[Any]:
        """Return the samples of some positions; raise the error of any."""
        items = self.source.fetch(start, stop)
        if len(items) != stop - start:
            raise RuntimeError(f"fetched {len(items)} of {stop - start} samples")
        return items

    def _fetch_halves(
        self, work: BatchWork, start: int, stop: int, error: Exception
    ) -> list[Any]:
        """Fetch the halves of a range that failed, and so on to single samples.

        If both halves fail at a server that may recover, all samples fail: each attempt
        takes a request's time limit.
        """
        if stop - start == 1:
            work.failures[start - work.start] = error
            return [None]
        middle = (start + stop) // 2
        halves: list[tuple[int, int, list[Any] | Exception]] = []
        for first, last in ((start, middle), (middle, stop)):
            try:
                halves.append((first, last, self.fetch_together(first, last)))
            except Exception as failed:
                if not self._skips(failed):
                    raise
                halves.append((first, last, failed))
        items: list[Any] = []
        is_down = all(getattr(found, "transient", False) for _, _, found in halves)
        for first, last, found in halves:
            if not isinstance(found, Exception):
                items += found
            elif not is_down:
                items += self._fetch_halves(work, first, last, found)
            else:
                rows = range(first - work.start, last - work.start)
                work.failures.update(dict.fromkeys(rows, found))
                items += [None] * len(rows)
        return items

    def _skips(self, error: Exception) -> bool:
        return self._on_error != "raise" and self._is_skippable(error)

    def prepare(self, work: BatchWork, row: int, stop: int) -> None:
        """Map and decode the rows of a chunk."""
        enter_step("map")
        at = row
        try:
            if self._on_error == "raise":
                at = row
                work.items[row:stop] = self._prepare(work, row, stop)
                return
            for at in range(row, stop):
                if at in work.failures:
                    continue
                try:
                    work.items[at : at + 1] = self._prepare(work, at, at + 1)
                except Exception as error:
                    if not self._is_skippable(error):
                        raise
                    work.failures[at] = error
                    work.items[at] = None
        except BaseException as error:
            work.fail(error, at)

    def _prepare(self, work: BatchWork, row: int, stop: int) -> list[Any]:
        assert work.buffers is not None
        items = self.source.prepare(
            work.items[row:stop], work.start + row, row, work.rows, work.buffers
        )
        if len(items) != stop - row:
            raise RuntimeError(f"prepared {len(items)} of {stop - row} samples")
        return items

    def collate(self, work: BatchWork, buffers: BufferSet | None) -> None:
        """Collate the rows of a batch that did not fail."""
        enter_step("collate")
        items = work.items
        work.items = []
        if work.error is not None:
            return
        try:
            work.value = self._collate(work, items, buffers)
        except BaseException as error:
            work.fail(error, 0)

    def _collate(
        self, work: BatchWork, items: list[Any], buffers: BufferSet | None
    ) -> Any:
        while True:
            rows: Sequence[int] = range(len(items))
            good = items
            if work.failures:
                rows = [row for row in rows if row not in work.failures]
                good = [items[row] for row in rows]
            if not rows:
                return None
            try:
                return self.source.collate(good, buffers)
            except Exception:
                if self._on_error == "raise" or not self._check(work, items, rows):
                    raise

    def _check(self, work: BatchWork, items: list[Any], rows: Sequence[int]) -> bool:
        """Find and skip the samples that fail in collation."""
        found = False
        for row in rows:
            try:
                self.source.check(items[row])
            except Exception as error:
                if not self._is_skippable(error):
                    raise
                work.failures[row] = error
                found = True
        return found
