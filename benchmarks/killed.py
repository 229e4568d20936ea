"""The spiders that ``benchmarks.kills`` kills: what each is to have fetched in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import scrapy
from scrapy.spiders import SitemapSpider

BEYOND = 100_000
"""Number of the first page that is found through a redirect."""


class Listed(scrapy.Spider):
    """All pages are start requests; every tenth is found through a redirect."""

    name = "list"
    base: str
    pages: str

    async def start(self) -> AsyncIterator[Any]:
        for number in range(int(self.pages)):
            path = f"/page/{number}" if number % 10 else f"/redirect?to=/page/{BEYOND + number}"
            yield scrapy.Request(self.base + path)

    def parse(self, response: Any) -> Iterator[Any]:
        yield {"page": int(response.url.rpartition("/")[2])}


class Mapped(SitemapSpider):
    """Pages are found in the sitemaps that a sitemap names."""

    name = "sitemap"

    def __init__(self, base: str, pages: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sitemap_urls = [f"{base}/sitemap_index.xml?children=4&pages={int(pages) // 4}"]

    def parse(self, response: Any) -> Iterator[Any]:
        yield {"page": int(response.url.rpartition("/")[2])}


class Tree(scrapy.Spider):
    """Page n leads to pages 2n and 2n + 1, and back to where it was found."""

    name = "recursive"
    base: str
    pages: str

    async def start(self) -> AsyncIterator[Any]:
        yield scrapy.Request(f"{self.base}/page/1")

    def parse(self, response: Any) -> Iterator[Any]:
        number = int(response.url.rpartition("/")[2])
        yield {"page": number}
        for child in (2 * number, 2 * number + 1):
            if child <= int(self.pages):
                yield scrapy.Request(f"{self.base}/page/{child}")
        yield scrapy.Request(f"{self.base}/page/{number // 2 or 1}")


def _listed(pages: int) -> set[int]:
    return {number if number % 10 else BEYOND + number for number in range(pages)}


WANTED: dict[str, Callable[[int], set[int]]] = {
    "Listed": _listed,
    "Mapped": lambda pages: set(range(pages // 4 * 4)),
    "Tree": lambda pages: set(range(1, pages + 1)),
}
"""Pages that each of the spiders is to have scraped, of so many."""
SITEMAPS = {"Listed": 0, "Mapped": 5, "Tree": 0}
"""Answers beside the pages that each of them handles."""
