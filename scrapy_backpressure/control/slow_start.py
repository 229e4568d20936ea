"""How a lane grows before it has met a limit: doubling each round trip, later half as fast."""

from __future__ import annotations

from scrapy_backpressure.control.meter import Round
from scrapy_backpressure.control.pacer import Ticket

FAST_UNTIL = 16.0
"""Concurrency up to which every accept adds one, and above which it adds half of one."""
QUEUE_LATENCY = 1.5
"""Times the first latency at which the site is taken to queue what it is sent."""


class SlowStart:
    """Concurrency until the first refusal, or until more of it only brings latency."""

    __slots__ = (
        "_first_latency",
        "_last_peak",
        "_level",
        "_peak",
        "_round",
        "concurrency",
    )

    def __init__(self, concurrency: float) -> None:
        self.concurrency = concurrency
        self._level = concurrency
        self._round = Round(0)
        self._first_latency = 0.0
        self._peak = self._last_peak = 0

    def accepted(self, ticket: Ticket, latency: float, ceiling: float) -> bool:
        """Grow; False when growing has stopped to help and this phase is over."""
        self._peak = max(self._peak, ticket.load)
        in_use = max(self._peak, self._last_peak) > 0.5 * self.concurrency
        if in_use and self.concurrency < ceiling:
            step = 1.0 if self.concurrency < FAST_UNTIL else 0.5
            self.concurrency = min(ceiling, self.concurrency + step)
        self._round.note(ticket, latency)
        if self._round.accepts < max(4.0, self._level):
            return True
        mean = self._round.latency
        first = self._first_latency = min(mean, self._first_latency or mean)
        if mean > QUEUE_LATENCY * first:
            self.concurrency *= first / mean
            return False
        self._level = self.concurrency
        self._last_peak, self._peak = self._peak, 0
        self._round = Round(0)
        return True
