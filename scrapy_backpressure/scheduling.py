"""Queues that hand out only what can be sent now."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy.pqueues import DownloaderAwarePriorityQueue

from scrapy_backpressure import _scrapy
from scrapy_backpressure.admission import valid_slot_key
from scrapy_backpressure.control.rotation import Rotation
from scrapy_backpressure.extension import BackpressureExtension

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy import Request

    from scrapy_backpressure.admission import Admission


class SlotTurns:
    """Requests by download slot, of which the one is handed out that may be sent now.

    The slot with the fewest requests in flight comes first; equals take turns. A slot that is
    paused, or that has as many requests in flight as its site bears, is passed over. One that
    answers far more slowly than the others gives way to them for a while, since what it has in
    flight holds places for long.
    """

    def __init__(self, crawler: Any) -> None:
        self._downloader_slot_key = crawler.engine.downloader.get_slot_key
        self._rotation: Rotation[str] = Rotation()
        self._extension = extension = crawler.get_extension(BackpressureExtension)
        self._admission: Admission | None = None if extension is None else extension.admission
        if extension is not None:
            extension.admission.queues.append(self)
            self._now = extension.clock.now
        else:
            self._now = lambda: 0.0

    def _slot_key(self, request: Request) -> str:
        """The slot of a request that is to wait here.

        :raises ValueError: nothing that the user has put into it names one, or it has no place in
            the order of priorities.
        """
        priority: Any = request.priority
        if not isinstance(priority, int | float) or priority != priority:
            raise ValueError(f"the priority of a request accepts an integer; got {priority!r}")
        return valid_slot_key(self._downloader_slot_key, request)

    def slot_length(self, key: str) -> int:
        """Requests of the slot *key* that wait here."""
        raise NotImplementedError

    def _pop_from(self, slot: str) -> Request | None:
        """Take out the next request of *slot*, and discard the slot if that was its last.

        None if there was none after all; then the slot has fewer of them, or sleeps.
        """
        raise NotImplementedError

    def _add(self, slot: str) -> None:
        if slot not in self._rotation:
            admission = self._admission
            self._rotation.add(slot, 0 if admission is None else admission.in_flight(slot))

    def _next(self) -> Request | None:
        """The next request that may be sent now; None if there is none."""
        now = self._now()
        while (slot := self._rotation.next(now)) is not None:
            if self._admission is not None:
                ready = self._admission.ready_at(slot, now)
                if ready > now:
                    self._rotation.sleep(slot, ready)
                    continue
                rests_until = self._admission.rests_until(slot)
                if rests_until > now and not self._rotation.rests(slot):
                    self._rotation.rest(slot, rests_until)
                    continue
            request = self._pop_from(slot)
            if request is None:
                continue
            if self._admission is None:
                return request
            try:
                return self._admission.hand_out(request, slot, now)
            except Exception as error:  # at limits of the slot that are none, say
                unqueued = self._extension.accounts.unqueued
                unqueued.keep(request, error)
                first: Request | None = unqueued.pop()
                return first
        if self._admission is not None:
            if (wake := self._rotation.next_wake()) is not None:
                self._admission.wake_at(wake)
            self._extension.progressed()
        return None

    def set_load(self, key: str, load: int) -> None:
        """So many requests of the slot *key* are in flight."""
        self._rotation.set_load(key, load)

    def wake_slot(self, key: str) -> None:
        """A place of the slot *key* became free."""
        self._rotation.wake(key)


class SlotAwarePriorityQueue(SlotTurns, DownloaderAwarePriorityQueue):
    """A SCHEDULER_PRIORITY_QUEUE that knows what each download slot can bear.

    The slot with the fewest requests in flight comes first; equals take turns. A slot that is
    paused, or that has as many requests in flight as its site bears, is passed over: its requests
    stay here, hold no place of CONCURRENT_REQUESTS, and cost nothing while they wait. A slot that
    answers far more slowly than the others gives way to them for a while, since what it has in
    flight holds places for long. Within a slot, order is that of Scrapy's own queue.

    Disk state (JOBDIR) has the shape of Scrapy's
    :class:`~scrapy.pqueues.DownloaderAwarePriorityQueue`, so that either can resume the other's.
    Without :class:`~scrapy_backpressure.BackpressureExtension` it only lets slots take turns.
    """

    def __init__(self, crawler: Any, *args: Any, **kwargs: Any) -> None:
        DownloaderAwarePriorityQueue.__init__(self, crawler, *args, **kwargs)
        SlotTurns.__init__(self, crawler)
        self._length = sum(len(queue) for queue in self.pqueues.values())
        for slot in self.pqueues:
            self._add(slot)

    def push(self, request: Request) -> None:
        slot = self._slot_key(request)
        if slot not in self.pqueues:
            self.pqueues[slot] = self.pqfactory(slot)
        self.pqueues[slot].push(request)  # a request that cannot be serialised raises here
        self._add(slot)
        self._length += 1

    def pop(self) -> Request | None:
        """The next request that may be sent now; None if there is none."""
        return self._next()

    def _pop_from(self, slot: str) -> Request | None:
        queue = self.pqueues[slot]
        request = queue.pop()
        if request is not None:
            self._length -= 1
        if request is None or not len(queue):
            # A queue that gives nothing although it counts something has lost it on disk.
            self._length -= len(queue)
            self._forget(slot)
        return request

    def _forget(self, slot: str) -> None:
        self._rotation.discard(slot)
        self.pqueues.pop(slot).close()
        if self.key:
            with suppress(OSError):  # not empty: Scrapy's queue left a file in it
                _scrapy.slot_folder(self.key, slot).rmdir()

    def peek(self) -> Request | None:
        """The request that :meth:`pop` would return, left where it is.

        :raises NotImplementedError: the underlying queue class cannot peek.
        """
        now = self._now()
        for slot in self._rotation.ready(now):
            if self._admission is None or self._admission.ready_at(slot, now) <= now:
                return self.pqueues[slot].peek()
        return None

    def drain(self) -> Iterator[Request]:
        """Take out everything that would be lost when the crawl closes: what is in memory."""
        if self.key:
            return
        for slot in list(self.pqueues):
            while slot in self.pqueues:
                request = self._pop_from(slot)
                if request is not None:
                    yield request

    def slot_length(self, key: str) -> int:
        """Requests of the slot *key* in this queue."""
        queue = self.pqueues.get(key)
        return 0 if queue is None else len(queue)

    def __len__(self) -> int:
        return self._length
