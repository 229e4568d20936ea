"""The gate: holds back ``start()`` and callbacks while the crawl has enough to do."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.spidermiddlewares.httperror import HttpError
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.defer import Deferred

from scrapy_backpressure import _scrapy, history

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

    from scrapy_backpressure.extension import BackpressureExtension

_ASIDE_MAX = 100
_HELD_MAX = 100
_LONG_PAUSE = 5.0


class Gate:
    """Open, or closed for reasons; what waits for it, and how much of it.

    *on_change* is called with the reasons after each change between open and closed.
    """

    def __init__(self, on_change: Callable[[frozenset[str]], None]) -> None:
        self._on_change = on_change
        self._waiting: list[Deferred[None]] = []
        self.reasons: frozenset[str] = frozenset()
        self.held = 0
        """Callbacks that are being held back."""
        self.start_waits = False
        """Whether ``start()`` is being held back."""
        self.aside: deque[tuple[str, Request]] = deque()
        """Start requests, with their slots, that wait for their slot to recover."""

    @property
    def closed(self) -> bool:
        """Whether there is a reason to hold anything back."""
        return bool(self.reasons)

    def set(self, reasons: frozenset[str]) -> None:
        """Be closed for *reasons*, or open if there is none."""
        changed = bool(reasons) != self.closed
        self.reasons = reasons
        if changed:
            self._on_change(reasons)
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
        self._held_max = extension.crawler.settings.getint("CONCURRENT_REQUESTS") or _HELD_MAX

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
        try:
            while True:
                recovered = self._recovered()
                if recovered is not None:
                    yield recovered
                    continue
                if exhausted and not gate.aside:
                    return
                if exhausted or self._start_must_wait():
                    gate.start_waits = True
                    await gate.wait()
                    continue
                gate.start_waits = False
                try:
                    item_or_request = await anext(start)
                except StopAsyncIteration:
                    exhausted = True
                    continue
                if isinstance(item_or_request, Request):
                    key = self._admission.slot_key(item_or_request)
                    if self._in_trouble(key):
                        gate.aside.append((key, item_or_request))
                        continue
                yield item_or_request
        finally:
            gate.start_waits = False

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
        bad = (
            slot.bad_share(now) > self._extension.config.error_rate
            or slot.paused_until - now > _LONG_PAUSE
            or all(lane.breaker_open for lane in slot.lanes.values())
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
                history.strip(item_or_request)
                while self._callback_must_wait():
                    gate.held += 1
                    try:
                        await gate.wait()
                    finally:
                        gate.held -= 1
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
            and not _scrapy.scraper_backs_out(extension.crawler.engine)
        )

    def process_spider_exception(self, response: Response, exception: Exception) -> None:
        """Take note of answers that HttpErrorMiddleware drops."""
        if isinstance(exception, HttpError):
            self._extension.accounts.http_error(response)
