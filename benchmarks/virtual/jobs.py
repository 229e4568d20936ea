"""Single runs by name, for worker processes; and the search for the oracle's best pace."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.virtual.contenders import ORACLE, OURS, maker
from benchmarks.virtual.crawl import Run
from benchmarks.virtual.figures import Figures, Truth, measure
from benchmarks.virtual.profiles import Profile, profiles
from benchmarks.virtual.sites import Bucket

SPARES = [i * 0.00025 for i in range(-4, 13)]
"""Seconds beside 1/rate between two requests that the oracle tries: jitter is a few ms."""
MOST_REFUSED = 0.005
ENOUGH = 2000
"""Requests that tell one pace from another."""


@dataclass(frozen=True)
class Job:
    """One run; ``spare``: what `spare_of` found, for the oracle."""

    profile: str
    contender: str
    seed: int
    spare: float = 0.0


def run_job(job: Job, trace: Callable[[str], object] | None = None) -> Figures:
    """Run it."""
    run = Run(profiles()[job.profile], maker(job.contender, job.spare), job.seed, trace=trace)
    run.run()
    return measure(run)


def cost(job: Job) -> float:
    """About how long it takes, in no unit."""
    profile = profiles()[job.profile]
    pages = profile.pages or Truth(profile, profile.site(random.Random(0))).pages(profile.seconds)
    return pages * (3 if job.contender == OURS else 1)


def wants_spare(profile: Profile) -> bool:
    """Whether jitter keeps even the oracle from the full rate: a bucket without a burst."""
    site = profile.site(random.Random(0))
    return isinstance(site, Bucket) and min(map(site.burst, [0.0, *site.changes])) < 2


def spare_of(name: str) -> float:
    """The spacing with which the oracle gets most with at most 0.5 % refused."""
    profile = profiles()[name]
    rate = profile.site(random.Random(0)).limits(0.0).rate
    if profile.crawlers * profile.lanes == 1 and not profile.site(random.Random(0)).changes:
        profile = replace(profile, seconds=min(profile.seconds, ENOUGH / rate))

    def merit(spare: float) -> tuple[float, float]:
        run = Run(profile, maker(ORACLE, spare), seed=0)
        run.run()
        figures = measure(run)
        return min(0.0, MOST_REFUSED - figures.refused), figures.goodput

    return max(SPARES, key=merit)
