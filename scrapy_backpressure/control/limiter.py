"""The two caps of a lane: how many requests at once (C), and how many a second (r).

A site limits one or the other. C alone can find a rate limit too, as R x latency, but below one
in flight it could only hammer; so a rate is learned as soon as refusals speak for one.

- Start: every accept adds one to C, from 16 on half. The first refusal, or latency that grows
  with C, ends it.
- One decision a round trip: a refusal counts only if its request was sent after the last cut.
- Blame: the cap that is being probed; else C, if refusals come at more in flight than accepts
  usually do; else the cap that was raised last. Refusals in quick succession cut both.
- A request refused with n in flight says that C is below n. Between two refusals a bucket serves
  just what it is refilled with, so that the accepts between them give r.
- Hold: after a cut, stay there (r from 2 % below, rising as a cubic) for a number of accepts that
  doubles while probing keeps failing, so that probes cost little of what a steady site serves.
  A refusal that comes with a pause costs more, and is held for in proportion.
- Probe: one cap at a time, one or 2 % up, then twice as far after every quiet round. A raised C
  that brings latency instead of answers is taken back.
- All sends are spaced: by 1/r, and by a little less than latency / C, so that a higher C is tried
  as a slightly faster even stream. A burst would tell nothing about C where r is the limit.

Sources: additive increase, multiplicative decrease (Chiu and Jain 1989); holding near the last
good value and probing past it (CUBIC, RFC 9438); pacing, and telling a queue from capacity by
latency (BBR, TCP Vegas; Little's law).
"""

from __future__ import annotations

import math

from scrapy_backpressure.control.meter import LoadMeter, RateMeter, Round
from scrapy_backpressure.control.pacer import Pacer, Ticket
from scrapy_backpressure.control.slow_start import SlowStart

DIP = 0.02
"""How far below the last good rate a hold begins, and the first step of a probe above it."""
FIRST_HOLD = 50
"""Accepted requests after a cut before the first probe; doubles up to 8 times as many."""
HOLD_PER_PAUSE = 20.0
"""Seconds of holding for each second that a refusal cost in asked-for pauses; doubles alike."""
LONGEST_HOLD = 60.0
"""Seconds after which a hold of twice FIRST_HOLD accepts ends, however stretched it is."""
ROOM = 1.5
"""Times what a rate needs in flight that concurrency leaves to it."""
CROWDED = 1.5
"""Mean deviations above the usual load from which on refusals mean a limit on concurrency."""
_LEAST_STRETCH = -2
_MOST_STRETCH = 3
_HEAVY = (0.9, 0.75, 0.5)
_PACE_GAIN = {"start": 3.0, "hold": 1.25, "r": 1.5, "c": 1.0}


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
        self.last_seq = 0
        """Number of the last request sent."""
        self._mode = "start"
        self._pacer = Pacer()
        self._cut_seq = 0
        self._cut_at = now
        self._fresh = 0
        self._meter = RateMeter(now)
        self._start = SlowStart(self.concurrency)
        self._load = LoadMeter()
        self._good_c = self.concurrency
        self._good_r = math.inf
        self._suspect = "c"
        self._probed = "c"
        self._unsure = math.inf
        self._held_c = self._good_c
        self._held_r = math.inf
        self._strikes = 0
        self._stretch = 0
        self._stray = 0
        self._bursty = False
        self._cost = 0.0
        self._step = 0
        self._most_steps = 4
        self._round = Round(0)
        self._held_latency = 0.0
        self._held_load = 1.0

    def next_send(self) -> float:
        """When the pace lets the next request go."""
        return self._pacer.due(self._interval())

    def _interval(self) -> float:
        """Seconds between two requests.

        Besides the rate cap, what concurrency allows is spread over the latency, so that a
        higher concurrency is tried as an even, slightly faster stream and never as a burst.
        """
        concurrency = self.concurrency
        if self._mode == "c":
            reached = min(1.0, self._round.accepts / self._need())
            concurrency = self._good_c + reached * (concurrency - self._good_c)
        return max(1 / self.rate, self.latency / (_PACE_GAIN[self._mode] * concurrency))

    def sent(self, now: float, in_flight: int, limit: int) -> Ticket:
        """Take a place and pace; ``in_flight`` counts this request."""
        self.last_seq += 1
        ticket = Ticket(self.last_seq, now, in_flight)
        ticket.at_cap = in_flight >= limit
        interval = self._interval()
        self._pacer.sent(ticket, interval, by_rate=interval * self.rate <= 1.001)
        return ticket

    def cancelled(self, ticket: Ticket) -> None:
        """Give the pace of one request back."""
        self._pacer.take_back(ticket)

    def paused(self, seconds: float, *, longer: float) -> None:
        """The site asked for a pause, which made the one under way so much ``longer``."""
        self._cost = max(seconds, self._cost / 2)
        self._meter.pause(longer)

    def accepted(self, ticket: Ticket, now: float, latency: float, ceiling: float) -> None:
        """Learn from an answer that was no refusal."""
        self._meter.accepted += 1
        self.latency += (0.05 if self.latency else 1.0) * (latency - self.latency)
        self._load.accepted(ticket.load)
        if self._mode == "start":
            growing = self._start.accepted(ticket, latency, ceiling)
            self.concurrency = self._good_c = max(self.minimum, self._start.concurrency)
            if not growing:
                self._enter_hold()
            return
        if ticket.seq <= self._cut_seq:
            return
        if self._fresh == 0 and self.starved:
            self._leave_starvation(now)
        self._fresh += 1
        self._round.note(ticket, latency)
        if self._mode == "hold":
            self._hold(now, ceiling)
        elif self._mode == "c":
            self._probe_c(ticket, ceiling)
        elif self._mode == "r":
            self._probe_r(ticket, now, ceiling)

    def refused(self, ticket: Ticket, now: float, pause: float = 0.0) -> bool:
        """Learn from a refusal; whether it was the first of its round trip.

        ``pause``: seconds that the site asked for. What costs more is probed less often.
        """
        self._cost = max(self._cost, pause)
        if ticket.seq <= self._cut_seq:
            self._refused_with_others(ticket, now)
            return False
        first_cut = self._cut_seq == 0
        self._cut_seq = self.last_seq
        if self._fresh == 0 and not first_cut and ticket.load <= max(1, self._good_c / 2):
            self.starved += 1
            if ticket.load >= 3:
                self.concurrency = max(self.minimum, ticket.load - 1)
        else:
            self._cut(ticket, now)
            self.unhindered(now)
        self._cut_at = now
        self._good_c = self.concurrency
        self._good_r = self.rate
        self._enter_hold()
        return True

    def _refused_with_others(self, ticket: Ticket, now: float) -> None:
        """Learn from further refusals of a round trip that was cut for.

        If the limit is one on concurrency, none comes with clearly less in flight.
        """
        if ticket.load < 0.9 * self.concurrency - 1:
            self._stray += 1
            if self._stray == 3:
                self.rate = self._good_r = min(self.rate, 0.75 * self._meter.rate(now))
                self._suspect = "r"
                self._stretch = _LEAST_STRETCH
        elif self._suspect == "c":
            self._fit_c(ticket)
            self._good_c = self.concurrency

    def _fit_c(self, ticket: Ticket) -> None:
        """A site that serves n at once refused with so many in flight.

        A tenth less, because answers on their way make it seem to bear more than it does; but
        no more than that, because requests sent together may have overtaken each other.
        """
        fits = ticket.load - 1 if self._cost else 0.9 * ticket.load
        self.concurrency = max(self.minimum, min(self.concurrency, fits))

    def unhindered(self, now: float) -> None:
        """What slowed us until now was no limit on the rate: measure from here."""
        self._meter.mark(now)

    def halve(self, now: float) -> None:
        """Send half as much, to see whether failures follow the load."""
        self._cut_seq = self.last_seq
        self._cut_at = now
        self.concurrency = self._good_c = max(self.minimum, self.concurrency / 2)
        self._enter_hold()

    def restore(self, concurrency: float) -> None:
        """Take back cuts that turned out needless."""
        self.concurrency = self._good_c = max(self.minimum, concurrency)
        self._enter_hold()

    def _cut(self, ticket: Ticket, now: float) -> None:
        measured = self._meter.rate(now)
        calm = self._fresh >= 25 and now > self._cut_at + 3 * self._cost
        self._stray = 0
        self._load.refused(ticket.load)
        if ticket.hurried:
            self._pacer.be_stricter()
        if calm:
            self._strikes = 0
        if self._mode == "start":
            self._fit_c(ticket)
            self._pacer.hold_until(now + 0.5 * self.latency)
            if self.concurrency <= 2:
                self._stretch = _LEAST_STRETCH
        elif self._mode == "c" and ticket.load > self._good_c:
            self.concurrency = self._good_c
            self._stretch_hold()
        elif self._mode == "c":
            self.concurrency = self._good_c
            self.rate = min(self.rate, 0.97 / self._interval())
            self._suspect = "r"
        elif self._mode == "r" and self._load.crowding > CROWDED and self._good_c > self.minimum:
            self.concurrency = max(self.minimum, min(self._good_c, ticket.load) - 1)
            self.rate = self._good_r
            self._suspect = "c"
        elif self._mode == "r":
            self._fail_r(measured)
        elif self._unsure < math.inf and self._fresh < 16:
            self.rate, self._unsure = self._unsure, math.inf
            self._bursty = True
        elif calm:
            self._stretch_hold()
            blame_c = self._blame_c() and self._good_c > self.minimum
            if blame_c:
                self.concurrency = max(self.minimum, min(self._good_c, ticket.load) - 1)
            if ticket.paced or not blame_c:
                self.rate = min(self._good_r * (0.9 if self._cost else 0.97), measured)
        else:
            factor = max(_HEAVY[min(self._strikes, 2)], 0.9 if self._fresh >= 8 else 0.0)
            self._strikes += 1
            wanted = min(self._good_c * factor, self._good_c - 1)
            if self._strikes == 1 and self._blame_c():
                self.concurrency = max(self.minimum, self._good_c - 1)
                return
            self.rate = min(self._good_r * factor, measured)
            needed = min(self._good_c, ROOM * self.rate * self.latency + 1)
            self.concurrency = max(self.minimum, needed, wanted)
            self._stretch = _LEAST_STRETCH
            self._suspect = "r"

    def _blame_c(self) -> bool:
        """Whether refusals come rather when more is in flight than usual.

        A limit on the rate refuses at any load. If neither shows, the cap that was raised last
        is to blame.
        """
        return self._load.crowding > CROWDED or self._suspect == "c"

    def _fail_r(self, measured: float) -> None:
        """The rate probe failed: was the last step good, or did it only live off a burst?"""
        margin = 0.97 if self._cost else 1.0
        close = margin * max(min(0.99 * self.rate, 1.01 * measured), 0.99 * self._held_r)
        middle = 0.5 * (self._held_r + self._good_r)
        if (
            middle > 1.03 * close
            and not self._cost
            and (not self._bursty or self.rate > 1.5 * measured)
        ):
            self._unsure = close
            self.rate = middle
        else:
            self.rate = close
        self._stretch_hold()

    def _leave_starvation(self, now: float) -> None:
        patience, self.starved = self.starved, 0
        if patience < 2:
            self.unhindered(now)
            return
        self._strikes = 0
        self._stretch_hold()
        if patience >= 5:
            self._most_steps = 1  # so long a silence is the rest of a window: climb slowly
        self.rate = self._good_r = min(self._good_r, self._meter.end_cycle(now))
        self._suspect = "r"

    # -- holding and probing ---------------------------------------------------------------

    def _stretch_hold(self) -> None:
        self._stretch = min(_MOST_STRETCH, self._stretch + 1)

    def _enter_hold(self) -> None:
        self._mode = "hold"
        self._fresh = 0
        self._round = Round(self.last_seq)

    def _hold(self, now: float, ceiling: float) -> None:
        stretch = 2.0**self._stretch
        accepts = self._round.accepts
        left = max(0.0, 1 - accepts / (FIRST_HOLD * stretch))
        self.rate = self._good_r * (1 - DIP * left**3)
        held = now - self._cut_at
        long = held >= LONGEST_HOLD and accepts >= 2 * FIRST_HOLD and self._most_steps > 1
        if not (left <= 0 or long) or held < HOLD_PER_PAUSE * stretch * self._cost:
            return
        self._unsure = math.inf
        self._held_c = self._good_c
        self._held_r = self._good_r
        self._held_latency = self._round.latency
        self._held_load = self._round.load
        capped = self._round.often_capped(self._good_c) and self._good_c < ceiling
        if self._round.mostly_paced and not (capped and self._probed == "r"):
            self._start_r()
        elif capped:
            self._start_c(ceiling)

    def _start_r(self) -> None:
        self._mode, self._probed, self._step = "r", "r", 0
        self._next_r()

    def _start_c(self, ceiling: float) -> None:
        self._mode, self._probed, self._step = "c", "c", 1
        self._next_c(ceiling)

    def _next_c(self, ceiling: float) -> None:
        self.concurrency = min(ceiling, self._good_c + self._step)
        self._round = Round(self.last_seq)

    def _next_r(self) -> None:
        self.rate = self._good_r * (1 + DIP * 2**self._step)
        self._round = Round(self.last_seq)

    def _need(self) -> float:
        """Accepts that a concurrency has to bring before it counts as good."""
        return max(12.0, 2 * self.concurrency)

    def _probe_c(self, ticket: Ticket, ceiling: float) -> None:
        step = self._round
        step.tested += ticket.load > self._good_c
        need = self._need()
        if step.accepts >= need and step.tested >= 3:
            gain = step.load / self._held_load
            if step.latency > self._held_latency * (0.4 + 0.7 * gain):
                self.concurrency = self._good_c = self._held_c
                self._stretch_hold()
                self._enter_hold()
                return
            self._good_c = self.concurrency
            self._suspect = "c"
            if step.mostly_paced:
                self._start_r()
            elif self._good_c >= ceiling:
                self._enter_hold()
            else:
                self._step = min(2 * self._step, max(1, int(self._good_c / 2)))
                self._next_c(ceiling)
        elif step.accepts > 4 * need:
            self.concurrency = self._good_c
            if step.mostly_paced:
                self._start_r()
            else:
                self._enter_hold()

    def _probe_r(self, ticket: Ticket, now: float, ceiling: float) -> None:
        step = self._round
        if ticket.seq <= step.seq:
            return
        step.tested += 1
        if step.tested == 1:
            step.first_at = now
        passed = now - step.first_at
        if step.tested < 9 or passed < 0.5:
            return
        capped = step.often_capped(self._good_c)
        if (step.mostly_paced and not capped) or step.tested - 1 >= 0.9 * self.rate * passed:
            self._good_r = self.rate
            if self._suspect == "r":
                room = min(ceiling, ROOM * self.rate * self.latency + 1)
                self.concurrency = self._good_c = max(self._good_c, room)
            self._step = min(self._step + 1, self._most_steps)
            self._next_r()
            return
        self.rate = self._good_r
        if capped and self._good_c < ceiling:
            self._start_c(ceiling)
        else:
            self._enter_hold()
