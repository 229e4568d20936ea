"""Whether more at once brings more answers, or only longer waits."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_backpressure.control.queueing import LEAST, QueueSense, Sample

LATENCY = 0.1
FLOATS = st.floats(0.001, 100.0)


def feed(sense: QueueSense, load: int, latency: float, times: int = 20) -> float | None:
    """The first finding, if there is one."""
    found = (sense.accepted(load, latency) for _ in range(times))
    return next((at_once for at_once in found if at_once is not None), None)


@given(st.lists(FLOATS, min_size=2, max_size=50))
def test_a_sample_knows_its_mean(values: list[float]) -> None:
    sample = Sample()
    for value in values:
        sample.add(value)
    assert sample.mean == pytest.approx(statistics.mean(values))


@given(st.lists(FLOATS, min_size=2, max_size=50))
def test_a_sample_knows_its_variance(values: list[float]) -> None:
    sample = Sample()
    for value in values:
        sample.add(value)
    assert sample.variance == pytest.approx(statistics.variance(values), rel=1e-6, abs=1e-9)


def test_a_single_value_has_no_variance() -> None:
    sample = Sample()
    sample.add(3.0)
    assert sample.variance == 0.0


def test_latency_that_grows_with_the_load_is_a_queue() -> None:
    sense = QueueSense(4)
    feed(sense, 4, LATENCY)
    assert feed(sense, 8, 2 * LATENCY) == pytest.approx(4.0)


def test_a_queue_is_told_with_what_is_served_as_fast_as_before() -> None:
    sense = QueueSense(4)
    feed(sense, 4, LATENCY)
    assert feed(sense, 12, 2.4 * LATENCY) == pytest.approx(5.0)


def test_a_reference_with_a_queue_already_is_gone_back_behind() -> None:
    sense = QueueSense(5)
    feed(sense, 5, LATENCY)
    sense.restart(6)
    feed(sense, 6, 1.2 * LATENCY)
    assert feed(sense, 9, 1.8 * LATENCY) == pytest.approx(5.0, rel=0.03)


def test_a_site_that_has_become_slower_is_not_gone_back_from_for_ever() -> None:
    sense = QueueSense(5)
    feed(sense, 5, LATENCY)
    for _ in range(40):
        sense.restart(6)
        feed(sense, 6, 3 * LATENCY)
    assert feed(sense, 9, 4.5 * LATENCY) == pytest.approx(6.0, rel=0.03)


def test_latency_that_stays_is_no_queue() -> None:
    sense = QueueSense(4)
    feed(sense, 4, LATENCY)
    assert feed(sense, 8, LATENCY) is None


def test_less_than_half_of_a_full_queue_is_none() -> None:
    sense = QueueSense(4)
    feed(sense, 4, LATENCY)
    assert feed(sense, 8, 1.4 * LATENCY) is None


def test_levels_close_to_each_other_are_not_compared() -> None:
    sense = QueueSense(10)
    feed(sense, 10, LATENCY)
    assert feed(sense, 12, 2 * LATENCY) is None


def test_a_few_slow_answers_tell_nothing_yet() -> None:
    sense = QueueSense(4)
    feed(sense, 4, LATENCY)
    assert feed(sense, 8, 2 * LATENCY, times=LEAST - 1) is None


def test_a_reference_of_a_few_answers_tells_nothing_yet() -> None:
    sense = QueueSense(4)
    feed(sense, 4, LATENCY, times=LEAST - 1)
    assert feed(sense, 8, 2 * LATENCY) is None


def test_latency_that_scatters_by_chance_is_no_queue() -> None:
    sense, rng = QueueSense(4), random.Random(1)
    found = [sense.accepted(load, rng.expovariate(10)) for load in (4, 8) * 500]
    assert found == [None] * 1000


def test_answers_that_took_no_time_tell_nothing() -> None:
    sense = QueueSense(4)
    feed(sense, 4, 0.0)
    assert feed(sense, 8, 1.0) is None


def test_a_level_without_a_queue_is_the_next_reference() -> None:
    sense = QueueSense(4)
    feed(sense, 4, LATENCY)
    feed(sense, 8, LATENCY, times=16)
    assert feed(sense, 16, 2 * LATENCY) == pytest.approx(8.0)


def test_what_was_measured_before_a_restart_is_forgotten() -> None:
    sense = QueueSense(4)
    feed(sense, 4, LATENCY)
    sense.restart(4)
    assert feed(sense, 8, 2 * LATENCY) is None


@given(st.floats(1, 20), st.lists(st.tuples(st.integers(1, 64), FLOATS), max_size=200))
def test_what_is_told_is_less_than_what_was_sent(
    concurrency: float, answers: list[tuple[int, float]]
) -> None:
    sense = QueueSense(concurrency)
    for load, latency in answers:
        found = sense.accepted(load, latency)
        assert found is None or 0 < found < 64
