"""The gate: holds back ``start()`` and callbacks while the crawl has enough to do."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from scrapy import Request
from scrapy.exceptions import CloseSpider
from scrapy.spidermiddlewares.httperror import HttpError
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.defer import CancelledError, Deferred

from scrapy_backpressure import _scrapy
from scrapy_backpressure.clock import Slices

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

    from scrapy_backpressure.extension import BackpressureExtension

_ASIDE_MAX = 100
_HELD_MAX = 100
"""Callbacks that may be held back where CONCURRENT_REQUESTS sets no limit."""
_HELD_MIN = 16
"""Held ones where it sets a lower limit: a single large one must not free all others."""
_LONG_PAUSE = 5.0
"""Seconds from which on the pause of a slot sets its start requests aside."""
_SLICE = 0.02
"""Seconds for which start() may be read before the event loop has its turn."""


class Gate:
    """Open, or closed for reasons; what waits for it, and how much of it.

    *on_change* is called with the reasons before and after each change of them.
    """

    def __init__(self, on_change: Callable[[frozenset[str], frozenset[str]], None]) -> None:
        self._on_change = on_change
        self._waiting: list[Deferred[None]] = []
        self.reasons: frozenset[str] = frozenset()
        self.held = 0
        """Callbacks that are being held back."""
        self.start_failed = False
        """Whether ``start()`` raised."""
        self.aside: deque[tuple[str, Request]] = deque()
        """Start requests, with their slots, that wait for their slot to recover."""
        self.passing: WeakSet[Request] = WeakSet()
        """Requests of callbacks that have passed and are not in the scheduler yet.

        Scrapy reads up to 2 × CONCURRENT_ITEMS of what a callback yields before it schedules the
        first. Weak, as a middleware may replace or drop a request on its way.
        """

    @property
    def closed(self) -> bool:
        """Whether there is a reason to hold anything back."""
        return bool(self.reasons)

    def set(self, reasons: frozenset[str]) -> None:
        """Be closed for *reasons*, or open if there is none."""
        before, self.reasons = self.reasons, reasons
        if before != reasons:
            self._on_change(before, reasons)
            if not reasons:
                self.stir()

    def stir(self) -> None:
        """Have everything that waits look again."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.called:
                waiter.callback(None)

    async def wait(self) -> None:
        """Wait for the next time at which looking again makes sense."""
        waiter: Deferred[None] = Deferred()
        self._waiting.append(waiter)
        await maybe_deferred_to_future(waiter)


class StartGateMiddleware:
    """Spider middleware that holds back start requests and the requests of callbacks.

    :class:`~scrapy_backpressure.BackpressureExtension` enables it by itself.
    """

    def __init__(self, extension: BackpressureExtension) -> None:
        self._extension = extension
        self._gate = extension.gate
        self._admission = extension.admission
        self._slices = Slices(_SLICE)
        at_once = extension.crawler.settings.getint("CONCURRENT_REQUESTS") or _HELD_MAX
        self._held_max = max(_HELD_MIN, at_once)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        # At run time, since the extension adds this class to the settings.
        from scrapy_backpressure.extension import extension_of

        return cls(extension_of(crawler, cls))

    # -- start() -----------------------------------------------------------

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield what *start* yields, no faster than the crawl can take it.

        *start* is only read while the gate is open, so that a request is made when it can be
        used. A request of a slot in trouble waits aside while those of other slots pass.
        """
        gate = self._gate
        exhausted = False
        while True:
            if _scrapy.is_closing(self._extension.engine):
                # Whatever start() has left would be read only to be given up.
                if await self._cancelled(gate.wait()):
                    return
                continue
            if gate.aside and (recovered := self._recovered()) is not None:
                yield recovered
                continue
            if exhausted and not gate.aside:
                return
            if exhausted or self._start_must_wait():
                if await self._cancelled(gate.wait()):
                    return
                continue
            # The engine reads on without a pause while it has enough to do.
            if self._slices.over and await self._cancelled(self._slices.breathe()):
                return
            try:
                item_or_request = await anext(start)
            except StopAsyncIteration:
                exhausted = True
                continue
            except Exception as error:
                gate.start_failed = not isinstance(error, CloseSpider)
                while gate.aside:  # it would be lost with this generator
                    yield gate.aside.popleft()[1]
                raise
            if isinstance(item_or_request, Request):
                key = self._admission.slot_key(item_or_request)
                if self._in_trouble(key):
                    gate.aside.append((key, item_or_request))
                    continue
            yield item_or_request

    async def _cancelled(self, wait: Awaitable[None]) -> bool:
        """Wait; whether the engine is being stopped instead."""
        try:
            await wait
        except CancelledError:
            # Twisted's, which to the engine would be an error of start(). That of asyncio, which
            # it expects, passes.
            return True
        return False

    def _start_must_wait(self) -> bool:
        self._extension.poke()
        gate = self._gate
        aside_max = max(1, min(_ASIDE_MAX, self._extension.queue_mark.high // 2))
        return gate.closed or len(gate.aside) >= aside_max

    def _in_trouble(self, key: str) -> bool:
        """Whether a slot answers so badly that more requests for it would only wait.

        Not while it has nothing to do: somebody has to find out whether it has recovered.
        """
        slot = self._admission.slots.get(key)
        if slot is None:
            return False
        now = self._extension.clock.now()
        bad = slot.bad_share(now) > self._extension.config.error_rate or not slot.may_send_within(
            _LONG_PAUSE, now
        )
        return bad and bool(
            slot.in_flight
            or self._admission.queued(key)
            or self._extension.retry_queue.slot_count(key)
        )

    def _recovered(self) -> Request | None:
        """A start request that waited aside and need not any longer."""
        aside = self._gate.aside
        troubled: dict[str, bool] = {}
        for index, (key, request) in enumerate(aside):
            if key not in troubled:
                troubled[key] = self._in_trouble(key)
            if not troubled[key]:
                del aside[index]
                return request
        return None

    # -- callbacks ---------------------------------------------------------

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Yield what the callback yields; hold its requests while the queue is too long."""
        gate = self._gate
        async for item_or_request in result:
            if isinstance(item_or_request, Request):
                while self._callback_must_wait():
                    gate.held += 1
                    try:
                        await gate.wait()
                    finally:
                        gate.held -= 1
                gate.passing.add(item_or_request)
            yield item_or_request

    def _callback_must_wait(self) -> bool:
        """Whether a callback is held back. Never while that could keep the crawl from going on.

        The response of a held callback fills SCRAPER_SLOT_MAX_ACTIVE_SIZE, so none is held while
        the scraper backs out; and as each holds a response in memory, their number is bounded.
        """
        extension = self._extension
        if not extension.config.gate_callbacks:
            return False
        extension.poke()
        return (
            self._gate.closed
            and self._gate.held < self._held_max
            and not _scrapy.scraper_backs_out(extension.engine)
        )

    def process_spider_exception(self, response: Response, exception: Exception) -> None:
        """Take note of answers that HttpErrorMiddleware drops."""
        if isinstance(exception, HttpError):
            self._extension.accounts.http_error(response)
