"""The driver: the same run for the same seed, nothing for free, the oracle at home."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.virtual.contenders import ORACLE, OURS, Setting, maker
from benchmarks.virtual.crawl import Run
from benchmarks.virtual.figures import Figures, measure
from benchmarks.virtual.profiles import Profile, at_once, bucket, profiles
from benchmarks.virtual.sites import BARE_503, Flaky, Steps, Trouble, too_many
from scrapy_backpressure.control.outcome import Verdict


class Unlimited:
    """Sends up to so many at once, whatever the answers."""

    paused_until = 0.0
    rate = math.inf

    def __init__(self, setting: Setting, concurrency: float = 5) -> None:
        self.concurrency = concurrency
        self.in_flight = 0

    def ready_at(self, now: float) -> float:
        return now if self.in_flight < self.concurrency else math.inf

    def sent(self, now: float) -> None:
        self.in_flight += 1

    def finished(self, ticket: Any, now: float, verdict: Verdict, *, latency: float) -> None:
        self.in_flight -= 1


def run(profile: Profile, contender: str = OURS, seed: int = 0) -> Figures:
    crawl = Run(profile, maker(contender), seed)
    crawl.run()
    return measure(crawl)


def test_the_same_seed_gives_the_same_run_and_another_another() -> None:
    profile = replace(profiles()["bucket-40-burst-10"], seconds=30)
    first, again, other = (Run(profile, maker(OURS), seed).run() for seed in (1, 1, 2))
    assert first == again
    assert first.accepted != other.accepted


def test_sampling_the_limits_changes_nothing() -> None:
    profile = replace(profiles()["at-once-4"], seconds=30)
    plain = Run(profile, maker(OURS), 0).run()
    sampled = Run(profile, maker(OURS), 0, recorded=True).run()
    assert sampled.sent == plain.sent
    assert len(sampled.limits) > 100


@pytest.mark.parametrize("limit", [1, 4, 20])
def test_the_oracle_gets_all_that_a_site_serves_at_once(limit: int) -> None:
    figures = run(Profile("", at_once(limit), seconds=60), ORACLE)
    assert figures.goodput >= 0.99
    assert figures.refusals == 0


def test_the_oracle_gets_all_of_a_bucket_that_bears_jitter() -> None:
    figures = run(Profile("", bucket(40, 10), seconds=60), ORACLE)
    assert figures.goodput >= 0.99
    assert figures.refusals == 0


def test_every_page_of_a_crawl_is_served() -> None:
    figures = run(Profile("", bucket(10, 10), pages=200))
    assert (figures.served, figures.lost) == (200, 0)
    assert figures.seconds == pytest.approx(19, abs=3)


def test_a_page_is_given_up_after_three_failures() -> None:
    crawl = Run(Profile("", lambda rng: Flaky(rng, 1.0), pages=10), Unlimited, 0)
    record = crawl.run()
    assert (record.lost, len(record.refused), len(record.accepted)) == (10, 30, 0)
    assert measure(crawl).goodput == 0


def test_what_is_never_answered_times_out() -> None:
    hole = Profile("", lambda rng: Trouble(at_once(5)(rng), 0, 10, None), seconds=20)
    record = Run(hole, Unlimited, 0).run()
    assert record.refused[:5] == [15.0] * 5
    assert record.accepted[0] > 15


def test_a_refused_page_waits_for_its_own_retry_after() -> None:
    profile = Profile("", bucket(0.1, 1, refusal=too_many(30.0)), pages=2)
    record = Run(profile, Unlimited, 0).run()
    assert record.sent[:2] == [0.0, 0.0]
    assert record.sent[2] >= 30.0


def test_hits_in_a_pause_are_early() -> None:
    profile = Profile("", at_once(1, refusal=too_many(2.0)), seconds=10)
    assert Run(profile, Unlimited, 0).run().early > 100
    assert run(profile).early == 0


def test_pages_are_sent_no_sooner_than_they_are_produced() -> None:
    profile = Profile("", at_once(10), seconds=20, production=Steps(20, (10, math.inf)))
    record = Run(profile, Unlimited, 0).run()
    assert sum(at < 10 for at in record.sent) == pytest.approx(200, abs=2)
    figures = run(profile, ORACLE)
    assert 0.98 <= figures.goodput <= 1.01


def test_crawlers_and_lanes_share_one_site() -> None:
    two = Run(Profile("", at_once(10), seconds=20, crawlers=2), maker(ORACLE), 0)
    record = two.run()
    assert record.shares == pytest.approx([1000, 1000], rel=0.01)
    assert measure(two).least_share == pytest.approx(0.5, abs=0.01)
    ten = Run(Profile("", at_once(20), seconds=20, lanes=10), maker(ORACLE), 0)
    assert ten.run().shares == [pytest.approx(4000, rel=0.01)]


def test_a_crawl_that_hammers_is_stopped() -> None:
    profile = Profile("", bucket(1, 1, refusal=BARE_503), seconds=600)
    record = Run(profile, Unlimited, 0, most=1000).run()
    assert len(record.sent) >= 1000
    assert record.end < 20
