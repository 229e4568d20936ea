"""The spider of every benchmark crawl, whoever the contender is."""

from __future__ import annotations

import asyncio
import statistics
from array import array
from collections.abc import AsyncIterator, Iterator
from typing import Any

import scrapy

MEDIAN_LATENCY = "benchmark/median_latency"
"""A stat: seconds from a request's being sent to the head of its answer, of the pages served."""
_LOOK_AGAIN = 0.02  # seconds


class Pages(scrapy.Spider):
    """Asks for ``/page/0`` and up of each host in turn, all as start requests, made lazily.

    *port*: of the site. *hosts*: ``[address, number of pages]`` each. *waiting*: with it,
    ``start()`` itself waits while that many requests are open (asked for, not answered).
    *follow*: only page 0 of each host is a start request, and all others come from its callback.
    """

    name = "pages"
    port: int
    hosts: list[tuple[str, int]]
    waiting: int | None = None
    follow = False
    closed_requests = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._latencies = array("d")

    async def start(self) -> AsyncIterator[Any]:
        opened = 0
        most = 1 if self.follow else max(count for _, count in self.hosts)
        for number in range(most):
            for address, count in self.hosts:
                if number >= count:
                    continue
                while self.waiting and opened - self.closed_requests >= self.waiting:
                    await asyncio.sleep(_LOOK_AGAIN)
                opened += 1
                more = count if self.follow else 0
                yield self._page(address, number, {"more": more} if more else None)

    def _page(
        self, address: str, number: int, arguments: dict[str, int] | None = None
    ) -> scrapy.Request:
        url = f"http://{address}:{self.port}/page/{number}"
        return scrapy.Request(url, errback=self.failed, cb_kwargs=arguments)

    def parse(self, response: Any, more: int = 0) -> Iterator[scrapy.Request]:
        self.closed_requests += 1
        self._latencies.append(response.meta.get("download_latency", 0.0))
        address = response.url.partition("://")[2].partition(":")[0]
        for number in range(1, more):
            yield self._page(address, number)

    def failed(self, failure: Any) -> None:
        self.closed_requests += 1

    def closed(self, reason: str) -> None:
        if self._latencies:
            median = statistics.median(self._latencies)
            self.crawler.stats.set_value(MEDIAN_LATENCY, median)
