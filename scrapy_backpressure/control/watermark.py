"""When a level is too high, with hysteresis, and how high it may be."""

from __future__ import annotations

AUTO_HIGH_MIN = 256
"""Enough for the first seconds of any crawl, while no throughput is measured."""
AUTO_HIGH_MAX = 2000
"""A pending request takes about 1.1 KB: at most 2.2 MB wait in memory."""


class Watermark:
    """Closed from *high* up, until the level is down to *low* again."""

    def __init__(self, high: int, low: int) -> None:
        self.high = high
        self.low = low
        self.closed = False

    def set(self, high: int, low: int) -> None:
        """Move the marks; takes effect at the next update."""
        self.high = high
        self.low = low

    def update(self, level: int) -> bool:
        """Whether the level is too high, given what it was before."""
        self.closed = level > self.low if self.closed else level >= self.high
        return self.closed


def auto_high(rate: float, seconds: float) -> int:
    """Open requests to allow for *seconds* of work at *rate* requests per second."""
    return min(max(int(rate * seconds), AUTO_HIGH_MIN), AUTO_HIGH_MAX)


class Throughput:
    """Answers per second, averaged over about the last *span* seconds."""

    def __init__(self, span: float = 30.0) -> None:
        self._span = span
        self._last: tuple[float, int] | None = None
        self.rate = 0.0

    def update(self, now: float, count: int) -> float:
        """Take in the total *count* at *now*; the rate in answers per second."""
        if self._last is None:
            self._last = (now, count)
            return self.rate
        last_time, last_count = self._last
        elapsed = now - last_time
        if elapsed <= 0:
            return self.rate
        weight = min(1.0, elapsed / self._span)
        current = (count - last_count) / elapsed
        # The first interval counts in full: nothing was known before it.
        self.rate = current if self.rate == 0.0 else self.rate + weight * (current - self.rate)
        self._last = (now, count)
        return self.rate
