"""Crawls with a JOBDIR to which bad things happen: what is not done is there afterwards."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.crawl.audit import assert_sound
from tests.crawl.conftest import LISTED_PAGES, CrawlResult, Crawls, Sites
from tests.site import Site

JOB = {"JOBDIR": "job"}


def pages(where: Site, count: int) -> dict[str, list[str]]:
    return {"urls": [where.url(f"/page/{number}") for number in range(count)]}


def urls(*results: CrawlResult) -> list[str]:
    return sorted(item["url"] for result in results for item in result.items)


# -- stops -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stop",
    [
        {"CLOSESPIDER_PAGECOUNT": 20},
        {"CLOSESPIDER_TIMEOUT": 1},
        {"MEMUSAGE_LIMIT_MB": 300, "MEMUSAGE_CHECK_INTERVAL_SECONDS": 0.2},
    ],
    ids=lambda stop: next(iter(stop)),
)
def test_crawl_that_a_limit_stopped_goes_on(
    site: Sites, crawl: Crawls, stop: dict[str, Any]
) -> None:
    where = site(latency=0.1)
    source = f"""{LISTED_PAGES}
class Hungry(Pages):
    name = "hungry"

    def parse(self, response):
        if self.settings["MEMUSAGE_LIMIT_MB"] and "/page/19" in response.url:
            self.load = "x" * 300_000_000
        yield from super().parse(response)
    """
    args = pages(where, 80)
    first = assert_sound(crawl(source, {**JOB, **stop}, args=args), errors=True)
    assert first.reason != "finished"
    assert first.stat("backpressure/audit/persisted") > 0
    second = assert_sound(crawl(source, JOB, args=args))
    assert second.stat("backpressure/audit/all_runs/handled") == 80
    assert where.stats()["hits"] == 80


def test_crawl_that_is_interrupted_twice_goes_on(
    site: Sites, crawl: Crawls, tmp_path: Path
) -> None:
    where = site(latency=0.3)
    args = pages(where, 60)
    log = tmp_path / "crawl" / "log.txt"
    first = crawl(
        LISTED_PAGES,
        JOB,
        args=args,
        sigint_after=lambda: where.stats()["hits"] >= 20,
        sigint_again_after=lambda: "Closing spider" in log.read_text(encoding="utf-8"),
    )
    assert "Spider closed" not in first.log
    second = assert_sound(crawl(LISTED_PAGES, JOB, args=args))
    assert set(urls(first, second)) == set(args["urls"])


def test_crawl_whose_start_raised_goes_on(site: Sites, crawl: Crawls) -> None:
    where = site(latency=0.05)
    source = """
    class Broken(Spider):
        name = "broken"

        async def start(self):
            for number in range(60):
                if number == 40 and self.broken:
                    raise OSError("the source is gone")
                yield Request(f"{self.base}/page/{number}")

        def parse(self, response):
            yield {"url": response.url}
    """
    args = {"base": where.url("")}
    first = crawl(source, JOB, args={**args, "broken": "yes"})
    assert_sound(first, errors=True)
    assert (first.reason, len(first.items)) == ("start_error", 40)
    second = assert_sound(crawl(source, JOB, args={**args, "broken": ""}))
    assert len(second.items) == 20


# -- the disk --------------------------------------------------------------------------------

FULL = """
import resource

class Full(Spider):
    name = "full"
    room = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    async def start(self):
        self.pages = 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, self.room[1]))
        for number in range(400):
            yield Request(f"{self.base}/page/{number}", cb_kwargs={"load": "x" * 2000})

    def parse(self, response, load):
        yield {"url": response.url}
        if self.crawler.stats.get_value("backpressure/gate/closed/disk"):
            self.pages += 1
        if self.pages == 40 and self.freed:
            resource.setrlimit(resource.RLIMIT_FSIZE, self.room)
"""


def test_disk_that_is_full_for_a_while_costs_nothing(site: Sites, crawl: Crawls) -> None:
    where = site(latency=0.02)
    args = {"base": where.url(""), "freed": "yes"}
    settings = {**JOB, "BACKPRESSURE_QUEUE_HIGH": 200}
    result = assert_sound(crawl(FULL, settings, args=args), errors=True)
    assert "Cannot write" in result.log
    assert result.stat("backpressure/gate/closed/disk") > 0
    assert len(result.items) == where.stats()["hits"] == 400
    assert result.stat("backpressure/audit/all_runs/handled") == 400


def test_crawl_that_is_killed_while_the_disk_is_full_goes_on(site: Sites, crawl: Crawls) -> None:
    where = site(latency=0.02)
    args = {"base": where.url("")}
    settings = {**JOB, "BACKPRESSURE_QUEUE_HIGH": 200}
    first = crawl(
        FULL,
        settings,
        args={**args, "freed": ""},
        kill_after=lambda: where.stats()["hits"] >= 150,
    )
    assert "Cannot write" in first.log
    second = assert_sound(crawl(FULL, settings, args={**args, "freed": "yes"}), errors=True)
    assert len(set(urls(first, second))) == 400


def test_requests_that_are_lost_amid_a_run_do_not_keep_the_gate_closed(
    site: Sites, crawl: Crawls
) -> None:
    where = site(latency=0.05)
    source = """
    from scrapy_backpressure.extension import BackpressureExtension

    class Robbed(Spider):
        name = "robbed"
        robbed = False

        async def start(self):
            for number in range(60):
                yield Request(f"{self.base}/page/{number}")

        def parse(self, response):
            yield {"url": response.url}
            if self.robbed or not self.crawler.stats.get_value("backpressure/gate/closed"):
                return
            self.robbed = True
            database = self.crawler.get_extension(BackpressureExtension).database
            database.commit()
            database.read("DELETE FROM requests")
            database._forget()  # as after a repair
    """
    settings = {**JOB, "BACKPRESSURE_QUEUE_HIGH": 20}
    result = crawl(source, settings, args={"base": where.url("")}, timeout=30)
    assert result.reason == "finished"
    assert "requests of this crawl are missing in its file" in result.log
    assert where.url("/page/59") in urls(result)


@pytest.mark.parametrize("seed", range(2))
def test_file_that_is_cut_anywhere_opens_and_tells_what_was_lost(
    site: Sites, crawl: Crawls, seed: int
) -> None:
    where = site(latency=0.05)
    args = pages(where, 200)
    first = crawl(LISTED_PAGES, {**JOB, "CLOSESPIDER_PAGECOUNT": 20}, args=args)
    left = first.stat("backpressure/audit/persisted")
    file = first.folder / "job" / "backpressure.sqlite"
    whole = file.read_bytes()
    file.write_bytes(whole[: random.Random(seed).randrange(1, len(whole))])
    second = crawl(LISTED_PAGES, JOB, args=args)
    assert second.reason == "finished", second.log[-4000:]
    assert "is damaged" in second.log
    assert second.stat("backpressure/audit/missing") == 0
    assert second.stat("backpressure/audit/all_runs/missing") == 0
    resumed = second.stat("backpressure/audit/resumed")
    assert f"{resumed} carried over, " in second.log
    lost = second.stat("backpressure/audit/all_runs/lost")
    assert len(set(urls(first, second))) >= 200 - max(lost, left - resumed)


# -- the clock -------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [3600, -3600])
def test_clock_that_jumps_by_an_hour_moves_no_retry(site: Sites, crawl: Crawls, jump: int) -> None:
    where = site(
        faults=[{"match": "/page/0", "times": 1, "status": 503, "headers": {"Retry-After": 1}}]
    )
    source = """
    import time

    wall = time.time

    class Jump(Spider):
        name = "jump"

        @classmethod
        def from_crawler(cls, crawler, *args, **kwargs):
            from scrapy_backpressure.signals import request_parked

            spider = super().from_crawler(crawler, *args, **kwargs)
            crawler.signals.connect(spider.set_the_clock, request_parked)
            return spider

        def set_the_clock(self):
            time.time = lambda: wall() + int(self.jump)

        async def start(self):
            yield Request(f"{self.base}/page/0")

        def parse(self, response):
            yield {"url": response.url}
    """
    args = {"base": where.url(""), "jump": jump}
    assert_sound(crawl(source, JOB, args=args, timeout=30))
    first, second = where.times("/page/0")
    assert second - first >= 1


# -- dead letters ----------------------------------------------------------------------------


def test_letters_of_a_run_and_of_a_killed_one_after_it_are_in_one_file(
    site: Sites, crawl: Crawls, tmp_path: Path
) -> None:
    where = site(faults=[{"match": "/page/*", "status": 503}])
    settings = {
        **JOB,
        "RETRY_TIMES": 0,
        "BACKPRESSURE_DEAD_LETTER_FEEDS": {"dead_letters/all.jsonl": {"format": "jsonlines"}},
    }
    file = tmp_path / "crawl" / "dead_letters" / "all.jsonl"

    def letters() -> int:
        return len(file.read_text(encoding="utf-8").splitlines())

    crawl(LISTED_PAGES, settings, args=pages(where, 3))
    result = crawl(
        LISTED_PAGES, settings, args=pages(where, 40), kill_after=lambda: letters() >= 6
    )
    assert result.returncode < 0
    found = [letter["request"]["url"] for letter in result.dead_letters]
    assert set(found[:3]) == set(pages(where, 3)["urls"])
    assert len(set(found)) >= 6


def test_dead_letters_that_their_storage_refuses_are_kept_as_a_file(
    site: Sites, crawl: Crawls
) -> None:
    where = site(faults=[{"status": 503}])
    source = f"""{LISTED_PAGES}
from scrapy.extensions.feedexport import BlockingFeedStorage

class Refusing(BlockingFeedStorage):
    def __init__(self, uri, *, feed_options=None):
        pass

    def _store_in_thread(self, file):
        file.close()
        raise OSError("access denied")
    """
    settings = {
        "FEED_STORAGES": {"cloud": "spider_under_test.Refusing"},
        "BACKPRESSURE_DEAD_LETTER_FEEDS": {"cloud://bucket/letters": {"format": "jsonlines"}},
        "RETRY_TIMES": 0,
    }
    result = crawl(source, settings, args=pages(where, 3))
    assert_sound(result, errors=True)
    assert "access denied" in result.log
    (kept,) = result.folder.glob("not-stored-*-dead-letters.jsonlines")
    assert str(kept.name) in result.log
    letters = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    assert sorted(letter["request"]["url"] for letter in letters) == sorted(
        pages(where, 3)["urls"]
    )
