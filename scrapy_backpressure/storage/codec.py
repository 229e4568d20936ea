"""Requests as bytes, for the queues on disk; and as JSON, for people and other programs."""

from __future__ import annotations

import logging
import math
import pickle
import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.utils.misc import load_object
from scrapy.utils.request import request_from_dict

from scrapy_backpressure.history import PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy import Spider

logger = logging.getLogger(__name__)

_PROTOCOL = 4
"""The one that Scrapy's disk queues use: readable by every Python that this package runs on."""

_SCALARS = (type(None), bool, int, float, complex, str, bytes)

_SCRAPY_LISTS = frozenset({"handle_httpstatus_list", "redirect_urls", "redirect_reasons"})
"""Meta keys whose values are mutable, but which nothing changes in place."""

_MAX_DEPTH = 50
_MAX_INT_BITS = 10_000
"""Python refuses to turn integers of more than 4300 digits into text."""

_LOST = object()

_SECRET_NAMES = frozenset(
    {
        *("authorization", "proxy-authorization", "cookie", "cookies", "set-cookie"),
        *("http-user", "http-pass", "ftp-user", "ftp-password"),
    }
)
"""Headers and meta keys, in lower case and with hyphens, whose values are credentials."""

# Up to the last @ before the end of the authority: passwords with a bare @ occur.
_URL_USERINFO = re.compile(r"//[^\s/?#\"<>]*@")
_QUOTED_USERINFO = re.compile(r"(%2F%2F)(?:(?!%2F|%3F|%23)[^\s/?#&])*%40", re.IGNORECASE)
_BARE_USERINFO = re.compile(
    r"(?<![^\s/:@\"'<>])[^\s/:@\"'<>]{1,2000}:[^\s\"<>]{0,2000}@(?=[\w\[])"
)
_HEADER_IN_TEXT = re.compile(
    r"((?:proxy-)?authorization|(?:set-)?cookie)(['\"]?\s*[:=,]\s*)[^\r\n]*", re.IGNORECASE
)
# Stricter, for what may be a title about cookies.
_HEADER_IN_DATA = re.compile(
    r"((?:(?:proxy-)?authorization['\"]?\s*:\s*)"
    r"|(?:(?:set-)?cookie['\"]?\s*:\s*(?=['\"]?[^\s=;,]+=)))[^\r\n]*",
    re.IGNORECASE,
)
_ONE_URL = re.compile(r"[a-z][a-z0-9+.-]*://\S*", re.IGNORECASE)


def encode(request: Request, spider: Spider) -> bytes:
    """Return *request* as bytes that :func:`decode` turns back into an equal request.

    What is kept is what Scrapy's own disk queues keep: the attributes that the class of the
    request names, with callback and errback as names of methods of *spider*.

    The bytes are a pickle: only ever decode what this crawl, or an earlier run of it, wrote.

    Raises:
        ValueError: the request cannot be kept outside of memory; the message says why. The usual
            causes are a callback that is not a method of the spider, such as a lambda, and an
            object in ``meta`` or ``cb_kwargs`` that cannot be pickled. Others are a value that
            was set after the request was made, and of which none could be made.
    """
    # Anything may come out of a user's __reduce__, __getstate__ or property of the spider; all of
    # it means the same here: this request stays in memory.
    try:
        fields = _to_dict(request, spider)
        if "_class" in fields and load_object(fields["_class"]) is not type(request):
            raise TypeError(f"{fields['_class']} is another class than that of the request")
        data = pickle.dumps(fields, protocol=_PROTOCOL)
        if not _is_usual(request):
            decode(data, spider)
    except Exception as error:
        raise ValueError(
            f"{request} cannot be written to disk: {type(error).__name__}: {error}"
        ) from error
    return data


def _is_usual(request: Request) -> bool:
    """Whether a request like *request* can surely be made: what was set later is not checked."""
    return (
        type(request) is Request
        and type(request.priority) is int
        and type(request.flags) is list
        and type(request.cookies) in (dict, list)
        and all(type(value) is bytes for _, values in request.headers.items() for value in values)
    )


def _to_dict(request: Request, spider: Spider) -> dict[str, Any]:
    """What ``request.to_dict(spider=spider)`` returns, in a third of the time: that one looks at
    everything that the spider has to find the name of a callback.
    """
    cls = type(request)
    fields: dict[str, Any] = {"url": request.url}
    for which in ("callback", "errback"):
        function = getattr(request, which)
        if function is None:
            fields[which] = None
            continue
        name = fields[which] = getattr(function, "__name__", "")
        own = getattr(function, "__self__", None) is spider
        if not own or getattr(spider, name, None) != function:
            return request.to_dict(spider=spider)
    if cls.to_dict is not Request.to_dict:
        return request.to_dict(spider=spider)
    fields["headers"] = dict(request.headers)
    for name in cls.attributes:
        if name not in fields:
            fields[name] = getattr(request, name)
    if cls is not Request:
        fields["_class"] = f"{cls.__module__}.{cls.__name__}"
    return fields


def decode(data: bytes, spider: Spider) -> Request:
    """Return the request that :func:`encode` turned into *data*.

    Raises:
        ValueError: *data* is damaged, or names a method that *spider* or a class that the project
            no longer has; the message says which.
    """
    fields: Any = None
    try:
        fields = pickle.loads(data)
        return request_from_dict(fields, spider=spider)
    except Exception as error:
        named = isinstance(fields, dict) and isinstance(fields.get("url"), str)
        which = f" ({clean_text(fields['url'])})" if named else ""
        raise ValueError(
            f"A request read from disk cannot be restored{which}: {type(error).__name__}: {error}"
        ) from error


def is_plain(request: Request) -> bool:
    """Tell whether a copy of *request* from disk behaves as the one in memory.

    True when ``meta`` and ``cb_kwargs`` hold only immutable scalars, and tuples and frozensets of
    them: then nothing in the request can be shared with, or be changed by, anyone else, and
    :func:`encode` and :func:`decode` lose nothing. Scrapy's own keys and those of this package
    (``backpressure_*``) are not looked at.
    """
    return all(_is_immutable(value) for value in request.cb_kwargs.values()) and all(
        _is_immutable(value)
        for key, value in request.meta.items()
        if key not in _SCRAPY_LISTS and not str(key).startswith(PREFIX)
    )


def _is_immutable(value: Any) -> bool:
    # Exact types: a subclass can carry attributes, and with them anything.
    if type(value) in (tuple, frozenset):
        return all(_is_immutable(element) for element in value)
    return type(value) in _SCALARS


class Coder:
    """Requests of one crawl as bytes, as far as they should not stay in memory.

    *persistent*: the bytes are for the next run as well. If not, requests stay in memory that
    share mutable objects with the spider through ``meta`` or ``cb_kwargs``, which a copy would
    part.
    """

    def __init__(self, spider: Spider, persistent: bool) -> None:
        self.spider = spider
        self.persistent = persistent
        self._warned = False

    def encode(self, request: Request) -> bytes | None:
        """Return *request* as bytes; None if it has to stay in memory."""
        if not self.persistent and not is_plain(request):
            return None
        try:
            return encode(request, self.spider)
        except ValueError as error:
            if self.persistent and not self._warned:
                self._warned = True
                logger.warning(
                    "Cannot keep %(request)s in the JOBDIR, so it would not survive a stop and "
                    "goes to the dead letters then: %(error)s (further ones are not logged)",
                    {"request": request, "error": error},
                    extra={"spider": self.spider},
                )
            return None

    def decode(self, data: bytes) -> Request:
        """Return what :meth:`encode` turned into *data*.

        Raises:
            ValueError: as :func:`decode`.
        """
        return decode(data, self.spider)


class JsonRecord:
    """Turns values into what JSON can hold, without credentials unless *secrets* is true.

    ``dropped`` has the names of what is lost or changed, in the order in which they came up.
    """

    def __init__(self, secrets: bool) -> None:
        self.secrets = secrets
        self.dropped: dict[str, None] = {}

    def value(self, value: Any, name: str, depth: int = 0) -> Any:
        """Return *value* for JSON: ``None`` if it is lost as a whole."""
        clean = self._value(value, name, depth)
        return None if clean is _LOST else clean

    def text(self, text: str) -> str:
        """Return a text that people read: an error message, a reason, a URL."""
        text = text.encode(errors="backslashreplace").decode()
        return text if self.secrets else clean_text(text)

    def url(self, url: str, name: str) -> str:
        return self._unless_secrets(url, _clean_urls(url), name)

    def proxy(self, proxy: str, name: str) -> str:
        # Not by the pattern for URLs: a scheme may be missing, and a password may hold anything.
        proxy = proxy.encode(errors="backslashreplace").decode()
        scheme, separator, rest = proxy.rpartition("://")
        clean = f"{scheme}{separator}{rest.rpartition('@')[2]}"
        return self._unless_secrets(proxy, clean, name)

    def headers(self, headers: Mapping[Any, Any], name: str) -> dict[str, list[str]]:
        result = {}
        for raw, values in headers.items():
            key = raw.decode("latin-1")
            if self._is_secret(key):
                self._lose(f"{name}.{key}")
                continue
            try:
                result[key] = [self._string(value.decode(), f"{name}.{key}") for value in values]
            except (UnicodeDecodeError, AttributeError):  # the latter: no bytes at all
                self._lose(f"{name}.{key}")
        return result

    def method(self, spider: Spider | None, function: Any, name: str) -> str | None:
        if function is None:
            return None
        found = _method_name(spider, function)
        if found is None:
            self._lose(name)
        return found

    def attempt(self, attempt: Mapping[str, Any]) -> dict[str, Any]:
        when, proxy = attempt.get("time"), attempt.get("proxy")
        texts = {
            key: None if attempt.get(key) is None else self.text(str(attempt[key]))
            for key in ("exception", "outcome", "reason")
        }
        return {
            "time": None if when is None else iso_time(when),
            "status": self.value(attempt.get("status"), "status"),
            **texts,
            "proxy": None if proxy is None else self.proxy(str(proxy), "proxy"),
            "latency": self.value(attempt.get("latency"), "latency"),
        }

    def _value(self, value: Any, name: str, depth: int) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:  # half a surrogate pair
                return self._lose(name)
            return self._string(str.__str__(value), name)
        if isinstance(value, int) and value.bit_length() <= _MAX_INT_BITS:
            return int(value)
        if isinstance(value, float) and math.isfinite(value):
            return float(value)
        if depth < _MAX_DEPTH:  # also ends a structure that contains itself
            if isinstance(value, list | tuple):
                return [self.value(v, f"{name}[{i}]", depth + 1) for i, v in enumerate(value)]
            if isinstance(value, dict):
                return self._dict(value, name, depth)
        return self._lose(name)

    def _dict(self, value: dict[Any, Any], name: str, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, element in value.items():
            path = f"{name}.{key}" if isinstance(key, str) else f"{name}[{key!a}]"
            clean_key: Any = self._value(key, path, depth + 1) if isinstance(key, str) else _LOST
            if clean_key is _LOST or self._is_secret(clean_key) or clean_key in result:
                self._lose(path)
                continue
            clean: Any
            if clean_key == "proxy" and isinstance(element, str):
                clean = self.proxy(element, path)
            else:
                clean = self._value(element, path, depth + 1)
            if clean is not _LOST:
                result[clean_key] = clean
        return result

    def _string(self, text: str, name: str) -> str:
        clean = _clean_urls(text)
        # A URL is data: what its query says of cookies is no header.
        if not _ONE_URL.fullmatch(text):
            clean = _HEADER_IN_DATA.sub(r"\1***", clean)
        return self._unless_secrets(text, clean, name)

    def _unless_secrets(self, text: str, clean: str, name: str) -> str:
        if self.secrets or clean == text:
            return text
        self._lose(name)
        return clean

    def _is_secret(self, name: str) -> bool:
        return not self.secrets and name.lower().replace("_", "-") in _SECRET_NAMES

    def _lose(self, name: str) -> Any:
        self.dropped[name.encode(errors="backslashreplace").decode()] = None
        return _LOST


def iso_time(seconds: float) -> str:
    """Return *seconds* since the epoch as ISO 8601, UTC, to the millisecond."""
    moment = datetime.fromtimestamp(seconds, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds")


def _clean_urls(text: str) -> str:
    return _QUOTED_USERINFO.sub(r"\1", _URL_USERINFO.sub("//", text))


def clean_text(text: str) -> str:
    """Return *text*, which people read and nothing sends, without any credentials."""
    return _HEADER_IN_TEXT.sub(r"\1\2***", _BARE_USERINFO.sub("", _clean_urls(text)))


def _method_name(spider: Spider | None, function: Any) -> str | None:
    """Return the name under which *spider* has *function*; None if it has not."""
    cls = type(spider)
    name = getattr(function, "__name__", None)
    if isinstance(name, str) and hasattr(cls, name) and getattr(spider, name) == function:
        return name
    # A name that is private to a class, or a decorator that did not keep it.
    if spider is None or getattr(function, "__self__", None) is not spider:
        return None
    plain = getattr(function, "__func__", None)
    return next((name for name in dir(cls) if getattr(cls, name, None) is plain), None)
