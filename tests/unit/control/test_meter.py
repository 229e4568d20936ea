"""What a lane measures of itself."""

from __future__ import annotations

import math

import pytest

from scrapy_backpressure.control.meter import CREDIBLE, LoadMeter, RateMeter


def test_the_rate_is_measured_since_the_last_mark() -> None:
    meter = RateMeter(0.0)
    meter.accepted = 100
    meter.mark(10.0)
    meter.accepted = 150
    assert meter.rate(20.0) == pytest.approx((5.0, True))


def test_a_mark_too_few_accepts_ago_is_passed_over() -> None:
    meter = RateMeter(0.0)
    meter.accepted = 100
    meter.mark(10.0)
    assert meter.rate(10.001) == pytest.approx((10.05, False), rel=0.01)


def test_too_few_accepts_in_all_give_a_rate_that_is_no_more_than_a_guess() -> None:
    meter = RateMeter(0.0)
    meter.accepted = 3
    assert meter.rate(7.0) == pytest.approx((0.5, False))


def test_no_time_gives_no_rate() -> None:
    assert RateMeter(5.0).rate(5.0) == (math.inf, False)


def test_half_of_a_pause_counts_as_time() -> None:
    meter = RateMeter(0.0)
    meter.pause(9.0)
    meter.accepted = 12
    assert meter.rate(12.0) == pytest.approx((2.0, True))


def test_a_pause_before_the_mark_does_not_count() -> None:
    meter = RateMeter(0.0)
    meter.pause(9.0)
    meter.mark(10.0)
    meter.accepted = 12
    assert meter.rate(15.0) == pytest.approx((2.4, True))


def test_a_time_that_was_one_pause_gives_no_rate() -> None:
    meter = RateMeter(0.0)
    meter.pause(20.0)
    meter.accepted = 12
    assert meter.rate(12.0) == (math.inf, True)


def test_what_was_before_the_limit_moved_is_forgotten() -> None:
    meter = RateMeter(0.0)
    meter.accepted = 100
    meter.forget(10.0)
    meter.accepted = 103
    assert meter.rate(11.0) == pytest.approx((3.5, False))


def test_the_rate_since_an_outage_may_have_begun() -> None:
    meter = RateMeter(0.0)
    meter.accepted = 10
    meter.begin_outage(5.0)
    meter.accepted = 13
    assert meter.rate_since_outage(11.0, 3.0) == pytest.approx(0.5)


def test_an_outage_that_just_began_gives_no_rate() -> None:
    meter = RateMeter(0.0)
    meter.begin_outage(5.0)
    assert meter.rate_since_outage(5.0, 3.0) == 3.0


def test_a_cycle_gives_the_mean_of_service_and_outage() -> None:
    meter = RateMeter(0.0)
    meter.accepted = 10
    meter.end_cycle(50.0)
    meter.accepted = 110
    assert meter.end_cycle(150.0) == pytest.approx(1.0)


def test_a_cycle_with_few_accepts_says_nothing() -> None:
    meter = RateMeter(0.0)
    meter.accepted = CREDIBLE
    assert meter.end_cycle(60.0) == math.inf


def test_the_end_of_an_outage_is_a_mark() -> None:
    meter = RateMeter(0.0)
    meter.end_cycle(60.0)
    meter.accepted = 10
    assert meter.rate(70.0) == pytest.approx((1.0, True))


def test_what_was_under_way_at_a_refusal_counts_before_it() -> None:
    meter = RateMeter(0.0)
    meter.mark_refused(1.0, seq=10)
    for seq in range(5, 10):
        meter.accept(seq)
    for seq in range(11, 21):
        meter.accept(seq)
    assert meter.rate(2.0) == pytest.approx((10.0, True))


def test_what_will_be_accepted_counts_already() -> None:
    meter = RateMeter(0.0)
    meter.accepted, meter.pending = 6, 4
    assert meter.rate(1.0) == pytest.approx((10.0, True))


def test_what_was_under_way_at_a_refusal_is_no_longer_pending_after_it() -> None:
    meter = RateMeter(0.0)
    meter.pending = 4
    meter.mark_refused(1.0, seq=10)
    meter.accepted += 8
    assert meter.rate(2.0) == pytest.approx((8.0, True))


def test_two_marks_of_one_moment_are_one() -> None:
    meter = RateMeter(0.0)
    meter.forget(1.0)
    meter.mark_refused(1.0, seq=10)
    meter.accept(9)
    assert meter.rate(2.0, more=1.0) == pytest.approx((1.0, False))


def test_what_came_before_the_first_refusal_beyond_a_rate_was_saved_up() -> None:
    meter = RateMeter(0.0)
    meter.accepted = 12
    meter.forget(0.2)
    assert meter.beyond(10.0) == pytest.approx(10.0)


def crowding(load: int) -> float:
    """After refusals at this load, where 3 to 5 are usual."""
    meter = LoadMeter()
    for _ in range(5):
        for usual in (3, 4, 5) * 20:
            meter.accepted(usual)
        meter.refused(load)
    return meter.crowding


def test_refusals_at_the_usual_load_do_not_speak_for_concurrency() -> None:
    assert abs(crowding(4)) < 0.5


def test_refusals_above_the_usual_load_speak_for_concurrency() -> None:
    assert crowding(7) > 2


def test_refusals_below_the_usual_load_speak_against_it() -> None:
    assert crowding(1) < -2


def test_an_unusual_load_is_told_in_deviations() -> None:
    meter = LoadMeter()
    for _ in range(200):
        meter.accepted(4)
    assert meter.excess(7) == pytest.approx(4.0, rel=0.01)
