"""Single runs by name, for worker processes; and the search for the oracle's best pace."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.virtual.contenders import COMPARISONS, ORACLE, OURS, maker
from benchmarks.virtual.crawl import Run
from benchmarks.virtual.figures import Figures, Truth, measure
from benchmarks.virtual.profiles import Profile, profiles
from benchmarks.virtual.sites import Bucket, Site

SPARES = [i / 10_000 for i in range(-10, 31)]
"""Seconds beside 1/rate between two requests that the oracle tries: jitter is a few ms."""
MOST_REFUSED = 0.005
ENOUGH = 6000
"""Requests that tell one pace from another."""
HAMMERED = 30_000
"""Requests after which a comparison is stopped, or twice what a perfect client would have sent."""


@dataclass(frozen=True)
class Pace:
    """What `best_pace` found: seconds beside 1/rate, and the goodput that it leaves."""

    spare: float = 0.0
    goodput: float = 1.0


@dataclass(frozen=True)
class Job:
    """One run."""

    profile: str
    contender: str
    seed: int
    pace: Pace = Pace()
    recorded: bool = False


def start(job: Job, trace: Callable[[str], object] | None = None) -> Run:
    """Run it."""
    profile = profiles()[job.profile]
    most = max(HAMMERED, 2 * _pages(profile)) if job.contender in COMPARISONS else math.inf
    run = Run(
        profile,
        maker(job.contender, job.pace.spare),
        job.seed,
        most=most,
        recorded=job.recorded,
        trace=trace,
    )
    run.run()
    return run


def figures_of(job: Job) -> Figures:
    """Run it and measure."""
    return measure(start(job), job.pace.goodput)


def cost(job: Job) -> float:
    """About how long it takes, in no unit."""
    return _pages(profiles()[job.profile]) * (3 if job.contender == OURS else 1)


def _pages(profile: Profile) -> float:
    return profile.pages or Truth(profile, _site(profile)).pages(profile.seconds)


def _site(profile: Profile) -> Site:
    return profile.site(random.Random(0))


def wants_pace(profile: Profile) -> bool:
    """Whether jitter keeps even the oracle from the full rate: a bucket without a burst."""
    site = _site(profile)
    return isinstance(site, Bucket) and min(map(site.burst, [0.0, *site.changes])) < 2


def best_pace(name: str) -> Pace:
    """The fastest pace with at most 0.5 % refused; with none, where each costs a pause."""
    profile, site = profiles()[name], _site(profiles()[name])
    if not site.changes:
        profile = replace(profile, seconds=min(profile.seconds, ENOUGH / site.capacity(0, 1e9)))
    most_refused = 0.0 if isinstance(site, Bucket) and site.ban else MOST_REFUSED

    def attempt(spare: float) -> Figures:
        run = Run(profile, maker(ORACLE, spare), seed=0)
        run.run()
        return measure(run)

    low, high = 0, len(SPARES) - 1
    best = attempt(SPARES[high])
    while low < high:
        middle = (low + high) // 2
        figures = attempt(SPARES[middle])
        if figures.refused <= most_refused:
            high, best = middle, figures
        else:
            low = middle + 1
    return Pace(SPARES[high], min(1.0, best.goodput))
