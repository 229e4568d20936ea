"""Answers of every kind are taken for what they mean."""

from __future__ import annotations

import textwrap
import time
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from typing import Any

from tests.crawl.audit import assert_sound
from tests.crawl.conftest import Crawls, Sites

PAGES = """
class Pages(Spider):
    name = "pages"

    async def start(self):
        for url in self.urls:
            yield Request(url)

    def parse(self, response):
        yield {
            "url": response.url,
            "cached": "cached" in response.flags,
            "size": len(response.body),
        }
"""
AHEAD = 5.0
"""Seconds, from the making of the profile, until the times in its headers."""


def dates(when: float) -> dict[str, str]:
    """The time *when* (epoch seconds), as sites write it."""
    there = datetime.fromtimestamp(when, timezone.utc)
    east = there.astimezone(timezone(timedelta(hours=2)))
    new_york = there.astimezone(timezone(timedelta(hours=-5)))
    plain = "%a, %d %b %Y %H:%M:%S"
    return {
        "GMT": format_datetime(there, usegmt=True),
        "an offset": format_datetime(east),
        "minus zero": there.strftime(f"{plain} -0000"),
        "EST": new_york.strftime(f"{plain} EST"),
        "an unknown zone": there.strftime(f"{plain} XYZ"),
        "two-digit year": there.strftime("%A, %d-%b-%y %H:%M:%S GMT"),
        "asctime": there.strftime("%a %b %d %H:%M:%S %Y"),
        "ISO 8601": there.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "epoch": str(int(there.timestamp())),
    }


def test_a_retry_after_in_any_dialect_is_a_sane_pause(site: Sites, crawl: Crawls) -> None:
    due = time.time() + AHEAD
    # Each with what becomes of it: the least wait in seconds, or None: longer than MAX_PAUSE.
    told: dict[str, tuple[str | list[str], float | None]] = {
        **{name: (text, 0.5) for name, text in dates(due).items()},
        "seconds": ("1", 1.0),
        "a float": ("0.493", 0.493),
        "a unit": ("1s", 1.0),
        "minutes and seconds": ("0m1s", 1.0),
        "a long duration": ("1m0s", None),
        "a list": ("60, 120", None),
        "two headers": (["0", "1"], 1.0),
        "ages": ("9999999999", None),
        "a past epoch": ("1746136938", 0.02),
        "a past date": ("Sun, 06 Nov 1994 08:49:37 GMT", 0.02),
        "not a number": ("nan", 0.02),
        "infinity": ("1e999", 0.02),
        "junk": ("120junk", 0.02),
        "nothing": ("", 0.02),
    }
    address = {name: f"127.0.0.{n}" for n, name in enumerate(told, start=2)}
    where = site(
        {
            "hosts": {
                address[name]: {
                    "faults": [{"times": 1, "status": 429, "headers": {"Retry-After": text}}]
                }
                for name, (text, _) in told.items()
            }
        }
    )
    settings = {"BACKPRESSURE_MAX_PAUSE": 20, "BACKPRESSURE_BACKOFF_BASE": 0.2}
    urls = {where.url("/page/0", host=host): name for name, host in address.items()}
    result = crawl(PAGES, settings, args={"urls": list(urls)}, timeout=30)
    assert_sound(result, errors=True)
    too_long = {urls[letter["request"]["url"]] for letter in result.dead_letters}
    assert too_long == {name for name, (_, least) in told.items() if least is None}
    assert {letter["reason"] for letter in result.dead_letters} == {"max_pause"}
    waited = {}
    for name, (_, least) in told.items():
        times = where.times("/page/0", host=address[name])
        if least is not None:
            waited[name] = len(times) == 2 and least <= times[1] - times[0] < least + AHEAD + 1
    assert [name for name, sane in waited.items() if not sane] == []
    assert result.elapsed < 15


def test_a_pause_until_a_date_ends_at_that_date(site: Sites, crawl: Crawls) -> None:
    due = time.time() + AHEAD
    at = dates(due)
    address = {name: f"127.0.0.{n}" for n, name in enumerate(at, start=2)}
    fault: dict[str, Any] = {"until": 2, "status": 429}
    where = site(
        {
            "hosts": {
                address[name]: {"faults": [{**fault, "headers": {"Retry-After": text}}]}
                for name, text in at.items()
            }
        }
    )
    source = """
    import time

    class Dates(Spider):
        name = "dates"

        async def start(self):
            for url in self.urls:
                yield Request(url)

        def parse(self, response):
            yield {"host": response.meta["download_slot"], "time": time.time()}
    """
    urls = [where.url("/page/0", host=host) for host in address.values()]
    result = crawl(source, args={"urls": urls}, timeout=30)
    assert_sound(result)
    # The headers tell whole seconds.
    early = [item for item in result.items if item["time"] < int(due)]
    assert (len(result.items), early) == (len(at), [])


def test_answers_are_told_apart_and_a_policy_may_add_to_it(site: Sites, crawl: Crawls) -> None:
    source = """
    from dataclasses import replace

    from scrapy_backpressure import OutcomePolicy

    class ShopPolicy(OutcomePolicy):
        def is_throttled(self, evidence):
            if evidence.status == 520 or b'"error": "slow down"' in evidence.body:
                return True
            return super().is_throttled(evidence)

    class Shop(Spider):
        name = "shop"

        async def start(self):
            for host in self.hosts:
                for n in range(4):
                    yield Request(f"{host}/page/{n}")

        def parse(self, response):
            yield {"url": response.url, "size": len(response.body)}
    """
    once = {"match": "/page/1", "times": 1}
    rules = {
        "520": {**once, "status": 520, "headers": {"Retry-After": "1"}},
        "json": {
            **once,
            "status": 200,
            "body": '{"error": "slow down"}',
            "headers": {"Retry-After": "1"},
        },
        "challenge": {**once, "challenge": True, "status": 429},
        "cut": {**once, "cut_gzip": True},
    }
    address = {name: f"127.0.0.{n}" for n, name in enumerate(rules, start=2)}
    where = site(
        {
            "hosts": {
                address[name]: {"latency": 0.05, "faults": [fault]}
                for name, fault in rules.items()
            }
        }
    )
    settings = {
        "BACKPRESSURE_OUTCOME_POLICY": "spider_under_test.ShopPolicy",
        "BACKPRESSURE_BACKOFF_BASE": 0.2,
    }
    hosts = [where.url(host=host).rstrip("/") for host in address.values()]
    result = crawl(source, settings, args={"hosts": hosts})
    assert_sound(result)
    outcomes = {
        name.removeprefix("backpressure/outcome/"): count
        for name, count in result.stats.items()
        if name.startswith("backpressure/outcome/")
    }
    assert outcomes == {
        "accepted": 17,  # that the stream breaks off is seen when it is decoded
        "throttled": 2,
        "throttled/520": 1,
        "throttled/200": 1,
        "blocked": 1,
        "blocked/cloudflare": 1,
    }
    assert (len(result.items), min(item["size"] for item in result.items) > 700) == (16, True)
    assert [where.host(address[name])["early"] for name in ("520", "json")] == [0, 0]


def test_the_cache_keeps_good_pages_only_and_they_teach_nothing(
    site: Sites, crawl: Crawls
) -> None:
    bad: list[dict[str, Any]] = [
        {"challenge": True, "status": 200},
        {"challenge": True},
        {"status": 429},
        {"cut_gzip": True},
    ]
    address = [f"127.0.0.{n}" for n in range(2, 6)]
    where = site(
        {
            "hosts": {
                host: {"latency": 0.02, "faults": [{"match": "/page/1", "times": 1, **fault}]}
                for host, fault in zip(address, bad, strict=True)
            }
        }
    )
    settings = {"HTTPCACHE_ENABLED": True, "BACKPRESSURE_BACKOFF_BASE": 0.2}
    args = {"urls": [where.url(f"/page/{n}", host=host) for n in range(8) for host in address]}
    first = crawl(PAGES, settings, args=args)
    assert_sound(first)
    assert (len(first.items), min(item["size"] for item in first.items) > 700) == (32, True)
    asked = where.stats()["hits"]
    second = crawl(PAGES, {**settings, "DOWNLOAD_DELAY": 5}, args=args)
    assert_sound(second)
    assert {
        "asked again": where.stats()["hits"] - asked,
        "pages from the cache": sum(item["cached"] for item in second.items),
        "learned": [name for name in second.stats if name.startswith("backpressure/outcome/")],
        "without delay": second.elapsed < 5,
        "whole": min(item["size"] for item in second.items) > 700,
    } == {
        "asked again": 0,
        "pages from the cache": 32,
        "learned": [],
        "without delay": True,
        "whole": True,
    }


def test_policy_that_fails_costs_no_page(site: Sites, crawl: Crawls) -> None:
    where = site(faults=[{"match": "/page/1", "times": 1, "status": 503}])
    source = """
    from scrapy_backpressure import OutcomePolicy

    class Broken(OutcomePolicy):
        def classify_response(self, request, response):
            return response.status == 200
    """
    settings = {
        "BACKPRESSURE_OUTCOME_POLICY": "spider_under_test.Broken",
        "BACKPRESSURE_BACKOFF_BASE": 0.2,
    }
    args = {"urls": [where.url(f"/page/{n}") for n in range(4)]}
    result = assert_sound(crawl(textwrap.dedent(source) + PAGES, settings, args=args), errors=True)
    assert len(result.items) == 4
    assert result.stat("backpressure/policy_errors") == 5
    assert sum("BACKPRESSURE_OUTCOME_POLICY failed" in line for line in result.troubles) == 1
