"""Spacing of requests in time (GCRA), and the ticket that one request under way carries.

A request may go one interval after the one before. A wake-up that came a little late is made up
for, so that the mean rate is kept; the time spent waiting for a free place is not, so that a
site that allows no burst is never sent two requests at once. Where even that little haste was
refused, less of it is taken from then on.

Source: ITU-T I.371, the generic cell rate algorithm, in its virtual-scheduling form.
"""

from __future__ import annotations

import math

SLACK_SHARE = 0.1
"""Share of an interval that a late wake-up may make up for."""
SLACK = 0.005
"""Seconds that it may make up for at most."""
STRICTEST = 4
"""Times that this is halved at most."""


class Ticket:
    """One request under way."""

    __slots__ = ("at_cap", "hurried", "interval", "load", "paced", "sent_at", "seq", "waited")

    def __init__(self, seq: int, sent_at: float, load: int) -> None:
        self.seq = seq
        """Requests sent so far, this one included."""
        self.sent_at = sent_at
        self.load = load
        """In flight at send, this one included, less those that turned out refused."""
        self.at_cap = False
        """Sent when the concurrency cap was reached."""
        self.paced = False
        """Sent as soon as the rate cap allowed it."""
        self.hurried = False
        """Sent sooner after the one before than the rate alone allows."""
        self.waited = math.inf
        """Seconds since the one before was sent."""
        self.interval = 0.0
        """Seconds of pace that it took."""


class Pacer:
    """When the next request is due, given the interval, which may change at any time."""

    __slots__ = ("_base", "_sent_at", "_strict", "late")

    def __init__(self) -> None:
        self._base = -math.inf
        self._sent_at = -math.inf
        self._strict = 0
        self.late = 0.0
        """Mean seconds by which the pace is slower than it is meant to be."""

    def due(self, interval: float) -> float:
        """When the next request may go, ``interval`` seconds after the last."""
        return self._base + interval

    def sent(self, ticket: Ticket, interval: float, *, by_rate: bool) -> None:
        """Note a request; ``by_rate``: the interval is that of a limit on the rate."""
        now = ticket.sent_at
        due = self._base + interval
        late = now - due
        ticket.interval = interval
        ticket.paced = by_rate and late < max(SLACK_SHARE * interval, SLACK)
        ticket.hurried = now - self._sent_at < (0.97 if by_rate else 0.75) * interval
        ticket.waited = now - self._sent_at
        self._sent_at = now
        if not by_rate:
            self._base = max(due, now - 0.5 * interval / 2**self._strict)
        elif late <= min(SLACK_SHARE * interval, SLACK / 2**self._strict):
            self._base = due
            self.late -= 0.05 * self.late
        else:
            self._base = now
            if ticket.paced:
                self.late += 0.05 * (late - self.late)

    def take_back(self, ticket: Ticket) -> None:
        """The request of this ticket was never sent."""
        self._base -= ticket.interval

    def hold_until(self, now: float) -> None:
        """Space the next request from ``now`` on."""
        self._base = max(self._base, now)

    def refused(self, ticket: Ticket) -> None:
        """If it is those that made up for lateness that are refused, make up for less."""
        step = 1 if ticket.hurried else -1
        self._strict = min(STRICTEST, max(0, self._strict + step))
