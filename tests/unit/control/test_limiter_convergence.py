"""The two caps on a site with a limit: found, kept, followed, and seldom overstepped."""

from __future__ import annotations

import heapq
import math
import random

import pytest

from scrapy_backpressure.control.limiter import Limiter
from scrapy_backpressure.control.pacer import Ticket

CEILING = 64
LATENCY = 0.1


class Crawl:
    """Sends whenever a limiter allows it, in virtual time, to a site with a limit.

    Fruitless tries pause it as they pause a lane.
    """

    def __init__(
        self,
        limiter: Limiter | None = None,
        *,
        at_once: float = math.inf,
        rate: float = math.inf,
        workers: float = math.inf,
    ) -> None:
        self.limiter = limiter or Limiter(start=4, minimum=1, now=0.0)
        self.at_once, self.rate, self.workers = at_once, rate, workers
        self.now = 0.0
        self.served = self.refused = 0
        self._live: list[tuple[float, int, Ticket, bool]] = []
        self._free_at = 0.0
        self._paused_until = 0.0
        self._rng = random.Random(1)

    def run(self, seconds: float) -> None:
        """Go on for so long, and count what was served and refused meanwhile."""
        until = self.now + seconds
        self.served = self.refused = 0
        while True:
            room = len(self._live) < min(CEILING, max(1, round(self.limiter.concurrency)))
            due = max(self.now, self._paused_until, self.limiter.next_send())
            send_at = due if room else math.inf
            answer_at = self._live[0][0] if self._live else math.inf
            self.now = min(send_at, answer_at)
            if self.now > until:
                self.now = until
                return
            if answer_at <= send_at:
                self._answer()
            else:
                self._send()

    def _send(self) -> None:
        limit = min(CEILING, round(self.limiter.concurrency))
        ticket = self.limiter.sent(self.now, len(self._live) + 1, limit)
        load = 1 + sum(served for _, _, _, served in self._live)
        serves = load <= self.at_once and self.now >= self._free_at - 1e-9
        if serves:
            self._free_at = max(self._free_at, self.now - 1 / self.rate) + 1 / self.rate
        latency = self._rng.uniform(0.9, 1.1) * LATENCY * max(1, load / self.workers)
        heapq.heappush(self._live, (self.now + latency, ticket.seq, ticket, serves))

    def _answer(self) -> None:
        _, _, ticket, serves = heapq.heappop(self._live)
        if serves:
            self.served += 1
            self.limiter.accepted(ticket, self.now, self.now - ticket.sent_at, CEILING)
        else:
            self.refused += 1
            if self.limiter.refused(ticket, self.now) and self.limiter.starved:
                self._paused_until = self.now + min(5.0, LATENCY * 2**self.limiter.starved)


def test_never_grows_past_the_ceiling() -> None:
    crawl = Crawl()
    crawl.run(60.0)
    assert crawl.limiter.concurrency == CEILING


def test_stays_at_the_ceiling_however_long() -> None:
    crawl = Crawl()
    crawl.limiter.restore((False, 60.0), 0.0)
    crawl.run(120.0)
    assert crawl.limiter.concurrency == CEILING


# -- a queue -------------------------------------------------------------------------------------


def test_growth_stops_when_it_only_brings_latency() -> None:
    crawl = Crawl(workers=6)
    crawl.run(120.0)
    assert crawl.limiter.concurrency <= 16


def test_a_queue_leaves_the_site_as_fast_as_it_is() -> None:
    crawl = Crawl(workers=6)
    crawl.run(120.0)
    assert crawl.served / 120.0 > 0.9 * 6 / LATENCY


# -- a limit on concurrency ----------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [2, 5, 10, 30])
def test_stays_close_to_what_is_served_at_once(at_once: int) -> None:
    crawl = Crawl(at_once=at_once)
    crawl.run(60.0)
    crawl.run(120.0)
    assert crawl.served / 120.0 > 0.85 * at_once / LATENCY


@pytest.mark.parametrize("at_once", [2, 5, 10, 30])
def test_is_seldom_refused_by_a_limit_on_concurrency(at_once: int) -> None:
    crawl = Crawl(at_once=at_once)
    crawl.run(60.0)
    crawl.run(120.0)
    assert crawl.refused < 0.02 * crawl.served


def test_finds_a_concurrency_that_rose() -> None:
    crawl = Crawl(at_once=4)
    crawl.run(60.0)
    crawl.at_once = 32
    crawl.run(60.0)
    assert crawl.limiter.concurrency >= 24


def test_finds_a_concurrency_that_fell() -> None:
    crawl = Crawl(at_once=30)
    crawl.run(60.0)
    crawl.at_once = 5
    crawl.run(20.0)
    crawl.run(60.0)
    assert crawl.refused < 0.02 * crawl.served


def test_a_limit_on_concurrency_is_told_as_such() -> None:
    crawl = Crawl(at_once=10)
    crawl.run(60.0)
    assert crawl.limiter.caps == pytest.approx((False, 10), abs=1)


# -- a limit on the rate -------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.5, 2.0, 20.0, 150.0])
def test_stays_close_to_what_is_served_a_second(rate: float) -> None:
    crawl = Crawl(rate=rate)
    crawl.run(120.0)
    crawl.run(300.0)
    assert crawl.served / 300.0 > 0.85 * rate


@pytest.mark.parametrize("rate", [0.5, 2.0, 20.0, 150.0])
def test_is_seldom_refused_by_a_limit_on_the_rate(rate: float) -> None:
    crawl = Crawl(rate=rate)
    crawl.run(120.0)
    crawl.run(300.0)
    assert crawl.refused < 0.03 * crawl.served + 3


def test_learns_a_rate_when_one_at_a_time_is_too_many() -> None:
    crawl = Crawl(rate=1.0)
    crawl.run(120.0)
    assert crawl.limiter.rate == pytest.approx(1.0, rel=0.1)


def test_finds_a_rate_that_rose() -> None:
    crawl = Crawl(rate=5.0)
    crawl.run(120.0)
    crawl.rate = 40.0
    crawl.run(120.0)
    assert crawl.limiter.rate > 30.0


def test_finds_a_rate_that_fell() -> None:
    crawl = Crawl(rate=40.0)
    crawl.run(120.0)
    crawl.rate = 5.0
    crawl.run(120.0)
    assert crawl.limiter.rate < 6.0


def test_finds_that_concurrency_is_limited_instead() -> None:
    crawl = Crawl(rate=40.0)
    crawl.run(120.0)
    crawl.rate, crawl.at_once = math.inf, 3
    crawl.run(60.0)
    crawl.run(60.0)
    assert crawl.refused < 0.03 * crawl.served


def test_a_limit_on_the_rate_is_told_as_such() -> None:
    crawl = Crawl(rate=2.0)
    crawl.run(120.0)
    assert crawl.limiter.caps == pytest.approx((True, 2.0), rel=0.1)


# -- pauses and outages --------------------------------------------------------------------------


def refusals(*, pause: float) -> int:
    """In two minutes at a limit that costs so much pause."""
    crawl = Crawl(Limiter(start=4, minimum=1, now=0.0), at_once=8)
    crawl.run(20.0)
    crawl.limiter.paused(pause, longer=0.0)
    crawl.run(120.0)
    return crawl.refused


def test_a_limit_that_costs_more_is_tried_less_often() -> None:
    assert refusals(pause=30.0) < refusals(pause=0.0)


def test_after_an_outage_what_was_good_before_is_where_growth_ends() -> None:
    crawl = Crawl(at_once=10)
    crawl.run(60.0)
    crawl.at_once = 0
    crawl.run(10.0)
    crawl.at_once = 64
    crawl.run(3.0)
    assert 1 < crawl.limiter.concurrency <= 11


def test_a_rate_that_was_needless_is_taken_back() -> None:
    crawl = Crawl(rate=2.0)
    crawl.run(60.0)
    crawl.limiter.restore((False, 12.0), crawl.now)
    assert crawl.limiter.next_send() - crawl.now < 0.1
