"""Dead letters on their way back: read from their feeds, checked, and made requests again.

A feed is data from outside. Nothing of it is unpickled or evaluated, and of the spider it can name
nothing but plain methods.
"""

from __future__ import annotations

import base64
import gzip
import inspect
import io
import json
import re
import zlib
from dataclasses import dataclass
from datetime import datetime, timezone
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from scrapy import Request

from scrapy_backpressure import history
from scrapy_backpressure.deadletter import SCHEMA, is_internal
from scrapy_backpressure.storage.codec import clean_text, iso_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from scrapy import Spider

_JSON = json.JSONDecoder()
_BETWEEN = re.compile(r"[\s,\[\]]*")
"""What stands between the records of an array, or of several that were appended."""
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_AGE_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class Unfit(ValueError):
    """A record that cannot be sent again; the message says why."""


# -- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A record as it stands in its file, in one line and unchecked."""

    path: Path
    line: int
    text: bytes

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}"


class _Head(io.RawIOBase):
    """The first *size* bytes of a file."""

    def __init__(self, file: io.BufferedReader, size: int) -> None:
        self._file = file
        self._left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)


def entries(path: Path, size: int) -> Iterator[Entry]:
    """The records of the first *size* bytes of a feed, one after the other.

    Read no further, a run can append the dead letters of its own to the feed that it sends again.
    The feed is JSON Lines, read line by line, or, where its name ends in ``.json``, one or more
    arrays, read as a whole; both may be compressed with gzip.

    :raises OSError: the file cannot be read, or not to its end.
    """
    with path.open("rb") as file:
        stream: Any = io.BufferedReader(_Head(file, size))
        if stream.peek(2)[:2] == b"\x1f\x8b":
            stream = gzip.GzipFile(fileobj=stream)
        try:
            if path.name.removesuffix(".gz").endswith(".json"):
                data = stream.read()
                is_array = data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
                found = _elements(data) if is_array else enumerate(data.splitlines(), 1)
            else:
                found = enumerate(stream, 1)
            for line, text in found:
                if text.strip():
                    yield Entry(path, line, text.rstrip(b"\r\n"))
        except (EOFError, zlib.error) as error:
            raise OSError(f"the compressed data is damaged: {error}") from error


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The elements of arrays, each with the number of its first line and in one line."""
    text = data.decode("utf-8-sig", errors="surrogateescape")
    line, position = 1, 0
    while True:
        start = cast("re.Match[str]", _BETWEEN.match(text, position)).end()
        line += text.count("\n", position, start)
        if start == len(text):
            return
        try:
            position = _JSON.raw_decode(text, start)[1]
        except (ValueError, RecursionError):
            # Scrapy's exporter begins each record on a line of its own.
            position = text.find("\n{", start)
            position = len(text) if position < 0 else position
        # Within JSON, ends of lines have no meaning.
        one_line = text[start:position].replace("\r", " ").replace("\n", " ").strip()
        yield line, one_line.encode(errors="surrogateescape")
        line += text.count("\n", start, position)


# -- checking ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """The fields of a dead letter that it takes to send it again. Times are epoch seconds."""

    spider: str
    time: float
    first_seen: float
    outcome: str | None
    reason: str
    dropped: list[str]
    redrives: int
    request: dict[str, Any]

    @classmethod
    def parse(cls, text: bytes) -> Record:
        """Read one record.

        :raises Unfit: it is none of a schema that is known here.
        """
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            what = getattr(error, "msg", str(error))
            raise Unfit(f"is no JSON: {what}") from error
        if not isinstance(value, dict):
            raise Unfit("is no JSON object")
        schema = _field(value, "schema", int, "an integer")
        if schema != SCHEMA:
            newer = ", written by a newer version" if schema > SCHEMA else ""
            raise Unfit(f"has the schema {schema}{newer}; known is {SCHEMA}")
        redrives = _field(value, "redrives", int, "an integer of at least 0")
        if redrives < 0:
            raise Unfit(f"has {redrives} for redrives, not an integer of at least 0")
        return cls(
            spider=_field(value, "spider", str, "text"),
            time=_epoch(value, "time"),
            first_seen=_epoch(value, "first_seen"),
            outcome=_field(value, "outcome", (str, type(None)), "text or null"),
            reason=_field(value, "reason", str, "text"),
            dropped=_texts(value, "dropped"),
            redrives=redrives,
            request=_field(value, "request", dict, "an object"),
        )

    def to_request(self, cls: type[Spider], spider: Spider | None = None) -> Request:
        """The request, for a spider of the class *cls*: *spider*, or none, for a mere check.

        It counts as sent again, is new to the retries, and passes the seen-filter.

        :raises Unfit: no request can be made of it, or not the one that it was.
        """
        for name in ("callback", "errback"):
            if name in self.dropped:
                raise Unfit(f"does not have its {name}, which was no method of the spider")
        told = self.request
        headers = _field(told, "headers", dict, "an object")
        meta = _field(told, "meta", dict, "an object")
        options: dict[str, Any] = {}
        if "cookies" in told:
            options["cookies"] = _field(told, "cookies", (dict, list), "an object or a list")
        options |= {
            "url": _url(told),
            "method": _field(told, "method", str, "text"),
            "headers": {name: _texts(headers, name) for name in headers},
            "body": _body(told),
            "meta": {key: value for key, value in meta.items() if not is_internal(key)},
            "cb_kwargs": _field(told, "cb_kwargs", dict, "an object"),
            "callback": _method(told, "callback", cls, spider),
            "errback": _method(told, "errback", cls, spider),
            "priority": _field(told, "priority", int, "an integer"),
            "dont_filter": _field(told, "dont_filter", bool, "true or false"),
            "flags": _texts(told, "flags"),
        }
        try:
            request = Request(**options)
        except Exception as error:  # whatever Scrapy thinks of such values
            what = f"{type(error).__name__}: {_short(str(error))}"
            raise Unfit(f"makes no request: {what}") from error
        history.redrive(request, first_seen=self.first_seen, redrives=self.redrives)
        return request


def _field(record: dict[str, Any], name: str, types: Any, accepted: str) -> Any:
    if name not in record:
        raise Unfit(f"has no {name}")
    value = record[name]
    if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
        raise Unfit(f"has {_short(value)} for {name}, not {accepted}")
    return value


def _texts(record: dict[str, Any], name: str) -> list[str]:
    texts: list[str] = _field(record, name, list, "a list of texts")
    if not all(isinstance(text, str) for text in texts):
        raise Unfit(f"has more than texts in {name}")
    return texts


def _epoch(record: dict[str, Any], name: str) -> float:
    text = _field(record, name, str, "an ISO 8601 time")
    try:
        return _parse_time(text)
    except ValueError:
        raise Unfit(f"has {_short(text)} for {name}, not an ISO 8601 time") from None


def _url(record: dict[str, Any]) -> str:
    url: str = _field(record, "url", str, "a URL")
    try:
        parts = urlsplit(url)
        is_url = bool(parts.scheme and (parts.hostname or parts.scheme not in ("http", "https")))
    except ValueError:
        is_url = False
    if not is_url:
        raise Unfit(f"has {_short(url)} for url, not a URL")
    return url


def _body(record: dict[str, Any]) -> str | bytes:
    body = _field(record, "body", dict, "an object")
    if "text" in body:
        text: str = _field(body, "text", str, "text")
        return text
    data = _field(body, "base64", str, "base64")
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:
        raise Unfit("has a body that is no base64") from None


def _method(
    record: dict[str, Any], role: str, cls: type[Spider], spider: Spider | None
) -> Callable[..., Any] | None:
    """The method of the spider that a record names; looked up without running anything."""
    name = _field(record, role, (str, type(None)), "the name of a method, or null")
    if name is None:
        return None
    found = inspect.getattr_static(cls, name, None)
    plain = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
    is_special = name.startswith("__") and name.endswith("__")
    is_hidden = name in getattr(spider, "__dict__", ())  # by something else of that name
    if not isinstance(plain, FunctionType) or is_special or is_hidden:
        raise Unfit(f"names the {role} {_short(name)}, which is no method of the spider")
    bound: Callable[..., Any] = cast("Any", found).__get__(spider, cls)
    return bound


def _short(value: Any) -> str:
    if isinstance(value, (dict, list)):  # nested so deep, perhaps, that it has no repr()
        return "an object" if isinstance(value, dict) else "a list"
    text = ascii(value)
    return clean_text(text if len(text) <= 80 else f"{text[:77]}...")


# -- choosing ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """Which records are to be sent again; what is empty or None lets all pass."""

    reasons: frozenset[str] = frozenset()
    outcomes: frozenset[str] = frozenset()
    """Values of Outcome, or ``none`` for records without one."""
    since: float | None = None
    """Epoch seconds at or after which the request was given up."""
    url: re.Pattern[str] | None = None
    """To be found anywhere in the URL."""

    def accepts(self, record: Record) -> bool:
        """Whether *record* is wanted."""
        url = record.request.get("url")
        return (
            (not self.reasons or record.reason in self.reasons)
            and (not self.outcomes or (record.outcome or "none") in self.outcomes)
            and (self.since is None or record.time >= self.since)
            and (self.url is None or not isinstance(url, str) or bool(self.url.search(url)))
        )


def parse_since(text: str, now: float) -> float:
    """Return the epoch seconds that an ISO 8601 date or time, or an age such as ``2h``, names.

    :raises ValueError: *text* is neither.
    """
    age = _AGE.fullmatch(text.strip())
    if age:
        return now - float(age[1]) * _AGE_SECONDS[age[2]]
    return _parse_time(text.strip())


def _parse_time(text: str) -> float:
    """Epoch seconds; a time without a zone is in UTC.

    :raises ValueError: *text* is none.
    """
    if text.endswith(("Z", "z")):  # which Python 3.10 does not know
        text = f"{text[:-1]}+00:00"
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    try:
        seconds = moment.timestamp()
        iso_time(seconds)  # a zone can put it before the first year there is, or after the last
    except (OverflowError, OSError) as error:
        raise ValueError(str(error)) from error
    return seconds
