"""Who may be sent now: the slots of one crawl, their lanes, and the requests in flight.

Requests of the scheduler are admitted when they are popped, where waiting costs nothing.
Requests that come to the downloader by another way (media pipelines, robots.txt, a scheduler
that cannot be steered) wait in :meth:`Admission.turn`.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.defer import Deferred

from scrapy_backpressure import _scrapy, history
from scrapy_backpressure.clock import Alarm, Sleepers
from scrapy_backpressure.control.backoff import RetryBudget
from scrapy_backpressure.control.lane import Lane
from scrapy_backpressure.control.outcome import Outcome
from scrapy_backpressure.control.places import Places
from scrapy_backpressure.slots import Flight, Slot, Waiter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from scrapy import Request
    from scrapy.core.downloader import Downloader
    from scrapy.crawler import Crawler

    from scrapy_backpressure.clock import Clock
    from scrapy_backpressure.control.limiter import Caps
    from scrapy_backpressure.control.outcome import Verdict
    from scrapy_backpressure.settings import BackpressureSettings

_IDLE_SECONDS = 600.0  # after which a slot is forgotten
_MAX_SLOTS = 20_000
_MAX_SEEN = 100_000  # limits and pauses of sites whose slots were forgotten, about 300 bytes each
_TURN_LASTS = 0.1
"""Seconds within which a place that the scheduler took for a request has to be used."""


def valid_slot_key(slot_key: Callable[[Request], Any], request: Request) -> str:
    """What *slot_key*, the downloader's, says of *request*.

    :raises ValueError: it says nothing that a queue can use; the message names what the user set.
    """
    try:
        key = slot_key(request)
    except Exception as error:  # a URL that urllib refuses
        raise ValueError(f"no download slot can be told of {request}: {error}") from error
    if not isinstance(key, str):
        raise ValueError(f"meta key download_slot accepts text; got {key!r}")
    return key


class SlotQueue(Protocol):
    """A queue that waits for slots."""

    def set_load(self, key: str, load: int) -> None: ...

    def wake_slot(self, key: str) -> None: ...

    def slot_length(self, key: str) -> int: ...


def proxy_of(request: Request) -> str | None:
    """The request's proxy as HttpProxyMiddleware leaves it, without credentials.

    None for what is no text: then whoever has to use it says so.
    """
    proxy = request.meta.get("proxy")
    if not proxy or not isinstance(proxy, str):
        return None
    # As HttpProxyMiddleware takes it apart: a password may hold what urllib takes for an address.
    scheme, separator, rest = proxy.partition("://")
    if not separator:
        scheme, rest = "", proxy
    return f"{scheme}{separator}{rest.rpartition('@')[2].partition('/')[0]}"


class Admission:
    """The slots of one crawl. Times are monotonic seconds."""

    def __init__(self, crawler: Crawler, config: BackpressureSettings, clock: Clock) -> None:
        self._crawler = crawler
        self._config = config
        self._clock = clock
        self._rng = random.Random()
        self._alarm = Alarm(clock.now, self._on_alarm)
        self._places = Places(crawler.settings.getint("CONCURRENT_REQUESTS"))
        self._waiting: dict[str, Slot] = {}
        self._sleepers = Sleepers(clock.now)
        self.slots: OrderedDict[str, Slot] = OrderedDict()
        self._seen: OrderedDict[tuple[str, str | None], tuple[Caps | None, float]] = OrderedDict()
        self.flights: dict[Request, Flight] = {}
        self.queues: list[SlotQueue] = []
        self._found_ready: tuple[Lane | None, float] = (None, 0.0)  # asked again at once
        self.nowhere = Slot("", _scrapy.SlotLimits(1, 0.0, 0.0), RetryBudget(0.0, 0.0))
        """The slot of requests that cannot be sent, of which none can be told."""
        self.closing = False
        self.learning = False
        """Whether ConcurrencyMiddleware says of each answer what it means. If it does not, lanes
        allow what the settings allow."""

    # -- slots -------------------------------------------------------------

    @cached_property
    def _downloader(self) -> Downloader:
        return self._crawler.engine.downloader

    def slot_key(self, request: Request) -> str:
        """Key of the request's download slot; the empty one where none can be told."""
        try:
            return valid_slot_key(self._downloader.get_slot_key, request)
        except ValueError:
            return ""

    def slot_of(self, request: Request, key: str | None = None, *, now: float) -> Slot:
        """The request's slot, made if needed."""
        if key is None:
            key = self.slot_key(request)
        slot = self.slots.get(key)
        if slot is None:
            limits = _scrapy.slot_limits(self._downloader, request)
            slot = Slot(key, limits, RetryBudget(self._config.retry_budget, now))
            self.slots[key] = slot
            self._add_lane(slot, None, now)
            self._mirror(slot)
        else:
            self.slots.move_to_end(key)
        slot.used_at = now
        return slot

    def _add_lane(self, slot: Slot, proxy: str | None, now: float) -> Lane:
        # The direct lane of a slot that turns out to use proxies only would count as room.
        if None in slot.lanes and not slot.lanes[None].in_flight and proxy is not None:
            del slot.lanes[None]
        ceiling = slot.limits.concurrency
        seen, asleep_until = self._seen.pop((slot.key, proxy), (None, 0.0))
        lane = slot.lanes[proxy] = Lane(
            ceiling=ceiling,
            start=min(self._config.start_concurrency, ceiling) if self.learning else ceiling,
            minimum=min(self._config.min_concurrency, ceiling),
            now=now,
            rng=self._rng,
            timeout=self._crawler.settings.getfloat("DOWNLOAD_TIMEOUT") or math.inf,
            seen=seen,
            most_unknown=self._places.most_unknown,
        )
        lane.paused_until = asleep_until
        return lane

    def lane_of(self, slot: Slot, proxy: str | None) -> Lane:
        """The lane to *slot* through *proxy*, made if needed."""
        lane = slot.lanes.get(proxy)
        return self._add_lane(slot, proxy, self._clock.now()) if lane is None else lane

    def queued(self, key: str) -> int:
        """Requests of a slot that wait in the steered queues."""
        return sum(queue.slot_length(key) for queue in self.queues)

    # -- admission ---------------------------------------------------------

    def in_flight(self, key: str) -> int:
        """Requests of a slot that have a place."""
        slot = self.slots.get(key)
        return 0 if slot is None else slot.in_flight

    def rests_until(self, key: str) -> float:
        """Until when a slot gives way to others."""
        slot = self.slots.get(key)
        return 0.0 if slot is None else slot.rests_until

    def hopeless(self, slot: Slot, now: float) -> str | None:
        """Why nothing can be expected of *slot* in time; None if something can."""
        lanes = slot.lanes.values()
        if all(lane.closed_until - now > self._config.longest_wait for lane in lanes):
            return "max_pause"
        if all(lane.stalled_for > self._config.stall_timeout for lane in lanes):
            return "stalled"
        return None

    def turn_at(self, slot: Slot, lane: Lane, now: float) -> float:
        """When one more request may go through *lane*: up to *now*, a time, or ``inf``."""
        if slot.in_flight >= slot.limits.concurrency:
            return math.inf
        return max(lane.ready_at(now), slot.next_at)

    def ready_at(self, key: str, now: float) -> float:
        """When the scheduler may hand out a request of the slot *key*.

        Up to *now*: at once. ``inf``: when one in flight has ended.
        """
        slot = self.slots.get(key)
        if slot is None:
            return now
        lanes: Collection[Lane] = slot.lanes.values()
        if slot.waiters:  # nothing overtakes them
            awaited = {waiter.lane for waiter in slot.waiters} if len(lanes) > 1 else lanes
            lanes = [lane for lane in lanes if lane not in awaited]
        if len(lanes) == 1:  # nearly always, and asked for each request
            (lane,) = lanes
            ready = self.turn_at(slot, lane, now)
            if ready <= now:
                self._found_ready = (lane, now)
        else:
            ready = min((self.turn_at(slot, lane, now) for lane in lanes), default=math.inf)
        if ready > now and self.hopeless(slot, now):
            return now
        return ready

    def hand_out(self, request: Request, key: str, now: float) -> Request:
        """The scheduler hands *request* out, or a copy of it: take a place for it."""
        if request in self.flights:  # the same object, yielded twice, is under way
            request = request.copy()
        slot = self.slot_of(request, key, now=now)
        flight = self.flights[request] = Flight(request, slot, scheduled=True)
        if history.HISTORY not in request.meta:
            slot.budget.first_attempt()
        lane = slot.lanes.get(proxy_of(request))
        if lane is None:
            lane = min(slot.lanes.values(), key=lambda lane: lane.ready_at(now))
        if self._found_ready == (lane, now) or self.turn_at(slot, lane, now) <= now:
            self._found_ready = (None, 0.0)
            self._reserve(flight, lane, now)
        else:  # it was another lane of the slot that is ready: it waits in the middleware
            flight.hopeless = self.hopeless(slot, now)
        return request

    def _reserve(self, flight: Flight, lane: Lane, now: float) -> None:
        slot = flight.slot
        flight.lane = lane
        flight.ticket = lane.sent(now)
        flight.reserved_at = now
        self._count(slot, 1)
        self._mirror(slot)
        if flight.scheduled:
            slot.unsent.add(flight)
        slot.delay = _scrapy.slot_delay(self._downloader, slot.key, slot.limits.delay)
        if slot.delay:
            spread = slot.limits.jitter
            factor = 1.0 + self._rng.uniform(-spread, spread) if spread else 1.0
            before, slot.next_at = slot.next_at, now + slot.delay * max(0.0, factor)
            flight.delayed = (before, slot.next_at)

    def lost_its_turn(self, flight: Flight, now: float) -> bool:
        """Whether the place of *flight* was for an earlier time, or another slot or proxy.

        A middleware held it up (for robots.txt, say). Places that were given out one by one
        would be used in a burst, or although the site has asked for a pause since.
        """
        lane, slot = flight.lane, flight.slot
        assert lane is not None
        return (
            now - flight.reserved_at > _TURN_LASTS
            or lane.paused_until > now
            or lane is not slot.lanes.get(proxy_of(flight.request))
            or slot.key != self.slot_key(flight.request)
        )

    def departed(self, flight: Flight, now: float) -> None:
        """*flight* goes to the site now."""
        slot = flight.slot
        flight.sent_at = now
        slot.unsent.discard(flight)
        _scrapy.assign_slot(flight.request, slot.key)
        if slot.delay:
            _scrapy.waive_delay(self._downloader, slot.key, slot.delay)

    async def turn(self, flight: Flight, lane: Lane) -> None:
        """Wait until *flight* may go through *lane*, and take a place for it."""
        slot = flight.slot
        now = self._clock.now()
        if not slot.waiters and self.turn_at(slot, lane, now) <= now:
            self._reserve(flight, lane, now)
            return
        waiter = Waiter(flight, lane, Deferred())
        slot.waiters.append(waiter)
        self._waiting[slot.key] = slot
        self._serve(slot)
        while not flight.scheduled and slot.unsent and waiter in slot.waiters:
            # What has a place and is not sent may wait for this very answer (robots.txt), so it
            # gives way; it takes its turn again when it comes by.
            self.release(slot.unsent.pop())
        try:
            await maybe_deferred_to_future(waiter.turn)
        finally:
            if waiter in slot.waiters:  # cancelled
                slot.waiters.remove(waiter)
                self._serve(slot)
                _scrapy.wake(self._crawler.engine)

    def _serve(self, slot: Slot) -> None:
        now = self._clock.now()
        blocked: set[Lane] = set()
        while not blocked.issuperset(slot.lanes.values()):
            if not (waiter := next((w for w in slot.waiters if w.lane not in blocked), None)):
                break
            at = self.turn_at(slot, waiter.lane, now)
            if at > now and not self.closing and not self.hopeless(slot, now):
                if at != math.inf:
                    self._alarm.at(at)
                blocked.add(waiter.lane)
                continue
            slot.waiters.remove(waiter)
            if at <= now:
                self._reserve(waiter.flight, waiter.lane, now)
            waiter.turn.callback(None)
        if not slot.waiters:
            self._waiting.pop(slot.key, None)
            self._wake_queues(slot)

    async def sleep_until(self, when: float) -> None:
        """Wait until *when*, or until the crawl is closed."""
        if not self.closing:
            await self._sleepers.sleep_until(when)

    def wake_at(self, when: float) -> None:
        """Have the engine ask the scheduler again at *when*."""
        self._alarm.at(when)

    def _on_alarm(self) -> None:
        for slot in list(self._waiting.values()):
            self._serve(slot)
        _scrapy.wake(self._crawler.engine)

    # -- the end of a flight -----------------------------------------------

    def learn(self, flight: Flight, verdict: Verdict, now: float) -> Verdict:
        """The answer to *flight* is there: its lane learns from it, its place is free.

        What the answer means in the light of others: a failure may turn out to be throttling.
        """
        slot = flight.slot
        if verdict.outcome is not Outcome.PROXY_FAILED:  # says nothing of the site
            slot.answered(now, bad=verdict.outcome.is_bad)
        if flight.lane is not None and flight.ticket is not None:
            sent_at = now if flight.sent_at is None else flight.sent_at
            latency = now - sent_at
            slot.rests_until = now + self._places.rest(latency, slot.in_flight)
            outcome = flight.lane.finished(flight.ticket, now, verdict, latency=latency)
            if outcome is not verdict.outcome:
                verdict = replace(verdict, outcome=outcome)
            self._free(flight)
            if verdict.outcome.is_bad:  # what has grown is shown when it is used
                self._mirror(slot)
        return verdict

    def release(self, flight: Flight) -> None:
        """*flight* ends without having said anything: its place is free, nothing is learned."""
        if flight.lane is not None and flight.ticket is not None:
            flight.lane.cancel(flight.ticket, self._clock.now())
            before, after = flight.delayed
            if flight.sent_at is None and flight.slot.next_at == after:
                flight.slot.next_at = before  # the site saw nothing, so it needs no delay
            self._free(flight)

    def _free(self, flight: Flight) -> None:
        slot = flight.slot
        flight.ticket = None
        slot.unsent.discard(flight)
        self._count(slot, -1)
        if slot.waiters:
            self._serve(slot)
        self._wake_queues(slot)  # they may wait for another lane than the waiters do

    def _count(self, slot: Slot, change: int) -> None:
        slot.in_flight += change
        for queue in self.queues:
            queue.set_load(slot.key, slot.in_flight)

    def _wake_queues(self, slot: Slot) -> None:
        for queue in self.queues:
            queue.wake_slot(slot.key)

    def _mirror(self, slot: Slot) -> None:
        # Never less than was let go: a request that knocks would wait behind those that hang.
        shown = max(slot.concurrency, slot.in_flight)
        _scrapy.mirror_concurrency(self._downloader, slot.key, shown)

    # -- housekeeping ------------------------------------------------------

    def tick(self) -> None:
        """Once per interval: forget idle slots, find lost flights, notice a closing engine."""
        now = self._clock.now()
        active = self._downloader.active
        for request in [r for r in self.flights if r not in active]:
            self.release(self.flights.pop(request))  # a scheduler dropped it after popping
        if _scrapy.is_closing(self._crawler.engine):
            self.close()
        for slot in list(self._waiting.values()):
            self._serve(slot)
        for _ in range(len(self.slots)):
            slot = next(iter(self.slots.values()))
            crowded = len(self.slots) > _MAX_SLOTS
            if not crowded and now - slot.used_at <= _IDLE_SECONDS:
                break
            if slot.in_flight or slot.waiters or (slot.paused_until > now and not crowded):
                slot.used_at = now
                self.slots.move_to_end(slot.key)
            else:
                self._forget(slot, now)

    def _forget(self, slot: Slot, now: float) -> None:
        """Drop an idle slot, and keep the little that a new one to the same site starts from."""
        del self.slots[slot.key]
        # A new one has to find there what the user allows.
        _scrapy.mirror_concurrency(self._downloader, slot.key, slot.limits.concurrency)
        for proxy, lane in slot.lanes.items():
            learned, ready = lane.learned, lane.ready_at(now)
            if learned is not None or now < ready < math.inf:
                self._seen[slot.key, proxy] = learned, ready
        while len(self._seen) > _MAX_SEEN:
            self._seen.popitem(last=False)

    def close(self) -> None:
        """Let everything go that waits."""
        self.closing = True
        self._alarm.cancel()
        self._sleepers.rouse()
