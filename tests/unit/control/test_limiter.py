"""The two caps, and how they are learned."""

from __future__ import annotations

import math

import pytest

from scrapy_backpressure.control.limiter import FIRST_WAIT, UNKNOWN_LATENCY, Caps
from tests.unit.control.drive import CEILING, LATENCY, Drive

# -- to begin with -----------------------------------------------------------------------------


def test_starts_where_it_is_told_to() -> None:
    assert Drive(start=4).limiter.concurrency == 4


def test_never_starts_below_one() -> None:
    assert Drive(start=0.5, minimum=0).limiter.concurrency == 1


def test_has_no_rate_to_begin_with() -> None:
    assert Drive().limiter.rate == math.inf


def test_has_met_no_limit_to_begin_with() -> None:
    assert not Drive().limiter.has_cut


def test_doubles_each_round_trip_at_first() -> None:
    drive = Drive()
    drive.round()
    assert drive.limiter.concurrency == pytest.approx(8, abs=2)


# -- one decision a round trip -----------------------------------------------------------------


def test_eight_refusals_of_one_round_trip_are_one_decision() -> None:
    drive = Drive(start=16)
    assert drive.refuse(drive.send(8)) == [True] + [False] * 7


def test_a_refusal_sent_after_the_cut_counts_again() -> None:
    drive = Drive(start=16)
    drive.refuse(drive.send(8))
    assert drive.refuse(drive.send(8))[0]


def test_accepts_sent_before_the_cut_do_not_raise_the_caps() -> None:
    drive = Drive(start=4)
    first, *others = drive.send(4)
    drive.refuse([first])
    before = drive.limiter.concurrency
    drive.accept(others)
    assert drive.limiter.concurrency == before


def test_a_refusal_is_a_met_limit() -> None:
    drive = Drive()
    drive.refuse(drive.send())
    assert drive.limiter.has_cut


def test_never_falls_below_the_minimum() -> None:
    drive = Drive(start=8, minimum=3)
    for _ in range(30):
        drive.refuse(drive.send(3))
        drive.now += 1
    assert drive.limiter.concurrency >= 3


def test_a_refused_request_says_that_less_than_its_load_is_borne() -> None:
    drive = Drive(start=5)
    drive.accept(drive.send(2))
    drive.refuse(drive.send(5)[4:])
    assert round(drive.limiter.concurrency) == 4


def test_others_of_the_round_trip_may_say_that_less_still_is_borne() -> None:
    drive = Drive(start=16)
    drive.accept(drive.send(2))
    drive.refuse(drive.send(16)[:11:-1])
    assert drive.limiter.concurrency == 12


def test_others_of_the_round_trip_leave_two_thirds_where_they_may_have_overtaken() -> None:
    drive = Drive(start=16)
    drive.accept(drive.send(2))
    drive.refuse(drive.send(16)[:3:-1])
    assert drive.limiter.concurrency == pytest.approx(10.4)


def test_others_of_the_very_first_requests_say_what_is_borne() -> None:
    drive = Drive(start=16)
    drive.refuse(drive.send(16)[:3:-1])
    assert drive.limiter.concurrency == 4


def test_waits_half_a_second_where_the_first_requests_were_refused() -> None:
    drive = Drive()
    drive.refuse(drive.send(4))
    assert drive.limiter.next_send() >= FIRST_WAIT


def test_others_of_a_round_trip_that_grew_leave_two_thirds_of_what_was_held() -> None:
    drive = Drive(seen=(False, 20.0))
    for _ in range(2000):
        if drive.limiter.concurrency >= 22:
            break
        *_, at_cap = drive.send(round(drive.limiter.concurrency))
        drive.now += 1
        drive.accept([at_cap])
    drive.refuse(drive.send(26)[:3:-1])
    assert drive.limiter.concurrency == pytest.approx(13.0)


def test_a_second_refusal_with_few_under_way_gives_the_rate_since_the_first() -> None:
    drive = Drive()
    for _ in range(3):
        drive.round()
    drive.refuse(drive.send(12)[-1:])
    drive.now += 2 * LATENCY
    refused = drive.send(2)[1]
    drive.refuse([refused])
    assert drive.limiter.rate == pytest.approx(2 / (2 * LATENCY), rel=0.02)
    assert not drive.limiter.starved


def test_where_a_rate_was_held_refusals_of_many_at_once_mean_concurrency() -> None:
    drive = Drive(start=10)
    drive.accept(drive.send(3))
    drive.limiter.restore((True, 50.0), drive.now)
    for _ in range(20):
        drive.accept(drive.send(2))
    drive.refuse(drive.send(9)[8:])
    assert drive.limiter.caps == (False, 8)


def test_the_load_is_what_goes_at_once_per_round_trip() -> None:
    drive = Drive(start=4)
    drive.accept(drive.send(1), latency=0.5)
    assert drive.limiter.load == pytest.approx(drive.limiter.concurrency / 0.5)


def test_the_load_is_the_rate_where_that_is_less() -> None:
    assert Drive(seen=(True, 5.0)).limiter.load == pytest.approx(5.0, rel=0.02)


def test_the_load_is_guessed_before_the_first_answer() -> None:
    assert Drive(start=4).limiter.load == pytest.approx(4 / UNKNOWN_LATENCY)


# -- pace -----------------------------------------------------------------------------------------


def test_requests_are_spaced_by_the_rate() -> None:
    drive = Drive(seen=(True, 5.0))
    drive.send()
    assert drive.limiter.next_send() == pytest.approx(0.2, rel=0.02)


def test_a_cancelled_request_takes_no_pace() -> None:
    drive = Drive(seen=(True, 5.0))
    drive.limiter.cancelled(drive.send()[0])
    assert drive.limiter.next_send() <= 0.0


# -- what is known -----------------------------------------------------------------------------


def test_what_another_lane_saw_is_where_it_starts() -> None:
    assert Drive(seen=(False, 12.0)).limiter.concurrency == pytest.approx(12, rel=0.02)


def test_a_rate_that_another_lane_saw_is_kept() -> None:
    assert Drive(seen=(True, 3.0)).limiter.rate == pytest.approx(3.0, rel=0.02)


def test_what_another_lane_saw_is_a_met_limit() -> None:
    assert Drive(seen=(False, 12.0)).limiter.has_cut


def test_what_another_lane_saw_outlasts_the_first_accept() -> None:
    drive = Drive(seen=(False, 12.0))
    drive.accept(drive.send())
    assert drive.limiter.concurrency > 11


@pytest.mark.parametrize("caps", [(True, 3.0), (False, 7.0)])
def test_caps_that_were_taken_over_are_told_on(caps: Caps) -> None:
    assert Drive(seen=caps).limiter.caps == caps


def test_what_was_only_tried_so_far_is_told_too() -> None:
    assert Drive(start=4).limiter.caps == (False, 4)


def test_the_rate_of_a_new_start_is_told() -> None:
    drive = Drive()
    drive.silence()
    drive.accept(drive.send())
    assert drive.limiter.caps == (True, drive.limiter.rate)


def test_cuts_that_were_needless_are_taken_back() -> None:
    drive = Drive(start=12)
    before = drive.limiter.caps
    drive.refuse(drive.send(8))
    drive.limiter.restore(before, drive.now)
    assert drive.limiter.concurrency == pytest.approx(12, rel=0.02)


def test_what_was_taken_back_outlasts_the_first_accept() -> None:
    drive = Drive(start=12)
    before = drive.limiter.caps
    drive.refuse(drive.send(8))
    drive.limiter.restore(before, drive.now)
    drive.accept(drive.send())
    assert drive.limiter.concurrency > 11


def started_anew() -> Drive:
    """A lane whose start was cut short by failures that turned out to be none of its doing."""
    drive = Drive()
    drive.round()
    caps = drive.limiter.caps
    drive.refuse(drive.send(round(caps[1])))
    drive.limiter.restore(caps, drive.now, starting=True)
    return drive


def test_a_start_that_was_cut_short_needlessly_goes_on() -> None:
    drive = started_anew()
    for _ in range(20):
        drive.round()
    assert (drive.limiter.rate, drive.limiter.concurrency) == (math.inf, CEILING)


def test_a_start_that_goes_on_does_so_from_what_is_sent_now() -> None:
    drive = started_anew()
    assert drive.limiter.starting
    assert drive.limiter.rate < 1.5 * drive.limiter.concurrency / LATENCY


def test_others_refused_in_a_start_that_goes_on_raise_nothing() -> None:
    drive = started_anew()
    drive.accept(drive.send())
    tickets = drive.send(4)
    drive.refuse(tickets[2:3])
    concurrency = drive.limiter.concurrency
    drive.refuse(tickets[:2] + tickets[3:])
    assert drive.limiter.concurrency <= concurrency


def test_a_failure_that_may_be_throttling_halts_the_start() -> None:
    drive = Drive()
    drive.limiter.hesitate()
    drive.round()
    assert drive.limiter.concurrency == 4


def test_refusals_from_before_a_restore_change_nothing() -> None:
    drive = Drive(start=12)
    tickets = drive.send(8)
    drive.limiter.restore((False, 12.0), drive.now)
    assert not any(drive.refuse(tickets))


def test_no_refusals_lower_the_rate_below_one_a_minute() -> None:
    drive = Drive(start=1)
    drive.accept(drive.send())
    drive.limiter.restore((True, 1.0), drive.now)
    for _ in range(300):
        drive.now += 10
        drive.refuse(drive.send())
    assert drive.limiter.rate >= 0.98 / 60
