"""What becomes of each request: follows it from the scheduler to its one end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from scrapy.spidermiddlewares.httperror import HttpErrorMiddleware

from scrapy_backpressure import _scrapy, history
from scrapy_backpressure.deadletter import DeadLetter
from scrapy_backpressure.ledger import Ledger
from scrapy_backpressure.signals import request_dead_lettered, request_parked
from scrapy_backpressure.slots import Flight
from scrapy_backpressure.storage.totals import MOVED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy import Spider
    from twisted.python.failure import Failure

    from scrapy_backpressure.control.outcome import Outcome, Verdict
    from scrapy_backpressure.extension import BackpressureExtension

logger = logging.getLogger(__name__)


class Unqueued:
    """Requests that no queue can take, because of what the user has put into them.

    Each is handed out at once, and its fetch ends with the error, so that its errback is called.
    """

    def __init__(self) -> None:
        self._waiting: dict[Request, Exception] = {}
        self._under_way: dict[Request, Exception] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request: Request) -> bool:
        return request in self._waiting

    def keep(self, request: Request, error: Exception) -> None:
        """Remember *request*, and the *error* at which it was not taken."""
        self._waiting[request] = error

    def pop(self) -> Request | None:
        """Hand out the first one."""
        for request, error in self._waiting.items():
            del self._waiting[request]
            self._under_way[request] = error
            return request
        return None

    def error_of(self, request: Request) -> Exception | None:
        """Why *request*, which was handed out, cannot be sent; None if it can."""
        return self._under_way.pop(request, None) if self._under_way else None


_CATEGORY = {"throttled": "retries", "stalled": "retries", "max_pause": "retries"}
"""Reasons that DEAD_LETTER_ON names by another word. ``shutdown`` is always on."""


class Accounts:
    """Books of one crawl: the ledger, what is pending, what is parked, what is given up."""

    def __init__(self, extension: BackpressureExtension) -> None:
        self._extension = extension
        self._crawler = extension.crawler
        self._config = extension.config
        self._clock = extension.clock
        self._admission = extension.admission
        self.ledger = Ledger()
        self.histories = history.Histories()
        self.unqueued = Unqueued()
        self.handed_out: set[Request] = set()
        """Requests that a scheduler which is not ours has just handed out."""
        self.pending = 0
        """Requests in the scheduler."""
        self.answers = 0
        """Fetches of scheduled requests that have ended."""
        self.parked = 0
        """Requests that went into the retry queue in this run."""
        self._totals = extension.database.totals
        self.ends: dict[Request, str] | None = None
        """How requests have ended that the engine is not done with; kept if somebody asks."""
        self._offered: dict[Request, Request | None] = {}
        """On their way into the scheduler; with the request that one is the continuation of."""
        self._continuing: Request | None = None
        self._continued: Request | None = None
        self._releasing: Request | None = None
        self._ended: WeakSet[Request] = WeakSet()

    def opened(self, queued: int, parked: int) -> None:
        """The spider is open, and this many requests are in the scheduler and the retry queue.

        Those that other handlers of ``spider_opened`` have given to the engine before are not
        left from an earlier run.
        """
        ledger = self.ledger
        early = min(queued, ledger.accepted - ledger.dropped.total())
        lost = ledger.accepted - ledger.dropped.total() - early
        if lost:
            ledger.dropped["request_scheduled"] += lost
        self._offered.clear()
        self.pending = queued
        ledger.resumed = queued - early + parked

    @property
    def closing(self) -> bool:
        """Whether the spider is being closed."""
        return _scrapy.is_closing(self._crawler.engine)

    # -- into the scheduler, or the retry queue ----------------------------

    def request_scheduled(self, request: Request, spider: Spider) -> None:
        """A request is about to enter the scheduler; park it instead if it is due later.

        :raises IgnoreRequest: it is parked; Scrapy drops it without telling anybody.
        """
        self._extension.gate.passing.discard(request)
        before = None
        if request is not self._releasing:
            if request is self._continuing:
                before = self._continued
            else:
                self.ledger.accepted += 1
            self._continuing = self._continued = None
            _scrapy.forget_assigned_slot(request)
            due = self._take_due(request)
            if due is not None and due > self._clock.epoch():
                self._park(request, due, spider)
                if before is not None:
                    self._note_end(before, MOVED)
                raise IgnoreRequest("parked until it is due")
        self._offered[request] = before

    def _take_due(self, request: Request) -> float | None:
        try:
            return history.take_due(request)
        except ValueError as error:
            logger.warning(
                "%(request)s is sent at once: %(error)s",
                {"request": request, "error": error},
                extra={"spider": self._crawler.spider},
            )
            return None

    def enqueued(self, request: Request, accepted: bool) -> None:
        """A request reached the scheduler, which took it or refused it."""
        if self.unqueued and self.ends is not None and request in self.unqueued:
            self._totals.unsaved += 1
        before = self._offered.pop(request, None)
        if before is not None:
            self._note_end(before, MOVED if accepted else "dropped/dupefilter")
        elif not accepted:
            self._totals.ended_outside("dropped/dupefilter")
        self.pending += accepted

    def settle(self) -> None:
        """Count what never reached the scheduler.

        OffsiteMiddleware, and whoever else wants to, drops a request at this signal too, and then
        nobody is told. To be called when no request is on its way.
        """
        if self._offered:
            self.ledger.dropped["request_scheduled"] += len(self._offered)
            for before in self._offered.values():
                if before is None:
                    self._totals.ended_outside("dropped/request_scheduled")
            self._offered.clear()

    def _park(self, request: Request, due: float, spider: Spider) -> None:
        self._extension.retry_queue.park(request, due, self._admission.slot_key(request))
        self.parked += 1
        self._crawler.stats.inc_value("backpressure/retry_queue/parked")
        self._crawler.signals.send_catch_log(
            request_parked, request=request, due=due, spider=spider
        )

    def release(self, request: Request) -> None:
        """Give a parked request back to the scheduler."""
        self._releasing = request
        try:
            self._crawler.engine.crawl(request)
        finally:
            self._releasing = None
        self._crawler.stats.inc_value("backpressure/retry_queue/released")

    def unreadable(self, error: Exception, *, queued: bool = False, stays: bool = False) -> None:
        """A stored request could not be read back.

        *queued*: it was in the scheduler, not in the retry queue; *stays*: the next run finds it.
        """
        self.pending -= queued
        if stays:
            self.ledger.persisted += 1
        else:
            self.ledger.dropped["unreadable"] += 1
            self._totals.ended_outside("dropped/unreadable")
        if queued:
            stat = "backpressure/scheduler/unreadable"
        else:
            stat = "backpressure/retry_queue/unreadable"
        self._crawler.stats.inc_value(stat)
        logger.error(
            "A request that was stored cannot be read and %(fate)s: %(error)s",
            {"fate": "is left for the next run" if stays else "is lost", "error": error},
            extra={"spider": self._crawler.spider},
        )

    def request_dropped(self) -> None:
        """The scheduler refused a request."""
        self.ledger.dropped["dupefilter"] += 1

    # -- through the downloader --------------------------------------------

    def fetch_started(self, request: Request) -> None:
        """The downloader got a request.

        :raises Exception: it cannot be sent, because of what the user has put into it.
        """
        flight = self._admission.flights.get(request)
        error = self.unqueued.error_of(request)
        if flight is None:
            if error is None:
                _scrapy.forget_assigned_slot(request)
            # Not from a queue of ours: from another, or awaited by a component.
            scheduled = error is not None or request in self.handed_out
            self.handed_out.discard(request)
            try:
                slot = self._admission.slot_of(request, now=self._clock.now())
            except Exception as problem:
                error = error or problem
                slot = self._admission.nowhere
            flight = self._admission.flights[request] = Flight(request, slot, scheduled)
        if flight.scheduled:
            self.pending -= 1
        else:
            flight.due = self._take_due(request)
        self.histories.take(request)
        if error is not None:
            raise error

    def fetch_ended(self, request: Request, result: Response | Request | Failure) -> None:
        """The downloader is done with a request."""
        flight = self._admission.flights.pop(request, None)
        if flight is None:
            return
        self._admission.release(flight)
        if isinstance(result, Request):
            self.histories.hand_on(request, result)
        if not flight.scheduled:
            return
        self.answers += 1
        self._extension.progressed()
        if isinstance(result, Request):
            self._continuing, self._continued = result, request
            self._note_end(request, "dropped/request_scheduled")  # unless it arrives somewhere
        elif isinstance(result, Response):
            self._answered(flight, result)
        elif isinstance(result.value, Exception):  # else the process is told to end at once
            self._failed(flight, result.value)

    def _answered(self, flight: Flight, response: Response) -> None:
        request = flight.request
        if not self._admission.learning:
            self._learn(flight, self._extension.judge.verdict(flight, response).outcome)
        if flight.given_up and not self._spider_takes(request, response):
            self.dead_letter(request, flight.given_up, flight.verdict, flight.response)
        else:
            self.ledger.handled += 1
            self._note_end(request, "handled")

    def _failed(self, flight: Flight, error: Exception) -> None:
        request = flight.request
        if not self._admission.learning:
            self._learn(flight, self._extension.judge.verdict(flight, error).outcome)
        if flight.given_up is None and isinstance(error, IgnoreRequest):
            self.ledger.dropped[type(error).__name__] += 1
            self._note_end(request, f"dropped/{type(error).__name__}")
            self._ended.add(request)
        else:
            reason = flight.given_up or "download_error"
            # A verdict on what the site said tells nothing of what a middleware raised then.
            known = flight.given_up or flight.judged is error
            verdict = flight.verdict if known else None
            self.dead_letter(request, reason, verdict, flight.response, error)

    def _learn(self, flight: Flight, outcome: Outcome) -> None:
        flight.slot.answered(self._clock.now(), bad=outcome.is_bad)

    def _spider_takes(self, request: Request, response: Response) -> bool:
        """Whether HttpErrorMiddleware lets the spider have an answer that is no success."""
        settings, status = self._crawler.settings, response.status
        if 200 <= status < 300:  # put by a middleware in the place of what was given up
            return True
        if self._crawler.get_spider_middleware(HttpErrorMiddleware) is None:
            return True
        if request.meta.get("handle_httpstatus_all") or settings.getbool("HTTPERROR_ALLOW_ALL"):
            return True
        allowed = request.meta.get("handle_httpstatus_list")
        if allowed is None:
            allowed = getattr(self._crawler.spider, "handle_httpstatus_list", None)
        if allowed is None:
            allowed = [int(code) for code in settings.getlist("HTTPERROR_ALLOWED_CODES")]
        return status in allowed

    # -- after the downloader ----------------------------------------------

    def http_error(self, response: Response) -> None:
        """HttpErrorMiddleware dropped an answer that counted as handled."""
        if "http_error" in self._config.dead_letter_on:
            self._letter_of_handled(response, "http_error")
        elif response.request is not None and response.request not in self._ended:
            self._ended.add(response.request)
            self.ledger.handled -= 1
            self.ledger.dropped["HttpError"] += 1
            self._note_end(response.request, "dropped/HttpError")

    def spider_error(self, failure: Failure, response: Any) -> None:
        """A callback, an errback or ``start()`` raised."""
        if "spider_error" in self._config.dead_letter_on:
            self._letter_of_handled(response, "spider_error", failure.value)

    def item_error(self, response: Response | None, failure: Failure) -> None:
        """An item pipeline raised."""
        if "item_error" in self._config.dead_letter_on:
            self._letter_of_handled(response, "item_error", failure.value)

    def _letter_of_handled(
        self, response: Any, reason: str, error: BaseException | None = None
    ) -> None:
        request = getattr(response, "request", None)
        if request is None or request in self._ended:
            return  # a start() that raised, or a request that has ended in another way
        self.ledger.handled -= 1
        answer = response if isinstance(response, Response) else None
        self.dead_letter(request, reason, None, answer, error)

    # -- dead letters ------------------------------------------------------

    def dead_letter(
        self,
        request: Request,
        reason: str,
        verdict: Verdict | None,
        response: Response | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Give *request* up: count it and, unless DEAD_LETTER_ON leaves it out, send a record."""
        self._ended.add(request)
        category = _CATEGORY.get(reason, reason)
        stats = self._crawler.stats
        if category != "shutdown" and category not in self._config.dead_letter_on:
            self.ledger.given_up[reason] += 1
            self._note_end(request, f"given_up/{reason}")
            stats.inc_value(f"backpressure/given_up/{reason}")
            return
        try:
            first = self.histories.as_first_sent(request)
            past = self.histories.of(request)
            if error is not None and verdict is None:
                attempt = history.attempt(first, self._clock, error=error)
                past = self.histories.with_attempt(request, attempt)
            letter = DeadLetter.build(
                first,
                history=past,
                crawler=self._crawler,
                outcome=None if verdict is None else verdict.outcome,
                reason=reason,
                response=response,
                now=self._clock.epoch(),
                secrets=self._config.dead_letter_secrets,
            )
        except Exception:  # from what is the user's: a fingerprinter, a class of requests
            self.ledger.given_up[reason] += 1
            self._note_end(request, f"given_up/{reason}")
            stats.inc_value(f"backpressure/given_up/{reason}")
            logger.exception(
                "No dead letter can be made of %(request)s, which is given up (%(reason)s)",
                {"request": request, "reason": reason},
                extra={"spider": self._crawler.spider},
            )
            return
        self.ledger.dead[reason] += 1
        self._note_end(request, f"dead/{reason}")
        stats.inc_value("backpressure/dead_letters")
        stats.inc_value(f"backpressure/dead_letters/{reason}")
        self._crawler.signals.send_catch_log(
            request_dead_lettered,
            letter=letter,
            request=first,
            reason=reason,
            spider=self._crawler.spider,
        )

    # -- for the books of all runs -----------------------------------------

    def _note_end(self, request: Request, end: str) -> None:
        if self.ends is not None:
            self.ends[request] = end

    def end_of(self, request: Request) -> str | None:
        """How *request*, with which the engine is done, has ended; None if nobody knows."""
        return None if self.ends is None else self.ends.pop(request, None)

    # -- the end -----------------------------------------------------------

    def flush(self) -> None:
        """Dead-letter what would be lost with this crawl. To be called while feeds are open.

        The crawl has to be closing: what is in the scheduler is taken out.
        """
        letters = 0
        for request in self._leftovers():
            self.dead_letter(request, "shutdown", None)
            self._totals.ended_outside(self.end_of(request))
            letters += 1
        if letters:
            logger.warning(
                "%(letters)d requests were still waiting when the crawl was closed; they went to "
                "the dead letters with reason shutdown",
                {"letters": letters},
                extra={"spider": self._crawler.spider},
            )

    def _leftovers(self) -> Iterator[Request]:
        aside = self._extension.gate.aside
        while aside:
            self.ledger.accepted += 1
            key, request = aside.popleft()
            if self._extension.jobdir:
                # Should start() yield it in the next run too, the second one is a duplicate.
                self._extension.retry_queue.park(request, self._clock.epoch(), key)
            else:
                yield request
        while (unsent := self.unqueued.pop()) is not None:
            self.pending -= 1
            self._totals.unsaved -= self.ends is not None
            self.unqueued.error_of(unsent)
            yield unsent
        yield from self._extension.retry_queue.drain()
        for request in _scrapy.drain_memory(self._crawler.engine):
            self.pending -= 1
            yield request

    def close(self) -> None:
        """Count what is left for the next run."""
        self.settle()
        persisted = self._extension.retry_queue.persisted
        own = _scrapy.keeps_its_own(self._crawler.engine)
        if own and self.pending > 0:
            logger.warning(
                "%(pending)d requests are left in %(scheduler)s, which may or may not keep them; "
                "the audit takes them for persisted",
                {"pending": self.pending, "scheduler": own},
                extra={"spider": self._crawler.spider},
            )
        if self.ends is not None:  # a scheduler that can be asked what it has, not what it got
            persisted += _scrapy.scheduler_length(self._crawler.engine)
        elif own or self._extension.jobdir:
            persisted += max(0, self.pending)
        self.ledger.persisted += persisted
