"""Dead letters: the records of requests that were given up, and the feeds they are written to."""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlparse

from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.exporters import CsvItemExporter, XmlItemExporter
from scrapy.extensions.feedexport import FeedExporter
from scrapy.utils.job import job_dir
from scrapy.utils.python import without_none_values

from scrapy_backpressure.history import KEPT_ATTEMPTS, PREFIX
from scrapy_backpressure.kept_feeds import keep_if_not_stored
from scrapy_backpressure.signals import request_dead_lettered
from scrapy_backpressure.storage.codec import JsonRecord, clean_text, iso_time

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.extensions.feedexport import FeedSlot
    from scrapy.http import Response
    from typing_extensions import Self

    from scrapy_backpressure.control.outcome import Outcome

logger = logging.getLogger(__name__)

SCHEMA = 1
"""That of the records; grows when the meaning of a field changes."""

_SETTING = "BACKPRESSURE_DEAD_LETTER_FEEDS"
_STATS_PREFIX = "backpressure/dead_letters/"
_RUN_META = frozenset(
    {
        *("download_latency", "retry_times", "is_start_request", "cached_response"),
        *("cache_timestamp", "redirect_times", "redirect_ttl"),
        *("_auth_proxy", "_scheme_proxy", "_dont_cache"),
    }
)
"""Meta keys that Scrapy sets for itself, without a meaning in another run."""

_RESPONSE_HEADER = re.compile(
    r"(?:content-(?:type|length|encoding)|date|server|via|location|age|retry-after"
    r"|cf-ray|cf-mitigated|(?:x-)?rate-?limit.*|x-(?:cache|datadome|dd-b|iinfo|sucuri-.*|kpsdk-ct"
    r"|vercel-mitigated|amzn-waf-action|crawlera-.*|luminati-.*|brd-.*))",
    re.IGNORECASE,
)
"""Those that tell why a site or a proxy refused; the others may hold anything."""

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass
class DeadLetter:
    """The record of a request that was given up, complete enough to send it again.

    All values are what JSON can hold. See :meth:`build` for what is left out.
    """

    schema: int
    """:data:`SCHEMA`."""
    id: str
    """The fingerprint of the request, in hexadecimal."""
    spider: str
    time: str
    """When it was given up (ISO 8601, UTC)."""
    first_seen: str
    """When it was first tried (ISO 8601, UTC)."""
    outcome: str | None
    """The value of an :class:`~scrapy_backpressure.control.outcome.Outcome`."""
    reason: str
    attempts: list[dict[str, Any]]
    """The last 20, oldest first: ``time`` (ISO 8601, UTC), ``status`` or ``exception``,
    ``outcome``, ``reason``, ``proxy`` (without credentials), ``latency`` (seconds)."""
    request: dict[str, Any]
    """``url``, ``method``, ``headers`` (name: list of values), ``body`` (``{"text": …}`` if it is
    UTF-8, else ``{"base64": …}``), ``meta``, ``cb_kwargs``, ``callback`` and ``errback`` (names of
    methods of the spider, or null), ``priority``, ``dont_filter``, ``flags``; and ``cookies``, if
    there are any and secrets are wanted."""
    dropped: list[str]
    """What of the request is not in the record, or not unchanged: ``callback``,
    ``headers.Cookie``, ``meta.item``, ``cb_kwargs.rows[3]``, ``url`` (credentials removed)…"""
    response: dict[str, Any] | None
    """``status``, ``url``, ``headers`` (those that tell why a request was refused) and
    ``body_size`` (bytes) of the last response, or null if there was none."""
    redrives: int
    """How often the request has been sent again from a dead letter."""

    @classmethod
    def build(
        cls,
        request: Request,
        *,
        crawler: Crawler,
        history: Mapping[str, Any] | None = None,
        outcome: Outcome | None,
        reason: str,
        response: Response | None = None,
        now: float,
        secrets: bool = False,
    ) -> DeadLetter:
        """Return the record of *request*, given up at *now* (epoch seconds).

        *history* is what :mod:`~scrapy_backpressure.history` remembers of it.

        Meta keys of this package, and those that Scrapy sets for the current run only, are left
        out. Tuples become lists, as JSON has no other; what JSON cannot hold is left out and named
        in :attr:`dropped`. Unless *secrets* is true, so are the credentials that Scrapy knows of:
        Authorization, Proxy-Authorization, Cookie and Set-Cookie headers, cookies, the ``http_*``
        and ``ftp_*`` credentials in meta, and ``user:password`` in every URL of any text. The body
        is kept as it is.
        """
        spider = crawler.spider
        past = history or {}
        record = JsonRecord(secrets)
        fields = {
            "url": record.url(request.url, "url"),
            "method": str(request.method),
            "headers": record.headers(request.headers, "headers"),
            "body": _body(request.body),
            "meta": record.value(
                {k: v for k, v in request.meta.items() if not is_internal(k)}, "meta"
            ),
            "cb_kwargs": record.value(request.cb_kwargs, "cb_kwargs"),
            "callback": record.method(spider, request.callback, "callback"),
            "errback": record.method(spider, request.errback, "errback"),
            "priority": record.value(request.priority, "priority"),
            "dont_filter": bool(request.dont_filter),
            "flags": record.value(request.flags, "flags"),
        }
        if request.cookies:
            if secrets:
                fields["cookies"] = record.value(request.cookies, "cookies")
            else:
                record.dropped["cookies"] = None
        told = JsonRecord(secrets)  # what is lost of these does not matter to who sends it again
        return cls(
            schema=SCHEMA,
            id=crawler.request_fingerprinter.fingerprint(request).hex(),
            spider=spider.name if spider else "",
            time=iso_time(now),
            first_seen=iso_time(past.get("first_seen", now)),
            outcome=None if outcome is None else outcome.value,
            reason=told.text(reason),
            attempts=[told.attempt(a) for a in past.get("attempts", ())[-KEPT_ATTEMPTS:]],
            request=fields,
            dropped=[clean_text(name) for name in record.dropped],
            response=None
            if response is None
            else {
                "status": response.status,
                "url": told.url(response.url, "url"),
                "headers": {
                    name: values
                    for name, values in told.headers(response.headers, "headers").items()
                    if _RESPONSE_HEADER.fullmatch(name)
                },
                "body_size": len(response.body),
            },
            redrives=int(past.get("redrives", 0)),
        )


def is_internal(key: Any) -> bool:
    """Whether a meta key has a meaning in the current run only."""
    return isinstance(key, str) and (key in _RUN_META or key.startswith(PREFIX))


def _body(body: bytes) -> dict[str, str]:
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode("ascii")}


class DeadLetterExporter(FeedExporter):
    """Writes dead letters to feeds of their own.

    Nothing of it reaches the feeds, stats and signals of the spider's items: its stats stand under
    ``backpressure/dead_letters/``, it takes its letters from the signal
    :data:`~scrapy_backpressure.signals.request_dead_lettered`, and it sends no signal.

    A local file is flushed after every letter. What goes elsewhere and cannot be stored when the
    crawl ends is kept as a file in the JOBDIR, or in the working directory. A letter that cannot
    be written to a feed is logged in full, as JSON, at ERROR level. In CSV and XML, which have no
    nested values, ``attempts``, ``request`` and ``response`` are JSON text.
    """

    crawler: Crawler
    _before_close: Callable[[], None] | None = None

    @classmethod
    def from_crawler(  # type: ignore[override]
        cls,
        crawler: Crawler,
        *,
        feeds: dict[Any, Any],
        before_close: Callable[[], None] | None = None,
    ) -> Self:
        """Return an exporter that is connected to the signals of *crawler*.

        Signals hold their receivers weakly: keep a reference to it.

        Args:
            feeds: as in the FEEDS setting. Of the settings that give defaults to those feeds,
                FEED_EXPORT_FIELDS, FEED_EXPORT_BATCH_ITEM_COUNT, FEED_EXPORT_ENCODING,
                FEED_STORE_EMPTY and FEED_URI_PARAMS do not apply to these, only the options of the
                feed itself. Encoding is UTF-8, and an empty feed is not stored, unless it says so.
            before_close: called when the spider is closed, before the feeds are: the last chance
                to send letters.

        Raises:
            NotConfigured: *feeds* is empty.
            ValueError: *feeds* is not what FEEDS may be, or names a format or a storage that is
                unknown or cannot be used here.
        """
        view = _CrawlerView(crawler, _checked(feeds, crawler))
        try:
            exporter = cls(cast("Crawler", view))
        except NotConfigured as error:
            raise _invalid(str(error) or "see the error logged above") from error
        except Exception as error:
            raise _invalid(f"{type(error).__name__}: {error}") from error
        exporter._before_close = before_close
        crawler.signals.connect(exporter.open_spider, signals.spider_opened)
        crawler.signals.connect(exporter.close_spider, signals.spider_closed)
        crawler.signals.connect(exporter.export, request_dead_lettered)
        return exporter

    def _get_storage(self, uri: str, feed_options: dict[str, Any]) -> Any:
        storage = super()._get_storage(uri, feed_options)
        folder = Path(job_dir(self.crawler.settings) or ".")
        keep_if_not_stored(storage, folder, f"dead-letters.{feed_options['format']}")
        return storage

    def open_spider(self, spider: Spider) -> None:
        feeds = self.feeds
        try:
            for uri, options in feeds.items():
                self.feeds = {uri: options}  # one that fails must not keep the others from opening
                try:
                    super().open_spider(spider)
                except Exception:
                    logger.exception("The dead-letter feed %s cannot be opened", clean_text(uri))
        finally:
            self.feeds = feeds

    def export(self, letter: DeadLetter, spider: Spider) -> None:
        """Write *letter* to every feed whose filter accepts it."""
        failed = len(self.feeds) - len(self.slots)
        slots: list[FeedSlot] = []
        for slot in self.slots:
            self.slots = [slot]
            flat = issubclass(self.exporters[slot.format], (CsvItemExporter, XmlItemExporter))
            try:
                self.item_scraped(_flattened(letter) if flat else letter, spider)
                # With post-processing, what is written is complete only when the file is closed.
                if (
                    slot.file
                    and not slot.file.closed
                    and "postprocessing" not in slot.feed_options
                ):
                    slot.file.flush()
            except Exception:
                failed += 1
                logger.exception("A dead letter cannot be written to %s", clean_text(slot.uri))
            slots += self.slots
        self.slots = slots
        if failed:
            text = json.dumps(dataclasses.asdict(letter))
            logger.error("Dead letter not written to %d feed(s): %s", failed, text)
            self.crawler.stats.inc_value("write_failed")

    async def close_spider(self, spider: Spider) -> None:
        if self._before_close is not None:
            try:
                self._before_close()
            except Exception:
                logger.exception("The last dead letters may be missing")
        await super().close_spider(spider)


class _CrawlerView:
    """A crawler whose feeds are those of dead letters, and which hides what becomes of them."""

    def __init__(self, crawler: Crawler, feeds: dict[str, dict[str, Any]]) -> None:
        self._crawler = crawler
        self.signals = _QuietSignals(crawler.signals)
        self.settings = crawler.settings.copy()
        self.settings.frozen = False
        for name, value in {
            "FEEDS": feeds,
            "FEED_URI": None,
            "FEED_EXPORT_FIELDS": None,
            "FEED_EXPORT_BATCH_ITEM_COUNT": 0,
            "FEED_EXPORT_ENCODING": "utf-8",
            "FEED_STORE_EMPTY": False,
            "FEED_URI_PARAMS": None,
        }.items():
            priority = self.settings.getpriority(name) or 0
            self.settings.set(name, value, priority=max(priority, 1000))

    @property
    def stats(self) -> _PrefixedStats:
        return _PrefixedStats(self._crawler.stats)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._crawler, name)


class _QuietSignals:
    """The signals of the crawler, except those that tell of a feed: handlers expect their own."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    async def send_catch_log_async(self, signal: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        if signal in (signals.feed_slot_closed, signals.feed_exporter_closed):
            return []
        result: list[tuple[Any, Any]]
        result = await self._manager.send_catch_log_async(signal, **kwargs)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


class _PrefixedStats:
    def __init__(self, stats: Any) -> None:
        self._stats = stats

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._stats, name)
        if not name.endswith("_value"):
            return method
        return lambda key, *args, **kwargs: method(_STATS_PREFIX + key, *args, **kwargs)


def _checked(feeds: Any, crawler: Crawler) -> dict[str, dict[str, Any]]:
    """Return *feeds* with text for URIs, and a format in each, or raise as from_crawler does."""
    if not isinstance(feeds, Mapping):
        raise _invalid(f"got {feeds!r}")
    if not feeds:
        raise NotConfigured(f"{_SETTING} is empty")
    known: dict[str, Any] = {
        setting: without_none_values(crawler.settings.getwithbase(setting))
        for setting in ("FEED_EXPORTERS", "FEED_STORAGES")
    }
    result = {}
    for key, options in feeds.items():
        if not isinstance(key, str | Path) or not isinstance(options, Mapping):
            raise _invalid(f"got {key!r}: {options!r}")
        uri = str(key.absolute()) if isinstance(key, Path) else key
        format_ = options.get("format") or Path(uri).suffix.removeprefix(".")
        if format_ not in known["FEED_EXPORTERS"]:
            formats = ", ".join(sorted(known["FEED_EXPORTERS"]))
            raise _invalid(f"the format {format_!r} of {uri} is none of {formats}")
        scheme = urlparse(uri).scheme
        if scheme not in known["FEED_STORAGES"] and not PureWindowsPath(uri).drive:
            raise _invalid(f"no storage is known for the scheme {scheme!r} of {uri}")
        result[uri] = {**options, "format": format_}
    return result


def _invalid(problem: str) -> ValueError:
    example = '{"dead_letters/%(name)s-%(time)s.jsonl": {"format": "jsonlines"}}'
    return ValueError(
        f"{_SETTING} must be a dict as FEEDS is, of URIs and their options, such as {example}: "
        f"{clean_text(problem)}"
    )


def _flattened(letter: DeadLetter) -> DeadLetter:
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(letter):
        value = getattr(letter, field.name)
        if isinstance(value, str):
            fields[field.name] = _NOT_IN_XML.sub("\ufffd", value)
        elif field.name in ("attempts", "request", "response"):
            fields[field.name] = json.dumps(value)
    return dataclasses.replace(letter, **fields)
