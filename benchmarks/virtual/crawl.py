"""One crawl in virtual time: a discrete-event simulation.

The driver asks the limiter as the scheduler does. What was waited for in time comes up to 2 ms
late, as on a busy event loop; what waits for an answer goes on with it. A refused request is tried
again after the package's own backoff, or when its site's pause ends if that is later. It is given
up as `RetryMiddleware` would: after more than RETRY_TIMES failures, or
BACKPRESSURE_THROTTLE_TIMES refusals.

The same profile, limiter and seed give the same run.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.virtual.contenders import Contender, Maker, Setting
from benchmarks.virtual.profiles import Profile
from benchmarks.virtual.sites import LOST, NETWORK, Steps, first_change
from scrapy_backpressure.control.backoff import RetryBudget, backoff
from scrapy_backpressure.control.outcome import Outcome, Verdict

LATENESS = 0.002
TIMEOUT = 15.0
BACKOFF_BASE, BACKOFF_MAX = 1.0, 300.0
RETRY_BUDGET = 0.2
RETRY_TIMES, THROTTLE_TIMES = 2, 20
LONGEST = 40_000.0
"""Seconds after which a crawl of so many pages is stopped."""
SAMPLES = 600
"""Samples of the limits that a recorded run takes."""

Page = tuple[int, int]
"""How often it has failed, and how often it was throttled."""
NEW: Page = (0, 0)


@dataclass(eq=False)
class Crawler:
    """One crawl's pages: those not sent yet, those to try again, and when others were served."""

    left: float
    budget: RetryBudget
    lanes: list[Lane] = field(default_factory=list)
    retries: deque[Page] = field(default_factory=deque)
    served: int = 0

    @property
    def has_pages(self) -> bool:
        """Whether there is anything to send."""
        return self.left >= 1 or bool(self.retries)


@dataclass(eq=False)
class Lane:
    """One limiter at work for a crawler."""

    crawler: Crawler
    limiter: Contender
    in_flight: int = 0
    poll_at: float = math.inf
    told_until: float = 0.0
    """Until when the site asked not to be called, as far as this lane has been told."""


@dataclass(eq=False, slots=True)
class Flight:
    """One request under way."""

    lane: Lane
    ticket: Any
    sent_at: float
    page: Page
    verdict: Verdict = LOST


@dataclass
class Record:
    """What happened: times in seconds, in order."""

    sent: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    """Seconds, of the accepted ones."""
    refused: list[float] = field(default_factory=list)
    early: int = 0
    lost: int = 0
    shares: list[int] = field(default_factory=list)
    """Pages served to each crawler."""
    end: float = 0.0
    limits: list[tuple[float, float, float]] = field(default_factory=list)
    """Second, concurrency and rate, of all lanes together; only if asked for."""


class Run:
    """A crawl, or several of one site.

    :param make: makes each lane's limiter
    :param most: requests after which the crawl is stopped
    :param recorded: whether to sample the limits
    :param trace: is given a line for each bad answer
    """

    def __init__(
        self,
        profile: Profile,
        make: Maker,
        seed: int,
        *,
        most: float = math.inf,
        recorded: bool = False,
        trace: Callable[[str], object] | None = None,
    ) -> None:
        self.profile = profile
        self.record = Record()
        self.site = profile.site(random.Random(f"site {seed}"))
        self._random = random.Random(f"driver {seed}").random
        self._backoff_rng = random.Random(f"backoff {seed}")
        self._most = most
        self._trace = trace
        self._events: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
        self._count = 0
        self._unfinished = math.inf if profile.pages is None else profile.pages
        self._end = profile.seconds if profile.pages is None else LONGEST
        self.crawlers = [self._crawler(make, seed, number) for number in range(profile.crawlers)]
        if recorded:
            self._push(0.0, self._sample, None)

    def _crawler(self, make: Maker, seed: int, number: int) -> Crawler:
        profile = self.profile
        crawler = Crawler(math.inf, RetryBudget(RETRY_BUDGET, 0.0))
        if profile.production is not None:
            crawler.left = 0
            self._push(0.0, self._produce, (crawler, profile.production))
        elif profile.pages is not None:
            crawler.left = profile.pages
        for lane in range(profile.lanes):
            rng = random.Random(f"limiter {seed} {number} {lane}")
            share = 1 / (profile.crawlers * profile.lanes)
            limiter = make(Setting(self.site, profile.ceiling, share, rng))
            crawler.lanes.append(Lane(crawler, limiter))
        return crawler

    def run(self) -> Record:
        """Crawl to the end."""
        events = self._events
        for crawler in self.crawlers:
            self._pump_all(crawler, 0.0)
        now = 0.0
        while events and self._unfinished > 0:
            now, _, handle, what = heapq.heappop(events)
            if now > self._end:
                break
            handle(now, what)
        events.clear()  # they hold this run, and all that it has recorded
        self.record.end = now if self._unfinished <= 0 else self._end
        self.record.shares = [crawler.served for crawler in self.crawlers]
        return self.record

    def _push(self, at: float, handle: Callable[[float, Any], None], what: object) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, handle, what))

    def _network(self) -> float:
        return NETWORK * (0.8 + 0.4 * self._random())

    # -- sending ---------------------------------------------------------------------------

    def _pump(self, lane: Lane, now: float) -> None:
        """Send what the lane lets go now; ask again when it says."""
        crawler, limiter, sent = lane.crawler, lane.limiter, self.record.sent
        while crawler.left >= 1 or crawler.retries:
            ready = limiter.ready_at(now)
            if ready > now:
                if ready < lane.poll_at:
                    lane.poll_at = ready
                    self._push(ready + LATENESS * self._random(), self._poll, (lane, ready))
                return
            if crawler.retries:
                page = crawler.retries.popleft()
            else:
                page = NEW
                crawler.left -= 1
                crawler.budget.first_attempt()
            if now < lane.told_until:
                self.record.early += 1
            lane.in_flight += 1
            sent.append(now)
            if len(sent) >= self._most:
                self._end = now
            flight = Flight(lane, limiter.sent(now), now, page)
            self._push(now + self._network(), self._arrive, flight)

    def _pump_all(self, crawler: Crawler, now: float) -> None:
        """There are pages again: the emptiest lane comes first."""
        for lane in sorted(crawler.lanes, key=lambda lane: lane.in_flight):
            if crawler.has_pages:
                self._pump(lane, now)

    def _poll(self, now: float, what: tuple[Lane, float]) -> None:
        lane, asked_for = what
        if asked_for == lane.poll_at:  # else an earlier one was asked for meanwhile
            lane.poll_at = math.inf
            self._pump(lane, now)

    def _produce(self, now: float, what: tuple[Crawler, Steps]) -> None:
        crawler, production = what
        rate = production(now)
        crawler.left += 1 if rate < math.inf else math.inf
        if rate < math.inf:
            self._push(
                min(now + 1 / rate, first_change(production.changes, now)), self._produce, what
            )
        self._pump_all(crawler, now)

    # -- answers ---------------------------------------------------------------------------

    def _arrive(self, now: float, flight: Flight) -> None:
        after, flight.verdict = self.site.answer(now)
        at = now + after + self._network()
        latest = flight.sent_at + TIMEOUT
        if at > latest:
            at, flight.verdict = latest, LOST
        self._push(at, self._finish, flight)

    def _finish(self, now: float, flight: Flight) -> None:
        lane, verdict, record = flight.lane, flight.verdict, self.record
        latency = now - flight.sent_at
        lane.in_flight -= 1
        outcome = lane.limiter.finished(flight.ticket, now, verdict, latency=latency)
        if outcome is not None and outcome is not verdict.outcome:
            flight.verdict = verdict = replace(verdict, outcome=outcome)
        if verdict.outcome is Outcome.ACCEPTED:
            record.accepted.append(now)
            record.latencies.append(latency)
            lane.crawler.served += 1
            self._unfinished -= 1
        else:
            record.refused.append(now)
            self._refused(now, flight)
        self._pump(lane, now)

    def _refused(self, now: float, flight: Flight) -> None:
        lane, verdict = flight.lane, flight.verdict
        failed, throttled = flight.page
        if verdict.pause is not None:
            lane.told_until = max(lane.told_until, now + verdict.pause)
        deferred = 0.0
        was_throttled = verdict.outcome is Outcome.THROTTLED
        if was_throttled:
            throttled += 1
            tries = throttled
        else:
            failed += 1
            tries = failed
            deferred = lane.crawler.budget.retry(now)
        if self._trace:
            self._trace(self._told(now, flight))
        if failed > RETRY_TIMES or throttled > THROTTLE_TIMES:
            self.record.lost += 1
            self._unfinished -= 1
            return
        wait = deferred + backoff(
            tries,
            base=BACKOFF_BASE,
            maximum=BACKOFF_MAX,
            rng=self._backoff_rng,
            throttled=was_throttled,
        )
        wait = max(wait, verdict.pause or 0.0)
        open_at = min(lane.limiter.paused_until for lane in lane.crawler.lanes)
        self._push(max(now + wait, open_at), self._retry, (lane.crawler, (failed, throttled)))

    def _retry(self, now: float, what: tuple[Crawler, Page]) -> None:
        crawler, page = what
        had_pages = crawler.has_pages
        crawler.retries.append(page)
        if not had_pages:  # else every lane that could send it has sent something else
            self._pump_all(crawler, now)

    # -- watching --------------------------------------------------------------------------

    def _sample(self, now: float, _: object) -> None:
        limiters = [lane.limiter for crawler in self.crawlers for lane in crawler.lanes]
        concurrency = sum(limiter.concurrency for limiter in limiters)
        rate = sum(limiter.rate for limiter in limiters)
        self.record.limits.append((now, concurrency, rate))
        step = self._end / SAMPLES if self.profile.pages is None else 0.1
        self._push(now + step, self._sample, None)

    def _told(self, now: float, flight: Flight) -> str:
        lane = flight.lane
        limiter = lane.limiter
        return (
            f"{now:9.3f} {flight.verdict.outcome.value} sent={flight.sent_at:.3f} "
            f"load={getattr(flight.ticket, 'load', '?')} tries={sum(flight.page)} "
            f"C={limiter.concurrency:.1f} r={limiter.rate:.2f} in={lane.in_flight} "
            f"pause={limiter.paused_until:.2f} served={len(self.record.accepted)}"
        )
