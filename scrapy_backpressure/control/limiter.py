"""The two caps of a lane: how many requests at once (C), and how many a second (r).

A site limits one or the other, so one cap at a time is tight: it was cut last, is held, and then
grows until it is refused again (see ``growth``). The other cap leaves it room.

- Start: C grows until the first refusal, or until more of it only brings latency
  (``slow_start``). Where the first few were nearly all refused, wait half a second first.
- One decision a round trip: a refusal counts only if its request was sent after the last cut.
- Blame: C is tight at first. A refusal of what grew beyond the good value is the fault of growth.
  Refusals at what was held, with no more in flight than usual, mean a limit on the rate. While r
  is tight, refusals with clearly more in flight than usual mean one on concurrency.
- A request refused with n in flight says that C is below n; what it says of r: ``rate_sense``.
- Refusals while holding cut in proportion to how few requests went before them; several in a row
  by up to a half.
- Outage: where nothing was accepted since the cut, the first accept starts the lane anew, up to
  what was good before (``outages``). The same after the breaker closed.
- Requests that are never answered, if many, lower the tight cap by a quarter a round trip.
- More at once that only brings latency is taken back (``queueing``).
- All sends are spaced: by 1/r, and by a little less than latency / C, so that a higher C is tried
  as a slightly faster even stream. A burst would tell nothing about C where r is the limit.

Sources: additive increase, multiplicative decrease (Chiu and Jain 1989); slow start anew after a
silence, up to what was good before (TCP, RFC 5681); holding and growing again (CUBIC, RFC 9438);
pacing (BBR).
"""

from __future__ import annotations

import math

from scrapy_backpressure.control.growth import Growth
from scrapy_backpressure.control.meter import CREDIBLE, LoadMeter
from scrapy_backpressure.control.outages import Outages
from scrapy_backpressure.control.pacer import Pacer, Ticket
from scrapy_backpressure.control.queueing import QueueSense
from scrapy_backpressure.control.rate_sense import RateSense
from scrapy_backpressure.control.slow_start import FIRST_RATE, ROOM, SlowStart, served_at_once

MANY_LOST = 0.25  # share of answers that never came from which on the load may be to blame
FIRST_WAIT = 0.5  # seconds to wait where the first few requests were nearly all refused
UNKNOWN_LATENCY = 0.1  # seconds that an answer is taken to need before the first
SHORTEST = 0.001  # seconds between two requests; a coarse clock may tell none
CROWDED = 1.5
"""Mean deviations above the usual load from which on refusals mean a limit on concurrency."""
LEAST_RATE = 1 / 60  # requests per second, however much is refused
DEAREST = 60.0  # seconds of pause up to which a refusal is probed the more rarely
START_GAIN, HOLD_GAIN = 2.0, 1.25  # times closer than latency / C requests may follow each other
LESS = 0.985  # what is left of a cap after a refusal while holding, at most
LEAST_LEFT = (1.0, 0.9, 0.75, 0.5)
"""What is left at least after the first, second ... of them."""
SETTLED = 1.15
"""Times by which what is held may change from one hold to the next, if the limit stands still."""
LEAST_OF_ROUND = 0.65
"""Share of the concurrency at the first refusal that its round trip leaves at least."""
Caps = tuple[bool, float]
"""Which cap is tight (r or not), and its value."""


class Limiter:
    """Concurrency and rate, learned from accepts and refusals."""

    def __init__(
        self, *, start: float, minimum: float, now: float, seen: Caps | None = None
    ) -> None:
        self.minimum = max(1.0, minimum)
        self.concurrency = max(self.minimum, start)
        self.rate = math.inf
        self.latency = 0.0
        """Mean seconds of an accepted answer, lately; 0 before the first."""
        self.last_seq = 0
        """Number of the last request sent."""
        self.starved = 0
        """Refusals in a row, one a round trip, with nothing accepted between."""
        self._by_rate = False
        """Whether r is the tight cap."""
        self._good = self.concurrency
        """The value of the tight cap that is held."""
        self._least = self.minimum
        """Below this no concurrency falls within one round trip."""
        self._held: Caps = (False, math.inf)
        """What was last held through without a refusal."""
        self._start: SlowStart | None = SlowStart(self.concurrency)
        self._growth = Growth()
        self._queue = QueueSense(self.concurrency)
        self._pacer = Pacer()
        self._rates = RateSense(now)
        self._load = LoadMeter()
        self._cut_seq = 0
        self.has_cut = seen is not None
        """Whether anything was refused or lost: before, the caps are only what was tried."""
        self._guessing = seen is None
        self._fresh = self._strikes = 0
        self._void = 0  # requests since the cut that were never sent
        self._cost = 0.0
        self._lost = 0.0
        self._outages = Outages()
        if seen is not None:
            self._start = None
            self._by_rate, self._good = seen
            self._hold(now)

    @property
    def load(self) -> float:
        """About how many requests per second both caps allow."""
        return min(self.rate, self.concurrency / (self.latency or UNKNOWN_LATENCY))

    # -- sending ---------------------------------------------------------------------------

    def next_send(self) -> float:
        """When the pace lets the next request go."""
        return self._pacer.due(self._interval())

    def _interval(self) -> float:
        gain = START_GAIN if self._start else HOLD_GAIN
        return max(1 / self.rate, self.latency / (gain * self.concurrency))

    def sent(self, now: float, in_flight: int, limit: int) -> Ticket:
        """Take a place and pace; ``in_flight`` counts this request."""
        self.last_seq += 1
        ticket = Ticket(self.last_seq, now, in_flight)
        ticket.at_cap = in_flight >= limit
        interval = self._interval()
        self._pacer.sent(ticket, interval, by_rate=interval * self.rate <= 1.001)
        return ticket

    def cancelled(self, ticket: Ticket) -> None:
        """Give the pace of one request back: it was never sent."""
        self._pacer.take_back(ticket)
        self._void += ticket.seq > self._cut_seq

    def paused(self, seconds: float, *, longer: float) -> None:
        """The site asked for a pause, which made the one under way so much ``longer``."""
        self._cost = min(DEAREST, max(seconds, self._cost / 2))
        self._rates.pause(longer)

    # -- accepts ---------------------------------------------------------------------------

    def accepted(self, ticket: Ticket, now: float, latency: float, ceiling: float) -> None:
        """Learn from an answer that was no refusal."""
        self._rates.accept(ticket.seq)
        self._lost *= 0.9
        self.latency += (0.05 if self.latency else 1.0) * (latency - self.latency)
        if ticket.seq <= self._cut_seq:
            return
        if self._start:
            self._fresh += 1
            self.starved = 0
            self._load.accepted(ticket.load)
            self._grow(self._start, ticket, now, latency, ceiling)
            return
        if self._fresh == 0:
            if self.starved >= 2 or (self._guessing and self._rates.accepted <= 2):
                self.restart(now, ticket)
                return
            if self.starved:
                self.unhindered(now)
            self.starved = 0
        self._fresh += 1
        self._load.accepted(ticket.load)
        limited = ticket.paced if self._by_rate else ticket.at_cap
        if self._growth.accepted(
            now, limited=limited, latency=self.latency, cost=self._cost, by_rate=self._by_rate
        ):
            self._held_out()
        self._follow(ceiling)
        unqueued = None if self._by_rate else self._queue.accepted(ticket.load, latency)
        if unqueued is not None:
            self._good = min(unqueued, self.concurrency)
            self._hold(now)

    def _held_out(self) -> None:
        """What is good was held without a refusal."""
        self._strikes = 0
        self._growth.held(settled=self._settled())
        self._held = (self._by_rate, self._good)
        self._rates.confirmed()

    def _follow(self, ceiling: float) -> None:
        """Both caps from the good value and the growth."""
        value = self._good * self._growth.factor
        if self._by_rate:
            self.rate = value
            room = min(ceiling, ROOM * value * self.latency + 1)
            self.concurrency = max(self.concurrency, room)
        else:
            self.concurrency = max(self.minimum, min(ceiling, value))
            if self.latency:
                self.rate = max(self.rate, ROOM * self.concurrency / self.latency)

    # -- refusals --------------------------------------------------------------------------

    def refused(self, ticket: Ticket, now: float, pause: float = 0.0) -> bool:
        """Learn from a refusal; whether it was the first of its round trip.

        ``pause``: seconds that the site asked for. What costs more is probed less often.
        """
        self._cost = min(DEAREST, max(self._cost, pause))
        if ticket.seq <= self._cut_seq:
            self._refused_with_others(ticket)
            return False
        first_cut, self.has_cut = not self.has_cut, True
        passed = max(0, ticket.seq - self._cut_seq - 1 - self._void)
        self._rates.pending = max(0, passed - self._fresh)
        self._cut_seq, self._void = self.last_seq, 0
        low = self._strikes >= 2
        if not self._by_rate:  # where nothing was held yet, others under way speak for a bucket
            low = ticket.load <= (max(1, self.concurrency / 2) if self._held[1] < math.inf else 1)
        if self._fresh == passed == 0 and not first_cut and low:
            self.starved += 1
            if ticket.load >= 3:
                self.concurrency = max(self.minimum, ticket.load - 1)
        else:
            if self._start is None or not self._rates.accepted:
                self._rates.begin_outage(now)
            self._remember()
            self._pacer.refused(ticket)
            self._load.refused(ticket.load)
            if self._start:
                self._end_start(self._start, ticket, now)
            else:
                self._cut(ticket, now, passed)
            self._rates.mark_refused(ticket.sent_at, ticket.seq)
        self._fresh = 0
        return True

    def _end_start(self, start: SlowStart, ticket: Ticket, now: float) -> None:
        self._rates.forget(ticket.sent_at)
        if self.rate < math.inf and ticket.load > 1:
            start.crowded(max(self.minimum, ticket.load - 1.0))
            self.concurrency = start.concurrency
            return
        self._start = None
        self._by_rate = self.rate < math.inf
        if self._by_rate:
            measured = self._rates.rate_since_outage(now, start.proven_rate)
            self._good = max(measured, math.sqrt(measured * start.proven_rate))
        else:
            few = self._rates.accepted <= 1
            exact = self._cost > 0
            floor = 0.0 if few or exact else LEAST_OF_ROUND * self.concurrency
            self._least = max(self.minimum, floor)
            served = served_at_once(ticket.load, exact=exact)
            self._good = max(self._least, min(self.concurrency, served))
            self._pacer.hold_until(now + (FIRST_WAIT if few else 0.5 * self.latency))
        self._hold(now)

    def _refused_with_others(self, ticket: Ticket) -> None:
        """Learn from further refusals of a round trip that was cut for."""
        if not (self._start or self._by_rate or self._strikes) and ticket.load <= self._good:
            self._good = max(self._least, min(self._good, ticket.load - 1.0))
            self.concurrency = self._good

    def _cut(self, ticket: Ticket, now: float, passed: int) -> None:
        factor, late = self._growth.factor, self._pacer.late
        if not self._by_rate:
            self._least = max(self.minimum, LEAST_OF_ROUND * self._good)
        if self._by_rate and self._load.crowding > CROWDED and ticket.load > self.minimum:
            self._by_rate = False
            self._good = ticket.load - 1.0
            self._strikes = 0
        elif self._growth.probing and self._by_rate:
            reached, gained, dear = self._good * factor, self._growth.gained, self._cost > 0
            self._good = self._rates.after_growth(
                ticket.sent_at, self._good, reached=reached, gained=gained, late=late, dear=dear
            )
        elif self._growth.probing and ticket.load > self._good:
            self._good = max(self._good, min(ticket.load - 1.0, self._good * factor))
        else:
            self._cut_while_holding(ticket, passed, late)
        self._hold(now)

    def _cut_while_holding(self, ticket: Ticket, passed: int, late: float) -> None:
        """``passed``: requests sent between the last cut and the one that is refused."""
        least = LEAST_LEFT[min(self._strikes, len(LEAST_LEFT) - 1)]
        cut = max(least, passed / (passed + 1))
        self._strikes += 1 + (self._cost > 0)
        crowded = self._load.excess(ticket.load) > 0.5 and self.concurrency > self.minimum
        if not self._by_rate and crowded and self._strikes <= 3 and not self._cost:
            self._good = min(LESS * cut * self._good, ticket.load - 1.0)
            return
        if self._by_rate:
            self._rates.refuted(self._growth.gained)
            good = LESS * self._good
            self._good = self._rates.after_hold(ticket.sent_at, good, cut=cut, late=late)
        else:
            self._by_rate = True
            tried = HOLD_GAIN * self.concurrency / self.latency if self.latency else FIRST_RATE
            self._good = self._rates.first(ticket.sent_at, min(self.rate, tried), late=late)

    def _hold(self, now: float) -> None:
        self._good = max(LEAST_RATE if self._by_rate else self.minimum, self._good)
        self._growth.restart(now, settled=self._settled())
        self._follow(math.inf)
        self._queue.restart(self.concurrency)

    def _settled(self) -> bool:
        """Whether what is good is about what was held through the last time."""
        by_rate, good = self._held
        return by_rate == self._by_rate and 1 / SETTLED < self._good / good < SETTLED

    def _remember(self) -> None:
        """Keep what was good before a cut that an outage may follow."""
        if self._fresh >= CREDIBLE or self._start:
            rate = self.rate if self._by_rate or self._start else math.inf
            self._outages.remember(self.concurrency, rate)

    def unhindered(self, now: float) -> None:
        """What slowed us until now was no limit on the rate: measure from here."""
        self._rates.mark(now)

    # -- failures --------------------------------------------------------------------------

    def overlook(self, seq: int) -> None:
        """Cut for nothing that was sent up to this request."""
        if seq > self._cut_seq:
            self._cut_seq, self._void = seq, 0

    def lost(self, ticket: Ticket, now: float) -> None:
        """A request was never answered; when many are not, send a quarter less a round trip."""
        self._lost += 0.1 * (1 - self._lost)
        if ticket.seq <= self._cut_seq or self._lost < MANY_LOST:
            return
        self._remember()
        self._cut_seq, self._void = self.last_seq, 0
        self.has_cut = True
        self._by_rate, good = self.caps
        self._start = None
        self._good = 0.75 * good
        self._fresh = 0
        self._hold(now)

    @property
    def caps(self) -> Caps:
        """What is known, for ``restore`` or for another lane to the same site."""
        if self._start is None:
            return self._by_rate, self._good
        return (True, self.rate) if self.rate < math.inf else (False, self.concurrency)

    @property
    def starting(self) -> bool:
        """Whether no limit is known yet, or no more."""
        return self._start is not None

    def hesitate(self) -> None:
        """A failure may be throttling: if starting, grow no further for now."""
        if self._start:
            self._start.hesitate()

    def restore(self, caps: Caps, now: float, *, starting: bool = False) -> None:
        """Take back cuts that turned out needless; ``starting``: go on from now as before them."""
        self._start = None
        self._guessing = False
        self._by_rate, self._good = caps
        self._strikes = 0
        self._cut_seq, self._void = self.last_seq, 0
        if starting and not self._by_rate:
            self._begin(self._good, rate=self.load)
            return
        if not self._by_rate:
            self.rate = math.inf
        self._hold(now)

    # -- starting --------------------------------------------------------------------------

    def restart(self, now: float, ticket: Ticket) -> None:
        """The site serves again after it served nothing: what was measured meanwhile is void.

        Start from one at a time, as slow as the request that got through, up to what was good.
        """
        most, most_rate = self._outages.ended(
            self.starved, cycle=self._rates.end_cycle(now), least=self.concurrency
        )
        if self._rates.accepted <= CREDIBLE:
            most = math.inf
        self.starved = 0
        self._fresh = 1
        rate = 1 / max(ticket.waited, self.latency, SHORTEST)
        self._begin(self.minimum, rate=rate, most=most, most_rate=most_rate)

    def _begin(self, concurrency: float, **bounds: float) -> None:
        self._start = SlowStart(concurrency, since=self.last_seq, **bounds)
        self.rate, self.concurrency = self._start.rate, concurrency
        self._strikes = 0
        self._held = (False, math.inf)
        self._growth.know_nothing()

    def _grow(
        self, start: SlowStart, ticket: Ticket, now: float, latency: float, ceiling: float
    ) -> None:
        growing = start.accepted(ticket, latency, ceiling)
        self.rate = start.rate
        self.concurrency = max(self.minimum, start.concurrency)
        if not growing:
            self._start = None
            self._queue = start.queue
            self._by_rate = self.rate < math.inf
            self._good = self.rate if self._by_rate else self.concurrency
            self._hold(now)
            if self._outages.in_turns:
                self._growth.be_patient()
