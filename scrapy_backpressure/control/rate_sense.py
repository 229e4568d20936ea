"""What refusals say about a limit on the rate.

Between two refusals a bucket serves just what it is refilled with, unless it overflowed: then less
than that was asked for. A rate that grew until it was refused may have lived off what a bucket had
saved up; or the bucket holds next to nothing, and the limit is just what was reached. Which of the
two is learned. Trust in the rate that was reached falls with each hold of it that is refused,
rises with each that is not, and is high when more was gained than ever before. At first it is the
higher the less a bucket turned out to hold: what was served before the first refusal, less what
the rate brings in that time.
"""

from __future__ import annotations

import math

from scrapy_backpressure.control.meter import RateMeter

LEAST_TRUST = 0.01
MOVED_TRUST = 0.8
"""Trust when more was gained than a bucket is known to save up: the limit has moved."""
CONFIRMED, REFUTED = 1.25, 0.4
"""What becomes of trust with a hold that was not refused, and with one that was."""
MORE, FEW = 1.5, 4.0
"""Times as many as a bucket ever saved up, and so many more, are more than it may hold."""
SAFE = 0.98
"""Share of the rate that was reached of which the limit is taken to be."""
DEAR = 0.97
"""Share that is left of what was measured, where a refusal costs a pause."""


class RateSense(RateMeter):
    """Rates that a site may bear, after refusals. Rates are per second."""

    __slots__ = ("_saved", "_trust")

    def __init__(self, now: float) -> None:
        super().__init__(now)
        self._trust = 1.0
        self._saved = 0.0

    def after_growth(
        self, now: float, good: float, *, reached: float, gained: float, late: float, dear: bool
    ) -> float:
        """The rate to hold, where one that grew from ``good`` was refused when it was ``reached``.

        ``gained``: accepts beyond what ``good`` would have brought meanwhile; ``late``: mean
        seconds by which requests follow each other later than the rate says; ``dear``: a refusal
        costs too much to rely on more than what was measured.
        """
        measured, _ = self._measured(now, late)
        if gained > MORE * self._saved + FEW:
            self._trust = max(self._trust, MOVED_TRUST)
            self.forget(now)
        sure = min(reached, max(measured, good))
        if dear:
            return DEAR * sure
        return sure + self._trust * max(0.0, SAFE * reached - sure)

    def first(self, now: float, most: float, *, late: float) -> float:
        """The rate to hold, where refusals first mean a limit on the rate; ``most``: at most.

        What was served until the first of them, beyond that rate, a bucket had saved up. Few
        accepts are taken for the most that they may mean: a rate too low is held for long, one
        too high is soon refused.
        """
        measured, _ = self._measured(now, late, more=1.0)
        good = min(most, measured)
        self._saved = max(self._saved, self.beyond(good))
        self._trust = min(self._trust, 1 / max(1.0, self._saved))
        return good

    def after_hold(self, now: float, good: float, *, cut: float, late: float) -> float:
        """The rate to hold, where ``good`` itself was refused.

        ``cut``: what is left of it by guess, which counts while too little was accepted to tell.
        """
        measured, known = self._measured(now, late)
        return min(good, measured) if known else math.sqrt(cut * good * min(good, measured))

    def confirmed(self) -> None:
        """What was good was held without a refusal."""
        self._trust = min(1.0, CONFIRMED * self._trust)

    def refuted(self, gained: float) -> None:
        """What was good was refused; ``gained``: in the growth that led to it."""
        self._trust = max(LEAST_TRUST, REFUTED * self._trust)
        self._saved = max(self._saved, gained)

    def _measured(self, now: float, late: float, more: float = 0.5) -> tuple[float, bool]:
        """The rate that led to what was accepted of late; whether that was enough to tell."""
        rate, known = self.rate(now, more=more)
        even = 1 / rate - late
        return (1 / even if even > 0 else rate), known
