"""Failures that are throttling in disguise: many sites answer 503 where they mean 429.

What tells them from failures of the site itself is whether they follow our own load. When clearly
more fail than usual, they are treated as refusals for a trial, down to a quarter of the load.

- If next to nothing fails any more, the site throttles.
- If as much fails at a quarter of the load, and at a sixteenth, this is the site's normal state,
  and the cuts are taken back. (One step is not enough: what was served before may have come out of
  a bucket.) But if the share of what is served grew by more than the root of what the load fell
  by, the site throttles, and the limit is lower still.

A site that throttles refuses little of a load that follows its limit. If it refuses more after
all, the verdict was wrong, and the cuts are taken back; each time, it takes more to say so.

"Clearly more" is that of a control chart: mean + 3 standard deviations, and 3 for small numbers.
Where nothing was ever served, two failures are enough. While the load grows fast, and the failures
come faster than answers (as a front's do), one takes the place of the 3: the load is then the
likely cause, and a needless trial costs little. The trial is a sequential test between "2 %
fail" and "so many as before fail"; the doubt later is the same test, kept from falling below zero.

Sources: W. Shewhart, *Economic Control of Quality of Manufactured Product*, for the threshold;
A. Wald, *Sequential Tests of Statistical Hypotheses* (1945); E. Page, *Continuous Inspection
Schemes* (1954), for the long run.
"""

from __future__ import annotations

import math
from enum import Enum

TELLING = 16
"""Answers of which all failed, or none, that tell of a site that is down, or up again; and answers
below which a share tells little."""
LOW = 0.25
"""Part of the load to which a trial lowers it, a step ..."""
LOWER = 0.5
"""... and that is low enough to count."""
STEPS = 2
"""Steps down at which as much has to fail for it to be the site's normal state."""
FELL = 1.5
"""Standard deviations by which less has to fail for a step not to count."""
FOLLOWED = 0.02
"""Share of answers that may fail where a limit is followed."""
LEAST_NOISE, MOST_NOISE = 0.1, 0.2
"""Shares between which that of a site's own failures is taken in the tests."""
SURE = 3.0
"""Logarithm of the odds that decides a trial: one in twenty is decided wrongly."""
DOUBTFUL = 6.0
"""The same against a verdict that the site throttles, for the first time."""
MOST_STEADY = 0.5
"""Share of failures from which on a limit has fallen, or the site is down, rather than that they
had nothing to do with our load."""
MIXED = 0.9
"""Share of failures taken where some are served, but no answer of those is there yet."""
ENOUGH = 0.02
"""Part of the load that was followed well below which failures lower it no further."""
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
        "_doubtful",
        "_enough",
        "_failed",
        "_load_before",
        "_mixed",
        "_noise_count",
        "_noise_failed",
        "_odds",
        "_run_count",
        "_run_failed",
        "_run_since",
        "_served",
        "_served_before",
        "_share_before",
        "_since",
        "_steps",
        "throttling",
    )

    def __init__(self) -> None:
        self.throttling = False
        """Failures of this site follow our load."""
        self._noise_failed, self._noise_count = USUAL * BLOCK, float(BLOCK)
        self._share_before = 0.0  # of failures when the trial began; 0: none is under way
        self._load_before = self._enough = 0.0
        self._steps = 0
        self._odds = 0.0  # that failures do not follow the load, of one that is followed
        self._run_count = self._run_failed = 0  # answers since there is such a doubt
        self._run_since = 0  # number of the last request sent when it arose
        self._doubtful = DOUBTFUL
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
        self._served = self._served or not failed
        if self.throttling:
            return self._doubt(seq, load, last_seq, failed)
        if self._share_before:
            return self._judge_trial(load, last_seq, failed)
        if failed and self._failed > self._usual_failures(alert=growing and quick):
            self._enough = ENOUGH * load
            return self._begin_trial(load, last_seq)
        if self._count >= BLOCK:
            self._learn_noise(growing=growing)
        return Move.NOTHING

    def _usual_failures(self, *, alert: bool) -> float:
        """How many of the answers may have failed as usual."""
        if not self._served:
            return 1
        noise = self._noise_failed / self._noise_count
        if alert:
            noise = max(noise, USUAL)  # the little that is known so far proves no less
        usual = self._count * noise
        return usual + 3 * math.sqrt(usual * (1 - noise)) + (ALERT if alert else SPARE)

    def _judge_trial(self, load: float, last_seq: int, failed: bool) -> Move:
        count, share = self._count, self._failed / self._count
        odds = _odds(count, self._failed, self._share_before)
        # Less than enough tells no more, and takes ever longer.
        least = load < self._enough
        lower = failed and not least and (load > LOW * self._load_before or share == 1.0)
        if odds > SURE:
            self._is_throttling()
        elif count >= TELLING and share == 1.0:
            self._share_before = 1.0  # rather down than throttling
        elif count >= TELLING and self._share_before == 1.0 and not self._mixed:
            self._share_before = 0.0  # the site was down and is up again
        elif count >= TELLING and odds < -SURE and (least or load <= LOWER * self._load_before):
            return self._step_down(share, last_seq)
        else:
            return Move.REFUSED if lower else Move.NOTHING
        self._restart(last_seq)
        return Move.REFUSED if lower else Move.NOTHING

    def _step_down(self, share: float, last_seq: int) -> Move:
        """As much fails at a lower load, or nearly."""
        before = self._share_before
        self._restart(last_seq)
        if before < 1.0 and (1 - share) > (1 - before) / math.sqrt(LOW):
            self._is_throttling()
            return Move.NOTHING
        mean = (before + share) / 2
        if before == 1.0 or before - share < FELL * math.sqrt(mean * (1 - mean) * 2 / TELLING):
            self._steps += 1
        if self._steps >= STEPS:
            self._doubtful = DOUBTFUL
            return self._is_noise(share)
        self._share_before = share
        self._load_before *= LOW
        return Move.NOTHING

    def _doubt(self, seq: int, load: float, last_seq: int, failed: bool) -> Move:
        """A limit that is followed refuses little; if much, it is none, or has moved."""
        self._odds = max(0.0, self._odds - _odds(1, int(failed), LEAST_NOISE))
        if self._odds and not self._run_count:
            self._run_since = last_seq
        if self._odds:
            self._run_count += 1
            self._run_failed += failed
        else:
            self._run_count = self._run_failed = 0
        # The failures of one round trip have one cause.
        if failed and self._odds > self._doubtful and seq > self._run_since:
            return self._reconsider(load, last_seq)
        if self._count >= TELLING:
            if self._failed / self._count <= 1 / TELLING:
                self._enough = ENOUGH * load
            self._restart(last_seq)
        return Move.REFUSED if failed and load >= self._enough else Move.NOTHING

    def _reconsider(self, load: float, last_seq: int) -> Move:
        self._failed, self._count = self._run_failed, self._run_count
        self.throttling = False
        self._doubtful *= 2
        share = self._failed / self._count
        if share > MOST_STEADY:
            return self._begin_trial(load, last_seq)
        self._restart(last_seq)
        return self._is_noise(share)

    def _begin_trial(self, load: float, last_seq: int) -> Move:
        self._share_before = self._failed / self._count
        if self._share_before == 1.0 and self._served_before:
            self._share_before = MIXED  # failures are known sooner than what was served
        self._load_before = load
        self._steps = 0
        self._restart(last_seq)
        return Move.TRIAL

    def _is_throttling(self) -> None:
        self.throttling = True
        self._share_before = self._odds = 0.0
        self._run_count = self._run_failed = 0

    def _is_noise(self, share: float) -> Move:
        self._share_before = 0.0
        self._noise_failed, self._noise_count = BLOCK * share, float(BLOCK)
        return Move.RESTORE

    def _learn_noise(self, *, growing: bool) -> None:
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


def _odds(count: int, failed: int, share: float) -> float:
    """Logarithm of the odds that a followed limit explains so many failures, and not noise."""
    noise = min(MOST_NOISE, max(LEAST_NOISE, share))
    return failed * math.log(FOLLOWED / noise) + (count - failed) * math.log(
        (1 - FOLLOWED) / (1 - noise)
    )
