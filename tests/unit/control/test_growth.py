"""How far above what was good a cap is tried."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_backpressure.control.growth import (
    DIP,
    FIRST_STRETCH,
    HOLD,
    HOLD_PER_PAUSE,
    HOLD_ROUNDS,
    HOLD_SECONDS,
    LEAST_STRETCH,
    PATIENT,
    PROBE,
    Growth,
)

ACCEPTS = st.lists(
    st.tuples(st.floats(0.0, 20.0), st.booleans(), st.floats(0.0, 10.0), st.floats(0.0, 100.0)),
    max_size=200,
)


class Hold:
    """Feeds accepts to a growth that was just cut: that of a rate, or of a concurrency."""

    def __init__(self, *, by_rate: bool = True) -> None:
        self.growth = Growth()
        self.by_rate = by_rate
        self.now = 0.0
        self.cut(settled=False)

    def cut(self, *, settled: bool) -> None:
        self.growth.restart(self.now, settled=settled)

    def accept(
        self, *, gap: float = 10.0, limited: bool = True, latency: float = 0.0, cost: float = 0.0
    ) -> bool:
        self.now += gap
        return self.growth.accepted(
            self.now, limited=limited, latency=latency, cost=cost, by_rate=self.by_rate
        )

    def last_out(self, *, gap: float = 10.0, latency: float = 0.0, cost: float = 0.0) -> int:
        """Accepts that end the hold."""
        for number in itertools.count(1):
            if self.accept(gap=gap, latency=latency, cost=cost):
                return number
        raise AssertionError

    def hold(self, *, settled: bool) -> int:
        """One whole hold, noted as such; the accepts that it took."""
        self.cut(settled=settled)
        accepts = self.last_out()
        self.growth.held(settled=settled)
        return accepts


def test_tries_what_is_good_to_begin_with() -> None:
    assert Growth().factor == 1.0


def test_a_hold_begins_a_hair_below_what_is_good() -> None:
    assert Hold().growth.factor == 1 - DIP


def test_a_hold_ends_at_what_is_good() -> None:
    hold = Hold()
    hold.last_out()
    assert hold.growth.factor == 1.0


def test_the_end_of_a_hold_is_told_once() -> None:
    hold = Hold()
    assert [hold.accept() for _ in range(2 * HOLD)].count(True) == 1


def test_a_probe_begins_when_the_hold_is_over() -> None:
    hold = Hold()
    hold.last_out()
    assert hold.growth.probing


def test_what_the_cap_did_not_hold_back_does_not_count() -> None:
    hold = Hold()
    for _ in range(HOLD):
        hold.accept(limited=False)
    assert hold.growth.factor == 1 - DIP


def test_time_in_which_the_cap_held_nothing_back_does_not_count() -> None:
    hold = Hold()
    hold.accept(gap=1000.0, limited=False)
    assert not hold.accept(gap=0.01)


def test_accepts_in_quick_succession_do_not_end_a_hold_before_its_seconds() -> None:
    hold = Hold()
    hold.last_out(gap=0.001)
    assert hold.now == pytest.approx(FIRST_STRETCH * HOLD_SECONDS, rel=0.01)


def test_a_slow_site_is_held_for_as_many_round_trips() -> None:
    hold = Hold()
    hold.last_out(gap=0.01, latency=2.0)
    assert hold.now == pytest.approx(FIRST_STRETCH * HOLD_ROUNDS * 2.0, rel=0.01)


def test_a_dear_refusal_is_risked_less_often() -> None:
    hold = Hold()
    hold.last_out(gap=0.1, cost=5.0)
    assert hold.now == pytest.approx(0.5 * HOLD_PER_PAUSE * 5.0, rel=0.01)


def test_a_dear_refusal_of_a_limit_that_stands_is_risked_least_often() -> None:
    hold = Hold()
    hold.growth.be_patient()
    hold.last_out(gap=0.5, cost=5.0)
    assert hold.now == pytest.approx(PATIENT * HOLD_PER_PAUSE * 5.0, rel=0.01)


# -- probing -----------------------------------------------------------------------------------


def probing() -> Hold:
    hold = Hold()
    hold.last_out()
    return hold


def test_a_probe_grows_ever_faster() -> None:
    hold = probing()
    factors = []
    for _ in range(PROBE + PROBE // 2):
        hold.accept()
        factors.append(hold.growth.factor)
    steps = [b - a for a, b in itertools.pairwise(factors)]
    assert steps == sorted(steps)


def test_a_probe_tries_nine_times_as_much_in_the_end() -> None:
    hold = probing()
    for _ in range(PROBE):
        hold.accept()
    assert hold.growth.factor == pytest.approx(9.0, rel=0.5)


def test_a_cap_that_is_never_refused_does_not_grow_for_ever() -> None:
    hold = probing()
    for _ in range(PROBE * 10):
        hold.accept()
    farthest = hold.growth.factor
    for _ in range(PROBE * 100):
        hold.accept()
    assert hold.growth.factor == farthest < 10_000


def test_a_probe_takes_its_round_trips() -> None:
    hold = probing()
    for _ in range(PROBE):
        hold.accept(gap=0.1, latency=10.0)
    assert hold.growth.factor < 1.001


def test_what_a_probe_gained_is_known_when_it_is_refused() -> None:
    hold = probing()
    for _ in range(PROBE):
        hold.accept()
    hold.cut(settled=True)
    assert 1.0 < hold.growth.gained < PROBE


def test_a_hold_that_is_refused_gained_nothing() -> None:
    hold = probing()
    for _ in range(PROBE):
        hold.accept()
    hold.cut(settled=True)
    hold.cut(settled=True)
    assert hold.growth.gained == 0.0


def test_a_hold_that_lasts_ends_the_count_of_what_was_gained() -> None:
    hold = probing()
    for _ in range(PROBE):
        hold.accept()
    hold.hold(settled=True)
    assert hold.growth.gained == 0.0


# -- how long it is held -----------------------------------------------------------------------


def test_the_first_hold_is_short() -> None:
    assert Hold().last_out() == pytest.approx(FIRST_STRETCH * HOLD, abs=1)


def test_a_concurrency_is_guessed_less_well_at_first_and_held_shorter() -> None:
    assert Hold(by_rate=False).last_out() < Hold(by_rate=True).last_out()


def probe_of(*, by_rate: bool, holds: int) -> float:
    """How far one grows in a few accepts after so many holds."""
    hold = Hold(by_rate=by_rate)
    for _ in range(holds):
        hold.hold(settled=True)
    for _ in range(PROBE // 4):
        hold.accept()
    return hold.growth.factor


def test_a_concurrency_grows_faster_after_the_first_hold() -> None:
    assert probe_of(by_rate=False, holds=1) > probe_of(by_rate=True, holds=1)


def test_a_concurrency_that_was_held_twice_grows_as_a_rate_does() -> None:
    by_rate, by_concurrency = (probe_of(by_rate=kind, holds=3) for kind in (True, False))
    assert by_concurrency == pytest.approx(by_rate, rel=0.01)


def test_a_limit_that_has_stood_is_held_ever_longer() -> None:
    hold = Hold()
    lengths = [hold.hold(settled=True) for _ in range(4)]
    assert lengths == sorted(set(lengths))


def test_no_hold_is_longer_than_a_whole_one() -> None:
    hold = Hold()
    assert max(hold.hold(settled=True) for _ in range(9)) == pytest.approx(HOLD, abs=1)


def test_a_limit_that_moved_is_held_shortly() -> None:
    hold = Hold()
    for _ in range(5):
        hold.hold(settled=True)
    assert hold.hold(settled=False) == pytest.approx(LEAST_STRETCH * HOLD, abs=1)


def test_a_limit_that_moved_once_is_trusted_less_afterwards() -> None:
    hold = Hold()
    for _ in range(5):
        hold.hold(settled=True)
    hold.hold(settled=False)
    assert hold.hold(settled=True) == pytest.approx(LEAST_STRETCH * HOLD, abs=1)


def test_a_limit_that_moved_once_is_held_longer_by_less_each_time() -> None:
    firm, moved = Hold(), Hold()
    firm.hold(settled=False)
    for _ in range(2):
        moved.hold(settled=False)
    for hold in (firm, moved):
        hold.hold(settled=True)
    assert moved.hold(settled=True) < firm.hold(settled=True)


def test_after_a_new_start_the_first_hold_is_short_again() -> None:
    hold = Hold()
    for _ in range(5):
        hold.hold(settled=True)
    hold.growth.know_nothing()
    assert hold.hold(settled=True) == pytest.approx(FIRST_STRETCH * HOLD, abs=1)


def test_patience_holds_at_once() -> None:
    hold = Hold()
    hold.growth.be_patient()
    assert hold.last_out() == pytest.approx(PATIENT * HOLD, abs=1)


def test_patience_outlasts_the_next_cut() -> None:
    hold = Hold()
    hold.hold(settled=True)
    hold.growth.be_patient()
    assert hold.hold(settled=True) == pytest.approx(PATIENT * HOLD, abs=1)


# -- whatever comes ----------------------------------------------------------------------------


@given(ACCEPTS, st.booleans())
def test_never_falls_while_nothing_is_refused(
    accepts: list[tuple[float, bool, float, float]], by_rate: bool
) -> None:
    hold = Hold(by_rate=by_rate)
    for gap, limited, latency, cost in accepts:
        before = hold.growth.factor
        hold.accept(gap=gap, limited=limited, latency=latency, cost=cost)
        assert hold.growth.factor >= before


@given(st.lists(st.tuples(ACCEPTS, st.booleans(), st.booleans()), max_size=6))
def test_is_never_further_below_what_is_good_than_the_dip(
    holds: list[tuple[list[tuple[float, bool, float, float]], bool, bool]],
) -> None:
    hold = Hold()
    for accepts, settled, stays in holds:
        hold.cut(settled=settled)
        for gap, limited, latency, cost in accepts:
            if hold.accept(gap=gap, limited=limited, latency=latency, cost=cost):
                hold.growth.held(settled=stays)
            assert 1 - DIP <= hold.growth.factor < math.inf
