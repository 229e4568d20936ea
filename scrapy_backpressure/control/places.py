"""How many of the places that a crawl has a site in trouble may hold.

A request that waits for its answer holds one of the places that CONCURRENT_REQUESTS allows. A site
that does not answer, or far later than the others, would in time hold most of them, and slow
everybody. So a site that has never answered gets few, and one that is far slower than usual gives
way to the others until what it has held is few on average.
"""

from __future__ import annotations

UNKNOWN_SHARE = 1 / 20
"""Of all places, for a site that has not answered yet."""
SLOW_SHARE = 1 / 40
"""The same, on average, for one that is far slower while others have something to send."""
SLOW = 5.0
FAR_SLOWER = 10.0
"""Seconds, and times what an answer usually takes, from which on a site is in trouble."""
LONGEST_REST = 300.0
"""Seconds for which it gives way at most."""


class Places:
    """The places of one crawl; ``total`` of them, or 0 for no limit."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._usual = 0.0

    @property
    def most_unknown(self) -> int:
        """Requests at once to a site that has not answered yet."""
        return max(1, int(UNKNOWN_SHARE * self._total))

    def rest(self, latency: float, in_flight: int) -> float:
        """Seconds for which a site that answered after ``latency`` seconds gives way to others.

        ``in_flight``: requests to it that held a place meanwhile, this one included.
        """
        usual = self._usual or latency
        self._usual = usual + 0.02 * (latency - usual)
        if latency <= max(SLOW, FAR_SLOWER * usual) or not self._total:
            return 0.0
        held = in_flight / (SLOW_SHARE * self._total)
        return min(LONGEST_REST, max(0.0, latency * (held - 1.0)))
