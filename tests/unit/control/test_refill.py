"""Whether a quota is seen to refill."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_backpressure.control.refill import SPAN, Refill

LIMIT = 10


def exchange(refill: Refill, left: float, now: float, *, same_window: bool = True) -> None:
    """One request alone, after whose answer so many are left."""
    refill.sent()
    refill.served()
    refill.told(left, LIMIT, now, 0, same_window=same_window)


def steady(refill: Refill, *, left: float = 5, count: int = 3 * SPAN, pace: float = 4.0) -> None:
    """Requests after each of which as many are left."""
    for number in range(count):
        exchange(refill, left, number / pace)


def test_nothing_is_believed_to_begin_with() -> None:
    assert Refill().rate == 0


def test_what_stays_the_same_while_requests_are_served_refills_at_their_pace() -> None:
    refill = Refill()
    steady(refill, pace=4.0)
    assert refill.rate == pytest.approx(4.0, rel=0.06)


def test_a_few_answers_prove_no_refill() -> None:
    refill = Refill()
    steady(refill, count=SPAN)
    assert refill.rate == 0


def test_what_is_full_each_time_may_be_a_new_window() -> None:
    refill = Refill()
    steady(refill, left=LIMIT - 1)
    assert refill.rate == 0


def test_answers_of_different_windows_prove_no_refill() -> None:
    refill = Refill()
    for number in range(3 * SPAN):
        exchange(refill, 5, float(number), same_window=False)
    assert refill.rate == 0


def test_a_refusal_ends_the_belief() -> None:
    refill = Refill()
    steady(refill)
    refill.refused()
    assert refill.rate == 0


def test_a_measured_rate_follows_the_refill() -> None:
    refill = Refill()
    steady(refill, pace=4.0)
    for number in range(2 * SPAN):
        exchange(refill, 5, 3 * SPAN / 4.0 + number / 2.0)
    assert refill.rate == pytest.approx(2.0, rel=0.06)


@given(
    limit=st.integers(1, 50),
    pauses=st.lists(st.floats(0.0, 3.0), max_size=200),
    length=st.floats(0.5, 30.0),
)
def test_a_fixed_window_is_never_seen_to_refill(
    limit: int, pauses: list[float], length: float
) -> None:
    refill, now, window, used = Refill(), 0.0, 0, 0
    for pause in pauses:
        now += pause
        if int(now / length) != window:
            window, used = int(now / length), 0
        if used < limit:
            used += 1
            refill.sent()
            refill.served()
            refill.told(limit - used, limit, now, 0, same_window=True)
    assert refill.rate == 0
