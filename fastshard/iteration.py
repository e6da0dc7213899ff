"""Iterations over a dataset: what they offer, and which errors they may pass over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol

from fastshard.errors import ClosedError, FastshardError, MissingLibraryError
from fastshard.formats.decoders import is_of_data

__all__ = ["ErrorHandler", "Iteration", "OnError", "handler_of"]

OnError = Literal["raise", "skip"] | Callable[[Exception, int], object]


class Iteration(Protocol):
    """An iterator over samples that knows how far it is; see `Dataset.iter`.

    Attributes
    ----------
    position : int
        Of the sample that comes next, in what is iterated over.
    skipped : int
        Samples that could not be read and were passed over; those before the state
        that it began from included.
    """

    @property
    def position(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...
    def __length_hint__(self) -> int: ...
    def state_dict(self) -> dict[str, Any]:
        """Return the state after what came so far, skipped or not."""
        ...

    def state_after(self, done: int, skipped: int) -> dict[str, Any]:
        """Return the state after some samples, and so many skipped in all."""
        ...

    def close(self) -> None:
        """End the iteration, and its thread."""
        ...


class ErrorHandler:
    """Which errors an iteration passes over, and who is told.

    Parameters
    ----------
    told : callable, optional
        ``told(error, position)`` is called for each that is passed over.
    """

    def __init__(self, told: Callable[[Exception, int], object] | None = None) -> None:
        self._told = told

    def __call__(self, error: Exception, position: int) -> bool:
        """Say whether to go on after an error of the sample at a position.

        Passed over is what the sample's data can cause: `FastshardError`, `OSError`,
        `ValueError`, `EOFError`, and what a field's decoder raises (`is_of_data`).
        Raised are a closed dataset, a library that is missing, and what else a
        mapped function raises: `TypeError`, `KeyError`, `NameError`, ...
        """
        if isinstance(error, ClosedError | MissingLibraryError):
            return False
        kinds = (FastshardError, OSError, ValueError, EOFError)
        if not isinstance(error, kinds) and not is_of_data(error):
            return False
        if self._told is not None:
            self._told(error, position)
        return True


def handler_of(on_error: OnError) -> ErrorHandler | None:
    """Return what decides about errors; None: all of them are raised.

    Raises
    ------
    ValueError
        It is none of "raise", "skip" and a function.
    """
    if callable(on_error):
        return ErrorHandler(on_error)
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error is "raise", "skip" or a function, not {on_error!r}')
    return ErrorHandler() if on_error == "skip" else None
