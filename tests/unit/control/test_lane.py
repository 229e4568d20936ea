"""The lane as the scheduler sees it: when may the next request go?"""

from __future__ import annotations

import math
import random

import pytest

from scrapy_backpressure.control.lane import Lane, Ticket
from scrapy_backpressure.control.outcome import Outcome, Quota, Verdict

ACCEPTED = Verdict(Outcome.ACCEPTED)
THROTTLED = Verdict(Outcome.THROTTLED, "429")
FAILED = Verdict(Outcome.FAILED, "503")
SILENT = Verdict(Outcome.FAILED, "TimeoutError", answered=False)


def make(*, ceiling: int = 64, start: float = 4, now: float = 0.0, seed: int = 1) -> Lane:
    return Lane(ceiling=ceiling, start=start, now=now, rng=random.Random(seed))


def fill(lane: Lane, now: float) -> list[Ticket]:
    """Send what the lane lets go at this moment."""
    tickets = []
    while lane.ready_at(now) <= now:
        tickets.append(lane.sent(now))
    return tickets


def pour(lane: Lane, now: float, seconds: float = 5.0) -> list[Ticket]:
    """Send what the lane lets go in the next seconds, while nothing is answered."""
    tickets = []
    until = now + seconds
    while (at := lane.ready_at(now)) <= until:
        now = max(now, at)
        tickets.append(lane.sent(now))
    return tickets


def finish(lane: Lane, ticket: Ticket, now: float, verdict: Verdict = ACCEPTED) -> None:
    lane.finished(ticket, now, verdict, latency=now - ticket.sent_at)


def exchange(lane: Lane, now: float, verdict: Verdict = ACCEPTED) -> float:
    """One request, answered a tenth of a second after it was sent; the time afterwards."""
    now = max(now, lane.ready_at(now))
    ticket = lane.sent(now)
    finish(lane, ticket, now + 0.1, verdict)
    return now + 0.1


# -- places ------------------------------------------------------------------------------------


def test_sends_as_many_at_once_as_it_starts_with() -> None:
    assert len(fill(make(start=4), 0.0)) == 4


def test_a_full_lane_waits_for_one_in_flight() -> None:
    lane = make()
    fill(lane, 0.0)
    assert lane.ready_at(0.0) == math.inf


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
    for _ in range(3):
        exchange(lane, 0.0, THROTTLED)
    now = exchange(lane, 20.0)
    due = lane.ready_at(now)
    lane.cancel(lane.sent(due), due)
    assert lane.ready_at(due) == pytest.approx(due)


def test_many_cancelled_requests_teach_nothing() -> None:
    lane = make()
    for _ in range(50):
        lane.cancel(lane.sent(0.0), 0.0)
    assert lane.concurrency == 4


# -- pauses ------------------------------------------------------------------------------------


def test_is_not_ready_before_the_pause_asked_for_ended() -> None:
    lane = make()
    ticket = lane.sent(0.0)
    finish(lane, ticket, 0.1, Verdict(Outcome.THROTTLED, "429", 2.0))
    assert lane.ready_at(0.2) >= 2.1


def test_resumes_a_hair_after_the_pause_asked_for() -> None:
    lane = make()
    ticket = lane.sent(0.0)
    finish(lane, ticket, 0.1, Verdict(Outcome.THROTTLED, "429", 2.0))
    assert lane.paused_until <= 2.15


def test_no_pause_is_told_as_zero() -> None:
    assert make().paused_until == 0.0


def test_a_shorter_pause_does_not_cut_a_longer_one_short() -> None:
    lane = make()
    first, second, *_ = fill(lane, 0.0)
    finish(lane, first, 0.1, Verdict(Outcome.THROTTLED, "429", 10.0))
    finish(lane, second, 0.2, Verdict(Outcome.THROTTLED, "429", 1.0))
    assert lane.paused_until >= 10.1


def test_a_pause_asked_for_wins_over_the_own_estimate() -> None:
    lane = make()
    now = 0.0
    for _ in range(6):  # the own pauses have grown to many seconds
        now = exchange(lane, now, THROTTLED)
    now = max(now, lane.paused_until)
    ticket = lane.sent(now)
    finish(lane, ticket, now + 0.1, Verdict(Outcome.THROTTLED, "429", 1.0))
    assert lane.paused_until <= now + 1.2


def test_an_accepted_answer_may_ask_for_a_pause_too() -> None:
    lane = make()
    ticket = lane.sent(0.0)
    finish(lane, ticket, 0.1, Verdict(Outcome.ACCEPTED, "", 3.0))
    assert lane.ready_at(0.2) >= 3.1


def test_one_request_goes_first_after_a_pause() -> None:
    lane = make()
    tickets = fill(lane, 0.0)
    for ticket in tickets:
        finish(lane, ticket, 0.1, Verdict(Outcome.THROTTLED, "429", 2.0))
    assert len(fill(lane, lane.paused_until)) == 1


def test_own_pauses_grow_while_nothing_is_accepted() -> None:
    lane = make()
    now, gaps = 0.0, []
    for _ in range(6):
        now = exchange(lane, now, THROTTLED)
        gaps.append(lane.paused_until - now)
    assert gaps[5] > gaps[4] > gaps[3]


def test_own_pauses_never_pass_a_minute_by_more_than_the_jitter() -> None:
    lane = make()
    now = 0.0
    for _ in range(20):
        now = exchange(lane, now, THROTTLED)
    assert lane.paused_until - now <= 66.0


def test_a_block_pauses_though_others_are_accepted() -> None:
    lane = make()
    first, second, *_ = fill(lane, 0.0)
    finish(lane, first, 0.1)
    finish(lane, second, 0.1, Verdict(Outcome.BLOCKED, "captcha"))
    assert lane.ready_at(0.1) > 0.1


def test_five_blocks_at_once_make_one_pause() -> None:
    one, five = make(start=8), make(start=8)
    for lane, blocks in ((one, 1), (five, 5)):
        for ticket in fill(lane, 0.0)[:blocks]:
            finish(lane, ticket, 0.1, Verdict(Outcome.BLOCKED, "captcha"))
    assert five.paused_until == one.paused_until


# -- quotas ------------------------------------------------------------------------------------


def answer_with(lane: Lane, quota: Quota, now: float = 0.1) -> None:
    ticket = lane.sent(now - 0.1)
    finish(lane, ticket, now, Verdict(Outcome.ACCEPTED, "", None, quota))


def test_a_used_up_quota_waits_for_its_reset() -> None:
    lane = make()
    answer_with(lane, Quota(limit=100, remaining=0, reset=30))
    assert lane.ready_at(1.0) >= 30.1


def test_a_quota_lets_no_more_than_it_leaves_go_out() -> None:
    lane = make(start=8)
    answer_with(lane, Quota(remaining=3, reset=30))
    assert len(pour(lane, 1.0)) == 3


def test_what_is_left_of_a_low_quota_is_spread_over_the_time_left() -> None:
    lane = make()
    answer_with(lane, Quota(limit=100, remaining=10, reset=30))
    lane.sent(1.0)
    assert lane.ready_at(1.1) > 3.0


def test_a_used_up_quota_closes_the_lane_until_its_reset() -> None:
    lane = make()
    answer_with(lane, Quota(limit=100, remaining=0, reset=86400), now=0.1)
    assert lane.closed_until == pytest.approx(86400, abs=1)


def test_a_quota_that_leaves_enough_closes_nothing() -> None:
    lane = make()
    answer_with(lane, Quota(limit=100, remaining=90, reset=86400), now=0.1)
    assert lane.closed_until <= 0.1


def test_a_quota_is_forgotten_after_its_reset() -> None:
    lane = make()
    answer_with(lane, Quota(limit=100, remaining=0, reset=30))
    assert lane.ready_at(31.0) == 31.0


def test_a_quota_of_concurrency_is_kept() -> None:
    lane = make(start=8)
    answer_with(lane, Quota(concurrency=2))
    assert len(pour(lane, 1.0)) == 2


def test_a_refusal_counts_though_the_quota_says_there_is_room() -> None:
    lane = make(start=8)
    tickets = fill(lane, 0.0)
    quota = Quota(limit=100, remaining=90, reset=30)
    finish(lane, tickets[5], 0.1, Verdict(Outcome.THROTTLED, "429", None, quota))
    assert lane.concurrency < 8


# -- failures ----------------------------------------------------------------------------------


def test_five_failures_in_a_row_open_the_breaker() -> None:
    lane = make()
    now = 0.0
    for _ in range(5):
        now = exchange(lane, now, SILENT)
    assert lane.breaker_open


def test_failures_of_the_proxy_open_the_breaker() -> None:
    lane = make()
    now = 0.0
    for _ in range(5):
        now = exchange(lane, now, Verdict(Outcome.PROXY_FAILED, "407"))
    assert lane.breaker_open


def test_throttling_never_opens_the_breaker() -> None:
    lane = make()
    now = 0.0
    for _ in range(30):
        now = exchange(lane, now, THROTTLED)
    assert not lane.breaker_open


def test_an_open_breaker_lets_nothing_go() -> None:
    lane = make()
    now = 0.0
    for _ in range(5):
        now = exchange(lane, now, SILENT)
    assert lane.ready_at(now) >= now + 4.9


def test_failures_of_the_proxy_do_not_slow_the_lane() -> None:
    lane = make(start=8)
    for ticket in fill(lane, 0.0)[:4]:
        finish(lane, ticket, 0.1, Verdict(Outcome.PROXY_FAILED, "407"))
    assert lane.concurrency == 8


def test_random_failures_do_not_slow_the_lane() -> None:
    lane, rng, now = make(), random.Random(7), 0.0
    for _ in range(200):
        tickets = pour(lane, now, 0.1)
        now += 0.1
        for ticket in tickets:
            finish(
                lane, ticket, max(now, ticket.sent_at), FAILED if rng.random() < 0.05 else ACCEPTED
            )
    assert lane.concurrency == 64


def test_a_site_that_throttles_with_bare_failures_is_followed() -> None:
    lane, now, refused, sent = make(), 0.0, 0, 0
    for step in range(300):
        tickets = fill(lane, now)
        now = max(now, lane.ready_at(now)) if not tickets else now + 0.1
        for place, ticket in enumerate(tickets):
            bad = place >= 6
            refused += bad and step > 100
            sent += step > 100
            finish(lane, ticket, now, FAILED if bad else ACCEPTED)
    assert refused < 0.03 * sent


# -- stalled_for -------------------------------------------------------------------------------


def test_a_fresh_lane_is_not_stalled() -> None:
    assert make().stalled_for == 0.0


def test_stalls_count_from_the_first_send_when_nothing_was_ever_good() -> None:
    lane = make()
    finish(lane, lane.sent(5.0), 6.0, THROTTLED)
    finish(lane, lane.sent(14.0), 15.0, THROTTLED)
    assert lane.stalled_for == pytest.approx(10.0)


def test_stalls_count_from_the_last_good_answer() -> None:
    lane = make()
    good = exchange(lane, 0.0)
    bad = exchange(lane, good + 10.0, FAILED)
    assert lane.stalled_for == pytest.approx(bad - good)


def test_a_neutral_answer_ends_a_stall() -> None:
    lane = make()
    now = exchange(lane, 0.0, FAILED)
    exchange(lane, now, Verdict(Outcome.NEUTRAL, "404"))
    assert lane.stalled_for == 0.0


def test_time_in_which_nothing_was_asked_is_no_stall() -> None:
    lane = make()
    now = exchange(lane, 0.0, THROTTLED)
    before = lane.stalled_for
    lane.ready_at(now + 1800.0)
    assert lane.stalled_for == before


# -- silence -----------------------------------------------------------------------------------

LOST = Verdict(Outcome.FAILED, "TimeoutError", answered=False)


def test_a_lane_whose_requests_hang_takes_no_more() -> None:
    lane = make(start=4)
    lane.sent(0.0)
    assert lane.ready_at(3.0) == math.inf


def test_an_answer_ends_the_hanging() -> None:
    lane = make(start=4)
    first = lane.sent(0.0)
    lane.sent(0.0)
    finish(lane, first, 3.0)
    assert lane.ready_at(4.0) < math.inf


def test_a_lane_without_answers_sends_no_more_than_at_the_start() -> None:
    lane = make(start=4)
    now = 0.0
    for _ in range(40):
        now = exchange(lane, now)
        for ticket in fill(lane, now):
            finish(lane, ticket, now + 0.1)
    for ticket in fill(lane, now)[:3]:
        finish(lane, ticket, now + 0.1, LOST)
    pour(lane, now + 0.2, 1.0)
    assert lane.in_flight <= 4


def test_the_lane_starts_anew_when_the_breaker_closes() -> None:
    lane = make(start=4)
    now = 0.0
    for _ in range(5):
        now = exchange(lane, now, FAILED)
    for _ in range(3):
        now = exchange(lane, now)
    assert not lane.breaker_open
    for _ in range(30):
        now = exchange(lane, now)
    assert lane.rate == math.inf
