"""A lane: everything one (site, proxy) pair has taught us about when to send the next request.

A request goes when no pause is on, the breaker lets it, the quota told by headers has room, less
is in flight than the concurrency cap allows, and the pace is kept.

- A pause that the site asked for is kept to a hair more, since whole seconds may have been rounded
  down; it wins over any estimate. Without one, refusals with nothing accepted between them pause
  for a round trip, then half a second, doubling to a minute, each give or take a tenth.
- After a pause one request goes first, then one more for each that is accepted.
- BLOCKED counts as THROTTLED and always pauses. NEUTRAL answers count as accepted: the site
  bore the request. PROXY_FAILED only reaches the breaker.
- FAILED reaches the breaker, and counts as THROTTLED where failures are found to follow our load.
- A site that has never answered is sent few requests at once, since they may wait for long.
- While all that is under way waits in vain, the site is silent, which is no evidence against the
  caps. One more request knocks now and then, ever more rarely, so that about nine at most wait for
  their timeout. The first that is served ends the silence: those sent before it are given up, that
  is, they take no room and their loss says nothing.
- After three that were never answered, no more than at the start are under way, but for those.
- A quota is used up at full speed down to its last fifth, which is spread over the time left; one
  that is seen to refill all the time, as it refills.

The caps are learned by the limiter, whose module names the sources.
"""

from __future__ import annotations

import math
import random

from scrapy_backpressure.control.allowance import Allowance, is_used_up
from scrapy_backpressure.control.breaker import Breaker
from scrapy_backpressure.control.failure_sense import FailureSense, Move
from scrapy_backpressure.control.limiter import Caps, Limiter
from scrapy_backpressure.control.outcome import Outcome, Verdict
from scrapy_backpressure.control.pacer import Ticket

__all__ = ["Lane", "Ticket"]

LONGEST_BACKOFF = 60.0
LONGEST_DOUBT = 2.0
"""Seconds of pause at most for failures that may be throttling, or not."""
FIRST_BACKOFF = 0.5
QUICK = 0.5
"""Of the usual latency: a failure that came sooner is not from where the pages are made."""
HANGS_AFTER = 2.0
HANGS = 5.0
"""Seconds at least, and times the usual latency, after which a lane without an answer hangs."""
FIRST_KNOCK = 3.0
"""Seconds of silence before the first request that knocks."""
KNOCKS = 9
"""Requests that knock within a timeout, each after the same further share of the silence, so that
its end is noticed the later the longer it lasted, and no more than these wait in vain ..."""
LEAST_BETWEEN = 1.0
"""... and so many seconds apart, at least."""
MUTE = 3
"""Requests in a row without any answer, from which on no more than at the start are sent."""


class Lane:
    """Decides when one more request may go to one site through one proxy.

    :param ceiling: most requests at once, whatever is learned; may be changed at any time
    :param start: requests at once to begin with
    :param minimum: concurrency never falls below this, nor below 1; slower is told by rate
    :param now: monotonic seconds, as everywhere in this class
    :param rng: for the jitter of pauses
    :param timeout: seconds after which a request that is not answered is given up
    :param most_unknown: requests at once until the site has answered for the first time
    :param seen: what an earlier lane to the same site had ``learned``
    """

    def __init__(
        self,
        *,
        ceiling: int,
        start: float = 4,
        minimum: float = 1,
        now: float,
        rng: random.Random,
        timeout: float = 180.0,
        seen: Caps | None = None,
        most_unknown: int = 64,
    ) -> None:
        self.ceiling = ceiling
        self.paused_until = 0.0
        self._rng = rng
        self._limiter = Limiter(start=min(start, ceiling), minimum=minimum, now=now, seen=seen)
        self._breaker = Breaker(probe_timeout=timeout)
        self._sense = FailureSense()
        self._before_trial = self._limiter.caps, True
        self._live: dict[int, Ticket] = {}
        self._given_up: set[int] = set()  # lost in a silence that is over
        longer = self._breaker.probe_timeout / FIRST_KNOCK
        self._knock_share = math.pow(longer, 1 / KNOCKS) - 1.0
        self._ramp = math.inf
        self._allowance = Allowance()
        self._quiet_seq = 0  # up to this one, requests sat through a silence
        self._learns = True  # whether an accept was learned from since then
        self._known = False  # whether the site has ever answered
        self._waits_since = 0.0
        self._unanswered = 0
        self._at_start = max(1.0, start)
        self._most_unknown = most_unknown
        self._blocks = 0
        self._down = False  # whether the breaker was open since the last accept
        self._idle_since = 0.0
        self._stalls_since = math.inf
        self._last_bad = -math.inf

    # -- what it looks like from outside ---------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return len(self._live) + len(self._given_up)

    @property
    def concurrency(self) -> float:
        """Requests at once that the lane now allows itself."""
        return min(self._limiter.concurrency, self._allowance.concurrency, self.ceiling)

    @property
    def rate(self) -> float:
        """Requests per second that the lane now allows itself; ``math.inf`` when unlimited."""
        return self._limiter.rate

    @property
    def learned(self) -> Caps | None:
        """The limit that the site has shown, for a lane that comes after this one."""
        return self._limiter.caps if self._limiter.has_cut else None

    @property
    def closed_until(self) -> float:
        """Until when nothing may be sent, because of a pause or of what a quota leaves.

        May lie in the past.
        """
        return max(self.paused_until, self._allowance.closed_until)

    @property
    def found_limit(self) -> bool:
        """Whether the site has shown a limit; before, the caps are only what was tried."""
        return self._limiter.has_cut or self._allowance.concurrency < math.inf

    @property
    def breaker_open(self) -> bool:
        """Whether the breaker is open or half open."""
        return self._breaker.is_open

    @property
    def stalled_for(self) -> float:
        """Seconds from the last good answer, or the first send, to the last of the bad ones since.

        Time after the last bad answer does not count: a long pause alone is no stall, but one more
        bad answer after it is. Nor does time in which one might have been sent and none was.
        """
        return max(0.0, self._last_bad - self._stalls_since)

    # -- sending ---------------------------------------------------------------------------

    def ready_at(self, now: float) -> float:
        """When one more request may be sent.

        At most ``now``: at once. Otherwise the time at which to ask again, or sooner, when one in
        flight has ended; ``math.inf``: then only.
        """
        allowed = self._allowance.ready_at(now, waiting=bool(self._live))
        asleep = max(self.paused_until, self._breaker.ready_at(now), allowed)
        if asleep > now:
            return asleep
        if self.in_flight >= self.ceiling:
            return math.inf
        hangs_at = self._hangs_at()
        if now >= hangs_at:
            return max(now, self._knock_at(), self._limiter.next_send())
        limit = self._limit()
        if self._load(limit) >= limit:
            return hangs_at
        return max(now, self._limiter.next_send())

    def sent(self, now: float) -> Ticket:
        """Note that a request goes out now, whether or not the lane was ready."""
        if not self._live:
            self._wakes(now)
        self._allowance.sent(now)
        self._breaker.sent(now)
        limit = self._limit()
        ticket = self._limiter.sent(now, self._load(limit) + 1, limit)
        self._live[ticket.seq] = ticket
        return ticket

    def cancel(self, ticket: Ticket, now: float) -> None:
        """Give back what ``sent`` took: the request never reached the site."""
        if not self._ended(ticket, now):
            return
        self._allowance.cancelled()
        self._limiter.cancelled(ticket)
        self._breaker.cancelled(sent_at=ticket.sent_at)

    def finished(self, ticket: Ticket, now: float, verdict: Verdict, *, latency: float) -> Outcome:
        """Learn from an answer that came ``latency`` seconds after the request was sent.

        Its outcome: that of the verdict, or THROTTLED for a failure that follows our load.
        """
        outcome = verdict.outcome
        heard = verdict.answered and outcome is not Outcome.PROXY_FAILED
        silent = now >= self._hangs_at()
        given_up = ticket.seq in self._given_up
        if not self._ended(ticket, now) or (given_up and not heard):
            return outcome
        if outcome.is_bad:
            self._last_bad = now
        else:
            self._stalls_since = now
        if heard:
            self._known = True
            self._waits_since = now
            self._unanswered = 0
            if silent:
                self._silence_ends(ticket, bad=outcome.is_bad)
            if silent and not outcome.is_bad:
                self._give_up_before(ticket, now)
        else:
            self._unanswered += 1
        self._down = self._down or self._breaker.is_open
        if outcome in (Outcome.FAILED, Outcome.PROXY_FAILED):
            of_site = outcome is Outcome.FAILED
            self._breaker.failed(
                sent_at=ticket.sent_at,
                now=now,
                answered=of_site and verdict.answered,
                in_row_only=of_site and self._sense.suspicious,
            )
        else:
            self._breaker.succeeded(sent_at=ticket.sent_at, now=now)
        if outcome in (Outcome.THROTTLED, Outcome.BLOCKED):
            if not is_used_up(verdict.quota):
                self._refused(ticket, now, verdict)
        elif outcome is Outcome.FAILED and (heard or not silent):
            self._failed(ticket, now, verdict, latency)
            if verdict.answered and self._sense.likely:
                outcome = Outcome.THROTTLED
        elif not outcome.is_bad:
            self._blocks = 0
            if self._ramp < math.inf and ticket.sent_at >= self.paused_until:
                self._ramp += 1
                if self._ramp >= self._limiter.concurrency:
                    self._ramp = math.inf
            if ticket.seq > self._quiet_seq:
                self._learns = True
                self._limiter.accepted(ticket, now, latency, self.ceiling)
            self._judge(ticket, now, failed=False)
            if self._down and not self._breaker.is_open:
                self._down = False
                self._limiter.restart(now, ticket)
        if verdict.quota is not None:
            served = not outcome.is_bad
            self._allowance.heed(verdict.quota, now, len(self._live), ticket.seq, served=served)
        elif heard:
            self._allowance.untold()
        if verdict.pause is not None:
            self._pause(verdict.pause, now)
        return outcome

    # -- inside ----------------------------------------------------------------------------

    def _hangs_at(self) -> float:
        """From when on all that is under way waits in vain."""
        if not self._live or not self._known:
            return math.inf
        return self._waits_since + max(HANGS_AFTER, HANGS * self._limiter.latency)

    def _knock_at(self) -> float:
        """When to send one more although what is under way hangs: ever more rarely."""
        since = self._waits_since
        last = next(reversed(self._live.values())).sent_at
        wait = max(LEAST_BETWEEN, self._knock_share * (last - since))
        return max(since + FIRST_KNOCK, last + wait)

    def _wakes(self, now: float) -> None:
        """A request goes out after nothing was under way: quiet time does not count."""
        closed = max(self.closed_until, self._breaker.ready_at(0.0), self._limiter.next_send())
        quiet = max(0.0, now - max(self._idle_since, closed))
        self._stalls_since = min(now, self._stalls_since + quiet)
        self._waits_since = self._waits_since + quiet if self._unanswered else now

    def _ended(self, ticket: Ticket, now: float) -> bool:
        """Take a request off those under way; False if it was none."""
        if ticket.seq in self._given_up:
            self._given_up.remove(ticket.seq)
            return True
        self._idle_since = now
        return self._live.pop(ticket.seq, None) is not None

    def _silence_ends(self, ticket: Ticket, *, bad: bool) -> None:
        """How long they sat through it says nothing of the requests that were under way.

        Unless nothing was learned since the silence before: then the site has become slow.
        """
        if self._learns:
            self._learns = False
            self._quiet_seq = self._limiter.last_seq
        self._limiter.overlook(ticket.seq - 1 if bad else max(ticket.seq - 1, self._quiet_seq))

    def _give_up_before(self, ticket: Ticket, now: float) -> None:
        """What was sent before this one was lost in a silence that is over."""
        for seq in [seq for seq in self._live if seq < ticket.seq]:
            del self._live[seq]
            self._given_up.add(seq)
        self._breaker.forget()
        self._limiter.unhindered(now)

    def _load(self, limit: int) -> int:
        """Requests that take room under the limit.

        Those given up take none, up to what one silence can swallow: where single pages are never
        answered, silence after silence must not fill the whole crawl with them.
        """
        return len(self._live) + max(0, len(self._given_up) - limit - KNOCKS)

    def _limit(self) -> int:
        wanted = min(self._limiter.concurrency, self._ramp, self._allowance.concurrency)
        if not self._known:
            wanted = min(wanted, self._most_unknown)
        if self._unanswered >= MUTE:
            wanted = min(wanted, self._at_start)
        return min(self.ceiling, max(1, round(wanted)))

    def _refused(self, ticket: Ticket, now: float, verdict: Verdict) -> None:
        for other in self._live.values():
            if other.seq > ticket.seq:
                other.load -= 1
        first = self._limiter.refused(ticket, now, verdict.pause or 0.0)
        if not first or verdict.pause is not None:
            return
        failures = self._limiter.starved
        if verdict.outcome is Outcome.BLOCKED:
            self._blocks += 1
            failures = max(failures, self._blocks)
        if failures:
            wait = FIRST_BACKOFF * 2.0 ** min(failures - 2, 16)
            if failures == 1:
                wait = min(FIRST_BACKOFF, self._limiter.latency or FIRST_BACKOFF)
            longest = LONGEST_BACKOFF if verdict.outcome is not Outcome.FAILED else LONGEST_DOUBT
            wait = min(longest, max(wait, 1 / self._limiter.rate))
            self._sleep_until(now + wait * self._rng.uniform(0.9, 1.1))
            if failures == 1:
                self._ramp = max(1.0, self._limiter.concurrency / 2)

    def _failed(self, ticket: Ticket, now: float, verdict: Verdict, latency: float) -> None:
        if not verdict.answered:
            self._limiter.lost(ticket, now)
        elif latency > max(1.0, 3 * self._limiter.latency):
            self._limiter.unhindered(now)
        else:
            quick = latency < QUICK * self._limiter.latency
            if self._judge(ticket, now, failed=True, quick=quick) in (Move.TRIAL, Move.REFUSED):
                self._refused(ticket, now, verdict)
            elif quick:
                self._limiter.hesitate()

    def _judge(self, ticket: Ticket, now: float, *, failed: bool, quick: bool = False) -> Move:
        limiter = self._limiter
        move = self._sense.judge(
            ticket.seq,
            failed=failed,
            last_seq=limiter.last_seq,
            load=limiter.load,
            growing=limiter.starting and limiter.concurrency < self.ceiling,
            quick=quick,
        )
        if move is Move.TRIAL:
            self._before_trial = limiter.caps, limiter.starting
        elif move is Move.RESTORE:
            caps, starting = self._before_trial
            limiter.restore(caps, now, starting=starting)
        return move

    def _pause(self, seconds: float, now: float) -> None:
        # Whole seconds may have been rounded down: never wake a hair too early.
        margin = min(0.05, 0.05 * seconds) * self._rng.uniform(0.6, 1.0)
        before = max(now, self.paused_until)
        self._sleep_until(now + seconds + margin)
        self._limiter.paused(seconds, longer=self.paused_until - before)

    def _sleep_until(self, when: float) -> None:
        self.paused_until = max(self.paused_until, when)
        self._ramp = 1
