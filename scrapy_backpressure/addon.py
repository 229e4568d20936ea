"""The one line that sets everything up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.downloadermiddlewares.retry import RetryMiddleware as StockRetryMiddleware
from scrapy.exceptions import NotConfigured
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

from scrapy_backpressure.concurrency import ConcurrencyMiddleware
from scrapy_backpressure.durable import DurableScheduler
from scrapy_backpressure.extension import BackpressureExtension
from scrapy_backpressure.retry import RetryMiddleware
from scrapy_backpressure.scheduling import SlotAwarePriorityQueue
from scrapy_backpressure.settings import BackpressureSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy.settings import Settings

_RETRY_PRIORITY = 550


class Addon:
    """``ADDONS = {"scrapy_backpressure.Addon": 300}`` enables all components.

    What a project has set itself stays: a component that is listed already keeps its place, and
    a SCHEDULER or SCHEDULER_PRIORITY_QUEUE of the project's is left alone.
    """

    def update_settings(self, settings: Settings) -> None:
        """Add the components to *settings*.

        :raises ValueError: a ``BACKPRESSURE_`` setting is wrong; the message names it.
        :raises NotConfigured: BACKPRESSURE_ENABLED is False.
        """
        if not BackpressureSettings.from_settings(settings).enabled:
            raise NotConfigured  # as asked for, so there is nothing to warn of
        settings.setdefault_in_component_priority_dict("EXTENSIONS", BackpressureExtension, 100)
        settings.setdefault_in_component_priority_dict(
            "DOWNLOADER_MIDDLEWARES", ConcurrencyMiddleware, 950
        )
        self._replace_retry_middleware(settings)
        self._choose_queue(settings)

    def _choose_queue(self, settings: Settings) -> None:
        if settings.getint("CONCURRENT_REQUESTS_PER_IP"):  # with it, the queue would raise
            return
        settings.set("SCHEDULER_PRIORITY_QUEUE", SlotAwarePriorityQueue, priority="addon")
        # Which has no use for a queue of the project's.
        ours = load_object(settings["SCHEDULER_PRIORITY_QUEUE"]) is SlotAwarePriorityQueue
        if settings.get("JOBDIR") and ours:
            settings.set("SCHEDULER", DurableScheduler, priority="addon")

    def _replace_retry_middleware(self, settings: Settings) -> None:
        name = "DOWNLOADER_MIDDLEWARES"
        components = settings.getdict(name)
        place = _RETRY_PRIORITY
        for component, priority in list(components.items()):
            if load_object(component) is StockRetryMiddleware:
                del components[component]
                if priority is None and not _lists(components, RetryMiddleware):
                    return  # turned off, or replaced by one of the project's own
                place = priority or place  # where the project moved it to
        # By path, as in DOWNLOADER_MIDDLEWARES_BASE: Scrapy 2.14 takes a class for another key.
        components[global_object_name(StockRetryMiddleware)] = None
        settings.set(name, components, settings.getpriority(name) or 0)
        settings.setdefault_in_component_priority_dict(name, RetryMiddleware, place)


def _lists(components: Mapping[Any, Any], wanted: type) -> bool:
    return any(load_object(component) is wanted for component in components)
