"""Sites in virtual time: how each would answer a request that arrives at a given second."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

from scrapy_backpressure.control.outcome import Outcome, Quota

CEILING = 64
LATENCY = 0.1
REFUSAL = 0.02  # seconds a site takes to refuse
NETWORK = 0.005  # seconds each way, give or take a fifth


@dataclass(frozen=True)
class Answer:
    """What a site does with a request: after how long, and what it says."""

    after: float
    outcome: Outcome = Outcome.ACCEPTED
    pause: float | None = None
    quota: Quota | None = None


class Site:
    """A site that takes everything in LATENCY seconds, give or take a tenth."""

    refusal = Outcome.THROTTLED
    retry_after: float | None = None

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    @property
    def changes(self) -> list[float]:
        """Times at which the capacity changes."""
        return [at for at, _ in getattr(self, "schedule", [])]

    def capacity(self, now: float) -> float:
        """Pages per second that a perfect client would get at this time."""
        return CEILING / LATENCY

    credit = 0.0  # pages that come at once at the very start

    def answer(self, now: float) -> Answer:
        return Answer(self.latency())

    def latency(self) -> float:
        return LATENCY * self.rng.uniform(0.9, 1.1) - 2 * NETWORK

    def refuse(self) -> Answer:
        return Answer(REFUSAL * self.rng.uniform(0.5, 1.5), self.refusal, self.retry_after)


Schedule = list[tuple[float, float]]


def value_at(schedule: Schedule, now: float) -> float:
    return [value for start, value in schedule if start <= now][-1]


class AtOnce(Site):
    """Serves n at once and refuses the rest."""

    def __init__(self, rng: random.Random, schedule: Schedule, retry_after: float | None = None):
        super().__init__(rng)
        self.schedule = schedule
        self.retry_after = retry_after
        self.ends: list[float] = []

    def capacity(self, now: float) -> float:
        return min(CEILING, value_at(self.schedule, now)) / LATENCY

    def answer(self, now: float) -> Answer:
        while self.ends and self.ends[0] <= now:
            heapq.heappop(self.ends)
        if len(self.ends) >= value_at(self.schedule, now):
            return self.refuse()
        latency = self.latency()
        heapq.heappush(self.ends, now + latency)
        return Answer(latency)


class Bucket(Site):
    """A token bucket; with ``ban``, a refusal bans for that long, and every hit restarts it."""

    def __init__(
        self, rng: random.Random, schedule: Schedule, burst: float, ban: float | None = None
    ) -> None:
        super().__init__(rng)
        self.schedule = schedule
        self.burst = burst
        self.credit = burst - 1
        self.ban = self.retry_after = ban
        self.banned_until = 0.0
        self.tokens = burst
        self.at = 0.0

    def capacity(self, now: float) -> float:
        return value_at(self.schedule, now)

    def answer(self, now: float) -> Answer:
        rate = value_at(self.schedule, now)
        self.tokens = min(self.burst, self.tokens + rate * (now - self.at))
        self.at = now
        if now < self.banned_until or self.tokens < 1:
            if self.ban:
                self.banned_until = now + self.ban
            return self.refuse()
        self.tokens -= 1
        return Answer(self.latency())


class Window(Site):
    """60 requests in each 60 s, counted from the first."""

    limit, length = 60, 60.0

    def __init__(self, rng: random.Random, *, headers: bool) -> None:
        super().__init__(rng)
        self.headers = headers
        self.start = -math.inf
        self.used = 0
        self.credit = self.limit - 1

    def capacity(self, now: float) -> float:
        return self.limit / self.length

    def answer(self, now: float) -> Answer:
        if now >= self.start + self.length:
            self.start, self.used = now, 0
        quota = None
        granted = self.used < self.limit
        self.used += granted
        if self.headers:
            left = self.start + self.length - now
            quota = Quota(self.limit, self.limit - self.used, math.ceil(left), self.length)
        if granted:
            return Answer(self.latency(), quota=quota)
        return Answer(REFUSAL, Outcome.THROTTLED, None, quota)


class Queueing(Site):
    """Five workers and an endless queue: never refuses, only gets slower."""

    workers = 5

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.free = [0.0] * self.workers

    def capacity(self, now: float) -> float:
        return self.workers / (LATENCY - 2 * NETWORK)

    def answer(self, now: float) -> Answer:
        end = max(now, heapq.heappop(self.free)) + self.latency()
        heapq.heappush(self.free, end)
        return Answer(end - now)


class Flaky(Site):
    """Unlimited, but one answer in twenty is a 503."""

    def capacity(self, now: float) -> float:
        return CEILING / LATENCY * 0.95

    def answer(self, now: float) -> Answer:
        failed = self.rng.random() < 0.05
        return Answer(self.latency(), Outcome.FAILED if failed else Outcome.ACCEPTED)


class BareAtOnce(AtOnce):
    """Tells its limit with a bare 503."""

    refusal = Outcome.FAILED


class BareBucket(Bucket):
    """Tells its limit with a bare 503."""

    refusal = Outcome.FAILED


class BlackHole(AtOnce):
    """Ten at once; nothing that arrives in seconds 10 to 20 is ever answered."""

    @property
    def changes(self) -> list[float]:
        return [10.0, 20.0]

    def capacity(self, now: float) -> float:
        return 0.0 if 10 <= now < 20 else super().capacity(now)

    def answer(self, now: float) -> Answer:
        if 10 <= now < 20:
            return Answer(math.inf)
        return super().answer(now)


class Outage(AtOnce):
    """Refuses everything between two seconds; otherwise so many at once."""

    def __init__(
        self,
        rng: random.Random,
        schedule: Schedule,
        *,
        since: float,
        until: float,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(rng, schedule, retry_after)
        self.since, self.until = since, until

    @property
    def changes(self) -> list[float]:
        return [self.since, self.until]

    def capacity(self, now: float) -> float:
        return 0.0 if self.since <= now < self.until else super().capacity(now)

    def answer(self, now: float) -> Answer:
        if self.since <= now < self.until:
            return self.refuse()
        return super().answer(now)
