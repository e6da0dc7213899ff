"""Statistics of a loader: times of its consumer and threads, verdict, advice."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from fastshard._core.loader.threads import bucket_value

__all__ = ["LoaderStats", "LoaderTotals"]

LEAST_BATCHES: Final = 20  # fewer have no verdict
LITTLE_WAIT: Final = 0.05  # of wall: the consumer waits for nothing
MUCH_GIL: Final = 0.25  # of busy
MUCH_RUNQUEUE: Final = 0.25  # of busy
MUCH_FETCH: Final = 0.5  # of busy

BUSY: Final = ("fetch", "decode", "resize", "map", "collate")


def _quantile(waits: dict[int, int], part: float) -> float:
    """Return a quantile of a histogram of waits, seconds; 0 for an empty one."""
    left = part * (sum(waits.values()) - 1)
    for bucket in sorted(waits):
        left -= waits[bucket]
        if left < 0:
            return bucket_value(bucket) / 1e9
    return 0.0


@dataclass(frozen=True, slots=True)
class LoaderTotals:
    """Cumulative statistics, ns; differences of two give a period.

    Attributes
    ----------
    times : dict of str to int or None
        ``wall``, ``consumer``, ``wait``; sums over threads of the steps, ``cpu``,
        ``runqueue``, and ``blocked``, the part of fetch off the CPU.
    counts : dict of str to int
        ``batches``, ``samples`` and the other counts of `LoaderStats`.
    ready : int
        Sum of the numbers of batches that were ready when one was requested.
    waits : dict of int to int
        Number of waits by bucket.
    threads : int
    begun : int
        Time of the start, which tells loaders apart; 0 before it.
    """

    times: dict[str, int | None]
    counts: dict[str, int]
    ready: int
    waits: dict[int, int]
    threads: int
    begun: int = 0

    def minus(self, other: LoaderTotals) -> LoaderTotals:
        """Return the difference from earlier totals."""
        times: dict[str, int | None] = {}
        for name, ns in self.times.items():
            before = other.times[name]
            known = ns is not None and before is not None
            times[name] = ns - before if known else None  # type: ignore[operator]
        waits = {
            bucket: count - other.waits.get(bucket, 0)
            for bucket, count in self.waits.items()
        }
        return LoaderTotals(
            times,
            {name: count - other.counts[name] for name, count in self.counts.items()},
            self.ready - other.ready,
            {bucket: count for bucket, count in waits.items() if count > 0},
            self.threads,
            self.begun,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStats:
    """Where the time of a loader went: plain numbers.

    Attributes
    ----------
    wall : float
        Seconds since the loader began, until now or its end.
    consumer : float
        Seconds between a batch and the next call of ``next``.
    wait : float
        Seconds inside ``next``.
    fetch, decode, resize, map, collate : float
        Seconds in which threads brought samples, decoded and resized images, called
        mapped functions and decoders, and collated; summed over threads. Together they
        are `busy`.
    full, idle : float
        Seconds in which threads waited for a free set of buffers, and for work; summed
        over threads.
    cpu, runqueue : float or None
        Seconds of threads on a CPU, and runnable without one; None on systems other
        than Linux.
    gil : float or None
        ``busy - cpu - runqueue``: seconds of busy threads that neither ran nor could
        run. They waited for the GIL, or in `fetch` for bytes.
    batches, samples : int
        Number of batches that were returned, and of their samples.
    bytes_read : int
        Stored bytes of samples, extrapolated from some of each batch; 0 of
        ``ds.batches`` if a function or decoder replaced the samples.
    bytes_decoded : int
        Bytes of decoded images.
    skipped : int
        Unreadable samples that were skipped.
    filled : int
        Truncated images that were filled, with ``truncated="fill"``.
    ready : float
        Mean number of batches that were ready when one was requested.
    wait_p50, wait_p99 : float
        Median and 99th percentile of the waits for a batch, seconds, within 2 %.
    requests, retries, cache_hits : int
        Range requests, retries, and ranges found in ``cache_dir``, of all remote
        datasets of this process.
    threads : int
        Number of threads in the sums.

    Examples
    --------
    >>> import fastshard
    >>> ds = fastshard.open("data/")
    >>> batches = ds.batches(4)
    >>> for batch in batches:
    ...     pass
    >>> stats = batches.stats()
    >>> stats.batches, stats.samples, stats.threads
    (25, 100, 1)
    >>> abs(stats.wall - stats.wait - stats.consumer) < 0.001
    True
    """

    wall: float
    consumer: float
    wait: float
    fetch: float
    decode: float
    resize: float
    map: float
    collate: float
    full: float
    idle: float
    cpu: float | None
    runqueue: float | None
    gil: float | None
    batches: int
    samples: int
    bytes_read: int
    bytes_decoded: int
    skipped: int
    filled: int
    ready: float
    wait_p50: float
    wait_p99: float
    requests: int
    retries: int
    cache_hits: int
    threads: int
    _blocked: float | None = field(default=None, repr=False, compare=False)
    _totals: LoaderTotals | None = field(default=None, repr=False, compare=False)

    @property
    def busy(self) -> float:
        """Seconds of threads in steps, summed: all but `full` and `idle`."""
        return self.fetch + self.decode + self.resize + self.map + self.collate

    @property
    def verdict(self) -> Literal["consumer", "storage", "decode"] | None:
        """The bottleneck of the run; None below 20 batches.

        ``"consumer"``: the loader is faster, or the consumer holds the GIL;
        ``"storage"``: threads spend their time bringing bytes; ``"decode"``: decoding,
        mapping and collating them. `advice` says more.
        """
        if self.batches < LEAST_BATCHES:
            return None
        if self.wait < LITTLE_WAIT * self.wall or self._is_held():
            return "consumer"
        return "storage" if self.fetch > MUCH_FETCH * self.busy else "decode"

    def _is_held(self) -> bool:
        """Return whether the consumer holds the GIL against the threads."""
        gil = self.gil
        if gil is None or self.consumer <= self.wait or gil <= MUCH_GIL * self.busy:
            return False
        # Threads off the CPU in `fetch` alone wait for bytes, not for the GIL.
        blocked = self._blocked or 0.0
        return gil - blocked > MUCH_GIL * (self.busy - self.fetch) or not blocked

    @property
    def advice(self) -> str:
        """The change that the verdict suggests, in one sentence."""
        verdict = self.verdict
        if verdict is None:
            return f"{self.batches} batches are too few: {LEAST_BATCHES} are needed"
        if verdict == "consumer" and self.wait >= LITTLE_WAIT * self.wall:
            return (
                "the consumer holds the GIL while the threads need it: let its step "
                "run in compiled code that releases the GIL"
            )
        if verdict == "consumer":
            return "batches are ready when requested: the loader is fast enough"
        if verdict == "storage":
            return (
                "bytes come slowly: a larger ahead= asks for more of them at once; for "
                "remote data cache_dir= keeps them"
            )
        if self.runqueue is not None and self.runqueue > MUCH_RUNQUEUE * self.busy:
            return "cores are short: threads are runnable without a CPU"
        gil = self.gil
        if gil is not None and gil > MUCH_GIL * self.busy:
            return (
                "threads wait for the GIL: a mapped function or decoder holds it; "
                "let it run in compiled code, or in processes"
            )
        return "decoding takes the time: more threads="

    def as_dict(self) -> dict[str, float]:
        """Return the figures by name, flat, for W&B, TensorBoard or Prometheus.

        Returns
        -------
        dict of str to int or float
            Without figures that the system does not provide.

        Examples
        --------
        >>> batches = ds.batches(40)
        >>> _ = next(batches)
        >>> figures = batches.stats().as_dict()
        >>> figures["batches"], figures["samples"], figures["skipped"]
        (1, 40, 0)
        """
        values = {name: getattr(self, name) for name in _FIGURES}
        return {name: value for name, value in values.items() if value is not None}

    def __str__(self) -> str:
        wall = self.wall or 1.0
        waits = f"p50 {_text(self.wait_p50)}, p99 {_text(self.wait_p99)}"
        parts = [
            f"{self.batches:,} batches, {self.samples:,} samples in {self.wall:.3g} s "
            f"({self.samples / wall:,.0f}/s)",
            f"consumer {self.consumer / wall:.0%}, wait {self.wait / wall:.0%} "
            f"({waits})",
        ]
        whole = self.busy + self.full + self.idle
        shares = [
            f"{name} {getattr(self, name) / whole:.0%}"
            for name in (*BUSY, "full", "idle")
            if whole and getattr(self, name) >= 0.005 * whole
        ]
        parts.append(
            f"{self.threads} thread{'s' * (self.threads != 1)}: {', '.join(shares)}"
        )
        if self.skipped:
            parts.append(f"{self.skipped:,} skipped")
        if self.filled:
            parts.append(f"{self.filled:,} filled")
        if self.verdict:
            parts.append(f"verdict {self.verdict}: {self.advice}")
        return "; ".join(parts)

    @classmethod
    def _of(
        cls, totals: LoaderTotals, total: LoaderTotals | None = None
    ) -> LoaderStats:
        """Return the statistics of totals; `total` are those since the start."""
        seconds = {
            name: None if ns is None else ns / 1e9 for name, ns in totals.times.items()
        }
        blocked = seconds.pop("blocked", None)
        times, batches = totals.times, totals.counts["batches"]
        cpu, runqueue = times["cpu"], times["runqueue"]
        gil = None
        if cpu is not None and runqueue is not None:
            busy = sum(times[name] or 0 for name in BUSY)
            gil = max(0, busy - cpu - runqueue) / 1e9
        figures: dict[str, Any] = seconds | totals.counts
        return cls(
            **figures,
            gil=gil,
            ready=totals.ready / batches if batches else 0.0,
            wait_p50=_quantile(totals.waits, 0.5),
            wait_p99=_quantile(totals.waits, 0.99),
            threads=totals.threads,
            _blocked=blocked,
            _totals=total or totals,
        )

    def _after(self, since: LoaderStats) -> LoaderStats:
        """Return the statistics of the time after earlier ones of the same loader."""
        if not isinstance(since, LoaderStats):
            raise TypeError(f"since must be a LoaderStats, got {type(since).__name__}")
        total, before = self._totals, since._totals
        if total is None or before is None:
            raise ValueError("since must be a result of stats() of this loader")
        is_own = before.begun in (0, total.begun)
        if not is_own or before.counts["batches"] > total.counts["batches"]:
            raise ValueError("since must be earlier statistics of the same loader")
        return LoaderStats._of(total.minus(before), total)


_FIGURES = tuple(
    item.name for item in fields(LoaderStats) if not item.name.startswith("_")
)


def _text(seconds: float) -> str:
    """Format a duration."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
