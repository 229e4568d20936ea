"""A download slot as this package knows it, and a request on its way through one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response
    from twisted.internet.defer import Deferred

    from scrapy_backpressure._scrapy import SlotLimits
    from scrapy_backpressure.control.backoff import RetryBudget
    from scrapy_backpressure.control.lane import Lane, Ticket
    from scrapy_backpressure.control.outcome import Verdict

_WINDOW = 20  # the last answers of a slot, of which the share of bad ones is taken
_WINDOW_MIN = 10
_WINDOW_SECONDS = 60.0


@dataclass(slots=True, eq=False)
class Flight:
    """One request on its way, from being handed out until its fetch has ended."""

    request: Request
    slot: Slot
    scheduled: bool
    lane: Lane | None = None
    ticket: Ticket | None = None
    reserved_at: float = 0.0
    sent_at: float | None = None
    due: float | None = None
    """Epoch seconds before which it is not to be sent, where it cannot be parked."""
    told: Verdict | None = None
    """What the policy made of the site's own answer, or of there being none."""
    heard: Verdict | None = None
    """What its lane made of that: a failure may turn out to be throttling."""
    judged: Response | Exception | None = None
    """What :attr:`verdict` is about. Middlewares may put something else in its place."""
    judged_as: tuple[Any, ...] = ()
    """What counted of it: a middleware may also change it in place."""
    verdict: Verdict | None = None
    hopeless: str | None = None
    """Why it is not sent at all: ``stalled`` or ``max_pause``."""
    given_up: str | None = None
    """The reason for which the retry middleware gave it up."""
    response: Response | None = None
    """The answer with which it was given up."""
    delayed: tuple[float, float] = (0.0, 0.0)
    """``next_at`` of its slot before and after its place was taken."""


@dataclass(slots=True, eq=False)
class Waiter:
    """A flight that waits for its turn in :meth:`Admission.turn`."""

    flight: Flight
    lane: Lane
    turn: Deferred[None]


@dataclass(slots=True, eq=False)
class Slot:
    """What is known of one download slot."""

    key: str
    limits: SlotLimits
    budget: RetryBudget
    lanes: dict[str | None, Lane] = field(default_factory=dict)
    in_flight: int = 0
    delay: float = 0.0
    """Seconds between two requests, as DOWNLOAD_DELAY or an extension has it now."""
    next_at: float = 0.0
    """When the delay lets the next request go."""
    used_at: float = 0.0
    rests_until: float = 0.0
    """Until when it gives way to slots that answer sooner."""
    waiters: list[Waiter] = field(default_factory=list)
    unsent: set[Flight] = field(default_factory=set)
    """Flights of the scheduler that have a place and are still on their way to the site."""
    _window: list[tuple[float, bool]] = field(default_factory=list)  # a deque costs 700 bytes more
    _bad_at: float = -math.inf

    @property
    def concurrency(self) -> int:
        """Requests that may be in flight at once over all lanes."""
        total = 0.0
        for lane in self.lanes.values():  # nearly always one, and asked for each request
            total += lane.concurrency
        return max(1, min(self.limits.concurrency, round(total)))

    @property
    def paused_until(self) -> float:
        """Until when no lane may send anything; in the past or 0.0 if one may."""
        return min((lane.closed_until for lane in self.lanes.values()), default=0.0)

    def may_send_within(self, seconds: float, now: float) -> bool:
        """Whether some lane is neither paused for longer nor waits for its breaker."""
        for lane in self.lanes.values():
            if not lane.breaker_open and lane.closed_until - now <= seconds:
                return True
        return False

    def answered(self, now: float, *, bad: bool) -> None:
        """An answer came, or none."""
        self._window.append((now, bad))
        if len(self._window) > _WINDOW:
            del self._window[0]
        if bad:
            self._bad_at = now

    def bad_share(self, now: float) -> float:
        """Share of bad answers among the last ones; 0.0 while there are too few."""
        if now - self._bad_at > _WINDOW_SECONDS:
            return 0.0
        recent = [bad for time, bad in self._window if now - time <= _WINDOW_SECONDS]
        return sum(recent) / len(recent) if len(recent) >= _WINDOW_MIN else 0.0
