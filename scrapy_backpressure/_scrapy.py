"""Everything private of Scrapy that this package touches.

Checked on Scrapy 2.14, 2.16, 2.18 and 2.19. Each function says what it relies on, so that a
change upstream has one place to be followed in.
"""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from scrapy.http.request import NO_CALLBACK
from scrapy.pqueues import _path_safe
from scrapy.utils.httpobj import urlparse_cached
from twisted.internet.defer import fail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy import Request
    from scrapy.core.downloader import Downloader
    from scrapy.core.engine import ExecutionEngine
    from scrapy.core.scheduler import BaseScheduler
    from scrapy.http import Response
    from twisted.internet.defer import Deferred


class AssignedSlot(str):
    """The key of a download slot that nobody has set: the downloader's own choice.

    The downloader writes the key into ``meta["download_slot"]`` of each request that it sends.
    There it cannot be told from one that the user has set, and goes wherever the meta is copied.
    """

    __slots__ = ()

    def __deepcopy__(self, memo: Any) -> AssignedSlot:
        return self

    def __reduce__(self) -> Any:  # on disk it is what the downloader would have written
        return str, (str(self),)


_TRIP_KEYS = ("download_latency", "download_timeout")
"""Meta keys that Scrapy writes on the way of a request: with them comes the whole meta of it."""


def assign_slot(request: Request, key: str) -> None:
    """Have the downloader take the slot *key*, its own choice, so that it can be told apart."""
    if request.meta.get("download_slot") is None:
        request.meta["download_slot"] = AssignedSlot(key)


def forget_assigned_slot(request: Request) -> None:
    """Have the slot of a new request follow its URL, if all that speaks for another is a copy of
    the meta of a request that was sent. One that is passed on by itself stays."""
    key = request.meta.get("download_slot")
    if type(key) is AssignedSlot:
        if any(name in request.meta for name in _TRIP_KEYS):
            del request.meta["download_slot"]
        else:
            request.meta["download_slot"] = str(key)


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


class Unqueued(Protocol):
    """Requests that the scheduler cannot take, which are handed out before all others."""

    def keep(self, request: Request, error: Exception) -> None: ...

    def pop(self) -> Request | None: ...

    def __len__(self) -> int: ...


def watch_scheduler(
    engine: ExecutionEngine,
    told: Callable[[Request, bool], None],
    unqueued: Unqueued,
    handed_out: Callable[[Request], None] | None = None,
) -> None:
    """Call *told* with each request that reaches the scheduler, and whether it was taken, and
    *handed_out* with each that leaves it.

    No signal tells that a handler of ``request_scheduled`` has kept a request from it. A request
    at which the scheduler raises goes to *unqueued*; the engine would lose it without a trace, and
    end the crawl if it comes from ``start()``.
    """
    scheduler = scheduler_of(engine)
    if scheduler is None:
        return
    enqueue, next_request = scheduler.enqueue_request, scheduler.next_request
    has_pending_requests = scheduler.has_pending_requests

    def watched(request: Request) -> bool:
        try:
            taken = enqueue(request)
        except Exception as error:
            unqueued.keep(request, error)
            taken = True
        told(request, bool(taken))
        return taken

    scheduler.enqueue_request = watched  # type: ignore[method-assign]

    def following() -> Request | None:
        request = unqueued.pop() if unqueued else next_request()
        if request is not None and handed_out is not None:
            handed_out(request)
        return request

    scheduler.next_request = following  # type: ignore[method-assign]
    scheduler.has_pending_requests = (  # type: ignore[method-assign]
        lambda: bool(unqueued) or has_pending_requests()
    )


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
    Response, Request or Failure before the engine does. What *started* raises is how the fetch
    ends.
    """
    fetch = downloader.fetch

    def watched(request: Request, *args: Any, **kwargs: Any) -> Deferred[Any]:
        def tell(result: Any) -> Any:
            ended(request, result)
            return result

        try:
            started(request)
        except Exception:
            return fail().addBoth(tell)
        return fetch(request, *args, **kwargs).addBoth(tell)

    downloader.fetch = watched  # type: ignore[method-assign]


def wrap_process_response(
    downloader: Downloader,
    kind: type,
    around: Callable[[Callable[..., Any], Request, Response], Any],
) -> None:
    """Call *around* in the place of ``process_response`` of each middleware that is a *kind*.

    It gets that method, the request and the response. The manager keeps bound methods in
    ``middleware.methods``, so nothing that is put on an instance later would be called.
    """
    manager: Any = downloader.middleware
    methods = manager.methods["process_response"]
    takes_spider: set[Any] = getattr(manager, "_mw_methods_requiring_spider", set())
    for index, method in enumerate(methods):
        if isinstance(getattr(method, "__self__", None), kind):
            methods[index] = wrapped = _wrapped(method, around)
            if method in takes_spider:
                takes_spider.add(wrapped)


def _wrapped(
    method: Callable[..., Any], around: Callable[[Callable[..., Any], Request, Response], Any]
) -> Callable[..., Any]:
    @wraps(method)
    def wrapped(request: Request, response: Response, **kwargs: Any) -> Any:
        if not kwargs:
            return around(method, request, response)
        return around(lambda **own: method(**own, **kwargs), request, response)

    return wrapped
