"""What refusals say about a limit on the rate."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_backpressure.control.rate_sense import DEAR, SAFE, RateSense

RATES = st.floats(0.01, 1000.0)


def served(rate: float, *, seconds: float = 20.0) -> RateSense:
    """A sense that saw so many a second since its last mark at 0."""
    sense = RateSense(0.0)
    sense.accepted = round(rate * seconds - 0.5)
    return sense


def grown(sense: RateSense, *, gained: float = 1.0, dear: bool = False) -> float:
    """What to hold after 20 s of growth from 10 to 15 a second."""
    return sense.after_growth(20.0, 10.0, reached=15.0, gained=gained, late=0.0, dear=dear)


def held(sense: RateSense, *, good: float = 10.0, late: float = 0.0) -> float:
    """What to hold where ``good`` was refused after 20 s."""
    return sense.after_hold(20.0, good, cut=0.5, late=late)


# -- a rate that grew until it was refused -----------------------------------------------------


def test_what_was_reached_is_believed_at_first() -> None:
    assert grown(served(10.0)) == pytest.approx(SAFE * 15.0)


def test_where_a_refusal_is_dear_only_what_was_measured_is_believed() -> None:
    assert grown(served(12.0), dear=True) == pytest.approx(DEAR * 12.0, rel=0.01)


def test_what_was_reached_is_believed_less_after_it_did_not_hold() -> None:
    sense = served(10.0)
    sense.refuted(1.0)
    assert 10.0 < grown(sense) < 13.0


def test_what_never_held_counts_next_to_nothing() -> None:
    sense = served(10.0)
    for _ in range(20):
        sense.refuted(1.0)
    assert grown(sense) == pytest.approx(10.0, rel=0.01)


def test_what_held_is_believed_again() -> None:
    sense = served(10.0)
    sense.refuted(1.0)
    for _ in range(5):
        sense.confirmed()
    assert grown(sense) == pytest.approx(SAFE * 15.0)


def test_what_was_measured_is_believed_in_any_case() -> None:
    sense = served(13.0)
    for _ in range(20):
        sense.refuted(1.0)
    assert grown(sense) == pytest.approx(13.0, rel=0.02)


def test_more_was_gained_than_a_bucket_saves_up_so_the_limit_has_moved() -> None:
    sense = served(10.0)
    for _ in range(20):
        sense.refuted(1.0)
    assert grown(sense, gained=100.0) > 13.0


def test_as_much_gain_as_a_bucket_saved_up_before_tells_nothing_new() -> None:
    sense = served(10.0)
    for _ in range(20):
        sense.refuted(100.0)
    assert grown(sense, gained=100.0) == pytest.approx(10.0, rel=0.01)


def test_what_was_measured_before_the_limit_moved_is_forgotten() -> None:
    sense = served(10.0)
    grown(sense, gained=100.0)
    sense.accepted += 60
    assert sense.rate(22.0)[0] == pytest.approx(30.0, rel=0.05)


# -- the first rate ----------------------------------------------------------------------------


def emptied(burst: int) -> RateSense:
    """A sense of a bucket that served so many at once until it refused at 0, and 5 in 0.5 s."""
    sense = RateSense(0.0)
    sense.accepted = burst
    sense.forget(0.0)
    sense.accepted += 5
    return sense


def test_the_first_rate_is_what_was_served_since_the_bucket_was_empty() -> None:
    assert emptied(10).first(0.5, 100.0, late=0.0) == pytest.approx(12.0)


def test_the_first_rate_is_no_more_than_was_tried() -> None:
    assert emptied(10).first(0.5, 8.0, late=0.0) == 8.0


def test_what_a_bucket_that_holds_much_let_be_reached_is_hardly_believed() -> None:
    sense = emptied(100)
    sense.first(0.5, 100.0, late=0.0)
    sense.accepted += 240
    sense.mark(20.5)
    sense.accepted += 120
    reached = sense.after_growth(30.5, 12.0, reached=18.0, gained=30.0, late=0.0, dear=False)
    assert 12.0 < reached < 12.2


def test_what_a_bucket_that_holds_one_let_be_reached_is_believed() -> None:
    sense = emptied(1)
    sense.first(0.5, 100.0, late=0.0)
    reached = sense.after_growth(30.5, 12.0, reached=18.0, gained=1.0, late=0.0, dear=False)
    assert reached == pytest.approx(SAFE * 18.0)


# -- a rate that was held ----------------------------------------------------------------------


def test_where_enough_was_accepted_what_was_measured_is_held() -> None:
    assert held(served(7.0)) == pytest.approx(7.0, rel=0.01)


def test_what_was_refused_is_not_held_though_more_was_measured() -> None:
    assert held(served(20.0)) == 10.0


def test_where_too_little_was_accepted_the_guess_counts_as_much() -> None:
    sense = RateSense(0.0)
    sense.accepted = 2
    measured = 2.5 / 20.0
    assert held(sense) == pytest.approx(math.sqrt(0.5 * 10.0 * measured))


def test_lateness_of_our_own_is_no_limit_of_the_site() -> None:
    assert held(served(5.0), late=0.08) == pytest.approx(1 / 0.12, rel=0.01)


def test_nonsensical_lateness_is_left_out() -> None:
    assert held(served(5.0), late=3.0) == pytest.approx(5.0, rel=0.01)


# -- whatever comes ----------------------------------------------------------------------------


class Story:
    """A sense to which anything happens."""

    def __init__(self, events: list[tuple[str, float]]) -> None:
        self.sense = RateSense(0.0)
        self.now = 0.0
        for what, much in events:
            self.tell(what, much)

    def tell(self, what: str, much: float) -> None:
        sense = self.sense
        if what == "accept":
            sense.accepted += 1
            self.now += much
        elif what == "mark":
            sense.mark(self.now)
        elif what == "pause":
            sense.pause(much)
        elif what == "held":
            sense.confirmed()
        else:
            sense.refuted(much)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["accept", "accept", "accept", "mark", "pause", "held", "refuted"]),
        st.integers(0, 10_000).map(lambda thousandths: thousandths / 1000),
    ),
    max_size=100,
)


@given(EVENTS, RATES, st.floats(1.0, 9.0), st.floats(0, 100), st.floats(0, 0.01), st.booleans())
def test_after_growth_never_more_than_was_reached_is_held(
    events: list[tuple[str, float]],
    good: float,
    factor: float,
    gained: float,
    late: float,
    dear: bool,
) -> None:
    story, reached = Story(events), factor * good
    rate = story.sense.after_growth(
        story.now, good, reached=reached, gained=gained, late=late, dear=dear
    )
    assert (DEAR if dear else 1.0) * good <= rate <= reached


@given(EVENTS, RATES, st.floats(0.1, 1.0), st.floats(0, 0.01))
def test_after_a_hold_never_more_than_was_held_is_held(
    events: list[tuple[str, float]], good: float, cut: float, late: float
) -> None:
    story = Story(events)
    assert 0 < story.sense.after_hold(story.now, good, cut=cut, late=late) <= good
