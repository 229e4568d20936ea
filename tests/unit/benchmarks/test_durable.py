"""What is said of a queue that survives: its bars, and a small crawl of each kind."""

from __future__ import annotations

import pytest

from benchmarks.durable import Found, find, found_verdicts

FEW = Found("ours, JOBDIR", 10_000, 80, 1.0)


@pytest.mark.parametrize(("peak", "resumed", "passed"), [(96, 2.0, True), (97, 2.1, False)])
def test_bars_are_those_of_memory_and_of_going_on(peak: int, resumed: float, passed: bool) -> None:
    many = Found("ours, JOBDIR", 1_000_000, peak, 1.0, resumed)
    assert [verdict.passed for verdict in found_verdicts([FEW, many])] == [passed, passed]


def test_stock_is_shown_but_not_judged() -> None:
    stock = Found("stock, JOBDIR", 10_000, 80, 1.0), Found("stock, JOBDIR", 1_000_000, 900, 1.0)
    assert list(found_verdicts(list(stock))) == []


def test_crawl_finds_its_links_and_goes_on_after_the_kill() -> None:
    found = find("ours, JOBDIR", 1500, resume=True)
    assert found.links == 1500
    assert found.resumed is not None
