"""The retry queue: requests that wait for a time, outside the scheduler."""

from __future__ import annotations

import heapq
import itertools
import logging
import sqlite3
from typing import TYPE_CHECKING

from scrapy_backpressure.clock import Alarm
from scrapy_backpressure.storage.parked import ParkedRequests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy import Request

    from scrapy_backpressure.accounts import Accounts
    from scrapy_backpressure.clock import Clock
    from scrapy_backpressure.storage.codec import Coder
    from scrapy_backpressure.storage.parked import ParkedRow
    from scrapy_backpressure.storage.sqlite import Database

logger = logging.getLogger(__name__)

_BATCH = 200
_MAX_SLEEP = 600.0  # seconds between two looks at the clock
_TRY_AGAIN = 10.0  # seconds after a database that cannot be read


class RetryQueue:
    """Parked requests of one crawl, each with the time (epoch seconds) at which it is due.

    They live in *database*. In memory stay only those that *coder* cannot, or should not, make
    bytes of.

    *books* is told of each request that is due, or that cannot be read back.
    """

    def __init__(self, coder: Coder, database: Database, clock: Clock, books: Accounts) -> None:
        self._coder = coder
        self._spider = coder.spider
        self._clock = clock
        self._books = books
        self._database = database
        self._stored = ParkedRequests(database)
        self._memory: list[tuple[float, int, str, Request]] = []
        self._memory_slots: dict[str, int] = {}
        self._order = itertools.count()
        self._alarm = Alarm(clock.epoch, self.release_due)
        self._schedule()

    def __len__(self) -> int:
        return len(self._stored) + len(self._memory)

    @property
    def persisted(self) -> int:
        """Requests that the next run will find."""
        return len(self._stored) if self._database.persistent else 0

    def slot_count(self, slot: str) -> int:
        """Requests parked for a download slot."""
        return self._stored.slot_count(slot) + self._memory_slots.get(slot, 0)

    def next_due(self) -> float | None:
        """Epoch seconds at which the next request is due; None if nothing is parked."""
        times = [self._memory[0][0]] if self._memory else []
        stored = self._stored.next_due()
        if stored is not None:
            times.append(stored)
        return min(times, default=None)

    def park(self, request: Request, due: float, slot: str) -> None:
        """Keep *request* until *due*."""
        if not self._store(request, due, slot):
            heapq.heappush(self._memory, (due, next(self._order), slot, request))
            self._memory_slots[slot] = self._memory_slots.get(slot, 0) + 1
            self._database.totals.unsaved += 1
        self._alarm.at(min(due, self._clock.epoch() + _MAX_SLEEP))

    def _store(self, request: Request, due: float, slot: str) -> bool:
        data = self._coder.encode(request)
        if data is None:
            return False
        try:
            self._stored.park(data, due=due, slot=slot)
        except (sqlite3.Error, ValueError, OverflowError):  # the last two: no value for SQLite
            logger.exception(
                "Cannot write to the retry queue, so %(request)s stays in memory",
                {"request": request},
                extra={"spider": self._spider},
            )
            return False
        return True

    def _pop_memory(self) -> Request:
        _, _, slot, request = heapq.heappop(self._memory)
        self._database.totals.unsaved -= 1
        self._memory_slots[slot] -= 1
        if not self._memory_slots[slot]:
            del self._memory_slots[slot]
        return request

    def release_due(self) -> None:
        """Give back what is due, some at a time so that the event loop gets its turn."""
        if self._books.closing:
            return  # what is parked stays for the next run, or for the dead letters
        now = self._clock.epoch()
        try:
            # What leaves the queue is in the scheduler, or none of it has happened.
            with self._database.together():
                for request in self._decode(self._stored.pop_due(now, _BATCH)):
                    self._books.release(request)
        except sqlite3.Error:
            logger.exception("Cannot read the retry queue", extra={"spider": self._spider})
            self._alarm.at(now + _TRY_AGAIN)
            return
        for _ in range(_BATCH):
            if not self._memory or self._memory[0][0] > now:
                break
            self._books.release(self._pop_memory())
        self._schedule()

    def _decode(self, batch: Iterable[ParkedRow]) -> Iterator[Request]:
        for row in batch:
            try:
                if not row.is_whole:
                    raise ValueError("its bytes are damaged")
                request = self._coder.decode(row.data)
            except Exception as error:  # whatever a changed spider makes of old data
                self._books.unreadable(error, stays=self._set_aside(row))
            else:
                yield request

    def _set_aside(self, row: ParkedRow) -> bool:
        """Leave *row* for the next run, which may have the spider that can read it."""
        if not self._database.persistent:
            return False
        try:
            self._stored.set_aside(row)
        except sqlite3.Error:
            logger.exception("Cannot write to the retry queue", extra={"spider": self._spider})
            return False
        return True

    def _schedule(self) -> None:
        due = self.next_due()
        if due is not None:
            self._alarm.at(min(due, self._clock.epoch() + _MAX_SLEEP))

    def drain(self) -> Iterator[Request]:
        """Take out everything that would be lost when the crawl closes, or cannot be kept."""
        self._alarm.cancel()
        while self._memory:
            yield self._pop_memory()
        first = self._database.lost_from("parked")
        if first is None:
            return
        try:
            while batch := self._stored.pop_all(_BATCH, first):
                yield from self._decode(batch)
        except sqlite3.Error:
            logger.exception("Cannot read the retry queue", extra={"spider": self._spider})

    def close(self) -> None:
        """Release nothing any more."""
        self._alarm.cancel()
