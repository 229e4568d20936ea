"""Requests that come to the downloader past the steered scheduler obey the same pauses."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.crawl.audit import assert_sound
from tests.crawl.conftest import LISTED_PAGES, REACTORS, Crawls, Sites
from tests.site import Site

REFUSED_ONCE: dict[str, Any] = {
    "match": "/page/5",
    "times": 1,
    "status": 429,
    "headers": {"Retry-After": "1"},
}


def pages(where: Site, count: int, host: str = "127.0.0.1") -> list[str]:
    return [where.url(f"/page/{n}", host=host) for n in range(count)]


@pytest.mark.parametrize("reactor", REACTORS)
def test_files_and_awaited_downloads_wait_while_pages_are_throttled(
    site: Sites, crawl: Crawls, reactor: str
) -> None:
    source = """
    class Files(Spider):
        name = "files"

        async def start(self):
            for n in range(10):
                yield Request(f"{self.media}/page/{n}")
                yield Request(f"{self.awaited}/page/{n}", callback=self.parse_awaited)

        def parse(self, response):
            # The address of a file must not be that of a page, or the pipeline finds it seen.
            number = int(response.url.rpartition("/")[2])
            files = [f"{self.media}/image/{2 * number + n}.png" for n in range(2)]
            yield {"file_urls": files}

        async def parse_awaited(self, response):
            request = Request(response.url.replace("page", "csv"))
            more = await self.crawler.engine.download_async(request)
            yield {"awaited": more.status}
    """
    rule = {"latency": 0.1, "faults": [REFUSED_ONCE]}
    where = site({"hosts": {"127.0.0.2": rule, "127.0.0.3": rule}})
    settings = {
        "ITEM_PIPELINES": {"scrapy.pipelines.files.FilesPipeline": 1},
        "FILES_STORE": "files",
        "CONCURRENT_REQUESTS_PER_DOMAIN": 4,
    }
    args = {
        "media": where.url(host="127.0.0.2").rstrip("/"),
        "awaited": where.url(host="127.0.0.3").rstrip("/"),
    }
    result = crawl(source, settings, args=args, reactor=reactor)
    assert_sound(result)
    files = [len(item["files"]) for item in result.items if "file_urls" in item]
    assert files == [2] * 10
    assert [item["awaited"] for item in result.items if "awaited" in item] == [200] * 10
    hosts = [where.host(host) for host in ("127.0.0.2", "127.0.0.3")]
    assert [(host["refused"], host["early"]) for host in hosts] == [(1, 0), (1, 0)]
    assert max(host["peak"] for host in hosts) <= 4


def test_robots_txt_that_breaks_once_is_asked_for_again(site: Sites, crawl: Crawls) -> None:
    robots = "User-agent: *\nDisallow: /page/1\n"
    where = site(
        faults=[
            {"match": "/robots.txt", "times": 1, "drop": True},
            {"match": "/robots.txt", "status": 200, "body": robots},
        ]
    )
    settings = {"ROBOTSTXT_OBEY": True, "BACKPRESSURE_BACKOFF_BASE": 0.1}
    result = assert_sound(crawl(LISTED_PAGES, settings, args={"urls": pages(where, 3)}))
    assert sorted(item["url"][-1] for item in result.items) == ["0", "2"]
    assert "/page/1" not in where.host()["paths"]


def test_robots_txt_neither_locks_a_host_up_nor_escapes_its_limits(
    site: Sites, crawl: Crawls
) -> None:
    robots = {"match": "/robots.txt", "times": 1}
    hosts: dict[str, dict[str, Any]] = {
        "fine": {"faults": []},
        "silent": {"faults": [{**robots, "stall": True}]},
        # Not retried, so that it is the pages that have to wait.
        "refusing": {
            "latency": 0.05,
            "faults": [{**robots, "status": 429, "headers": {"Retry-After": "1"}}],
        },
        "slow": {"faults": [{**robots, "latency": 0.8}]},
    }
    address = {name: f"127.0.0.{n}" for n, name in enumerate(hosts, start=2)}
    rules = {address[name]: rule for name, rule in hosts.items()}
    where = site({"grace": 0, "hosts": rules})
    slots = {
        address["refusing"]: {"concurrency": 4},
        address["slow"]: {"concurrency": 4, "delay": 0.2, "randomize_delay": False},
    }
    settings = {
        "ROBOTSTXT_OBEY": True,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
        "DOWNLOAD_SLOTS": slots,
        "RETRY_TIMES": 0,
        "BACKPRESSURE_ROBOTSTXT_TIMEOUT": 1,
        "BACKPRESSURE_BACKOFF_BASE": 0.2,
    }
    urls = [url for host in address.values() for url in pages(where, 3, host)]
    result = crawl(LISTED_PAGES, settings, args={"urls": urls}, timeout=20)
    assert_sound(result, errors=True)
    assert sorted(item["url"] for item in result.items) == sorted(urls)
    assert where.host(address["refusing"])["early"] == 0
    assert {name: where.host(address[name])["peak"] for name in ("fine", "silent", "slow")} == {
        "fine": 1,
        "silent": 1,
        "slow": 1,
    }
    slow = [second for second, _, _ in where.host(address["slow"])["requests"]]
    assert min(later - earlier for earlier, later in pairwise(slow)) > 0.15


AWAITING = """
import asyncio

class Awaiting(Spider):
    name = "awaiting"

    async def start(self):
        yield Request(self.refused)
        yield Request(self.index, callback=self.parse_index)

    async def parse_index(self, response):
        async def ask(number):
            try:
                await self.crawler.engine.download_async(Request(f"{self.refused}?{number}"))
            except scrapy.exceptions.IgnoreRequest as error:
                return type(error).__name__

        await asyncio.sleep(0.3)
        yield {"answers": await asyncio.gather(*(ask(number) for number in range(5)))}
"""


def test_awaited_downloads_fail_at_once_when_a_pause_is_too_long(
    site: Sites, crawl: Crawls
) -> None:
    refusing = {"faults": [{"status": 429, "headers": {"Retry-After": "3600"}}]}
    where = site({"hosts": {"127.0.0.2": refusing}})
    args = {"refused": where.url("/page/0", host="127.0.0.2"), "index": where.url("/page/0")}
    result = crawl(AWAITING, {"BACKPRESSURE_MAX_PAUSE": 60}, args=args, timeout=20)
    assert_sound(result, errors=True)
    assert [item["answers"] for item in result.items] == [["GivenUp"] * 5]
    assert where.host("127.0.0.2")["hits"] == 1


def test_awaited_downloads_do_not_hold_up_the_end(site: Sites, crawl: Crawls) -> None:
    refusing = {"faults": [{"status": 429, "headers": {"Retry-After": "3600"}}]}
    where = site({"hosts": {"127.0.0.2": refusing}})
    args = {"refused": where.url("/page/0", host="127.0.0.2"), "index": where.url("/page/0")}
    result = crawl(AWAITING, args=args, timeout=20, sigint_after=1)
    assert_sound(result)
    assert (result.reason, result.elapsed < 4) == ("shutdown", True)


def test_a_scheduler_that_cannot_be_steered_obeys_pauses_and_is_warned_of(
    site: Sites, crawl: Crawls
) -> None:
    where = site(latency=0.1, faults=[REFUSED_ONCE])
    settings = {
        "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue",
        "CONCURRENT_REQUESTS_PER_DOMAIN": 4,
    }
    result = crawl(LISTED_PAGES, settings, args={"urls": pages(where, 20)})
    assert_sound(result)
    host = where.host()
    assert (len(result.items), host["early"], host["peak"]) == (20, 0, 4)
    assert result.log.count("WARNING: The scheduler cannot be steered") == 1


def test_an_awaited_download_that_is_given_up_leaves_the_queue_of_its_slot_awake(
    site: Sites, crawl: Crawls
) -> None:
    source = """
    import asyncio

    class GivesUp(Spider):
        name = "gives_up"

        async def start(self):
            for number in range(4):
                yield Request(f"{self.base}/page/{number}")

        async def parse(self, response):
            yield {"page": response.url}
            if response.url.endswith("/page/0"):
                awaited = self.crawler.engine.download_async(Request(f"{self.base}/page/9"))
                try:
                    await asyncio.wait_for(awaited, 0.5)
                except asyncio.TimeoutError:
                    yield {"given up": True}
    """
    # It waits for page 1, then for the pause, with nothing in flight when it is given up.
    refused = {**REFUSED_ONCE, "match": "/page/1", "latency": 0.2}
    where = site(latency=0.05, faults=[refused])
    settings = {"CONCURRENT_REQUESTS_PER_DOMAIN": 1}
    result = crawl(source, settings, args={"base": where.url("")}, timeout=20)
    assert_sound(result)
    assert [item for item in result.items if "given up" in item]
    assert len([item for item in result.items if "page" in item]) == 4
