"""How figures are read from what happened."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from benchmarks.virtual.contenders import ORACLE, OURS, maker
from benchmarks.virtual.crawl import Run
from benchmarks.virtual.figures import (
    Truth,
    as_json,
    measure,
    seconds_to_fall,
    seconds_to_reach,
    summary,
)
from benchmarks.virtual.profiles import Profile, at_once, bucket
from benchmarks.virtual.sites import Bucket, Steps


def truth(rate: Steps) -> Truth:
    profile = Profile("", lambda rng: Bucket(rng, rate, Steps(1)))
    return Truth(profile, profile.site(random.Random(0)))


def even(rate: float, since: float, until: float) -> list[float]:
    return [since + (i + 1) / rate for i in range(round(rate * (until - since)))]


def test_a_capacity_is_reached_when_half_a_second_has_nine_tenths_of_it() -> None:
    times = [*even(50, 0, 3), *even(100, 3, 10)]
    assert seconds_to_reach(times, truth(Steps(100))) == pytest.approx(3.4, abs=0.05)


def test_a_slow_capacity_is_judged_by_five_requests() -> None:
    assert seconds_to_reach(even(0.5, 0, 60), truth(Steps(0.5))) == pytest.approx(10)


def test_a_capacity_that_was_never_reached() -> None:
    assert seconds_to_reach(even(80, 0, 60), truth(Steps(100))) == math.inf


def test_a_step_up_counts_from_the_step() -> None:
    changing = truth(Steps(10, (20, 100)))
    times = [*even(10, 0, 25), *even(100, 25, 40)]
    assert seconds_to_reach(times, changing, since=20.0) == pytest.approx(5.44, abs=0.05)


def test_a_fall_is_over_when_what_is_sent_next_keeps_to_the_new_capacity() -> None:
    changing = truth(Steps(100, (20, 10)))
    times = [*even(100, 0, 22), *even(10, 22, 40)]
    assert seconds_to_fall(times, changing, 20.0, 40.0) == pytest.approx(2.0, abs=0.15)
    assert seconds_to_fall(even(10, 0, 40), changing, 20.0, 40.0) == 0
    assert seconds_to_fall(even(100, 0, 40), changing, 20.0, 40.0) == math.inf


def test_the_time_of_a_perfect_client() -> None:
    profile = Profile("", bucket(10, 5), pages=105)
    perfect = Truth(profile, profile.site(random.Random(0)))
    assert perfect.pages(10) == pytest.approx(104)
    # A bucket of five lets four go beside the rate, and the last answer takes its time.
    assert perfect.time_for(104) == pytest.approx(10.1, abs=0.01)


def test_too_few_pages_show_no_capacity() -> None:
    for pages, applies in ((30, False), (60, True)):
        crawl = Run(Profile("", at_once(10), pages=pages), maker(ORACLE), 0)
        crawl.run()
        assert (measure(crawl).to_90 is not None) is applies


def test_medians_and_worst_of_the_seeds() -> None:
    crawl = Run(Profile("", at_once(4), seconds=10), maker(OURS), 0)
    crawl.run()
    one = replace(measure(crawl), goodput=0.9, early=0, to_90=1.0)
    runs = [one, replace(one, goodput=0.5, early=2), replace(one, goodput=0.8, to_90=math.inf)]
    row = summary("p", OURS, runs)
    assert (row.median.goodput, row.median.early, row.median.to_90) == (0.8, 0, 1.0)
    assert (row.worst.goodput, row.worst.early, row.worst.to_90) == (0.5, 2, math.inf)
    assert row.median.up is None
    assert as_json(row.worst)["to_90"] is None
    assert "up" not in as_json(row.worst)
