"""Hysteresis, and the mark that follows the throughput."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_backpressure.control.watermark import (
    AUTO_HIGH_MAX,
    AUTO_HIGH_MIN,
    Throughput,
    Watermark,
    auto_high,
)


@pytest.mark.parametrize(
    ("levels", "closed"),
    [
        ([9], [False]),
        ([10], [True]),
        ([10, 9, 6], [True, True, True]),
        ([10, 5], [True, False]),
        ([10, 5, 9, 10], [True, False, False, True]),
    ],
)
def test_closes_at_high_and_opens_at_low(levels: list[int], closed: list[bool]) -> None:
    mark = Watermark(10, 5)
    assert [mark.update(level) for level in levels] == closed


def test_moved_marks_hold_from_the_next_update_on() -> None:
    mark = Watermark(10, 5)
    assert mark.update(10)
    mark.set(40, 20)
    assert mark.closed
    assert not mark.update(10)


@given(st.lists(st.integers(0, 30), min_size=1))
def test_never_open_from_high_up_nor_closed_down_to_low(levels: list[int]) -> None:
    mark = Watermark(20, 10)
    for level in levels:
        closed = mark.update(level)
        assert closed or level < 20
        assert not closed or level > 10


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(0.0, AUTO_HIGH_MIN), (1.0, AUTO_HIGH_MIN), (10.0, 1200), (1000.0, AUTO_HIGH_MAX)],
)
def test_automatic_high_holds_the_seconds_of_work_within_bounds(
    rate: float, expected: int
) -> None:
    assert auto_high(rate, 120.0) == expected


def test_throughput_is_unknown_before_two_samples() -> None:
    assert Throughput().update(100.0, 5) == 0.0


def test_first_interval_counts_in_full() -> None:
    throughput = Throughput()
    throughput.update(0.0, 0)
    assert throughput.update(2.0, 20) == 10.0


def test_throughput_follows_a_lasting_change() -> None:
    throughput = Throughput(span=30.0)
    count = 0
    for second in range(200):
        throughput.update(float(second), count)
        count += 10 if second < 50 else 2
    assert throughput.rate == pytest.approx(2.0, rel=0.1)


def test_clock_that_stands_still_changes_nothing() -> None:
    throughput = Throughput()
    throughput.update(0.0, 0)
    throughput.update(1.0, 10)
    assert throughput.update(1.0, 50) == 10.0


@given(st.lists(st.tuples(st.floats(0.01, 100), st.integers(0, 1000)), max_size=50))
def test_throughput_stays_among_the_rates_it_has_seen(steps: list[tuple[float, int]]) -> None:
    throughput = Throughput()
    now, count = 0.0, 0
    throughput.update(now, count)
    rates = [0.0]
    for elapsed, answers in steps:
        before = now
        now, count = now + elapsed, count + answers
        rates.append(answers / (now - before))
        assert min(rates) - 1e-6 <= throughput.update(now, count) <= max(rates) * (1 + 1e-9)
