"""Has Scrapy's own middlewares between ours do right by answers that are no pages.

ConcurrencyMiddleware (950) hears what the site says, RetryMiddleware (550) decides what becomes of
the request. Of Scrapy's own that stand between them, three would take a bad answer for a page:
HttpCacheMiddleware stores it, RedirectMiddleware and MetaRefreshMiddleware follow it, and
HttpCompressionMiddleware hands out what it could decode of it, or raises where no retry is tried.
Nothing is written into a request for that, since what is in its meta goes wherever a copy goes.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from scrapy.downloadermiddlewares.httpcache import HttpCacheMiddleware
from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.downloadermiddlewares.redirect import BaseRedirectMiddleware
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response

from scrapy_backpressure import _scrapy
from scrapy_backpressure._scrapy_body import is_incomplete
from scrapy_backpressure.concurrency import ConcurrencyMiddleware
from scrapy_backpressure.retry import RetryMiddleware

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request

    from scrapy_backpressure.extension import BackpressureExtension
    from scrapy_backpressure.slots import Flight

_PARTIAL = "partial"
"""The flag, Scrapy's own, of a response whose body is not whole."""
_INCOMPLETE_BY_CONSENT = frozenset({"download_stopped", _PARTIAL, "dataloss"})


class Chain:
    """The middlewares of one crawl between ours.

    Without ConcurrencyMiddleware and RetryMiddleware nothing is changed.
    """

    def __init__(self, extension: BackpressureExtension) -> None:
        crawler = extension.crawler
        self._stats: Any = crawler.stats
        self._flights = extension.admission.flights
        self._judge = extension.judge
        retry = crawler.get_downloader_middleware(RetryMiddleware)
        if retry is None and crawler.get_downloader_middleware(ConcurrencyMiddleware) is None:
            return
        cache = crawler.get_downloader_middleware(HttpCacheMiddleware)
        if cache is not None:
            self._guard_cache(cache.policy)
        if retry is not None:
            self._retry: RetryMiddleware = retry
            wrap = _scrapy.wrap_process_response
            downloader = extension.engine.downloader
            wrap(downloader, BaseRedirectMiddleware, self._redirect)
            wrap(downloader, HttpCompressionMiddleware, self._decode)

    def _is_bad(self, request: Request, response: Response) -> bool:
        flight = self._flights.get(request)
        return flight is not None and self._judge.verdict(flight, response).outcome.is_bad

    # -- the cache -------------------------------------------------------------------------

    def _guard_cache(self, policy: Any) -> None:
        """Have the policy of the cache keep good and whole pages only."""
        may_cache: Callable[..., bool] = policy.should_cache_response

        def should_cache_response(response: Response, request: Request) -> bool:
            return (
                not self._is_bad(request, response)
                and may_cache(response, request)
                and not (
                    _has_whole_body(request, response)
                    and is_incomplete(response.body, _encodings(response))
                )
            )

        policy.should_cache_response = should_cache_response

    # -- redirects -------------------------------------------------------------------------

    def _redirect(self, follow: Callable[..., Any], request: Request, response: Response) -> Any:
        """A redirect to a page that refuses, or a refusal that would reload itself, stays; unless
        nothing would be done about it then."""
        flight = self._flights.get(request)
        if flight is not None:
            verdict = self._judge.verdict(flight, response)
            if verdict.outcome.is_bad and self._retry.keeps(request, response, verdict):
                return response
        return follow(request=request, response=response)

    # -- decoding --------------------------------------------------------------------------

    def _decode(self, decode: Callable[..., Any], request: Request, response: Response) -> Any:
        """What cannot be decoded, or breaks off, is a failed download."""
        flight = self._flights.get(request)
        plain = b"Content-Encoding" not in response.headers
        if flight is None or plain or "cached" in response.flags:
            return decode(request=request, response=response)
        # The middleware takes the header off the response that it gets as well.
        encodings = _encodings(response)
        try:
            decoded = decode(request=request, response=response)
        except Exception as error:
            return self._undecodable(flight, response, error)
        if inspect.isawaitable(decoded):  # a subclass of somebody's
            return self._decode_later(flight, response, encodings, decoded)
        return self._decoded(flight, response, encodings, decoded)

    async def _decode_later(
        self, flight: Flight, response: Response, encodings: list[str], decoding: Any
    ) -> Any:
        try:
            decoded = await decoding
        except Exception as error:
            return self._undecodable(flight, response, error)
        return self._decoded(flight, response, encodings, decoded)

    def _undecodable(self, flight: Flight, response: Response, error: Exception) -> Request:
        """The retry of *flight*.

        :raises Exception: *error*, which is no failure of the download or was the last one.
        """
        if isinstance(error, IgnoreRequest):
            raise error
        self._stats.inc_value("backpressure/bodies/undecodable")
        again = self._retry.undecodable(flight, response, error)
        if again is None:
            raise error
        return again

    def _decoded(
        self, flight: Flight, response: Response, encodings: list[str], decoded: Any
    ) -> Any:
        if decoded is response or not isinstance(decoded, Response):
            return decoded
        if not _has_whole_body(flight.request, response):
            return decoded
        if not is_incomplete(response.body, encodings, decoded.body):
            return decoded
        self._stats.inc_value("backpressure/bodies/incomplete")
        if (again := self._retry.incomplete(flight, decoded)) is not None:
            return again
        self._stats.inc_value("backpressure/bodies/partial")
        return decoded.replace(flags=[*decoded.flags, _PARTIAL])


def _has_whole_body(request: Request, response: Response) -> bool:
    """Whether the body is meant to be a page as a whole."""
    return (
        200 <= response.status < 300
        and response.status != 206
        and request.method != "HEAD"
        and _INCOMPLETE_BY_CONSENT.isdisjoint(response.flags)
    )


def _encodings(response: Response) -> list[str]:
    return [value.decode("latin-1") for value in response.headers.getlist("Content-Encoding")]
