"""A crawl that finds its requests on the pages it fetches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import scrapy
from scrapy.http import Response, TextResponse


class DiscoverySpider(scrapy.Spider):
    """Follows every link below ``/links/``: ``-a port=8080 -a host=127.0.0.1 -a depth=3``."""

    name = "discovery"

    def __init__(
        self, port: str = "8080", host: str = "127.0.0.1", depth: str = "3", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.start_urls = [f"http://{host}:{port}/links/?width=5&depth={int(depth)}"]

    def parse(self, response: Response, **kwargs: Any) -> Iterator[Any]:
        if isinstance(response, TextResponse):
            yield {"url": response.url, "title": response.css("title::text").get()}
            yield from response.follow_all(css="a", callback=self.parse)
