"""Says once, at the start, which components do not go together."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy.downloadermiddlewares.retry import RetryMiddleware as StockRetryMiddleware

from scrapy_backpressure import _scrapy

if TYPE_CHECKING:
    from scrapy_backpressure.extension import BackpressureExtension

logger = logging.getLogger(__name__)


def warn_about_companions(extension: BackpressureExtension) -> None:
    """Look at what runs beside the extension, and warn of what defeats it."""
    # At run time, since these modules need the extension's.
    from scrapy_backpressure.concurrency import ConcurrencyMiddleware
    from scrapy_backpressure.durable import DurableScheduler
    from scrapy_backpressure.retry import RetryMiddleware

    crawler = extension.crawler
    settings = crawler.settings
    concurrency = crawler.get_downloader_middleware(ConcurrencyMiddleware)
    retry = crawler.get_downloader_middleware(RetryMiddleware)
    stock_retry = crawler.get_downloader_middleware(StockRetryMiddleware)
    warnings = []
    if retry is not None and stock_retry is not None:
        warnings.append(
            "Scrapy's RetryMiddleware is enabled beside scrapy_backpressure.RetryMiddleware, so "
            "failed requests are retried at once, without backoff. Add to DOWNLOADER_MIDDLEWARES: "
            '"scrapy.downloadermiddlewares.retry.RetryMiddleware": None'
        )
    if concurrency is not None and settings.getbool("AUTOTHROTTLE_ENABLED"):
        warnings.append(
            "AUTOTHROTTLE_ENABLED is set: AutoThrottle changes the delays that "
            "scrapy_backpressure.ConcurrencyMiddleware counts on, and the slower of the two wins. "
            "Set AUTOTHROTTLE_ENABLED = False"
        )
    if concurrency is not None and not extension.admission.queues:
        warnings.append(
            "The scheduler cannot be steered, so requests of a slot that has to wait hold places "
            'of CONCURRENT_REQUESTS. Set SCHEDULER = "scrapy_backpressure.DurableScheduler", or '
            "with Scrapy's own scheduler SCHEDULER_PRIORITY_QUEUE = "
            '"scrapy_backpressure.SlotAwarePriorityQueue"'
        )
    off = retry is None and stock_retry is None
    if concurrency is not None and off and settings.getbool("RETRY_ENABLED"):
        warnings.append(
            "DOWNLOADER_MIDDLEWARES turns Scrapy's RetryMiddleware off, so failed requests are "
            "retried by a middleware of your own or not at all, and none is parked with backoff. "
            "To have them parked, add to DOWNLOADER_MIDDLEWARES: "
            '"scrapy_backpressure.RetryMiddleware": 550'
        )
    if retry is not None and concurrency is None:
        warnings.append(
            "scrapy_backpressure.RetryMiddleware is enabled without ConcurrencyMiddleware, so a "
            "pause that a site asks for holds for the refused request only. Add to "
            'DOWNLOADER_MIDDLEWARES: "scrapy_backpressure.ConcurrencyMiddleware": 950'
        )
    if settings.getint("CONCURRENT_REQUESTS_PER_IP"):
        warnings.append(
            "CONCURRENT_REQUESTS_PER_IP makes slots of addresses instead of hosts, which "
            "SlotAwarePriorityQueue does not support: one site may appear under two keys. Use "
            "CONCURRENT_REQUESTS_PER_DOMAIN"
        )
    # isinstance() takes any scheduler for any other.
    if DurableScheduler not in type(_scrapy.scheduler_of(extension.engine)).__mro__:
        (left,) = extension.database.read("SELECT count(*) FROM requests").fetchone()
        if left:
            warnings.append(
                f"{left} requests of an earlier run wait in {extension.jobdir} for "
                "DurableScheduler, and are not part of this crawl. Set SCHEDULER = "
                '"scrapy_backpressure.DurableScheduler"'
            )
    for warning in warnings:
        logger.warning(warning, extra={"spider": crawler.spider})
