"""The extension: owns the state of one crawl, samples it, opens and closes the gate."""

from __future__ import annotations

import logging
import sqlite3
from collections import deque
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.exceptions import CloseSpider, DontCloseSpider, NotConfigured
from scrapy.utils.asyncio import create_looping_call
from scrapy.utils.job import job_dir

from scrapy_backpressure import _scrapy
from scrapy_backpressure.accounts import Accounts
from scrapy_backpressure.admission import Admission
from scrapy_backpressure.clock import Clock
from scrapy_backpressure.companions import warn_about_companions
from scrapy_backpressure.control.watermark import Throughput, Watermark, auto_high
from scrapy_backpressure.deadletter import DeadLetterExporter
from scrapy_backpressure.gate import Gate, StartGateMiddleware
from scrapy_backpressure.judge import Judge
from scrapy_backpressure.memory import MemoryWatch
from scrapy_backpressure.parking import RetryQueue
from scrapy_backpressure.report import Reporter
from scrapy_backpressure.settings import BackpressureSettings
from scrapy_backpressure.signals import gate_closed, gate_opened
from scrapy_backpressure.storage.codec import Coder
from scrapy_backpressure.storage.sqlite import Database

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.core.engine import ExecutionEngine
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from scrapy_backpressure.ledger import Ledger

logger = logging.getLogger(__name__)

_DATABASE = "backpressure.sqlite"
_GROWTH_SAMPLES = 30
"""Samples over which the retry queue has to have grown to close the gate."""


class BackpressureExtension:
    """Watches queue, sites and memory, and holds back ``start()`` before RAM pays for it.

    Works alone; it enables :class:`~scrapy_backpressure.StartGateMiddleware` and the dead-letter
    feeds by itself. The other components of the package find the crawl's state here.

    :raises ValueError: a ``BACKPRESSURE_`` setting is wrong; the message names it.
    :raises RuntimeError: another crawl uses the JOBDIR.
    :raises OSError: the JOBDIR cannot be written.
    """

    retry_queue: RetryQueue
    """Parked requests; there from ``spider_opened`` on."""

    exporter: DeadLetterExporter | None = None

    all_runs: Ledger | None = None
    """The books of all runs of the JOBDIR, once this one is closed."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.config = BackpressureSettings.from_settings(crawler.settings)
        if not self.config.enabled:
            raise NotConfigured  # as asked for, so there is nothing to warn of
        self.clock = Clock()
        self.judge = Judge(crawler, self.config.outcome_policy)
        self.jobdir = job_dir(crawler.settings)
        # One that cannot be used is to be known before a scheduler opens the JOBDIR.
        self.database = Database(Path(self.jobdir, _DATABASE) if self.jobdir else None)
        self.admission = Admission(crawler, self.config, self.clock)
        self.gate = Gate(self._gate_changed)
        self.accounts = Accounts(self)
        self.throughput = Throughput()
        high = self.config.queue_high or auto_high(0.0, self.config.queue_seconds)
        self.queue_mark = Watermark(high, self.config.queue_low or high // 2)
        self.depth_max = 0
        """Most open requests so far."""
        self._memory = MemoryWatch(crawler.settings)
        self._held_back_by_retries = False
        self._growth: deque[int] = deque(maxlen=_GROWTH_SAMPLES)
        self._closed_at = 0.0
        self._loop: Any = None
        self._reporter = Reporter(self)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        extension = cls(crawler)
        accounts = extension.accounts
        crawler.settings.setdefault_in_component_priority_dict(
            "SPIDER_MIDDLEWARES", StartGateMiddleware, 60
        )
        if extension.config.dead_letter_feeds:
            # Signals hold their handlers weakly, so somebody has to hold the exporter.
            extension.exporter = DeadLetterExporter.from_crawler(
                crawler, feeds=extension.config.dead_letter_feeds, before_close=accounts.flush
            )
        for handler, signal in (
            (extension.spider_opened, signals.spider_opened),
            (extension.spider_idle, signals.spider_idle),
            (extension.spider_closed, signals.spider_closed),
            (accounts.request_scheduled, signals.request_scheduled),
            (accounts.request_dropped, signals.request_dropped),
            (accounts.spider_error, signals.spider_error),
            (accounts.item_error, signals.item_error),
        ):
            crawler.signals.connect(handler, signal=signal)
        return extension

    @cached_property
    def engine(self) -> ExecutionEngine:
        """The crawl's engine; RuntimeError before there is one."""
        return self.crawler.engine

    @cached_property
    def coder(self) -> Coder:
        """What makes bytes of requests; there once the crawl has a spider."""
        assert self.crawler.spider is not None
        return Coder(self.crawler.spider, self.database.persistent)

    def spider_opened(self, spider: Spider) -> None:
        # At run time, since it needs the middlewares, which need this.
        from scrapy_backpressure.chain import Chain

        accounts = self.accounts
        self.retry_queue = RetryQueue(self.coder, self.database, self.clock, accounts)
        _scrapy.watch_fetches(self.engine.downloader, accounts.fetch_started, accounts.fetch_ended)
        _scrapy.watch_scheduler(
            self.engine,
            accounts.enqueued,
            accounts.unqueued,
            # Queues of ours tell it, with the place that they take.
            None if self.admission.queues else accounts.handed_out.add,
        )
        Chain(self)
        if not self.admission.queues:  # else they tell it, at less cost
            self.crawler.signals.connect(self.progressed, signal=signals.scheduler_empty)
        accounts.opened(_scrapy.scheduler_length(self.engine), len(self.retry_queue))
        warn_about_companions(self)
        self._reporter.opened()
        self._loop = create_looping_call(self._sample)
        self._loop.start(self.config.interval, now=False)

    def spider_idle(self) -> None:
        """Keep the spider open for what is parked, unless that is meant for the next run."""
        due = self.retry_queue.next_due()
        if due is not None and due - self.clock.epoch() <= self.config.longest_wait:
            raise DontCloseSpider
        if self.gate.start_failed:
            raise CloseSpider("start_error")  # Scrapy's own reason, since 2.18

    def spider_closed(self) -> None:
        if self._loop is None:  # it never opened
            self.database.close()
            return
        if self._loop.running:
            self._loop.stop()
        self.admission.close()
        self.accounts.flush()
        self.accounts.close()
        if self.database.persistent and self.accounts.ends is not None:
            self.all_runs = self._books_of_all_runs()
        self.gate.set(frozenset())
        self.retry_queue.close()
        try:
            self.database.close()
        finally:  # a full disk is no reason to keep quiet about the rest
            self._reporter.closed()

    def _books_of_all_runs(self) -> Ledger | None:
        try:
            return self.database.totals.ledger()
        except sqlite3.Error:
            logger.exception("Cannot audit the runs so far", extra={"spider": self.crawler.spider})
            return None

    # -- sampling ----------------------------------------------------------

    def _sample(self) -> None:
        try:
            self._tick()
        except Exception:  # the loop would end, and with it what reopens the gate in time
            logger.exception("A sample failed", extra={"spider": self.crawler.spider})

    def _tick(self) -> None:
        now = self.clock.now()
        self.admission.tick()
        if self.admission.closing:
            self.accounts.flush()  # early, should there be no time for an end in good order
        self.accounts.settle()
        # Ours is asked as well: of requests that a damaged file has lost, nobody is told.
        if not self.admission.queues or self.accounts.ends is not None:
            queued = _scrapy.scheduler_length(self.engine, -1)
            if queued >= 0:
                self.accounts.pending = queued + len(self.accounts.unqueued)
        rate = self.throughput.update(now, self.accounts.answers)
        if self.config.queue_high is None:
            high = auto_high(rate, self.config.queue_seconds)
            self.queue_mark.set(high, high // 2)
        self._memory.update()
        self.gate.passing.clear()  # what is still there has been dropped, and is kept by somebody
        self._watch_retry_queue()
        self.database.write_in_time()
        self.poke()
        self.gate.stir()
        self._reporter.sample(now)

    def _watch_retry_queue(self) -> None:
        """Hold start() back while more requests are parked than come back, for long."""
        parked = len(self.retry_queue)
        self._growth.append(parked)
        growing = parked > self._growth[0]
        limit = self.queue_mark.low
        self._held_back_by_retries = parked >= limit and (growing or self._held_back_by_retries)

    # -- the gate ----------------------------------------------------------

    def depth(self) -> int:
        """Open requests: queued, being fetched, or in a callback that is not held back."""
        in_progress = _scrapy.in_progress(self.engine)
        queued = self.accounts.pending + len(self.gate.passing)
        return queued + in_progress - self.gate.held

    def progressed(self) -> None:
        """Something has ended or was sent: a closed gate may have to open."""
        if self.gate.closed:
            self.poke()

    def poke(self) -> None:
        """Look whether the gate has to be open or closed."""
        reasons = set()
        depth = self.depth()
        self.depth_max = max(self.depth_max, depth)
        if self.queue_mark.update(depth + len(self.gate.aside)):
            reasons.add("queue")
        if self._held_back_by_retries:
            reasons.add("retries")
        if self._memory.high:
            reasons.add("memory")
        if self.database.stuck:  # what cannot be written has to stay in memory
            reasons.add("disk")
        if reasons and (self.nothing_to_do() or _scrapy.is_closing(self.engine)):
            reasons.clear()  # nothing is left that could ever open it
        self.gate.set(frozenset(reasons))

    def nothing_to_do(self) -> bool:
        """Whether nothing is queued, or about to be, and nothing in flight."""
        queued = self.accounts.pending or self.gate.passing
        return not queued and not self.engine.downloader.active

    def _gate_changed(self, before: frozenset[str], reasons: frozenset[str]) -> None:
        stats, now, spider = self.crawler.stats, self.clock.now(), self.crawler.spider
        for reason in reasons - before:
            stats.inc_value(f"backpressure/gate/closed/{reason}")
        if not before:
            self._closed_at = now
            stats.inc_value("backpressure/gate/closed")
            self.crawler.signals.send_catch_log(
                gate_closed, reason=",".join(sorted(reasons)), spider=spider
            )
        elif not reasons:
            closed_for = now - self._closed_at
            total = stats.get_value("backpressure/gate/closed_seconds", 0.0) + closed_for
            stats.set_value("backpressure/gate/closed_seconds", round(total, 3))
            self.crawler.signals.send_catch_log(
                gate_opened,
                reason=",".join(sorted(before)),
                closed_for=closed_for,
                spider=spider,
            )


def extension_of(crawler: Crawler, component: type) -> BackpressureExtension:
    """The crawl's extension, for a *component* that needs it.

    :raises NotConfigured: it is not enabled; the message says what to add.
    """
    extension = crawler.get_extension(BackpressureExtension)
    if extension is not None:
        return extension
    if not BackpressureSettings.from_settings(crawler.settings).enabled:
        raise NotConfigured  # as asked for, so there is nothing to warn of
    raise NotConfigured(
        f"{component.__name__} needs BackpressureExtension; add to your settings: "
        'EXTENSIONS = {"scrapy_backpressure.BackpressureExtension": 100}'
    )
