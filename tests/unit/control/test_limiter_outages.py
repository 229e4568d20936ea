"""The two caps when the site pauses us, serves nothing, or does not answer."""

from __future__ import annotations

import math

import pytest

from scrapy_backpressure.control.limiter import Limiter
from tests.unit.control.drive import CEILING, Drive

# -- pauses that were asked for ----------------------------------------------------------------


def rate_after(pause: float) -> float:
    """After a hundred seconds of which so many were a pause, and a refusal then."""
    drive = Drive()
    for _ in range(10):
        drive.round()
    drive.limiter.restore((True, 5.0), drive.now)
    drive.limiter.unhindered(drive.now)
    for _ in range(100):
        drive.now += 1
        drive.accept(drive.send())
    drive.limiter.paused(pause, longer=pause)
    drive.refuse(drive.send())
    return drive.limiter.rate


def test_time_that_was_paused_is_not_held_against_the_rate() -> None:
    assert rate_after(80.0) > 1.5 * rate_after(0.0)


# -- outages -----------------------------------------------------------------------------------


def test_refusals_with_nothing_accepted_between_are_counted() -> None:
    drive = Drive(start=2)
    drive.silence(4)
    assert drive.limiter.starved == 3


def test_requests_that_were_never_sent_hide_no_fruitless_try() -> None:
    drive = Drive(start=2)
    drive.silence(1)
    for _ in range(3):
        for ticket in drive.send(2):
            drive.limiter.cancelled(ticket)
        drive.silence(1)
    assert drive.limiter.starved == 3


def test_an_accept_ends_the_count_of_fruitless_tries() -> None:
    drive = Drive(start=2)
    drive.silence(3)
    drive.accept(drive.send())
    assert drive.limiter.starved == 0


def test_an_accept_during_a_new_start_ends_the_count_too() -> None:
    drive = Drive()
    drive.silence(4)
    drive.accept(drive.send())  # the new start
    drive.now += 1
    drive.refuse(drive.send(2)[1:])  # crowded: starting still
    drive.silence(1)
    drive.accept(drive.send())
    assert drive.limiter.starved == 0


def test_one_fruitless_try_is_no_outage() -> None:
    drive = Drive()
    for _ in range(10):
        drive.round()
    drive.silence(2)
    drive.accept(drive.send())
    assert drive.limiter.caps[1] > 8


def test_starts_anew_after_an_outage_instead_of_creeping() -> None:
    drive = Drive()
    drive.silence()
    for _ in range(40):
        drive.round()
    assert (drive.limiter.rate, drive.limiter.concurrency) == (math.inf, CEILING)


def test_starts_with_one_at_a_time_after_an_outage() -> None:
    drive = Drive()
    for _ in range(10):
        drive.round()
    drive.silence()
    drive.accept(drive.send())
    assert drive.limiter.concurrency == 1


def test_a_refusal_during_the_new_start_gives_the_rate_since_the_first_cut() -> None:
    drive = Drive(start=1)
    drive.silence(4)
    for _ in range(2):
        drive.accept(drive.send())
        drive.now += 0.5
    drive.refuse(drive.send())
    assert 0.3 < drive.limiter.rate <= 4.0


def test_a_refusal_before_any_time_has_passed_leaves_the_rate_that_got_through() -> None:
    drive = Drive()
    for _ in range(3):
        drive.refuse(drive.send())
    drive.accept(drive.send())  # the new start
    drive.refuse(drive.send())
    assert drive.limiter.rate == pytest.approx(10.0, rel=0.02)


def windows(count: int) -> Drive:
    """Windows of a minute, in the first tenth of which sixty are served, and one of the next."""
    drive = Drive()
    for _ in range(count):
        for _ in range(60):
            drive.accept(drive.send())
            drive.now += 0.1
        drive.silence(54)
    drive.accept(drive.send())
    return drive


def test_a_long_silence_slows_the_new_start_down_no_further() -> None:
    drive = windows(1)
    for _ in range(20):
        drive.round()
    assert drive.limiter.rate == math.inf


def test_a_second_long_silence_is_taken_for_the_rest_of_a_window() -> None:
    drive = windows(2)
    for _ in range(20):
        drive.round()
    assert drive.limiter.caps == pytest.approx((True, 1.0), rel=0.02)


# -- lost requests -----------------------------------------------------------------------------


def lose(drive: Drive, count: int) -> Limiter:
    for ticket in drive.send(count):
        drive.limiter.lost(ticket, drive.now)
    return drive.limiter


def test_a_single_lost_request_changes_nothing() -> None:
    assert lose(Drive(start=16), 1).concurrency == 16


def test_many_lost_requests_cut_a_quarter_once_a_round_trip() -> None:
    assert lose(Drive(start=16), 16).concurrency == pytest.approx(12, rel=0.02)


def test_a_few_lost_among_many_accepted_change_nothing() -> None:
    drive = Drive(start=16)
    for _ in range(50):
        lose(drive, 1)
        drive.accept(drive.send(9))
    assert not drive.limiter.has_cut


def test_lost_requests_bring_no_rate_where_there_was_none() -> None:
    assert lose(Drive(start=16), 16).rate == math.inf


def test_many_lost_requests_cut_a_tight_rate_by_a_quarter() -> None:
    assert lose(Drive(seen=(True, 8.0)), 4).caps == (True, 6.0)


def test_lost_requests_never_raise_a_tight_rate() -> None:
    drive = Drive()
    for _ in range(30):
        drive.round()
    drive.limiter.restore((True, 5.0), drive.now)
    rates = [lose(drive, 4).rate for _ in range(4)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 5.0


def test_lost_requests_never_cut_below_the_minimum() -> None:
    drive = Drive(start=4, minimum=3)
    for _ in range(10):
        lose(drive, 4)
    assert drive.limiter.concurrency == 3
