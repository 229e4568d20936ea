"""Whether a quota refills all the time, and how fast, as the answers' own headers show.

Headers tell neither: ``reset`` is when a fixed window starts anew, or when a bucket is full. But
within a fixed window ``remaining`` falls by one with each request served, and a new window starts
full. So where it fell by less, and even all that was sent since would not explain a new window,
the quota refills. Seen a few times, that is believed; a refusal ends the belief, and it then takes
twice as much to come back.

The pace of the refill is what was served, plus what is left more than before, over time. That is
too little while the bucket is full now and then; but whatever an answer tells to be left goes at
once, so that the next measure comes closer.
"""

from __future__ import annotations

import math

ENOUGH = 3
"""Times that a quota must be seen to refill before that is believed."""
GAIN = 2
"""Requests by which ``remaining`` must have fallen too little each time; by one is enough where a
single request was under way, so that none can have overtaken another."""
SPAN = 20
"""Served requests over which the pace is measured, at least; else as many as the quota holds."""


class Refill:
    """The refill of one quota; of one as yet unknown, or of a fixed window, ``rate`` is 0."""

    __slots__ = ("_answers", "_before", "_needed", "_seen", "_sent", "_span", "_under_way", "rate")

    def __init__(self) -> None:
        self.rate = 0.0
        """Requests per second, if believed."""
        self._needed = ENOUGH
        self._seen = 0
        self._before = math.inf  # what was left when the comparison began; inf: it has not
        self._under_way = 0  # then
        self._answers = 0  # since
        self._sent = 0  # since
        self._span = (math.inf, 0.0, 0)  # when measuring began, what was left then, served since

    def sent(self) -> None:
        """One more goes out."""
        self._sent += 1

    def served(self) -> None:
        """One more was served, and is counted by the site."""
        since, before, count = self._span
        self._span = since, before, count + 1
        self._answers += 1

    def told(
        self, left: float, limit: float, now: float, in_flight: int, *, same_window: bool
    ) -> None:
        """After ``served``: the newest answer tells that so many are left."""
        since, _, count = self._span
        if since == math.inf:
            self._span = now, left, 0
        elif self.rate:
            if count >= max(SPAN, limit):
                self._measure(left, now)
            return
        # A new window would be full, but for all that may have been served since.
        if same_window and left + self._under_way + self._sent < limit < math.inf:
            # Those under way at first may have been counted before.
            gained = left - self._before + max(0, self._answers - self._under_way)
            alone = self._under_way + self._sent == 1
            if gained < GAIN and not alone:
                return
            self._seen += gained >= 1
            if self._seen >= self._needed and count >= max(SPAN, limit):
                self._measure(left, now)
        self.compare(left, in_flight)

    def compare(self, left: float, in_flight: int) -> None:
        """From here on: so many are left."""
        self._before, self._under_way, self._answers, self._sent = left, in_flight, 0, 0

    def refused(self) -> None:
        """None was left: whatever was believed holds no more."""
        if self.rate:
            self._needed *= 2
        self.rate, self._seen, self._before = 0.0, 0, math.inf
        self._span = math.inf, 0.0, 0

    def _measure(self, left: float, now: float) -> None:
        since, before, count = self._span
        if now > since:
            # Both may have been rounded down.
            self.rate = max(0.0, (left - before + count - 1) / (now - since))
            if not self.rate:
                self._seen = 0
        self._span = now, left, 0
