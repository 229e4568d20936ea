"""Reading ``Retry-After`` and the many dialects of rate-limit headers.

Sources: RFC 9110 (``Retry-After``, HTTP dates), the IETF drafts "RateLimit header fields for
HTTP" (both the ``limit=, remaining=, reset=`` form and the later ``"name";r=;t=`` form), and
what sites send in the field: prefixed headers, epochs in seconds or milliseconds, durations
such as ``6m0s``, ISO 8601 times.

Nothing here raises on any text: what cannot be understood counts as absent.
"""

from __future__ import annotations

import math
import re
from calendar import timegm
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_tz
from typing import TYPE_CHECKING

from scrapy_backpressure.control.outcome import Quota

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_EPOCH_SECONDS = 1e9
"""Numbers above this are points in time (seconds since 1970), not durations."""
_EPOCH_MILLISECONDS = 1e12
_MAX_TEXT = 2048
"""Header text beyond this is cut: no dialect needs more, and parsing stays cheap."""

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_DURATION_PART = re.compile(
    r"(\d+(?:\.\d+)?)\s*"
    r"(ms|msecs?|milliseconds?|us|µs|ns|s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?)"
    r"(?![a-zµ])\s*",
    re.ASCII | re.IGNORECASE,
)
_UNITS = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "s": 1.0, "m": 60.0, "h": 3600.0}
_ISO_8601 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?"
    r"\s*(?:([+-])(\d\d):?(\d\d))?\s*(?:Z|UTC|GMT)?",
    re.ASCII | re.IGNORECASE,
)
# A comma after a weekday belongs to an HTTP date; any other separates list members.
_LIST_COMMA = re.compile(
    r"(?<!mon)(?<!tue)(?<!wed)(?<!thu)(?<!fri)(?<!sat)(?<!sun)(?<!day),", re.IGNORECASE
)
_MEMBER = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+')
_PARAMETER = re.compile(r'(?:[^;"]|"(?:[^"\\]|\\.)*")+')
_NAME = re.compile(r"(?P<prefix>.*?)rate-?limit(?:-(?P<rest>.+))?", re.DOTALL)
_WINDOWS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "month": 2592000.0}
_FIELDS = frozenset({"limit", "remaining", "used", "reset", "after", "next", "policy"})
_SHOPIFY = "x-shopify-shop-api-call-limit"
_NOT_REQUESTS = re.compile("token|byte")


def parse_retry_after(
    values: Sequence[str], *, now: float, date: str | None = None
) -> float | None:
    """Return for how many seconds a site asks not to be called, or None if it does not say.

    ``values`` are all ``Retry-After`` values of the answer, as text; ``now`` is the wall clock
    in epoch seconds; ``date`` is the answer's ``Date`` header, against which points in time are
    read so that a skewed clock on either side does no harm. Of several values the longest wins.
    The result is finite and positive, and as large as the site said: bounding it is the
    caller's decision. Never raises.
    """
    clock = _Clock([date] if date else (), now)
    waits = (_seconds(text, clock) for text in _members(values))
    return max((wait for wait in waits if wait is not None and wait > 0), default=None)


def parse_quota(headers: Mapping[str, Sequence[str]], *, now: float) -> Quota | None:
    """Return what the rate-limit headers of an answer say, or None if nothing usable.

    ``headers`` maps lower-case names to their values as text; other headers in it are ignored,
    except ``date``, which corrects clock skew. ``now`` is the wall clock in epoch seconds. When
    several quotas are told (per second and per day, say), the most binding one is returned: a
    used-up one that resets last, else the one that allows the slowest pace. Never raises.
    """
    clock = _Clock(headers.get("date", ()), now)
    groups: dict[tuple[str, str], _Group] = {}
    structured: list[tuple[str, Sequence[str]]] = []
    policies: dict[str, list[_Policy]] = {}
    for name, values in headers.items():
        match = _NAME.fullmatch(name.lower())
        if match is None:
            continue
        prefix, rest = match["prefix"], match["rest"]
        if rest is None:
            structured.append((prefix, values))
            continue
        what, resource = _field_and_resource(rest)
        if what == "policy":
            policies.setdefault(prefix, []).extend(_policies(values))
        elif what:
            group = groups.setdefault((prefix, resource), _Group(resource))
            group.add(what, values, clock)

    quotas = [
        quota
        for (prefix, _), group in groups.items()
        if (quota := group.quota(policies.get(prefix, ())))
    ]
    for prefix, values in structured:
        quotas.extend(_structured_quotas(values, policies.get(prefix, ()), clock))
    quotas.extend(_call_limits(headers.get(_SHOPIFY, ())))
    every_policy = [policy for some in policies.values() for policy in some]
    if not quotas:
        quotas = [
            Quota(limit=policy.limit, window=policy.window)
            for policy in every_policy
            if policy.counts_requests
        ]
    binding = min(quotas, key=_slackness, default=None)
    concurrency = min(
        (policy.limit for policy in every_policy if policy.unit == "concurrent-requests"),
        default=None,
    )
    if concurrency is None:
        return binding
    if binding is None:
        return Quota(concurrency=concurrency)
    return Quota(binding.limit, binding.remaining, binding.reset, binding.window, concurrency)


class _Clock:
    """The site's own time by its ``Date`` header, ours when it has none; read when needed."""

    __slots__ = ("_dates", "_now", "_time")

    def __init__(self, dates: Sequence[str], now: float) -> None:
        self._dates = dates
        self._now = now
        self._time: float | None = None

    def until(self, point: float) -> float:
        """Seconds from the site's now to ``point`` (epoch seconds); negative when past."""
        if self._time is None:
            times = (_point_in_time(text.strip()) for text in self._dates)
            self._time = next((time for time in times if time is not None), self._now)
        return point - self._time


@dataclass(slots=True)
class _Policy:
    """One member of ``RateLimit-Policy``, or of ``RateLimit-Limit`` when it has a window."""

    name: str
    limit: float
    window: float | None
    unit: str

    @property
    def counts_requests(self) -> bool:
        return self.unit in ("", "requests")


@dataclass(slots=True)
class _Group:
    """Plain headers that speak of one resource: ``x-ratelimit-*-requests``, say."""

    resource: str
    limits: list[float] = field(default_factory=list)
    remaining: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)
    resets: list[float] = field(default_factory=list)
    resets_after: list[float] = field(default_factory=list)
    nexts: list[float] = field(default_factory=list)
    policies: list[_Policy] = field(default_factory=list)

    def add(self, what: str, values: Sequence[str], clock: _Clock) -> None:
        """Take in one header of this group."""
        if what == "limit":
            for name, parameters in _structured(values):
                limit = _count(name)
                if limit is not None and not parameters:
                    self.limits.append(limit)
            self.policies.extend(_policies(values))
            return
        if what in ("remaining", "used"):
            counts = (_count(text) for text in _members(values))
            target = self.remaining if what == "remaining" else self.used
            target.extend(count for count in counts if count is not None)
            return
        times = (_seconds(text, clock) for text in _members(values))
        target = {"reset": self.resets, "after": self.resets_after, "next": self.nexts}[what]
        target.extend(max(0.0, time) for time in times if time is not None)

    def quota(self, policies: Sequence[_Policy]) -> Quota | None:
        """The group as a quota; None when it says nothing about requests."""
        limit = min(self.limits, default=None)
        remaining = min(self.remaining, default=None)
        # Delta seconds need no clock, hence win over an epoch told beside them.
        reset = max(self.resets_after or self.resets or self.nexts, default=None)
        if remaining is None and self.used:
            used = max(self.used)
            remaining = max(0.0, limit - used) if limit is not None else None
        elif limit is None and self.used and remaining is not None:
            limit = max(self.used) + remaining
        if remaining is None and max(self.nexts, default=0.0) > 0:
            remaining = 0.0
        window = _WINDOWS.get(self.resource) or _duration(self.resource)
        policy = _matching(limit, [*self.policies, *policies])
        if policy is not None:
            limit = policy.limit if limit is None else limit
            window = policy.window if window is None else window
        if limit is None and remaining is None and reset is None:
            return None
        if _NOT_REQUESTS.search(self.resource) and remaining != 0:
            # So many tokens left says nothing about requests; none left stops them all.
            return None
        return Quota(limit, remaining, reset, window)


def _matching(limit: float | None, policies: Sequence[_Policy]) -> _Policy | None:
    """The policy that a plain limit belongs to."""
    countable = [policy for policy in policies if policy.counts_requests]
    for policy in countable:
        if limit is not None and policy.limit == limit:
            return policy
    return countable[0] if len(countable) == 1 and limit is None else None


def _field_and_resource(rest: str) -> tuple[str, str]:
    """Split ``limit-requests`` or ``requests-limit`` into ``("limit", "requests")``."""
    words = rest.split("-")
    fields = [word for word in words if word in _FIELDS]
    resource = "-".join(word for word in words if word not in _FIELDS)
    if not fields:
        return "", resource
    if "after" in fields:
        return ("after" if "reset" in fields else ""), resource
    return fields[-1], resource


def _structured_quotas(
    values: Sequence[str], policies: Sequence[_Policy], clock: _Clock
) -> Iterator[Quota]:
    """The quotas in a ``RateLimit`` header of either draft form."""
    by_name = {policy.name: policy for policy in policies}
    flat: dict[str, str] = {}
    for name, parameters in _structured(values):
        if parameters.keys() & {"limit", "remaining", "reset"}:
            flat.update(parameters)
            continue
        remaining = _count(parameters.get("r", ""))
        reset = _seconds(parameters.get("t", ""), clock)
        if remaining is None:
            continue
        policy = by_name.get(name)
        if policy is not None and not policy.counts_requests:
            continue
        yield Quota(
            limit=policy.limit if policy else None,
            remaining=remaining,
            reset=None if reset is None else max(0.0, reset),
            window=policy.window if policy else None,
        )
    group = _Group("")
    for what in ("limit", "remaining", "reset"):
        if what in flat:
            group.add(what, [flat[what]], clock)
    if quota := group.quota(policies):
        yield quota


def _policies(values: Sequence[str]) -> Iterator[_Policy]:
    for name, parameters in _structured(values):
        limit = _count(parameters.get("q", name))
        if limit is None or not parameters:
            continue
        window = _count(parameters.get("w", ""))
        yield _Policy(name, limit, window or None, parameters.get("qu", "").lower())


def _call_limits(values: Sequence[str]) -> Iterator[Quota]:
    """``32/40``: calls in a leaky bucket, and its size."""
    for text in _members(values):
        used, _, size = text.partition("/")
        calls, limit = _count(used), _count(size)
        if calls is not None and limit is not None:
            yield Quota(limit=limit, remaining=max(0.0, limit - calls))


def _slackness(quota: Quota) -> tuple[int, float]:
    """Sort key: the most binding quota first."""
    remaining, span = quota.remaining, quota.reset or quota.window
    if remaining is not None and remaining < 1:
        return 0, -(quota.reset or 0.0)
    if remaining is not None and span:
        return 1, remaining / span
    if remaining is not None:
        return 2, remaining
    if quota.limit is not None and quota.window:
        return 3, quota.limit / quota.window
    return 4, quota.limit if quota.limit is not None else math.inf


def _structured(values: Iterable[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Members of a structured field as (name, parameters), leniently (RFC 9651 in spirit)."""
    for value in values:
        if value.isdigit():
            yield value, {}
            continue
        for member in _MEMBER.findall(value[:_MAX_TEXT]):
            head, *rest = _PARAMETER.findall(member) or [""]
            parameters: dict[str, str] = {}
            name = head.strip()
            if "=" in name and not name.startswith('"'):
                rest.insert(0, name)
                name = ""
            for text in rest:
                key, _, content = text.partition("=")
                parameters[key.strip().lower()] = content.strip().strip('"')
            yield name.strip('"'), parameters


def _members(values: Iterable[str]) -> Iterator[str]:
    """Members of list headers, HTTP dates left whole."""
    for value in values:
        yield from (part.strip() for part in _LIST_COMMA.split(value[:_MAX_TEXT]))


def _count(text: str) -> float | None:
    """A number of requests; None for what cannot be one. Sites write "no limit" as 2**63 - 1."""
    number = _number(text.strip())
    return number if number is not None and 0 <= number < 1e15 else None


def _seconds(text: str, clock: _Clock) -> float | None:
    """Seconds from ``clock``: of a number, an epoch, a duration or a date. May be negative."""
    number = _number(text)
    if number is None:
        number = _duration(text)
        if number is not None:
            return number
        point = _point_in_time(text)
        return None if point is None else clock.until(point)
    if number > _EPOCH_MILLISECONDS:
        return clock.until(number / 1000)
    if number > _EPOCH_SECONDS:
        return clock.until(number)
    return number


def _number(text: str) -> float | None:
    if _NUMBER.fullmatch(text) is None:
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def _duration(text: str) -> float | None:
    """``1m0s``, ``500ms``, ``30 seconds`` in seconds."""
    total, end = 0.0, 0
    while end < len(text):
        match = _DURATION_PART.match(text, end)
        if match is None:
            return None
        unit = match[2].lower()
        if unit not in _UNITS:
            unit = "ms" if unit.startswith(("ms", "milli")) else unit[0]
        total += float(match[1]) * (86400.0 if unit == "d" else _UNITS[unit])
        end = match.end()
    return total if end and math.isfinite(total) else None


def _point_in_time(text: str) -> float | None:
    """Epoch seconds of an HTTP date (any form, any zone; unknown zones as UTC) or ISO 8601."""
    if len(text) > 64:
        return None
    try:
        match = _ISO_8601.fullmatch(text)
        if match is None:
            return _http_date(text)
        year, month, day, hour, minute = (int(match[i]) for i in range(1, 6))
        moment = datetime(
            year, month, day, hour, minute, int(match[6] or 0), tzinfo=timezone.utc
        ) + timedelta(seconds=float(f"0.{match[7] or 0}"))
        offset = 3600.0 * int(match[9] or 0) + 60.0 * int(match[10] or 0)
        return moment.timestamp() - (offset if match[8] == "+" else -offset)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _http_date(text: str) -> float | None:
    # The standard library accepts far less than a date; a time of day makes it one.
    if ":" not in text:
        return None
    parsed = parsedate_tz(text)
    if parsed is None:
        return None
    year, month, day, hour, minute, second = parsed[:6]
    datetime(year, month, day, hour, minute, min(second, 59))  # raises where timegm guesses
    return float(timegm(parsed[:9]) - (parsed[9] or 0))
