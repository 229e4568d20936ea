"""What quota headers leave us to send."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_backpressure.control.allowance import TOLD_FOR, TRIALS, Allowance, is_used_up
from scrapy_backpressure.control.lane import Lane
from scrapy_backpressure.control.outcome import Outcome, Quota
from tests.unit.control.lanes import ACCEPTED, answer_with, exchange, fill, finish, make, pour

FIRST = 10
"""Number of the request whose answer told first."""


def told(quota: Quota, *, now: float = 0.0, in_flight: int = 0) -> Allowance:
    """An allowance after one answer."""
    allowance = Allowance()
    allowance.sent(now)
    allowance.heed(quota, now, in_flight, FIRST)
    return allowance


def spend(allowance: Allowance, now: float, most: int = 1000) -> int:
    """How many may go at this moment."""
    sent = 0
    while sent < most and allowance.ready_at(now) <= now:
        allowance.sent(now)
        sent += 1
    return sent


def test_an_untold_allowance_lets_everything_go() -> None:
    assert spend(Allowance(), 0.0, most=500) == 500


def test_an_untold_allowance_closes_nothing() -> None:
    assert Allowance().closed_until == 0.0


def test_a_used_up_quota_waits_for_its_reset() -> None:
    assert told(Quota(remaining=0, reset=30)).ready_at(1.0) >= 30.0


def test_a_used_up_quota_wakes_a_hair_after_its_reset() -> None:
    assert told(Quota(remaining=0, reset=30)).ready_at(1.0) <= 30.1


def test_a_used_up_quota_is_closed_until_its_reset() -> None:
    assert told(Quota(remaining=0, reset=86400)).closed_until == pytest.approx(86400, abs=1)


def test_a_quota_that_leaves_enough_closes_nothing() -> None:
    assert told(Quota(limit=100, remaining=90, reset=86400), now=5.0).closed_until <= 5.0


def test_no_more_than_is_left_goes_out() -> None:
    assert spend(told(Quota(remaining=7, reset=30)), 1.0) == 7


def test_what_is_under_way_counts_as_sent() -> None:
    assert spend(told(Quota(remaining=7, reset=30), in_flight=3), 1.0) == 4


def test_plenty_of_a_quota_is_used_at_full_speed() -> None:
    assert spend(told(Quota(limit=100, remaining=90, reset=30)), 1.0, most=60) == 60


def test_the_last_fifth_of_a_quota_is_spread_over_the_time_left() -> None:
    allowance = told(Quota(limit=100, remaining=9, reset=30))
    assert allowance.ready_at(0.0) == pytest.approx(3.0, abs=0.01)


def test_what_is_spread_is_used_up_by_the_reset() -> None:
    allowance, now, sent = told(Quota(limit=100, remaining=9, reset=30)), 0.0, 0
    while (now := allowance.ready_at(now)) < 30.0:
        allowance.sent(now)
        sent += 1
    assert sent == 9


def test_what_is_left_for_a_second_or_two_is_not_spread() -> None:
    assert told(Quota(limit=100, remaining=9, reset=1)).ready_at(0.0) == 0.0


def test_a_quota_of_unknown_size_is_not_spread() -> None:
    assert told(Quota(remaining=9, reset=30)).ready_at(0.0) == 0.0


@pytest.mark.parametrize("quota", [Quota(remaining=0), Quota(reset=30), Quota(limit=100)])
def test_half_of_what_is_needed_tells_nothing(quota: Quota) -> None:
    assert told(quota).ready_at(1.0) == 1.0


def test_what_was_cancelled_may_go_again() -> None:
    allowance = told(Quota(remaining=1, reset=30))
    allowance.sent(1.0)
    allowance.cancelled()
    assert allowance.ready_at(1.0) == 1.0


# -- concurrency -------------------------------------------------------------------------------


def test_no_concurrency_is_told_to_begin_with() -> None:
    assert Allowance().concurrency == math.inf


def test_a_told_concurrency_is_kept() -> None:
    assert told(Quota(concurrency=2)).concurrency == 2


@pytest.mark.parametrize("quota", [None, Quota(remaining=5, reset=30)])
def test_a_concurrency_that_is_told_no_more_is_forgotten(quota: Quota | None) -> None:
    allowance = told(Quota(concurrency=2))
    for seq in range(FIRST + 1, FIRST + 1 + TOLD_FOR):
        assert allowance.concurrency == 2
        if quota is None:
            allowance.untold()
        else:
            allowance.heed(quota, 1.0, 0, seq)
    assert allowance.concurrency == math.inf


def test_a_concurrency_that_is_told_now_and_then_is_kept() -> None:
    allowance = told(Quota(concurrency=2))
    for number in range(3 * TOLD_FOR):
        if number % 10:
            allowance.untold()
        else:
            allowance.heed(Quota(concurrency=2), 1.0, 0, FIRST + number)
    assert allowance.concurrency == 2


def test_a_concurrency_below_one_is_nonsense() -> None:
    assert told(Quota(concurrency=0)).concurrency == math.inf


# -- answers in any order ----------------------------------------------------------------------


def test_an_answer_that_was_overtaken_does_not_raise_what_is_left() -> None:
    allowance = told(Quota(limit=100, remaining=3, reset=30))
    allowance.heed(Quota(limit=100, remaining=99, reset=30), 1.0, 0, FIRST - 1)
    assert spend(allowance, 30.0) <= 3


def test_an_answer_that_was_overtaken_may_lower_what_is_left() -> None:
    allowance = told(Quota(remaining=50, reset=30))
    allowance.heed(Quota(remaining=2, reset=29), 1.0, 0, FIRST - 1)
    assert spend(allowance, 1.0) == 2


def test_an_overtaken_answer_of_the_window_before_tells_nothing() -> None:
    allowance = told(Quota(limit=100, remaining=99, reset=60))
    allowance.sent(61.0)
    allowance.heed(Quota(limit=100, remaining=19, reset=59), 61.1, 0, FIRST + 80)
    allowance.heed(Quota(limit=100, remaining=98, reset=1), 61.9, 0, FIRST + 1)
    assert spend(allowance, 70.0) <= 19


def test_an_answer_may_lower_what_is_left() -> None:
    allowance = told(Quota(remaining=50, reset=30))
    allowance.heed(Quota(remaining=2, reset=29), 1.0, 0, FIRST + 1)
    assert spend(allowance, 1.0) == 2


def test_ends_of_a_window_that_differ_by_rounding_are_one_window() -> None:
    allowance = told(Quota(remaining=3, reset=30))
    allowance.heed(Quota(remaining=50, reset=30), 1.0, 0, FIRST + 1)
    assert spend(allowance, 1.0) == 3


def test_an_answer_from_a_later_window_renews_what_is_left() -> None:
    allowance = told(Quota(remaining=3, reset=30))
    allowance.heed(Quota(remaining=50, reset=60), 30.0, 0, FIRST + 1)
    assert spend(allowance, 30.0) == 50


NUMBER = 12
WINDOW = 60.0
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "serve", "answer"]),
        st.floats(0.0, 3.0),
        st.integers(0, 1000),
    ),
    max_size=100,
)


@given(steps=STEPS, limit=st.none() | st.just(NUMBER))
def test_no_more_than_a_window_holds_goes_out_whatever_the_order_of_answers(
    steps: list[tuple[str, float, int]], limit: int | None
) -> None:
    allowance, now = told(Quota(limit, NUMBER - 1, WINDOW)), 0.0
    sent = served = 1
    under_way: list[int] = []  # numbers of those sent
    answers: list[tuple[int, int]] = []  # of which one, and what it tells to be left
    for action, passed, pick in steps:
        now += passed
        if now >= WINDOW:
            break
        if action == "send" and allowance.ready_at(now) <= now:
            allowance.sent(now)
            sent += 1
            under_way.append(FIRST + sent)
        elif action == "serve" and under_way:
            served += 1
            answers.append((under_way.pop(pick % len(under_way)), NUMBER - served))
        elif action == "answer" and answers:
            seq, remaining = answers.pop(pick % len(answers))
            quota = Quota(limit, max(0, remaining), WINDOW - now)
            allowance.heed(quota, now, len(under_way) + len(answers), seq)
        assert sent <= NUMBER


# -- the next window ---------------------------------------------------------------------------


def test_a_new_window_is_open_at_the_reset() -> None:
    assert told(Quota(limit=100, remaining=0, reset=30)).ready_at(31.0) == 31.0


def test_a_new_window_is_taken_to_hold_as_many_as_the_last() -> None:
    allowance = told(Quota(limit=10, remaining=0, reset=30))
    sent = 0
    while allowance.ready_at(31.0, waiting=True) <= 31.0:
        allowance.sent(31.0)
        sent += 1
    assert sent == 10 - 1


def test_later_new_windows_are_used_up_at_once() -> None:
    allowance = told(Quota(limit=10, remaining=0, reset=30))
    for number in range(1, TRIALS + 1):
        allowance.sent(31.0 * number)
        quota = Quota(limit=10, remaining=0, reset=30)
        allowance.heed(quota, 31.0 * number, 0, FIRST + number)
    now, sent = 31.0 * (TRIALS + 1), 0
    while allowance.ready_at(now, waiting=True) <= now:
        allowance.sent(now)
        sent += 1
    assert sent == 10


def test_a_new_window_is_tried_with_one_request_once_a_used_up_one_refused() -> None:
    allowance = told(Quota(limit=10, remaining=0, reset=30))
    allowance.heed(Quota(limit=10, remaining=0, reset=30), 0.1, 0, FIRST + 1, served=False)
    allowance.sent(31.0)
    assert allowance.ready_at(31.0, waiting=True) == math.inf


def test_what_was_told_last_holds_when_none_is_under_way() -> None:
    allowance = told(Quota(remaining=7, reset=30), in_flight=3)
    allowance.heed(Quota(remaining=4, reset=30), 0.1, 0, FIRST + 3)
    assert spend(allowance, 1.0) == 4


def test_a_new_window_that_is_used_up_waits_for_an_answer() -> None:
    allowance = told(Quota(limit=1, remaining=0, reset=30))
    allowance.sent(31.0)
    assert allowance.ready_at(31.0, waiting=True) == math.inf


def test_a_new_window_without_an_answer_to_wait_for_is_open() -> None:
    allowance = told(Quota(limit=1, remaining=0, reset=30))
    allowance.sent(31.0)
    assert allowance.ready_at(31.0) == 31.0


def test_a_new_window_that_is_used_up_closes_nothing_yet() -> None:
    allowance = told(Quota(limit=1, remaining=0, reset=30))
    allowance.sent(31.0)
    assert allowance.closed_until == 0.0


def test_an_answer_tells_what_is_left_of_a_new_window() -> None:
    allowance = told(Quota(limit=10, remaining=0, reset=30))
    allowance.sent(31.0)
    allowance.heed(Quota(limit=10, remaining=4, reset=30), 31.1, 0, FIRST + 1)
    assert spend(allowance, 31.1) == 4


def test_a_new_window_of_unknown_size_is_open() -> None:
    allowance = told(Quota(remaining=0, reset=30))
    assert spend(allowance, 31.0, most=500) == 500


# -- a quota that refills all the time ---------------------------------------------------------

BURST = 5


def drained(rate: float, *, seconds: float = 10.0) -> tuple[Allowance, int, float]:
    """After a crawl, one request at a time, of a bucket whose headers tell whole seconds.

    Also how many were sent, and when the bucket was drained.
    """
    allowance, now, seq, tokens, at = Allowance(), 0.0, 0, float(BURST), 0.0
    while now < seconds or tokens >= 1:
        now = max(now, allowance.ready_at(now))
        allowance.sent(now)
        seq += 1
        tokens = min(BURST, tokens + rate * (now - at))
        at = now
        assert tokens >= 1, "refuses"
        tokens -= 1
        reset = math.ceil((BURST - tokens) / rate)
        now += 0.02
        allowance.heed(Quota(BURST, math.floor(tokens), reset), now, 0, seq)
    return allowance, seq, now


@given(rate=st.floats(1.0, 40.0))
def test_a_bucket_never_refuses_what_its_headers_leave(rate: float) -> None:
    drained(rate, seconds=200 / rate)


def test_a_bucket_that_is_seen_to_refill_is_used_up() -> None:
    _, sent, now = drained(20.0, seconds=60.0)
    assert sent >= 0.95 * 20.0 * now


def test_a_drained_bucket_waits_for_its_refill_and_not_for_its_reset() -> None:
    allowance, _, now = drained(20.0)
    assert allowance.ready_at(now) == pytest.approx(now + 1 / 20, abs=0.02)


def test_a_refusal_of_a_bucket_has_it_wait_for_its_reset() -> None:
    allowance, sent, now = drained(20.0)
    quota = Quota(BURST, 0, 1)
    allowance.sent(now)
    allowance.heed(quota, now, 0, sent + 1, served=False)
    assert allowance.ready_at(now) >= now + 1.0


def test_an_idle_bucket_holds_no_more_than_its_burst() -> None:
    allowance, _, now = drained(20.0)
    assert spend(allowance, now + 1000.0) == BURST


def test_a_bucket_that_no_answer_tells_of_any_more_is_none() -> None:
    allowance, _, now = drained(20.0)
    allowance.sent(now + 60.0)
    allowance.untold()
    assert spend(allowance, now + 60.0, most=500) == 500


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quota", "used_up"),
    [
        (None, False),
        (Quota(limit=100), False),
        (Quota(remaining=1, reset=30), False),
        (Quota(remaining=0), False),
        (Quota(remaining=0, reset=0), False),
        (Quota(remaining=0, reset=30), True),
        (Quota(remaining=0.5, reset=30), True),
    ],
)
def test_a_refusal_is_explained_by_a_used_up_quota_alone(
    quota: Quota | None, used_up: bool
) -> None:
    assert is_used_up(quota) is used_up


# -- in a lane ---------------------------------------------------------------------------------


def refuse_with(lane: Lane, quota: Quota) -> float:
    """Concurrency after one of many under way was refused."""
    ticket = fill(lane, 0.0)[-1]
    finish(lane, ticket, 0.1, Outcome.THROTTLED, quota=quota)
    return lane.concurrency


def test_a_refusal_that_a_used_up_quota_explains_cuts_nothing() -> None:
    assert refuse_with(make(start=8), Quota(limit=100, remaining=0, reset=30)) == 8


def test_a_refusal_counts_though_the_quota_says_there_is_room() -> None:
    assert refuse_with(make(start=8), Quota(limit=100, remaining=90, reset=30)) < 8


def test_a_used_up_quota_closes_the_lane_until_its_reset() -> None:
    lane = make()
    answer_with(lane, Quota(limit=100, remaining=0, reset=30))
    assert lane.closed_until == pytest.approx(30.1, abs=0.1)


def test_a_lane_lets_no_more_go_than_its_quota_leaves() -> None:
    lane = make(start=8)
    answer_with(lane, Quota(remaining=3, reset=30))
    assert len(pour(lane, 1.0, 1.0)) == 3


def test_a_lane_keeps_a_told_concurrency() -> None:
    lane = make(start=8)
    answer_with(lane, Quota(concurrency=2))
    assert len(pour(lane, 1.0, 1.0)) == 2


def test_a_told_concurrency_is_a_found_limit() -> None:
    lane = make(start=8)
    answer_with(lane, Quota(concurrency=2))
    assert lane.found_limit


def test_a_cancelled_request_gives_its_part_of_the_quota_back() -> None:
    lane = make()
    answer_with(lane, Quota(remaining=1, reset=30))
    lane.cancel(lane.sent(1.0), 1.0)
    assert lane.ready_at(2.0) == 2.0


def test_a_lane_asks_once_more_when_a_new_window_begins() -> None:
    lane = make()
    answer_with(lane, Quota(limit=1, remaining=0, reset=30))
    assert exchange(lane, 1.0, ACCEPTED) == pytest.approx(30.3, abs=0.2)


def test_a_window_that_no_answer_tells_of_is_none() -> None:
    allowance = Allowance()
    allowance.heed(Quota(limit=2, remaining=0, reset=10), 0.0, 0, 1)
    allowance.sent(20.0)
    allowance.sent(20.0)
    allowance.untold()
    assert allowance.ready_at(20.0, waiting=True) == 20.0
