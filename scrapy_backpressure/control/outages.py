"""What was good before a site served nothing, and whether such silences come in turns.

A long silence may be an outage, after which what was good before holds again. If it comes a second
time, it may be the rest of a fixed window (so many requests an hour): then the mean of a whole
cycle is what the site bears.
"""

from __future__ import annotations

import math

LONG_SILENCE = 5
"""Refusals in a row that make a long silence."""


class Outages:
    """Where a lane that starts anew stops growing."""

    __slots__ = ("_concurrency", "_rate", "_silences")

    def __init__(self) -> None:
        self._concurrency = self._rate = math.inf
        self._silences = 0

    @property
    def in_turns(self) -> bool:
        """Whether silences come back."""
        return self._silences >= 2

    def remember(self, concurrency: float, rate: float) -> None:
        """What was good; ``inf`` where nothing is known."""
        self._concurrency, self._rate = concurrency, rate

    def ended(self, refusals: int, *, cycle: float, least: float) -> tuple[float, float]:
        """The site serves again: concurrency and rate up to which to grow.

        ``refusals``: so many in a row before; ``cycle``: requests per second served since the
        outage before this one ended; ``least``: concurrency that is good in any case.
        """
        rate = self._rate
        if refusals >= LONG_SILENCE:
            self._silences += 1
            if self.in_turns and cycle < math.inf:
                rate = min(rate, cycle)
        return max(self._concurrency, least), rate
