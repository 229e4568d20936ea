"""What counts as accepted, throttled, blocked or failed."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from scrapy.utils.misc import load_object

from scrapy_backpressure._scrapy_body import body_prefix, gzip_size
from scrapy_backpressure.control import markers
from scrapy_backpressure.control.outcome import Outcome, Quota, Verdict
from scrapy_backpressure.control.ratelimit_headers import parse_quota, parse_retry_after

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

logger = logging.getLogger(__name__)

_ZYTE_OUTCOMES = {
    "banned": Outcome.BLOCKED,
    "slavebanned": Outcome.BLOCKED,
    # The proxy only reports these: our own pace, and a site that does not exist.
    "too_many_conns": Outcome.THROTTLED,
    "nxdomain": Outcome.FAILED,
}
"""Codes of ``X-Crawlera-Error`` that are no fault of the proxy."""
_BRIGHT_DATA = frozenset({"x-brd-err-code", "x-brd-error", "x-luminati-error"})
_READ = frozenset(
    name.encode()
    for name in (
        *markers.MARKS_BY_HEADER,
        *_BRIGHT_DATA,
        "x-crawlera-error",
        "retry-after",
        "date",
        "location",
        "content-type",
        "content-encoding",
    )
)
"""The headers that a policy looks at, besides those of rate limits."""
_SECONDARY_LIMITS = (b"secondary rate limit", b"abuse detection mechanism")
_REFUSALS = (403, 429, 503)

_MAX_ERROR_BODY = 65_536
_ERROR_PREFIX = 65_536
_MAX_PAGE_BODY = 16_384
"""Bytes, compressed, of the largest 2xx answer that is decoded."""
_MAX_PAGE = 32_768
"""Bytes, decoded, of the largest 2xx page that may be a challenge."""
_PAGE_PREFIX = 16_384

# By name, because Scrapy < 2.15 raises Twisted's exceptions and later versions their own, each
# caused by one of Twisted, httpx or aiohttp, none of which need be installed.
_CONNECT_FAULTS = frozenset(
    {
        "TunnelError",
        "ProxyError",
        "ClientHttpProxyError",
        "ClientConnectorError",
        "ConnectError",
        "ConnectTimeout",
        "ConnectionTimeoutError",
        "ConnectionRefusedError",
        "DownloadConnectionRefusedError",
        "DNSLookupError",
        "CannotResolveHostError",
    }
)


class Evidence:
    """What a policy reads of one answer; each part is read when asked for, once."""

    def __init__(self, request: Request, response: Response, *, now: float) -> None:
        """``now`` is the wall clock in epoch seconds."""
        self.request = request
        self.response = response
        self.status: int = response.status
        self.headers: dict[str, list[str]] = {}
        """The headers that matter here: lower-case name to values."""
        self._now = now
        self._limits = False
        headers = response.headers
        for key in headers:
            name = key.lower()
            limits = b"limit" in name
            if limits or name in _READ:
                self._limits = self._limits or limits
                values = [value.decode("latin-1") for value in headers.getlist(key)]
                self.headers[name.decode("latin-1")] = values

    @cached_property
    def pause(self) -> float | None:
        """Seconds told by ``Retry-After``."""
        values = self.headers.get("retry-after")
        if not values:
            return None
        date = self.headers.get("date")
        return parse_retry_after(values, now=self._now, date=date[0] if date else None)

    @property
    def quota(self) -> Quota | None:
        """What the rate-limit headers say."""
        return self._quota if self._limits else None

    @cached_property
    def _quota(self) -> Quota | None:
        return parse_quota(self.headers, now=self._now)

    @property
    def exhausted(self) -> bool:
        """Whether the headers say that the quota is used up."""
        remaining = self.quota.remaining if self.quota else None
        return remaining is not None and remaining < 1

    @property
    def accepted(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    @cached_property
    def body(self) -> bytes:
        """The beginning of the decoded body, or ``b""`` when it is too large to be a notice.

        At most 64 KiB of an answer whose body is no larger than that as it came; of a 2xx
        answer at most 16 KiB, if it came in at most 16 KiB compressed or 32 KiB plain.
        """
        raw = self.response.body
        encodings = self.headers.get("content-encoding", [])
        if not self.accepted:
            if len(raw) > _MAX_ERROR_BODY:
                return b""
            return body_prefix(raw, encodings, _ERROR_PREFIX)
        if len(raw) > (_MAX_PAGE_BODY if encodings else _MAX_PAGE):
            return b""
        if encodings:
            if _is_gzip(encodings) and gzip_size(raw) > _MAX_PAGE:
                return b""
            # Only gzip tells its size beforehand.
            raw, encodings = body_prefix(raw, encodings, _MAX_PAGE + 1), []
            if len(raw) > _MAX_PAGE:
                return b""
        return body_prefix(raw, encodings, _PAGE_PREFIX)

    @cached_property
    def lowered(self) -> bytes:
        """:attr:`body` in lower case, for looking up phrases."""
        return self.body.lower()

    def verdict(self, outcome: Outcome, reason: str = "") -> Verdict:
        """A verdict with the quota that the answer tells and, on a bad outcome, the pause.

        ``reason`` is the status if not given.
        """
        pause = self.pause if outcome.is_bad else None
        return Verdict(outcome, reason or str(self.status), pause, self.quota)


class OutcomePolicy:
    """Tells what an answer, or the lack of one, says about the site, the proxy and our pace.

    Subclass it, name the subclass in ``BACKPRESSURE_OUTCOME_POLICY``, and override the question
    that your site answers in its own way, in the order in which they are asked:
    :meth:`proxy_verdict`, :meth:`ban_vendor`, :meth:`is_throttled`, :meth:`is_failed`; or
    :meth:`classify_response` as a whole. Each is called for every answer: keep them quick.
    """

    def __init__(self, settings: BaseSettings) -> None:
        self.retry_http_codes = frozenset(int(x) for x in settings.getlist("RETRY_HTTP_CODES"))
        self.retry_exceptions: tuple[type[BaseException], ...] = tuple(
            load_object(x) if isinstance(x, str) else x
            for x in settings.getlist("RETRY_EXCEPTIONS")
        )
        self._unusable_logged = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler.settings)

    def classify_response(self, request: Request, response: Response) -> Verdict:
        """Judge an answer: as it leaves the downloader, its body perhaps still compressed, and
        once more where a middleware has put another one in its place (such as that one, decoded).
        """
        if "cached" in response.flags:
            return Verdict(Outcome.NEUTRAL, "cached")
        evidence = Evidence(request, response, now=time.time())
        if verdict := self.proxy_verdict(evidence):
            return verdict
        if vendor := self.ban_vendor(evidence):
            return evidence.verdict(Outcome.BLOCKED, vendor)
        if self.is_throttled(evidence):
            return self.throttled(evidence)
        if self.is_failed(evidence):
            return evidence.verdict(Outcome.FAILED)
        if not evidence.accepted:
            return evidence.verdict(Outcome.NEUTRAL)
        return evidence.verdict(Outcome.ACCEPTED)

    def classify_exception(self, request: Request, exception: Exception) -> Verdict:
        """Judge an attempt that brought no answer."""
        reason = type(exception).__name__
        if self.is_proxy_fault(request, exception):
            return Verdict(Outcome.PROXY_FAILED, reason, answered=False)
        if isinstance(exception, self.retry_exceptions):
            # A body that breaks off is an answer, if a bad one.
            return Verdict(Outcome.FAILED, reason, answered=reason == "ResponseDataLossError")
        return Verdict(Outcome.NEUTRAL, reason)

    def proxy_verdict(self, evidence: Evidence) -> Verdict | None:
        """The verdict on an answer that comes from the proxy itself; None if it does not."""
        headers, status = evidence.headers, evidence.status
        if codes := headers.get("x-crawlera-error"):
            outcome = _ZYTE_OUTCOMES.get(codes[0].strip().lower(), Outcome.PROXY_FAILED)
            return evidence.verdict(outcome, "crawlera")
        if not _BRIGHT_DATA.isdisjoint(headers) and (status >= 400 or not evidence.response.body):
            return evidence.verdict(Outcome.PROXY_FAILED, "brightdata")
        if status == 407:
            return evidence.verdict(Outcome.PROXY_FAILED)
        return None

    def ban_vendor(self, evidence: Evidence) -> str | None:
        """Who refuses this client, by the marks of :mod:`.control.markers`; None: nobody."""
        if vendor := markers.VENDOR_BY_STATUS.get(evidence.status):
            return vendor
        weights = _header_weights(evidence)
        _add_path_weights(evidence, weights)
        if not weights or max(weights.values()) < markers.THRESHOLD:
            _add_body_weights(evidence, weights)
        if not weights:
            return None
        vendor = max(weights, key=weights.__getitem__)
        return vendor if weights[vendor] >= markers.THRESHOLD else None

    def is_throttled(self, evidence: Evidence) -> bool:
        """Whether the site asks for a slower pace."""
        if evidence.status == 429:
            return True
        if evidence.status not in (403, 503):
            return False
        if evidence.pause is not None or evidence.exhausted:
            return True
        return evidence.status == 403 and any(
            phrase in evidence.lowered for phrase in _SECONDARY_LIMITS
        )

    def throttled(self, evidence: Evidence) -> Verdict:
        """The verdict on an answer that :meth:`is_throttled`.

        Without ``Retry-After``, the pause lasts until a used-up quota is renewed; counters that
        say there is room set none.
        """
        verdict = evidence.verdict(Outcome.THROTTLED)
        if verdict.pause is not None:
            return verdict
        if (values := evidence.headers.get("retry-after")) and not self._unusable_logged:
            self._unusable_logged = True
            logger.info(
                "A Retry-After of %(values)s is no time to wait; it counts as absent "
                "(told once; status %(status)d)",
                {"values": [value[:60] for value in values[:3]], "status": evidence.status},
            )
        quota = verdict.quota
        if quota is not None and quota.reset:
            told = evidence.exhausted or (quota.remaining is None and evidence.status == 429)
            return replace(verdict, pause=quota.reset if told else None)
        return verdict

    def is_failed(self, evidence: Evidence) -> bool:
        """Whether the site is in trouble: a status in ``RETRY_HTTP_CODES``."""
        return evidence.status in self.retry_http_codes

    def is_proxy_fault(self, request: Request, exception: Exception) -> bool:
        """Whether the proxy could not be reached, or could not open a tunnel.

        A timeout while waiting for the answer is not: the site may as well have caused it.
        """
        if not request.meta.get("proxy"):
            return False
        errors = [error for error in (exception, exception.__cause__) if error is not None]
        # A bad certificate is the site's, although some clients report a failed connection.
        if any("certificate" in str(error).lower() for error in errors):
            return False
        return any(_is_connect_fault(error) for error in errors)


def _is_gzip(encodings: list[str]) -> bool:
    return len(encodings) == 1 and encodings[0].strip().lower() in ("gzip", "x-gzip")


def _is_connect_fault(error: BaseException) -> bool:
    names = {cls.__name__ for cls in type(error).__mro__}
    # Scrapy < 2.15 tells the timeout of a whole download with Twisted's error for connecting.
    return not names.isdisjoint(_CONNECT_FAULTS) and "took longer than" not in str(error)


def _header_weights(evidence: Evidence) -> dict[str, int]:
    weights: dict[str, int] = {}
    for name, values in evidence.headers.items():
        for vendor, mark in markers.MARKS_BY_HEADER.get(name, ()):
            if (not mark.statuses or evidence.status in mark.statuses) and any(
                mark.value in value.lower() for value in values
            ):
                _add(weights, vendor, mark.weight)
    return weights


def _add_path_weights(evidence: Evidence, weights: dict[str, int]) -> None:
    """Judge the address of the page, or of where it redirects to."""
    status = evidence.status
    url = evidence.response.url
    weight = markers.THRESHOLD if status in _REFUSALS else 1
    if 300 <= status < 400:
        url, weight = evidence.headers.get("location", [""])[0], markers.THRESHOLD
    for path, vendor in markers.VENDOR_BY_PATH:
        # Parsing is dear, and nearly no address needs it.
        if path in url and _is_page_of(vendor, path, evidence.response.url, url):
            _add(weights, vendor, weight)


def _add_body_weights(evidence: Evidence, weights: dict[str, int]) -> None:
    status = evidence.status
    if evidence.accepted:
        types = evidence.headers.get("content-type")
        if (types and "html" not in types[0].lower()) or not (text := evidence.lowered):
            return
        for vendor, weight in markers.signs_of_challenge(text).items():
            _add(weights, vendor, weight)
    elif status >= 400 and evidence.body:
        text, title = evidence.lowered, markers.title_of(evidence.lowered)
        for refuser in markers.VENDORS:
            if not refuser.statuses or status in refuser.statuses:
                for sign in refuser.body:
                    if sign.text in (title if sign.in_title else text):
                        _add(weights, refuser.name, sign.on_error)


def _add(weights: dict[str, int], vendor: str, weight: int) -> None:
    weights[vendor] = weights.get(vendor, 0) + weight


def _is_page_of(vendor: str, path: str, base: str, url: str) -> bool:
    """Whether *url*, seen from *base*, is on a host of *vendor* and its path begins with *path*.

    Anybody may have a page called sorry.
    """
    try:
        parts = urlsplit(urljoin(base, url))
        return parts.path.startswith(path) and vendor in (parts.hostname or "").split(".")
    except ValueError:
        return False
