"""When the next request is due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_backpressure.control.pacer import SLACK, SLACK_SHARE, Pacer, Ticket


def send(pacer: Pacer, now: float, interval: float = 1.0, *, by_rate: bool = True) -> Ticket:
    ticket = Ticket(1, now, 1)
    pacer.sent(ticket, interval, by_rate=by_rate)
    return ticket


def started(at: float = 10.0) -> Pacer:
    pacer = Pacer()
    send(pacer, at)
    return pacer


def test_the_first_request_is_due_at_once() -> None:
    assert Pacer().due(1.0) < 0.0


def test_the_next_request_is_due_one_interval_later() -> None:
    assert started().due(1.0) == pytest.approx(11.0)


def test_a_slightly_late_request_does_not_shift_those_after_it() -> None:
    pacer = started()
    send(pacer, 11.004)
    assert pacer.due(1.0) == pytest.approx(12.0)


def test_a_very_late_request_earns_no_burst() -> None:
    pacer = started()
    send(pacer, 20.0)
    assert pacer.due(1.0) == pytest.approx(21.0)


def test_a_pace_that_is_no_limit_makes_up_for_half_an_interval() -> None:
    pacer = started()
    send(pacer, 20.0, by_rate=False)
    assert pacer.due(1.0) == pytest.approx(20.5)


def test_pace_that_was_taken_back_is_free_again() -> None:
    pacer = started()
    pacer.take_back(send(pacer, 11.0))
    assert pacer.due(1.0) == pytest.approx(11.0)


def test_held_pace_goes_on_from_the_time_told() -> None:
    pacer = started()
    pacer.hold_until(15.0)
    assert pacer.due(1.0) == pytest.approx(16.0)


def test_a_hold_in_the_past_changes_nothing() -> None:
    pacer = started()
    pacer.hold_until(5.0)
    assert pacer.due(1.0) == pytest.approx(11.0)


# -- what a ticket tells -----------------------------------------------------------------------


def test_a_request_as_soon_as_the_rate_allows_is_paced() -> None:
    assert send(started(), 11.0).paced


def test_a_request_long_after_it_was_due_is_not_paced() -> None:
    assert not send(started(), 12.0).paced


def test_a_request_that_no_rate_holds_back_is_not_paced() -> None:
    assert not send(started(), 11.0, by_rate=False).paced


def test_a_request_that_makes_up_for_lateness_is_hurried() -> None:
    pacer = started()
    send(pacer, 11.05, interval=1.0)
    send(pacer, 12.0, interval=1.0)
    assert send(pacer, 12.5, interval=1.0).hurried


def test_a_request_a_whole_interval_later_is_not_hurried() -> None:
    assert not send(started(), 11.0).hurried


def test_the_time_since_the_request_before_is_told() -> None:
    assert send(started(), 13.0).waited == pytest.approx(3.0)


# -- being late --------------------------------------------------------------------------------


def late_by(seconds: float, *, times: int = 100) -> Pacer:
    """A pacer whose requests all went so much later than they were due."""
    pacer = started()
    for _ in range(times):
        send(pacer, pacer.due(1.0) + seconds)
    return pacer


def test_lateness_that_is_not_made_up_for_is_measured() -> None:
    assert late_by(0.05).late == pytest.approx(0.05, rel=0.01)


def test_lateness_that_is_made_up_for_is_none() -> None:
    assert late_by(0.004).late == 0.0


def test_lateness_of_long_ago_is_forgotten() -> None:
    pacer = late_by(0.05)
    for _ in range(100):
        send(pacer, pacer.due(1.0))
    assert pacer.late < 0.001


def test_time_in_which_nothing_was_asked_is_no_lateness() -> None:
    assert late_by(10.0).late == 0.0


def refused(pacer: Pacer, *, hurried: bool, times: int = 1) -> None:
    ticket = Ticket(1, 0.0, 1)
    ticket.hurried = hurried
    for _ in range(times):
        pacer.refused(ticket)


def test_where_haste_is_refused_less_is_made_up_for() -> None:
    pacer = started()
    refused(pacer, hurried=True)
    send(pacer, 11.004)
    assert pacer.due(1.0) == pytest.approx(12.004)


def test_where_haste_is_refused_a_pace_that_is_no_limit_makes_up_for_less_too() -> None:
    pacer = started()
    refused(pacer, hurried=True)
    send(pacer, 20.0, by_rate=False)
    assert pacer.due(1.0) == pytest.approx(20.75)


def test_where_others_are_refused_haste_is_allowed_again() -> None:
    pacer = started()
    refused(pacer, hurried=True)
    refused(pacer, hurried=False)
    send(pacer, 11.004)
    assert pacer.due(1.0) == pytest.approx(12.0)


def test_a_little_is_made_up_for_in_any_case() -> None:
    pacer = started()
    refused(pacer, hurried=True, times=50)
    send(pacer, 11.0003)
    assert pacer.due(1.0) == pytest.approx(12.0)


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.01, 2.0), st.booleans()), max_size=100))
def test_requests_that_are_sent_when_due_never_come_faster_than_the_slack(
    requests: list[tuple[float, float, bool]],
) -> None:
    pacer, last = Pacer(), 0.0
    send(pacer, 0.0)
    for wait, interval, hurried in requests:
        now = max(last, pacer.due(interval)) + wait
        send(pacer, now, interval)
        assert now - last >= interval - min(SLACK_SHARE * interval, SLACK) - 1e-9 or (
            interval > 1.0  # the request before was of a shorter interval: none is owed
        )
        refused(pacer, hurried=hurried)
        last = now
