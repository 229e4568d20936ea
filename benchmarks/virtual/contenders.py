"""What is compared: ours, one that knows the site, and limiters after published descriptions.

The comparisons know nothing of pauses: a Retry-After holds back the refused request alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.virtual.sites import Site, first_change
from scrapy_backpressure.control.lane import Lane
from scrapy_backpressure.control.outcome import Outcome, Verdict

START = 4.0
"""Concurrency to begin with, of ours and of those whose description names none."""


class Contender(Protocol):
    """What the driver needs of a limiter; `Lane` has it all."""

    @property
    def paused_until(self) -> float:
        """When the pause that is on ends; may lie in the past."""

    @property
    def concurrency(self) -> float:
        """Requests at once that it now allows itself."""

    @property
    def rate(self) -> float:
        """Requests per second that it now allows itself; ``math.inf`` when unlimited."""

    def ready_at(self, now: float) -> float:
        """When one more request may be sent; ``math.inf``: when one in flight ends."""

    def sent(self, now: float) -> Any:
        """Note that a request goes out; what to give to `finished`."""

    def finished(
        self, ticket: Any, now: float, verdict: Verdict, *, latency: float
    ) -> Outcome | None:
        """Learn from its answer, which took ``latency`` seconds; what it takes the answer for."""


@dataclass(frozen=True)
class Setting:
    """Where a limiter works.

    ``share``: the part of the site's limit that a fair client in its place would take.
    """

    site: Site
    ceiling: int
    share: float
    rng: random.Random


Maker = Callable[[Setting], Contender]


def ours(setting: Setting) -> Contender:
    """The lane that the middleware uses."""
    return Lane(ceiling=setting.ceiling, start=START, now=0.0, rng=setting.rng)


class Oracle:
    """Fixed at the site's true limit, even where that changes; sends nothing to a dead site.

    Keeps the pauses that it is told. Paced from when a request was due where the site allows
    bursts, so that lateness costs nothing; else from when one was sent, with ``spare`` seconds
    more than the rate asks for.
    """

    def __init__(self, setting: Setting, spare: float = 0.0) -> None:
        self.paused_until = 0.0
        self._site = setting.site
        self._ceiling = setting.ceiling
        self._share = setting.share
        self._spare = spare
        self._in_flight = 0
        self._sent_at = -math.inf
        self._due = -math.inf
        self._look(0.0)

    def _look(self, now: float) -> None:
        limits = self._site.limits(now)
        self.concurrency = min(self._ceiling, limits.at_once * self._share)
        self.rate = limits.rate * self._share
        self._bursts = limits.burst >= 2
        self._interval = 1 / self.rate + (0.0 if self._bursts else self._spare)
        self._until = first_change(self._site.changes, now)

    def ready_at(self, now: float) -> float:
        if now >= self._until:
            self._look(now)
        if self._in_flight >= self.concurrency:
            return math.inf if self._in_flight else self._until
        last = self._due if self._bursts else self._sent_at
        return max(now, self.paused_until, last + self._interval)

    def sent(self, now: float) -> None:
        self._in_flight += 1
        # What was not sent for longer than an interval is not made up for.
        self._due = max(self._due + self._interval, now - self._interval)
        self._sent_at = now

    def finished(self, ticket: Any, now: float, verdict: Verdict, *, latency: float) -> None:
        self._in_flight -= 1
        if verdict.pause is not None:
            self.paused_until = max(self.paused_until, now + verdict.pause)


class AutoThrottle:
    """The rule of Scrapy's AutoThrottle with its defaults, and Scrapy's 8 requests per domain.

    The delay moves half way to the latency of each answer, and at least up to it; a bad answer
    never lowers it. Each wait is 0.5 to 1.5 times the delay. Source: Scrapy's documentation,
    "AutoThrottle extension" and RANDOMIZE_DOWNLOAD_DELAY.
    """

    paused_until = 0.0
    first_delay, longest_delay = 5.0, 60.0
    target = 1.0
    most_at_once = 8

    def __init__(self, setting: Setting) -> None:
        self.concurrency = min(setting.ceiling, self.most_at_once)
        self._rng = setting.rng
        self._delay = self.first_delay
        self._next = 0.0
        self._in_flight = 0

    @property
    def rate(self) -> float:
        return 1 / self._delay

    def ready_at(self, now: float) -> float:
        return math.inf if self._in_flight >= self.concurrency else max(now, self._next)

    def sent(self, now: float) -> None:
        self._in_flight += 1
        self._next = now + self._delay * self._rng.uniform(0.5, 1.5)

    def finished(self, ticket: Any, now: float, verdict: Verdict, *, latency: float) -> None:
        self._in_flight -= 1
        if not verdict.answered:
            return
        wanted = latency / self.target
        delay = min(self.longest_delay, max(wanted, (self._delay + wanted) / 2))
        if not verdict.outcome.is_bad or delay > self._delay:
            self._delay = delay


class _ByConcurrency:
    """A limiter that knows nothing but how many may be in flight."""

    paused_until = 0.0
    rate = math.inf

    def __init__(self, setting: Setting, start: float) -> None:
        self.ceiling = setting.ceiling
        self.concurrency = min(start, self.ceiling)
        self.in_flight = 0

    def ready_at(self, now: float) -> float:
        return now if self.in_flight < int(self.concurrency) else math.inf

    def sent(self, now: float) -> int:
        self.in_flight += 1
        return self.in_flight

    def set(self, concurrency: float) -> None:
        """Keep within 1 and the ceiling."""
        self.concurrency = min(self.ceiling, max(1.0, concurrency))


class AIMD(_ByConcurrency):
    """Plain additive increase, multiplicative decrease (Chiu and Jain 1989).

    One more per round trip, half as much at each bad answer.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, START)

    def finished(self, ticket: Any, now: float, verdict: Verdict, *, latency: float) -> None:
        self.in_flight -= 1
        step = -self.concurrency / 2 if verdict.outcome.is_bad else 1 / self.concurrency
        self.set(self.concurrency + step)


class Gradient(_ByConcurrency):
    """Concurrency from how latency compares with its long-term mean.

    Once a second, of ten answers at least: limit × gradient + room for a queue of 4, smoothed by
    0.2, where the gradient is 1.5 × long-term over present latency, within 0.5 and 1. The
    long-term mean spans 600 windows and falls by a twentieth where it is over twice the present.
    No growth while less than half of the limit is in use. A bad answer cuts to 0.9 at once.
    Source: Netflix concurrency-limits, the documentation of its Gradient2 limit and its defaults
    (start at 20), and "Performance Under Load" (Netflix Technology Blog, 2018). The cut is that of
    the same library's AIMD limit; the least is 1 here, not 20.
    """

    tolerance, queue, smoothing, drop = 1.5, 4.0, 0.2, 0.9
    window, least_samples, long_window = 1.0, 10, 600

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, 20.0)
        self._long = 0.0
        self._windows = 0
        self._start_window(0.0)

    def _start_window(self, now: float) -> None:
        self._until = now + self.window
        self._sum, self._samples, self._peak = 0.0, 0, 0

    def finished(self, ticket: int, now: float, verdict: Verdict, *, latency: float) -> None:
        self.in_flight -= 1
        if verdict.outcome.is_bad:
            self.set(self.concurrency * self.drop)
            return
        self._sum += latency
        self._samples += 1
        self._peak = max(self._peak, ticket)
        if now < self._until or self._samples < self.least_samples:
            return
        self._update(self._sum / self._samples)
        self._start_window(now)

    def _update(self, latency: float) -> None:
        # A plain mean at first, so that the very first window does not weigh for minutes.
        self._windows = min(self._windows + 1, self.long_window)
        self._long += (latency - self._long) * max(1 / self._windows, 2 / (self.long_window + 1))
        if self._long > 2 * latency:
            self._long *= 0.95
        if self._peak < self.concurrency / 2:
            return
        gradient = max(0.5, min(1.0, self.tolerance * self._long / latency))
        wanted = self.concurrency * gradient + self.queue
        self.set(self.concurrency + self.smoothing * (wanted - self.concurrency))


class Cubic:
    """The client-side rate limiter of cloud SDKs: AWS's "adaptive" retry mode.

    A token bucket, on from the first throttled answer. Such an answer sets its rate to 0.7 × what
    was sent; others let it grow as 0.4 (t − T)³ + the rate at that time, T being when the old
    rate is reached again; never over twice what is sent. That is counted in half-seconds and
    smoothed by 0.8. Bursts of a second's worth. Other failures are no news to it.
    Source: AWS SDKs and Tools Reference Guide, "Retry behavior", and its constants as named there
    and in the SDKs' documentation; the growth is that of CUBIC (RFC 9438).
    """

    paused_until = 0.0
    beta, scale, smooth, span = 0.7, 0.4, 0.8, 0.5
    least_rate, least_capacity = 0.5, 1.0

    def __init__(self, setting: Setting) -> None:
        self.concurrency = setting.ceiling
        self.rate = math.inf
        self._in_flight = 0
        self._capacity = self._tokens = 0.0
        self._filled_at = 0.0
        self._measured = 0.0
        self._count = 0
        self._counted_until = 0.0
        self._top = 0.0
        self._cut_at = 0.0

    def ready_at(self, now: float) -> float:
        if self._in_flight >= self.concurrency:
            return math.inf
        if self.rate == math.inf:
            return now
        self._fill(now)
        missing = 1 - self._tokens
        # A hair is rounding, and waiting for it might never end.
        return now if missing < 1e-9 else now + missing / self.rate

    def sent(self, now: float) -> None:
        self._in_flight += 1
        if self.rate < math.inf:
            self._fill(now)
            self._tokens -= 1

    def finished(self, ticket: Any, now: float, verdict: Verdict, *, latency: float) -> None:
        self._in_flight -= 1
        self._measure(now)
        if verdict.outcome is Outcome.THROTTLED:
            self._top = min(self._measured, self.rate)
            self._cut_at = now
            wanted = self._top * self.beta
        elif self.rate == math.inf:
            return
        else:
            back = (self._top * (1 - self.beta) / self.scale) ** (1 / 3)
            wanted = self.scale * (now - self._cut_at - back) ** 3 + self._top
        self._set(min(wanted, 2 * self._measured), now)

    def _measure(self, now: float) -> None:
        self._count += 1
        bucket = math.floor(now / self.span) * self.span
        if bucket > self._counted_until:
            lately = self._count / (bucket - self._counted_until)
            self._measured += self.smooth * (lately - self._measured)
            self._count, self._counted_until = 0, bucket

    def _set(self, rate: float, now: float) -> None:
        if self.rate < math.inf:
            self._fill(now)
        self._filled_at = now
        self.rate = max(self.least_rate, rate)
        self._capacity = max(self.least_capacity, rate)
        self._tokens = min(self._tokens, self._capacity)

    def _fill(self, now: float) -> None:
        self._tokens = min(self._capacity, self._tokens + (now - self._filled_at) * self.rate)
        self._filled_at = now


OURS, ORACLE = "ours", "oracle"
COMPARISONS: Mapping[str, Maker] = {
    "autothrottle": AutoThrottle,
    "aimd": AIMD,
    "gradient": Gradient,
    "cubic": Cubic,
}
NAMES = (OURS, ORACLE, *COMPARISONS)


def maker(name: str, spare: float = 0.0) -> Maker:
    """What makes a limiter of that name; ``spare``: see `Oracle`."""
    if name == OURS:
        return ours
    if name == ORACLE:
        return lambda setting: Oracle(setting, spare)
    return COMPARISONS[name]
