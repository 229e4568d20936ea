"""The crawl explains itself: what binds it, in stats, in a line a minute, and at its end."""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import TYPE_CHECKING

from scrapy_backpressure import _scrapy

if TYPE_CHECKING:
    from scrapy_backpressure.extension import BackpressureExtension
    from scrapy_backpressure.ledger import Ledger
    from scrapy_backpressure.slots import Slot

logger = logging.getLogger(__name__)

_NAMED = 3  # sites that a line names
_SETTLED = 60.0
"""Seconds after which a QUEUE_HIGH that sizes itself is worth a warning."""
_WARN_SHARE = 0.8
"""Share of QUEUE_HIGH from which the first warning is due."""
_FULL_SAMPLES = 120
"""Samples, of which more than _FULL_SHARE have to find the gate closed for the second."""
_FULL_SHARE = 0.5


class Reporter:
    """Reads one crawl's state; changes nothing but stats."""

    def __init__(self, extension: BackpressureExtension) -> None:
        self._extension = extension
        self._crawler = extension.crawler
        self._opened_at = self._logged_at = 0.0
        self._logged_answers = 0
        self._warned_level = False
        self._warned_full = False
        self._held: deque[bool] = deque(maxlen=_FULL_SAMPLES)

    def opened(self) -> None:
        """Start counting."""
        self._opened_at = self._logged_at = self._extension.clock.now()

    def sample(self, now: float) -> None:
        """Take the gauges; log what is due."""
        extension = self._extension
        depth = extension.depth()
        self._gauges(depth)
        self._warn(depth)
        if now - self._logged_at >= extension.config.log_interval:
            answers = extension.accounts.answers
            rate = (answers - self._logged_answers) / (now - self._logged_at)
            self._logged_at, self._logged_answers = now, answers
            logger.info(
                "%(binding)s. %(rate).1f answers/s, %(depth)d open (start() waits at %(high)d), "
                "%(parked)d parked, %(letters)d dead letters",
                {
                    "binding": self.binding(now),
                    "rate": rate,
                    "depth": depth,
                    "high": extension.queue_mark.high,
                    "parked": len(extension.retry_queue),
                    "letters": extension.accounts.ledger.dead.total(),
                },
                extra={"spider": self._crawler.spider},
            )

    def binding(self, now: float) -> str:
        """What holds the crawl back now, in words."""
        extension, engine = self._extension, self._crawler.engine
        if _scrapy.scraper_backs_out(engine):
            return (
                "Callbacks bind: responses wait for callbacks and pipelines "
                "(SCRAPER_SLOT_MAX_ACTIVE_SIZE)"
            )
        if engine.downloader.needs_backout():
            return f"CONCURRENT_REQUESTS binds ({engine.downloader.total_concurrency} at once)"
        if extension.accounts.pending:
            return self._sites(now)
        if len(extension.retry_queue) and not engine.downloader.active:
            return "Nothing to do but to wait for parked retries"
        if not _scrapy.start_is_exhausted(engine):
            if extension.gate.closed:
                return f"The start gate binds ({', '.join(sorted(extension.gate.reasons))})"
            return "start() binds: the queue is empty"
        return "Nothing binds: the queue is empty"

    def _sites(self, now: float) -> str:
        admission = self._extension.admission
        # What does not come from a queue of ours waits in its slot.
        waiting = {
            slot: admission.queued(slot.key) + len(slot.waiters)
            for slot in admission.slots.values()
        }
        queued = sorted(
            (slot for slot, count in waiting.items() if count),
            key=lambda slot: waiting[slot],
            reverse=True,
        )
        if not queued:
            return "Nothing binds"
        states = "; ".join(f"{slot.key} {self._state(slot, now)}" for slot in queued[:_NAMED])
        if len(queued) == 1:
            return f"The site binds: {states}"
        more = f"; and {len(queued) - _NAMED} more" if len(queued) > _NAMED else ""
        return f"{len(queued)} sites bind: {states}{more}"

    def _state(self, slot: Slot, now: float) -> str:
        if all(lane.breaker_open for lane in slot.lanes.values()):
            return "is failing; one probe at a time"
        if slot.paused_until > now:
            return f"is left alone for {math.ceil(slot.paused_until - now)} s more"
        if slot.next_at > now and slot.in_flight < slot.concurrency:
            return f"gets one request every {slot.delay:g} s (DOWNLOAD_DELAY)"
        if slot.concurrency == slot.limits.concurrency:
            return f"gets {slot.concurrency} at once (your setting)"
        if not any(lane.found_limit for lane in slot.lanes.values()):
            return f"is tried with {slot.concurrency} at once, no limit found yet"
        rate = sum(lane.rate for lane in slot.lanes.values())
        pace = f", {rate:.3g}/s" if rate != math.inf else ""
        return f"bears {slot.concurrency} at once{pace}"

    def _gauges(self, depth: int) -> None:
        extension, stats = self._extension, self._crawler.stats
        stats.set_value("backpressure/queue/depth", depth)
        stats.set_value("backpressure/queue/depth_max", extension.depth_max)
        stats.set_value("backpressure/queue/high", extension.queue_mark.high)
        stats.set_value("backpressure/retry_queue/size", len(extension.retry_queue))
        stats.max_value("backpressure/retry_queue/size_max", len(extension.retry_queue))
        stats.set_value("backpressure/slots", len(extension.admission.slots))
        stats.set_value("backpressure/callbacks/held", extension.gate.held)
        stats.set_value("backpressure/gate/is_closed", int(extension.gate.closed))
        stats.set_value("backpressure/rate", round(extension.throughput.rate, 3))

    def _warn(self, depth: int) -> None:
        extension = self._extension
        high = extension.queue_mark.high
        spider = {"spider": self._crawler.spider}
        now = extension.clock.now()
        settled = extension.config.queue_high is not None or now - self._opened_at > _SETTLED
        if settled and not self._warned_level and depth >= _WARN_SHARE * high:
            self._warned_level = True
            logger.warning(
                "The queue holds %(depth)d requests, %(share)d %% of BACKPRESSURE_QUEUE_HIGH "
                "(now %(high)d), at which start() and callbacks have to wait",
                {"depth": depth, "share": 100 * depth // high, "high": high},
                extra=spider,
            )
        self._held.append(extension.gate.closed and "queue" in extension.gate.reasons)
        full = len(self._held) == _FULL_SAMPLES and sum(self._held) > _FULL_SHARE * _FULL_SAMPLES
        if full and not self._warned_full:
            self._warned_full = True
            logger.warning(
                "Consumers are structurally slower than the producer: start() was held back for "
                "most of the last %(seconds)d s. %(binding)s. More sites at once, more proxies or "
                "a higher limit of what binds would help; a longer queue would not",
                {
                    "seconds": _FULL_SAMPLES * extension.config.interval,
                    "binding": self.binding(now),
                },
                extra=spider,
            )

    def closed(self) -> None:
        """Final stats, the summary, and the audit."""
        extension, stats = self._extension, self._crawler.stats
        ledger = extension.accounts.ledger
        self._gauges(0)
        self._slot_stats()
        spider = {"spider": self._crawler.spider}
        stats.set_value("backpressure/audit/resumed", ledger.resumed)
        self._audit("Audit", "", ledger)
        if extension.all_runs is not None:
            self._audit("Audit of all runs", "all_runs/", extension.all_runs)
        logger.info(
            "Summary: at most %(peak)d requests open, gate closed %(closed)d times for "
            "%(seconds).1f s, %(parked)d retries parked, dead letters: %(letters)s",
            {
                "peak": extension.depth_max,
                "closed": stats.get_value("backpressure/gate/closed", 0),
                "seconds": stats.get_value("backpressure/gate/closed_seconds", 0.0),
                "parked": extension.accounts.parked,
                "letters": ", ".join(f"{n} {reason}" for reason, n in ledger.dead.items()) or 0,
            },
            extra=spider,
        )

    def _audit(self, title: str, runs: str, ledger: Ledger) -> None:
        counts = {
            "accepted": ledger.accepted,
            "handled": ledger.handled,
            "dead_lettered": ledger.dead.total(),
            "given_up": ledger.given_up.total(),
            "dropped": ledger.dropped.total(),
            "persisted": ledger.persisted,
            "lost": ledger.lost,
            "missing": ledger.missing,
        }
        counts |= {f"dropped/{name}": count for name, count in ledger.dropped.items()}
        for name, count in counts.items():
            self._crawler.stats.set_value(f"backpressure/audit/{runs + name}", count)
        spider = {"spider": self._crawler.spider}
        logger.info(f"{title}: %(ledger)s", {"ledger": ledger}, extra=spider)
        if ledger.missing:
            logger.error(
                f"The {title.lower()} does not balance: %(missing)d requests are not accounted "
                "for",
                {"missing": ledger.missing},
                extra=spider,
            )

    def _slot_stats(self) -> None:
        slots = sorted(
            self._extension.admission.slots.values(), key=lambda slot: slot.used_at, reverse=True
        )
        for slot in slots[: self._extension.config.slot_stats]:
            prefix = f"backpressure/slot/{slot.key}"
            self._crawler.stats.set_value(f"{prefix}/concurrency", slot.concurrency)
            rate = sum(lane.rate for lane in slot.lanes.values())
            if rate != math.inf:
                self._crawler.stats.set_value(f"{prefix}/rate", round(rate, 4))
