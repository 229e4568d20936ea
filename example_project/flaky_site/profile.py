"""What a profile may say: the rules of each host, as JSON one can read and change.

::

    {
      "seed": 1,                        // for everything random
      "grace": 0.05,                    // seconds in which a refusal reaches the client
      "default": { RULE },              // hosts that are not named below
      "hosts": {"127.0.0.2": { RULE }}  // by the name in the Host header, without the port
    }

A RULE has these keys, all optional (see :class:`Rule` for their meaning and defaults)::

    "latency": 0.05                     // seconds; or, for an answer that is slow at times:
    "latency": {"usual": 0.05, "slow": 0.6, "slow_share": 0.1}
    "max_at_once": 10                   // more are refused
    "serve_at_once": 10                 // more wait in a queue
    "rate": 20, "burst": 5              // a token bucket: requests a second, and how many at once
    "window": {"limit": 100, "seconds": 10}
    "refuse_status": 429, "refuse_latency": 0, "refuse_body": "slow down", "refuse_headers": {}
    "retry_after": 2                    // seconds, "auto", any text, or a list: several headers
    "ban": 3                            // seconds of refusing, restarted by each early hit
    "quota": "ratelimit"                // dialect of the quota headers, see flaky_site.quota
    "headers": {"Server": "nginx"}      // on every answer
    "faults": [ FAULT, ... ]            // the first that applies decides
    "steps": [{"at": 5, "max_at_once": 3}]   // at second 5 these keys of the rule change

A FAULT says to whom it happens and what happens::

    "match": "/page/7*"                 // the path with or without its query; * and ? are wild
    "share": 0.05                       // to that share of the requests, at random
    "times": 2, "per": "path"           // only the first two, of each path or ("host") of the host
    "from": 0, "until": 2               // only in these seconds
    "status": 503, "headers": {}, "body": "..."
    "base64": true                      // the body is base64 of the bytes to be sent
    "latency": 3                        // seconds, instead of the rule's
    "challenge": true                   // a page that asks for proof of being human, status 403
    "drop": true                        // the connection is cut; "within": amid the body
    "stall": true                       // no answer ever; "lost": nor does any limit count it
    "cut_gzip": true                    // the right page, its gzip stream cut in half

Some faults that sites have: 5 % random 503s ``{"share": 0.05, "status": 503}``; down for two
seconds ``{"until": 2, "drop": true}``; a page that is gone for good ``{"match": "/page/13",
"status": 503}``; a robots.txt that never comes ``{"match": "/robots.txt", "stall": true}``.

Seconds in a profile run from the first request after the start or the last reset.
"""

from __future__ import annotations

import base64
import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .quota import DIALECTS

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds that an answer takes: *usual*, and *slow* for a share of the requests."""

    usual: float = 0.0
    slow: float = 0.0
    slow_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """At most *limit* requests in each *seconds*, counted anew at every multiple of it."""

    limit: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong for the requests it matches."""

    match: str = "*"
    share: float = 1.0
    times: int | None = None
    per: str = "path"
    start: float = 0.0
    until: float = float("inf")
    status: int | None = None
    headers: Headers = ()
    body: str | bytes | None = None
    base64: bool = False
    latency: float | None = None
    challenge: bool = False
    drop: bool | str = False
    stall: bool | str = False
    cut_gzip: bool = False
    pattern: re.Pattern[str] = field(default=re.compile(""), repr=False)

    def matches(self, target: str) -> bool:
        """Whether *target* (path and query) is meant."""
        if self.pattern.match(target):
            return True
        path, mark, _ = target.partition("?")
        return bool(mark) and self.pattern.match(path) is not None


@dataclass(frozen=True, slots=True)
class Rule:
    """How a host behaves at a given time. Times in seconds, rates in requests per second."""

    latency: Latency = Latency()
    max_at_once: int | None = None
    serve_at_once: int | None = None
    rate: float | None = None
    burst: float = 1.0
    window: Window | None = None
    refuse_status: int = 429
    refuse_latency: float = 0.0
    refuse_body: str = "Too many requests.\n"
    refuse_headers: Headers = ()
    retry_after: float | str | tuple[str, ...] | None = None
    ban: float = 0.0
    quota: str | None = None
    headers: Headers = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class HostProfile:
    """The rules of one host over time: (second from which it holds, rule), in order."""

    schedule: tuple[tuple[float, Rule], ...]

    def rule_at(self, now: float) -> Rule:
        """Return the rule that holds *now* (seconds since the first request)."""
        for start, rule in reversed(self.schedule):
            if now >= start:
                return rule
        return self.schedule[0][1]


@dataclass(frozen=True, slots=True)
class Profile:
    """A whole site."""

    default: HostProfile
    hosts: Mapping[str, HostProfile]
    seed: int = 1
    grace: float = 0.05


def load_profile(data: Mapping[str, Any]) -> Profile:
    """Build a :class:`Profile` from what the JSON file holds.

    Raises ValueError with a sentence about it when a key is unknown or a value makes no sense.
    """
    _only(data, {"seed", "grace", "default", "hosts"}, "the profile")
    return Profile(
        default=_host_profile(data.get("default", {})),
        hosts={name: _host_profile(rule) for name, rule in data.get("hosts", {}).items()},
        seed=int(data.get("seed", 1)),
        grace=float(data.get("grace", 0.05)),
    )


def _host_profile(data: Mapping[str, Any]) -> HostProfile:
    current = {key: value for key, value in data.items() if key != "steps"}
    schedule = [(0.0, _rule(current))]
    for step in sorted(data.get("steps", ()), key=lambda step: float(step["at"])):
        current = {**current, **{key: value for key, value in step.items() if key != "at"}}
        schedule.append((float(step["at"]), _rule(current)))
    return HostProfile(tuple(schedule))


def _rule(data: Mapping[str, Any]) -> Rule:
    _only(data, {field.name for field in fields(Rule)}, "a rule")
    values = dict(data)
    latency = values.get("latency", 0.0)
    values["latency"] = (
        Latency(**latency) if isinstance(latency, Mapping) else Latency(float(latency))
    )
    if values.get("window") is not None:
        values["window"] = Window(**values["window"])
        if values["window"].seconds <= 0:
            raise ValueError("a window needs seconds above 0")
    if values.get("rate") is not None and values["rate"] <= 0:
        raise ValueError("rate is in requests per second and must be above 0")
    if values.get("quota") not in {None, *DIALECTS}:
        raise ValueError(f"quota is one of {', '.join(DIALECTS)}")
    if isinstance(values.get("retry_after"), list):
        values["retry_after"] = tuple(str(value) for value in values["retry_after"])
    for name in ("headers", "refuse_headers"):
        values[name] = _headers(values.get(name))
    values["faults"] = tuple(_fault(fault) for fault in values.get("faults", ()))
    return Rule(**values)


def _fault(data: Mapping[str, Any]) -> Fault:
    known = {field.name for field in fields(Fault)} - {"pattern", "start"} | {"from"}
    _only(data, known, "a fault")
    values = dict(data)
    values["start"] = float(values.pop("from", 0.0))
    values["headers"] = _headers(values.get("headers"))
    if values.get("per", "path") not in {"path", "host"}:
        raise ValueError('"per" of a fault is "path" or "host"')
    if values.get("drop", False) not in {True, False, "within"}:
        raise ValueError('"drop" of a fault is true, false or "within"')
    if values.get("stall", False) not in {True, False, "lost"}:
        raise ValueError('"stall" of a fault is true, false or "lost"')
    if values.get("base64"):
        values["body"] = base64.b64decode(values["body"], validate=True)
    values["pattern"] = re.compile(fnmatch.translate(values.get("match", "*")))
    return Fault(**values)


def _headers(data: Any) -> Headers:
    """Headers as pairs; a list as the value means the header several times."""
    pairs: list[tuple[str, str]] = []
    for name, value in (data or {}).items():
        values = value if isinstance(value, list) else [value]
        pairs.extend((name, str(each)) for each in values)
    return tuple(pairs)


def _only(data: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(data) - known)
    if unknown:
        raise ValueError(f"{where} has no key {unknown[0]!r}; it knows {', '.join(sorted(known))}")
