"""Time, and being woken at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.utils.asyncio import CallLaterResult


class Clock:
    """One crawl's clock: seconds that never jump, and what they are as epoch seconds."""

    def __init__(self) -> None:
        # Fixed once: a wall clock that is set during the crawl moves no due time.
        self._epoch = time.time() - time.monotonic()

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def epoch(self) -> float:
        """Epoch seconds, as monotonic as :meth:`now`."""
        return time.monotonic() + self._epoch


class Slices:
    """Lets the event loop have its turn while something long goes on."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends = 0.0

    @property
    def over(self) -> bool:
        """Whether the last turn of the event loop lies *seconds* back."""
        return time.monotonic() >= self._ends

    async def breathe(self) -> None:
        """Give way to the event loop."""
        turn: Deferred[None] = Deferred()
        call = call_later(0, turn.callback, None)
        try:
            await maybe_deferred_to_future(turn)
        finally:
            call.cancel()
        self._ends = time.monotonic() + self._seconds


class Alarm:
    """Calls *ring* at the earliest of the times asked for since it rang last."""

    def __init__(self, now: Callable[[], float], ring: Callable[[], None]) -> None:
        self._now = now
        self._ring = ring
        self._at: float | None = None
        self._call: CallLaterResult | None = None

    def at(self, when: float) -> None:
        """Ring at *when* (on the clock *now*), unless it rings earlier anyway."""
        if self._at is not None and self._at <= when:
            return
        self.cancel()
        self._at = when
        self._call = call_later(max(0.0, when - self._now()), self._due)

    def cancel(self) -> None:
        """Do not ring."""
        if self._call is not None:
            self._call.cancel()
        self._call = self._at = None

    def _due(self) -> None:
        self._call = self._at = None
        self._ring()


class Sleepers:
    """Coroutines that wait for a time (on the clock *now*), or to be roused."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._turns: set[Deferred[None]] = set()

    async def sleep_until(self, when: float) -> None:
        """Wait until *when*, or until :meth:`rouse`."""
        if when <= self._now():
            return
        turn: Deferred[None] = Deferred()
        self._turns.add(turn)
        alarm = Alarm(self._now, lambda: self._end(turn))
        alarm.at(when)
        try:
            await maybe_deferred_to_future(turn)
        finally:
            alarm.cancel()
            self._turns.discard(turn)

    def rouse(self) -> None:
        """End all waiting."""
        for turn in list(self._turns):
            self._end(turn)

    def _end(self, turn: Deferred[None]) -> None:
        self._turns.discard(turn)
        if not turn.called:
            turn.callback(None)
