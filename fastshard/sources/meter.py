"""What was measured of a server: how long it takes to answer, how fast bytes come."""

from __future__ import annotations

__all__ = ["Meter"]

GROWTH = 1.02  # of the least latency, by each answer that took longer
WEIGHT = 0.1  # of a new measurement
LEAST_BYTES = 64 << 10  # of an answer that tells a rate
LEAST_GAP, MOST_GAP = 16 << 10, 1 << 20  # bytes
LEAST_SPAN, MOST_SPAN = 1 << 20, 8 << 20  # bytes


class Meter:
    """Running figures; threads may lose a measurement, which does not matter.

    Attributes
    ----------
    latency : float
        Seconds until an answer begins, the least of late: more is waiting in line.
    rate : float
        Bytes a second of one connection, the mean of late.
    """

    def __init__(self) -> None:
        self.latency = 0.01
        self.rate = 50e6
        self._answers = False
        self._rates = 0

    def answered(self, seconds: float) -> None:
        slower = self.latency * GROWTH if self._answers else seconds
        self._answers = True
        self.latency = min(seconds, slower)

    def came(self, nbytes: int, seconds: float) -> None:
        """Note an answer that came in a time, waiting and bytes together."""
        waited = min(seconds, self.latency * GROWTH) if self._answers else seconds
        if nbytes < LEAST_BYTES:
            self.answered(seconds)
        else:
            self.received(nbytes, seconds - min(waited, seconds / 2))

    def received(self, nbytes: int, seconds: float) -> None:
        if nbytes < LEAST_BYTES:
            return
        self._rates += 1
        weight = max(WEIGHT, 1 / self._rates)
        self.rate += weight * (nbytes / max(seconds, 1e-6) - self.rate)

    def span(self) -> int:
        """Return how many bytes to ask for at once, so that answers cost little."""
        return min(max(int(8 * self.latency * self.rate), LEAST_SPAN), MOST_SPAN)

    def gap(self) -> int:
        """Return how many bytes come while an answer is waited for."""
        return min(max(int(self.latency * self.rate), LEAST_GAP), MOST_GAP)
