"""Failures that are throttling in disguise."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_backpressure.control.failure_sense import ENOUGH, TELLING, FailureSense, Move

BAD_START = "........" + "xxxxxxxx"
"""A site that served well and then fails: a trial begins."""


LOAD = 10.0
"""Requests per second that are allowed, unless told otherwise."""
LESS = 0.4 * LOAD


class Feed:
    """Feeds answers to a sense, each of a request sent just before."""

    def __init__(self, before: str = "") -> None:
        self.sense = FailureSense()
        self.seq = 0
        self.answers(before)

    def answer(self, *, failed: bool, load: float = LOAD, **how: bool) -> Move:
        self.seq += 1
        return self.sense.judge(self.seq, failed=failed, last_seq=self.seq, load=load, **how)

    def answers(self, marks: str, load: float = LOAD, **how: bool) -> list[Move]:
        """``x`` failed, ``.`` did not."""
        return [self.answer(failed=mark == "x", load=load, **how) for mark in marks]

    def round_trip(self, marks: str) -> list[Move]:
        """Answers to requests that were all sent before the first of these answers."""
        first, self.seq = self.seq + 1, self.seq + len(marks)
        judge, last = self.sense.judge, self.seq
        return [
            judge(seq, failed=mark == "x", last_seq=last, load=LOAD)
            for seq, mark in enumerate(marks, first)
        ]

    def late(self, *, failed: bool) -> Move:
        """An answer to the very first request."""
        return self.sense.judge(1, failed=failed, last_seq=self.seq, load=LOAD)

    def begin_trial(self) -> Feed:
        """Feed as many failures as it takes."""
        for _ in range(20):
            if self.answer(failed=True) is Move.TRIAL:
                return self
        raise AssertionError


# -- is it more than usual? --------------------------------------------------------------------


def test_a_fresh_site_is_not_suspicious() -> None:
    assert not Feed().sense.suspicious


def test_one_failure_in_twenty_is_no_reason_for_a_trial() -> None:
    rng, feed = random.Random(1), Feed()
    moves = {feed.answer(failed=rng.random() < 0.05) for _ in range(2000)}
    assert moves == {Move.NOTHING}


def test_many_failures_at_once_are_tried() -> None:
    assert Move.TRIAL in Feed().answers(BAD_START)


def test_a_few_failures_among_many_answers_are_not_tried() -> None:
    assert Move.TRIAL not in Feed().answers("........xxx.........")


def test_a_success_never_begins_a_trial() -> None:
    feed = Feed("........")
    while not feed.sense.suspicious:
        last = feed.answer(failed=True)
    assert last is Move.TRIAL


def test_two_failures_are_enough_where_nothing_was_ever_served() -> None:
    assert Feed().answers("xx") == [Move.NOTHING, Move.TRIAL]


def test_two_failures_are_not_enough_where_something_was_served() -> None:
    assert Feed().answers(".xx")[-1] is Move.NOTHING


def test_failures_become_usual_where_they_are_steady() -> None:
    assert Move.TRIAL not in Feed("...x" * 100).answers(BAD_START)


FEW = "........" + "xxxx"
"""Fewer failures than begin a trial, as a rule."""


def test_a_few_quick_failures_are_tried_while_the_load_grows() -> None:
    assert Move.TRIAL in Feed().answers(FEW, growing=True, quick=True)


def test_a_few_failures_that_took_as_long_as_answers_are_not_tried() -> None:
    assert Move.TRIAL not in Feed().answers(FEW, growing=True)


def test_a_few_quick_failures_are_not_tried_at_a_steady_load() -> None:
    assert Move.TRIAL not in Feed().answers(FEW, quick=True)


def test_one_quick_failure_in_twenty_is_no_reason_for_a_trial_either() -> None:
    feed = Feed("." * 400)
    assert Move.TRIAL not in feed.answers(("." * 19 + "x") * 50, growing=True, quick=True)


def test_failures_that_come_while_the_load_grows_do_not_become_usual() -> None:
    feed = Feed()
    feed.answers("...x." * 20, growing=True)
    assert Move.TRIAL in feed.answers(BAD_START)


def test_during_a_trial_a_failure_counts_as_a_refusal() -> None:
    assert Feed("........").begin_trial().answer(failed=True) is Move.REFUSED


def test_during_a_trial_an_answer_changes_nothing() -> None:
    assert Feed("........").begin_trial().answer(failed=False) is Move.NOTHING


def test_answers_to_requests_from_before_the_trial_do_not_count_in_it() -> None:
    feed = Feed("........").begin_trial()
    for _ in range(10 * TELLING):
        feed.late(failed=False)
    assert feed.sense.suspicious


def test_late_failures_from_before_the_trial_are_refusals_too() -> None:
    feed = Feed("........").begin_trial()
    assert feed.late(failed=True) is Move.REFUSED


def test_a_failure_at_a_load_that_tells_enough_is_no_refusal() -> None:
    feed = Feed("........").begin_trial()
    assert feed.answer(failed=True, load=0.9 * ENOUGH * LOAD) is Move.NOTHING


def test_failures_among_what_is_served_are_likely_throttling() -> None:
    assert Feed("........").begin_trial().sense.likely


def test_failures_right_after_much_was_served_are_likely_throttling() -> None:
    assert Feed("." * 20).begin_trial().sense.likely


def test_failures_of_a_site_that_never_served_are_likely_its_own() -> None:
    assert not Feed().begin_trial().sense.likely


def test_failures_of_a_site_that_serves_some_again_are_likely_throttling() -> None:
    feed = Feed().begin_trial()
    feed.answers(".x")
    assert feed.sense.likely


# -- do failures follow our load? --------------------------------------------------------------


def throttled() -> Feed:
    """A site of which more than half failed until less was sent."""
    feed = Feed(".").begin_trial()
    feed.answers("." * TELLING)
    return feed


def test_failures_of_most_that_end_with_the_load_are_throttling() -> None:
    assert throttled().sense.throttling


def test_a_failure_of_a_throttling_site_is_a_refusal() -> None:
    assert throttled().answer(failed=True) is Move.REFUSED


def test_an_answer_of_a_throttling_site_is_none() -> None:
    assert throttled().answer(failed=False) is Move.NOTHING


def test_a_throttling_site_is_suspicious() -> None:
    assert throttled().sense.suspicious


def test_a_site_that_was_down_and_is_up_again_does_not_throttle() -> None:
    feed = Feed("xx")
    feed.answers("xxxx" + "." * 12)
    assert not feed.sense.suspicious


def test_a_site_that_only_serves_some_after_it_served_none_is_tried_on() -> None:
    feed = Feed("xx")
    feed.answers("..x." * 4, load=LESS)
    assert (feed.sense.suspicious, feed.sense.throttling) == (True, False)


def test_a_step_at_which_clearly_less_fails_does_not_count() -> None:
    feed = Feed(".").begin_trial()  # four of five failed
    moves = feed.answers("xx.x" * 4, load=LESS)
    moves += feed.answers("x.......x......." * 4, load=LESS**2 / LOAD)
    assert Move.RESTORE not in moves[: 3 * TELLING]


def test_a_trial_goes_on_while_everything_fails() -> None:
    feed = Feed("........").begin_trial()
    feed.answers("x" * 4 * TELLING, load=LESS)
    assert feed.sense.suspicious


def test_a_trial_goes_on_while_the_load_has_not_halved() -> None:
    feed = Feed("........").begin_trial()
    feed.answers("x." * 2 * TELLING)
    assert feed.sense.suspicious


def test_a_share_of_answers_that_grew_as_the_load_fell_is_throttling() -> None:
    feed = Feed(".").begin_trial()  # four of five failed
    feed.answers("xx.." * 4, load=LESS)
    assert feed.sense.throttling


def test_failures_that_go_on_with_less_load_take_the_cuts_back() -> None:
    feed = Feed("........").begin_trial()
    block = "xx.x" * (TELLING // 4)
    moves = [move for step in (1, 2, 3) for move in feed.answers(block, load=LOAD / 4**step)]
    assert Move.RESTORE in moves


def test_failures_that_go_on_with_less_load_are_usual_from_then_on() -> None:
    feed = Feed("........").begin_trial()
    for step in range(1, 4):
        feed.answers("x." * TELLING, load=LOAD / 4**step)
    assert Move.TRIAL not in feed.answers("x." * 200)


def test_a_trial_is_not_given_up_after_two_blocks() -> None:
    feed = Feed("........").begin_trial()
    assert Move.RESTORE not in feed.answers(("xx.x" * TELLING)[: 2 * TELLING - 1], load=LESS)


# -- is it throttling still? -------------------------------------------------------------------

STEADY = ("." * 7 + "x") * 16
"""Of a load that follows a limit, an eighth is refused."""


def test_steady_failures_of_a_throttling_site_are_noise_after_all() -> None:
    assert Move.RESTORE in throttled().answers(STEADY)


def test_noise_after_all_leaves_no_suspicion() -> None:
    feed = throttled()
    while feed.answers("." * 7 + "x")[-1] is not Move.RESTORE:
        pass
    assert not feed.sense.suspicious


def test_what_was_found_to_be_noise_is_usual() -> None:
    feed = throttled()
    feed.answers(STEADY)
    assert Move.TRIAL not in feed.answers(STEADY * 4)


def test_a_limit_that_is_followed_well_stays_one() -> None:
    feed = throttled()
    feed.answers(("." * 49 + "x") * 40)
    assert feed.sense.throttling


def test_a_single_burst_of_refusals_is_forgotten() -> None:
    feed = throttled()
    feed.answers(("xxx" + "." * 100) * 10)
    assert feed.sense.throttling


def test_refusals_of_one_round_trip_are_one_sign() -> None:
    feed = throttled()
    feed.round_trip("x" * 20)
    assert feed.sense.throttling


def test_a_throttling_site_that_refuses_most_is_tried_anew_rather_than_trusted() -> None:
    moves = throttled().answers("x" * 20)
    assert (Move.TRIAL in moves, Move.RESTORE in moves) == (True, False)


def test_a_limit_that_fell_to_a_quarter_is_followed_in_the_end() -> None:
    feed = throttled()
    feed.answers("x" * 20)
    feed.answers("." * 4 * TELLING, load=LOAD / 8)
    assert feed.sense.throttling


def test_it_takes_more_to_doubt_a_verdict_again() -> None:
    feed, counts = throttled(), []
    for _ in range(2):
        counts.append(0)
        while feed.sense.throttling:
            feed.answers("...x")
            counts[-1] += 1
        for _ in range(50):  # in vain: more than that fails at the load of before
            if feed.answer(failed=True) is Move.TRIAL:
                break
        feed.answers("." * 3 * TELLING, load=LESS)
        assert feed.sense.throttling
    assert counts[1] > counts[0]


# -- whatever comes ----------------------------------------------------------------------------

HISTORY = st.lists(st.tuples(st.booleans(), st.sampled_from([1.0, 3.0, 10.0])), max_size=300)
"""Whether an answer failed, and the load."""


@given(HISTORY)
def test_only_failures_are_refusals(answers: list[tuple[bool, float]]) -> None:
    feed = Feed()
    for failed, load in answers:
        move = feed.answer(failed=failed, load=load)
        assert failed or move is not Move.REFUSED


@given(HISTORY)
def test_what_is_taken_back_was_tried_before(answers: list[tuple[bool, float]]) -> None:
    feed, trials = Feed(), 0
    for failed, load in answers:
        move = feed.answer(failed=failed, load=load)
        trials += (move is Move.TRIAL) - (move is Move.RESTORE)
        assert trials >= 0


@given(HISTORY)
def test_no_trial_begins_during_another(answers: list[tuple[bool, float]]) -> None:
    feed = Feed()
    for failed, load in answers:
        on_trial = feed.sense.suspicious and not feed.sense.throttling
        move = feed.answer(failed=failed, load=load)
        assert not (on_trial and move is Move.TRIAL)


@given(HISTORY, st.integers(0, TELLING - 1))
def test_no_trial_outlasts_a_load_that_falls_on(
    answers: list[tuple[bool, float]], failures: int
) -> None:
    feed, load, on_trial = Feed(), 1.0, []
    for failed, load in answers:
        feed.answer(failed=failed, load=load)
    for _ in range(20):
        load *= 0.4
        feed.answers("x" * failures + "." * (TELLING - failures), load=load)
        on_trial.append(feed.sense.suspicious and not feed.sense.throttling)
    assert not all(on_trial)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("share", [0.1, 0.2, 0.4, 0.6])
def test_a_site_that_fails_at_random_is_not_slowed_for_long(share: float, seed: int) -> None:
    rng, feed, load, slowed = random.Random(seed), Feed(), LOAD, 0
    for _ in range(5000):
        move = feed.answer(failed=rng.random() < share, load=load)
        if move in (Move.TRIAL, Move.REFUSED):
            load *= 0.8
        elif move is Move.RESTORE:
            load = LOAD
        slowed += load < LOAD
    assert slowed < 1000
