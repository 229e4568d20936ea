"""What a lane measures of itself."""

from __future__ import annotations

import pytest

from scrapy_backpressure.control.meter import LoadMeter, RateMeter


def test_the_rate_is_measured_since_the_last_mark() -> None:
    meter = RateMeter(0.0)
    meter.accepted = 100
    meter.mark(10.0)
    meter.accepted = 150
    assert meter.rate(20.0) == pytest.approx(5.05)


def test_a_mark_too_few_accepts_ago_is_passed_over() -> None:
    meter = RateMeter(0.0)
    meter.accepted = 100
    meter.mark(10.0)
    assert meter.rate(10.001) == pytest.approx(10.05, rel=0.01)


def test_half_of_a_pause_counts_as_time() -> None:
    meter = RateMeter(0.0)
    meter.pause(9.0)
    meter.accepted = 12
    assert meter.rate(12.0) == pytest.approx(12.5 / 6.0)


def test_refusals_at_the_usual_load_do_not_speak_for_concurrency() -> None:
    meter = LoadMeter()
    for _ in range(5):
        for load in (3, 4, 5) * 20:
            meter.accepted(load)
        meter.refused(4)
    assert abs(meter.crowding) < 0.5


def test_refusals_above_the_usual_load_speak_for_concurrency() -> None:
    meter = LoadMeter()
    for _ in range(5):
        for load in (3, 4, 5) * 20:
            meter.accepted(load)
        meter.refused(7)
    assert meter.crowding > 2
