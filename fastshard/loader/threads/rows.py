"""Rows of samples that failed: left out of a batch, or zeros in it."""

from __future__ import annotations

from typing import Any

from fastshard.loader.buffers import BufferPool, BufferSet
from fastshard.loader.threads.batch_work import BatchSteps, BatchWork

__all__ = ["OK", "SKIPPED", "FailedRows"]

SKIPPED, OK = "__skipped__", "__ok__"
MAX_PROBED = 64  # batches searched for a good row, whose arrays give the shapes


class FailedRows:
    """Reports the failed rows of batches, for ``on_error="skip"`` and ``"mask"``."""

    def __init__(self, masks: bool, steps: BatchSteps, pool: BufferPool) -> None:
        self._masks = masks
        self._steps = steps
        self._pool = pool
        self._template: Any = None  # without rows, for a batch whose rows all failed

    def add(self, work: BatchWork) -> Any:
        """Return a made batch with the field ``__skipped__`` or ``__ok__``."""
        batch = work.value
        is_empty = len(work.failures) == work.rows
        if is_empty:
            if self._template is None:
                self._template = self._probe(work)
            if self._masks and self._template is None:
                raise self._describe(work)
            batch = self._template
            batch = {} if batch is None else resize_rows(batch, 0)
        elif self._template is None:
            self._template = resize_rows(batch, 0)
        if not self._masks:
            return self._add_skipped(batch, work)
        if not isinstance(batch, dict):
            kind = type(batch).__name__
            raise TypeError(f'on_error="mask" needs batches that are dicts, got {kind}')
        import numpy as np

        ok = np.ones(work.rows, bool)
        ok[list(work.failures)] = False
        if work.failures:
            assert work.buffers is not None
            batch = spread_rows(batch, ok, work.buffers)
        return batch | {OK: ok}

    def _probe(self, work: BatchWork) -> Any:
        """Return the fields of a later batch with a good row, without rows; or None.

        Drops the batches made for it.
        """
        total = len(self._steps.source)
        last = min(total, work.stop + MAX_PROBED * work.rows)
        for start in range(work.stop, last, work.rows):
            probe = BatchWork(work.number, start, min(start + work.rows, total))
            probe.buffers = BufferSet(self._pool)
            self._steps.fetch(probe)
            self._steps.prepare(probe, 0, probe.rows)
            self._steps.collate(probe, probe.buffers)
            if probe.error is None and probe.value is not None:
                return resize_rows(probe.value, 0)
        return None

    def _add_skipped(self, batch: Any, work: BatchWork) -> Any:
        if not isinstance(batch, dict):  # a tuple, or a function's own
            return batch
        rows = sorted(work.failures)
        return batch | {
            SKIPPED: [
                (work.start + row, self._name(work, row), _text(work.failures[row]))
                for row in rows
            ]
        }

    def _name(self, work: BatchWork, row: int) -> str:
        member = getattr(work.failures[row], "member", None)
        if isinstance(member, str):
            return member
        return self._steps.source.name_of(work.start + row)

    def _describe(self, work: BatchWork) -> Exception:
        """Return the error of the first row."""
        row = min(work.failures)
        error = work.failures[row]
        error.add_note(
            f"all {work.rows} samples of the first batch failed, and all of up to "
            f"{MAX_PROBED} batches after it: the shapes of its arrays are not known"
        )
        return error


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


def resize_rows(value: Any, count: int) -> Any:
    """Return a value with the fields of a batch and `count` rows of zeros."""
    import numpy as np

    if isinstance(value, dict):
        return {name: resize_rows(part, count) for name, part in value.items()}
    if isinstance(value, list):
        return [None] * count
    if isinstance(value, tuple):
        parts = [resize_rows(part, count) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, np.ndarray) and value.ndim:
        return np.zeros((count, *value.shape[1:]), value.dtype)
    if hasattr(value, "__torch_function__") and value.ndim:
        return value.new_zeros((count, *value.shape[1:]))
    return value


def spread_rows(value: Any, ok: Any, buffers: BufferSet, name: str = "") -> Any:
    """Return the value of a batch with zeros (None in lists) where rows failed."""
    import numpy as np

    good = int(np.count_nonzero(ok))
    if isinstance(value, dict):
        prefix = f"{name}/" if name else ""
        return {
            key: spread_rows(part, ok, buffers, f"{prefix}{key}")
            for key, part in value.items()
        }
    if isinstance(value, list) and len(value) == good:
        values = iter(value)
        return [next(values) if is_good else None for is_good in ok]
    if isinstance(value, tuple):
        parts = [
            spread_rows(part, ok, buffers, f"{name}[{k}]")
            for k, part in enumerate(value)
        ]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, np.ndarray) and value.ndim and len(value) == good:
        kept = value.copy()  # it may share memory with `full`
        full = buffers.take(name, (len(ok), *value.shape[1:]), value.dtype)
        full[~ok] = np.zeros((), value.dtype)
        full[ok] = kept
        return full
    if hasattr(value, "__torch_function__") and value.ndim and len(value) == good:
        full = value.new_zeros((len(ok), *value.shape[1:]))
        full[ok.nonzero()[0].tolist()] = value
        return full
    return value
