"""The two caps, and how they are learned."""

from __future__ import annotations

import math

import pytest

from scrapy_backpressure.control.limiter import Limiter
from scrapy_backpressure.control.pacer import Ticket

CEILING = 64
LATENCY = 0.1


class Drive:
    """Drives a limiter in whole round trips, all of a round's requests under way together."""

    def __init__(self, *, start: float = 4, minimum: float = 1) -> None:
        self.limiter = Limiter(start=start, minimum=minimum, now=0.0)
        self.now = 0.0

    def send(self, count: int) -> list[Ticket]:
        limit = round(self.limiter.concurrency)
        return [self.limiter.sent(self.now, i + 1, limit) for i in range(count)]

    def accept(self, tickets: list[Ticket], latency: float = LATENCY) -> None:
        for ticket in tickets:
            self.limiter.accepted(ticket, self.now, latency, CEILING)

    def refuse(self, tickets: list[Ticket]) -> list[bool]:
        return [self.limiter.refused(ticket, self.now) for ticket in tickets]

    def round(self, *, bears: int = CEILING, latency: float = LATENCY) -> None:
        """One round trip at full concurrency on a site that serves ``bears`` at once."""
        tickets = self.send(round(self.limiter.concurrency))
        self.now += latency
        self.refuse(tickets[bears:])
        self.accept(tickets[:bears], latency)


def test_starts_where_it_is_told_to() -> None:
    assert Drive(start=4).limiter.concurrency == 4


def test_has_no_rate_to_begin_with() -> None:
    assert Drive().limiter.rate == math.inf


def test_doubles_each_round_trip_at_first() -> None:
    drive = Drive()
    drive.round()
    assert drive.limiter.concurrency == pytest.approx(8, abs=2)


def test_grows_at_most_half_as_fast_from_sixteen_on() -> None:
    drive = Drive(start=16)
    drive.round()
    assert 16 < drive.limiter.concurrency <= 24


def test_does_not_grow_when_little_is_in_flight() -> None:
    drive = Drive(start=16)
    for _ in range(20):
        drive.now += 1
        drive.accept(drive.send(2))
    assert drive.limiter.concurrency == 16


def test_eight_refusals_of_one_round_trip_are_one_step_down() -> None:
    drive = Drive(start=16)
    assert drive.refuse(drive.send(8)) == [True] + [False] * 7


def test_the_first_refusal_ends_doubling() -> None:
    drive = Drive()
    for _ in range(4):
        drive.round(bears=10)
    assert 8 <= drive.limiter.concurrency <= 11


def test_a_refusal_sent_after_the_cut_counts_again() -> None:
    drive = Drive(start=16)
    drive.refuse(drive.send(8))
    assert drive.refuse(drive.send(8))[0]


def test_never_falls_below_the_minimum() -> None:
    drive = Drive(start=8, minimum=3)
    for _ in range(30):
        drive.refuse(drive.send(3))
        drive.now += 1
    assert drive.limiter.concurrency >= 3


def test_refusals_with_nothing_accepted_between_are_counted() -> None:
    drive = Drive(start=2)
    for _ in range(4):
        drive.now += 1
        drive.refuse(drive.send(1))
    assert drive.limiter.starved == 3


def test_an_accept_ends_the_count_of_fruitless_tries() -> None:
    drive = Drive(start=2)
    for _ in range(3):
        drive.now += 1
        drive.refuse(drive.send(1))
    drive.accept(drive.send(1))
    assert drive.limiter.starved == 0


def test_learns_a_rate_when_one_at_a_time_is_too_many() -> None:
    drive = Drive(start=1)
    for i in range(40):  # one a second is served, two more a second are refused
        tickets = drive.send(1)
        drive.now += 0.33
        if i % 3:
            drive.refuse(tickets)
        else:
            drive.accept(tickets)
    assert drive.limiter.rate < 3.0


def test_stays_close_to_what_works() -> None:
    drive = Drive()
    for _ in range(6):
        drive.round(bears=10)
    limits = []
    for _ in range(100):
        drive.round(bears=10)
        limits.append(drive.limiter.concurrency)
    assert 9 <= sum(limits) / len(limits) <= 11


def test_finds_a_limit_that_rose() -> None:
    drive = Drive()
    for _ in range(20):
        drive.round(bears=4)
    for _ in range(400):
        drive.round(bears=32)
    assert drive.limiter.concurrency >= 28


def test_finds_a_limit_that_fell() -> None:
    drive = Drive()
    for _ in range(20):
        drive.round(bears=30)
    for _ in range(60):
        drive.round(bears=5)
    assert drive.limiter.concurrency <= 7


def test_growth_stops_when_it_only_brings_latency() -> None:
    drive = Drive()
    for _ in range(60):
        in_flight = round(drive.limiter.concurrency)
        drive.round(latency=LATENCY * max(1.0, in_flight / 6))  # a site with six workers
    assert drive.limiter.concurrency <= 16


def test_halving_and_taking_it_back_leaves_concurrency_as_it_was() -> None:
    drive = Drive(start=12)
    drive.limiter.halve(0.0)
    drive.limiter.restore(12)
    assert drive.limiter.concurrency == 12


def test_starts_anew_after_an_outage_instead_of_creeping() -> None:
    drive = Drive(start=4)
    for _ in range(5):
        drive.refuse(drive.send(1))
        drive.now += 1
    for _ in range(40):
        drive.now += LATENCY
        drive.accept(drive.send(max(1, round(drive.limiter.concurrency))))
    assert drive.limiter.rate == math.inf
    assert drive.limiter.concurrency >= 16


def test_after_an_outage_what_was_good_before_is_the_ceiling() -> None:
    drive = Drive()
    for _ in range(40):
        drive.round(bears=10)
    for _ in range(5):
        drive.refuse(drive.send(1))
        drive.now += 1
    for _ in range(8):
        drive.round()
    assert 8 <= drive.limiter.concurrency <= 11


def test_a_refusal_during_the_new_start_gives_the_rate_since_the_first_cut() -> None:
    drive = Drive(start=1)
    for _ in range(4):
        drive.refuse(drive.send(1))
        drive.now += 1
    for _ in range(2):
        drive.accept(drive.send(1))
        drive.now += 0.5
    drive.refuse(drive.send(1))
    assert 0.3 < drive.limiter.rate <= 4.0


def test_a_single_lost_request_changes_nothing() -> None:
    drive = Drive(start=16)
    drive.limiter.lost(drive.send(1)[0], 0.0)
    assert drive.limiter.concurrency == 16


def test_many_lost_requests_cut_a_quarter_once_a_round_trip() -> None:
    drive = Drive(start=16)
    for ticket in drive.send(16):
        drive.limiter.lost(ticket, 0.0)
    assert drive.limiter.concurrency == 12


def test_lost_requests_leave_the_rate_alone() -> None:
    drive = Drive(start=16)
    for ticket in drive.send(16):
        drive.limiter.lost(ticket, 0.0)
    assert drive.limiter.rate == math.inf


def test_concurrency_falls_first_when_refusals_go_on() -> None:
    drive = Drive()
    for _ in range(40):
        drive.round(bears=10)
    for _ in range(3):
        drive.round(bears=3)
    assert drive.limiter.rate == math.inf
    assert drive.limiter.concurrency <= 4
