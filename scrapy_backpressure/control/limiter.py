"""The two caps of a lane: how many requests at once, and how many a second."""

from __future__ import annotations

import math
from collections import deque

PACE_SLACK = 0.1
"""Share of an interval that a late send may make up for."""
DIP = 0.02
"""How far below the last good rate a hold begins, and the first step of a probe above it."""
FIRST_HOLD = 50
"""Accepted requests after a cut before the first probe; doubles up to 8 times as many."""
HOLD_PER_PAUSE = 10.0
"""Seconds of holding for each second that a refusal cost in asked-for pauses; doubles alike."""
_LEAST_STRETCH = -2
_MOST_STRETCH = 3
_HEAVY = (0.9, 0.75, 0.5)
_PACE_GAIN = {"start": 3.0, "hold": 1.25, "probe_r": 1.5, "probe_c": 1.0}


class Ticket:
    """One request under way."""

    __slots__ = ("at_cap", "interval", "load", "paced", "sent_at", "seq")

    def __init__(self, seq: int, sent_at: float, load: int) -> None:
        self.seq = seq
        self.sent_at = sent_at
        self.load = load
        """In flight at send, this one included, less those that turned out refused."""
        self.at_cap = False
        """Sent when the concurrency cap was reached."""
        self.paced = False
        """Sent as soon as the rate cap allowed it."""
        self.interval = 0.0
        """Seconds of pace that it took."""


class Limiter:
    """Concurrency and rate, learned from accepts and refusals."""

    def __init__(self, *, start: float, minimum: float, now: float) -> None:
        self.minimum = max(1.0, minimum)
        self.concurrency = max(self.minimum, start)
        self.rate = math.inf
        self.latency = 0.0
        """Mean seconds of an accepted answer, lately; 0 before the first."""
        self.starved = 0
        """Refusals in a row, one a round trip, with nothing accepted between."""
        self._mode = "start"
        self._seq = 0
        self._base = -math.inf
        # Since the last cut: what was sent after it, and when it was.
        self._cut_seq = 0
        self._cut_at = now
        self._fresh = 0
        self._accepted = 0
        self._marks: deque[tuple[float, int]] = deque([(now, 0)], maxlen=8)
        self._cycle = (now, 0)
        self._top = [0, 0, 0]
        self._load = 1.0
        # The last good values, and how they came about.
        self._good_c = self.concurrency
        self._good_r = math.inf
        self._suspect = "c"
        self._unsure = math.inf
        self._strikes = 0
        self._stretch = _LEAST_STRETCH
        self._stray = 0
        self._bursty = False
        self._cost = 0.0
        # The hold or the probe that is going on.
        self._step = 0
        self._round_seq = 0
        self._round_start = now
        self._count = 0
        self._tested = 0
        self._paced = 0
        self._capped = 0

    # -- sending ---------------------------------------------------------------------------

    def next_send(self) -> float:
        """When the pace lets the next request go."""
        interval = self._interval()
        return self._base + interval if interval else -math.inf

    def _interval(self) -> float:
        """Seconds between two requests.

        Besides the rate cap, what concurrency allows is spread over the latency, so that a
        higher concurrency is tried as an even, slightly faster stream and never as a burst.
        """
        concurrency = self.concurrency
        if self._mode == "probe_c":
            reached = min(1.0, self._count / self._need())
            concurrency = self._good_c + reached * (concurrency - self._good_c)
        return max(1 / self.rate, self.latency / (_PACE_GAIN[self._mode] * concurrency))

    def sent(self, now: float, in_flight: int, limit: int) -> Ticket:
        """Take a place and pace; ``in_flight`` counts this request."""
        self._seq += 1
        ticket = Ticket(self._seq, now, in_flight)
        ticket.at_cap = in_flight >= limit
        interval = self._interval()
        due = self._base + interval
        by_rate = interval * self.rate <= 1.001
        late = now - due
        ticket.paced = by_rate and late < max(0.1 * interval, 0.005)
        ticket.interval = interval
        # A late wake-up is made up for; a wait for a free place is not.
        slack = min(PACE_SLACK * interval, 0.005) if by_rate else 0.5 * interval
        self._base = due if late <= slack else now if by_rate else now - slack
        return ticket

    def cancelled(self, ticket: Ticket) -> None:
        """Give the pace of one request back."""
        self._base -= ticket.interval

    def paused(self, seconds: float, *, longer: float) -> None:
        """The site asked for a pause: probe less often the more that costs.

        ``longer`` is by how much the pause under way grew; it is no time of measured rates.
        """
        if longer <= 0:
            return
        self._cost = max(seconds, self._cost / 2)
        self._marks = deque([(at + longer, count) for at, count in self._marks], maxlen=8)

    # -- learning --------------------------------------------------------------------------

    def accepted(self, ticket: Ticket, now: float, latency: float, ceiling: float) -> None:
        """Learn from an answer that was no refusal."""
        self._accepted += 1
        self.latency += (0.05 if self.latency else 1.0) * (latency - self.latency)
        self._load += 0.05 * (ticket.load - self._load)
        if self._mode == "start":
            lowest = min(self._top)
            if ticket.load > lowest:
                self._top[self._top.index(lowest)] = ticket.load
            if ticket.at_cap and self.concurrency < ceiling:
                step = 1 if self.concurrency < 16 else 0.5
                self.concurrency = min(ceiling, self.concurrency + step)
        if ticket.seq <= self._cut_seq:
            return
        if self._fresh == 0 and self.starved:
            self._leave_starvation(now)
        self._fresh += 1
        self._paced += ticket.paced
        self._capped += ticket.at_cap
        if self._mode == "hold":
            self._hold(now, ceiling)
        elif self._mode == "probe_c":
            self._probe_c(ticket, now, ceiling)
        elif self._mode == "probe_r":
            self._probe_r(ticket, now)

    def refused(self, ticket: Ticket, now: float) -> bool:
        """Learn from a refusal; whether it was the first of its round trip."""
        if ticket.seq <= self._cut_seq:
            self._refused_with_others(ticket, now)
            return False
        first_cut = self._cut_seq == 0
        self._cut_seq = self._seq
        if self._fresh == 0 and not first_cut:
            self.starved += 1
        else:
            self._cut(ticket, now)
            self._marks.append((now, self._accepted))
        self._cut_at = now
        self._good_c = self.concurrency
        self._good_r = self.rate
        self._enter_hold()
        return True

    def _refused_with_others(self, ticket: Ticket, now: float) -> None:
        """More refusals of the round trip that was cut for: not at fewer in flight, if it was C."""
        if ticket.load < 0.9 * self.concurrency - 1:
            self._stray += 1
            if self._stray == 3:
                self.rate = self._good_r = min(self.rate, 0.75 * self._measured(now))
                self._suspect = "r"

    def halve(self, now: float) -> None:
        """Send half as much, to see whether failures follow the load."""
        self._cut_seq = self._seq
        self._cut_at = now
        self.concurrency = self._good_c = max(self.minimum, self.concurrency / 2)
        self._enter_hold()

    def restore(self, concurrency: float) -> None:
        """Take back cuts that turned out needless."""
        self.concurrency = self._good_c = max(self.minimum, concurrency)
        self._enter_hold()

    @property
    def last_seq(self) -> int:
        """Number of the last request sent."""
        return self._seq

    def _cut(self, ticket: Ticket, now: float) -> None:
        measured = self._measured(now)
        calm = self._fresh >= 25 and now > self._cut_at + 10 * self._cost
        self._stray = 0
        if calm:
            self._strikes = 0
        if self._mode == "start":
            good = max(ticket.load - 1, min(self._top))
            self.concurrency = max(self.minimum, min(self.concurrency - 1, good))
            self._base = max(self._base, now + 0.5 * self.latency)
        elif self._mode == "probe_c" and ticket.load > self._good_c:
            self.concurrency = self._good_c
            self._stretch = min(_MOST_STRETCH, self._stretch + 1)
        elif self._mode == "probe_c":
            self.concurrency = self._good_c
            self.rate = min(self.rate, 0.97 / self._interval())
            self._suspect = "r"
        elif self._mode == "probe_r":
            self._fail_r(measured)
        elif self._unsure < math.inf and self._fresh < 16:
            self.rate, self._unsure = self._unsure, math.inf
            self._bursty = True
        elif calm:
            crowded = ticket.load > 1.5 * self._load + 1
            if (crowded or self._suspect == "c") and self._good_c > self.minimum:
                good = min(self._good_c, ticket.load) if crowded else self._good_c
                self.concurrency = max(self.minimum, good - 1)
            else:
                self.rate = min(self._good_r * (0.9 if self._cost else 0.97), measured)
        else:
            factor = _HEAVY[min(self._strikes, 2)]
            self._strikes += 1
            self._stretch = min(self._stretch, 0)
            self.rate = min(self._good_r * factor, measured)
            needed = min(self._good_c, 1.5 * self.rate * self.latency + 1)
            wanted = min(self._good_c * factor, self._good_c - 1)
            self.concurrency = max(self.minimum, needed, wanted)
            self._suspect = "r"

    def _fail_r(self, measured: float) -> None:
        """The rate probe failed: was the last step good, or did it only live off a burst?"""
        close = min(0.99 * self.rate, 1.01 * measured) * (0.97 if self._cost else 1.0)
        if self.rate > 1.5 * measured or (self._good_r > 1.05 * close and not self._bursty):
            self._unsure = close
            self.rate = self._good_r
        else:
            self.rate = close
        self._stretch = min(_MOST_STRETCH, self._stretch + 1)

    def _measured(self, now: float) -> float:
        """Accepted per second since a cut that lies at least 4 accepts back."""
        best = math.inf
        for at, count in reversed(self._marks):
            accepts = self._accepted - count
            if now > at:
                best = (accepts + 0.5) / (now - at)
            if accepts >= 4:
                break
        return best

    def _leave_starvation(self, now: float) -> None:
        patience, self.starved = self.starved, 0
        if patience < 2:
            return
        self._strikes = 0
        at, count = self._cycle
        if now > at:
            self.rate = self._good_r = min(self._good_r, (self._accepted - count) / (now - at))
            self._suspect = "r"
        self._cycle = (now, self._accepted)
        self._marks.append(self._cycle)

    # -- holding and probing ---------------------------------------------------------------

    def _enter_hold(self) -> None:
        self._mode = "hold"
        self._fresh = 0
        self._count = self._paced = self._capped = 0

    def _hold(self, now: float, ceiling: float) -> None:
        self._count += 1
        stretch = 2.0**self._stretch
        left = max(0.0, 1 - self._count / (FIRST_HOLD * stretch))
        self.rate = self._good_r * (1 - DIP * left**3)
        if left > 0 or now < self._cut_at + HOLD_PER_PAUSE * stretch * self._cost:
            return
        self._unsure = math.inf
        if self._paced > 0.5 * self._count:
            self._mode = "probe_r"
            self._step = 0
            self._next_r(now)
        elif self._capped > 0.5 * self._count and self._good_c < ceiling:
            self._mode = "probe_c"
            self._step = 1
            self._next_c(now, ceiling)

    def _next_c(self, now: float, ceiling: float) -> None:
        self.concurrency = min(ceiling, self._good_c + self._step)
        self._start_round(now)

    def _next_r(self, now: float) -> None:
        self.rate = self._good_r * (1 + DIP * 2**self._step)
        self._start_round(now)

    def _start_round(self, now: float) -> None:
        self._round_seq = self._seq
        self._round_start = now
        self._count = self._tested = self._paced = self._capped = 0

    def _probe_c(self, ticket: Ticket, now: float, ceiling: float) -> None:
        self._count += 1
        self._tested += ticket.load > self._good_c
        need = self._need()
        if self._count >= need and self._tested >= 0.25 * need:
            self._good_c = self.concurrency
            self._suspect = "c"
            if self._good_c >= ceiling:
                self._enter_hold()
                return
            self._step = min(2 * self._step, max(1, int(self._good_c / 2)))
            self._next_c(now, ceiling)
        elif self._count > 4 * need:
            self.concurrency = self._good_c
            self._enter_hold()

    def _need(self) -> float:
        """Accepts that a concurrency has to bring before it counts as good."""
        return max(12.0, 2 * self.concurrency)

    def _probe_r(self, ticket: Ticket, now: float) -> None:
        if ticket.seq <= self._round_seq:
            return
        self._tested += 1
        if self._tested < 8 or now - self._round_start < 0.5:
            return
        if self._paced > 0.5 * self._tested:
            self._good_r = self.rate
            self._suspect = "r"
            self._step = min(self._step + 1, 4)
            self._next_r(now)
        else:
            self._enter_hold()
