"""What a lane does while nothing is refused: hold what is good, then probe a little above it.

- Hold: after a cut, stay there (r from 2 % below, rising as a cubic) for a hundred accepts and
  three seconds. Where a refusal came with a pause it costs more, so that the hold lasts in
  proportion, twice as long after each probe that failed. Where a large step failed, the limit
  lies not far above and the next hold is short.
- Probe: one cap at a time, one or 2 % up, then twice as far after every quiet round. A raised C
  that brings latency instead of answers is taken back.

Sources: holding near the last good value and probing past it (CUBIC, RFC 9438); telling a queue
from capacity by latency (TCP Vegas; Little's law).
"""

from __future__ import annotations

import math

from scrapy_backpressure.control.meter import Round
from scrapy_backpressure.control.pacer import Ticket

DIP = 0.02
"""How far below the last good rate a hold begins, and the first step of a probe above it."""
HOLD = 100
"""Accepted requests for which a cut is held: one refusal in a hundred is what probing may cost."""
HOLD_SECONDS = 3.0
"""Seconds for which it is held at least."""
HOLD_PER_PAUSE = 20.0
"""Seconds of holding for each second that a refusal cost in asked-for pauses; doubles alike."""
ROOM = 1.5
"""Times what a rate needs in flight that concurrency leaves to it."""
LEAST_STRETCH = -2
"""Powers of two between the shortest hold, the plain one, and the longest."""
MOST_STRETCH = 3


class Prober:
    """The two caps between refusals."""

    def __init__(self, *, start: float, minimum: float, now: float) -> None:
        self.minimum = max(1.0, minimum)
        self.concurrency = max(self.minimum, start)
        self.rate = math.inf
        self.latency = 0.0
        """Mean seconds of an accepted answer, lately; 0 before the first."""
        self.last_seq = 0
        """Number of the last request sent."""
        self._mode = "start"
        self._cut_at = now
        self._good_c = self.concurrency
        self._good_r = math.inf
        self._suspect = "c"
        self._probed = "c"
        self._most_steps = 4
        self._unsure = math.inf
        self._held_c = self._good_c
        self._held_r = math.inf
        self._stretch = 0
        self._cost = 0.0
        self._step = 0
        self._round = Round(0)
        self._held_latency = 0.0
        self._held_load = 1.0

    def _stretch_hold(self, step: float = 1) -> None:
        """A probe failed; after a large step the limit lies not far above."""
        self._stretch = min(MOST_STRETCH, self._stretch + 1) if step <= 1 else LEAST_STRETCH

    def _enter_hold(self) -> None:
        self._mode = "hold"
        self._round = Round(self.last_seq)

    def _hold(self, now: float, ceiling: float) -> None:
        stretch = 2.0 ** (max(0, self._stretch) if self._cost else self._stretch)
        accepts = self._round.accepts
        held = now - self._cut_at
        short = min(1.0, stretch) if self._most_steps > 1 else 3.0
        left = max(0.0, 1 - accepts / (HOLD * short))
        self.rate = self._good_r * (1 - DIP * left**3)
        costly = HOLD_PER_PAUSE * stretch * self._cost * (2 if self._suspect == "r" else 1)
        if left > 0 or held < max(HOLD_SECONDS * short, costly):
            return
        self._unsure = math.inf
        self._held_c = self._good_c
        self._held_r = self._good_r
        self._held_latency = self._round.latency
        self._held_load = self._round.load
        capped = self._round.often_capped(self._good_c) and self._good_c < ceiling
        if self._round.mostly_paced and not (capped and self._probed == "r"):
            self._start_r()
        elif capped:
            self._start_c(ceiling)

    def _start_r(self) -> None:
        self._mode, self._probed, self._step = "r", "r", 0
        self._next_r()

    def _start_c(self, ceiling: float) -> None:
        self._mode, self._probed, self._step = "c", "c", 1
        self._next_c(ceiling)

    def _next_c(self, ceiling: float) -> None:
        self.concurrency = min(ceiling, self._good_c + self._step)
        self._round = Round(self.last_seq)

    def _next_r(self) -> None:
        self.rate = self._good_r * (1 + DIP * 2**self._step)
        self._round = Round(self.last_seq)

    def _need(self) -> float:
        """Accepts that a concurrency has to bring before it counts as good."""
        return max(12.0, 2 * self.concurrency)

    def _probe_c(self, ticket: Ticket, ceiling: float) -> None:
        step = self._round
        step.tested += ticket.load > self._good_c
        need = self._need()
        if step.accepts >= need and step.tested >= 3:
            gain = step.load / self._held_load
            if step.latency > self._held_latency * (0.4 + 0.7 * gain):
                self.concurrency = self._good_c = self._held_c
                self._stretch_hold()
                self._enter_hold()
                return
            self._good_c = self.concurrency
            self._suspect = "c"
            self._stretch = min(self._stretch, 0)
            if step.mostly_paced:
                self._start_r()
            elif self._good_c >= ceiling:
                self._enter_hold()
            else:
                self._step = min(2 * self._step, max(1, int(self._good_c / 2)))
                self._next_c(ceiling)
        elif step.accepts > (1 if step.mostly_paced else 4) * need:
            self.concurrency = self._good_c
            if step.mostly_paced:
                self._start_r()
            else:
                self._stretch = LEAST_STRETCH
                self._enter_hold()

    def _probe_r(self, ticket: Ticket, now: float, ceiling: float) -> None:
        step = self._round
        if ticket.seq <= step.seq:
            return
        step.tested += 1
        if step.tested == 1:
            step.first_at = now
        passed = now - step.first_at
        if step.tested < 9 or passed < 0.5:
            return
        capped = step.often_capped(self._good_c)
        if (step.mostly_paced and not capped) or step.tested - 1 >= 0.9 * self.rate * passed:
            self._good_r = self.rate
            if self._suspect == "r":
                room = min(ceiling, ROOM * self.rate * self.latency + 1)
                self.concurrency = self._good_c = max(self._good_c, room)
            self._step = min(self._step + 1, self._most_steps)
            self._next_r()
            return
        self.rate = self._good_r
        if capped and self._good_c < ceiling:
            self._start_c(ceiling)
        else:
            self._enter_hold()
