"""The spider of every benchmark crawl, whoever the contender is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import scrapy

_LOOK_AGAIN = 0.02  # seconds


class Pages(scrapy.Spider):
    """Asks for ``/page/0`` and up of each host in turn, all as start requests, made lazily.

    *port*: of the site. *hosts*: ``[address, number of pages]`` each. *waiting*: with it,
    ``start()`` itself waits while that many requests are open (asked for, not answered).
    """

    name = "pages"
    port: int
    hosts: list[tuple[str, int]]
    waiting: int | None = None
    closed_requests = 0

    async def start(self) -> AsyncIterator[Any]:
        opened = 0
        for number in range(max(count for _, count in self.hosts)):
            for address, count in self.hosts:
                if number >= count:
                    continue
                while self.waiting and opened - self.closed_requests >= self.waiting:
                    await asyncio.sleep(_LOOK_AGAIN)
                opened += 1
                yield scrapy.Request(
                    f"http://{address}:{self.port}/page/{number}", errback=self.failed
                )

    def parse(self, response: Any) -> None:
        self.closed_requests += 1

    def failed(self, failure: Any) -> None:
        self.closed_requests += 1
