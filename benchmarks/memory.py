"""The memory row: a million start requests, and what stock Scrapy does with a thousand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.profiles import OURS_SETTINGS, QUICK, STOCK_MANY_SETTINGS, Host
from benchmarks.running import crawl
from benchmarks.verdicts import Verdict

MANY = 1_000_000
FEW = 1_000
MOST_MEMORY = 1.15
LEAST_PAGES = 0.99
"""Of stock's pages: both are bound by the sites, so they differ by chance."""
_HOSTS = 16
_LATENCY = 0.5
"""So that 64 at once are bound by the site and not by the CPU, from the first second on: each page
fetched leaves about a kilobyte behind in Scrapy and Twisted, whoever crawls (a cancelled download
timeout stays in the reactor until it would have been due), and the row is about what waits."""
_MEGABYTE = 1024 * 1024


@dataclass(frozen=True)
class MemoryLine:
    """One crawl: peak resident memory in bytes, pages the site served, CPU seconds a page."""

    title: str
    pages: int
    peak_rss: int
    cpu_per_page: float
    missing: int | None

    def __str__(self) -> str:
        return (
            f"  {self.title:<44} {self.pages:>7} pages {self.peak_rss / _MEGABYTE:>7.0f} MB"
            f" {1000 * self.cpu_per_page:>6.1f} ms CPU a page"
        )


def seconds(*, quick: bool) -> float:
    """CLOSESPIDER_TIMEOUT of the row's crawls."""
    return 45.0 / (QUICK if quick else 1)


def _line(
    title: str,
    requests: int,
    settings: Mapping[str, Any],
    limit: float,
    args: Mapping[str, Any] | None = None,
) -> MemoryLine:
    hosts = [
        Host(f"127.0.0.{number}", requests // _HOSTS, {"latency": _LATENCY})
        for number in range(1, _HOSTS + 1)
    ]
    result = crawl(hosts, settings, seconds=limit, args=args, detail=False)
    pages = result.site["pages"]
    return MemoryLine(
        title,
        pages,
        result.peak_rss,
        result.cpu / max(1, pages),
        result.stats.get("backpressure/audit/missing"),
    )


def measure_memory(*, quick: bool) -> tuple[MemoryLine, MemoryLine, MemoryLine]:
    """Crawl unlimited sites: ours with many, ours with few, stock with few waiting."""
    limit = seconds(quick=quick)
    few = _line(f"ours, {FEW} start requests", FEW, OURS_SETTINGS, limit)
    many = _line(f"ours, {MANY} start requests", MANY, OURS_SETTINGS, limit)
    stock = _line(
        f"stock, never more than {FEW} waiting",
        MANY,
        STOCK_MANY_SETTINGS,
        limit,
        {"waiting": FEW},
    )
    return few, many, stock


def memory_verdicts(few: MemoryLine, many: MemoryLine, stock: MemoryLine) -> Iterator[Verdict]:
    """Judge ours on the memory row."""
    ratio = many.peak_rss / few.peak_rss
    bar = f"peak RSS at most {MOST_MEMORY} of that with {FEW}"
    yield Verdict(f"{MANY} requests", bar, f"{ratio:.2f}", ratio <= MOST_MEMORY)
    bar = f"at least {LEAST_PAGES} of the pages of stock with {FEW} waiting"
    figure = f"{many.pages} to {stock.pages}"
    yield Verdict(f"{MANY} requests", bar, figure, many.pages >= LEAST_PAGES * stock.pages)
    missing = many.missing
    yield Verdict(f"{MANY} requests", "the audit balances", f"{missing} missing", missing == 0)
