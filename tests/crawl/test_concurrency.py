"""What sites see of the lanes: how many requests at once, how fast, and when they pause.

A crawl costs a second to start, so most of them ask many hosts, each of another temper.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from tests.crawl.audit import assert_sound
from tests.crawl.conftest import REACTORS, Crawls, Sites

PAGES = """
class Pages(Spider):
    name = "pages"

    async def start(self):
        for url in self.urls:
            yield Request(url)

    def parse(self, response):
        slot = self.crawler.engine.downloader.slots[response.meta["download_slot"]]
        host = response.meta["download_slot"]
        yield {"url": response.url, "host": host, "concurrency": slot.concurrency}
"""


class Hosts:
    """A site of several hosts that have names here and loopback addresses there."""

    def __init__(self, site: Sites, **rules: Mapping[str, Any]) -> None:
        self.address = {name: f"127.0.0.{n}" for n, name in enumerate(rules, start=2)}
        self.site = site({"hosts": {self.address[name]: rule for name, rule in rules.items()}})

    def urls(self, **counts: int) -> list[str]:
        """That many pages of each host, in turn."""
        pages = sorted((n, name) for name, count in counts.items() for n in range(count))
        return [self.site.url(f"/page/{n}", host=self.address[name]) for n, name in pages]

    def stats(self, name: str) -> dict[str, Any]:
        return self.site.host(self.address[name])

    def hits(self, name: str) -> list[tuple[float, str]]:
        """When each request arrived, and how the host took it."""
        return [(second, kind) for second, _, kind in self.stats(name)["requests"]]

    def times(self, name: str) -> list[float]:
        return [second for second, _ in self.hits(name)]

    def gaps(self, name: str) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.times(name))]

    def rate(self, name: str, start: float, end: float) -> float:
        """Requests a second from second *start* to *end*."""
        return sum(start <= time < end for time in self.times(name)) / (end - start)


def test_what_the_user_allows_is_the_ceiling(site: Sites, crawl: Crawls) -> None:
    refused_once = {"match": "/page/3", "times": 1, "status": 429}
    hosts = Hosts(
        site,
        busy={"latency": 0.05},
        narrow={"latency": 0.05},
        slow={"latency": 1.0},
        spaced={"latency": 0.02},
        refusing={
            "latency": 0.02,
            "faults": [{**refused_once, "headers": {"Retry-After": "0.6"}}],
        },
    )
    undelayed = {"delay": 0}
    settings = {
        "CONCURRENT_REQUESTS": 64,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 4,
        "DOWNLOAD_DELAY": 0.1,
        "DOWNLOAD_SLOTS": {
            hosts.address["busy"]: undelayed,
            hosts.address["narrow"]: {**undelayed, "concurrency": 2},
            hosts.address["slow"]: undelayed,
        },
        "BACKPRESSURE_START_CONCURRENCY": 3,
    }
    urls = hosts.urls(busy=80, narrow=30, slow=5, spaced=26, refusing=20)
    assert_sound(crawl(PAGES, settings, args={"urls": urls}))
    first = hosts.times("slow")[0]
    after_pause = hosts.gaps("refusing")[5:]
    assert {
        "most at once, CONCURRENT_REQUESTS_PER_DOMAIN": 3 <= hosts.stats("busy")["peak"] <= 4,
        "most at once, DOWNLOAD_SLOTS": hosts.stats("narrow")["peak"],
        "at once to begin with": sum(time < first + 0.8 for time in hosts.times("slow")),
        "delay": median(hosts.gaps("spaced")),
        "least gap after a pause is a delay": min(after_pause) > 0.04,
        "delay after a pause": median(after_pause),
    } == {
        "most at once, CONCURRENT_REQUESTS_PER_DOMAIN": True,
        "most at once, DOWNLOAD_SLOTS": 2,
        "at once to begin with": 3,
        "delay": pytest.approx(0.1, rel=0.4),
        "least gap after a pause is a delay": True,
        "delay after a pause": pytest.approx(0.1, rel=0.4),
    }


def test_what_knocks_at_a_silent_site_reaches_it(site: Sites, crawl: Crawls) -> None:
    """The requests that hang fill the slot, and Scrapy's own limit must not hold others back."""
    lost = {"stall": "lost", "from": 0.5, "until": 2.0}
    hosts = Hosts(site, silent={"latency": 0.1, "max_at_once": 2, "faults": [lost]})
    settings = {
        "DOWNLOAD_TIMEOUT": 6,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        "BACKPRESSURE_BACKOFF_BASE": 0.1,
    }
    assert_sound(crawl(PAGES, settings, args={"urls": hosts.urls(silent=60)}))
    served = [second for second, kind in hosts.hits("silent") if kind == "served"]
    assert len([second for second in served if 2.0 < second < 6.0]) > 20
    assert len(served) == 60


def test_refusals_without_a_time_are_backed_off(site: Sites, crawl: Crawls) -> None:
    once = {"match": "/page/0", "times": 1, "status": 429}
    hosts = Hosts(
        site,
        silent={"latency": 0.02, "faults": [{**once, "times": 4}]},
        zero={"latency": 0.02, "faults": [{**once, "headers": {"Retry-After": "0"}}]},
        negative={"latency": 0.02, "faults": [{**once, "headers": {"Retry-After": "-5"}}]},
    )
    urls = hosts.urls(silent=1, zero=1, negative=1)
    result = crawl(PAGES, {"BACKPRESSURE_BACKOFF_BASE": 0.2}, args={"urls": urls})
    assert_sound(result)
    silent = hosts.gaps("silent")
    assert {
        "silence: gaps grow": silent[-1] > silent[0],  # each alone is drawn at random
        "zero: backed off": hosts.gaps("zero")[0] >= 0.02,
        "negative: backed off": hosts.gaps("negative")[0] >= 0.02,
    } == {"silence: gaps grow": True, "zero: backed off": True, "negative: backed off": True}


def test_eight_refusals_at_once_are_one_step_down(site: Sites, crawl: Crawls) -> None:
    # Slow refusals: all eight are under way before the first is known.
    refused = {"match": "/page/4[0-7]", "times": 1, "status": 429, "latency": 1.0}
    hosts = Hosts(site, burst={"latency": 0.1, "faults": [refused]})
    settings = {"BACKPRESSURE_START_CONCURRENCY": 8, "BACKPRESSURE_BACKOFF_BASE": 0.2}
    result = crawl(PAGES, settings, args={"urls": hosts.urls(burst=60)})
    assert_sound(result)
    assert 5 <= min(item["concurrency"] for item in result.items) < 8


def test_a_site_that_restarts_its_ban_is_hit_too_early_by_none(site: Sites, crawl: Crawls) -> None:
    hosts = Hosts(
        site, banning={"latency": 0.1, "max_at_once": 2, "ban": 1, "retry_after": "auto"}
    )
    assert_sound(crawl(PAGES, {}, args={"urls": hosts.urls(banning=12)}))
    assert hosts.stats("banning")["refused"] > 0
    assert hosts.stats("banning")["early"] == 0


def test_five_captchas_at_once_are_one_pause(site: Sites, crawl: Crawls) -> None:
    challenged = {"per": "host", "times": 5, "challenge": True}
    hosts = Hosts(site, captchas={"latency": 0.2, "faults": [challenged]})
    settings = {
        "BACKPRESSURE_START_CONCURRENCY": 8,
        "BACKPRESSURE_BACKOFF_BASE": 0.2,
        "RETRY_TIMES": 5,  # any page may meet all five
    }
    assert_sound(crawl(PAGES, settings, args={"urls": hosts.urls(captchas=10)}))
    captchas = hosts.hits("captchas")
    end = 0.2 + max(time for time, kind in captchas if kind == "challenged")
    # Five in a row would be 0.5 + 1 + 2 + 4 + 8 s.
    assert min(time for time, _ in captchas if time > end) - end < 5


def test_quick_refusals_slow_their_host_and_no_other(site: Sites, crawl: Crawls) -> None:
    quick = {"from": 1.2, "until": 2.6, "status": 429, "latency": 0.005}
    hosts = Hosts(site, hasty={"latency": 0.1, "faults": [quick]}, calm={"latency": 0.1})
    settings = {
        "CONCURRENT_REQUESTS": 64,
        "DOWNLOAD_SLOTS": {hosts.address["calm"]: {"concurrency": 2, "delay": 0}},
        "BACKPRESSURE_START_CONCURRENCY": 8,
        "BACKPRESSURE_BACKOFF_BASE": 0.2,
    }
    urls = hosts.urls(calm=60, hasty=120)
    assert_sound(crawl(PAGES, settings, args={"urls": urls}))
    calm = hosts.times("calm")
    # Two go at once; the median, because all of a loaded machine may halt for a while.
    paces = [third - first for first, third in zip(calm, calm[2:], strict=False)]
    before = median(pace for pace, at in zip(paces, calm, strict=False) if at < 1.0)
    meanwhile = median(pace for pace, at in zip(paces, calm, strict=False) if 1.3 <= at < 2.6)
    assert hosts.rate("hasty", 1.4, 2.6) < hosts.rate("hasty", 0, 1.2)
    assert meanwhile <= 1.3 * before


@pytest.mark.parametrize("reactor", REACTORS)
def test_a_retry_after_holds_for_the_page_and_for_its_siblings(
    site: Sites, crawl: Crawls, reactor: str
) -> None:
    refused_once = {"times": 1, "status": 429, "headers": {"Retry-After": "1"}}
    hosts = Hosts(
        site,
        alone={"faults": [{**refused_once, "match": "/page/0"}]},
        siblings={"latency": 0.1, "faults": [{**refused_once, "match": "/page/5"}]},
    )
    settings = {"BACKPRESSURE_BACKOFF_BASE": 0.1}
    urls = hosts.urls(alone=1, siblings=20)
    assert_sound(crawl(PAGES, settings, args={"urls": urls}, reactor=reactor))
    assert 1.0 <= hosts.gaps("alone")[0] < 2.5
    assert hosts.stats("siblings")["early"] == 0


def test_refusals_do_not_cut_below_min_concurrency(site: Sites, crawl: Crawls) -> None:
    hosts = Hosts(site, tight={"latency": 0.05, "max_at_once": 1})
    settings = {"BACKPRESSURE_MIN_CONCURRENCY": 3, "BACKPRESSURE_BACKOFF_BASE": 0.2}
    result = crawl(PAGES, settings, args={"urls": hosts.urls(tight=12)})
    assert_sound(result)
    assert min(item["concurrency"] for item in result.items) == 3


def test_slots_and_proxies_of_the_user_pause_apart(site: Sites, crawl: Crawls) -> None:
    # The site answers requests in the absolute form, so that it can stand for both proxies.
    fault = {"match": "/page/0", "times": 1, "status": 429, "headers": {"Retry-After": "2"}}
    rule = {"latency": 0.05, "faults": [fault]}
    where = site({"hosts": {"shop.test": rule, "127.0.0.2": rule, "127.0.0.3": {}}})
    source = """
    import asyncio

    class Apart(Spider):
        name = "apart"

        async def start(self):
            for n in range(20):
                # Pages 0 and 1 go the way on which 0 is refused, the others the other way.
                way = int(n > 1)
                yield Request(f"{self.direct}/page/{n}", meta={"download_slot": f"slot {way}"})
                yield Request(f"http://shop.test/page/{n}", meta={"proxy": self.proxies[way]})
                if n == 0:
                    await asyncio.sleep(0.5)

        def parse(self, response):
            yield {"proxy": "proxy" in response.meta, "page": int(response.url.split("/")[-1])}
    """
    args = {
        "direct": where.url(host="127.0.0.2").rstrip("/"),
        "proxies": [where.url(host="127.0.0.2"), where.url(host="127.0.0.3")],
    }
    result = crawl(source, {"CONCURRENT_REQUESTS_PER_DOMAIN": 2}, args=args)
    assert_sound(result)
    last = {
        proxy: sorted([item["page"] for item in result.items if item["proxy"] is proxy][18:])
        for proxy in (False, True)
    }
    assert last == {False: [0, 1], True: [0, 1]}


def test_a_slot_that_was_forgotten_starts_from_what_its_site_had_shown(
    site: Sites, crawl: Crawls
) -> None:
    # Slow refusals: all eight are under way before the first is known.
    where = site(latency=0.4, refuse_latency=0.3, max_at_once=2)
    source = """
    import asyncio
    from scrapy_backpressure import admission

    admission._IDLE_SECONDS = 0.3

    class Twice(Spider):
        name = "twice"
        seen = 0

        async def start(self):
            for n in range(20):
                yield Request(f"{self.base}/page/{n}")
            while self.seen < 20:
                await asyncio.sleep(0.1)
            await asyncio.sleep(1.5)
            for n in range(100, 120):
                yield Request(f"{self.base}/page/{n}")

        def parse(self, response):
            self.seen += 1
            yield {"page": int(response.url.rpartition("/")[2])}
    """
    settings = {
        "CONCURRENT_REQUESTS": 200,
        "BACKPRESSURE_START_CONCURRENCY": 8,
        "BACKPRESSURE_INTERVAL": 0.2,
    }
    result = crawl(source, settings, args={"base": where.url("")})
    assert_sound(result)
    kinds = [(int(path.rpartition("/")[2]), kind) for _, path, kind in where.host()["requests"]]
    first = sum(kind == "refused" for page, kind in kinds if page < 100)
    again = sum(kind == "refused" for page, kind in kinds if page >= 100)
    assert first >= 3
    assert again <= 2


def test_a_pause_outlasts_the_slot_that_it_was_asked_of(site: Sites, crawl: Crawls) -> None:
    refusal = {"until": 0.5, "status": 429, "headers": {"Retry-After": "3"}}
    addresses = [f"127.0.0.{number}" for number in range(2, 7)]
    where = site({"hosts": {address: {"faults": [refusal]} for address in addresses}})
    source = """
    import asyncio
    from scrapy_backpressure import admission

    admission._MAX_SLOTS = 2

    class Many(Spider):
        name = "many"

        async def start(self):
            for number, url in enumerate(self.urls):
                if number == 5:
                    await asyncio.sleep(1)
                yield Request(url)

        def parse(self, response):
            pass
    """
    urls = [where.url(f"/page/{n}", host=address) for n in range(2) for address in addresses]
    result = crawl(source, {"BACKPRESSURE_INTERVAL": 0.1}, args={"urls": urls})
    assert_sound(result)
    assert where.stats()["pages"] == 10
    assert where.stats()["early"] == 0
