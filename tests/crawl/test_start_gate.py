"""start() and callbacks are held back while the crawl has enough to do."""

from __future__ import annotations

import pytest

from tests.crawl.audit import assert_sound
from tests.crawl.conftest import Crawls, Sites

# The stats tell the most that was ever yielded and not finished, and, at the end, how much was
# yielded at all; CLOSESPIDER_PAGECOUNT ends the crawl.
MANY_STARTS = """
class ManyStarts(Spider):
    name = "many"
    yielded = finished = 0

    async def start(self):
        stats = self.crawler.stats
        for number in range(int(self.count)):
            self.yielded += 1
            stats.max_value("test/open", self.yielded - self.finished)
            stats.set_value("test/yielded", self.yielded)
            yield Request(f"{self.base}/page/{number}")

    def parse(self, response):
        self.finished += 1
"""
# Counts what is in the scheduler whenever something enters it.
QUEUE_PEAK = """
class QueuePeak(Spider):
    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.count, scrapy.signals.request_scheduled)
        return spider

    def count(self):
        stat = self.crawler.stats.get_value
        queued = stat("scheduler/enqueued", 0) - stat("scheduler/dequeued", 0)
        self.crawler.stats.max_value("test/queue_peak", queued + 1)
"""
BOUND = {"BACKPRESSURE_QUEUE_HIGH": 40, "CONCURRENT_REQUESTS_PER_DOMAIN": 4}


@pytest.mark.parametrize("reactor", ["asyncio", "epoll", "none"])
def test_start_never_runs_further_ahead_than_queue_high(
    site: Sites, crawl: Crawls, reactor: str
) -> None:
    slow = site(latency=0.05)
    result = crawl(
        MANY_STARTS,
        {**BOUND, "CLOSESPIDER_PAGECOUNT": 50},
        args={"base": slow.url(""), "count": 20_000},
        reactor=reactor,
    )
    assert_sound(result)
    assert result.stat("test/open") <= 40
    assert result.stat("test/yielded") < 140  # and none more are read once the crawl closes


def test_memory_does_not_grow_with_the_number_of_start_requests(
    site: Sites, crawl: Crawls
) -> None:
    fast = site()
    source = """
    import resource

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    class Big(Spider):
        name = "big"
        custom_settings = {"DOWNLOADER_MIDDLEWARES": {"spider_under_test.Instant": 960}}

        async def start(self):
            for number in range(1000):
                if number == 200:
                    before = peak()
                load = bytes([number % 256]) * 40_000
                yield Request(f"{self.base}/page/{number}", cb_kwargs={"load": load})
            self.crawler.stats.set_value("test/grown_kb", peak() - before)

        def parse(self, response, load):
            pass

    class Instant:
        def process_request(self, request):
            # What follows the first pages takes no network.
            if int(request.url.rpartition("/")[2]) >= 100:
                return scrapy.http.Response(request.url, request=request)
    """
    result = crawl(source, {"BACKPRESSURE_QUEUE_HIGH": 30}, args={"base": fast.url("")})
    assert_sound(result)
    assert result.stat("backpressure/audit/handled") == 1000
    assert result.stat("test/grown_kb", None) < 12_000  # all of them would take 32 000


def test_start_requests_are_built_when_they_can_be_sent(site: Sites, crawl: Crawls) -> None:
    slow = site(latency=0.05)
    source = """
    import time

    class Stamped(Spider):
        name = "stamped"
        ages = []

        async def start(self):
            for number in range(120):
                built = time.monotonic()
                yield Request(f"{self.base}/page/{number}", cb_kwargs={"built": built})

        def parse(self, response, built):
            self.crawler.stats.max_value("test/age", time.monotonic() - built)
    """
    result = crawl(
        source,
        {"BACKPRESSURE_QUEUE_HIGH": 20, "CONCURRENT_REQUESTS_PER_DOMAIN": 4},
        args={"base": slow.url("")},
    )
    assert_sound(result)
    assert result.stat("backpressure/audit/handled") == 120
    assert result.elapsed > 1.4  # so a request built at the start would have become stale
    assert result.stat("test/age") < 1


def test_callback_that_yields_hundreds_of_requests_is_held_back(
    site: Sites, crawl: Crawls
) -> None:
    fast = site()
    source = (
        QUEUE_PEAK
        + """
class Rows(QueuePeak):
    name = "rows"

    async def start(self):
        yield Request(f"{self.base}/csv/400")

    def parse(self, response):
        for line in response.text.splitlines()[1:]:
            yield Request(self.base + line.split(",")[1], callback=self.parse_row)

    def parse_row(self, response):
        pass
"""
    )
    result = crawl(source, {"BACKPRESSURE_QUEUE_HIGH": 50}, args={"base": fast.url("")})
    assert_sound(result)
    assert fast.stats()["pages"] == 401
    assert result.stat("test/queue_peak") <= 50


def test_callbacks_are_not_held_back_when_the_user_says_so(site: Sites, crawl: Crawls) -> None:
    fast = site()
    source = (
        QUEUE_PEAK
        + """
class Rows(QueuePeak):
    name = "rows"

    async def start(self):
        yield Request(f"{self.base}/csv/200")

    def parse(self, response):
        for line in response.text.splitlines()[1:]:
            yield Request(self.base + line.split(",")[1], callback=self.parse_row)

    def parse_row(self, response):
        pass
"""
    )
    settings = {"BACKPRESSURE_QUEUE_HIGH": 20, "BACKPRESSURE_GATE_CALLBACKS": False}
    result = crawl(source, settings, args={"base": fast.url("")})
    assert_sound(result)
    assert result.stat("test/queue_peak") > 100


def test_endless_next_pages_do_not_outgrow_the_queue(site: Sites, crawl: Crawls) -> None:
    fast = site(latency=0.01)
    source = (
        QUEUE_PEAK
        + """
class Endless(QueuePeak):
    name = "endless"

    async def start(self):
        yield Request(f"{self.base}/page/0?next", cb_kwargs={"number": 0})

    def parse(self, response, number):
        for item in range(20):
            yield Request(f"{self.base}/page/{number * 20 + item}", callback=self.parse_item)
        yield response.follow(
            response.css("a.next")[0], cb_kwargs={"number": number + 1}, priority=1
        )

    def parse_item(self, response):
        yield {"url": response.url}
"""
    )
    result = crawl(
        source,
        {"BACKPRESSURE_QUEUE_HIGH": 40, "CLOSESPIDER_ITEMCOUNT": 150},
        args={"base": fast.url("")},
    )
    assert_sound(result)
    assert result.reason == "closespider_itemcount"
    # The callback that is held when the crawl closes adds its rest.
    assert result.stat("test/queue_peak") <= 40 + 21


def test_held_callbacks_do_not_deadlock_when_the_scraper_backs_out(
    site: Sites, crawl: Crawls
) -> None:
    fast = site()
    source = """
    class Wide(Spider):
        name = "wide"
        custom_settings = {"SCRAPER_SLOT_MAX_ACTIVE_SIZE": 1}

        async def start(self):
            for branch in range(6):
                yield Request(f"{self.base}/links/{branch}", cb_kwargs={"branch": branch})

        def parse(self, response, branch):
            for leaf in range(40):
                yield Request(f"{self.base}/page/{branch * 40 + leaf}", callback=self.parse_leaf)

        def parse_leaf(self, response):
            pass
    """
    result = crawl(source, {"BACKPRESSURE_QUEUE_HIGH": 5}, args={"base": fast.url("")}, timeout=30)
    assert_sound(result)
    assert result.stat("backpressure/audit/handled") == 6 + 240


def test_start_requests_of_a_site_in_trouble_do_not_hold_back_another_site(
    site: Sites, crawl: Crawls
) -> None:
    bad, good = "127.0.0.2", "127.0.0.3"
    sites = site({"hosts": {bad: {"faults": [{"status": 503}]}, good: {}}})
    source = """
    class Two(Spider):
        name = "two"
        left = 100

        async def start(self):
            for number in range(40):
                yield Request(f"{self.bad}/page/{number}")
            for number in range(self.left):
                yield Request(f"{self.good}/page/{number}")

        def parse(self, response):
            self.left -= 1
            if not self.left:
                raise scrapy.exceptions.CloseSpider("the good site is done")
    """
    result = crawl(
        source,
        {"BACKPRESSURE_QUEUE_HIGH": 100, "RETRY_TIMES": 1000},
        args={"bad": sites.url("", host=bad), "good": sites.url("", host=good)},
        timeout=30,
    )
    assert_sound(result)
    assert result.reason == "the good site is done"
    assert len(result.dead_letters) == 40


def test_the_extension_alone_holds_back_start(site: Sites, crawl: Crawls) -> None:
    slow = site(latency=0.03)
    result = crawl(
        MANY_STARTS,
        {
            **BOUND,
            "ADDONS": None,
            "EXTENSIONS": {"scrapy_backpressure.BackpressureExtension": 100},
            "CLOSESPIDER_PAGECOUNT": 60,
        },
        args={"base": slow.url(""), "count": 10_000},
    )
    assert_sound(result)
    assert result.stat("test/open") <= 40


def test_gate_tells_when_it_closes_and_opens_until_everything_is_fetched(
    site: Sites, crawl: Crawls
) -> None:
    fast = site(latency=0.02)
    source = (
        MANY_STARTS
        + """
    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        from scrapy_backpressure.signals import gate_closed, gate_opened

        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.gate_closed, gate_closed)
        crawler.signals.connect(spider.gate_opened, gate_opened)
        return spider

    def gate_closed(self, reason):
        self.crawler.stats.inc_value(f"test/closed/{reason}")

    def gate_opened(self, reason, closed_for):
        self.crawler.stats.inc_value(f"test/opened/{reason}")
"""
    )
    result = crawl(source, BOUND, args={"base": fast.url(""), "count": 200})
    assert_sound(result)
    assert fast.stats()["pages"] == 200
    assert result.stat("test/closed/queue") == result.stat("backpressure/gate/closed") > 0
    assert result.stat("test/opened/queue") == result.stat("test/closed/queue")
