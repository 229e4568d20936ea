"""Growth before the first refusal, and anew after an outage."""

from __future__ import annotations

import math

import pytest

from scrapy_backpressure.control.pacer import Ticket
from scrapy_backpressure.control.slow_start import DOUBTS, FIRST_RATE, SlowStart

LATENCY = 0.1


class Drive:
    """Drives a slow start; requests of one round trip leave one after the other."""

    def __init__(self, start: SlowStart, *, ceiling: float = 1000.0) -> None:
        self.start = start
        self.ceiling = ceiling
        self.seq = 0

    def accept(self, load: int, *, latency: float = LATENCY, interval: float = 0.0) -> bool:
        self.seq += 1
        ticket = Ticket(self.seq, 0.0, load)
        ticket.paced, ticket.interval = interval > 0, interval
        return self.start.accepted(ticket, latency, self.ceiling)

    def round(self, *, workers: float = math.inf) -> bool:
        """Whether it goes on after as many at once as it allows, on a site that queues."""
        at_once = round(self.start.concurrency)
        loads = range(1, at_once + 1)
        return all(self.accept(n, latency=LATENCY * max(1, n / workers)) for n in loads)


def test_doubles_each_round_trip() -> None:
    drive = Drive(SlowStart(4.0))
    drive.round()
    assert drive.start.concurrency == pytest.approx(8, abs=2)


def test_grows_half_as_fast_from_eight_on() -> None:
    drive = Drive(SlowStart(8.0))
    drive.accept(8)
    assert drive.start.concurrency == 8.5


def test_does_not_grow_right_after_a_failure_that_may_be_throttling() -> None:
    drive = Drive(SlowStart(8.0))
    drive.start.hesitate()
    for _ in range(DOUBTS):
        drive.accept(8)
    assert drive.start.concurrency == 8.0


def test_grows_on_when_no_more_failures_follow() -> None:
    drive = Drive(SlowStart(8.0))
    drive.start.hesitate()
    for _ in range(DOUBTS + 1):
        drive.accept(8)
    assert drive.start.concurrency == 8.5


def test_does_not_grow_while_little_is_in_flight() -> None:
    drive = Drive(SlowStart(16.0))
    for _ in range(20):
        drive.accept(2)
    assert drive.start.concurrency == 16.0


def test_stops_at_the_ceiling() -> None:
    drive = Drive(SlowStart(4.0), ceiling=10.0)
    for _ in range(20):
        drive.round()
    assert drive.start.concurrency == 10.0


def test_does_not_come_down_to_a_ceiling_that_was_lowered() -> None:
    drive = Drive(SlowStart(4.0), ceiling=2.0)
    drive.round()
    assert drive.start.concurrency == 4.0


def test_ends_when_growth_only_brings_latency() -> None:
    drive = Drive(SlowStart(4.0))
    assert not all(drive.round(workers=4) for _ in range(20))


def test_takes_back_what_only_brought_latency() -> None:
    drive = Drive(SlowStart(4.0))
    while drive.round(workers=4):
        pass
    assert drive.start.concurrency < 8


def test_has_no_rate_before_any_outage() -> None:
    drive = Drive(SlowStart(4.0))
    drive.round()
    assert drive.start.rate == math.inf


# -- anew --------------------------------------------------------------------------------------


def anew(*, rate: float = 4.0, most: float = math.inf, most_rate: float = math.inf) -> Drive:
    return Drive(SlowStart(1.0, rate=rate, most=most, most_rate=most_rate))


def test_starts_as_slow_as_what_got_through() -> None:
    assert anew(rate=4.0).start.rate == 4.0


def test_does_not_start_as_slow_as_a_long_pause() -> None:
    assert anew(rate=0.01).start.rate == FIRST_RATE


def test_each_accept_doubles_the_rate() -> None:
    drive = anew(rate=4.0)
    drive.accept(1)
    assert drive.start.rate == 8.0


def test_an_accept_from_before_changes_no_rate() -> None:
    start = SlowStart(1.0, rate=4.0, since=5)
    start.accepted(Ticket(5, 0.0, 1), LATENCY, 64.0)
    assert start.rate == 4.0


def test_a_rate_that_holds_nothing_back_is_let_go() -> None:
    drive = anew(rate=4.0)
    for _ in range(12):
        drive.accept(1)
    assert drive.start.rate == math.inf


def test_what_the_rate_let_through_is_proven() -> None:
    drive = anew(rate=4.0)
    drive.accept(1, interval=0.125)
    assert drive.start.proven_rate == 8.0


def test_what_came_later_than_the_rate_allows_proves_nothing() -> None:
    drive = anew(rate=4.0)
    drive.accept(1)
    assert drive.start.proven_rate == 4.0


def test_ends_at_the_concurrency_that_was_good_before() -> None:
    drive = anew(most=8.0)
    while drive.round():
        pass
    assert drive.start.concurrency == 8.0


def test_ends_at_the_rate_that_was_good_before() -> None:
    drive = anew(most_rate=20.0)
    while drive.round():
        pass
    assert drive.start.rate == 20.0


def test_goes_on_until_what_the_rate_needs_in_flight_is_allowed() -> None:
    drive = anew(rate=4.0, most_rate=4.0)
    assert drive.accept(1, latency=2.0)


def test_where_more_at_once_were_refused_it_grows_in_rate_alone() -> None:
    drive = anew(rate=4.0)
    drive.start.crowded(3.0)
    for _ in range(3):
        drive.accept(3, latency=1.0)
    assert drive.start.concurrency == 3.0
