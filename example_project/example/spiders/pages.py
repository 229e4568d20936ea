"""A crawl of a list that is known beforehand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import scrapy
from scrapy.http import Response, TextResponse


class PagesSpider(scrapy.Spider):
    """Fetches *count* pages of each of three hosts: ``-a port=8080 -a count=150``."""

    name = "pages"
    hosts = ("127.0.0.1", "127.0.0.2", "127.0.0.3")

    def __init__(self, port: str = "8080", count: str = "150", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.port = int(port)
        self.count = int(count)

    async def start(self) -> AsyncIterator[Any]:
        for number in range(self.count):
            for host in self.hosts:
                yield scrapy.Request(f"http://{host}:{self.port}/page/{number}")

    def parse(self, response: Response, **kwargs: Any) -> Iterator[dict[str, Any]]:
        if isinstance(response, TextResponse):
            yield {"url": response.url, "title": response.css("title::text").get()}
