"""The spider that finds far more links than it can fetch, and what it left in the JOBDIR."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import scrapy

LINKS = 1000
"""Of each page."""
FOUND = "found.json"
"""Written into the crawl's folder once *wanted* links are found."""


class Discovery(scrapy.Spider):
    """Each page leads to a thousand that nobody else leads to, until *wanted* are found."""

    name = "discovery"
    base: str
    wanted: str

    found = 0

    async def start(self) -> AsyncIterator[Any]:
        self.started = time.monotonic()
        yield scrapy.Request(f"{self.base}/page/0")

    def parse(self, response: Any) -> Iterator[scrapy.Request]:
        wanted = int(self.wanted)
        for _ in range(LINKS):
            if self.found >= wanted:
                return
            self.found += 1
            yield scrapy.Request(f"{self.base}/page/{self.found}")
            if self.found == wanted:
                self._tell()

    def _tell(self) -> None:
        told = {
            "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "seconds": time.monotonic() - self.started,
        }
        with open(FOUND, "w", encoding="utf-8") as file:
            json.dump(told, file)
