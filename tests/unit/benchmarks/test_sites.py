"""The model sites: each limits, bans and fails as it is told."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest

from benchmarks.virtual.sites import (
    ACCEPTED,
    BARE_503,
    TOO_MANY,
    AtOnce,
    Bucket,
    Flaky,
    Queueing,
    Site,
    Steps,
    Trouble,
    Window,
    too_many,
)
from scrapy_backpressure.control.outcome import Outcome


def rng() -> random.Random:
    return random.Random(1)


def served(site: Site, times: Iterable[float]) -> int:
    return sum(site.answer(at)[1].outcome is Outcome.ACCEPTED for at in times)


def every(interval: float, seconds: float) -> list[float]:
    return [i * interval for i in range(round(seconds / interval))]


def test_at_once_serves_so_many_and_refuses_the_rest() -> None:
    assert served(AtOnce(rng(), Steps(4)), [0.0] * 10) == 4


def test_at_once_serves_again_when_places_are_free() -> None:
    site = AtOnce(rng(), Steps(4))
    served(site, [0.0] * 10)
    assert served(site, [0.05] * 10) == 0
    assert served(site, [0.11] * 10) == 4


def test_a_bucket_serves_its_burst_and_then_its_rate() -> None:
    site = Bucket(rng(), Steps(10), Steps(5))
    assert served(site, every(0.01, 20)) == pytest.approx(5 + 10 * 20, abs=1)


def test_a_limit_changes_when_it_is_told_to() -> None:
    site = Bucket(rng(), Steps(10, (20, 2)), Steps(2))
    assert served(site, every(0.01, 20)) == pytest.approx(200, abs=3)
    assert served(site, [20 + at for at in every(0.01, 20)]) == pytest.approx(40, abs=3)


def test_each_hit_restarts_a_ban() -> None:
    site = Bucket(rng(), Steps(1), Steps(1), ban=3.0, refusal=too_many(3.0))
    assert served(site, [0.0, 0.1, 3.0, 5.9, 8.8]) == 1
    assert served(site, [11.9]) == 1


def test_a_ban_tells_how_long_it_lasts() -> None:
    site = Bucket(rng(), Steps(1), Steps(1), ban=3.0, refusal=too_many(3.0))
    site.answer(0.0)
    assert site.answer(0.1)[1].pause == 3.0


def test_a_window_opens_with_the_first_request_after_the_last_one() -> None:
    site = Window(rng(), 60, 60.0, headers=False)
    assert served(site, [5.0] * 100) == 60
    assert served(site, [64.9] * 100) == 0
    assert served(site, [70.0] * 100) == 60
    assert served(site, [129.9] * 100) == 0


def test_a_window_tells_what_is_left_in_whole_seconds() -> None:
    site = Window(rng(), 60, 60.0, headers=True)
    site.answer(0.0)
    quota = site.answer(0.5)[1].quota
    assert quota is not None
    assert (quota.limit, quota.remaining, quota.reset) == (60, 58, 60)


def test_a_queueing_site_gets_slower_and_never_refuses() -> None:
    site = Queueing(rng(), 5)
    waits = [site.answer(0.0)[0] for _ in range(50)]
    assert waits[0] == pytest.approx(0.09, rel=0.12)
    assert max(waits) == pytest.approx(10 * 0.09, rel=0.05)


def test_a_flaky_site_fails_at_random() -> None:
    site = Flaky(rng(), 0.05)
    assert served(site, [0.0] * 4000) == pytest.approx(3800, abs=50)


def test_slow_answers_keep_their_share() -> None:
    site = AtOnce(rng(), Steps(1000), seconds=0.05, slow=0.3, slow_seconds=2.0)
    waits = [site.answer(0.0)[0] for _ in range(100)]
    assert sum(wait > 1 for wait in waits) == 30
    assert site.mean_latency == pytest.approx(0.635)


@pytest.mark.parametrize("verdict", [BARE_503, TOO_MANY])
def test_trouble_answers_all_alike_while_it_lasts(verdict: object) -> None:
    site = Trouble(AtOnce(rng(), Steps(20)), 10, 15, verdict)  # type: ignore[arg-type]
    assert [site.answer(at)[1] for at in (9.9, 10, 14.9, 15)] == [
        ACCEPTED,
        verdict,
        verdict,
        ACCEPTED,
    ]


def test_a_black_hole_never_answers() -> None:
    site = Trouble(AtOnce(rng(), Steps(20)), 10, 15, None)
    assert site.answer(12)[0] == math.inf


def test_capacity_is_what_a_perfect_client_would_get() -> None:
    assert AtOnce(rng(), Steps(20)).capacity(0, 64) == pytest.approx(200)
    assert AtOnce(rng(), Steps(20)).capacity(0, 5) == pytest.approx(50)
    assert Bucket(rng(), Steps(3), Steps(9)).pages(100, 64) == pytest.approx(308)
    assert Window(rng(), 60, 60.0, headers=False).pages(90, 64) == 120
    assert Trouble(AtOnce(rng(), Steps(20)), 10, 15, None).pages(20, 64) == pytest.approx(3000)
