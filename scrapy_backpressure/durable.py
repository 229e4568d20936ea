"""A scheduler that survives being killed."""

from __future__ import annotations

import heapq
import logging
import sqlite3
from typing import TYPE_CHECKING

from queuelib import queue as queuelib
from scrapy.core.scheduler import BaseScheduler, Scheduler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_backpressure import _scrapy
from scrapy_backpressure.extension import extension_of
from scrapy_backpressure.scheduling import SlotTurns
from scrapy_backpressure.settings import BackpressureSettings
from scrapy_backpressure.storage.codec import is_plain
from scrapy_backpressure.storage.pending import LAST, PendingRequests
from scrapy_backpressure.storage.stock import StockJobdir
from scrapy_backpressure.storage.totals import MOVED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.dupefilters import BaseDupeFilter
    from scrapy.settings import BaseSettings
    from twisted.internet.defer import Deferred

    from scrapy_backpressure.storage.pending import Row

logger = logging.getLogger(__name__)

_BATCH = 200
_TRY_AGAIN = 10.0  # seconds after a database that cannot be read, or written


class DurableScheduler(SlotTurns, BaseScheduler):
    """A SCHEDULER that keeps its requests in SQLite, beside those that are parked.

    It hands out what :class:`~scrapy_backpressure.SlotAwarePriorityQueue` would, in the same
    order. A request that is handed out is not gone: it is leased until its callback has ended and
    all that came of it is stored, and a run that finds leases of one before it, however that one
    ended, sends those requests again. Each page is handled at least once.

    With a JOBDIR all of it is in ``backpressure.sqlite`` there; without one, in a temporary
    database, so that no number of requests needs more than a few MiB of memory. Requests that
    cannot be serialised stay in memory, and go to the dead letters at a stop.

    With Scrapy's default DUPEFILTER_CLASS, what was seen is in the same file; any other one does
    its own work.

    :raises NotConfigured: :class:`~scrapy_backpressure.BackpressureExtension` is not enabled.
    """

    _spider: Spider
    _number = 0
    """Requests so far, those of earlier runs that wait included."""
    _taking_over = False

    def __init__(self, crawler: Crawler) -> None:
        extension = extension_of(crawler, type(self))
        super().__init__(crawler)
        self._crawler = crawler
        self._stats = crawler.stats
        self._books = extension.accounts
        self._database = extension.database
        self._coder = extension.coder
        self._order = _Order(crawler.settings, persistent=self._database.persistent)
        self._store = PendingRequests(self._database)
        self._leases: dict[Request, int] = {}
        self._memory: dict[str, list[tuple[int, int, Request]]] = {}  # heaps, by slot
        self._in_memory = 0
        filter_class = load_object(crawler.settings["DUPEFILTER_CLASS"])
        self._keeps_seen = filter_class is RFPDupeFilter
        self._filter: BaseDupeFilter
        if self._keeps_seen:  # without its file: it only tells of duplicates, as it always does
            self._filter = RFPDupeFilter(debug=crawler.settings.getbool("DUPEFILTER_DEBUG"))
        else:
            self._filter = build_from_crawler(filter_class, crawler)
        self._unsaved: set[bytes] = set()
        """Fingerprints of requests in memory. A killed run takes both with it."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> BaseScheduler:  # type: ignore[override]
        """This scheduler, or Scrapy's own while BACKPRESSURE_ENABLED is False."""
        if BackpressureSettings.from_settings(crawler.settings).enabled:
            return cls(crawler)
        return Scheduler.from_crawler(crawler)

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Take over what an earlier run left.

        :raises RuntimeError: it is Scrapy's and cannot be read; the message says what to do.
        """
        self._spider = spider
        self._number = self._store.last_id
        assert self._extension is not None
        if self._extension.jobdir:
            self._take_over(StockJobdir(self._crawler, self._extension.jobdir))
        self._books.ends = {}
        _scrapy.watch_done(self._crawler.engine, self._done)
        self._database.counted(self._line_up)
        if self._store:
            logger.info(
                "Resuming crawl (%(queuesize)d requests scheduled)",
                {"queuesize": len(self._store)},
                extra={"spider": spider},
            )
        return self._filter.open()

    def close(self, reason: str) -> Deferred[None] | None:
        """Write everything down."""
        self._database.write()
        return self._filter.close(reason)

    def _line_up(self) -> None:
        for slot in self._store.slots:
            self._add(slot)

    # -- in ----------------------------------------------------------------

    def enqueue_request(self, request: Request) -> bool:
        """Keep *request*; False if the filter has seen it."""
        fingerprint = None
        if not request.dont_filter:
            if self._keeps_seen:
                fingerprint = self._crawler.request_fingerprinter.fingerprint(request)
                seen = self._has_seen(fingerprint)
            else:
                seen = self._filter.request_seen(request)
            if seen:
                self._filter.log(request, self._spider)
                return False
        slot = self._slot_key(request)
        self._number += 1
        rank = self._order.rank(request, self._number)
        kept = self._keep(request, slot, self._number, rank, fingerprint)
        place = "disk" if kept else "memory"
        self._stats.inc_value(f"scheduler/enqueued/{place}")
        self._stats.inc_value("scheduler/enqueued")
        return True

    def _has_seen(self, fingerprint: bytes) -> bool:
        try:
            return fingerprint in self._unsaved or self._store.has_seen(fingerprint)
        except sqlite3.Error:
            logger.exception(
                "Cannot read what was seen, so a page may be fetched twice",
                extra={"spider": self._spider},
            )
            return False

    def _keep(
        self,
        request: Request,
        slot: str,
        number: int,
        rank: int,
        fingerprint: bytes | None = None,
    ) -> bool:
        """Store *request*, or keep it in memory; whether it is stored."""
        try:
            stored = self._store_one(request, number, slot, rank, fingerprint)
        except (sqlite3.Error, ValueError, OverflowError):  # the last two: no value for SQLite
            if self._taking_over:
                raise
            logger.exception(
                "Cannot write to the queue, so %(request)s stays in memory",
                {"request": request},
                extra={"spider": self._spider},
            )
            stored = False
        if not stored:
            entry = (-request.priority, rank, request)
            heapq.heappush(self._memory.setdefault(slot, []), entry)
            self._in_memory += 1
            self._database.totals.unsaved += 1
            if fingerprint is not None:
                self._unsaved.add(fingerprint)
        self._add(slot)
        return stored

    def _store_one(
        self, request: Request, number: int, slot: str, rank: int, fingerprint: bytes | None
    ) -> bool:
        data = self._coder.encode(request)
        if data is None:
            if self._coder.persistent:
                self._stats.inc_value("scheduler/unserializable")
            return False
        self._store.push(
            number,
            data,
            slot=slot,
            urgency=-request.priority,
            rank=rank,
            fingerprint=fingerprint,
            # One that shares objects with the spider must not depend on how long it waited.
            keep=request if is_plain(request) else None,
        )
        return True

    # -- out ---------------------------------------------------------------

    def next_request(self) -> Request | None:
        """The next request that may be sent now; None if there is none."""
        request = None if self._database.overfull else self._next()
        if request is not None:
            place = "disk" if request in self._leases else "memory"
            self._stats.inc_value(f"scheduler/dequeued/{place}")
            self._stats.inc_value("scheduler/dequeued")
        return request

    def _pop_from(self, slot: str) -> Request | None:
        request = None
        memory = self._memory.get(slot)
        try:
            row = self._store.lease(slot, memory[0][:2] if memory else LAST)
        except sqlite3.Error:
            logger.exception("Cannot read the queue", extra={"spider": self._spider})
            self._rotation.sleep(slot, self._now() + _TRY_AGAIN)
            return None
        if row is not None:
            request = self._leased(row)
        elif memory:
            request = self._pop_memory(slot)
        if not self.slot_length(slot):
            self._rotation.discard(slot)
        return request

    def _leased(self, row: Row) -> Request | None:
        try:
            if not row.is_whole:
                raise ValueError("its bytes are damaged")
            request: Request = row.kept or self._coder.decode(row.data)
        except Exception as error:  # whatever a changed spider makes of old data
            # It stays leased: the next run may have the spider that can read it.
            self._books.unreadable(error, queued=True, stays=self._database.persistent)
            return None
        self._leases[request] = row.id
        return request

    def _pop_memory(self, slot: str) -> Request:
        memory = self._memory[slot]
        request = heapq.heappop(memory)[2]
        self._in_memory -= 1
        if not memory:
            del self._memory[slot]
        return request

    def _done(self, request: Request) -> None:
        """The engine is done with *request*, and all that came of it is here."""
        number = self._leases.pop(request, None)
        end = self._books.end_of(request)
        try:
            if number is not None:
                self._store.finish(number, end)
            elif end is not None:
                self._database.totals.unsaved -= 1
                self._database.totals.ended_outside(end)
            # What goes on as another request is not done: that one may be in memory as well.
            if self._unsaved and end != MOVED:
                fingerprint = self._crawler.request_fingerprinter.fingerprint(request)
                if fingerprint in self._unsaved:
                    self._store.see([fingerprint])
                    self._unsaved.discard(fingerprint)
        except Exception:  # also from a fingerprinter of the user's, at a URL that is none
            logger.exception(
                "Cannot note that %(request)s is done",
                {"request": request},
                extra={"spider": self._spider},
            )

    def drain(self) -> Iterator[Request]:
        """Take out everything that would be lost when the crawl closes, or cannot be kept."""
        while self._memory:
            self._database.totals.unsaved -= 1
            yield self._pop_memory(next(iter(self._memory)))
        first = self._database.lost_from("requests")
        if first is None:
            return
        try:
            while batch := self._store.pop_all(_BATCH, first):
                for data in batch:
                    try:
                        request = self._coder.decode(data)
                    except Exception as error:
                        self._books.unreadable(error, queued=True)
                    else:
                        yield request
        except sqlite3.Error:
            logger.exception("Cannot read the queue", extra={"spider": self._spider})

    # -- how many ----------------------------------------------------------

    def has_pending_requests(self) -> bool:
        """Whether anything waits here. What is leased does not."""
        return len(self) > 0

    def slot_length(self, key: str) -> int:
        """Requests of the slot *key* that wait here."""
        memory = self._memory.get(key)
        return self._store.slots.get(key, 0) + (len(memory) if memory else 0)

    def __len__(self) -> int:
        return len(self._store) + self._in_memory

    # -- a JOBDIR of Scrapy's own scheduler --------------------------------

    def _take_over(self, stock: StockJobdir) -> None:
        fingerprints = self._keeps_seen and stock.has_fingerprints
        if not stock.has_requests and not fingerprints:
            return
        before = self._number
        totals = self._database.totals
        self._taking_over = True
        try:
            with self._database.all_or_nothing():
                if fingerprints:
                    self._store.see(sorted(stock.fingerprints()))
                # A kill may have come between the commit and the renaming.
                known = stock.written == totals.taken_over != 0
                if stock.has_requests and not known:
                    self._take_over_requests(stock)
                    totals.taken_over = stock.written
        except Exception as error:
            raise RuntimeError(
                f"What Scrapy's scheduler left in JOBDIR {stock.folder} cannot be taken over "
                f"({type(error).__name__}: {error}). Finish that crawl with SCHEDULER = "
                '"scrapy.core.scheduler.Scheduler", or use another JOBDIR'
            ) from error
        finally:
            self._taking_over = False
        moved = stock.set_aside(with_fingerprints=self._keeps_seen)
        logger.info(
            "Took over %(count)d requests that Scrapy's scheduler had left; its files are now "
            "%(moved)s",
            {"count": self._number - before, "moved": ", ".join(map(str, moved))},
            extra={"spider": self._spider},
        )

    def _take_over_requests(self, stock: StockJobdir) -> None:
        for queue in stock.queues():
            base, left = self._number, len(queue)
            while (request := queue.pop()) is not None:
                self._number += 1
                # As they come, the first is the oldest of a queue, or the youngest.
                age = self._number if self._order.is_fifo(request) else base + left
                left -= 1
                rank = self._order.rank(request, age)
                self._keep(request, self._slot_key(request), self._number, rank)
            queue.close()


class _Order:
    """Where a request stands among those of its priority, as Scrapy's queue classes have it.

    By default the youngest goes first, and start requests after all others, the oldest first.
    """

    _FIFO = tuple(
        getattr(queuelib, name)
        for name in ("FifoDiskQueue", "FifoSQLiteQueue", "FifoMemoryQueue")
        if hasattr(queuelib, name)
    )
    _FAR = 2**60
    """More requests than any crawl has."""

    def __init__(self, settings: BaseSettings, *, persistent: bool) -> None:
        kind = "DISK" if persistent else "MEMORY"
        start = settings[f"SCHEDULER_START_{kind}_QUEUE"]
        self._start_apart = bool(start)
        self._start_fifo = bool(start) and issubclass(load_object(start), self._FIFO)
        queue = load_object(settings[f"SCHEDULER_{kind}_QUEUE"])
        self._fifo = issubclass(queue, self._FIFO)

    def _is_start(self, request: Request) -> bool:
        return self._start_apart and bool(request.meta.get("is_start_request", False))

    def is_fifo(self, request: Request) -> bool:
        """Whether the oldest of its kind goes first."""
        return self._start_fifo if self._is_start(request) else self._fifo

    def rank(self, request: Request, number: int) -> int:
        """The rank of the request that came as the *number*-th; the smallest one goes first."""
        place = number if self.is_fifo(request) else -number
        return place + (self._FAR if self._is_start(request) else -self._FAR)
