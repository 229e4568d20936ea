"""What a site's quota headers leave us to send.

A quota is used up at full speed down to its last fifth, which is spread over the time left. When
its window is over, the next one is taken to hold as many until an answer tells.
"""

from __future__ import annotations

import math

from scrapy_backpressure.control.outcome import Quota

LOW = 0.2
"""Share of a quota below which what is left is spread over the time left."""
TOLD_FOR = 20
"""Answers in a row that tell no concurrency, after which what was told no longer holds."""
SAME_WINDOW = 2.0
"""Seconds by which the told ends of one window may differ: many sites round them."""


class Allowance:
    """Requests left in the current window, as last told, less those sent since."""

    __slots__ = (
        "_last_sent",
        "_left",
        "_limit",
        "_low",
        "_seq",
        "_silent",
        "_until",
        "concurrency",
    )

    def __init__(self) -> None:
        self.concurrency = math.inf
        """Requests at once that the site says it allows."""
        self._limit = math.inf
        self._left = math.inf
        self._until = 0.0
        self._low = False
        self._last_sent = 0.0
        self._seq = 0
        self._silent = 0  # answers since one told the concurrency

    @property
    def closed_until(self) -> float:
        """Until when nothing may be sent; may lie in the past."""
        told = self._left < math.inf and self._until < math.inf
        return self.ready_at(self._last_sent) if told else 0.0

    def ready_at(self, now: float, *, waiting: bool = False) -> float:
        """When one more may be sent; ``inf``: when an answer came, if any is ``waiting``."""
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
        if now >= self._until and self._limit < math.inf:
            self._left, self._until, self._low = self._limit, math.inf, False
        self._left -= 1
        self._last_sent = now

    def cancelled(self) -> None:
        """One that was to go out did not."""
        self._left += 1

    def untold(self) -> None:
        """An answer told of no quota: a window that was only supposed is none."""
        self._told_no_concurrency()
        if self._until == math.inf:
            self._left = self._limit = math.inf
            self._until = 0.0

    def heed(self, quota: Quota, now: float, in_flight: int, seq: int) -> None:
        """Take in what the answer to request ``seq`` told, with so many others in flight."""
        if quota.concurrency is not None and quota.concurrency >= 1:
            self.concurrency, self._silent = quota.concurrency, 0
        else:
            self._told_no_concurrency()
        if quota.remaining is None or quota.reset is None:
            return
        left = quota.remaining - in_flight  # those may not have been counted yet
        until = now + quota.reset + min(0.05, 0.05 * quota.reset)
        same_window = abs(until - self._until) < SAME_WINDOW
        if same_window and now < self._until:
            left = min(left, self._left)
        if seq < self._seq:  # overtaken: it tells of more than is left, or of a window before
            if same_window:
                self._left = left
            return
        self._left, self._until, self._seq = left, until, seq
        self._limit = quota.limit or math.inf
        self._low = quota.remaining <= LOW * self._limit < math.inf

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
