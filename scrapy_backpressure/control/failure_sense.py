"""Failures that are throttling in disguise: many sites answer 503 where they mean 429.

What tells them from failures of the site itself is whether they follow our own load. When clearly
more fail than usual, they are treated as refusals for a trial. If the share of failures halves, or
if that of answers grows by more than the root of what the load fell by, the site throttles. If
neither is so at ever lower loads, this much failure is the site's normal state, and the cuts are
taken back. If much is refused later, there is a trial anew.

"Clearly more" is that of a control chart: mean + 3 standard deviations, and 3 for small numbers;
where fewer than half of the answers failed, it has to be passed twice, since by chance it is
passed now and then. Where nothing was ever served, two failures are enough. While the load grows
fast, and the failures come faster than answers (as a front's do), one takes the place of the 3:
the load is then the likely cause, and a needless trial costs little.

Source for the threshold: W. Shewhart, *Economic Control of Quality of Manufactured Product*.
"""

from __future__ import annotations

import math
from enum import Enum

TELLING = 16
"""Answers that tell what has changed."""
UNMOVED, LONG = 3, 8
"""Times so many, as bad although the load fell, or at all, that make it the normal state."""
MIXED = 0.9
"""Share of failures taken where some are served, but no answer of those is there yet."""
MUCH = 0.15
"""Share of refusals that a limit which is followed does not come to."""
ENOUGH = 0.02
"""Part of the load that was followed well below which failures lower it no further."""
WARNED = 10
"""Times twenty answers for which a passed threshold is remembered."""
SPARE, ALERT = 3, 1
"""Failures beyond what chance explains that begin no trial, and while the load grows fast."""
USUAL = 0.05
"""Share of answers that may fail until we know better."""
BLOCK = 20
"""Answers after which what is usual is learned anew."""


class Move(Enum):
    """What to do about a failure."""

    NOTHING = "nothing"
    TRIAL = "trial"
    """It may be throttling: treat it as such, and keep what was, to take it back."""
    RESTORE = "restore"
    """It is not: take back what followed from it."""
    REFUSED = "refused"
    """It is throttling, or may be."""


class FailureSense:
    """Decides for each answer what the failures of late call for."""

    __slots__ = (
        "_count",
        "_enough",
        "_failed",
        "_load_before",
        "_mixed",
        "_noise_count",
        "_noise_failed",
        "_served",
        "_served_before",
        "_share_before",
        "_since",
        "_tight",
        "_unmoved",
        "_warned",
        "throttling",
    )

    def __init__(self) -> None:
        self.throttling = False
        """Failures of this site follow our load."""
        self._noise_failed, self._noise_count = USUAL * BLOCK, float(BLOCK)
        self._share_before = 0.0  # of failures when the trial began; 0: none is under way
        self._load_before = self._enough = 0.0
        self._unmoved = 0
        self._tight = 0
        self._warned = 0
        self._since = 0
        self._count = 0
        self._failed = 0
        self._served = False  # whether anything was, ever
        self._served_before = False  # whether anything was, just before
        self._mixed = False  # whether one failed after another was served

    @property
    def suspicious(self) -> bool:
        """Whether a failure may be, or is, throttling."""
        return self.throttling or self._share_before > 0

    @property
    def likely(self) -> bool:
        """Whether a failure is better taken for throttling: some are served among them."""
        return self.throttling or 0 < self._share_before < 1 or (self.suspicious and self._mixed)

    def judge(
        self,
        seq: int,
        *,
        failed: bool,
        last_seq: int,
        load: float,
        growing: bool = False,
        quick: bool = False,
    ) -> Move:
        """Note one answer.

        ``seq``, ``last_seq``: numbers of its request and of the last sent; ``load``: requests
        per second that are now allowed; ``growing``: fast, with each round trip; ``quick``: it
        came much sooner than answers do.
        """
        if seq <= self._since:
            return Move.REFUSED if failed and self.suspicious else Move.NOTHING
        self._mixed = self._mixed or (failed and self._failed < self._count)
        self._count += 1
        self._failed += failed
        if self.throttling:
            return self._doubt(load, last_seq, failed)
        if self._share_before:
            return self._judge_trial(load, last_seq, failed)
        self._served = self._served or not failed
        usual = self._explained(alert=growing and quick) if self._served else 1
        if failed and self._failed > usual:
            self._tight = 0
            self._enough = ENOUGH * load
            self._begin_trial(load)
            self._restart(last_seq)
            return Move.TRIAL
        if self._count >= BLOCK:
            self._learn_noise(growing=growing)
        return Move.NOTHING

    def _explained(self, *, alert: bool) -> float:
        """How many of the answers may have failed as usual."""
        noise = self._noise_failed / self._noise_count
        if alert:
            noise = max(noise, USUAL)  # the little that is known so far proves no less
        usual = self._count * noise
        return usual + 3 * math.sqrt(usual * (1 - noise)) + (ALERT if alert else SPARE)

    def _judge_trial(self, load: float, last_seq: int, failed: bool) -> Move:
        # Less than enough tells no more, and takes ever longer.
        move = Move.REFUSED if failed and load >= self._enough else Move.NOTHING
        if self._count < TELLING:
            return move
        share = self._failed / self._count
        before = self._share_before
        self._tight += MUCH / 2 < share < 1
        if self._tight >= LONG:
            move = self._is_noise(share)
        elif share == 1.0:
            self._share_before = 1.0  # rather down than throttling
        elif before == 1.0 and not self._mixed:
            self._share_before = 0.0  # the site was down and is up again
        elif share < 0.5 * before or before == 1.0:
            # Half of the answers never fail by chance; fewer may, but hardly twice in a row.
            self.throttling = before >= 0.5 or self._warned > 0
            self._warned = WARNED
            move = move if self.throttling else Move.RESTORE
            self._share_before = 0.0
        elif load > 0.5 * self._load_before and load >= self._enough:
            pass
        elif (1 - share) > (1 - before) * math.sqrt(self._load_before / load):
            self.throttling = True
            self._share_before = 0.0
        else:
            self._unmoved += 1
            # What was served before may have come out of a bucket: compare with this from now on.
            self._share_before, self._load_before = share, load
            if self._unmoved >= UNMOVED:
                move = self._is_noise(share)
        self._restart(last_seq)
        return move

    def _doubt(self, load: float, last_seq: int, failed: bool) -> Move:
        """A limit that is followed refuses little; if much is refused, try anew what it is."""
        move = Move.REFUSED if failed and load >= self._enough else Move.NOTHING
        if self._count < TELLING:
            return move
        share = self._failed / self._count
        if share <= MUCH / 2:
            self._enough = ENOUGH * load
        self._tight = self._tight + 1 if share > MUCH / 2 else 0
        if self._tight >= LONG:
            move = self._is_noise(share)
        elif share > MUCH:
            self.throttling = False
            self._begin_trial(load)
        self._restart(last_seq)
        return move

    def _begin_trial(self, load: float) -> None:
        self._share_before = self._failed / self._count
        if self._share_before == 1.0 and self._served_before:
            self._share_before = MIXED  # failures are known sooner than what was served
        self._load_before = load
        self._unmoved = 0

    def _is_noise(self, share: float) -> Move:
        self.throttling = False
        self._share_before = 0.0
        self._tight = 0
        self._noise_failed, self._noise_count = BLOCK * share, float(BLOCK)
        return Move.RESTORE

    def _learn_noise(self, *, growing: bool) -> None:
        self._warned = max(0, self._warned - 1)
        if not growing:  # else failures that come with the load would become usual one by one
            self._noise_failed = 0.95 * self._noise_failed + self._failed
            self._noise_count = 0.95 * self._noise_count + self._count
        self._served_before = self._failed < self._count
        self._count = self._failed = 0

    def _restart(self, last_seq: int) -> None:
        self._since = last_seq
        self._mixed = False
        self._served_before = self._failed < self._count
        self._count = self._failed = 0
