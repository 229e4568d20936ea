"""No misuse of the settings passes silently; what a project has set stays."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scrapy_backpressure.storage.sqlite import Database
from tests.crawl.audit import assert_sound
from tests.crawl.conftest import CrawlResult, Crawls, Sites

NOTHING = """
class Nothing(Spider):
    name = "nothing"

    async def start(self):
        return
        yield

    def parse(self, response):
        pass
"""
PAGE = """
class Page(Spider):
    name = "page"

    async def start(self):
        yield Request(f"{self.base}/page/1")

    def parse(self, response):
        yield {"url": response.url}
"""
BY_HAND: Mapping[str, Any] = {
    "ADDONS": None,
    "EXTENSIONS": {"scrapy_backpressure.BackpressureExtension": 100},
    "DOWNLOADER_MIDDLEWARES": {
        "scrapy.downloadermiddlewares.retry.RetryMiddleware": None,
        "scrapy_backpressure.RetryMiddleware": 550,
        "scrapy_backpressure.ConcurrencyMiddleware": 950,
    },
    "SCHEDULER_PRIORITY_QUEUE": "scrapy_backpressure.SlotAwarePriorityQueue",
}
MIDDLEWARES: Mapping[str, Any] = BY_HAND["DOWNLOADER_MIDDLEWARES"]
STOCK_RETRY = "scrapy.downloadermiddlewares.retry.RetryMiddleware"


def warnings_of(result: CrawlResult) -> list[str]:
    return [line for line in result.log.splitlines() if " WARNING: " in line]


# -- wrong values ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"BACKPRESSURE_INTERVAL": "often"},
            "BACKPRESSURE_INTERVAL accepts a positive number of seconds; got 'often'",
        ),
        (
            {"BACKPRESSURE_QUEUE_HIGH": 10, "BACKPRESSURE_QUEUE_LOW": 10},
            "BACKPRESSURE_QUEUE_LOW accepts an integer below BACKPRESSURE_QUEUE_HIGH (10); got 10",
        ),
        (
            {"BACKPRESSURE_QUEU_HIGH": 10},
            "Unknown setting BACKPRESSURE_QUEU_HIGH; did you mean BACKPRESSURE_QUEUE_HIGH?",
        ),
        (
            {"BACKPRESSURE_OUTCOME_POLICY": "scrapy.Spider"},
            "BACKPRESSURE_OUTCOME_POLICY accepts a subclass of scrapy_backpressure.OutcomePolicy",
        ),
        (
            {"BACKPRESSURE_OUTCOME_POLICY": "no.such.Policy"},
            "BACKPRESSURE_OUTCOME_POLICY accepts a subclass of scrapy_backpressure.OutcomePolicy",
        ),
        (
            {"BACKPRESSURE_DEAD_LETTER_FEEDS": {"letters.abc": {"format": "abc"}}},
            "BACKPRESSURE_DEAD_LETTER_FEEDS must be a dict as FEEDS is",
        ),
    ],
    ids=["type", "low", "unknown", "policy", "no module", "feeds"],
)
def test_wrong_setting_ends_the_crawl_before_it_starts(
    crawl: Crawls, settings: dict[str, Any], sentence: str
) -> None:
    result = crawl(NOTHING, settings)
    assert sentence in result.log
    assert "Spider opened" not in result.log


def test_wrong_setting_is_told_without_the_addon_too(crawl: Crawls) -> None:
    result = crawl(NOTHING, {**BY_HAND, "BACKPRESSURE_QUEUE_HIGH": "many"})
    assert "BACKPRESSURE_QUEUE_HIGH accepts an integer" in result.log
    assert "Spider opened" not in result.log


# -- components that miss each other, or do not go together ----------------------------------


def test_components_without_the_extension_say_what_to_add(crawl: Crawls) -> None:
    settings = {
        **BY_HAND,
        "EXTENSIONS": None,
        "SPIDER_MIDDLEWARES": {"scrapy_backpressure.StartGateMiddleware": 60},
    }
    result = crawl(NOTHING, settings)
    for component in ("RetryMiddleware", "ConcurrencyMiddleware", "StartGateMiddleware"):
        assert (
            f"{component} needs BackpressureExtension; add to your settings: "
            'EXTENSIONS = {"scrapy_backpressure.BackpressureExtension": 100}'
        ) in result.log


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"DOWNLOADER_MIDDLEWARES": {**MIDDLEWARES, STOCK_RETRY: 551}},
            f'"{STOCK_RETRY}": None',
        ),
        ({"AUTOTHROTTLE_ENABLED": True}, "Set AUTOTHROTTLE_ENABLED = False"),
        (
            {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"},
            "The scheduler cannot be steered",
        ),
        (
            {
                "DOWNLOADER_MIDDLEWARES": {
                    **MIDDLEWARES,
                    "scrapy_backpressure.ConcurrencyMiddleware": None,
                }
            },
            '"scrapy_backpressure.ConcurrencyMiddleware": 950',
        ),
    ],
    ids=["stock retry", "autothrottle", "scheduler", "no concurrency"],
)
def test_what_defeats_the_package_is_warned_of_once(
    crawl: Crawls, settings: dict[str, Any], sentence: str
) -> None:
    result = crawl(NOTHING, {**BY_HAND, **settings})
    assert_sound(result)
    [warning] = warnings_of(result)
    assert sentence in warning


def test_set_up_by_hand_is_as_good_as_the_addon(site: Sites, crawl: Crawls) -> None:
    where = site(faults=[{"times": 1, "status": 503}])
    result = crawl(PAGE, BY_HAND, args={"base": where.url("")})
    assert_sound(result)
    assert warnings_of(result) == []
    assert len(result.items) == 1
    assert result.stat("backpressure/retry_queue/parked") == 1


# -- what stays as it was --------------------------------------------------------------------


def test_disabled_package_leaves_a_stock_crawl(site: Sites, crawl: Crawls) -> None:
    where = site(faults=[{"times": 1, "status": 503}])
    settings = {**BY_HAND, "BACKPRESSURE_ENABLED": False}
    result = crawl(PAGE, settings, args={"base": where.url("")})
    assert result.troubles == []
    assert len(result.items) == 1
    assert result.stat("retry/count") == 1
    assert not [name for name in result.stats if name.startswith("backpressure/")]


def test_project_that_turned_retries_off_gets_none(site: Sites, crawl: Crawls) -> None:
    where = site(faults=[{"status": 503}])
    result = crawl(PAGE, {"RETRY_ENABLED": False}, args={"base": where.url("")})
    assert_sound(result)
    assert where.stats()["hits"] == 1


def test_project_that_took_the_retry_middleware_out_gets_none(site: Sites, crawl: Crawls) -> None:
    where = site(faults=[{"status": 503}])
    settings = {"DOWNLOADER_MIDDLEWARES": {STOCK_RETRY: None}}
    result = assert_sound(crawl(PAGE, settings, args={"base": where.url("")}))
    assert where.stats()["hits"] == 1
    assert "turns Scrapy's RetryMiddleware off" in result.log


def test_extension_alone_balances_its_books_where_a_callback_awaits_an_answer(
    site: Sites, crawl: Crawls
) -> None:
    where = site()
    source = """
    class Awaits(Spider):
        name = "awaits"

        async def start(self):
            yield Request(self.base + "/page/1")

        async def parse(self, response):
            request = Request(self.base + "/page/2")
            more = await self.crawler.engine.download_async(request)
            yield {"status": more.status}
    """
    settings = {
        "ADDONS": None,
        "EXTENSIONS": {"scrapy_backpressure.BackpressureExtension": 100},
    }
    result = assert_sound(crawl(source, settings, args={"base": where.url("")}))
    assert result.items == [{"status": 200}]
    assert result.stat("backpressure/audit/handled") == 1


def test_page_that_the_spider_gets_whatever_its_status_has_no_letter(
    site: Sites, crawl: Crawls
) -> None:
    where = site(faults=[{"status": 503}])
    settings = {
        "SPIDER_MIDDLEWARES": {"scrapy.spidermiddlewares.httperror.HttpErrorMiddleware": None},
        "RETRY_TIMES": 1,
        "BACKPRESSURE_BACKOFF_BASE": 0.02,
    }
    result = assert_sound(crawl(PAGE, settings, args={"base": where.url("")}), errors=True)
    assert (len(result.items), result.dead_letters) == (1, [])


def test_shell_fetches_and_retries_as_ever(site: Sites, tmp_path: Path) -> None:
    where = site(faults=[{"times": 1, "status": 503}])
    addons = json.dumps({"scrapy_backpressure.Addon": 300})
    done = subprocess.run(
        [
            *(sys.executable, "-m", "scrapy", "shell", where.url("/page/1")),
            *("-c", "response.status", "-s", f"ADDONS={addons}"),
            *("-s", "BACKPRESSURE_BACKOFF_BASE=0.1"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "200" in done.stdout
    assert not [line for line in done.stderr.splitlines() if " ERROR: " in line]


def test_scheduler_that_cannot_be_steered_still_crawls(site: Sites, crawl: Crawls) -> None:
    where = site(faults=[{"match": "/page/1", "times": 1, "status": 503}])
    settings = {**BY_HAND, "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"}
    result = crawl(PAGE, settings, args={"base": where.url("")})
    assert_sound(result)
    assert len(result.items) == 1


def test_jobdir_of_another_crawl_is_refused_before_the_scheduler_opens_it(
    crawl: Crawls, tmp_path: Path
) -> None:
    other = Database(tmp_path / "job" / "backpressure.sqlite")
    try:
        result = crawl(NOTHING, {"JOBDIR": str(tmp_path / "job")})
    finally:
        other.close()
    assert "is in use by another crawl" in result.log
    assert "Spider opened" not in result.log
    assert not (tmp_path / "job" / "requests.queue").exists()


def test_what_is_left_in_a_scheduler_that_nobody_can_read_is_told(
    site: Sites, crawl: Crawls
) -> None:
    where = site(latency=0.2)
    source = """
    from scrapy.core.scheduler import BaseScheduler

    class OwnQueue(BaseScheduler):  # has no length either
        def __init__(self):
            self.requests = []

        def has_pending_requests(self):
            return bool(self.requests)

        def enqueue_request(self, request):
            self.requests.append(request)
            return True

        def next_request(self):
            return self.requests.pop(0) if self.requests else None

    class Pages(Spider):
        name = "pages"

        async def start(self):
            for number in range(60):
                yield Request(f"{self.base}/page/{number}")

        def parse(self, response):
            yield {"url": response.url}
    """
    settings = {"SCHEDULER": "spider_under_test.OwnQueue", "CLOSESPIDER_ITEMCOUNT": 3}
    result = assert_sound(crawl(source, settings, args={"base": where.url("")}))
    assert result.stat("backpressure/audit/persisted") > 10
    assert any("are left in OwnQueue" in line for line in warnings_of(result))
