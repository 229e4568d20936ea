"""The limiters to compare with, each by what its description says."""

from __future__ import annotations

import math
import random

import pytest

from benchmarks.virtual.contenders import (
    AIMD,
    NAMES,
    AutoThrottle,
    Contender,
    Cubic,
    Gradient,
    Oracle,
    Setting,
    maker,
)
from benchmarks.virtual.sites import (
    ACCEPTED,
    BARE_503,
    TOO_MANY,
    AtOnce,
    Bucket,
    Site,
    Steps,
    Trouble,
    too_many,
)
from scrapy_backpressure.control.outcome import Verdict


def setting(site: Site | None = None, *, share: float = 1.0) -> Setting:
    rng = random.Random(1)
    return Setting(site or AtOnce(rng, Steps(20)), 64, share, rng)


def exchange(
    limiter: Contender, now: float, verdict: Verdict = ACCEPTED, latency: float = 0.1
) -> float:
    """One request, sent when the limiter lets it go; when its answer came."""
    now = max(now, limiter.ready_at(now))
    ticket = limiter.sent(now)
    limiter.finished(ticket, now + latency, verdict, latency=latency)
    return now + latency


def fill(limiter: Contender, now: float) -> int:
    """How many it sends at this moment."""
    count = 0
    while limiter.ready_at(now) <= now and count < 1000:
        limiter.sent(now)
        count += 1
    return count


@pytest.mark.parametrize("name", NAMES)
def test_each_can_be_made_and_sends(name: str) -> None:
    assert fill(maker(name)(setting()), 0.0) >= 1


def test_the_oracle_keeps_to_the_limit_as_it_changes() -> None:
    site = AtOnce(random.Random(1), Steps(20, (10, 5), (20, 40)))
    for now, limit in ((0.0, 20), (10.0, 5), (20.0, 40)):
        oracle = Oracle(setting(site))
        assert fill(oracle, now) == limit


def test_the_oracle_takes_its_share() -> None:
    assert fill(Oracle(setting(share=0.5)), 0.0) == 10


def test_the_oracle_lets_a_dead_site_alone() -> None:
    site = Trouble(AtOnce(random.Random(1), Steps(20)), 0, 10, None)
    assert Oracle(setting(site)).ready_at(1.0) == 10


def test_the_oracle_keeps_a_pause() -> None:
    oracle = Oracle(setting())
    exchange(oracle, 0.0, too_many(3.0))
    assert oracle.ready_at(1.0) == pytest.approx(3.1)


def test_the_oracle_is_never_early_without_a_burst_and_on_time_with_one() -> None:
    strict = Oracle(setting(Bucket(random.Random(1), Steps(10), Steps(1))), 0.001)
    strict.sent(0.0)
    strict.sent(0.102)
    assert strict.ready_at(0.11) == pytest.approx(0.203)
    easy = Oracle(setting(Bucket(random.Random(1), Steps(10), Steps(5))))
    for late in (0.0, 0.1, 0.202):
        assert easy.ready_at(late) <= late
        easy.sent(late)
    assert easy.ready_at(0.21) < 0.3


def test_autothrottle_nears_the_latency_from_its_first_delay() -> None:
    limiter = AutoThrottle(setting())
    now = 0.0
    delays = []
    for _ in range(20):
        now = exchange(limiter, now)
        delays.append(1 / limiter.rate)
    assert delays[:2] == pytest.approx([2.55, 1.325])
    assert delays[-1] == pytest.approx(0.1, rel=0.01)


def test_autothrottle_is_not_sped_up_by_a_refusal() -> None:
    limiter = AutoThrottle(setting())
    exchange(limiter, 0.0, TOO_MANY, latency=0.02)
    assert limiter.rate == pytest.approx(1 / 5)


def test_aimd_adds_one_a_round_trip_and_halves() -> None:
    limiter = AIMD(setting())
    for _ in range(4):
        exchange(limiter, 0.0)
    assert limiter.concurrency == pytest.approx(4.9, abs=0.1)
    before = limiter.concurrency
    exchange(limiter, 0.0, BARE_503)
    assert limiter.concurrency == pytest.approx(before / 2)
    for _ in range(9):
        exchange(limiter, 0.0, TOO_MANY)
    assert limiter.concurrency == 1


def test_gradient_grows_while_latency_is_steady_and_shrinks_as_it_rises() -> None:
    limiter = Gradient(setting())

    def window(now: float, latency: float) -> float:
        tickets = [limiter.sent(now) for _ in range(int(limiter.concurrency))]
        for ticket in tickets:
            limiter.finished(ticket, now + 1.01, ACCEPTED, latency=latency)
        return now + 1.01

    now = window(0.0, 0.1)
    assert limiter.concurrency == pytest.approx(20.8)
    for _ in range(20):
        now = window(now, 0.1)
    grown = limiter.concurrency
    assert grown > 30
    for _ in range(5):
        now = window(now, 0.5)
    assert limiter.concurrency < 0.8 * grown


def test_gradient_cuts_a_tenth_per_drop() -> None:
    limiter = Gradient(setting())
    exchange(limiter, 0.0, TOO_MANY)
    assert limiter.concurrency == pytest.approx(18)


def cubic_at(rate: float, seconds: float) -> tuple[Cubic, float]:
    """One that has sent so many a second for so long."""
    limiter = Cubic(setting())
    now = 0.0
    for _ in range(round(rate * seconds)):
        limiter.sent(now)
        limiter.finished(None, now, ACCEPTED, latency=0.1)
        now += 1 / rate
    return limiter, now


def test_cubic_is_unlimited_until_it_is_throttled() -> None:
    limiter, now = cubic_at(20, 10)
    exchange(limiter, now, BARE_503)
    assert limiter.rate == math.inf
    exchange(limiter, now, TOO_MANY)
    assert limiter.rate == pytest.approx(0.7 * 20, rel=0.1)


def test_cubic_is_back_at_the_old_rate_when_its_formula_says() -> None:
    limiter, now = cubic_at(20, 10)
    exchange(limiter, now, TOO_MANY)
    since, before = now + 0.1, limiter.rate / 0.7
    back = (before * 0.3 / 0.4) ** (1 / 3)
    while now < since + back:
        now = exchange(limiter, now, latency=0.0)
    assert limiter.rate == pytest.approx(before, rel=0.02)
