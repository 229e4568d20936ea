"""What is read from a run, and the medians and worst of several."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from benchmarks.virtual.crawl import Run
from benchmarks.virtual.profiles import Profile
from benchmarks.virtual.sites import Site, first_change, total

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
    refusals_settled: int | None
    """Count since the profile's ``settled``."""
    early: int
    """Requests sent before a pause that the site asked for was over."""
    to_90: float | None
    """Until the rate of half a second (or five requests) had first reached 90 % of the capacity.
    None for a crawl of too few pages to show."""
    up: float | None
    """The same after a step up, counted from it; the slowest."""
    down: float | None
    """From a step down until at most 1.1 × the new capacity was sent in the half second (or the
    time of five requests) that followed; the slowest."""
    resumed: float | None
    """From when a dead site was alive again until something was sent to it; the slowest."""
    latency: float
    """Median of the accepted answers in the second half, by that of the unloaded site."""
    least_share: float | None
    """Pages of the crawler that had the fewest, by what a perfect client alone would have."""
    lost: int
    """Pages given up."""
    served: int
    seconds: float
    """How long the crawl took, or was watched."""


_LESS_IS_WORSE = {"goodput", "least_share", "served"}


class Truth:
    """What a perfect client would get in a profile."""

    def __init__(self, profile: Profile, site: Site) -> None:
        self._site = site
        self._production = profile.production
        self._ceiling = profile.ceiling * profile.lanes * profile.crawlers
        produced: Sequence[float] = profile.production.changes if profile.production else ()
        self.changes = sorted({*site.changes, *produced})

    def capacity(self, now: float) -> float:
        """Pages per second."""
        capacity = self._site.capacity(now, self._ceiling)
        return min(capacity, self._production(now)) if self._production else capacity

    def pages(self, until: float) -> float:
        """Pages by then."""
        if self._production is None:
            return self._site.pages(until, self._ceiling)
        return total(self.capacity, self.changes, until)

    def time_for(self, pages: int) -> float:
        """Seconds for so many pages."""
        low, high = 0.0, 1.0
        while self.pages(high) < pages:
            low, high = high, 2 * high
        while high - low > 0.001:
            middle = (low + high) / 2
            low, high = (middle, high) if self.pages(middle) < pages else (low, middle)
        # Where the rate is the limit, the last page is still on its way when its turn has come.
        paced = self._site.limits(0.0).rate < math.inf
        return high + (self._site.mean_latency if paced else 0.0)


def measure(run: Run, attainable: float = 1.0) -> Figures:
    """Figures of a run that has ended.

    ``attainable``: share of the capacity that jitter leaves even to a client that knows it; what
    counts as having found the capacity is that much less.
    """
    profile, record, site = run.profile, run.record, run.site
    truth = Truth(profile, site)
    accepted, refused = record.accepted, record.refused
    served, end = len(accepted), record.end
    possible = truth.pages(end)
    if profile.pages is None:
        goodput = served / possible
    else:
        ours = accepted[-1] * profile.pages if served else math.inf
        goodput = truth.time_for(served) * served / ours
    first_late = bisect_left(accepted, end / 2)
    bad_late = len(refused) - bisect_left(refused, end / 2)
    ups, downs, revivals = _changes(truth, end)
    reached = REACHED * attainable
    capacity = truth.capacity(end)
    if profile.pages is not None and profile.pages < reached * capacity * _span(capacity):
        ups, to_90 = [], None
    else:
        to_90 = seconds_to_reach(accepted, truth, reached)
    return Figures(
        goodput=goodput,
        refused=_share(len(refused), served),
        refusals=len(refused),
        refused_late=_share(bad_late, served - first_late),
        refusals_settled=len(refused) - bisect_left(refused, profile.settled)
        if profile.settled
        else None,
        early=record.early,
        to_90=to_90,
        up=max((seconds_to_reach(accepted, truth, reached, at) for at in ups), default=None),
        down=max((seconds_to_fall(record.sent, truth, at, end) for at in downs), default=None),
        resumed=max((_next(record.sent, at) for at in revivals), default=None),
        latency=statistics.median(record.latencies[first_late:] or [math.inf])
        / unloaded_latency(site),
        least_share=min(record.shares) / possible if profile.crawlers > 1 else None,
        lost=record.lost,
        served=served,
        seconds=end,
    )


def unloaded_latency(site: Site) -> float:
    """Median seconds."""
    return site.slow_seconds if site.slow > 0.5 else site.seconds


def _changes(truth: Truth, end: float) -> tuple[list[float], list[float], list[float]]:
    """When the capacity steps up; when down, but not to nothing; when up from nothing."""
    ups, downs, revivals = [], [], []
    for at in truth.changes:
        before, after = truth.capacity(at - 1e-6), truth.capacity(at)
        if not 0 < at < end:
            continue
        if after > before:
            ups.append(at)
            if before == 0:
                revivals.append(at)
        elif 0 < after < before:
            downs.append(at)
    return ups, downs, revivals


def _share(part: int, rest: int) -> float:
    return part / (part + rest) if part else 0.0


def _span(capacity: float) -> float:
    """Seconds over which a rate is taken: half of one, or five requests."""
    return max(0.5, 5 / capacity) if capacity > 0 else 1.0


def seconds_to_reach(
    accepted: Sequence[float], truth: Truth, share: float = REACHED, since: float = 0.0
) -> float:
    """When, counted from ``since``, the rate of late first came to that share of the capacity."""
    for i in range(bisect_right(accepted, since), len(accepted)):
        at = accepted[i]
        capacity = truth.capacity(at)
        if capacity <= 0:
            continue
        span = _span(capacity)
        first = i + 1 - math.ceil(share * capacity * span)
        if first >= 0 and accepted[first] > at - span:
            return at - since
    return math.inf


def seconds_to_fall(sent: Sequence[float], truth: Truth, since: float, end: float) -> float:
    """From when, counted from ``since``, at most 1.1 × the capacity is sent."""
    end = min(end, first_change(truth.changes, since))
    capacity = truth.capacity(since)
    span = _span(capacity)
    allowed = math.floor(OVER * capacity * span)
    first, at = bisect_right(sent, since), since
    while first + allowed < len(sent) and sent[first + allowed] < at + span:
        at = sent[first]
        first += 1
    return at - since if at + span <= end else math.inf


def _next(times: Sequence[float], since: float) -> float:
    i = bisect_left(times, since)
    return times[i] - since if i < len(times) else math.inf


@dataclass(frozen=True)
class Row:
    """One contender on one profile: medians over the seeds, and the worst of each figure."""

    profile: str
    contender: str
    runs: tuple[Figures, ...]
    """In the order of the seeds."""
    median: Figures
    worst: Figures

    def of_first(self, seeds: int) -> Row:
        """The row that so many seeds would have given."""
        return (
            self
            if seeds >= len(self.runs)
            else summary(self.profile, self.contender, self.runs[:seeds])
        )


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
    return Row(profile, contender, tuple(runs), Figures(**medians), Figures(**worst))


def as_json(figures: Figures) -> dict[str, float | None]:
    """Figures that apply; null: never."""
    return {
        name: None if value == math.inf else value
        for name, value in asdict(figures).items()
        if value is not None
    }
