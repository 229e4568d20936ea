"""DurableScheduler: a crawl that is killed goes on, and loses no page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scrapy_backpressure.storage.sqlite import Database
from tests.crawl.audit import assert_sound
from tests.crawl.conftest import Crawls, Sites

JOB = {"JOBDIR": "job"}

TREE = """
class Tree(Spider):
    name = "tree"

    async def start(self):
        yield Request(f"{self.base}/page/1")

    def parse(self, response):
        number = int(response.url.rpartition("/")[2])
        yield {"page": number}
        for child in (2 * number, 2 * number + 1):
            if child <= int(self.count):
                yield Request(f"{self.base}/page/{child}")
        yield Request(f"{self.base}/page/{number // 2 or 1}")  # seen
"""
# Page n leads to 2n and 2n + 1, and back to where it was found.


# -- killed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("reactor", ["epoll", "none"])  # asyncio: see test_kills
def test_crawl_that_is_killed_again_and_again_loses_no_page(
    site: Sites, crawl: Crawls, reactor: str
) -> None:
    where = site(
        latency=0.03,
        faults=[
            {"match": "/page/[3-5]0", "times": 1, "status": 503, "headers": {"Retry-After": 1}},
            {"match": "/page/*77", "times": 1, "status": 503},
        ],
    )
    settings = {**JOB, "BACKPRESSURE_BACKOFF_BASE": 0.2}
    args = {"base": where.url(""), "count": 120}
    found: set[int] = set()
    for served in (20, 60):
        killed = crawl(
            TREE,
            settings,
            args=args,
            kill_after=lambda served=served: where.stats()["pages"] >= served,
            reactor=reactor,
        )
        assert killed.returncode < 0
        found |= {item["page"] for item in killed.items}
    result = crawl(TREE, settings, args=args, reactor=reactor)
    assert_sound(result)
    assert result.stat("backpressure/audit/resumed") > 0
    assert result.stat("backpressure/audit/persisted") == 0
    assert found | {item["page"] for item in result.items} == set(range(1, 121))
    # At least once is not twice: what a kill repeats is what was in flight, or just done.
    assert where.stats()["served"] < 120 + 2 * 64


def test_what_is_parked_and_what_is_in_flight_survives_a_kill(site: Sites, crawl: Crawls) -> None:
    busy, silent = "127.0.0.2", "127.0.0.3"
    where = site(
        {
            "hosts": {
                busy: {"faults": [{"times": 1, "status": 503, "headers": {"Retry-After": 4}}]},
                silent: {"faults": [{"times": 1, "stall": True}]},
            }
        }
    )
    source = """
    class Six(Spider):
        name = "six"

        async def start(self):
            for number in range(0 if self.again else 3):
                yield Request(f"{self.busy}/page/{number}")
                yield Request(f"{self.silent}/page/{number}")

        def parse(self, response):
            yield {"url": response.url}
    """
    args = {"busy": where.url("", host=busy), "silent": where.url("", host=silent)}
    settings = {**JOB, "CONCURRENT_REQUESTS": 120}  # so that three are sent to a new site at once
    first = crawl(
        source,
        settings,
        args={**args, "again": ""},
        kill_after=_a_while_after(lambda: where.stats()["hits"] >= 4),
    )
    assert first.returncode < 0
    assert first.items == []
    second = crawl(source, settings, args={**args, "again": "yes"})
    assert_sound(second)
    assert second.stat("backpressure/audit/resumed") == 6
    assert len({item["url"] for item in second.items}) == len(second.items) == 6


def _a_while_after(condition: Callable[[], bool]) -> Callable[[], bool]:
    """The condition, once it has held for as long as it takes to commit."""
    held = [0]

    def when() -> bool:
        held[0] += condition()
        return held[0] > 80  # looks, 0.02 s each

    return when


def test_crawl_that_is_killed_while_it_stops_loses_nothing(site: Sites, crawl: Crawls) -> None:
    where = site(latency=0.3)
    args = {"base": where.url(""), "count": 60}
    first = crawl(
        TREE,
        JOB,
        args=args,
        sigint_after=lambda: where.stats()["hits"] >= 20,
        kill_after=lambda: True,
    )
    second = crawl(TREE, JOB, args=args)
    assert_sound(second)
    assert {item["page"] for item in first.items + second.items} == set(range(1, 61))


def test_sitemap_spider_that_was_stopped_goes_on(site: Sites, crawl: Crawls) -> None:
    where = site(latency=0.1)
    source = """
    from scrapy.spiders import SitemapSpider

    class Map(SitemapSpider):
        name = "map"

        def __init__(self, base=None, **kwargs):
            super().__init__(base=base, **kwargs)
            self.sitemap_urls = [f"{base}/sitemap_index.xml?children=2&pages=20"]

        def parse(self, response):
            yield {"url": response.url}
    """
    settings = {**JOB, "CONCURRENT_REQUESTS": 2}
    first = crawl(source, {**settings, "CLOSESPIDER_ITEMCOUNT": 5}, args={"base": where.url("")})
    assert_sound(first)
    assert first.reason == "closespider_itemcount"
    second = crawl(source, settings, args={"base": where.url("")})
    assert_sound(second)
    urls = [item["url"] for item in first.items + second.items]
    assert len(urls) == len(set(urls)) == 40


# -- stopped ---------------------------------------------------------------------------------


def test_request_that_cannot_be_stored_is_dead_lettered_at_the_end(
    site: Sites, crawl: Crawls
) -> None:
    where = site(latency=0.3)
    source = """
    class Lambda(Spider):
        name = "lambda"

        async def start(self):
            for number in range(20):
                yield Request(f"{self.base}/page/{number}", callback=lambda response: None)
            for number in range(20, 40):
                yield Request(f"{self.base}/page/{number}")

        def parse(self, response):
            pass
    """
    result = crawl(
        source,
        JOB,
        args={"base": where.url("")},
        sigint_after=lambda: where.stats()["hits"] >= 2,
    )
    assert_sound(result)
    assert result.log.count("would not survive a stop") == 1
    assert result.stat("scheduler/unserializable") == 20
    kept = result.stat("backpressure/audit/persisted")
    assert {letter["reason"] for letter in result.dead_letters} == {"shutdown"}
    assert len(result.dead_letters) + kept + result.stat("backpressure/audit/handled") == 40
    assert kept == 20
    database = Database(result.folder / "job" / "backpressure.sqlite")
    (rows,) = database.read("SELECT count(*) FROM requests").fetchone()
    database.close()
    assert rows == kept


def test_without_a_jobdir_the_queue_is_on_disk_and_dead_lettered_at_a_stop(
    site: Sites, crawl: Crawls
) -> None:
    where = site(latency=0.1)
    source = """
    class Shared(Spider):
        name = "shared"

        async def start(self):
            self.hits = []
            for number in range(40):
                meta = {"hits": self.hits} if number % 2 else {}
                yield Request(f"{self.base}/page/{number}", meta=meta)

        def parse(self, response):
            if "hits" in response.meta:
                assert response.meta["hits"] is self.hits
            yield {"url": response.url}
    """
    result = crawl(
        source,
        {"SCHEDULER": "scrapy_backpressure.DurableScheduler"},
        args={"base": where.url("")},
        sigint_after=lambda: where.stats()["pages"] >= 10,
    )
    assert_sound(result)
    assert result.stat("scheduler/enqueued/memory") == 20
    assert {letter["reason"] for letter in result.dead_letters} == {"shutdown"}
    assert len(result.items) + len(result.dead_letters) == 40
    assert not (result.folder / "job").exists()


# -- what is bounded -------------------------------------------------------------------------


def test_start_never_fills_the_queue_on_disk_beyond_queue_high(site: Sites, crawl: Crawls) -> None:
    where = site(latency=0.05)
    source = """
    class Many(Spider):
        name = "many"

        async def start(self):
            for number in range(10_000):
                yield Request(f"{self.base}/page/{number}")

        def parse(self, response):
            pass
    """
    settings = {**JOB, "BACKPRESSURE_QUEUE_HIGH": 40, "CLOSESPIDER_PAGECOUNT": 50}
    result = assert_sound(crawl(source, settings, args={"base": where.url("")}))
    assert 0 < result.stat("backpressure/audit/persisted") <= 40
    assert result.stat("backpressure/queue/depth_max") <= 40


def test_sitemaps_are_not_all_read_while_the_pages_of_the_first_wait(
    site: Sites, crawl: Crawls
) -> None:
    where = site()
    source = """
    from scrapy.spiders import SitemapSpider

    class Map(SitemapSpider):
        name = "map"

        def __init__(self, base=None, **kwargs):
            super().__init__(base=base, **kwargs)
            self.sitemap_urls = [f"{base}/sitemap_index.xml?children=3&pages=5000"]

        def parse(self, response):
            pass
    """
    settings = {**JOB, "BACKPRESSURE_QUEUE_HIGH": 100, "CONCURRENT_REQUESTS": 1}
    killed = crawl(
        source,
        settings,
        args={"base": where.url("")},
        kill_after=lambda: where.stats()["pages"] >= 300,
    )
    paths = [target for _, target, _ in where.host()["requests"]]
    assert sum("/sitemap/" in path for path in paths) < 3
    database = Database(killed.folder / "job" / "backpressure.sqlite")
    (rows,) = database.read("SELECT count(*) FROM requests").fetchone()
    database.close()
    assert rows <= 105


def test_retries_make_no_folders_in_the_jobdir(site: Sites, crawl: Crawls) -> None:
    where = site(faults=[{"match": "/page/*[05]", "times": 1, "status": 500}])
    source = """
    class Failing(Spider):
        name = "failing"

        async def start(self):
            for number in range(300):
                yield Request(f"{self.base}/page/{number}")

        def parse(self, response):
            pass
    """
    settings = {**JOB, "BACKPRESSURE_BACKOFF_MAX": 0.1, "BACKPRESSURE_BACKOFF_BASE": 0.1}
    result = assert_sound(crawl(source, settings, args={"base": where.url("")}))
    assert result.stat("retry/count") == 60
    names = {path.name for path in (result.folder / "job").iterdir()}
    assert names == {"backpressure.sqlite", "spider.state"}


def test_site_that_refuses_everything_for_an_hour_can_be_stopped_at_once(
    site: Sites, crawl: Crawls
) -> None:
    where = site(faults=[{"status": 429, "headers": {"Retry-After": 3600}}])
    source = """
    class Refused(Spider):
        name = "refused"

        async def start(self):
            for number in range(20_000):
                yield Request(f"{self.base}/page/{number}")

        def parse(self, response):
            pass
    """
    result = assert_sound(crawl(source, JOB, args={"base": where.url("")}, sigint_after=1.5))
    assert result.elapsed < 10
    assert result.stat("backpressure/queue/depth_max") <= 2000
    kept = result.stat("backpressure/audit/persisted")
    assert kept == result.stat("backpressure/audit/accepted") > 0


# -- set-up ----------------------------------------------------------------------------------


def test_filter_of_the_project_decides_what_is_a_duplicate(site: Sites, crawl: Crawls) -> None:
    where = site(latency=0.05)
    source = """
    from scrapy.dupefilters import BaseDupeFilter

    class Paths(BaseDupeFilter):
        def __init__(self):
            self.paths = set()

        def request_seen(self, request):
            path = request.url.partition("?")[0]
            seen = path in self.paths
            self.paths.add(path)
            return seen

        def open(self):
            print("filter opened")

        def close(self, reason):
            print("filter closed", reason)

        def log(self, request, spider):
            spider.crawler.stats.inc_value("paths/seen")

    class Pages(Spider):
        name = "pages"

        async def start(self):
            for number in range(20):
                yield Request(f"{self.base}/page/{number % 10}?{number}")

        def parse(self, response):
            yield {"url": response.url}
    """
    settings = {**JOB, "DUPEFILTER_CLASS": "spider_under_test.Paths"}
    result = assert_sound(crawl(source, settings, args={"base": where.url("")}))
    assert len(result.items) == result.stat("paths/seen") == 10
    assert "filter opened" in result.log
    assert "filter closed finished" in result.log


def test_second_crawl_on_a_jobdir_refuses_to_start(
    site: Sites, crawl: Crawls, tmp_path: Path
) -> None:
    where = site()
    other = Database(tmp_path / "crawl" / "job" / "backpressure.sqlite")
    try:
        result = crawl(TREE, JOB, args={"base": where.url(""), "count": 3})
    finally:
        other.close()
    assert "is in use by another crawl" in result.log
    assert "Spider opened" not in result.log
    assert where.stats()["hits"] == 0


def test_jobdir_that_cannot_be_taken_over_ends_the_crawl_with_a_sentence(
    site: Sites, crawl: Crawls, tmp_path: Path
) -> None:
    where = site()
    folder = tmp_path / "crawl" / "job" / "requests.queue"
    folder.mkdir(parents=True)
    (folder / "active.json").write_text('"of a queue that nobody knows"', encoding="utf-8")
    result = crawl(TREE, JOB, args={"base": where.url(""), "count": 3})
    assert "cannot be taken over" in result.log
    assert "or use another JOBDIR" in result.log
    assert where.stats()["hits"] == 0
    assert folder.is_dir()


@pytest.mark.parametrize(
    "own",
    [
        {"SCHEDULER": "scrapy.core.scheduler.Scheduler"},
        {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"},
        {"JOBDIR": None},
    ],
    ids=["scheduler", "queue", "no jobdir"],
)
def test_add_on_leaves_the_scheduler_alone(
    site: Sites, crawl: Crawls, own: dict[str, Any]
) -> None:
    where = site()
    result = crawl(TREE, {**JOB, **own}, args={"base": where.url(""), "count": 3})
    assert_sound(result)
    assert len(result.items) == 3
    stored = result.folder / "job" / "requests.queue"
    assert stored.exists() == ("JOBDIR" not in own)


def test_what_waits_for_this_scheduler_is_told_to_a_run_with_another(
    site: Sites, crawl: Crawls
) -> None:
    where = site(latency=0.1)
    args = {"base": where.url(""), "count": 40}
    first = crawl(TREE, {**JOB, "CLOSESPIDER_ITEMCOUNT": 10}, args=args)
    left = first.stat("backpressure/audit/persisted")
    assert left > 0
    stock = {**JOB, "SCHEDULER": "scrapy.core.scheduler.Scheduler"}
    second = crawl(TREE, stock, args={**args, "count": 1})
    assert f"{left} requests of an earlier run wait in" in second.log
