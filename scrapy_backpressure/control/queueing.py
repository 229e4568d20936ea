"""Whether more requests at once bring more answers, or only longer waits.

By Little's law a site of fixed capacity answers each of n requests at once in a time that grows
as n does. The mean latency at a reference concurrency is compared with that at a higher one; more
than half of the growth that a full queue would show, and more than chance would, is a queue.
How far to go back is told by the least latency that was seen at any reference, since the last one
may have been with a queue already.

Sources: J. Little (1961); B. Welford (1962) for the running variance; TCP Vegas for the idea.
"""

from __future__ import annotations

import math

APART = 1.2
"""Times the reference concurrency, and one more, from which on latencies are compared."""
LEAST = 5
"""Answers on each side at least."""
CERTAIN = 3.0
"""Standard errors by which the means differ at least."""
DRIFT = 0.1
"""Share of the way that the least latency follows a reference that is slower."""
LEAST_BACK = 0.75
"""What is left at least of what the last reference alone would leave."""


class Sample:
    """Running mean and variance."""

    __slots__ = ("_squares", "count", "mean")

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0

    def add(self, value: float) -> None:
        """Take one more in."""
        self.count += 1
        off = value - self.mean
        self.mean += off / self.count
        self._squares += off * (value - self.mean)

    @property
    def variance(self) -> float:
        """Of the values, estimated; 0 for a single one."""
        return self._squares / max(1, self.count - 1)


class QueueSense:
    """Compares latencies at two levels of concurrency; the lower is kept as reference."""

    __slots__ = ("_base", "_concurrency", "_loads", "_reference", "_trial")

    def __init__(self, concurrency: float) -> None:
        self._base = math.inf
        self._reference = Sample()
        self.restart(concurrency)

    def restart(self, concurrency: float) -> None:
        """Take ``concurrency`` as the new reference."""
        if self._reference.count >= LEAST:
            mean = self._reference.mean
            self._base = min(mean, self._base + DRIFT * max(0.0, mean - self._base))
        self._concurrency = concurrency
        self._reference = Sample()
        self._trial = Sample()
        self._loads = Sample()

    def accepted(self, load: int, latency: float) -> float | None:
        """Note an answer to a request sent with ``load`` in flight.

        If a queue shows: how many at once the site serves as fast as at the reference.
        """
        if load < APART * self._concurrency + 1:
            self._reference.add(latency)
            return None
        trial, reference = self._trial, self._reference
        trial.add(latency)
        self._loads.add(load)
        if min(trial.count, reference.count) < LEAST:
            return None
        mean_load = self._loads.mean
        longer = trial.mean / reference.mean - 1 if reference.mean else 0.0
        variance = max(trial.variance, reference.variance)
        error = math.sqrt(variance / trial.count + variance / reference.count)
        certain = longer * reference.mean > CERTAIN * error
        if certain and longer > 0.5 * (mean_load / self._concurrency - 1):
            without = min(1.0, self._base / reference.mean)
            return max(LEAST_BACK, without) * mean_load / (1 + longer)
        if trial.count >= max(2 * LEAST, 2 * mean_load):
            self.restart(mean_load)
            self._reference = trial
        return None
