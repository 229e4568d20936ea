"""How a lane grows before it has met a limit: doubling each round trip, later half as fast.

After an outage it starts anew, from one at a time and as slow as the request that got through.
Then every accept doubles the rate as well, until it no longer holds anything back. What was good
before the outage is where growing ends.
"""

from __future__ import annotations

import math

from scrapy_backpressure.control.meter import Round
from scrapy_backpressure.control.pacer import Ticket
from scrapy_backpressure.control.probing import ROOM

FAST_UNTIL = 16.0
"""Concurrency up to which every accept adds one, and above which it adds half of one."""
QUEUE_LATENCY = 1.5
"""Times the first latency at which the site is taken to queue what it is sent."""
FIRST_RATE = 2.0
"""Requests per second with which a lane tries again after an outage, at least."""


class SlowStart:
    """Concurrency until the first refusal, or until more of it only brings latency.

    ``rate``: per second, what has got through after an outage; ``most``, ``most_rate``: where to
    stop; ``since``: number of the last request sent before.
    """

    __slots__ = (
        "_first_latency",
        "_last_peak",
        "_level",
        "_most",
        "_most_rate",
        "_peak",
        "_round",
        "_since",
        "concurrency",
        "proven_rate",
        "rate",
    )

    def __init__(
        self,
        concurrency: float,
        *,
        rate: float = math.inf,
        most: float = math.inf,
        most_rate: float = math.inf,
        since: int = 0,
    ) -> None:
        self.concurrency = concurrency
        self.rate = max(FIRST_RATE, rate)
        self.proven_rate = rate
        """The highest rate at which one was accepted."""
        self._most = most
        self._most_rate = most_rate
        self._since = since
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
            self.concurrency = min(ceiling, self._most, self.concurrency + step)
        if self.rate < math.inf and ticket.seq > self._since:
            self._hurry(ticket, latency)
        enough = min(self._most, ROOM * self.rate * latency + 1)
        if self._most_rate <= self.rate < math.inf and self.concurrency >= enough:
            return False
        if self.concurrency >= self._most and self.rate >= self._most_rate:
            return False
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

    def crowded(self, concurrency: float) -> None:
        """More than so many at once were refused: go on growing in rate alone."""
        self.concurrency = self._most = concurrency

    def _hurry(self, ticket: Ticket, latency: float) -> None:
        if ticket.paced:
            self.proven_rate = max(self.proven_rate, 1 / ticket.interval)
        self.rate = min(2 * self.rate, self._most_rate)
        if self.rate * latency > 2 * self.concurrency + 2:
            self.rate = self._most_rate
