"""Downloader middleware: each slot's concurrency and pace follow what its answers say."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response

from scrapy_backpressure import history
from scrapy_backpressure._scrapy import is_robotstxt
from scrapy_backpressure.admission import proxy_of
from scrapy_backpressure.control.outcome import Outcome, Verdict
from scrapy_backpressure.exceptions import GivenUp
from scrapy_backpressure.extension import BackpressureExtension, extension_of

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from scrapy import Request
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from scrapy_backpressure.control.lane import Lane
    from scrapy_backpressure.slots import Flight, Slot

_PATIENCE = 5.0
"""Seconds for which a request may wait here and hold a place of CONCURRENT_REQUESTS."""
_PATIENCE_OF_SEVERAL = 0.5
"""The same, where other lanes of the slot may go on and bring ever more of those that wait."""


class ConcurrencyMiddleware:
    """Keeps each request to its turn, and lets the limiter of its lane learn from the answer.

    Next to the downloader (950), so that it sees every answer as the site gave it, and the proxy
    that was chosen.
    """

    def __init__(self, extension: BackpressureExtension) -> None:
        self._extension = extension
        assert extension.crawler.stats is not None
        self._stats = extension.crawler.stats
        self._admission = extension.admission
        self._admission.learning = True
        self._clock = extension.clock
        self._judge = extension.judge
        self._histories = extension.accounts.histories
        self._robotstxt_timeout = extension.config.robotstxt_timeout

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(extension_of(crawler, cls))

    def process_request(self, request: Request) -> Awaitable[Request | None] | Request | None:
        """Let pass what was admitted when it was popped; make everything else wait its turn."""
        flight = self._admission.flights.get(request)
        if flight is None:
            return None
        if flight.hopeless is not None:
            return self._give_back(flight, flight.hopeless)
        self._shorten_robotstxt(request)
        if flight.ticket is None or flight.due is not None:
            return self._wait(flight)
        now = self._clock.now()
        if self._admission.lost_its_turn(flight, now):
            return self._wait(flight)
        self._admission.departed(flight, now)
        return None

    def _way(self, request: Request) -> tuple[Slot, Lane, float]:
        """The slot and lane of *request*, and the time."""
        now = self._clock.now()
        slot = self._admission.slot_of(request, now=now)
        return slot, self._admission.lane_of(slot, proxy_of(request)), now

    async def _wait(self, flight: Flight) -> Request | None:
        request, admission = flight.request, self._admission
        if flight.due is not None:  # a retry that a component awaits, so that it cannot be parked
            await admission.sleep_until(self._clock.now() + flight.due - self._clock.epoch())
            flight.due = None
        slot, lane, now = self._way(request)
        admission.release(flight)
        flight.slot = slot
        wait = admission.turn_at(slot, lane, now) - now
        patience = _PATIENCE if len(slot.lanes) == 1 else _PATIENCE_OF_SEVERAL
        if flight.scheduled and patience < wait < math.inf:
            return self._later(request, wait)
        await admission.turn(flight, lane)
        now = self._clock.now()
        if flight.ticket is None:
            return self._give_back(flight, admission.hopeless(slot, now))
        admission.departed(flight, now)
        return None

    def _shorten_robotstxt(self, request: Request) -> None:
        # All requests of the host wait for its robots.txt, in places of CONCURRENT_REQUESTS.
        if is_robotstxt(request):
            timeout = float(request.meta.get("download_timeout") or self._robotstxt_timeout)
            request.meta["download_timeout"] = min(timeout, self._robotstxt_timeout)

    def _later(self, request: Request, seconds: float) -> Request:
        """The request, to be parked for some seconds, or to be queued again at once for 0."""
        try:
            later = request.copy()
        except Exception:  # at what the user has put into it; to be sent, it need not be copied
            later = request
        epoch = self._clock.epoch()
        history.carry(later, self._histories.of(request) or history.begin(request, epoch))
        if seconds > 0:
            later.meta[history.DUE] = epoch + seconds
        return later

    def _give_back(self, flight: Flight, hopeless: str | None) -> Request:
        """Do not send a request.

        :raises GivenUp: nobody can expect an answer in time.
        """
        if flight.scheduled and hopeless is None:  # the crawl is being closed
            return self._later(flight.request, 0)
        if flight.scheduled and hopeless == "max_pause" and self._extension.jobdir:
            return self._later(flight.request, flight.slot.paused_until - self._clock.now())
        flight.given_up = hopeless
        flight.verdict = Verdict(Outcome.THROTTLED, hopeless or "")
        raise GivenUp(hopeless or "the crawl is being closed")

    def process_response(self, request: Request, response: Response) -> Response:
        """Have the lane learn from the site's answer.

        What another middleware answers in the site's place, instead of sending the request or
        after an exception, comes by here as well and says nothing of the site.
        """
        flight = self._admission.flights.get(request)
        if flight is not None:
            self._hear(flight, response)
        return response

    def process_exception(self, request: Request, exception: Exception) -> None:
        """Have the lane learn from there being no answer."""
        flight = self._admission.flights.get(request)
        if flight is not None and not isinstance(exception, IgnoreRequest):
            self._hear(flight, exception)

    def _hear(self, flight: Flight, result: Response | Exception) -> None:
        if flight.sent_at is None or flight.heard is not None:
            return
        told = self._judge.verdict(flight, result)
        if _is_redirect(result) and told.outcome is Outcome.FAILED:
            # A status in RETRY_HTTP_CODES; that is nothing the site would have trouble with.
            flight.heard = self._admission.learn(
                flight, replace(told, outcome=Outcome.NEUTRAL), self._clock.now()
            )
            self._stats.inc_value("backpressure/outcome/neutral")
            return
        heard = self._admission.learn(flight, told, self._clock.now())
        flight.told, flight.heard, flight.verdict = told, heard, heard
        stat = f"backpressure/outcome/{heard.outcome.value}"
        self._stats.inc_value(stat)
        if heard.reason and heard.outcome.is_bad:
            self._stats.inc_value(f"{stat}/{heard.reason}")


def _is_redirect(result: Response | Exception) -> bool:
    return (
        isinstance(result, Response)
        and 300 <= result.status < 400
        and b"Location" in result.headers
    )
