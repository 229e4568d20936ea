"""The two caps of a lane: how many requests at once (C), and how many a second (r).

A site limits one or the other. C alone can find a rate limit too, as R x latency, but below one
in flight it could only hammer; so a rate is learned as soon as refusals speak for one.

- Start: every accept adds one to C, from 16 on half. The first refusal, or latency that grows
  with C, ends it. Where the first few were nearly all refused, wait half a second first.
- One decision a round trip: a refusal counts only if its request was sent after the last cut.
- Blame: the cap that is being probed; else C, if refusals come at more in flight than accepts
  usually do; else the cap that was raised last.
- A request refused with n in flight says that C is below n. Refusals in quick succession lower C
  alone at first; if that does not end them, r falls to what was accepted of late. Where each
  refusal costs a pause there is no time for that, and both fall at once.
- Between two refusals a bucket serves just what it is refilled with, so that the accepts between
  them give r. A pause in between may have been saved up for us or not: the middle of both.
- A rate that a probe had found is not dropped at its first refusal but lowered in steps of a
  fifth, down to the one that was measured.
- Outage: where nothing was accepted since the cut, what was measured meanwhile says nothing. The
  first accept starts the lane anew (see ``slow_start``), up to what was good before; a refusal
  during that gives r as the accepts since the first cut. The same after the breaker closed. A
  second long silence may be the rest of a window: then r starts from the mean of a whole cycle.
- Many requests that are never answered lower C by a quarter a round trip; r stays.
- Without refusals: hold, then probe (see ``probing``).
- All sends are spaced: by 1/r, and by a little less than latency / C, so that a higher C is tried
  as a slightly faster even stream. A burst would tell nothing about C where r is the limit.

Sources: additive increase, multiplicative decrease (Chiu and Jain 1989); slow start anew after a
silence, up to what was good before (TCP, RFC 5681); pacing (BBR).
"""

from __future__ import annotations

import math

from scrapy_backpressure.control.meter import CREDIBLE, LoadMeter, RateMeter
from scrapy_backpressure.control.pacer import Pacer, Ticket
from scrapy_backpressure.control.probing import LEAST_STRETCH, ROOM, Prober
from scrapy_backpressure.control.slow_start import SlowStart

UNSURE = 0.8
"""Share of its rate that a lane keeps when what a probe had found is refused after all."""
MANY_LOST = 0.25
"""Share of late answers that never came, from which on the load may be to blame."""
LONG_SILENCE = 5
"""Refusals in a row that make a long silence; the second may be the rest of a window."""
FIRST_WAIT = 0.5
"""Seconds to wait where the first few requests were nearly all refused."""
CROWDED = 1.5
"""Mean deviations above the usual load from which on refusals mean a limit on concurrency."""
_PACE_GAIN = {"start": 3.0, "hold": 1.25, "r": 1.5, "c": 1.0}
PROVEN = 8
"""Accepts since the last cut from which on the concurrency counts as borne."""
LEAST_OF_ROUND = 0.65
"""Share of such a concurrency that one round trip may leave at least."""


class Limiter(Prober):
    """Concurrency and rate, learned from accepts and refusals."""

    def __init__(self, *, start: float, minimum: float, now: float) -> None:
        super().__init__(start=start, minimum=minimum, now=now)
        self.starved = 0
        """Refusals in a row, one a round trip, with nothing accepted between."""
        self._pacer = Pacer()
        self._cut_seq = 0
        self._floor_c = self.minimum
        self._fresh = 0
        self._meter = RateMeter(now)
        self._start = SlowStart(self.concurrency)
        self._load = LoadMeter()
        self._prior_c = self._prior_r = math.inf
        self._silences = 0
        self._lost = 0.0
        self._strikes = 0
        self._stray = 0
        self._bursty = False

    @property
    def has_cut(self) -> bool:
        """Whether anything was refused or lost: before, the caps are only what was tried."""
        return self._cut_seq > 0

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
        self._lost *= 0.9
        self.latency += (0.05 if self.latency else 1.0) * (latency - self.latency)
        self._load.accepted(ticket.load)
        if ticket.seq <= self._cut_seq:
            return
        if self._mode == "start":
            self._fresh += 1
            self._grow(ticket, latency, ceiling)
            return
        if self._fresh == 0 and (self.starved >= 2 or self._meter.accepted <= 2):
            self.restart(now, ticket)
            return
        if self._fresh == 0:
            if self.starved:
                self.unhindered(now)
            self.starved = 0
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
        # What was borne for a while is not disproved by one bad round trip: several refused at
        # once are one step down, and the next round trip may take another. Unless each costs.
        proven = self._fresh >= PROVEN and not self._cost
        borne = min(self.concurrency, self._good_c)
        self._floor_c = LEAST_OF_ROUND * borne if proven else self.minimum
        self._cut_seq = self.last_seq
        if self._fresh == 0 and not first_cut and ticket.load <= max(1, self._good_c / 2):
            self.starved += 1
            if ticket.load >= 3:
                self.concurrency = max(self.minimum, ticket.load - 1)
        else:
            if self._mode != "start" or not self._meter.accepted:
                self._meter.begin_outage(now)
            self._remember()
            crowded = self._mode == "start" and self.rate < math.inf and ticket.load > 1
            self._cut(ticket, now)
            if crowded:
                self._fresh = 0
                return True
            self.unhindered(now)
            self._mode = "hold"
        self._cut_at = now
        self._good_c = self.concurrency
        self._good_r = self.rate
        self._fresh = 0
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
                self._stretch = LEAST_STRETCH
        elif self._suspect == "c":
            self._fit_c(ticket)
            self._good_c = self.concurrency
            if self.concurrency <= 1 and self._meter.accepted <= 1:
                self._pacer.hold_until(now + FIRST_WAIT)

    def _fit_c(self, ticket: Ticket) -> None:
        """A site that serves n at once refused with so many in flight.

        A tenth less, because answers on their way make it seem to bear more than it does; but
        no more than that, because requests sent together may have overtaken each other.
        """
        exact = self._cost or ticket.load <= 5
        fits = ticket.load - 1 if exact else 0.9 * ticket.load
        self.concurrency = max(self.minimum, self._floor_c, min(self.concurrency, fits))

    def unhindered(self, now: float) -> None:
        """What slowed us until now was no limit on the rate: measure from here."""
        self._meter.mark(now)

    def lost(self, ticket: Ticket, now: float) -> None:
        """A request was never answered; when many are not, send a quarter less a round trip."""
        self._lost += 0.1 * (1 - self._lost)
        if ticket.seq <= self._cut_seq or self._lost < MANY_LOST:
            return
        self._remember()
        self._lessen(0.75, now)

    def _remember(self) -> None:
        """Keep what was good before a cut that an outage may follow."""
        if self._fresh >= CREDIBLE or self._mode == "start":
            self._prior_c, self._prior_r = self._good_c, self._good_r

    def _lessen(self, factor: float, now: float) -> None:
        self._cut_seq = self.last_seq
        self._cut_at = now
        self.concurrency = self._good_c = max(self.minimum, self.concurrency * factor)
        self._stretch = LEAST_STRETCH
        self._fresh = 0
        self._enter_hold()

    def halve(self, now: float) -> None:
        """Send half as much, to see whether failures follow the load."""
        self._lessen(0.5, now)

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
        if self._mode == "start" and self.rate < math.inf and ticket.load > 1:
            self._start.crowded(max(self.minimum, ticket.load - 1.0))
            self.concurrency = self._start.concurrency
        elif self._mode == "start" and self.rate < math.inf:
            self.rate = max(self._start.proven_rate, self._meter.rate_since_outage(now))
            self.concurrency = max(self.minimum, min(self.concurrency, ticket.load))
            self._suspect = "r"
            self._stretch = LEAST_STRETCH
        elif self._mode == "start":
            self._fit_c(ticket)
            self._pacer.hold_until(now + 0.5 * self.latency)
            if self.concurrency <= 2:
                self._stretch = LEAST_STRETCH
        elif self._mode == "c" and ticket.load > self._good_c:
            self.concurrency = self._good_c
            self._stretch_hold(self._step)
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
            self.rate = max(self._unsure, UNSURE * self.rate)
            if self.rate <= self._unsure:
                self._unsure = math.inf
                self._bursty = True
        elif calm:
            self._stretch_hold()
            blame_c = self._blame_c() and self._good_c > self.minimum
            if blame_c:
                self.concurrency = max(self.minimum, min(self._good_c, ticket.load) - 1)
            if ticket.paced or not blame_c:
                self.rate = min(self._good_r * (0.9 if self._cost else 0.97), measured)
        else:
            self._strikes += 1
            tries = 3 if self._fresh < self._good_c else 1
            if self._cost and ticket.load > 2:
                tries = 0
            if self._strikes <= tries and self._good_c > self.minimum:
                self.concurrency = max(self.minimum, min(self._good_c, ticket.load) - 1)
                return
            self.rate = min(0.9 * self._good_r, (0.95 if self._cost else 1.0) * measured)
            needed = min(self._good_c, ROOM * self.rate * self.latency + 1)
            self.concurrency = max(self.minimum, needed, 0.75 * self._good_c)
            self._stretch = LEAST_STRETCH
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
        middle = self._good_r
        if (
            middle > 1.01 * close
            and not self._cost
            and (not self._bursty or self.rate > 1.5 * measured)
        ):
            self._unsure = close
            self.rate = middle
        else:
            self.rate = close
        self._stretch_hold()

    # -- starting --------------------------------------------------------------------------

    def restart(self, now: float, ticket: Ticket) -> None:
        """The site serves again after it served nothing: what was measured meanwhile is void.

        Start from one at a time, as slow as the request that got through, up to what was good.
        """
        self._strikes = self._stretch = 0
        credible = self._meter.accepted > CREDIBLE
        known_c = max(self._prior_c, self._good_c) if credible else math.inf
        known_r = self._prior_r
        cycle = self._meter.end_cycle(now)
        if self.starved >= LONG_SILENCE:
            self._silences += 1
            if self._silences >= 2 and cycle < math.inf:
                # Silence again may be the rest of a window: serve its mean, and climb slowly.
                known_r = min(known_r, cycle)
                self._most_steps = 1
        self.starved = 0
        self._fresh = 1
        self._mode = "start"
        self._start = SlowStart(
            self.minimum,
            rate=1 / max(ticket.waited, self.latency),
            most=known_c,
            most_rate=known_r,
            since=self.last_seq,
        )
        self.rate = self._start.rate
        self.concurrency = self._good_c = self.minimum

    def _grow(self, ticket: Ticket, latency: float, ceiling: float) -> None:
        growing = self._start.accepted(ticket, latency, ceiling)
        self.rate = self._start.rate
        self.concurrency = self._good_c = max(self.minimum, self._start.concurrency)
        if not growing:
            self._good_r = self.rate
            self._enter_hold()
