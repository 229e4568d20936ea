"""The dialects in which sites tell how much of a quota is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

Pairs = list[tuple[str, str]]


def _duration(seconds: float) -> str:
    """Seconds as APIs of language models write them: ``6m0s``, ``1.5s``, ``20ms``."""
    if seconds >= 60:
        return f"{int(seconds // 60)}m{int(seconds % 60)}s"
    return f"{round(seconds * 1000)}ms" if seconds < 1 else f"{seconds:g}s"


def _ratelimit(limit: int, left: int, reset: float, _epoch: float) -> Pairs:
    return [
        ("RateLimit-Limit", str(limit)),
        ("RateLimit-Remaining", str(left)),
        ("RateLimit-Reset", str(math.ceil(reset))),
    ]


def _combined(limit: int, left: int, reset: float, _epoch: float) -> Pairs:
    text = f"limit={limit}, remaining={left}, reset={math.ceil(reset)}"
    return [("RateLimit", text), ("RateLimit-Policy", f"{limit};w={max(1, math.ceil(reset))}")]


def _structured(limit: int, left: int, reset: float, _epoch: float) -> Pairs:
    window = max(1, math.ceil(reset))
    return [
        ("RateLimit", f'"default";r={left};t={math.ceil(reset)}'),
        ("RateLimit-Policy", f'"default";q={limit};w={window}'),
    ]


def _github(limit: int, left: int, reset: float, epoch: float) -> Pairs:
    return [
        ("X-RateLimit-Limit", str(limit)),
        ("X-RateLimit-Remaining", str(left)),
        ("X-RateLimit-Used", str(limit - left)),
        ("X-RateLimit-Reset", str(math.ceil(epoch + reset))),
    ]


def _twitter(limit: int, left: int, reset: float, epoch: float) -> Pairs:
    return [
        ("x-rate-limit-limit", str(limit)),
        ("x-rate-limit-remaining", str(left)),
        ("x-rate-limit-reset", str(math.ceil(epoch + reset))),
    ]


def _reddit(limit: int, left: int, reset: float, _epoch: float) -> Pairs:
    return [
        ("X-Ratelimit-Used", str(limit - left)),
        ("X-Ratelimit-Remaining", f"{left:.1f}"),
        ("X-Ratelimit-Reset", str(math.ceil(reset))),
    ]


def _discord(limit: int, left: int, reset: float, epoch: float) -> Pairs:
    return [
        ("X-RateLimit-Limit", str(limit)),
        ("X-RateLimit-Remaining", str(left)),
        ("X-RateLimit-Reset", f"{epoch + reset:.3f}"),
        ("X-RateLimit-Reset-After", f"{reset:.3f}"),
    ]


def _openai(limit: int, left: int, reset: float, _epoch: float) -> Pairs:
    return [
        ("x-ratelimit-limit-requests", str(limit)),
        ("x-ratelimit-remaining-requests", str(left)),
        ("x-ratelimit-reset-requests", _duration(reset)),
    ]


DIALECTS: Mapping[str, Callable[[int, int, float, float], Pairs]] = MappingProxyType(
    {
        "ratelimit": _ratelimit,
        "combined": _combined,
        "structured": _structured,
        "github": _github,
        "twitter": _twitter,
        "reddit": _reddit,
        "discord": _discord,
        "openai": _openai,
    }
)


def quota_headers(
    dialect: str, *, limit: int, remaining: int, reset: float, epoch: float
) -> list[tuple[str, str]]:
    """Return the headers that say: *remaining* of *limit* are left, full again in *reset* s.

    *epoch* is the wall clock, for dialects that tell the time of the reset.
    Raises ValueError for a dialect that does not exist.
    """
    try:
        write = DIALECTS[dialect]
    except KeyError:
        known = ", ".join(DIALECTS)
        raise ValueError(f"no quota dialect {dialect!r}; there are {known}") from None
    return write(limit, max(0, remaining), max(0.0, reset), epoch)
