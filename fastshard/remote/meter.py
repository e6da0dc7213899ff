"""Meter of a server: the latency and the transfer rate of its responses."""

from __future__ import annotations

__all__ = ["MOST_SPAN", "Meter"]

GROWTH = 1.02  # factor on the latency for each slower response
WEIGHT = 0.1  # of a new measurement
LEAST_BYTES = 64 << 10  # of a response whose rate is measured
LEAST_GAP, MOST_GAP = 16 << 10, 1 << 20  # bytes between extents of a range
LEAST_SPAN, MOST_SPAN = 1 << 20, 8 << 20  # bytes of a range


class Meter:
    """Running latency and transfer rate of a server.

    Without a lock: concurrent threads may lose a measurement.

    Attributes
    ----------
    latency : float
        Seconds until a response begins: a recent minimum, since more is queueing.
    rate : float
        Bytes per second of one connection, a moving average.
    """

    def __init__(self) -> None:
        self.latency = 0.01
        self.rate = 50e6
        self._measured = False  # whether `latency` is
        self._rates = 0  # number of measured rates

    def record_latency(self, seconds: float) -> None:
        """Record the time until a response began."""
        slower = self.latency * GROWTH if self._measured else seconds
        self._measured = True
        self.latency = min(seconds, slower)

    def record_response(self, nbytes: int, seconds: float) -> None:
        """Record the time of a whole response, latency and transfer together."""
        waited = min(seconds, self.latency * GROWTH) if self._measured else seconds
        if nbytes < LEAST_BYTES:
            self.record_latency(seconds)
        else:
            self.record_transfer(nbytes, seconds - min(waited, seconds / 2))

    def record_transfer(self, nbytes: int, seconds: float) -> None:
        """Record the time in which a response's body was received."""
        if nbytes < LEAST_BYTES:
            return
        self._rates += 1
        weight = max(WEIGHT, 1 / self._rates)
        self.rate += weight * (nbytes / max(seconds, 1e-6) - self.rate)

    def span(self) -> int:
        """Return the bytes of a range for which the latency matters little."""
        return min(max(int(8 * self.latency * self.rate), LEAST_SPAN), MOST_SPAN)

    def gap(self) -> int:
        """Return the bytes transferred in the time of one latency."""
        return min(max(int(self.latency * self.rate), LEAST_GAP), MOST_GAP)
