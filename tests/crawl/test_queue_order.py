"""SlotAwarePriorityQueue: which request goes next, over slots and within one."""

from __future__ import annotations

from tests.crawl.audit import assert_sound
from tests.crawl.conftest import Crawls, Sites

STOCK = {"ADDONS": None}
FIRST, SECOND = "127.0.0.2", "127.0.0.3"


def test_slots_take_turns_however_long_their_queues_are(site: Sites, crawl: Crawls) -> None:
    where = site({"hosts": {FIRST: {}, SECOND: {}}})
    source = """
    class Broad(Spider):
        name = "broad"
        left = 10

        async def start(self):
            for number in range(100):
                yield Request(f"{self.first}/page/{number}", cb_kwargs={"second": False})
            for number in range(10):
                yield Request(f"{self.second}/page/{number}", cb_kwargs={"second": True})

        def parse(self, response, second):
            self.left -= second
            if not self.left:
                raise scrapy.exceptions.CloseSpider("the second site is done")
    """
    result = crawl(
        source,
        {"CONCURRENT_REQUESTS": 8, "DOWNLOAD_DELAY": 0.1},
        args={"first": where.url("", host=FIRST), "second": where.url("", host=SECOND)},
    )
    assert_sound(result)
    assert result.reason == "the second site is done"
    assert where.host(FIRST)["hits"] < 30


def test_slot_that_pauses_holds_no_place_of_concurrent_requests(
    site: Sites, crawl: Crawls
) -> None:
    where = site(
        {
            "hosts": {
                FIRST: {"faults": [{"until": 1, "status": 429, "headers": {"Retry-After": 2}}]},
                SECOND: {"latency": 0.05},
            }
        }
    )
    source = """
    class Paused(Spider):
        name = "paused"

        async def start(self):
            for number in range(20):
                yield Request(f"{self.first}/page/{number}")
            for number in range(40):
                yield Request(f"{self.second}/page/{number}")

        def parse(self, response):
            pass
    """
    result = crawl(
        source,
        {"CONCURRENT_REQUESTS": 4},
        args={"first": where.url("", host=FIRST), "second": where.url("", host=SECOND)},
    )
    assert_sound(result)
    assert where.stats()["pages"] == 60
    assert max(second for second, _, _ in where.host(SECOND)["requests"]) < 1.9


def test_order_within_a_slot_is_that_of_scrapy(site: Sites, crawl: Crawls) -> None:
    # While a slow page is fetched, all that is to be put in order gets into the queue.
    source = """
    class Order(Spider):
        name = "order"

        async def start(self):
            yield Request(f"{self.base}/page/100", priority=9)
            for number in range(6):
                yield Request(f"{self.base}/page/{number}", priority=number % 3)
            yield Request(f"{self.base}/page/99", priority=-9)

        def parse(self, response):
            path = response.url.partition(self.base)[2]
            yield {"path": path}
            if path == "/page/99":
                yield Request(f"{self.base}/page/101", priority=9)
                for child in range(10, 22):
                    yield Request(f"{self.base}/page/{child}", priority=-(child % 3))
    """
    orders = []
    for own in ({}, STOCK):
        where = site(faults=[{"match": "/page/10[01]", "latency": 0.5}])
        settings = {"CONCURRENT_REQUESTS": 1, "BACKPRESSURE_GATE_CALLBACKS": False, **own}
        result = crawl(source, settings, args={"base": where.url("")})
        orders.append([item["path"] for item in result.items])
    assert orders[0] == orders[1]
    assert len(orders[0]) == 21


def test_crawl_that_was_stopped_without_the_add_on_goes_on_with_it(
    site: Sites, crawl: Crawls
) -> None:
    where = site(latency=0.05)
    source = """
    class Pages(Spider):
        name = "pages"

        async def start(self):
            if not self.state.get("read"):
                self.state["read"] = True
                for number in range(20):
                    yield Request(f"{self.base}/page/{number}")

        def parse(self, response):
            yield {"url": response.url}
    """
    args = {"base": where.url("")}
    first = crawl(
        source,
        {**STOCK, "JOBDIR": "job", "CONCURRENT_REQUESTS": 4, "DOWNLOAD_DELAY": 0.1},
        args=args,
        sigint_after=lambda: where.stats()["served"] >= 5,
    )
    second = crawl(source, {"JOBDIR": "job"}, args=args)
    assert_sound(second)
    assert second.stat("backpressure/audit/resumed") == len(second.items) > 0
    assert len(first.items) + len(second.items) == 20


SLOW_AND_FAST = """
from scrapy_backpressure.control import places

class Unequal(Spider):
    name = "unequal"

    async def start(self):
        places.SLOW = self.slow_from
        for number in range(80):
            yield Request(f"{self.fast}/page/{number}")
            if number < 12:
                yield Request(f"{self.slow}/page/{number}")

    def parse(self, response):
        pass
"""


def test_slot_that_answers_late_gets_no_more_places_than_another(
    site: Sites, crawl: Crawls
) -> None:
    where = site({"hosts": {FIRST: {"latency": 0.8}, SECOND: {"latency": 0.1}}})
    args = {"slow": where.url("", host=FIRST), "fast": where.url("", host=SECOND)}
    result = crawl(
        SLOW_AND_FAST,
        {"CONCURRENT_REQUESTS": 6, "BACKPRESSURE_START_CONCURRENCY": 6},
        args={**args, "slow_from": 60.0},
    )
    assert_sound(result)
    fast_done = max(second for second, _, _ in where.host(SECOND)["requests"])
    under_way = [
        second
        for second, _, _ in where.host(FIRST)["requests"]
        if second <= fast_done <= second + 0.8
    ]
    assert 1 <= len(under_way) <= 4


def test_slot_that_answers_far_later_gives_way_while_others_have_requests(
    site: Sites, crawl: Crawls
) -> None:
    where = site({"hosts": {FIRST: {"latency": 1.2}, SECOND: {"latency": 0.05}}})
    args = {"slow": where.url("", host=FIRST), "fast": where.url("", host=SECOND)}
    result = crawl(
        SLOW_AND_FAST.replace("range(80)", "range(300)"),
        {"CONCURRENT_REQUESTS": 4, "BACKPRESSURE_START_CONCURRENCY": 4},
        args={**args, "slow_from": 0.5},
    )
    assert_sound(result)
    fast_done = max(second for second, _, _ in where.host(SECOND)["requests"])
    while_fast = [s for s, _, _ in where.host(FIRST)["requests"] if s < fast_done - 0.5]
    assert fast_done > 2.5  # so that it could have sent several
    assert len(while_fast) == 1
    assert where.host(FIRST)["pages"] == 12


def test_one_request_object_yielded_twice_is_two_requests(site: Sites, crawl: Crawls) -> None:
    where = site(latency=0.2)
    source = """
    class Twice(Spider):
        name = "twice"

        async def start(self):
            for number in range(5):
                request = Request(f"{self.base}/page/{number}", dont_filter=True)
                yield request
                yield request

        def parse(self, response):
            yield {"url": response.url}
    """
    result = crawl(source, {"CONCURRENT_REQUESTS": 4}, args={"base": where.url("")})
    assert_sound(result)
    assert len(result.items) == 10
    assert where.host()["served"] == 10
