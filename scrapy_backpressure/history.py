"""What is remembered of a request's failed attempts, and how it travels with the request.

While a request is under way its history is kept beside it (:class:`Histories`), so that no copy of
the request, or of its meta, carries it anywhere. Through the queues, which may write a request to
disk, it goes in one meta key, :data:`HISTORY`: ``first_seen`` (epoch seconds), ``host``,
``throttled`` (how often), ``redrives``, the request's own ``priority`` and ``dont_filter``, which
retries change, and ``attempts``, a list of dicts with ``time`` (epoch seconds), ``status`` or
``exception``, ``outcome``, ``reason``, ``proxy`` and ``latency`` (seconds); and, until a request
from a dead letter is sent, ``redriven``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

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

History = dict[str, Any]

_SHAPE: dict[str, Any] = {
    "first_seen": (int, float),
    "throttled": int,
    "redrives": int,
    "priority": (int, float),
    "dont_filter": object,
    "attempts": list,
}


def _host(request: Request) -> str | None:
    try:
        return urlparse_cached(request).hostname
    except ValueError:
        return None


def begin(request: Request, first_seen: float, redrives: int = 0) -> History:
    """The history of a request without any attempt; *first_seen*: epoch seconds."""
    return {
        "first_seen": first_seen,
        "host": _host(request),
        "throttled": 0,
        "redrives": redrives,
        "priority": request.priority,
        "dont_filter": request.dont_filter,
        "attempts": [],
    }


def carry(request: Request, history: History) -> None:
    """Send *request* into the queues with *history*, past the seen-filter.

    The pass is for the queue alone: :meth:`Histories.take` gives ``dont_filter`` back, since what
    the request redirects to is to be filtered as ever.
    """
    request.meta[HISTORY] = history
    request.dont_filter = True


def redrive(request: Request, *, first_seen: float, redrives: int) -> None:
    """Have *request*, made anew from a dead letter, go on with the history of that letter.

    It is counted once it is sent. *first_seen*: epoch seconds; *redrives*: how often it had been
    sent again before.
    """
    carry(request, {**begin(request, first_seen, redrives), "redriven": True})


def carried(request: Request) -> History | None:
    """The history in the meta of a queued request; None if there is none, or not its own."""
    found = request.meta.get(HISTORY)
    if not isinstance(found, dict) or found.get("host") != _host(request):
        return None
    if not all(isinstance(found.get(key), types) for key, types in _SHAPE.items()):
        return None
    return found


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
    proxy = request.meta.get("proxy")
    return {
        "time": clock.epoch(),
        "status": None if response is None else response.status,
        "exception": None if error is None else f"{type(error).__name__}: {error}",
        "outcome": "" if verdict is None else verdict.outcome.value,
        "reason": "" if verdict is None else verdict.reason,
        "proxy": None if proxy is None else str(proxy),
        "latency": latency,
    }


class Histories:
    """The histories of requests that are under way, or that somebody still holds."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Request, History] = WeakKeyDictionary()

    def take(self, request: Request) -> None:
        """*request* leaves the queues: keep its history beside it."""
        if HISTORY not in request.meta:
            return
        history = carried(request)
        del request.meta[HISTORY]
        if history is None:
            return
        request.dont_filter = history["dont_filter"]
        history = dict(history)
        history["redrives"] += bool(history.pop("redriven", False))
        self._kept[request] = history

    def of(self, request: Request) -> History | None:
        """The history of *request*, under way or queued; None if it has none."""
        found = self._kept.get(request)
        return carried(request) if found is None else found

    def keep(self, request: Request, history: History) -> None:
        """Remember *history* of *request*, which goes nowhere any more."""
        self._kept[request] = history

    def with_attempt(self, request: Request, attempt: dict[str, Any]) -> History:
        """The history of *request* with one more attempt; what is remembered stays as it is."""
        before = self.of(request) or begin(request, attempt["time"])
        throttled = before["throttled"] + (attempt["outcome"] == "throttled")
        attempts = [*before["attempts"], attempt][-KEPT_ATTEMPTS:]
        return {**before, "throttled": throttled, "attempts": attempts}

    def hand_on(self, request: Request, successor: Request) -> None:
        """A middleware has answered *request* with another one: a redirect, a copy.

        On the same host the new one goes on with the history, and past the seen-filter as Scrapy's
        own retries and their redirects do. On another host it is a request like any.
        """
        history = self._kept.get(request)
        if history is None or successor is request or HISTORY in successor.meta:
            return
        if history["host"] == _host(successor):
            own = {"priority": successor.priority, "dont_filter": successor.dont_filter}
            carry(successor, {**history, **own})

    def as_first_sent(self, request: Request) -> Request:
        """A copy of *request* with the priority and ``dont_filter`` that it had at first; the
        request itself, if no copy can be made of it."""
        try:
            copy: Request = request.copy()
        except Exception:  # at what the user has put into it
            return request
        copy.meta.pop(HISTORY, None)
        history = self.of(request) or {}
        copy.priority = history.get("priority", request.priority)
        copy.dont_filter = history.get("dont_filter", request.dont_filter)
        return copy


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
