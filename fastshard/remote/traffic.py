"""Counters of this process's range requests."""

from __future__ import annotations

from fastshard._util.processes.forks import LockOwner

__all__ = ["traffic"]


class Traffic(LockOwner):
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
        super().__init__()
        self.requests = 0
        self.retries = 0
        self.cache_hits = 0

    def count_request(self) -> None:
        """Count a request."""
        with self.lock:
            self.requests += 1

    def count_retry(self) -> None:
        """Count the repetition of a request, before it is sent."""
        with self.lock:
            self.retries += 1

    def count_hit(self) -> None:
        """Count a range found in the disk cache."""
        with self.lock:
            self.cache_hits += 1

    def counts(self) -> tuple[int, int, int]:
        """Return `requests`, `retries` and `cache_hits`."""
        with self.lock:
            return self.requests, self.retries, self.cache_hits


traffic = Traffic()
