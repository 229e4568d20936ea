"""Retries wait outside the scheduler; what the user set about them keeps its meaning."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crawl.audit import assert_sound
from tests.crawl.conftest import LISTED_PAGES, REACTORS, CrawlResult, Crawls, Sites
from tests.site import Site

BY_HAND = {
    "ADDONS": None,
    "EXTENSIONS": {"scrapy_backpressure.BackpressureExtension": 100},
    "DOWNLOADER_MIDDLEWARES": {
        "scrapy.downloadermiddlewares.retry.RetryMiddleware": None,
        "scrapy_backpressure.RetryMiddleware": 550,
        "scrapy_backpressure.ConcurrencyMiddleware": 950,
    },
    "SCHEDULER_PRIORITY_QUEUE": "scrapy_backpressure.SlotAwarePriorityQueue",
}


def pages(where: Site, count: int, host: str = "127.0.0.1") -> list[str]:
    return [where.url(f"/page/{n}", host=host) for n in range(count)]


def reasons(result: CrawlResult) -> list[str]:
    return sorted(letter["reason"] for letter in result.dead_letters)


# -- getting through -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [{"until": 2.0, "status": 429}, {"until": 1.0, "drop": True}],
    ids=["429", "dropped connections"],
)
def test_an_outage_shorter_than_the_retries_last_costs_nothing(
    site: Sites, crawl: Crawls, fault: dict[str, Any]
) -> None:
    where = site(latency=0.05, faults=[fault])
    urls = pages(where, 50)
    result = crawl(LISTED_PAGES, {"RETRY_TIMES": 2}, args={"urls": urls}, timeout=30)
    assert_sound(result)
    assert sorted(item["url"] for item in result.items) == sorted(urls)


# -- giving up -------------------------------------------------------------------------------


@pytest.mark.parametrize("reactor", REACTORS)
def test_a_page_that_is_always_refused_ends_in_one_dead_letter_wherever_it_came_from(
    site: Sites, crawl: Crawls, reactor: str
) -> None:
    source = """
    class Refused(Spider):
        name = "refused"

        async def start(self):
            yield Request(self.urls[0])
            yield Request(self.index, callback=self.parse_index)

        def parse_index(self, response):
            self.crawler.engine.crawl(Request(self.urls[2]))
            yield Request(self.urls[1])

        def parse(self, response):
            yield {"url": response.url}
    """
    always = {"latency": 0.02, "faults": [{"status": 429}]}
    # Hosts of their own, as refusals of one site are asked for less and less often.
    hosts = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    where = site({"hosts": dict.fromkeys(hosts, always)})
    urls = [where.url("/page/1", host=host) for host in hosts]
    settings = {
        "BACKPRESSURE_THROTTLE_TIMES": 2,
        "BACKPRESSURE_BACKOFF_BASE": 0.1,
        "RETRY_GIVE_UP_LOG_LEVEL": "INFO",
    }
    args = {"urls": urls, "index": where.url("/page/0")}
    result = crawl(source, settings, args=args, reactor=reactor)
    assert_sound(result)
    assert sorted(letter["request"]["url"] for letter in result.dead_letters) == urls
    assert reasons(result) == ["throttled"] * 3
    assert [where.host(host)["hits"] for host in hosts] == [3, 3, 3]


def test_a_site_that_accepts_nothing_for_stall_timeout_is_given_up(
    site: Sites, crawl: Crawls
) -> None:
    where = site(latency=0.02, faults=[{"status": 429}])
    settings = {"BACKPRESSURE_STALL_TIMEOUT": 2}
    result = crawl(LISTED_PAGES, settings, args={"urls": pages(where, 12)}, timeout=30)
    assert_sound(result, errors=True)
    assert len(result.dead_letters) == 12
    assert set(reasons(result)) <= {"throttled", "stalled"}
    assert result.elapsed < 15  # twenty tries would take minutes


def test_a_pause_beyond_max_pause_is_not_waited_for(site: Sites, crawl: Crawls) -> None:
    where = site(latency=0.1, faults=[{"status": 429, "headers": {"Retry-After": "3600"}}])
    result = crawl(LISTED_PAGES, {"BACKPRESSURE_MAX_PAUSE": 60}, args={"urls": pages(where, 12)})
    assert_sound(result, errors=True)
    assert reasons(result) == ["max_pause"] * 12
    assert where.host()["hits"] <= 4
    assert result.elapsed < 5


def test_a_quota_that_resets_beyond_max_pause_is_not_waited_for(
    site: Sites, crawl: Crawls
) -> None:
    spent = {
        "X-RateLimit-Limit": "100",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": "86400",
    }
    where = site(latency=0.02, headers=spent)
    result = crawl(LISTED_PAGES, {"BACKPRESSURE_MAX_PAUSE": 3}, args={"urls": pages(where, 12)})
    assert_sound(result)
    assert result.elapsed < 15
    assert set(reasons(result)) == {"max_pause"}


def test_a_pause_beyond_max_pause_is_waited_for_by_the_next_run(
    site: Sites, crawl: Crawls
) -> None:
    fault = {"until": 3.5, "status": 429, "headers": {"Retry-After": "4"}}
    where = site(latency=0.1, faults=[fault])
    settings = {"JOBDIR": "job", "BACKPRESSURE_MAX_PAUSE": 1}
    args = {"urls": pages(where, 12)}
    first = crawl(LISTED_PAGES, settings, args=args)
    assert_sound(first)
    assert (first.items, first.dead_letters, first.stat("backpressure/audit/persisted")) == (
        [],
        [],
        12,
    )
    assert first.elapsed < 4
    second = crawl(LISTED_PAGES, {**settings, "BACKPRESSURE_MAX_PAUSE": 60}, args={"urls": []})
    assert_sound(second)
    assert (len(second.items), second.stat("backpressure/audit/resumed")) == (12, 12)
    assert where.host()["early"] == 0


# -- settings and meta keys ----------------------------------------------------------------------


def test_settings_and_meta_keys_of_retries_keep_their_meaning(site: Sites, crawl: Crawls) -> None:
    source = """
    class Retries(Spider):
        name = "retries"

        async def start(self):
            for name, host in self.hosts.items():
                yield Request(f"{host}/page/0", meta=self.metas.get(name, {}), priority=3)

        def parse(self, response):
            yield {"status": response.status, "priority": response.request.priority}
    """
    tempers: dict[str, dict[str, Any]] = {
        "plain": {"status": 503},
        "dont_retry": {"status": 503},
        "max_retry_times": {"status": 503},
        "code taken out": {"status": 429},
        "code put in": {"status": 418},
        "handled by the spider": {"status": 504},
        "once": {"status": 503, "times": 1},
    }
    address = {name: f"127.0.0.{n}" for n, name in enumerate(tempers, start=2)}
    where = site({"hosts": {address[name]: {"faults": [f]} for name, f in tempers.items()}})
    settings = {
        "RETRY_TIMES": 1,
        "RETRY_HTTP_CODES": [418, 500, 502, 503, 504],
        "RETRY_PRIORITY_ADJUST": -7,
        "BACKPRESSURE_BACKOFF_BASE": 0.1,
    }
    metas = {
        "dont_retry": {"dont_retry": True},
        "max_retry_times": {"max_retry_times": 3},
        "handled by the spider": {"handle_httpstatus_list": [504]},
    }
    hosts = {name: where.url(host=host).rstrip("/") for name, host in address.items()}
    result = crawl(source, settings, args={"hosts": hosts, "metas": metas})
    assert_sound(result, errors=True)
    assert {name: where.host(host)["hits"] for name, host in address.items()} == {
        "plain": 2,
        "dont_retry": 1,
        "max_retry_times": 4,
        "code taken out": 1,
        "code put in": 2,
        "handled by the spider": 2,
        "once": 2,
    }
    assert sorted((item["status"], item["priority"]) for item in result.items) == [
        (200, -4),
        (504, -4),
    ]
    given_up = {letter["request"]["url"].split(":")[1][2:] for letter in result.dead_letters}
    expected = ("plain", "dont_retry", "max_retry_times", "code put in")
    assert given_up == {address[name] for name in expected}


def test_without_retries_pauses_are_kept_all_the_same(site: Sites, crawl: Crawls) -> None:
    where = site(
        latency=0.1,
        faults=[
            {"match": "/page/2", "status": 503},
            {"match": "/page/3", "status": 429, "headers": {"Retry-After": "1"}},
        ],
    )
    result = crawl(LISTED_PAGES, {"RETRY_ENABLED": False}, args={"urls": pages(where, 15)})
    assert_sound(result)
    host = where.host()
    assert (len(result.items), host["hits"], host["early"]) == (13, 15, 0)


@pytest.mark.parametrize("set_up", [{}, BY_HAND], ids=["addon", "by hand"])
def test_disabled_it_leaves_stock_behaviour(
    site: Sites, crawl: Crawls, set_up: dict[str, Any]
) -> None:
    where = site(faults=[{"match": "/page/1", "status": 429, "headers": {"Retry-After": "60"}}])
    settings = {**set_up, "BACKPRESSURE_ENABLED": False}
    result = crawl(LISTED_PAGES, settings, args={"urls": pages(where, 3)})
    assert (result.returncode, len(result.items)) == (0, 2)
    assert where.host()["paths"]["/page/1"]["hits"] == 3
    assert result.stat("retry/max_reached") == 1
    assert not [name for name in result.stats if name.startswith("backpressure/")]
    assert len(result.troubles) == 1, result.troubles  # Scrapy gives one page up


def test_pause_of_just_max_pause_is_waited_out(site: Sites, crawl: Crawls) -> None:
    fault = {"times": 1, "per": "host", "status": 429, "headers": {"Retry-After": 2}}
    where = site(faults=[fault])
    settings = {"BACKPRESSURE_MAX_PAUSE": 2}
    result = assert_sound(crawl(LISTED_PAGES, settings, args={"urls": pages(where, 3)}))
    assert len(result.items) == 3


def test_due_time_holds_for_requests_of_callbacks(site: Sites, crawl: Crawls) -> None:
    where = site()
    source = """
    import time

    class Later(Spider):
        name = "later"

        async def start(self):
            yield Request(f"{self.base}/page/1")

        def parse(self, response):
            due = time.time() + 1.5
            yield Request(f"{self.base}/page/2", self.at, meta={"backpressure_due": due})
            yield Request(f"{self.base}/page/3", self.at, meta={"backpressure_due": "soon"})

        def at(self, response):
            yield {"url": response.url}
    """
    result = assert_sound(crawl(source, args={"base": where.url("")}))
    assert [item["url"][-1] for item in result.items] == ["3", "2"]
    assert where.times("/page/2")[0] - where.times("/page/1")[0] > 1
    assert "backpressure_due accepts epoch seconds; got 'soon'" in result.log
