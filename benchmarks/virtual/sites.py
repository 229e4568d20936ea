"""Model sites: how each would answer a request that arrives at a given second.

All times are seconds of virtual time, all rates requests per second. A site's latency is what a
client sees: the network's share is in it.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from scrapy_backpressure.control.outcome import Outcome, Quota, Verdict

LATENCY = 0.1
REFUSAL = 0.02
"""Seconds a site takes to refuse, give or take half."""
NETWORK = 0.005
"""Seconds each way, give or take a fifth."""

ACCEPTED = Verdict(Outcome.ACCEPTED)
TOO_MANY = Verdict(Outcome.THROTTLED, "429")
BARE_503 = Verdict(Outcome.FAILED, "503")
LOST = Verdict(Outcome.FAILED, "TimeoutError", answered=False)

Answer = tuple[float, Verdict]
"""After how many seconds (``math.inf``: never) a site answers, and what that means."""


def too_many(retry_after: float) -> Verdict:
    """A 429 that says how long to stay away."""
    return Verdict(Outcome.THROTTLED, "429", retry_after)


class Limits(NamedTuple):
    """What a client that knows the site would keep to."""

    at_once: float = math.inf
    rate: float = math.inf
    burst: float = math.inf
    """Requests that may come at once within the rate."""


class Steps:
    """A value that changes at known times: ``Steps(20, (60, 5))`` is 20, and 5 from second 60."""

    def __init__(self, first: float, *later: tuple[float, float]) -> None:
        self.changes = [at for at, _ in later]
        self._values = [first, *(value for _, value in later)]

    def __call__(self, now: float) -> float:
        return self._values[bisect_right(self.changes, now)] if self.changes else self._values[0]


class Site:
    """Takes everything, as many at once as a client sends.

    ``seconds``: mean latency; of the share ``slow`` of all answers it is ``slow_seconds``. That
    share is kept in every twenty answers, so that luck with slow ones does not hide the limiter.
    """

    changes: Sequence[float] = ()
    """Times at which the capacity changes."""
    credit = 0.0
    """Pages that can be had at once at the very start, beside the capacity."""

    def __init__(
        self,
        rng: random.Random,
        *,
        seconds: float = LATENCY,
        slow: float = 0.0,
        slow_seconds: float = 0.0,
    ) -> None:
        self.rng = rng
        self.seconds = seconds
        self.slow = slow
        self.slow_seconds = slow_seconds
        self._shuffled: list[float] = []

    @property
    def mean_latency(self) -> float:
        """Seconds."""
        return (1 - self.slow) * self.seconds + self.slow * self.slow_seconds

    def answer(self, now: float) -> Answer:
        """Answer a request that arrives now; calls must come in the order of time."""
        return self.latency(), ACCEPTED

    def limits(self, now: float) -> Limits:
        """The site's true limits."""
        return Limits()

    def capacity(self, now: float, ceiling: float) -> float:
        """Pages per second that a perfect client with at most ``ceiling`` at once would get.

        One that is never refused: who floods a site can have a little more, since a place is
        free again while the answer is still on its way.
        """
        limits = self.limits(now)
        return min(limits.rate, min(limits.at_once, ceiling) / self.mean_latency)

    def pages(self, until: float, ceiling: float) -> float:
        """Pages that a perfect client would have by then."""
        return total(lambda at: self.capacity(at, ceiling), self.changes, until) + self.credit

    def latency(self) -> float:
        """Seconds that one answer takes, without the network: give or take a tenth."""
        seconds = self._slow_or_not() if self.slow else self.seconds
        return seconds * (0.9 + 0.2 * self.rng.random()) - 2 * NETWORK

    def _slow_or_not(self) -> float:
        if not self._shuffled:
            slow = round(20 * self.slow)
            self._shuffled = [self.slow_seconds] * slow + [self.seconds] * (20 - slow)
            self.rng.shuffle(self._shuffled)
        return self._shuffled.pop()

    def refuse(self, verdict: Verdict) -> Answer:
        """Refuse one request."""
        return REFUSAL * (0.5 + self.rng.random()), verdict


class Flaky(Site):
    """Unlimited, but a share of the answers are 503s, whatever the load.

    ``failing_after``: seconds that these take; 0: as long as the others.
    """

    def __init__(self, rng: random.Random, share: float, *, failing_after: float = 0.0) -> None:
        super().__init__(rng)
        self.share = share
        self.failing_after = failing_after

    def capacity(self, now: float, ceiling: float) -> float:
        return (1 - self.share) * super().capacity(now, ceiling)

    def answer(self, now: float) -> Answer:
        if self.rng.random() < self.share:
            return self.failing_after or self.latency(), BARE_503
        return self.latency(), ACCEPTED


class AtOnce(Site):
    """Serves so many at once and refuses the rest; ``latency``: as of any site."""

    def __init__(
        self,
        rng: random.Random,
        limit: Steps,
        *,
        refusal: Verdict = TOO_MANY,
        **latency: float,
    ) -> None:
        super().__init__(rng, **latency)
        self.limit = limit
        self.changes = limit.changes
        self.refusal = refusal
        self._ends: list[float] = []

    def limits(self, now: float) -> Limits:
        return Limits(at_once=self.limit(now))

    def answer(self, now: float) -> Answer:
        ends = self._ends
        while ends and ends[0] <= now:
            heapq.heappop(ends)
        if len(ends) >= self.limit(now):
            return self.refuse(self.refusal)
        latency = self.latency()
        heapq.heappush(ends, now + latency)
        return latency, ACCEPTED


class Bucket(Site):
    """A token bucket.

    With ``ban``, a refusal bans for so many seconds, and every hit meanwhile restarts the ban.
    ``headers``: every answer tells what is left and when the bucket is full, in whole seconds.
    ``latency``: as of any site.
    """

    def __init__(
        self,
        rng: random.Random,
        rate: Steps,
        burst: Steps,
        *,
        ban: float = 0.0,
        refusal: Verdict = TOO_MANY,
        headers: bool = False,
        **latency: float,
    ) -> None:
        super().__init__(rng, **latency)
        self.rate = rate
        self.burst = burst
        self.changes = rate.changes
        self.credit = burst(0) - 1
        self.ban = ban
        self.refusal = refusal
        self.headers = headers
        self._banned_until = 0.0
        self._tokens = burst(0)
        self._at = 0.0

    def limits(self, now: float) -> Limits:
        return Limits(rate=self.rate(now), burst=self.burst(now))

    def answer(self, now: float) -> Answer:
        tokens = self._tokens + self.rate(now) * (now - self._at)
        self._tokens = tokens = min(self.burst(now), tokens)
        self._at = now
        if now < self._banned_until or tokens < 1:
            if self.ban:
                self._banned_until = now + self.ban
            return self.refuse(self._telling(self.refusal, now))
        self._tokens -= 1
        return self.latency(), self._telling(ACCEPTED, now)

    def _telling(self, verdict: Verdict, now: float) -> Verdict:
        if not self.headers:
            return verdict
        burst = self.burst(now)
        full = math.ceil((burst - self._tokens) / self.rate(now))
        return replace(verdict, quota=Quota(burst, math.floor(self._tokens), full))


class Window(Site):
    """So many requests in each window, which the first request after the last one opens.

    ``headers``: every answer tells what is left and when the window ends, in whole seconds.
    """

    def __init__(self, rng: random.Random, limit: int, length: float, *, headers: bool) -> None:
        super().__init__(rng)
        self.limit = limit
        self.length = length
        self.headers = headers
        self._start = -math.inf
        self._used = 0

    def limits(self, now: float) -> Limits:
        return Limits(rate=self.limit / self.length, burst=1)

    def pages(self, until: float, ceiling: float) -> float:
        return self.limit * math.ceil(until / self.length)

    def answer(self, now: float) -> Answer:
        if now >= self._start + self.length:
            self._start, self._used = now, 0
        granted = self._used < self.limit
        self._used += granted
        after = self.latency() if granted else self.refuse(TOO_MANY)[0]
        if not self.headers:
            return after, ACCEPTED if granted else TOO_MANY
        left = math.ceil(self._start + self.length - now)
        quota = Quota(self.limit, self.limit - self._used, left, self.length)
        return after, Verdict(Outcome.ACCEPTED if granted else Outcome.THROTTLED, "", None, quota)


class Queueing(Site):
    """So many workers and an endless queue: never refuses, only gets slower."""

    def __init__(self, rng: random.Random, workers: int) -> None:
        super().__init__(rng)
        self.workers = workers
        self._free = [0.0] * workers

    def limits(self, now: float) -> Limits:
        # One more than there are workers, so that none waits for the network.
        return Limits(at_once=self.workers + 1)

    def capacity(self, now: float, ceiling: float) -> float:
        return self.workers / (self.seconds - 2 * NETWORK)

    def answer(self, now: float) -> Answer:
        end = max(now, heapq.heappop(self._free)) + self.latency()
        heapq.heappush(self._free, end)
        return end - now, ACCEPTED


class Trouble(Site):
    """Another site that from one second to another gives everybody the same answer.

    ``verdict``: that answer; None: it says nothing at all.
    """

    def __init__(self, site: Site, since: float, until: float, verdict: Verdict | None) -> None:
        super().__init__(site.rng, seconds=site.seconds)
        self.site = site
        self.since = since
        self.until = until
        self.verdict = verdict
        self.changes = [since, until]

    def limits(self, now: float) -> Limits:
        return Limits(at_once=0) if self.since <= now < self.until else self.site.limits(now)

    def answer(self, now: float) -> Answer:
        if not self.since <= now < self.until:
            return self.site.answer(now)
        return (math.inf, LOST) if self.verdict is None else self.refuse(self.verdict)


def total(rate: Callable[[float], float], changes: Iterable[float], until: float) -> float:
    """What a ``rate`` per second that changes at ``changes`` comes to by then."""
    edges = [0.0, *(at for at in changes if 0 < at < until), until]
    return sum(rate(since) * (end - since) for since, end in pairwise(edges))


def first_change(changes: Iterable[float], now: float) -> float:
    """The first of ``changes`` after ``now``; ``math.inf`` if there is none."""
    return min((at for at in changes if at > now), default=math.inf)
