"""What is crawled and by whom: the rows of the table, each with its site, and the contenders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Settings = Mapping[str, Any]

AT_ONCE = 64
"""Requests at once that ours, and the stock crawl that does not care, may have in flight."""
RETRY_AFTER = 2
BAN = 3
QUICK = 5  # --quick asks for this part of the pages


@dataclass(frozen=True)
class Host:
    """One address of the site, how it behaves (see ``flaky_site/profile.py``), pages wanted."""

    address: str
    pages: int
    rule: Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One kind of site, and what the crawl that knows its limit does there.

    *ideal*: seconds that the site's limit leaves no client below. *oracle*: settings of a stock
    crawl at that limit; None: its time is *ideal*, computed. *oracle_rule*: keys that the rule has
    for the oracle's crawl instead. *settings*: of every contender in this row. *uncounted*: the
    address whose pages are wanted but are no part of the goodput, and which the oracle's site
    lacks. *latency*: seconds that a counted page takes.

    Where the oracle has it easier (*oracle_rule*, *uncounted*), ours is also crawled on the
    oracle's site, to tell what the trouble costs from what finding the limit costs.
    """

    name: str
    title: str
    hosts: tuple[Host, ...]
    latency: float
    ideal: float
    oracle: Settings | None
    oracle_rule: Mapping[str, Any] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    uncounted: str | None = None

    @property
    def has_trouble(self) -> bool:
        """Whether the oracle's site lacks something that goes wrong."""
        return bool(self.oracle_rule) or self.uncounted is not None

    @property
    def pages(self) -> int:
        """Pages wanted of all hosts."""
        return sum(host.pages for host in self.hosts)

    @property
    def good_hosts(self) -> tuple[Host, ...]:
        """The hosts whose pages make the goodput."""
        return tuple(host for host in self.hosts if host.address != self.uncounted)

    @property
    def good_pages(self) -> int:
        """Pages wanted of :attr:`good_hosts`."""
        return sum(host.pages for host in self.good_hosts)


STOCK = "stock default"
STOCK_MANY = f"stock {AT_ONCE} at once"
AUTOTHROTTLE = "AutoThrottle"
OURS = "ours"
ORACLE = "oracle"
OURS_UNHINDERED = "ours, nothing wrong"

_MANY: Settings = {
    "CONCURRENT_REQUESTS": AT_ONCE,
    "CONCURRENT_REQUESTS_PER_DOMAIN": AT_ONCE,
}
OURS_SETTINGS: Settings = {**_MANY, "ADDONS": {"scrapy_backpressure.Addon": 300}}
STOCK_MANY_SETTINGS: Settings = _MANY
CONTENDERS: Mapping[str, Settings] = {
    STOCK: {},
    STOCK_MANY: STOCK_MANY_SETTINGS,
    AUTOTHROTTLE: {"AUTOTHROTTLE_ENABLED": True},
    OURS: OURS_SETTINGS,
}


def at_once(number: int) -> Settings:
    """A stock crawl with that many in flight.

    On asyncio Scrapy does not enforce CONCURRENT_REQUESTS_PER_DOMAIN while the delay is 0, but it
    does CONCURRENT_REQUESTS.
    """
    return {"CONCURRENT_REQUESTS": number, "CONCURRENT_REQUESTS_PER_DOMAIN": number}


def per_second(rate: float, *, margin: float = 0.0) -> Settings:
    """A stock crawl at *rate* requests a second, evenly spaced.

    *margin*: share by which it is slower. Without a burst to draw on, a request that is a
    millisecond faster on its way than the one before would be refused.
    """
    return {"DOWNLOAD_DELAY": (1 + margin) / rate, "RANDOMIZE_DOWNLOAD_DELAY": False}


def stepped_seconds(pages: float, levels: Iterable[tuple[float, float]]) -> float:
    """Seconds in which a capacity that changes over time serves *pages*.

    *levels*: (second from which it holds, pages a second), in order, the first at 0.
    """
    steps = list(levels)
    ends = [start for start, _ in steps[1:]]
    left = pages
    for (start, capacity), end in zip(steps, ends, strict=False):
        if capacity * (end - start) >= left:
            return start + left / capacity
        left -= capacity * (end - start)
    start, capacity = steps[-1]
    return start + left / capacity


def _one_host(pages: int, rule: Mapping[str, Any]) -> tuple[Host, ...]:
    return (Host("127.0.0.1", pages, rule),)


def _limited_at_once(name: str, title: str, number: int, pages: int, **rule: Any) -> Row:
    latency = 0.1
    return Row(
        name,
        title,
        _one_host(pages, {"latency": latency, "max_at_once": number, **rule}),
        latency,
        pages * latency / number,
        at_once(number),
    )


def _limited_rate(
    name: str, title: str, rate: float, burst: int, pages: int, *, margin: float = 0.0, **rule: Any
) -> Row:
    latency = 0.1
    return Row(
        name,
        title,
        _one_host(pages, {"latency": latency, "rate": rate, "burst": burst, **rule}),
        latency,
        (pages - burst) / rate + latency,
        per_second(rate, margin=margin),
    )


def _stepped(pages: int, part: float) -> Row:
    latency, places = 0.1, (10, 3, 14)
    starts = (0.0, 12.0 / part, 27.0 / part)
    first, *rest = zip(starts, places, strict=True)
    steps = [{"at": start, "max_at_once": number} for start, number in rest]
    return Row(
        "steps",
        "10, then 3, then 14 at once",
        _one_host(pages, {"latency": latency, "max_at_once": first[1], "steps": steps}),
        latency,
        stepped_seconds(
            pages, [(start, n / latency) for start, n in zip(starts, places, strict=True)]
        ),
        None,
    )


def _random_503(pages: int) -> Row:
    latency = 0.5  # so that the site binds, not the CPU
    fault = {"share": 0.05, "status": 503}
    return Row(
        "random503",
        "unlimited, 5 % random 503s",
        _one_host(pages, {"latency": latency, "faults": [fault]}),
        latency,
        pages * latency / AT_ONCE,
        at_once(AT_ONCE),
        oracle_rule={"faults": []},
        # Nobody shall lose a page to bad luck: one in 60 million fails six times in a row.
        settings={"RETRY_TIMES": 5},
    )


def _stalled(pages: int, stalled_pages: int) -> Row:
    latency = 0.3
    stalled = "127.0.0.10"
    hosts = [
        Host(f"127.0.0.{number}", pages, {"latency": latency})
        for number in range(1, 11)
        if f"127.0.0.{number}" != stalled
    ]
    slow = {"usual": 10.0, "slow": 20.0, "slow_share": 0.5}
    hosts.append(Host(stalled, stalled_pages, {"latency": slow}))
    return Row(
        "stalled",
        "ten hosts, one stalled",
        tuple(hosts),
        latency,
        9 * pages * latency / AT_ONCE,
        at_once(AT_ONCE),
        uncounted=stalled,
    )


def rows(*, quick: bool = False) -> list[Row]:
    """The rows of the table, in the order in which they are crawled."""
    part = QUICK if quick else 1
    return [
        _limited_at_once("ten", "10 at once", 10, 1200 // part),
        _limited_rate("rate40", "40/s, burst 10", 40, 10, 1200 // part),
        _limited_rate("rate2", "2/s", 2, 1, 240 // part, margin=0.02),
        _limited_at_once(
            "retry-after",
            f"8 at once, Retry-After {RETRY_AFTER}",
            8,
            2400 // part,
            retry_after=RETRY_AFTER,
        ),
        _limited_rate(
            "ban", f"20/s, {BAN} s ban", 20, 20, 2000 // part, retry_after=BAN, ban=float(BAN)
        ),
        _stepped(2600 // part, part),
        _random_503(4000 // part),
        _stalled(300 // part, 24 // part),
    ]
