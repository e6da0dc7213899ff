"""Counters of this process's range requests."""

from __future__ import annotations

import os
import threading

__all__ = ["traffic"]


class Traffic:
    """Counts of this process's range requests, for statistics.

    Attributes
    ----------
    requests : int
        Requests that were sent, repeated ones included; those that obstore repeats
        by itself are not.
    retries : int
        Requests repeated after a transient failure.
    cache_hits : int
        Ranges found in the disk cache.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.retries = 0
        self.cache_hits = 0
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def count_request(self) -> None:
        """Count a request."""
        with self._lock:
            self.requests += 1

    def count_retry(self) -> None:
        """Count the repetition of a request, before it is sent."""
        with self._lock:
            self.retries += 1

    def count_hit(self) -> None:
        """Count a range found in the disk cache."""
        with self._lock:
            self.cache_hits += 1

    def counts(self) -> tuple[int, int, int]:
        """Return `requests`, `retries` and `cache_hits`."""
        with self._lock:
            return self.requests, self.retries, self.cache_hits


traffic = Traffic()
