"""What is simulated: the sites, who crawls them and for how long, and the bars for ours."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.virtual.sites import (
    BARE_503,
    TOO_MANY,
    AtOnce,
    Bucket,
    Flaky,
    Queueing,
    Site,
    Steps,
    Trouble,
    Window,
    too_many,
)
from benchmarks.virtual.verdicts import AtLeast, AtMost, Bar, Either

CEILING = 64
"""Requests at once that the user allows each lane."""
SECONDS = 300.0
MakeSite = Callable[[random.Random], Site]


@dataclass(frozen=True)
class Profile:
    """A site, and either so many pages or so many seconds of endless pages.

    ``crawlers`` crawl it from one address and know nothing of each other; each has ``lanes`` (as
    for so many proxies) that share its pages. ``production``: pages per second that become
    available. ``settled``: second from which no refusal is excused any more.
    """

    name: str
    site: MakeSite
    bars: tuple[Bar, ...] = ()
    pages: int | None = None
    seconds: float = SECONDS
    crawlers: int = 1
    lanes: int = 1
    ceiling: int = CEILING
    production: Steps | None = None
    settled: float = 0.0


FEW_REFUSED = (
    AtMost("refused_late", 0.005),
    Either(AtMost("refused", 0.01), AtMost("refusals", 12)),
)
RARELY_LOST = (AtMost("lost", 0), AtLeast("goodput", 0.93), AtMost("refused", 0.02))
SHARED = (AtLeast("least_share", 0.2), AtMost("refused", 0.02))


def learns(capacity: float, *, of_oracle: bool = False) -> tuple[Bar, ...]:
    """Bars of a site with one steady limit of so many pages per second."""
    return (
        AtLeast("goodput", 0.97, of_oracle=of_oracle),
        *FEW_REFUSED,
        AtMost("to_90", max(5.0, 10 / capacity)),
    )


def follows(slowest_up: float) -> tuple[Bar, ...]:
    """Bars of a site whose limit changes; ``slowest_up``: seconds after a step up."""
    return AtLeast("goodput", 0.93), AtMost("up", slowest_up), AtMost("down", 3.0)


def at_once(limit: float, **options: Any) -> MakeSite:
    """Make a site that serves so many at once."""
    return lambda rng: AtOnce(rng, Steps(limit), **options)


def bucket(rate: float, burst: float, **options: Any) -> MakeSite:
    """Make a site with a token bucket."""
    return lambda rng: Bucket(rng, Steps(rate), Steps(burst), **options)


@cache
def profiles() -> dict[str, Profile]:
    """All profiles by name."""
    kinds = (_steady, _windows, _changing, _costly, _failing, _crawls, _shared, _outages)
    return {profile.name: profile for kind in kinds for profile in kind()}


def _steady() -> Iterator[Profile]:
    for n in (1, 4, 20):
        yield Profile(f"at-once-{n}", at_once(n), learns(10 * n))
    # Slow answers keep this one cheap to run; the user allows more than the site.
    yield Profile("at-once-100", at_once(100, seconds=0.4), learns(250), ceiling=128)
    bars: tuple[Bar, ...] = (AtLeast("goodput", 0.9), AtMost("refused", 0.02))
    yield Profile("bucket-0.5-burst-1", bucket(0.5, 1), bars, seconds=2400)
    for rate, burst in ((2, 1), (2, 2), (10, 1), (10, 10), (40, 10), (100, 1), (100, 100)):
        bars = learns(rate, of_oracle=burst == 1)
        yield Profile(f"bucket-{rate}-burst-{burst}", bucket(rate, burst), bars)
    humps = {"seconds": 0.05, "slow": 0.3, "slow_seconds": 2.0}
    yield Profile("two-humps-at-once-20", at_once(20, **humps))
    yield Profile("two-humps-bucket-10", bucket(10, 10, **humps))
    bars = (AtLeast("goodput", 0.95), AtMost("latency", 1.5))
    yield Profile("queueing-5", lambda rng: Queueing(rng, 5), bars)


def _windows() -> Iterator[Profile]:
    def window(*, headers: bool) -> MakeSite:
        return lambda rng: Window(rng, 60, 60.0, headers=headers)

    bars = (AtLeast("goodput", 0.9), AtMost("refused_late", 0.02))
    yield Profile("window-60", window(headers=False), bars, seconds=1800)
    bars = (AtLeast("goodput", 0.97), AtMost("refusals_settled", 0))
    yield Profile("window-60-headers", window(headers=True), bars, seconds=1800, settled=61)
    bars = (AtLeast("goodput", 0.9), AtMost("refused", 0.01))
    yield Profile("bucket-20-headers", bucket(20, 5, headers=True), bars)


def _changing() -> Iterator[Profile]:
    """As long as it takes for the time that a step up may cost not to decide the goodput.

    When a step comes is drawn, so that no moment of a limiter's own rhythm is favoured.
    """

    def places(rng: random.Random) -> Site:
        up = 240 + rng.uniform(-20, 20)
        return AtOnce(rng, Steps(20, (120, 5), (up, 40)))

    def rates(rng: random.Random) -> Site:
        up = 250 + rng.uniform(-30, 30)
        return Bucket(rng, Steps(50, (150, 5), (up, 50)), Steps(5, (150, 1), (up, 5)))

    yield Profile("steps-at-once-20-5-40", places, follows(20.0), seconds=440)
    yield Profile("steps-rate-50-5-50", rates, follows(200 / 5), seconds=600)


def _costly() -> Iterator[Profile]:
    """Sites where a refusal costs a pause."""
    bars = (AtMost("early", 0),)
    ban = {"ban": 3.0, "refusal": too_many(3.0)}
    yield Profile("ban-3s-20-burst-20", bucket(20, 20, **ban), bars)
    yield Profile("ban-3s-20-burst-1", bucket(20, 1, **ban), bars)
    yield Profile("at-once-8-retry-after-2", at_once(8, refusal=too_many(2.0)), bars)


def _failing() -> Iterator[Profile]:
    for rate, burst in ((2, 2), (10, 10), (40, 10)):
        site = bucket(rate, burst, refusal=BARE_503)
        seconds = 600 if rate <= 10 else SECONDS  # a few at the start are a large share
        name = f"bare-503-bucket-{rate}-burst-{burst}"
        yield Profile(name, site, RARELY_LOST, seconds=seconds)
    yield Profile("bare-503-at-once-10", at_once(10, refusal=BARE_503), RARELY_LOST)
    steps = Steps(20, (120, 5), (290, 40))
    yield Profile(
        "bare-503-steps-at-once-20-5-40",
        lambda rng: AtOnce(rng, steps, refusal=BARE_503),
        RARELY_LOST,
        seconds=440,
    )
    yield Profile(
        "burst-of-503s-5s", lambda rng: Trouble(at_once(20)(rng), 147.5, 152.5, BARE_503)
    )
    bars: tuple[Bar, ...] = (AtMost("resumed", 5.0),)
    yield Profile("black-hole-10s", lambda rng: Trouble(at_once(10)(rng), 145, 155, None), bars)
    bars = (AtLeast("goodput", 0.97, of_oracle=True),)
    yield Profile("random-503-5%", lambda rng: Flaky(rng, 0.05), bars, seconds=60)
    bars = (AtLeast("goodput", 0.7, of_oracle=True),)  # what a verdict takes weighs in a minute
    yield Profile("random-503-20%", lambda rng: Flaky(rng, 0.2), bars, seconds=60)
    bars = (AtLeast("goodput", 0.5, of_oracle=True),)
    yield Profile(
        "random-quick-503-40%", lambda rng: Flaky(rng, 0.4, failing_after=0.01), bars, seconds=60
    )


def _crawls() -> Iterator[Profile]:
    """Crawls that end, and one whose pages come slowly at first."""
    yield Profile("60-pages-at-once-10", at_once(10), pages=60)
    yield Profile("60-pages-bucket-2", bucket(2, 2), pages=60)
    yield Profile("1200-pages-at-once-10", at_once(10), pages=1200)
    yield Profile("1200-pages-bucket-40", bucket(40, 10), pages=1200)
    yield Profile(
        "slow-producer-at-once-10",
        at_once(10),
        seconds=240,
        production=Steps(20, (120, math.inf)),
    )


def _shared() -> Iterator[Profile]:
    yield Profile("two-crawlers-bucket-20", bucket(20, 20), SHARED, crawlers=2)
    yield Profile("two-crawlers-at-once-10", at_once(10), SHARED, crawlers=2)
    yield Profile("ten-lanes-bucket-20", bucket(20, 20), lanes=10)
    yield Profile("ten-lanes-at-once-20", at_once(20), lanes=10)


def _outages() -> Iterator[Profile]:
    """The site refuses everything for a while, at the very start or later."""
    for name, since, length, retry_after in (
        ("outage-first-2s", 0.0, 2.0, None),
        ("outage-first-2s-retry-after", 0.0, 2.0, 1.0),
        ("outage-first-10s", 0.0, 10.0, None),
        ("outage-10s", 20.0, 10.0, None),
        ("outage-10s-retry-after", 20.0, 10.0, 2.0),
    ):
        site = _outage(since, since + length, retry_after)
        if since == 0:
            yield Profile(f"50-pages-{name}", site, pages=50)
        yield Profile(name, site, seconds=60)


def _outage(since: float, until: float, retry_after: float | None) -> MakeSite:
    verdict = TOO_MANY if retry_after is None else too_many(retry_after)
    limit = at_once(CEILING if since == 0 else 10)
    return lambda rng: Trouble(limit(rng), since, until, verdict)
