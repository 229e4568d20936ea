"""How a lane grows before it has met a limit: doubling each round trip, soon half as fast.

A failure that may be throttling stops the growth for a few answers.

After an outage it starts anew, from one at a time and as slow as the request that got through.
Then every accept doubles the rate as well, until it no longer holds anything back. What was good
before the outage is where growing ends.
"""

from __future__ import annotations

import math

from scrapy_backpressure.control.pacer import Ticket
from scrapy_backpressure.control.queueing import QueueSense

FAST_UNTIL = 8.0
"""Concurrency up to which every accept adds one, and above which it adds half of one."""
DOUBTS = 5
"""Accepts after such a failure that add nothing."""
ROOM = 1.5
"""Times what a rate needs in flight that concurrency leaves to it."""
FIRST_RATE = 2.0
"""Requests per second with which a lane tries again after an outage, at least."""


def served_at_once(load: int, *, exact: bool) -> float:
    """How many at once a site serves that refused a request with ``load`` in flight.

    A tenth less, because answers on their way make it seem to bear more than it does; but no
    more than that, because requests sent together may have overtaken each other. One less where
    it has to be ``exact``, or the load is small.
    """
    return load - 1 if exact or load <= 5 else 0.9 * load


class SlowStart:
    """Concurrency until the first refusal, or until more of it only brings latency.

    ``rate``: per second, what has got through after an outage; ``most``, ``most_rate``: where to
    stop; ``since``: number of the last request sent before.
    """

    __slots__ = (
        "_doubts",
        "_most",
        "_most_rate",
        "_peak",
        "_since",
        "concurrency",
        "proven_rate",
        "queue",
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
        self._peak = 0.0
        self._doubts = 0
        self.queue = QueueSense(concurrency)

    def accepted(self, ticket: Ticket, latency: float, ceiling: float) -> bool:
        """Grow; False when growing has stopped to help and this phase is over."""
        self._peak = max(ticket.load, 0.9 * self._peak)
        if self._peak >= 0.5 * self.concurrency and self.concurrency < ceiling:
            step = 1.0 if self.concurrency < FAST_UNTIL else 0.5
            if not self._doubts:
                self.concurrency = min(ceiling, self._most, self.concurrency + step)
            self._doubts = max(0, self._doubts - 1)
        if self.rate < math.inf and ticket.seq > self._since:
            self._hurry(ticket, latency)
        enough = min(self._most, ROOM * self.rate * latency + 1)
        if self._most_rate <= self.rate < math.inf and self.concurrency >= enough:
            return False
        if self.concurrency >= self._most and self.rate >= self._most_rate:
            return False
        unqueued = self.queue.accepted(ticket.load, latency)
        if unqueued is not None:
            self.concurrency = min(unqueued, self.concurrency)
        return unqueued is None

    def hesitate(self) -> None:
        """A failure may be throttling: grow no further for now."""
        self._doubts = DOUBTS

    def crowded(self, concurrency: float) -> None:
        """More than so many at once were refused: go on growing in rate alone."""
        self.concurrency = self._most = concurrency

    def _hurry(self, ticket: Ticket, latency: float) -> None:
        if ticket.paced:
            self.proven_rate = max(self.proven_rate, 1 / ticket.interval)
        self.rate = min(2 * self.rate, self._most_rate)
        if self.rate * latency > 2 * self.concurrency + 2:
            self.rate = self._most_rate
