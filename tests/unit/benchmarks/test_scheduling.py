"""The benchmark of the queue: what it pushes, that its parts run, and its bars."""

from __future__ import annotations

import pytest

from benchmarks.scheduling import (
    MANY_SLOTS,
    Figures,
    measure,
    one_to_three,
    requests_of,
    verdicts_of,
)


def found(few: float, many: float, stock: float, ours_peak: float = 100) -> dict[str, Figures]:
    return {
        "ours 100": {"pop": few},
        f"ours {MANY_SLOTS}": {"pop": many},
        "stock": {"pop": stock},
        "memory ours": {"peak": ours_peak},
        "memory stock": {"peak": 100},
    }


def test_the_first_request_of_each_host_comes_first() -> None:
    urls = [request.url.removeprefix("http://") for request in requests_of(3, one_to_three)]
    assert urls[:4] == [
        "host0.example/page/0",
        "host1.example/page/0",
        "host2.example/page/0",
        "host1.example/page/1",
    ]
    assert len(urls) == 6


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        (found(10, 30, 3000, 110), [True, True, True]),
        (found(10, 31, 3000, 111), [False, False, False]),
    ],
)
def test_bars(figures: dict[str, Figures], expected: list[bool]) -> None:
    assert [verdict.passed for verdict in verdicts_of(figures, 1)] == expected


@pytest.mark.parametrize(
    ("part", "arguments", "figure"),
    [
        ("first_pop", (20,), "pop"),
        ("pop_stock", (20,), "pop"),
        ("memory", (20, "ours"), "peak"),
        ("idle_slot", (20, 2), "bytes"),
    ],
)
def test_each_part_is_measured_in_a_process_of_its_own(
    part: str, arguments: tuple[int, ...], figure: str
) -> None:
    assert measure(part, *arguments)[figure] > 0


def test_a_part_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="KeyError"):
        measure("nothing")
