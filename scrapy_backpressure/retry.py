"""Downloader middleware: parks what failed, and gives up what failed too often."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

from scrapy.downloadermiddlewares.retry import RetryMiddleware as StockRetryMiddleware
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.exceptions import NotConfigured
from scrapy.settings.default_settings import RETRY_HTTP_CODES
from scrapy.utils.response import response_status_message

from scrapy_backpressure import history
from scrapy_backpressure._scrapy import is_robotstxt
from scrapy_backpressure.control.backoff import backoff
from scrapy_backpressure.control.outcome import Outcome, Verdict
from scrapy_backpressure.exceptions import GivenUp
from scrapy_backpressure.extension import BackpressureExtension, extension_of
from scrapy_backpressure.settings import BackpressureSettings

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_backpressure.slots import Flight

logger = logging.getLogger(__name__)


class RetryMiddleware:
    """Retries with capped exponential backoff and full jitter, outside the scheduler.

    In the place of Scrapy's RetryMiddleware (550), whose settings and meta keys keep their
    meaning. Throttled answers do not use up RETRY_TIMES; BACKPRESSURE_THROTTLE_TIMES and
    BACKPRESSURE_STALL_TIMEOUT bound them. What is given up goes to the dead letters.
    """

    def __init__(self, extension: BackpressureExtension) -> None:
        settings = extension.crawler.settings
        self._extension = extension
        self._crawler = extension.crawler
        self._config = extension.config
        self._clock = extension.clock
        self._admission = extension.admission
        self._judge = extension.judge
        self._histories = extension.accounts.histories
        self._rng = random.Random()
        self._max_retry_times = settings.getint("RETRY_TIMES")
        # Scrapy's default puts retries behind all that is pending, to give the site time. Here
        # they have served their backoff; last, they would only make a long tail.
        user_set = (settings.getpriority("RETRY_PRIORITY_ADJUST") or 0) > 0
        self._priority_adjust = settings.getint("RETRY_PRIORITY_ADJUST") if user_set else 0
        self._give_up_level = settings.get("RETRY_GIVE_UP_LOG_LEVEL", "ERROR")  # since 2.17
        # Statuses that the user took out of Scrapy's list are not to be retried, whatever a
        # policy makes of them; others, which a policy names, are.
        codes = {int(code) for code in settings.getlist("RETRY_HTTP_CODES")}
        self._codes = codes
        self._never = {int(code) for code in RETRY_HTTP_CODES} - codes

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> RetryMiddleware | StockRetryMiddleware:
        """This middleware, or Scrapy's own while BACKPRESSURE_ENABLED is False.

        :raises NotConfigured: RETRY_ENABLED is False, or the extension is missing.
        """
        if not crawler.settings.getbool("RETRY_ENABLED"):
            raise NotConfigured
        if not BackpressureSettings.from_settings(crawler.settings).enabled:
            return StockRetryMiddleware.from_crawler(crawler)
        return cls(extension_of(crawler, cls))

    def process_response(self, request: Request, response: Response) -> Request | Response:
        """Park a bad answer's request for its retry, or give it up.

        What counts is the response that is here, whatever the site's own answer was: a middleware
        in between may have solved a challenge, or found one.

        :raises GivenUp: given up, and the answer would pass for a success.
        """
        flight = self._admission.flights.get(request)
        if flight is None:
            return response
        verdict = self._judge.verdict(flight, response)
        if not verdict.outcome.is_bad or response.status in self._never:
            return response
        again = self._retry(flight, verdict, response=response)
        if again is not None:
            return again
        if 200 <= response.status < 300 and flight.given_up:
            raise GivenUp(flight.given_up, response)
        return response

    def process_exception(self, request: Request, exception: Exception) -> Request | None:
        """Park a failed request for its retry, or give it up."""
        flight = self._admission.flights.get(request)
        if flight is None or isinstance(exception, GivenUp):
            return None
        if is_robotstxt(request) and _is_timeout(exception):
            return None  # all pages of the host wait for it
        verdict = self._judge.verdict(flight, exception)
        if not verdict.outcome.is_bad:
            return None
        return self._retry(flight, verdict, error=exception)

    def keeps(self, request: Request, response: Response, verdict: Verdict) -> bool:
        """Whether a bad answer is better not followed where it redirects to.

        Not if Scrapy would follow it first (a status in RETRY_HTTP_CODES that is a redirect), nor
        if its request is not retried any more, as far as its page alone is in trouble.
        """
        if response.status in self._never or request.meta.get("dont_retry"):
            return False
        if verdict.outcome is not Outcome.FAILED:
            return True
        if response.status in self._codes and 300 <= response.status < 400:
            return False
        most = request.meta.get("max_retry_times", self._max_retry_times)
        return bool(request.meta.get("retry_times", 0) < most)

    def undecodable(self, flight: Flight, response: Response, error: Exception) -> Request | None:
        """Park a request whose answer raised *error* when it was decoded, or give it up.

        Scrapy has no retry for that: what ``process_response`` raises goes to the errback.
        """
        heard = flight.heard
        if heard is None or not heard.outcome.is_bad:
            heard = Verdict(Outcome.FAILED, type(error).__name__)
        flight.judged, flight.verdict = error, heard
        if response.status in self._never:
            return None
        return self._retry(flight, heard, response=response, error=error)

    def incomplete(self, flight: Flight, response: Response) -> Request | None:
        """Park a request whose answer breaks off; None if it has to do as it is."""
        flight.judged, flight.verdict = response, Verdict(Outcome.FAILED, "incomplete")
        again = self._retry(flight, flight.verdict, response=response)
        if again is None:
            flight.given_up = flight.response = flight.judged = None
        return again

    def _retry(
        self,
        flight: Flight,
        verdict: Verdict,
        *,
        response: Response | None = None,
        error: Exception | None = None,
    ) -> Request | None:
        """The request to be parked; None if it is given up."""
        request = flight.request
        attempt = history.attempt(
            request, self._clock, flight=flight, verdict=verdict, response=response, error=error
        )
        past = self._histories.with_attempt(request, attempt)
        reason = self._hopeless(flight, verdict, past)
        again = None
        if reason is None:
            # A component that awaits its answer must not wait for ever, so there throttled
            # answers count as others do.
            if verdict.outcome is Outcome.THROTTLED and flight.scheduled:
                number = past["throttled"]
                again = self._throttled(request, verdict, number)
            else:
                again = self._failed(request, verdict, response, error)
                number = request.meta.get("retry_times", 0) + 1
            reason = "blocked" if verdict.outcome is Outcome.BLOCKED else "retries"
        if again is None:
            self._histories.keep(request, past)
            flight.given_up, flight.response = reason, response
            return None
        history.carry(again, past)
        again.meta[history.DUE] = self._clock.epoch() + self._delay(flight, verdict, number)
        # Parked requests keep their place in the order of retries, not of start requests.
        again.meta.pop("is_start_request", None)
        return again

    def _hopeless(self, flight: Flight, verdict: Verdict, past: dict[str, Any]) -> str | None:
        """The reason for which a request is not retried at all."""
        if flight.request.meta.get("dont_retry"):
            return "blocked" if verdict.outcome is Outcome.BLOCKED else "retries"
        if verdict.outcome is not Outcome.THROTTLED:
            return None
        config = self._config
        if past["throttled"] > config.throttle_times:
            reason = "throttled"
            why = f"throttled more than BACKPRESSURE_THROTTLE_TIMES ({config.throttle_times})"
        elif (verdict.pause or 0.0) > config.max_pause and not self._extension.jobdir:
            reason = "max_pause"
            why = (
                f"its site asks for a pause of {verdict.pause:.0f} s, more than "
                f"BACKPRESSURE_MAX_PAUSE ({config.max_pause:g})"
            )
        elif self._admission.hopeless(flight.slot, self._clock.now()) == "stalled":
            reason = "stalled"
            why = (
                "its site has given no good answer for longer than BACKPRESSURE_STALL_TIMEOUT "
                f"({config.stall_timeout:g} s)"
            )
        else:
            return None
        level = flight.request.meta.get("give_up_log_level", self._give_up_level)
        logger.log(
            logging.getLevelName(level) if isinstance(level, str) else level,
            "Gave up %(request)s: %(why)s",
            {"request": flight.request, "why": why},
            extra={"spider": self._crawler.spider},
        )
        return reason

    def _throttled(self, request: Request, verdict: Verdict, number: int) -> Request:
        logger.debug(
            "Retrying %(request)s (throttled %(number)d times, at most %(most)d): %(reason)s",
            {
                "request": request,
                "number": number,
                "most": self._config.throttle_times,
                "reason": verdict.reason,
            },
            extra={"spider": self._crawler.spider},
        )
        self._crawler.stats.inc_value("backpressure/retry_queue/throttled")
        again: Request = request.copy()
        return again

    def _failed(
        self,
        request: Request,
        verdict: Verdict,
        response: Response | None,
        error: Exception | None,
    ) -> Request | None:
        spider = self._crawler.spider
        assert spider is not None
        meta = request.meta
        options = {}
        if "give_up_log_level" in meta:  # since Scrapy 2.17
            options["give_up_log_level"] = meta["give_up_log_level"]
        reason: str | Exception = verdict.reason if error is None else error
        if response is not None and verdict.reason == str(response.status):
            reason = response_status_message(response.status)  # as Scrapy's stats name it
        return get_retry_request(
            request,
            spider=spider,
            reason=reason,
            max_retry_times=meta.get("max_retry_times", self._max_retry_times),
            priority_adjust=meta.get("priority_adjust", self._priority_adjust),
            logger=logger,
            **options,
        )

    def _delay(self, flight: Flight, verdict: Verdict, number: int) -> float:
        """Seconds until the next attempt."""
        now = self._clock.now()
        delay = backoff(
            number,
            base=self._config.backoff_base,
            maximum=min(self._config.backoff_max, self._config.max_pause),
            rng=self._rng,
            throttled=verdict.outcome is Outcome.THROTTLED,
        )
        if verdict.outcome is Outcome.FAILED:
            delay += flight.slot.budget.retry(now)
        lane_pause = flight.lane.paused_until - now if flight.lane is not None else 0.0
        return max(delay, verdict.pause or 0.0, lane_pause)


def _is_timeout(exception: Exception) -> bool:
    return any("Timeout" in cls.__name__ for cls in type(exception).__mro__)
