"""What an answer says about the site, the proxy and our own pace."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(str, Enum):
    """What one attempt at a request says.

    The value is the word used in stats and dead letters.
    """

    ACCEPTED = "accepted"
    """The site served the request."""
    THROTTLED = "throttled"
    """The site asks for a slower pace: 429 and kin."""
    BLOCKED = "blocked"
    """The site refuses this client: a ban or a challenge."""
    FAILED = "failed"
    """The site, or the way to it, is in trouble: 5xx, timeout, connection lost."""
    PROXY_FAILED = "proxy_failed"
    """The proxy's own fault; says nothing about the site."""
    NEUTRAL = "neutral"
    """Says nothing about pace or health: 404, redirect, cached answer."""

    is_bad: bool
    """Whether the attempt brought nothing that the spider could use."""

    def __init__(self, word: str) -> None:
        self.is_bad = word not in ("accepted", "neutral")


@dataclass(frozen=True, slots=True)
class Quota:
    """What a site's rate-limit headers say. Unknown fields are None."""

    limit: float | None = None
    """Requests allowed per window."""
    remaining: float | None = None
    """Requests left in the current window."""
    reset: float | None = None
    """Seconds from the answer until the window starts again; never negative."""
    window: float | None = None
    """Length of the window in seconds."""
    concurrency: float | None = None
    """Requests allowed at the same time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a policy says of one attempt."""

    outcome: Outcome
    reason: str = ""
    """A short word for stats and dead letters: ``"429"``, ``"cloudflare"``, ``"TimeoutError"``."""
    pause: float | None = None
    """Seconds for which the site asked not to be called; None if it did not say."""
    quota: Quota | None = None
    answered: bool = True
    """Whether the site answered at all; False for a timeout, a lost or refused connection."""
