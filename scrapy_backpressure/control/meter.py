"""What a lane measures of itself: accepted requests per second, and how full it usually is."""

from __future__ import annotations

import math
from collections import deque

ENOUGH = 8
"""Accepts that give a rate."""
CREDIBLE = 20
"""Accepts before an outage from which on what was good then is a ceiling after it."""


class RateMeter:
    """Accepted requests per second, measured between marks.

    A mark is best set where the site had nothing left to give (a refusal), because between two
    such moments a token bucket serves just what it was refilled with, whatever its size. What
    counts is when a request was sent: answers still under way at a mark belong before it.
    """

    __slots__ = (
        "_began",
        "_cycle",
        "_marked",
        "_marks",
        "_outage",
        "_paused",
        "accepted",
        "pending",
    )

    def __init__(self, now: float) -> None:
        self.accepted = 0
        self.pending = 0
        """Requests since the last mark that are not answered yet, and will be accepted."""
        self._paused = 0.0
        self._marks: deque[tuple[float, int, float]] = deque([(now, 0, 0.0)], maxlen=8)
        self._marked = 0
        self._began = now
        self._cycle = self._outage = (now, 0)

    def mark(self, now: float) -> None:
        """Measure from here."""
        if self._marks and self._marks[-1][0] == now:
            self._marks.pop()
        self._marks.append((now, self.accepted, self._paused))

    def mark_refused(self, sent_at: float, seq: int) -> None:
        """Measure from the time at which this request was sent: it was refused."""
        self.pending = 0
        self._marked = seq
        self.mark(sent_at)

    def accept(self, seq: int) -> None:
        """The request with this number was accepted."""
        self.accepted += 1
        if seq < self._marked:
            at, count, paused = self._marks[-1]
            self._marks[-1] = (at, count + 1, paused)

    def beyond(self, rate: float) -> float:
        """How many were accepted until the first mark beyond what this rate brings meanwhile."""
        at, count, _ = self._marks[0]
        return count - rate * (at - self._began)

    def forget(self, now: float) -> None:
        """The limit has moved: what was measured before says nothing."""
        self._marks.clear()
        self.mark(now)

    def pause(self, seconds: float) -> None:
        """Nothing will be sent for so long."""
        self._paused += seconds

    def rate(self, now: float, *, more: float = 0.5) -> tuple[float, bool]:
        """Per second since the last mark at least 8 accepts back; whether no later one is.

        ``more``: is added to fewer accepts than that, since part of one may be refilled already.
        """
        rate = math.inf
        last = True
        for at, count, paused in reversed(self._marks):
            accepts = self.accepted + self.pending - count
            passed = now - at
            running = passed - (self._paused - paused)
            if running > 0:
                # A pause may have saved up some requests for us, or not: the middle of both.
                rate = (accepts + (more if accepts < ENOUGH else 0)) / math.sqrt(running * passed)
            if accepts >= ENOUGH:
                return rate, last
            last = False
        return rate, False

    def begin_outage(self, now: float) -> None:
        """A refusal that an outage may follow."""
        self._outage = (now, self.accepted)

    def rate_since_outage(self, now: float, untold: float) -> float:
        """Per second since the last time an outage may have begun; *untold* if that is now."""
        at, count = self._outage
        return (self.accepted - count) / (now - at) if now > at else untold

    def end_cycle(self, now: float) -> float:
        """An outage ends: per second since the one before ended; inf if that says nothing."""
        at, count = self._cycle
        self._cycle = (now, self.accepted)
        self.mark(now)
        accepts = self.accepted - count
        return accepts / (now - at) if accepts > CREDIBLE else math.inf


class LoadMeter:
    """How much is usually in flight when a request is accepted, and when one is refused.

    A limit on the rate refuses at any load; a limit on concurrency refuses only above it.
    """

    __slots__ = ("_mean", "_spread", "crowding")

    def __init__(self) -> None:
        self._mean = 1.0
        self._spread = 1.0
        self.crowding = 0.0
        """By how many mean deviations the load of late refusals exceeds the usual one."""

    def accepted(self, load: int) -> None:
        """A request was accepted that was sent with so many in flight."""
        off = load - self._mean
        self._mean += 0.05 * off
        self._spread += 0.05 * (abs(off) - self._spread)

    def refused(self, load: int) -> None:
        """The first of a round trip was refused."""
        self.crowding += 0.5 * (self.excess(load) - self.crowding)

    def excess(self, load: int) -> float:
        """By how many mean deviations this load exceeds the usual one."""
        return (load - self._mean) / max(0.75, self._spread)
