"""How long a site that is far slower than the others gives way to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_backpressure.control.places import LONGEST_REST, SLOW, SLOW_SHARE, Places


def of_fast_sites(total: int) -> Places:
    places = Places(total)
    for _ in range(100):
        places.rest(0.2, 1)
    return places


def test_site_that_answers_as_usual_gives_way_to_nobody() -> None:
    assert of_fast_sites(8).rest(0.5, 8) == 0.0


def test_site_that_is_only_relatively_slow_gives_way_to_nobody() -> None:
    assert of_fast_sites(8).rest(SLOW, 8) == 0.0


def test_slow_site_among_slow_ones_gives_way_to_nobody() -> None:
    places = Places(8)
    assert [places.rest(20.0, 4) for _ in range(10)] == [0.0] * 10


def test_the_first_answer_of_a_crawl_is_taken_for_usual() -> None:
    assert Places(8).rest(20.0, 4) == 0.0


@given(st.integers(1, 200), st.integers(1, 200), st.floats(6.0, 30.0))
def test_far_slower_site_holds_its_share_of_the_places_on_average(
    total: int, in_flight: int, latency: float
) -> None:
    rest = of_fast_sites(total).rest(latency, in_flight)
    held = in_flight * latency / (latency + rest)
    if rest < LONGEST_REST:
        assert held <= SLOW_SHARE * total + 1e-9 or rest == 0.0
        assert rest == 0.0 or held == pytest.approx(SLOW_SHARE * total)


def test_it_gives_way_for_some_minutes_at_most() -> None:
    assert of_fast_sites(1).rest(180.0, 1) == LONGEST_REST


def test_without_a_limit_of_places_nobody_gives_way() -> None:
    assert of_fast_sites(0).rest(30.0, 50) == 0.0


@pytest.mark.parametrize(("total", "most"), [(0, 1), (8, 1), (39, 1), (40, 2), (100, 5)])
def test_unknown_site_gets_a_twentieth_of_the_places_but_one_at_least(
    total: int, most: int
) -> None:
    assert Places(total).most_unknown == most
