"""The lane when its requests fail, or are not answered at all."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from scrapy_backpressure.control.lane import Lane, Ticket
from scrapy_backpressure.control.outcome import Outcome
from tests.unit.control.lanes import (
    ACCEPTED,
    FAILED,
    LATENCY,
    THROTTLED,
    exchange,
    exchanges,
    fill,
    finish,
    make,
    pour,
)


@pytest.mark.parametrize("outcome", Outcome)
def test_an_outcome_that_says_enough_stays_what_it_is(outcome: Outcome) -> None:
    lane = make()
    assert finish(lane, lane.sent(0.0), 0.1, outcome) is outcome


def test_five_requests_in_a_row_without_an_answer_open_the_breaker() -> None:
    lane = make()
    exchanges(lane, 5, FAILED, answered=False)
    assert lane.breaker_open


def test_failures_of_the_proxy_open_the_breaker() -> None:
    lane = make()
    exchanges(lane, 5, Outcome.PROXY_FAILED)
    assert lane.breaker_open


def test_throttling_never_opens_the_breaker() -> None:
    lane = make()
    exchanges(lane, 30, THROTTLED)
    assert not lane.breaker_open


def test_an_open_breaker_lets_nothing_go() -> None:
    lane = make()
    now = exchanges(lane, 5, FAILED, answered=False)
    assert lane.ready_at(now) >= now + 4.9


def test_a_cancelled_probe_of_the_breaker_makes_room_for_the_next() -> None:
    lane = make()
    now = lane.ready_at(exchanges(lane, 5, FAILED, answered=False))
    lane.cancel(lane.sent(now), now)
    assert lane.ready_at(now) == now


def test_failures_of_the_proxy_do_not_slow_the_lane() -> None:
    lane = make(start=8)
    for ticket in fill(lane, 0.0)[:4]:
        finish(lane, ticket, 0.1, Outcome.PROXY_FAILED)
    assert lane.concurrency == 8


def test_neutral_answers_count_as_accepted() -> None:
    lane = make()
    for ticket in fill(lane, 0.0):
        finish(lane, ticket, 0.1, Outcome.NEUTRAL)
    assert lane.concurrency > 4


def test_the_lane_starts_anew_when_the_breaker_closes() -> None:
    lane = make()
    now = exchanges(lane, 5, FAILED, answered=False)
    now = exchanges(lane, 3, now=now)
    assert not lane.breaker_open
    exchanges(lane, 30, now=now)
    assert lane.rate == math.inf


def test_the_lane_starts_anew_too_when_a_refusal_closed_the_breaker() -> None:
    lane = make(start=16)
    now = exchanges(lane, 30)
    now = exchanges(lane, 5, FAILED, answered=False, now=now)
    now = exchange(lane, exchanges(lane, 2, now=now), THROTTLED)
    assert not lane.breaker_open
    exchange(lane, now)
    assert lane.concurrency == 1


def crawl(lane: Lane, seconds: float, *, serves: int, share: float = 0.0) -> list[Outcome]:
    """What became of requests to a site that serves so many at once and fails the rest.

    ``share``: of those served, the part that fails at random.
    """
    rng, now, outcomes = random.Random(7), 0.0, []
    while now < seconds:
        tickets = pour(lane, now, LATENCY)
        now += LATENCY
        for place, ticket in enumerate(tickets):
            bad = place >= serves or rng.random() < share
            at = max(now, ticket.sent_at)
            outcomes.append(finish(lane, ticket, at, FAILED if bad else ACCEPTED))
    return outcomes


def test_random_failures_do_not_slow_the_lane() -> None:
    lane = make()
    crawl(lane, 30.0, serves=64, share=0.05)
    assert lane.concurrency == 64


def test_a_site_that_throttles_with_bare_failures_is_followed() -> None:
    outcomes = crawl(make(), 60.0, serves=6)[500:]
    assert outcomes.count(ACCEPTED) > 0.97 * len(outcomes)


def test_a_failure_that_follows_our_load_is_told_as_throttling() -> None:
    assert THROTTLED in crawl(make(), 60.0, serves=6)


def test_a_failure_of_a_site_that_throttles_is_not_told_as_one() -> None:
    assert FAILED not in crawl(make(), 60.0, serves=6)[500:]


def test_what_failures_cost_a_lane_is_given_back_when_they_do_not_follow_its_load() -> None:
    lane, now, concurrency = make(), 0.0, []
    for number in range(200):  # one at a time, and every third one fails
        now = exchange(lane, now, FAILED if number % 3 == 1 else ACCEPTED)
        concurrency.append(lane.concurrency)
    assert min(concurrency) < 3 < concurrency[-1]


def test_random_failures_are_told_as_failures() -> None:
    outcomes = crawl(make(), 30.0, serves=64, share=0.05)
    assert FAILED in outcomes
    assert THROTTLED not in outcomes


def test_a_failure_that_took_very_long_is_no_throttling() -> None:
    lane = make()
    now = exchanges(lane, 10)
    for _ in range(8):
        ticket = lane.sent(now)
        now += 1.5
        finish(lane, ticket, now, FAILED)
    assert not lane.found_limit


# -- silence -----------------------------------------------------------------------------------


def answered_once(*, start: float = 4, ceiling: int = 64, timeout: float = 180.0) -> Lane:
    """A lane to a site that answers at once, now silent since 0.1 s."""
    lane = make(start=start, ceiling=ceiling, timeout=timeout)
    exchange(lane, 0.0)
    return lane


def knocks(lane: Lane, now: float, count: int) -> list[float]:
    """When a lane that gets no answer sends again."""
    times = []
    for _ in range(count):
        while (at := lane.ready_at(now)) > now:
            assert at < math.inf
            now = at
        lane.sent(now)
        times.append(now)
    return times


def test_a_full_lane_wakes_when_it_hangs() -> None:
    lane = answered_once()
    pour(lane, 0.1, 1.0)
    assert lane.ready_at(1.1) == pytest.approx(2.1)


def test_a_hanging_lane_knocks_after_three_seconds_of_silence() -> None:
    lane = answered_once()
    pour(lane, 0.1, 1.0)
    assert knocks(lane, 1.1, 1) == pytest.approx([0.1 + 3.0])


def test_a_hanging_lane_sends_nothing_but_knocks() -> None:
    lane = answered_once()
    lane.sent(0.1)
    assert lane.ready_at(2.5) == pytest.approx(3.1)


def silence(timeout: float, seconds: float) -> list[float]:
    """When a lane knocks in a silence of so many seconds; each request waits for its timeout."""
    lane, now, times, waiting = answered_once(timeout=timeout), 0.1, list[float](), list[Ticket]()
    while now < 0.1 + seconds:
        lost_at = waiting[0].sent_at + timeout if waiting else math.inf
        at = lane.ready_at(now)
        if at <= now:
            times.append(now - 0.1)
            waiting.append(lane.sent(now))
        elif at < lost_at:
            now = at
        else:
            now = lost_at
            finish(lane, waiting.pop(0), now, FAILED, answered=False)
    return [at for at in times if at > 2.0]


def test_each_knock_comes_after_the_same_further_share_of_the_silence() -> None:
    times = silence(180.0, 170.0)
    assert times[:9] == pytest.approx([3.0 * 60 ** (number / 9) for number in range(9)])


@pytest.mark.parametrize("timeout", [4.0, 8.0, 15.0, 60.0, 180.0, 300.0])
def test_about_nine_knocks_at_most_wait_for_their_timeout(timeout: float) -> None:
    times = silence(timeout, 3 * timeout)
    assert max(sum(at - timeout < other <= at for other in times) for at in times) <= 10


@pytest.mark.parametrize("timeout", [8.0, 15.0, 60.0, 180.0])
def test_the_end_of_a_silence_of_ten_seconds_is_noticed_within_five(timeout: float) -> None:
    times = [at for at in silence(timeout, 20.0) if at < 17.0]
    assert max(later - at for at, later in pairwise(times) if at < 10.0) <= 5.0


def test_knocks_are_a_second_apart_however_short_the_timeout_is() -> None:
    times = silence(4.0, 10.0)
    assert min(later - at for at, later in pairwise(times)) > 0.99


def test_a_silent_site_costs_next_to_nothing_after_hours() -> None:
    times = silence(180.0, 6 * 3600.0)
    assert len([at for at in times if at > 3600.0]) <= 18000 / 450


def test_a_hanging_lane_knocks_up_to_the_ceiling() -> None:
    lane = answered_once(start=1, ceiling=5)
    knocks(lane, 0.1, 5)
    assert lane.ready_at(1e6) == math.inf


def test_knocks_keep_the_pace() -> None:
    lane = Lane(ceiling=8, now=0.0, rng=random.Random(1), seen=(True, 0.05))
    now = exchange(lane, 0.0)
    sent_at = lane.ready_at(now)
    lane.sent(sent_at)
    assert lane.ready_at(sent_at + 4.0) >= sent_at + 19.0


def test_a_site_that_has_never_answered_is_not_knocked_at() -> None:
    lane = make(start=1)
    lane.sent(0.0)
    assert lane.ready_at(1e6) == math.inf


def of_unknown_site() -> Lane:
    return Lane(ceiling=64, start=8, now=0.0, rng=random.Random(1), most_unknown=2)


def test_few_requests_wait_for_the_first_answer_of_a_site() -> None:
    assert len(fill(of_unknown_site(), 0.0)) == 2


def test_after_the_first_answer_of_a_site_as_many_go_as_else() -> None:
    lane = of_unknown_site()
    exchange(lane, 0.0)
    assert len(pour(lane, 0.1, 0.5)) >= 8


def test_a_slow_site_is_given_five_times_its_latency() -> None:
    lane = make(start=1)
    finish(lane, lane.sent(0.0), 10.0)
    lane.sent(10.0)
    lane.sent(10.0)
    assert lane.ready_at(50.0) == pytest.approx(60.0)


def test_an_answer_ends_the_hanging() -> None:
    lane = answered_once()
    first, _ = lane.sent(0.1), lane.sent(0.1)
    assert lane.ready_at(2.2) > 2.2
    finish(lane, first, 3.0)
    assert lane.ready_at(3.0) <= 3.0


def silence_that_is_over(*, lost: bool) -> Lane:
    """A lane whose requests were swallowed, until one that knocked was answered."""
    lane = answered_once(start=16)
    tickets = pour(lane, 0.1, 1.0)
    finish(lane, lane.sent(10.0), 10.1)
    for ticket in tickets if lost else []:
        finish(lane, ticket, 30.0, FAILED, answered=False)
    return lane


def test_what_was_lost_in_a_silence_that_is_over_takes_no_room() -> None:
    lane = silence_that_is_over(lost=False)
    assert lane.in_flight >= 16
    assert len(pour(lane, 10.1, LATENCY)) >= 16


def test_what_was_lost_in_a_silence_that_is_over_counts_up_to_the_ceiling() -> None:
    lane = answered_once(start=4, ceiling=6)
    pour(lane, 0.1, 1.0)
    finish(lane, lane.sent(10.0), 10.1)
    pour(lane, 10.1, LATENCY)
    assert lane.in_flight == 6


def test_single_pages_that_are_never_answered_do_not_fill_the_crawl() -> None:
    lane = Lane(ceiling=64, now=0.0, rng=random.Random(1), seen=(False, 4.0))
    now = exchange(lane, 0.0)
    for _ in range(15):  # each silence swallows what was under way
        pour(lane, now, 1.0)
        now += 10.0
        finish(lane, lane.sent(now), now, ACCEPTED)
    assert lane.in_flight <= 20


def test_losses_during_a_silence_do_not_slow_the_lane() -> None:
    lane = answered_once(start=16)
    before = lane.concurrency
    for ticket in pour(lane, 0.1, 1.0):
        finish(lane, ticket, ticket.sent_at + 8.0, FAILED, answered=False)
    assert lane.concurrency == before
    assert not lane.found_limit


def test_losses_in_a_silence_that_is_over_do_not_open_the_breaker_later() -> None:
    lane = answered_once(start=16)
    tickets = pour(lane, 0.1, 1.0)
    for ticket in tickets[:8]:
        finish(lane, ticket, 8.1, FAILED, answered=False)
    knock = lane.sent(9.0)
    finish(lane, knock, 9.1)
    for _ in range(4):
        finish(lane, lane.sent(9.2), 9.3, FAILED, answered=False)
    assert not lane.breaker_open


def test_a_refusal_is_no_end_of_a_silence() -> None:
    lane = answered_once(start=4)
    tickets = pour(lane, 0.1, 1.0)
    finish(lane, lane.sent(10.0), 10.1, THROTTLED)
    assert not [at for ticket in pour(lane, 10.1, 1.0) if (at := ticket.sent_at) < 11.0]
    assert lane.in_flight == len(tickets)


def test_losses_from_before_a_silence_that_is_over_do_not_slow_the_lane() -> None:
    slowed, other = (silence_that_is_over(lost=lost) for lost in (True, False))
    assert slowed.concurrency == other.concurrency >= 16


def test_losses_from_before_a_silence_that_is_over_open_no_breaker() -> None:
    assert not silence_that_is_over(lost=True).breaker_open


def test_a_silence_that_is_over_is_no_found_limit() -> None:
    assert not silence_that_is_over(lost=True).found_limit


def test_a_lane_without_answers_sends_no_more_than_at_the_start() -> None:
    lane = make(start=4)
    now = 0.0
    for _ in range(10):
        tickets = pour(lane, now, LATENCY)
        now += LATENCY
        for ticket in tickets:
            finish(lane, ticket, now)
    for ticket in pour(lane, now, LATENCY):
        finish(lane, ticket, now + LATENCY, FAILED, answered=False)
    assert len(pour(lane, now + 6.0, 1.0)) <= 4


def test_a_site_that_refuses_for_days_is_waited_for_all_the_same() -> None:
    lane, now = make(), 0.0
    for _ in range(1200):
        now = exchange(lane, now, FAILED)
    assert lane.ready_at(now) > now
