"""The lane as the scheduler sees it: when may the next request go?"""

from __future__ import annotations

import math
import random

import pytest

from scrapy_backpressure.control.lane import Lane
from scrapy_backpressure.control.outcome import Outcome
from tests.unit.control.lanes import (
    FAILED,
    THROTTLED,
    exchange,
    exchanges,
    fill,
    finish,
    make,
    pour,
)

# -- places ------------------------------------------------------------------------------------


def test_sends_as_many_at_once_as_it_starts_with() -> None:
    assert len(fill(make(start=4), 0.0)) == 4


def test_a_full_lane_waits_for_one_in_flight() -> None:
    lane = make()
    fill(lane, 0.0)
    assert lane.ready_at(0.0) == math.inf


def test_a_lane_at_its_ceiling_waits_for_nothing_else() -> None:
    lane = make(ceiling=4)
    fill(lane, 0.0)
    assert lane.ready_at(1000.0) == math.inf


def test_never_starts_above_the_ceiling() -> None:
    assert len(fill(make(ceiling=2, start=4), 0.0)) == 2


def test_a_lowered_ceiling_holds_at_once() -> None:
    lane = make()
    fill(lane, 0.0)
    lane.ceiling = 1
    assert lane.ready_at(0.0) == math.inf


def test_a_ceiling_of_zero_sends_nothing() -> None:
    lane = make()
    lane.ceiling = 0
    assert lane.ready_at(0.0) == math.inf


def test_an_answer_gives_the_place_back() -> None:
    lane = make()
    ticket = fill(lane, 0.0)[0]
    finish(lane, ticket, 0.1)
    assert lane.in_flight == 3


def test_a_forced_send_counts_as_in_flight() -> None:
    lane = make(ceiling=1)
    lane.sent(0.0)
    lane.sent(0.0)
    assert lane.in_flight == 2


def test_finishing_twice_gives_one_place_back() -> None:
    lane = make()
    first, *_ = fill(lane, 0.0)
    finish(lane, first, 0.1)
    finish(lane, first, 0.2)
    assert lane.in_flight == 3


def test_cancelling_gives_the_place_back() -> None:
    lane = make()
    lane.cancel(lane.sent(0.0), 0.0)
    assert lane.in_flight == 0


def test_cancelling_after_the_answer_changes_nothing() -> None:
    lane = make()
    first, *_ = fill(lane, 0.0)
    finish(lane, first, 0.1)
    lane.cancel(first, 0.2)
    assert lane.in_flight == 3


def test_cancelling_gives_the_pace_back() -> None:
    lane = make()
    exchanges(lane, 3, THROTTLED)
    now = exchange(lane, 20.0)
    due = lane.ready_at(now)
    lane.cancel(lane.sent(due), due)
    assert lane.ready_at(due) == pytest.approx(due)


def test_many_cancelled_requests_teach_nothing() -> None:
    lane = make()
    for _ in range(50):
        lane.cancel(lane.sent(0.0), 0.0)
    assert (lane.concurrency, lane.rate, lane.found_limit) == (4, math.inf, False)


def test_a_refusal_is_a_found_limit() -> None:
    lane = make()
    exchange(lane, 0.0, THROTTLED)
    assert lane.found_limit


def test_a_lane_without_a_limit_has_nothing_to_tell_the_next() -> None:
    lane = make()
    exchanges(lane, 10)
    assert lane.learned is None


def test_a_lane_tells_the_next_what_it_learned() -> None:
    lane = make(start=8)
    finish(lane, fill(lane, 0.0)[-1], 0.1, THROTTLED)
    assert lane.learned == pytest.approx((False, lane.concurrency), rel=0.02)


def test_a_lane_starts_with_what_an_earlier_one_learned() -> None:
    lane = Lane(ceiling=64, now=0.0, rng=random.Random(1), seen=(False, 12.0))
    assert len(fill(lane, 0.0)) == 12


# -- pauses ------------------------------------------------------------------------------------


def test_is_not_ready_before_the_pause_asked_for_ended() -> None:
    lane = make()
    finish(lane, lane.sent(0.0), 0.1, THROTTLED, pause=2.0)
    assert lane.ready_at(0.2) >= 2.1


def test_resumes_a_hair_after_the_pause_asked_for() -> None:
    lane = make()
    finish(lane, lane.sent(0.0), 0.1, THROTTLED, pause=2.0)
    assert lane.paused_until <= 2.15


def test_no_pause_is_told_as_zero() -> None:
    assert (make().paused_until, make().closed_until) == (0.0, 0.0)


def test_a_pause_closes_the_lane() -> None:
    lane = make()
    finish(lane, lane.sent(0.0), 0.1, THROTTLED, pause=2.0)
    assert lane.closed_until == lane.paused_until


def test_a_shorter_pause_does_not_cut_a_longer_one_short() -> None:
    lane = make()
    first, second, *_ = fill(lane, 0.0)
    finish(lane, first, 0.1, THROTTLED, pause=10.0)
    finish(lane, second, 0.2, THROTTLED, pause=1.0)
    assert lane.paused_until >= 10.1


def test_a_pause_asked_for_wins_over_the_own_estimate() -> None:
    lane = make()
    exchanges(lane, 6, THROTTLED)  # the own pauses have grown to many seconds
    now = lane.paused_until
    finish(lane, lane.sent(now), now + 0.1, THROTTLED, pause=1.0)
    assert lane.paused_until <= now + 1.2


def test_an_accepted_answer_may_ask_for_a_pause_too() -> None:
    lane = make()
    finish(lane, lane.sent(0.0), 0.1, pause=3.0)
    assert lane.ready_at(0.2) >= 3.1


def after_a_pause() -> tuple[Lane, float]:
    """A lane whose four requests were accepted, the last of them with a pause."""
    lane = make()
    *others, last = fill(lane, 0.0)
    for ticket in others:
        finish(lane, ticket, 0.1)
    finish(lane, last, 0.1, pause=2.0)
    return lane, lane.paused_until


def test_one_request_goes_first_after_a_pause() -> None:
    lane, now = after_a_pause()
    assert len(pour(lane, now, 1.0)) == 1


def test_each_accept_after_a_pause_lets_one_more_go() -> None:
    lane, now = after_a_pause()
    now = exchange(lane, now)
    assert len(pour(lane, now, 1.0)) == 2


def test_enough_accepts_after_a_pause_end_the_caution() -> None:
    lane, now = after_a_pause()
    now = exchanges(lane, 20, now=now)
    assert len(pour(lane, now, 1.0)) == round(lane.concurrency)


def test_answers_from_before_a_pause_do_not_end_the_caution_after_it() -> None:
    lane = make()
    first, *others = fill(lane, 0.0)
    finish(lane, first, 0.1, THROTTLED, pause=2.0)
    for ticket in others:
        finish(lane, ticket, 2.2)
    assert len(pour(lane, 2.3, 1.0)) == 1


def test_own_pauses_grow_while_nothing_is_accepted() -> None:
    lane = make()
    now, gaps = 0.0, []
    for _ in range(6):
        now = exchange(lane, now, THROTTLED)
        gaps.append(lane.paused_until - now)
    assert gaps[5] > gaps[4] > gaps[3]


def test_own_pauses_never_pass_a_minute_by_more_than_the_jitter() -> None:
    lane = make()
    now = exchanges(lane, 20, THROTTLED)
    assert lane.paused_until - now <= 66.0


def test_a_block_pauses_though_others_are_accepted() -> None:
    lane = make()
    first, second, *_ = fill(lane, 0.0)
    finish(lane, first, 0.1)
    finish(lane, second, 0.1, Outcome.BLOCKED)
    assert lane.ready_at(0.1) > 0.1


def test_blocks_that_go_on_pause_ever_longer() -> None:
    lane = make()
    now, gaps = 0.0, []
    for _ in range(5):
        now = exchange(lane, now, Outcome.BLOCKED)
        gaps.append(lane.paused_until - now)
    assert gaps[4] > gaps[3] > gaps[2]


def test_five_blocks_at_once_make_one_pause() -> None:
    one, five = make(start=8), make(start=8)
    for lane, blocks in ((one, 1), (five, 5)):
        for ticket in fill(lane, 0.0)[:blocks]:
            finish(lane, ticket, 0.1, Outcome.BLOCKED)
    assert five.paused_until == one.paused_until


# -- stalled_for -------------------------------------------------------------------------------


def test_a_fresh_lane_is_not_stalled() -> None:
    assert make().stalled_for == 0.0


def test_stalls_count_from_the_first_send_when_nothing_was_ever_good() -> None:
    lane = make()
    first, second = lane.sent(5.0), lane.sent(5.0)
    finish(lane, first, 6.0, THROTTLED)
    finish(lane, second, 15.0, THROTTLED)
    assert lane.stalled_for == pytest.approx(10.0)


def test_stalls_count_from_the_last_good_answer() -> None:
    lane = make()
    good = exchange(lane, 0.0)
    ticket = lane.sent(good)
    finish(lane, ticket, good + 10.0, FAILED)
    assert lane.stalled_for == pytest.approx(10.0)


def test_quiet_time_before_a_bad_answer_is_no_stall() -> None:
    lane = make()
    good = exchange(lane, 0.0)
    exchange(lane, good + 1800.0, FAILED)
    assert lane.stalled_for == pytest.approx(0.1)


def test_quiet_time_between_bad_answers_is_no_stall() -> None:
    lane = make()
    now = exchange(lane, 5.0, FAILED)
    exchange(lane, now + 1800.0, FAILED)
    assert lane.stalled_for == pytest.approx(0.2)


def test_a_pause_before_a_bad_answer_belongs_to_the_stall() -> None:
    lane = make()
    finish(lane, lane.sent(0.0), 0.1, THROTTLED, pause=600.0)
    exchange(lane, 0.1, THROTTLED)
    assert lane.stalled_for == pytest.approx(600.2, abs=0.1)


def test_the_wait_for_an_open_breaker_belongs_to_the_stall() -> None:
    lane = make()
    now = exchanges(lane, 5, FAILED, answered=False)
    assert exchange(lane, now, FAILED, answered=False) > now + 5.0
    assert lane.stalled_for > 5.0


def test_a_neutral_answer_ends_a_stall() -> None:
    lane = make()
    now = exchange(lane, 0.0, FAILED)
    exchange(lane, now, Outcome.NEUTRAL)
    assert lane.stalled_for == 0.0


def test_time_in_which_nothing_was_asked_is_no_stall() -> None:
    lane = make()
    now = exchange(lane, 0.0, THROTTLED)
    before = lane.stalled_for
    lane.ready_at(now + 1800.0)
    assert lane.stalled_for == before
