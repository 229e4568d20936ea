"""Who crawls, and what a row of the table is made of; the rows themselves are in ``rows.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Settings = Mapping[str, Any]

AT_ONCE = 64
"""Requests at once that ours, and the stock crawl that does not care, may have in flight."""
QUICK = 5  # --quick asks for this part of the pages

STOCK = "stock default"
STOCK_MANY = f"stock {AT_ONCE} at once"
AUTOTHROTTLE = "AutoThrottle"
OURS = "ours"
ORACLE = "oracle"
OURS_UNHINDERED = "ours, nothing wrong"
BASELINES = (STOCK, STOCK_MANY, AUTOTHROTTLE)


@dataclass(frozen=True)
class Host:
    """One address of the site, how it behaves (see ``flaky_site/profile.py``), pages wanted."""

    address: str
    pages: int
    rule: Mapping[str, Any]


@dataclass(frozen=True)
class Probe:
    """A stock crawl that tells what share of a site's capacity a client gets on this machine.

    *settings*: at its limit. *changes*: keys of the rule without which the limit would change.
    *pace*: pages a second that the limit allows then. *seconds*: how long.
    """

    settings: Settings
    changes: Mapping[str, Any]
    pace: float
    seconds: float = 8.0


@dataclass(frozen=True)
class Row:
    """One kind of site, and what the crawl that knows its limit does there.

    *ideal*: seconds that the site's limit leaves no client below. *oracle*: settings of a stock
    crawl at that limit, stopped after *oracle_seconds*, as its pace never changes; None: its time
    is computed, *ideal* over the share of the capacity that *probe* gets. *settings*: of every
    contender in this row. *args*: of the spider. *uncounted*: the address whose pages are wanted
    but are no part of the goodput, and which the oracle's site lacks. *latency*: seconds that a
    counted page takes while nothing else is asked for. *most_latency*: times that, which the
    median may take with ours; None: as long as it likes. *baselines*: the stock crawls, stopped
    after *baseline* seconds.

    With *calm* (keys that the rule has where nothing goes wrong) or *uncounted*, ours is also
    crawled on a site without the trouble, to tell what it costs from what finding the limit costs.
    """

    name: str
    title: str
    hosts: tuple[Host, ...]
    latency: float
    ideal: float
    oracle: Settings | None
    settings: Settings = field(default_factory=dict)
    args: Mapping[str, Any] = field(default_factory=dict)
    calm: Mapping[str, Any] = field(default_factory=dict)
    uncounted: str | None = None
    most_latency: float | None = None
    baselines: tuple[str, ...] = BASELINES
    baseline: float = 8.0
    oracle_seconds: float = 25.0
    probe: Probe | None = None

    @property
    def has_trouble(self) -> bool:
        """Whether something goes wrong that a site can be without."""
        return bool(self.calm) or self.uncounted is not None

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
