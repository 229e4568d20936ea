"""Everything private of Scrapy that this package touches.

Checked on Scrapy 2.14, 2.16, 2.18 and 2.19. Each function says what it relies on, so that a
change upstream has one place to be followed in.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy.http.request import NO_CALLBACK
from scrapy.pqueues import _path_safe
from scrapy.utils.httpobj import urlparse_cached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy import Request
    from scrapy.core.downloader import Downloader
    from scrapy.core.engine import ExecutionEngine
    from scrapy.core.scheduler import BaseScheduler
    from twisted.internet.defer import Deferred


class SlotLimits(NamedTuple):
    """What the user allows for a slot, before anything was learned."""

    concurrency: int
    delay: float
    """Seconds between two requests."""
    jitter: float
    """Random part of the delay: 0.5 is ± 50 %."""


def slot_limits(downloader: Downloader, request: Request) -> SlotLimits:
    """Limits of the request's download slot, made if it does not exist (``_get_slot``)."""
    _, slot = downloader._get_slot(request)
    jitter = getattr(slot, "jitter", None)
    if jitter is None:  # before 2.19
        jitter = 0.5 * bool(getattr(slot, "randomize_delay", False))
    return SlotLimits(int(slot.concurrency), float(slot.delay), float(jitter))


def mirror_concurrency(downloader: Downloader, key: str, concurrency: int) -> None:
    """Show our limit in ``slot.concurrency``, which people read.

    Never 0: nothing would wake that slot again.
    """
    slot = downloader.slots.get(key)
    if slot is not None:
        slot.concurrency = max(1, concurrency)


def slot_delay(downloader: Downloader, key: str, default: float) -> float:
    """Seconds between two requests of a slot now, which extensions may change (``slot.delay``)."""
    slot = downloader.slots.get(key)
    return default if slot is None else float(slot.delay)


def waive_delay(downloader: Downloader, key: str, delay: float) -> None:
    """Let the slot send its next request at once (``slot.lastseen``).

    Admission kept the delay already; a second one, drawn at random by the downloader, would
    stretch the gaps. A delay that somebody else has changed since is left in force.
    """
    slot = downloader.slots.get(key)
    if slot is not None and slot.delay == delay:
        slot.lastseen = 0


def scheduler_of(engine: ExecutionEngine) -> BaseScheduler | None:
    """The scheduler in use (``engine.scheduler`` only exists since 2.19)."""
    return engine._slot.scheduler if engine._slot is not None else None


def scheduler_length(engine: ExecutionEngine, unknown: int = 0) -> int:
    """Requests in the scheduler; *unknown* if it does not tell. May cost O(slots)."""
    scheduler = scheduler_of(engine)
    try:
        return len(scheduler)  # type: ignore[arg-type]
    except TypeError:
        return unknown


def _queue_in_memory(scheduler: BaseScheduler | None) -> Any:
    """What a scheduler would lose at the end; None if it is not known.

    In Scrapy's it is ``scheduler.mqs``; ours has a ``drain()`` of its own.
    """
    return scheduler if hasattr(scheduler, "drain") else getattr(scheduler, "mqs", None)


def keeps_its_own(engine: ExecutionEngine) -> str | None:
    """The name of a scheduler whose queue we cannot read, or None."""
    scheduler = scheduler_of(engine)
    if scheduler is None or _queue_in_memory(scheduler) is not None:
        return None
    return type(scheduler).__name__


def drain_memory(engine: ExecutionEngine) -> Iterator[Request]:
    """Take out what the scheduler would lose when the crawl closes."""
    queue = _queue_in_memory(scheduler_of(engine))
    if queue is None:
        return
    if hasattr(queue, "drain"):
        yield from queue.drain()
        return
    while (request := queue.pop()) is not None:
        yield request


def slot_folder(queue_key: str, slot: str) -> Path:
    """Where DownloaderAwarePriorityQueue keeps *slot* on disk (``pqueues._path_safe``)."""
    return Path(queue_key, _path_safe(slot))


def watch_enqueue(engine: ExecutionEngine, told: Callable[[Request, bool], None]) -> None:
    """Call *told* with each request that reaches the scheduler, and whether it was taken.

    No signal tells that a handler of ``request_scheduled`` has kept a request from it.
    """
    scheduler = scheduler_of(engine)
    if scheduler is None:
        return
    enqueue = scheduler.enqueue_request

    def watched(request: Request) -> bool:
        taken = enqueue(request)
        told(request, bool(taken))
        return taken

    scheduler.enqueue_request = watched  # type: ignore[method-assign]


def watch_done(engine: ExecutionEngine, done: Callable[[Request], None]) -> None:
    """Call *done* with each request that the engine is done with (``engine._slot``).

    That is when its callback has ended and all that it yielded is processed, or when its fetch led
    to another request or to an error that nobody handles; requests of ``download_async()`` are
    among them. Nothing else tells of it, and the slot lets a waiting end of the crawl go on in the
    same call, so *done* is called first.
    """
    slot = engine._slot
    assert slot is not None
    remove = slot.remove_request

    def watched(request: Request) -> None:
        try:
            done(request)
        finally:
            remove(request)

    slot.remove_request = watched  # type: ignore[method-assign]


def is_robotstxt(request: Request) -> bool:
    """Whether RobotsTxtMiddleware made this request, for which all others of the host wait."""
    return (
        request.callback is NO_CALLBACK
        and bool(request.meta.get("dont_obey_robotstxt"))
        and urlparse_cached(request).path == "/robots.txt"
    )


def in_progress(engine: ExecutionEngine) -> int:
    """Requests handed out whose callback has not ended yet (``engine._slot.inprogress``)."""
    return len(engine._slot.inprogress) if engine._slot is not None else 0


def is_closing(engine: ExecutionEngine) -> bool:
    """Whether the spider is being closed (``engine._slot.closing``)."""
    return engine._slot is None or engine._slot.closing is not None


def wake(engine: ExecutionEngine) -> None:
    """Make the engine ask the scheduler again (``engine._slot.nextcall``).

    Nothing else does when a pause ends; the engine's own heartbeat is 5 s.
    """
    if engine._slot is not None and engine._slot.closing is None:
        engine._slot.nextcall.schedule()


def scraper_backs_out(engine: ExecutionEngine) -> bool:
    """Whether responses fill SCRAPER_SLOT_MAX_ACTIVE_SIZE (``engine.scraper.slot``)."""
    slot = engine.scraper.slot
    return slot is not None and slot.needs_backout()


def start_is_exhausted(engine: ExecutionEngine) -> bool:
    """Whether ``Spider.start()`` has ended (``engine._start``)."""
    return engine._start is None


def watch_fetches(
    downloader: Downloader,
    started: Callable[[Request], None],
    ended: Callable[[Request, Any], None],
) -> None:
    """Call *started* and *ended* around every ``downloader.fetch()``.

    No signal tells how a fetch ended when a middleware answered, redirected or raised, so the
    method is wrapped on the instance, which works with any DOWNLOADER class. *ended* gets the
    Response, Request or Failure before the engine does.
    """
    fetch = downloader.fetch

    def watched(request: Request, *args: Any, **kwargs: Any) -> Deferred[Any]:
        started(request)

        def tell(result: Any) -> Any:
            ended(request, result)
            return result

        return fetch(request, *args, **kwargs).addBoth(tell)

    downloader.fetch = watched  # type: ignore[method-assign]
