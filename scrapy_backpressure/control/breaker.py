"""A circuit breaker: stops calling a site, or a proxy, that only fails.

Closed, it counts. Requests that nobody answered (timeouts, lost connections) open it when they are
half of the last 30 s (of 10 or more), or 5 in a row. Open, nothing is sent for 5 s, doubling up to
300 s each time it opens anew. Then, half open, one probe at a time goes out; 3 successes in a row
close the breaker, one failure opens it again.

Answers such as 500 are weaker evidence, since a site may have broken pages, and many of them
together. They open it only when 10 came in a row, for a second at a time, and one success closes
it.

Requests that were under way together fail together, so a failure lengthens the row only if its
request was sent after the failure before it was known. The row then means "tried again, failed
again" rather than "had many in flight".

Source: M. Nygard, *Release It!*, "Circuit Breaker".
"""

from __future__ import annotations

import math
from collections import deque

WINDOW = 30.0
"""Seconds over which the share of failures is taken."""
SHARE = 0.5
LEAST_ANSWERS = 10
IN_A_ROW = 5
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 300.0
SUCCESSES_TO_CLOSE = 3
ANSWERED_IN_A_ROW = 10
ANSWERED_PAUSE = 1.0
_MOST_ANSWERS = 256  # kept for the share; bounds the memory of a fast lane


class Breaker:
    """Counts failures and says when the next request may go out.

    ``probe_timeout``: seconds after which a half-open probe that never came back stops
    holding up the next one; at most as long as the longest pause.
    """

    __slots__ = (
        "_answers",
        "_failures",
        "_open_until",
        "_pause",
        "_probe_deadline",
        "_row",
        "_row_known_at",
        "_silent_row",
        "_successes",
        "is_open",
        "probe_timeout",
    )

    def __init__(self, *, probe_timeout: float = 180.0) -> None:
        self.probe_timeout = min(probe_timeout, LONGEST_PAUSE)
        self.is_open = False
        """Open or half open."""
        self._answers: deque[tuple[float, bool]] = deque()
        self._failures = 0
        self._row = 0
        self._silent_row = 0
        self._row_known_at = -math.inf
        self._pause = FIRST_PAUSE
        self._open_until = 0.0
        self._probe_deadline = 0.0
        self._successes = 0

    def ready_at(self, now: float) -> float:
        """When the next request may go out; ``now`` if at once."""
        if not self.is_open:
            return now
        return max(now, self._open_until, self._probe_deadline)

    def sent(self, now: float) -> None:
        """A request went out; when half open, it is the probe."""
        if self.is_open and now >= self._open_until:
            self._probe_deadline = now + self.probe_timeout

    def cancelled(self, *, sent_at: float) -> None:
        """A request never reached the site: if it was the probe, the next one may go."""
        if sent_at + self.probe_timeout == self._probe_deadline:
            self._probe_deadline = 0.0

    def succeeded(self, *, sent_at: float, now: float) -> None:
        """The site answered."""
        self._row = self._silent_row = 0
        if not self.is_open:
            self._note(now, failed=False)
        elif sent_at >= self._open_until:
            self._probe_deadline = 0.0
            self._successes += 1
            if self._successes >= SUCCESSES_TO_CLOSE:
                self._close()

    def failed(
        self, *, sent_at: float, now: float, answered: bool = False, in_row_only: bool = False
    ) -> None:
        """The request failed. Failures of requests sent before it opened say nothing new.

        ``answered``: the site did answer, if only with an error. ``in_row_only``: it may be
        throttling, so that a share of such failures is no outage.
        """
        if self.is_open:
            if sent_at >= self._open_until:
                if not answered:
                    self._pause = min(LONGEST_PAUSE, 2 * self._pause)
                self._open(now, answered=answered)
            return
        if not in_row_only and not answered:
            self._note(now, failed=True)
        if sent_at >= self._row_known_at:
            self._row += 1
            self._silent_row = 0 if answered else self._silent_row + 1
            self._row_known_at = now
        count = len(self._answers)
        share = count >= LEAST_ANSWERS and self._failures >= SHARE * count
        if self._silent_row >= IN_A_ROW or share:
            self._open(now, answered=False)
        elif self._row >= ANSWERED_IN_A_ROW:
            self._open(now, answered=True)

    def forget(self) -> None:
        """What was counted while it was closed says nothing any more."""
        self._answers.clear()
        self._failures = 0
        self._row = self._silent_row = 0

    def _note(self, now: float, *, failed: bool) -> None:
        answers = self._answers
        answers.append((now, failed))
        self._failures += failed
        while answers[0][0] < now - WINDOW or len(answers) > _MOST_ANSWERS:
            self._failures -= answers.popleft()[1]

    def _open(self, now: float, *, answered: bool) -> None:
        self.is_open = True
        self._open_until = now + (ANSWERED_PAUSE if answered else self._pause)
        self._probe_deadline = 0.0
        self._successes = SUCCESSES_TO_CLOSE - 1 if answered else 0

    def _close(self) -> None:
        self.is_open = False
        self._pause = FIRST_PAUSE
        self.forget()
