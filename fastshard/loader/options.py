"""Options of a loader."""

from __future__ import annotations

import threading
from operator import index
from typing import NamedTuple

from fastshard._util.options import check_choice
from fastshard.formats.layout import Allocate
from fastshard.loader.threads.batch_work import LoaderOnError
from fastshard.loader.threads.cpus import count_cpus

__all__ = ["LoaderOnError", "LoaderOptions"]


class LoaderOptions(NamedTuple):
    """Options of a loader; see `BaseDataset.loader`."""

    batch_size: int
    threads: int
    ahead: int
    allocate: Allocate | None
    drop_last: bool
    on_error: LoaderOnError
    timeout: float | None

    @classmethod
    def checked(
        cls,
        batch_size: int,
        threads: int | None = None,
        ahead: int = 2,
        allocate: Allocate | None = None,
        drop_last: bool = False,
        on_error: LoaderOnError = "raise",
        timeout: float | None = None,
    ) -> LoaderOptions:
        """Return options; raise ValueError or TypeError for one that is invalid."""
        if threads is None:
            threads = count_cpus()
        for name, number, least in (
            ("batch_size", batch_size, 1),
            ("threads", threads, 1),
            ("ahead", ahead, 0),
        ):
            if index(number) < least:
                raise ValueError(f"{name} must be at least {least}, got {number}")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout must be positive, got {timeout}")
        if allocate is not None and not callable(allocate):
            kind = type(allocate).__name__
            raise TypeError(f"allocate must be a function, got {kind}")
        check_choice("on_error", on_error, ("raise", "skip", "mask"))
        return cls(
            index(batch_size),
            index(threads),
            index(ahead),
            allocate,
            bool(drop_last),
            on_error,
            None if timeout is None or timeout > threading.TIMEOUT_MAX else timeout,
        )

    def count_batches(self, samples: int) -> int:
        """Return the number of batches of some samples."""
        size = self.batch_size
        return samples // size if self.drop_last else -(-samples // size)
