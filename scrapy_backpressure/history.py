"""What is remembered of a request's failed attempts, in its meta.

One meta key, :data:`HISTORY`, holds ``first_seen`` (epoch seconds), ``host``, ``throttled`` (how
often), ``redrives``, the request's own ``priority`` and ``dont_filter``, which retries change,
and ``attempts``, a list of dicts with ``time`` (epoch seconds), ``status``
or ``exception``, ``outcome``, ``reason``, ``proxy`` and ``latency`` (seconds); and, until a
request from a dead letter is sent, ``redriven``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from scrapy.utils.httpobj import urlparse_cached

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response

    from scrapy_backpressure.clock import Clock
    from scrapy_backpressure.control.outcome import Verdict
    from scrapy_backpressure.slots import Flight

PREFIX = "backpressure_"
HISTORY = f"{PREFIX}history"
DUE = f"{PREFIX}due"
"""Epoch seconds before which the request is not to be sent."""

KEPT_ATTEMPTS = 20
"""Attempts that are remembered, the last ones, here and in dead letters."""


def history(request: Request) -> dict[str, Any] | None:
    """The request's own history; None if it has none, or only that of another host."""
    found = request.meta.get(HISTORY)
    if not isinstance(found, dict) or found.get("host") != urlparse_cached(request).hostname:
        return None
    return found


def _begin(request: Request, first_seen: float, redrives: int) -> dict[str, Any]:
    return {
        "first_seen": first_seen,
        "host": urlparse_cached(request).hostname,
        "throttled": 0,
        "redrives": redrives,
        "priority": request.priority,
        "dont_filter": request.dont_filter,
        "attempts": [],
    }


def redrive(request: Request, *, first_seen: float, redrives: int) -> None:
    """Have *request*, made anew from a dead letter, go on with the history of that letter.

    It is let past the seen-filter once, and counted once it is :func:`sent`.
    *first_seen*: epoch seconds; *redrives*: how often it had been sent again before.
    """
    request.meta[HISTORY] = {**_begin(request, first_seen, redrives), "redriven": True}
    request.dont_filter = True


def sent(request: Request) -> None:
    """Count *request*, if it comes from a dead letter, and give it its ``dont_filter`` back.

    Else what it redirects to, and OffsiteMiddleware, would take it for one that is never filtered.
    """
    past = history(request)
    if past is not None and past.pop("redriven", False):
        past["redrives"] += 1
        request.dont_filter = past["dont_filter"]


def attempt(
    request: Request,
    clock: Clock,
    *,
    flight: Flight | None = None,
    verdict: Verdict | None = None,
    response: Response | None = None,
    error: BaseException | None = None,
) -> dict[str, Any]:
    """What is remembered of one attempt, which ends now."""
    latency = None
    if flight is not None and flight.sent_at is not None:
        latency = clock.now() - flight.sent_at
    return {
        "time": clock.epoch(),
        "status": None if response is None else response.status,
        "exception": None if error is None else f"{type(error).__name__}: {error}",
        "outcome": "" if verdict is None else verdict.outcome.value,
        "reason": "" if verdict is None else verdict.reason,
        "proxy": request.meta.get("proxy"),
        "latency": latency,
    }


def with_attempt(request: Request, attempt: dict[str, Any]) -> dict[str, Any]:
    """The request's history with one more attempt; the request itself is left as it is."""
    before = history(request) or _begin(request, attempt["time"], 0)
    throttled = before["throttled"] + (attempt["outcome"] == "throttled")
    attempts = [*before["attempts"], attempt][-KEPT_ATTEMPTS:]
    return {**before, "throttled": throttled, "attempts": attempts}


def as_first_sent(request: Request) -> Request:
    """A copy of the request with the priority and ``dont_filter`` that it had at first."""
    copy: Request = request.copy()
    past = history(request) or {}
    copy.priority = past.get("priority", request.priority)
    copy.dont_filter = past.get("dont_filter", request.dont_filter)
    return copy


def strip(request: Request) -> None:
    """Remove what a spider copied from ``response.meta`` into a new request.

    That is never :data:`DUE`, which a request loses before it is sent: it is the spider's own.
    """
    for key in [key for key in request.meta if str(key).startswith(PREFIX) and key != DUE]:
        del request.meta[key]


def take_due(request: Request) -> float | None:
    """Take out :data:`DUE`; None if it is not set.

    :raises ValueError: it is no number of seconds.
    """
    due = request.meta.pop(DUE, None)
    if due is None:
        return None
    try:
        seconds = float(due)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if math.isnan(seconds):
        raise ValueError(f"meta key {DUE} accepts epoch seconds; got {due!r}")
    return seconds
