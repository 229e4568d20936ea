"""A crawl ends when everything is done, or when it is told to, and accounts for every request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.crawl.audit import assert_sound
from tests.crawl.conftest import Crawls, Sites

REACTORS = pytest.mark.parametrize("reactor", ["asyncio", "epoll", "none"])

PAGES = """
class Pages(Spider):
    name = "pages"

    async def start(self):
        for number in range(int(self.count)):
            yield Request(f"{self.base}/page/{number}")

    def parse(self, response):
        yield {"url": response.url}
"""


def later_once(path: str, seconds: int = 1) -> dict[str, Any]:
    """A fault: 503 at the first hit of *path*, to be asked again after *seconds*."""
    return {"match": path, "times": 1, "status": 503, "headers": {"Retry-After": seconds}}


# -- an end in good order --------------------------------------------------------------------


@REACTORS
def test_spider_stays_open_for_a_parked_retry(site: Sites, crawl: Crawls, reactor: str) -> None:
    where = site(faults=[later_once("/page/0", 2)])
    result = crawl(PAGES, args={"base": where.url(""), "count": 1}, reactor=reactor)
    assert_sound(result)
    assert len(result.items) == 1
    first, second = where.times("/page/0")
    assert 2 <= second - first < 6


def test_idle_handler_that_schedules_only_duplicates_does_not_end_the_wait(
    site: Sites, crawl: Crawls
) -> None:
    where = site(faults=[later_once("/page/0")])
    source = """
    class Idle(Spider):
        name = "idle"

        @classmethod
        def from_crawler(cls, crawler, *args, **kwargs):
            spider = super().from_crawler(crawler, *args, **kwargs)
            crawler.signals.connect(spider.idle, scrapy.signals.spider_idle)
            return spider

        def idle(self):
            self.crawler.engine.crawl(Request(f"{self.base}/page/0"))

        async def start(self):
            yield Request(f"{self.base}/page/0")

        def parse(self, response):
            yield {"url": response.url}
    """
    result = crawl(source, args={"base": where.url("")})
    assert_sound(result)
    assert len(result.items) == 1
    assert result.stat("backpressure/audit/dropped/dupefilter") > 0


def test_duplicate_among_parked_requests_keeps_none_of_them_back(
    site: Sites, crawl: Crawls
) -> None:
    where = site(faults=[later_once("/page/*")])
    source = """
    class Three(Spider):
        name = "three"
        parked = 0

        @classmethod
        def from_crawler(cls, crawler, *args, **kwargs):
            from scrapy_backpressure.signals import request_parked

            spider = super().from_crawler(crawler, *args, **kwargs)
            crawler.signals.connect(spider.count, request_parked)
            return spider

        def count(self, request):
            self.parked += 1
            if self.parked == 2:
                self.crawler.engine.crawl(Request(f"{self.base}/page/0"))

        async def start(self):
            for number in range(3):
                yield Request(f"{self.base}/page/{number}")

        def parse(self, response):
            yield {"url": response.url}
    """
    result = crawl(source, args={"base": where.url("")})
    assert_sound(result)
    assert {item["url"] for item in result.items} == {where.url(f"/page/{n}") for n in range(3)}
    assert result.stat("backpressure/audit/dropped/dupefilter") == 1


def test_closes_at_once_when_nothing_is_left(site: Sites, crawl: Crawls) -> None:
    where = site()
    result = crawl(PAGES, args={"base": where.url(""), "count": 3}, heartbeat=5.0)
    assert_sound(result)
    assert result.elapsed < 5


@REACTORS
def test_start_that_raises_is_an_error_and_what_it_yielded_is_fetched(
    site: Sites, crawl: Crawls, reactor: str
) -> None:
    where = site()
    source = """
    class Broken(Spider):
        name = "broken"

        async def start(self):
            for number in range(120):
                yield Request(f"{self.base}/page/{number}")
            raise OSError("the source is gone")

        def parse(self, response):
            yield {"url": response.url}
    """
    settings = {"BACKPRESSURE_QUEUE_HIGH": 40}
    result = crawl(source, settings, args={"base": where.url("")}, reactor=reactor)
    assert_sound(result, errors=True)
    assert "OSError: the source is gone" in result.log
    assert len(result.items) == 120
    assert result.reason == "start_error"


def test_start_requests_that_wait_aside_are_fetched_although_start_raises(
    site: Sites, crawl: Crawls
) -> None:
    where = site(faults=[{"until": 1, "status": 503}])
    source = """
    import asyncio

    class Broken(Spider):
        name = "broken"

        async def start(self):
            for number in range(10):
                yield Request(f"{self.base}/page/{number}")
            await asyncio.sleep(0.7)  # now the site is known to be in trouble
            for number in range(10, 30):
                yield Request(f"{self.base}/page/{number}")
            raise OSError("the source is gone")

        def parse(self, response):
            yield {"url": response.url}
    """
    settings = {"RETRY_TIMES": 50, "BACKPRESSURE_BACKOFF_MAX": 1}
    result = crawl(source, settings, args={"base": where.url("")})
    assert_sound(result, errors=True)
    assert len(result.items) == 30


# -- an end by order -------------------------------------------------------------------------

TRY_LATER = {"faults": [{"status": 503, "headers": {"Retry-After": 60}}]}


@REACTORS
def test_interrupted_crawl_closes_soon_and_dead_letters_what_it_had(
    site: Sites, crawl: Crawls, reactor: str
) -> None:
    bad, good = "127.0.0.2", "127.0.0.3"
    where = site({"hosts": {good: {"latency": 0.3}, bad: TRY_LATER}})
    source = """
    class Interrupted(Spider):
        name = "interrupted"

        async def start(self):
            for number in range(4):
                yield Request(f"{self.bad}/page/{number}")
            for number in range(100_000):
                yield Request(f"{self.good}/page/{number}")

        def parse(self, response):
            yield {"url": response.url}
    """
    result = crawl(
        source,
        {"BACKPRESSURE_QUEUE_HIGH": 200},
        args={"bad": where.url("", host=bad), "good": where.url("", host=good)},
        sigint_after=lambda: where.stats()["hits"] >= 24,  # by then, the queue is full
        reactor=reactor,
    )
    assert_sound(result)
    assert result.reason == "shutdown"
    assert result.elapsed < 12
    assert {letter["reason"] for letter in result.dead_letters} == {"shutdown"}
    urls = [letter["request"]["url"] for letter in result.dead_letters]
    assert sum(bad in url for url in urls) == 4
    assert 100 < sum(good in url for url in urls) <= 200  # not what start() had left
    assert len(result.dead_letters) == result.stat("backpressure/audit/dead_lettered")


def test_what_was_queued_is_in_the_dead_letters_before_a_slow_end(
    site: Sites, crawl: Crawls, tmp_path: Path
) -> None:
    where = site(faults=[{"stall": True}])

    def letters() -> int:
        files = tmp_path.glob("crawl/dead_letters/*.jsonl")
        return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)

    started = tmp_path / "crawl" / "started"
    source = f"""{PAGES}
class Telling(Pages):
    name = "telling"

    async def start(self):
        async for request in super().start():
            yield request
        open("started", "w").close()
    """
    result = crawl(
        source,
        args={"base": where.url(""), "count": 60},
        sigint_after=lambda: started.exists() and where.stats()["hits"] >= 1,
        kill_after=lambda: letters() >= 40,  # what is under way will not end soon
        timeout=30,
    )
    assert {letter["reason"] for letter in result.dead_letters} == {"shutdown"}


def test_interrupted_crawl_with_a_jobdir_goes_on_in_the_next_run(
    site: Sites, crawl: Crawls
) -> None:
    where = site(latency=0.2, faults=[later_once("/page/[6-8]", 2)])
    settings = {"JOBDIR": "job", "BACKPRESSURE_QUEUE_HIGH": 200}
    args = {"base": where.url(""), "count": 60}
    first = crawl(
        PAGES, settings, args=args, sigint_after=lambda: where.stats()["hits"] >= 12, timeout=30
    )
    assert_sound(first)
    assert first.reason == "shutdown"
    assert first.stat("backpressure/audit/persisted") > 20
    assert first.dead_letters == []
    second = crawl(PAGES, settings, args=args)
    assert_sound(second)
    assert second.reason == "finished"
    assert second.stat("backpressure/audit/resumed") == first.stat("backpressure/audit/persisted")
    urls = [item["url"] for item in first.items + second.items]
    assert sorted(urls) == sorted(where.url(f"/page/{n}") for n in range(60))  # each once


def test_start_requests_that_wait_aside_are_in_the_next_run(site: Sites, crawl: Crawls) -> None:
    where = site(faults=[{"until": 2, "status": 503}])
    source = """
    import asyncio

    class Once(Spider):
        name = "once"

        async def start(self):
            if self.state.get("read"):
                return  # a source that can be read only once
            self.state["read"] = True
            for number in range(10):
                yield Request(f"{self.base}/page/{number}")
            await asyncio.sleep(0.7)
            for number in range(10, 30):
                yield Request(f"{self.base}/page/{number}")
            await asyncio.sleep(60)

        def parse(self, response):
            yield {"url": response.url}
    """
    settings = {"JOBDIR": "job", "RETRY_TIMES": 50, "BACKPRESSURE_BACKOFF_MAX": 1}
    args = {"base": where.url("")}
    first = crawl(source, settings, args=args, sigint_after=1.5)
    assert_sound(first)
    assert first.dead_letters == []
    second = crawl(source, settings, args=args)
    assert_sound(second)
    assert len(second.items) == 30


@pytest.mark.parametrize("jobdir", [None, "job"])
def test_rest_of_a_callback_that_is_held_back_at_the_stop_is_not_lost(
    site: Sites, crawl: Crawls, jobdir: str | None
) -> None:
    where = site(latency=0.05)
    source = """
    class Rows(Spider):
        name = "rows"

        async def start(self):
            yield Request(f"{self.base}/csv/300")

        def parse(self, response):
            for line in response.text.splitlines()[1:]:
                yield Request(self.base + line.split(",")[1], callback=self.parse_row)

        def parse_row(self, response):
            pass
    """
    result = crawl(
        source,
        {"BACKPRESSURE_QUEUE_HIGH": 30, "JOBDIR": jobdir},
        args={"base": where.url("")},
        sigint_after=lambda: where.stats()["served"] >= 8,
    )
    assert_sound(result)
    kept = result.stat(f"backpressure/audit/{'persisted' if jobdir else 'dead_lettered'}")
    assert kept > 100
    assert kept + result.stat("backpressure/audit/handled") == 301


def test_parked_request_that_cannot_be_stored_is_dead_lettered_despite_a_jobdir(
    site: Sites, crawl: Crawls, tmp_path: Path
) -> None:
    log = tmp_path / "crawl" / "log.txt"
    where = site(faults=[{"status": 503, "headers": {"Retry-After": 60}}])
    source = """
    class Lambda(Spider):
        name = "lambda"

        async def start(self):
            yield Request(f"{self.base}/page/0", callback=lambda response: None)

        def parse(self, response):
            pass
    """
    result = crawl(
        source,
        {"JOBDIR": "job"},
        args={"base": where.url("")},
        sigint_after=lambda: "would not survive a stop" in log.read_text(encoding="utf-8"),
    )
    assert_sound(result)
    assert [letter["reason"] for letter in result.dead_letters] == ["shutdown"]
    assert result.log.count("would not survive a stop") == 1


# -- the audit -------------------------------------------------------------------------------


def test_audit_names_the_filter_that_dropped_each_request(site: Sites, crawl: Crawls) -> None:
    where = site(
        faults=[
            {
                "match": "/robots.txt",
                "status": 200,
                "body": "User-agent: *\nDisallow: /page/13\n",
            },
            {"match": "/page/500", "status": 500},
        ]
    )
    source = """
    class Mixed(Spider):
        name = "mixed"
        allowed_domains = ["127.0.0.1"]

        async def start(self):
            page = f"{self.base}/page/"
            yield Request(page + "1")
            yield Request(page + "1")  # a duplicate
            yield Request(page + "13")  # forbidden by robots.txt
            yield Request("http://offsite.invalid/start")
            yield Request(f"{self.base}/status/404")
            yield Request(page + "500", meta={"dont_retry": True})
            yield Request(page + "500?seen", meta={"dont_retry": True}, callback=self.seen)
            yield Request(f"{self.base}/redirect?to=/page/2")
            yield Request("data:,no%20site", meta={"allow_offsite": True})

        def parse(self, response):
            yield {"url": response.url}
            if response.url.endswith("/page/1"):
                yield Request(response.url)
                yield Request("http://offsite.invalid/callback")
                yield Request(f"{self.base}/page/3", self.broken)

        def broken(self, response):
            raise ValueError("a callback that fails")

        def seen(self, response):
            yield {"url": response.url}
    """
    result = crawl(source, {"ROBOTSTXT_OBEY": True}, args={"base": where.url("")})
    assert_sound(result, errors=True)
    audit = {
        key.removeprefix("backpressure/audit/"): value
        for key, value in result.stats.items()
        if key.startswith("backpressure/audit/") and value
    }
    assert audit == {
        "accepted": 12,
        "handled": 4,  # pages 1, 2, 3, and data:
        "dead_lettered": 2,
        "dropped": 6,
        "dropped/dupefilter": 2,
        "dropped/IgnoreRequest": 1,
        "dropped/request_scheduled": 2,
        "dropped/HttpError": 1,
    }


def test_request_that_start_does_not_yield_but_the_spider_schedules_is_accounted_for(
    site: Sites, crawl: Crawls
) -> None:
    where = site()
    source = """
    class Early(Spider):
        name = "early"

        @classmethod
        def from_crawler(cls, crawler, *args, **kwargs):
            spider = super().from_crawler(crawler, *args, **kwargs)
            crawler.signals.connect(spider.opened, scrapy.signals.spider_opened)
            return spider

        def opened(self):
            self.crawler.engine.crawl(Request(f"{self.base}/page/0"))

        async def start(self):
            yield Request(f"{self.base}/page/1")

        def parse(self, response):
            yield {"url": response.url}
    """
    result = crawl(source, args={"base": where.url("")})
    assert_sound(result, errors=True)  # Scrapy 2.14's OffsiteMiddleware is not ready by then
    assert result.stat("backpressure/audit/accepted") == 2
    assert result.stat("backpressure/audit/resumed") == 0
    assert result.stat("backpressure/audit/handled") == 2
