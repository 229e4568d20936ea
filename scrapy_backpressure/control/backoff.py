"""How long a failed request waits, and how many retries a site gets.

Backoff: exponential with full jitter, after Marc Brooker, "Exponential Backoff And Jitter"
(AWS Architecture Blog, 2015). Budget: a token bucket that each first attempt fills a little,
after the retry throttling of gRPC (proposal A6) and of the AWS SDKs.
"""

from __future__ import annotations

import random

_THROTTLED_SHARE = 0.25
"""Of the base, where only a slower pace was asked for: the lane keeps that."""
_FLOOR = 0.1
_BUCKET = 10.0
"""Retries that a site gets before the budget counts: a short crawl must not wait for credit."""
_MOST_DEBT = 300.0  # seconds, nearly, by which a retry is deferred at most
_REFILL = 1.0
"""Retries per second that a site gets in any case, so that a budget never starves a crawl."""


def backoff(
    attempt: int,
    *,
    base: float,
    maximum: float,
    rng: random.Random,
    throttled: bool = False,
) -> float:
    """Seconds to wait before the retry number *attempt* (1 for the first).

    Drawn evenly between 0 and ``base * 2 ** (attempt - 1)``, at most *maximum*; never less than
    a tenth of *base*, since a retry within the same millisecond meets the same trouble. Where the
    site only asked for a slower pace (*throttled*), *base* is a quarter of what is given.
    """
    if throttled:
        base *= _THROTTLED_SHARE
    ceiling = min(maximum, base * 2.0 ** min(attempt - 1, 60))
    return max(rng.uniform(0.0, ceiling), min(base, maximum) * _FLOOR)


class RetryBudget:
    """Retries that may be sent to one site: *ratio* per first attempt, over time.

    An empty budget defers a retry; it never forbids one.
    """

    def __init__(self, ratio: float, now: float) -> None:
        self._ratio = ratio
        self._tokens = _BUCKET
        self._time = now

    def first_attempt(self) -> None:
        """Credit for a request sent for the first time."""
        self._tokens = min(_BUCKET, self._tokens + self._ratio)

    def retry(self, now: float) -> float:
        """Take one retry out; seconds by which it has to be deferred."""
        elapsed = max(0.0, now - self._time)
        self._time = now
        tokens = min(_BUCKET, self._tokens + elapsed * _REFILL)
        self._tokens = max(-_MOST_DEBT, tokens - 1.0)
        return max(0.0, -self._tokens / _REFILL)
