"""The breaker: when nothing may be sent to a site that only fails."""

from __future__ import annotations

import math

import pytest

from scrapy_backpressure.control.breaker import Breaker


def fail(breaker: Breaker, times: int, *, start: float = 0.0, answered: bool = False) -> float:
    """Fail one request after the other, a tenth of a second each; the time afterwards."""
    now = start
    for _ in range(times):
        breaker.failed(sent_at=now, now=now + 0.1, answered=answered)
        now += 0.1
    return now


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker(probe_timeout=60.0)
    fail(breaker, 5, start=now - 0.5)
    return breaker


def test_stays_closed_while_requests_succeed() -> None:
    breaker = Breaker()
    for i in range(100):
        breaker.succeeded(sent_at=i, now=i + 0.5)
    assert breaker.ready_at(100.0) == 100.0


def test_opens_after_five_failures_in_a_row() -> None:
    breaker = Breaker()
    fail(breaker, 5)
    assert breaker.is_open


def test_stays_closed_after_four_failures_in_a_row() -> None:
    breaker = Breaker()
    fail(breaker, 4)
    assert not breaker.is_open


def test_failures_of_requests_under_way_together_are_one_in_the_row() -> None:
    breaker = Breaker()
    for i in range(20):  # enough good answers that the share stays low
        breaker.succeeded(sent_at=0.0, now=i / 100)
    for i in range(8):
        breaker.failed(sent_at=0.5, now=1.0 + i / 100)
    assert not breaker.is_open


def test_opens_when_half_of_ten_answers_failed() -> None:
    breaker = Breaker()
    for i in range(5):
        breaker.succeeded(sent_at=i, now=i + 0.1)
        breaker.failed(sent_at=i, now=i + 0.2)
    assert breaker.is_open


def test_answers_older_than_the_window_do_not_count() -> None:
    breaker = Breaker()
    for i in range(4):
        breaker.failed(sent_at=0.0, now=0.1 + i / 100)
    for i in range(6):
        breaker.succeeded(sent_at=40.0, now=40.1 + i)
    breaker.failed(sent_at=46.0, now=46.1)
    assert not breaker.is_open


def test_only_the_latest_of_very_many_answers_count() -> None:
    breaker = Breaker()
    for i in range(1000):  # a fast lane: all within the window
        breaker.succeeded(sent_at=0.0, now=i / 1000)
    for i in range(128):
        breaker.failed(sent_at=0.0, now=1.0 + i / 1000)
    assert breaker.is_open


def test_failures_that_may_be_throttling_do_not_count_in_the_share() -> None:
    breaker = Breaker()
    for i in range(20):
        breaker.succeeded(sent_at=i, now=i + 0.1)
        breaker.failed(sent_at=i, now=i + 0.2, in_row_only=True)
    assert not breaker.is_open


def test_nothing_is_sent_while_open() -> None:
    breaker = opened()
    assert breaker.ready_at(1.0) == pytest.approx(5.0)


def test_lets_one_probe_through_at_a_time() -> None:
    breaker = opened()
    breaker.sent(6.0)
    assert breaker.ready_at(6.1) > 6.1


def test_a_probe_that_never_returns_does_not_block_for_ever() -> None:
    breaker = opened()
    breaker.sent(6.0)
    assert breaker.ready_at(66.0) == 66.0


def test_a_cancelled_probe_makes_room_for_the_next() -> None:
    breaker = opened()
    breaker.sent(6.0)
    breaker.cancelled(sent_at=6.0)
    assert breaker.ready_at(6.1) == 6.1


def test_a_cancelled_request_that_was_no_probe_leaves_the_probe_under_way() -> None:
    breaker = opened()
    breaker.sent(6.0)
    breaker.cancelled(sent_at=4.0)
    assert breaker.ready_at(6.1) > 6.1


def test_without_a_timeout_a_lost_probe_does_not_block_for_ever() -> None:
    breaker = Breaker(probe_timeout=math.inf)
    now = fail(breaker, 5) + 5.0
    breaker.sent(now)
    assert breaker.ready_at(now + 1.0) == pytest.approx(now + 300.0)


def test_three_good_probes_close_it() -> None:
    breaker = opened()
    for now in (6.0, 7.0, 8.0):
        breaker.sent(now)
        breaker.succeeded(sent_at=now, now=now + 0.1)
    assert not breaker.is_open


def test_two_good_probes_leave_it_half_open() -> None:
    breaker = opened()
    for now in (6.0, 7.0):
        breaker.sent(now)
        breaker.succeeded(sent_at=now, now=now + 0.1)
    assert breaker.is_open


def test_a_failed_probe_doubles_the_wait() -> None:
    breaker = opened()
    breaker.sent(6.0)
    breaker.failed(sent_at=6.0, now=6.5)
    assert breaker.ready_at(7.0) == pytest.approx(16.5)


def test_the_wait_never_passes_five_minutes() -> None:
    breaker = opened()
    now = 5.0
    for _ in range(12):
        now = breaker.ready_at(now)
        breaker.sent(now)
        breaker.failed(sent_at=now, now=now)
    assert breaker.ready_at(now) - now == pytest.approx(300.0)


def test_late_successes_of_older_requests_do_not_close_it() -> None:
    breaker = opened()
    for _ in range(3):
        breaker.succeeded(sent_at=-1.0, now=4.0)
    assert breaker.is_open


def test_a_failed_probe_starts_the_count_of_good_ones_anew() -> None:
    breaker = opened()
    for now in (6.0, 7.0):
        breaker.sent(now)
        breaker.succeeded(sent_at=now, now=now + 0.1)
    breaker.sent(8.0)
    breaker.failed(sent_at=8.0, now=8.1)
    breaker.succeeded(sent_at=20.0, now=20.1)
    assert breaker.is_open


def test_the_wait_is_short_again_after_it_closed() -> None:
    breaker = opened()
    breaker.failed(sent_at=6.0, now=6.1)
    for now in (20.0, 21.0, 22.0):
        breaker.succeeded(sent_at=now, now=now + 0.1)
    now = fail(breaker, 5, start=30.0)
    assert breaker.ready_at(now) == pytest.approx(now + 5.0)


def test_a_request_that_is_sent_while_it_is_open_is_no_probe() -> None:
    breaker = opened()
    breaker.sent(1.0)
    assert breaker.ready_at(5.5) == 5.5


def test_late_failures_of_older_requests_do_not_lengthen_the_wait() -> None:
    breaker = opened()
    breaker.failed(sent_at=-1.0, now=4.0)
    assert breaker.ready_at(4.5) == pytest.approx(5.0)


def test_failures_that_are_forgotten_do_not_count() -> None:
    breaker = Breaker()
    for i in range(9):
        breaker.failed(sent_at=0.0, now=1.0 + i / 100)
    breaker.forget()
    breaker.failed(sent_at=2.0, now=2.1)
    assert not breaker.is_open


def test_forgetting_failures_does_not_close_it() -> None:
    breaker = opened()
    breaker.forget()
    assert breaker.is_open


# -- answers that are errors -------------------------------------------------------------------


def test_nine_errors_in_a_row_may_be_broken_pages() -> None:
    breaker = Breaker()
    fail(breaker, 9, answered=True)
    assert not breaker.is_open


def test_ten_errors_in_a_row_open_it_for_a_second() -> None:
    breaker = Breaker()
    now = fail(breaker, 10, answered=True)
    assert breaker.ready_at(now) == pytest.approx(now + 1.0)


def test_a_share_of_errors_does_not_open_it() -> None:
    breaker = Breaker()
    for turn in range(40):
        now = 0.1 * turn
        if turn % 4:
            breaker.failed(sent_at=now, now=now + 0.05, answered=True)
        else:
            breaker.succeeded(sent_at=now, now=now + 0.05)
    assert not breaker.is_open


def test_errors_in_answer_to_probes_do_not_lengthen_the_wait() -> None:
    breaker = Breaker()
    now = fail(breaker, 10, answered=True)
    for _ in range(5):
        now = breaker.ready_at(now)
        breaker.sent(now)
        breaker.failed(sent_at=now, now=now, answered=True)
    assert breaker.ready_at(now) == pytest.approx(now + 1.0)


def test_one_success_ends_a_row_of_errors() -> None:
    breaker = Breaker()
    now = breaker.ready_at(fail(breaker, 10, answered=True))
    breaker.sent(now)
    breaker.succeeded(sent_at=now, now=now + 0.1)
    assert not breaker.is_open
