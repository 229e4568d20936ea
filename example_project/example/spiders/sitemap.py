"""A crawl of what a site's sitemap lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scrapy.http import Response, TextResponse
from scrapy.spiders import SitemapSpider


class PagesOfSitemapSpider(SitemapSpider):
    """Reads a sitemap index and its children: ``-a port=8080 -a host=127.0.0.1 -a pages=50``."""

    name = "sitemap"

    def __init__(
        self, port: str = "8080", host: str = "127.0.0.1", pages: str = "50", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.sitemap_urls = [f"http://{host}:{port}/sitemap_index.xml?pages={int(pages)}"]

    def parse(self, response: Response, **kwargs: Any) -> Iterator[dict[str, Any]]:
        if isinstance(response, TextResponse):
            yield {"url": response.url, "title": response.css("title::text").get()}
