"""What a site's quota headers leave us to send.

A quota is used up at full speed down to its last fifth, which is spread over the time left. When
its window is over, the next one is taken to hold as many until an answer tells. One that is seen
to refill all the time (``refill``) is used as it refills.
"""

from __future__ import annotations

import math

from scrapy_backpressure.control.outcome import Quota
from scrapy_backpressure.control.refill import Refill

LOW = 0.2
"""Share of a quota below which what is left is spread over the time left."""
TOLD_FOR = 20
"""Answers in a row that tell no concurrency, after which what was told no longer holds."""
SAME_WINDOW = 2.0
"""Seconds by which the told ends of one window may differ: many sites round them."""

TRIALS = 10
"""New windows of which one request is kept until an answer came."""


class Allowance:
    """Requests left in the current window, as last told, less those sent since."""

    __slots__ = (
        "_first_until",
        "_last_sent",
        "_least",
        "_left",
        "_limit",
        "_low",
        "_refill",
        "_seq",
        "_silent",
        "_told_at",
        "_until",
        "_wary",
        "_windows",
        "concurrency",
    )

    def __init__(self) -> None:
        self.concurrency = math.inf
        """Requests at once that the site says it allows."""
        self._limit = math.inf
        self._left = math.inf
        self._least = math.inf  # told in this window
        self._until = 0.0
        self._first_until = 0.0  # as first told of this window
        self._low = False
        self._last_sent = 0.0
        self._seq = 0
        self._refill = Refill()
        self._told_at = 0.0  # from when on a refill adds to what is left
        self._windows = 0  # that were supposed
        self._wary = False  # one that was used up refused some: suppose nothing of a new window
        self._silent = 0  # answers since one told the concurrency

    @property
    def closed_until(self) -> float:
        """Until when nothing may be sent; may lie in the past."""
        told = self._left < math.inf and self._until < math.inf
        return self.ready_at(self._last_sent) if told else 0.0

    def ready_at(self, now: float, *, waiting: bool = False) -> float:
        """When one more may be sent; ``inf``: when an answer came, if any is ``waiting``."""
        if self._refill.rate:
            return max(now, self._told_at + (1 - self._left) / self._refill.rate)
        if now >= self._until:
            return now
        if self._left < 1:
            return self._until if self._until < math.inf or waiting else now
        if not self._low:
            return now
        spread = (self._until - self._last_sent) / (self._left + 1)
        return max(now, self._last_sent + spread)

    def sent(self, now: float) -> None:
        """One more goes out."""
        if self._refill.rate:
            gained = max(0.0, now - self._told_at) * self._refill.rate
            self._left, self._told_at = min(self._limit, self._left + gained), now
            if now >= self._until:
                self._until = math.inf
        elif now >= self._until and self._limit < math.inf:
            self._left = self._supposed()
            self._until, self._low, self._least = math.inf, False, math.inf
        self._left -= 1
        self._refill.sent()
        self._last_sent = now

    def cancelled(self) -> None:
        """One that was to go out did not."""
        self._left += 1

    def untold(self) -> None:
        """An answer told of no quota: a window that was only supposed is none."""
        self._told_no_concurrency()
        if self._until == math.inf:
            self._refill = Refill()
            self._left = self._limit = math.inf
            self._until = 0.0

    def heed(
        self, quota: Quota, now: float, in_flight: int, seq: int, *, served: bool = True
    ) -> None:
        """Take in what the answer to request ``seq`` told, with so many others in flight.

        ``served``: it was not refused, nor did it fail.
        """
        if quota.concurrency is not None and quota.concurrency >= 1:
            self.concurrency, self._silent = quota.concurrency, 0
        else:
            self._told_no_concurrency()
        if quota.remaining is None or quota.reset is None:
            return
        left = quota.remaining - in_flight  # those may not have been counted yet
        until = now + quota.reset + min(0.05, 0.05 * quota.reset)
        same_window = abs(until - self._first_until) < SAME_WINDOW
        if served:
            self._refill.served()
        elif is_used_up(quota):
            self._refill.refused()
            self._wary = True
        least = quota.remaining
        if same_window and now < self._until and not self._refill.rate:
            least = min(least, self._least)
            # With none under way, what the last one served has told is exact.
            left = min(left, self._left) if in_flight else least
        if seq < self._seq:  # overtaken: it tells of more than is left, or of a window before
            if same_window and not self._refill.rate:
                self._left, self._least = left, least
                if not in_flight:
                    self._refill.compare(least, 0)
            return
        self._left, self._least, self._until, self._seq = left, least, until, seq
        if not same_window:
            self._first_until = until
        self._told_at = now
        self._limit = quota.limit or math.inf
        self._low = quota.reset > SAME_WINDOW and quota.remaining <= LOW * self._limit < math.inf
        if served:
            left = quota.remaining
            self._refill.told(left, self._limit, now, in_flight, same_window=same_window)

    def _supposed(self) -> float:
        """What a new window holds until an answer tells."""
        if self._wary:
            return 1
        self._windows += 1
        # The last one waits for an answer, which shows whether the quota refills.
        return self._limit - 1 if self._limit > 2 and self._windows <= TRIALS else self._limit

    def _told_no_concurrency(self) -> None:
        self._silent += 1
        if self._silent >= TOLD_FOR:
            self.concurrency = math.inf


def is_used_up(quota: Quota | None) -> bool:
    """Whether a quota alone explains a refusal, which then says nothing of the caps."""
    return (
        quota is not None
        and quota.remaining is not None
        and quota.remaining < 1
        and bool(quota.reset)
    )
