"""The cpu row: what ours costs where nothing has to be held back, beside stock, in pairs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from benchmarks.profiles import AT_ONCE, OURS_SETTINGS, STOCK_MANY_SETTINGS, Host
from benchmarks.running import crawl, measure
from benchmarks.verdicts import Verdict

PAIRS = 5
PAGES = 10_000  # so that what a start costs, about 0.1 s, has little weight
MOST_CPU = 1.05
LEAST_PACE = 0.97
_PATIENCE = 120.0


@dataclass(frozen=True)
class Cost:
    """One crawl: its processor seconds a page, start and end included, and pages a second."""

    cpu: float
    pace: float

    def __str__(self) -> str:
        return f"{1000 * self.cpu:>6.3f} ms CPU a page, {self.pace:>6.1f} pages/s"


@dataclass(frozen=True)
class Pair:
    """Ours and stock, one right after the other."""

    ours: Cost
    stock: Cost

    def __str__(self) -> str:
        return (
            f"  ours {self.ours}   stock {self.stock}   ratios {self.cpu_ratio:.3f}"
            f" and {self.pace_ratio:.3f}"
        )

    @property
    def cpu_ratio(self) -> float:
        """Processor time a page in times of stock's."""
        return self.ours.cpu / self.stock.cpu

    @property
    def pace_ratio(self) -> float:
        """Pages a second in times of stock's."""
        return self.ours.pace / self.stock.pace


def _cost(settings: Mapping[str, Any], pages: int, args: Mapping[str, Any]) -> Cost:
    hosts = [Host("127.0.0.1", pages, {})]
    it = measure(crawl(hosts, settings, seconds=_PATIENCE, args=args), hosts, hosts, 0.0)
    if it.pages != pages:
        raise RuntimeError(f"{it.pages} of {pages} pages of a site without limits")
    return Cost(it.cpu_per_page, it.goodput)


def measure_pairs(
    *,
    tell: Callable[[Pair], None],
    pages: int = PAGES,
    ours: Mapping[str, Any] = OURS_SETTINGS,
    stock: Mapping[str, Any] = STOCK_MANY_SETTINGS,
    args: Mapping[str, Any] = MappingProxyType({}),
) -> list[Pair]:
    """Crawl an unlimited site without latency; *tell* of each pair. Who goes first alternates.

    *args*: more attributes of the spider.
    """
    pairs = []
    for number in range(PAIRS):
        if number % 2:
            theirs = _cost(stock, pages, args)
            pairs.append(Pair(_cost(ours, pages, args), theirs))
        else:
            first = _cost(ours, pages, args)
            pairs.append(Pair(first, _cost(stock, pages, args)))
        tell(pairs[-1])
    return pairs


def cpu_verdicts(
    pairs: Sequence[Pair],
    title: str = f"unlimited, {AT_ONCE} at once",
    least_pace: float = LEAST_PACE,
) -> Iterator[Verdict]:
    """Judge ours by the median of the pairs."""
    cpu = statistics.median(pair.cpu_ratio for pair in pairs)
    bar = f"CPU a page at most {MOST_CPU} of stock's"
    yield Verdict(title, bar, f"{cpu:.3f}", cpu <= MOST_CPU)
    pace = statistics.median(pair.pace_ratio for pair in pairs)
    bar = f"pages a second at least {least_pace} of stock's"
    yield Verdict(title, bar, f"{pace:.3f}", pace >= least_pace)
