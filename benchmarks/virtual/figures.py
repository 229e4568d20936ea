"""What is read from a run, and the medians and worst of several."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

from benchmarks.virtual.crawl import Run
from benchmarks.virtual.profiles import Profile
from benchmarks.virtual.sites import Site

REACHED = 0.9
"""Share of a capacity that counts as having found it."""
OVER = 1.1
"""Share of a capacity down to which the sending rate has to fall."""


@dataclass(frozen=True)
class Figures:
    """Figures of one run. None: does not apply; ``math.inf``: never. Times in seconds."""

    goodput: float
    """Pages served, of those that a perfect client would have; or, of a crawl of so many pages,
    the perfect client's time by our time. A lost page is not served."""
    refused: float
    """Share of all answers that were refusals, failures or timeouts."""
    refusals: int
    refused_late: float
    """Share in the second half of the time."""
    refusals_settled: int
    """Count since the profile's ``settled``."""
    early: int
    """Requests sent before a pause that the site asked for was over."""
    to_90: float
    """Until the rate of a second (or ten requests) had first reached 90 % of the capacity."""
    up: float | None
    """The same after a step up, counted from it; the slowest."""
    down: float | None
    """From a step down until at most 1.1 × the new capacity was sent in the second (or the time
    of ten requests) that followed; the slowest."""
    resumed: float | None
    """From when a dead site was alive again until something was sent to it; the slowest."""
    latency: float
    """Median of the accepted answers in the second half, by that of the unloaded site."""
    least_share: float | None
    """Pages of the crawler that had the fewest, by what a perfect client alone would have."""
    lost: int
    """Pages given up."""
    served: int


_LESS_IS_WORSE = {"goodput", "least_share", "served"}


class Truth:
    """What a perfect client would get in a profile."""

    def __init__(self, profile: Profile, site: Site) -> None:
        self._site = site
        self._production = profile.production
        self._ceiling = profile.ceiling * profile.lanes * profile.crawlers
        produced = profile.production.changes if profile.production else ()
        self.changes = sorted({*site.changes, *produced})

    def capacity(self, now: float) -> float:
        """Pages per second."""
        capacity = self._site.capacity(now, self._ceiling)
        return min(capacity, self._production(now)) if self._production else capacity

    def pages(self, until: float) -> float:
        """Pages by then."""
        if self._production is None:
            return self._site.pages(until, self._ceiling)
        edges = [0.0, *(at for at in self.changes if 0 < at < until), until]
        return sum(self.capacity(a) * (b - a) for a, b in pairwise(edges))

    def time_for(self, pages: int) -> float:
        """Seconds for so many pages."""
        low, high = 0.0, 1.0
        while self.pages(high) < pages:
            low, high = high, 2 * high
        while high - low > 0.001:
            middle = (low + high) / 2
            low, high = (middle, high) if self.pages(middle) < pages else (low, middle)
        return high + self._site.mean_latency


def measure(run: Run) -> Figures:
    """Figures of a run that has ended."""
    profile, record, site = run.profile, run.record, run.site
    truth = Truth(profile, site)
    half = record.end / 2
    late_bad = len(record.refused) - bisect_left(record.refused, half)
    first_late = bisect_left(record.accepted, half)
    late_good = len(record.accepted) - first_late
    served = len(record.accepted)
    possible = truth.pages(record.end)
    rises = list(_rises(truth, record.end))
    falls = [at for at in truth.changes if 0 < truth.capacity(at) < truth.capacity(at - 1e-6)]
    revivals = [at for at in rises if truth.capacity(at - 1e-6) == 0]
    return Figures(
        goodput=served / possible
        if profile.pages is None
        else _share(truth.time_for(served) * served, record.accepted[-1] * profile.pages)
        if served
        else 0.0,
        refused=_share(len(record.refused), len(record.refused) + served),
        refusals=len(record.refused),
        refused_late=_share(late_bad, late_bad + late_good),
        refusals_settled=len(record.refused) - bisect_left(record.refused, profile.settled),
        early=record.early,
        to_90=seconds_to_90(record.accepted, truth, 0.0),
        up=max((seconds_to_90(record.accepted, truth, at) for at in rises), default=None),
        down=max((seconds_to_fall(record.sent, truth, at) for at in falls), default=None),
        resumed=max((_next(record.sent, at) for at in revivals), default=None),
        latency=statistics.median(record.latencies[first_late:] or [math.inf])
        / unloaded_latency(site),
        least_share=min(record.shares) / possible if profile.crawlers > 1 else None,
        lost=record.lost,
        served=served,
    )


def unloaded_latency(site: Site) -> float:
    """Median seconds."""
    return site.slow_seconds if site.slow > 0.5 else site.seconds


def _rises(truth: Truth, end: float) -> Sequence[float]:
    return [
        at
        for at in truth.changes
        if 0 < at < end and truth.capacity(at) > truth.capacity(at - 1e-6)
    ]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _span(capacity: float) -> float:
    """Seconds over which a rate is taken: one, or ten requests."""
    return max(1.0, 10 / capacity)


def seconds_to_90(accepted: Sequence[float], truth: Truth, since: float) -> float:
    """When, counted from ``since``, the rate of late first came to 90 % of the capacity."""
    for i in range(bisect_right(accepted, since), len(accepted)):
        at = accepted[i]
        capacity = truth.capacity(at)
        if capacity <= 0:
            continue
        span = _span(capacity)
        first = i + 1 - math.ceil(REACHED * capacity * span)
        if first >= 0 and accepted[first] > at - span:
            return at - since
    return math.inf


def seconds_to_fall(sent: Sequence[float], truth: Truth, since: float) -> float:
    """From when, counted from ``since``, at most 1.1 × the capacity is sent."""
    capacity = truth.capacity(since)
    span = _span(capacity)
    allowed = math.floor(OVER * capacity * span)
    first, at = bisect_right(sent, since), since
    while first + allowed < len(sent) and sent[first + allowed] < at + span:
        at = sent[first]
        first += 1
    return at - since


def _next(times: Sequence[float], since: float) -> float:
    i = bisect_left(times, since)
    return times[i] - since if i < len(times) else math.inf


@dataclass(frozen=True)
class Row:
    """One contender on one profile: medians over the seeds, and the worst of each figure."""

    profile: str
    contender: str
    seeds: int
    median: Figures
    worst: Figures


def summary(profile: str, contender: str, runs: Sequence[Figures]) -> Row:
    """Put the runs of several seeds together."""
    medians: dict[str, Any] = {}
    worst: dict[str, Any] = {}
    for figure in fields(Figures):
        name = figure.name
        values = [getattr(run, name) for run in runs if getattr(run, name) is not None]
        medians[name] = statistics.median(values) if values else None
        pick = min if name in _LESS_IS_WORSE else max
        worst[name] = pick(values, default=None)
    return Row(profile, contender, len(runs), Figures(**medians), Figures(**worst))


def as_json(figures: Figures) -> dict[str, float | None]:
    """Figures that apply; null: never."""
    return {
        name: None if value == math.inf else value
        for name, value in asdict(figures).items()
        if value is not None
    }
