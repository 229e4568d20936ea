"""How far above what was last good a cap is tried, while nothing is refused.

After a cut the cap is held, from one per cent below the good value on and rising to it. Then it
grows past it, slowly at first and ever faster, to nine times as much within a probe's length. A
hold that went without a refusal makes the next one longer, up to a whole one, since a limit that
has stood for long will stand; after the limit has moved they are short again. What has a price in
asked-for pauses is tried less often in proportion.

A whole hold lasts so many accepted requests that the cap held back, or seconds of them, or round
trips, whichever is longest: a probe that fails costs one refusal in two hundred answers.

Source: the window growth of CUBIC (RFC 9438): concave up to the last good value, convex past it.
"""

from __future__ import annotations

import math

HOLD = 200
"""Accepted requests for which a cut is held, when the limit is known well."""
HOLD_SECONDS = 8.0
HOLD_ROUNDS = 30.0
"""Seconds and round trips for which it is held at least."""
HOLD_PER_PAUSE = 100.0
"""Seconds of holding for each second of pause that a refusal costs."""
DIP = 0.01
"""How far below the good value a hold begins."""
PROBE = 60
PROBE_SECONDS = 6.0
PROBE_ROUNDS = 20.0
"""Accepted requests, seconds and round trips in which a probe ..."""
GAIN = math.log(9.0)
"""... grows by this, as a logarithm."""
FARTHEST = 2.0
"""Lengths of a probe after which a cap that nothing refuses, as at the ceiling, grows no more."""
FIRST_STRETCH = 0.1
"""Part of a whole hold after the very first cut."""
FIRST_HURRY = 3.0
"""Times as fast as else a concurrency is held and grows then: whether two of four requests sent
together were refused, or which two, tells little."""
LEAST_STRETCH = 0.3
"""Part of a whole hold after the limit has moved ..."""
STRETCH, MOVED_STRETCH = 2.0, 1.35
"""... and how much longer each further one is; where a limit has moved it may again."""
PATIENT = 3.0
"""Times a whole hold that a limit is held whose refusals lead to a long silence."""


class Growth:
    """The factor on the good value; 1 at the end of a hold."""

    __slots__ = (
        "_gain",
        "_known",
        "_last",
        "_patience",
        "_progress",
        "_stretch",
        "_sure",
        "factor",
        "gained",
    )

    def __init__(self) -> None:
        self.factor = 1.0
        self.gained = 0.0
        """Accepts beyond what was good that the last probe brought before it was refused."""
        self._progress = 0.0
        self._patience = self._stretch = FIRST_STRETCH
        self._known = False
        """Whether anything was ever held without a refusal."""
        self._sure = False
        """Whether more than once."""
        self._last = 0.0
        self._gain = STRETCH

    @property
    def probing(self) -> bool:
        """Whether the hold is over."""
        return self._progress >= 1.0

    def restart(self, now: float, *, settled: bool) -> None:
        """The cap was cut: hold; ``settled``: about where it was held before."""
        if not self._known:
            self._stretch = FIRST_STRETCH
        else:
            self._stretch = self._patience if settled else LEAST_STRETCH
        if not self.probing:
            self.gained = 0.0
        self._progress = 0.0
        self._last = now
        self.factor = 1.0 - DIP

    def held(self, *, settled: bool) -> None:
        """A hold went without a refusal; ``settled``: about where the one before did."""
        if settled and self._known:
            self._patience = max(self._patience, min(1.0, self._gain * self._patience))
        else:
            self._gain = MOVED_STRETCH if self._known else STRETCH
            self._patience = LEAST_STRETCH
        self._sure, self._known = self._known, True
        self.gained = 0.0

    def know_nothing(self) -> None:
        """The lane starts anew."""
        self._known = self._sure = False

    def be_patient(self) -> None:
        """The limit is known well: hold as long as ever."""
        self._patience = self._stretch = PATIENT

    def accepted(
        self, now: float, *, limited: bool, latency: float, cost: float, by_rate: bool
    ) -> bool:
        """One more accept; whether it ended the hold.

        ``limited``: the cap held its request back; ``cost``: seconds of pause that the last
        refusals cost.
        """
        passed, self._last = now - self._last, now
        if not limited:
            return False
        hurry = 1.0 if by_rate or self._sure else FIRST_HURRY
        if self.probing:
            seconds = max(PROBE_SECONDS, PROBE_ROUNDS * latency)
            self._progress += hurry * min(1 / PROBE, passed / seconds)
            self.gained += 1 - 1 / self.factor
            over = min(FARTHEST, self._progress - 1.0)
            self.factor = math.exp(GAIN * (over**3 if over < 1 else 3 * over - 2))
            return False
        seconds = max(HOLD_SECONDS, HOLD_ROUNDS * latency) * self._stretch / hurry
        seconds = max(seconds, HOLD_PER_PAUSE * cost * max(0.5, self._stretch))
        self._progress += min(hurry / (HOLD * self._stretch), passed / seconds)
        self.factor = 1.0 - DIP * max(0.0, 1.0 - self._progress) ** 3
        return self.probing
