"""How long a retry waits, and how many a site gets."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_backpressure.control.backoff import RetryBudget, backoff


@given(
    attempt=st.integers(1, 10_000),
    base=st.floats(0.001, 100),
    maximum=st.floats(0.001, 10_000),
    seed=st.integers(),
)
def test_backoff_is_bounded(attempt: int, base: float, maximum: float, seed: int) -> None:
    delay = backoff(attempt, base=base, maximum=maximum, rng=random.Random(seed))
    assert min(base, maximum) / 10 <= delay <= maximum
    assert delay <= max(base * 2.0 ** min(attempt - 1, 60), base / 10)


def test_backoff_is_drawn_over_the_whole_range() -> None:
    rng = random.Random(1)
    delays = [backoff(4, base=1.0, maximum=300.0, rng=rng) for _ in range(2000)]
    assert min(delays) < 0.2
    assert max(delays) > 7.8
    assert sum(delays) / len(delays) == pytest.approx(4.0, rel=0.1)


def test_backoff_doubles_on_the_average() -> None:
    rng = random.Random(1)

    def mean(attempt: int) -> float:
        return sum(backoff(attempt, base=1.0, maximum=300.0, rng=rng) for _ in range(4000)) / 4000

    assert mean(6) / mean(5) == pytest.approx(2.0, rel=0.1)


def test_first_retries_of_a_site_wait_for_no_credit() -> None:
    budget = RetryBudget(0.2, now=0.0)
    assert [budget.retry(0.0) for _ in range(10)] == [0.0] * 10


def test_spent_budget_defers_each_further_retry_by_more() -> None:
    budget = RetryBudget(0.2, now=0.0)
    waits = [budget.retry(0.0) for _ in range(13)]
    assert waits[10:] == [1.0, 2.0, 3.0]


def test_time_gives_credit_back() -> None:
    budget = RetryBudget(0.2, now=0.0)
    for _ in range(12):
        budget.retry(0.0)
    assert budget.retry(3.0) == 0.0


def test_first_attempts_give_their_share_of_credit() -> None:
    budget = RetryBudget(0.25, now=0.0)
    for _ in range(10):
        budget.retry(0.0)
    for _ in range(4):
        budget.first_attempt()
    assert budget.retry(0.0) == 0.0
    assert budget.retry(0.0) == 1.0


def test_credit_does_not_pile_up() -> None:
    budget = RetryBudget(1.0, now=0.0)
    for _ in range(1000):
        budget.first_attempt()
    waits = [budget.retry(1000.0) for _ in range(11)]
    assert waits[-1] > 0.0
    assert waits[:-1] == [0.0] * 10


def test_clock_that_goes_back_gives_no_credit() -> None:
    budget = RetryBudget(0.2, now=100.0)
    for _ in range(11):
        budget.retry(50.0)
    assert budget.retry(50.0) == 2.0


def test_a_retry_is_deferred_by_some_minutes_at_most() -> None:
    budget = RetryBudget(0.2, 0.0)
    assert max(budget.retry(0.0) for _ in range(10_000)) <= 301
