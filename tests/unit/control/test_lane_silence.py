"""What a lane learns from answers that sat through a silence of the site."""

from __future__ import annotations

from scrapy_backpressure.control.lane import Lane
from tests.unit.control.lanes import LATENCY, exchange, finish, make, pour


def answered_once(*, start: float) -> Lane:
    """A lane to a site that answers at once, now silent since 0.1 s."""
    lane = make(start=start)
    exchange(lane, 0.0)
    return lane


def frozen(seconds: float) -> tuple[Lane, float]:
    """A lane whose site froze with many requests under way, and then served all; the time."""
    lane = answered_once(start=40)
    tickets = pour(lane, 0.1, 1.0)
    now = 0.1 + seconds
    for ticket in tickets:
        finish(lane, ticket, now)
    return lane, now


def test_answers_that_sat_through_a_silence_do_not_slow_the_pace() -> None:
    lane, now = frozen(60.0)
    lane.sent(now)
    assert lane.ready_at(now) < now + 0.01


def test_answers_to_requests_that_were_given_up_do_not_slow_the_pace() -> None:
    lane = answered_once(start=40)
    tickets = pour(lane, 0.1, 1.0)
    finish(lane, lane.sent(60.0), 60.1)
    for ticket in tickets:
        finish(lane, ticket, 60.1)
    lane.sent(60.1)
    assert lane.ready_at(60.1) < 60.1 + 0.01


def test_requests_after_a_silence_are_learned_from_again() -> None:
    lane, now = frozen(60.0)
    before = lane.concurrency
    for ticket in pour(lane, now, LATENCY):
        finish(lane, ticket, ticket.sent_at + LATENCY)
    assert lane.concurrency > before


def test_a_site_that_has_become_slow_is_found_to_be() -> None:
    lane, now = answered_once(start=4), 0.1
    for _ in range(40):
        tickets = pour(lane, now, 1.0)
        now = tickets[-1].sent_at + 6.0
        for ticket in tickets:
            finish(lane, ticket, now)
    lane.sent(now)
    assert lane.ready_at(now) > now + 0.05
