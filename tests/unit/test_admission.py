"""Places and lanes of one slot, with all but the engine real."""

from __future__ import annotations

from types import SimpleNamespace

from scrapy import Request
from scrapy.utils.test import get_crawler
from twisted.internet.defer import Deferred

from scrapy_backpressure.admission import Admission
from scrapy_backpressure.clock import Clock
from scrapy_backpressure.extension import BackpressureExtension, extension_of
from scrapy_backpressure.slots import Flight, Slot, Waiter

URL = "http://site.example/"
HOST = "site.example"
ONE, OTHER = "http://proxy.example:1", "http://proxy.example:2"


class HandClock(Clock):
    """A clock that is set by hand."""

    time = 0.0

    def now(self) -> float:
        return self.time


class Site:
    """One slot of a crawl whose lanes send one request at a time to begin with."""

    def __init__(self) -> None:
        settings = {
            "EXTENSIONS": {"scrapy_backpressure.BackpressureExtension": 1},
            "BACKPRESSURE_DEAD_LETTER_FEEDS": {},
            "BACKPRESSURE_START_CONCURRENCY": 1,
        }
        crawler = get_crawler(None, settings)
        limits = SimpleNamespace(concurrency=8, delay=0.0, jitter=0.0)
        downloader = SimpleNamespace(
            get_slot_key=lambda request: HOST,
            _get_slot=lambda request: (HOST, limits),
            slots={},
            active=set(),
        )
        engine = SimpleNamespace(downloader=downloader, _slot=SimpleNamespace(closing=None))
        crawler.engine = engine  # type: ignore[assignment]
        config = extension_of(crawler, BackpressureExtension).config
        self.clock = HandClock()
        self.admission = Admission(crawler, config, self.clock)
        self.admission.learning = True
        self.admission.queues.append(self)
        self.slot: Slot = self.admission.slot_of(Request(URL), now=0.0)
        self.woken = 0
        self.active: set[Request] = downloader.active

    def send(self, proxy: str | None = None) -> Flight:
        """A request that the scheduler hands out, with this proxy in its meta."""
        request = Request(URL, meta={"proxy": proxy} if proxy else {})
        self.active.add(request)
        self.admission.hand_out(request, HOST, self.clock.now())
        return self.admission.flights[request]

    def set_load(self, key: str, load: int) -> None: ...

    def wake_slot(self, key: str) -> None:
        self.woken += 1

    def slot_length(self, key: str) -> int:
        return 0


def test_a_free_lane_is_announced_while_another_is_waited_for() -> None:
    site = Site()
    one, _ = (site.admission.lane_of(site.slot, proxy) for proxy in (ONE, OTHER))
    site.send(ONE)
    other = site.send(OTHER)
    site.slot.waiters.append(Waiter(site.send(ONE), one, Deferred()))
    before = site.woken
    site.admission.release(other)
    assert site.woken > before
