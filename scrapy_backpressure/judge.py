"""Asks the outcome policy, and goes on without it where it fails."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from scrapy.http import Response
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_backpressure.control.outcome import Outcome, Verdict
from scrapy_backpressure.policy import OutcomePolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_backpressure.slots import Flight

logger = logging.getLogger(__name__)


class Judge:
    """The policy that *named* (a class, or its import path) is, with the default one behind it.

    A policy that raises, or says what is no verdict, must not cost the page: then the default
    policy is asked. Told in the log with the first traceback, and counted at each answer.

    :raises ValueError: *named* is no subclass of OutcomePolicy.
    """

    def __init__(self, crawler: Crawler, named: Any) -> None:
        self._crawler = crawler
        try:
            policy = load_object(named)
        except (ImportError, NameError) as error:
            policy = error
        if not (isinstance(policy, type) and issubclass(policy, OutcomePolicy)):
            raise ValueError(
                "BACKPRESSURE_OUTCOME_POLICY accepts a subclass of "
                "scrapy_backpressure.OutcomePolicy, or its import path; "
                f"got {named!r}: {policy!r}"
            )
        self._policy: OutcomePolicy = build_from_crawler(policy, crawler)
        self._default = OutcomePolicy(crawler.settings)
        self._told = False

    def verdict(self, flight: Flight, result: Response | Exception) -> Verdict:
        """What *result* of *flight* means: of the very object that is there.

        Between the site and whoever asks, any middleware may have put another one in its place.
        One that means the same as the site's own answer (that answer decoded, say) means what
        the lane made of it.
        """
        shape = (result.status, result.body) if isinstance(result, Response) else ()
        if flight.judged is not result or not _same(flight.judged_as, shape):
            if isinstance(result, Response):
                verdict = self.classify_response(flight.request, result)
            else:
                verdict = self.classify_exception(flight.request, result)
            told = flight.told
            if (
                told is not None
                and flight.heard is not None
                and (told.outcome, told.reason) == (verdict.outcome, verdict.reason)
            ):
                verdict = flight.heard
            flight.judged, flight.judged_as, flight.verdict = result, shape, verdict
        assert flight.verdict is not None
        return flight.verdict

    def classify_response(self, request: Request, response: Response) -> Verdict:
        """What *response* means."""
        policy, default = self._policy, self._default
        return self._ask(policy.classify_response, default.classify_response, request, response)

    def classify_exception(self, request: Request, exception: Exception) -> Verdict:
        """What it means that there is no answer."""
        policy, default = self._policy, self._default
        return self._ask(policy.classify_exception, default.classify_exception, request, exception)

    def _ask(
        self,
        question: Callable[[Request, Any], Verdict],
        otherwise: Callable[[Request, Any], Verdict],
        request: Request,
        result: Any,
    ) -> Verdict:
        try:
            verdict = question(request, result)
            _check(verdict)
        except Exception as error:
            self._crawler.stats.inc_value("backpressure/policy_errors")
            logger.log(
                logging.DEBUG if self._told else logging.ERROR,
                "BACKPRESSURE_OUTCOME_POLICY failed at %(request)s, so the default policy "
                "decides (further ones are counted in backpressure/policy_errors): %(error)s",
                {"request": request, "error": error},
                exc_info=not self._told,
                extra={"spider": self._crawler.spider},
            )
            self._told = True
            return otherwise(request, result)
        return verdict


def _same(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    return len(before) == len(now) and all(a is b for a, b in zip(before, now, strict=True))


def _check(verdict: Any) -> None:
    if not isinstance(verdict, Verdict) or not isinstance(verdict.outcome, Outcome):
        raise TypeError(f"a policy has to return a Verdict with an Outcome, not {verdict!r}")
    pause: Any = verdict.pause
    if pause is not None and not (isinstance(pause, int | float) and not math.isnan(pause)):
        raise TypeError(f"the pause of a Verdict is in seconds, not {pause!r}")
