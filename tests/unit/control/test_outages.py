"""Where a lane that starts anew stops growing."""

from __future__ import annotations

import math

import pytest

from scrapy_backpressure.control.outages import LONG_SILENCE, Outages


def good_before(concurrency: float = 10.0, rate: float = 5.0) -> Outages:
    outages = Outages()
    outages.remember(concurrency, rate)
    return outages


def ended(
    outages: Outages, *, refusals: int = LONG_SILENCE, cycle: float = 1.0, least: float = 1.0
) -> tuple[float, float]:
    return outages.ended(refusals, cycle=cycle, least=least)


def test_where_nothing_is_known_growth_does_not_end() -> None:
    assert ended(Outages()) == (math.inf, math.inf)


def test_what_was_good_before_is_where_growth_ends() -> None:
    assert ended(good_before(10.0, 5.0)) == (10.0, 5.0)


def test_what_is_good_in_any_case_is_grown_to() -> None:
    assert ended(good_before(3.0), least=4.0)[0] == 4.0


def test_one_long_silence_does_not_come_in_turns() -> None:
    outages = good_before()
    ended(outages)
    assert not outages.in_turns


def test_a_second_long_silence_comes_in_turns() -> None:
    outages = good_before()
    ended(outages)
    ended(outages)
    assert outages.in_turns


def test_short_silences_do_not_come_in_turns() -> None:
    outages = good_before()
    for _ in range(5):
        ended(outages, refusals=LONG_SILENCE - 1)
    assert not outages.in_turns


@pytest.mark.parametrize(("cycle", "rate"), [(1.0, 1.0), (9.0, 5.0), (math.inf, 5.0)])
def test_silences_in_turns_leave_the_mean_of_a_cycle(cycle: float, rate: float) -> None:
    outages = good_before(rate=5.0)
    ended(outages)
    assert ended(outages, cycle=cycle)[1] == rate
