"""Drive `Lane` against model sites in virtual time and compare with what each site can bear.

    python benchmarks/simulate.py [--json] [--profile NAME] [--seeds N]

An hour of crawling takes about a second, and the same seed gives the same run. The driver asks
the lane as the scheduler does, but late by up to 2 ms, as a busy event loop would be. A refused
request is tried again after uniform(0, min(300, 2**n)) seconds, n being its refusals so far, or
when the lane's pause ends if that is later.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # when run as a file

from benchmarks.model_sites import (
    CEILING,
    LATENCY,
    NETWORK,
    Answer,
    AtOnce,
    BareAtOnce,
    BareBucket,
    BlackHole,
    Bucket,
    Flaky,
    Outage,
    Queueing,
    Schedule,
    Site,
    Window,
)
from scrapy_backpressure.control.lane import Lane, Ticket
from scrapy_backpressure.control.outcome import Outcome, Verdict

LATENESS = 0.002
TIMEOUT = 15.0


@dataclass(frozen=True)
class Profile:
    """A site, and either so many pages or so many seconds of endless pages."""

    site: Callable[[random.Random], Site]
    pages: int | None = None
    seconds: float = 120.0


def _profiles() -> Iterator[tuple[str, Profile]]:
    def at_once(n: int, **kw: float) -> Callable[[random.Random], Site]:
        return lambda rng: AtOnce(rng, [(0, n)], **kw)

    def bucket(
        rate: float, burst: float, ban: float | None = None
    ) -> Callable[[random.Random], Site]:
        return lambda rng: Bucket(rng, [(0, rate)], burst, ban)

    for n in (1, 4, 10, 20, 100):
        yield f"at-once-{n}", Profile(at_once(n), seconds=20 if n > 20 else 60 if n > 10 else 100)
    for rate, burst in (
        (0.5, 1),
        (2, 1),
        (2, 2),
        (10, 1),
        (10, 10),
        (40, 10),
        (100, 1),
        (100, 100),
    ):
        seconds = 2400 if rate < 1 else 900 if rate < 10 else 180 if rate < 40 else 60
        yield f"bucket-{rate:g}-burst-{burst}", Profile(bucket(rate, burst), seconds=seconds)
    yield "window-60", Profile(lambda rng: Window(rng, headers=False), seconds=1800)
    yield "window-60-headers", Profile(lambda rng: Window(rng, headers=True), seconds=1800)
    yield "at-once-8-retry-after-2", Profile(at_once(8, retry_after=2.0), seconds=150)
    yield "ban-3s-20-burst-1", Profile(bucket(20, 1, 3.0), seconds=300)
    yield "ban-3s-20-burst-20", Profile(bucket(20, 20, 3.0), seconds=300)
    steps: Schedule = [(0, 10), (40, 3), (80, 14)]
    yield "steps-10-3-14", Profile(lambda rng: AtOnce(rng, steps), seconds=120)
    rates: Schedule = [(0, 20), (60, 5), (120, 40)]
    yield "steps-20-5-40", Profile(lambda rng: Bucket(rng, rates, 5), seconds=180)
    yield "queueing-5", Profile(Queueing, seconds=60)
    yield "flaky-5%", Profile(Flaky, seconds=20)
    yield "bare-503-at-once-8", Profile(lambda rng: BareAtOnce(rng, [(0, 8)]))
    yield "bare-503-bucket-10", Profile(lambda rng: BareBucket(rng, [(0, 10)], 10), seconds=240)
    yield "black-hole-10s", Profile(lambda rng: BlackHole(rng, [(0, 10)]), seconds=120)
    for name, since, length, retry_after in (
        ("outage-first-2s", 0, 2, None),
        ("outage-first-2s-retry-after", 0, 2, 1.0),
        ("outage-first-10s", 0, 10, None),
        ("outage-10s", 20, 10, None),
        ("outage-10s-retry-after", 20, 10, 2.0),
    ):
        n = 64 if since == 0 else 10

        def outage(
            rng: random.Random,
            n: float = n,
            since: float = since,
            until: float = since + length,
            retry_after: float | None = retry_after,
        ) -> Site:
            return Outage(rng, [(0, n)], since=since, until=until, retry_after=retry_after)

        if since == 0:
            yield f"50-pages-{name}", Profile(outage, pages=50)
        yield name, Profile(outage, seconds=60)
    brief: Schedule = [(0, 10), (12, 3), (27, 14)]
    yield "2600-pages-steps-10-3-14", Profile(lambda rng: AtOnce(rng, brief), pages=2600)
    yield "120-pages-bucket-2-1", Profile(bucket(2, 1), pages=120)
    yield "2000-pages-ban-20-burst-20", Profile(bucket(20, 20, 3.0), pages=2000)
    yield "2400-pages-retry-after-2", Profile(at_once(8, retry_after=2.0), pages=2400)
    yield "60-pages-at-once-10", Profile(at_once(10), pages=60)
    yield "60-pages-bucket-2", Profile(bucket(2, 2), pages=60)
    for n in (1, 4, 10, 20):
        yield f"1200-pages-at-once-{n}", Profile(at_once(n), pages=1200)
    for rate, burst in ((2, 2), (10, 1), (10, 10), (40, 10), (100, 100)):
        yield f"1200-pages-bucket-{rate}-{burst}", Profile(bucket(rate, burst), pages=1200)
    yield "1200-pages-retry-after-2", Profile(at_once(8, retry_after=2.0), pages=1200)
    yield "1200-pages-ban-20-burst-20", Profile(bucket(20, 20, 3.0), pages=1200)
    yield "1200-pages-bare-503", Profile(lambda rng: BareAtOnce(rng, [(0, 8)]), pages=1200)


@dataclass
class Result:
    """Figures of one run; shares are of all requests sent."""

    profile: str
    goodput: float
    refused: float
    refused_late: float
    early: int
    seconds_to_90: float
    latency: float
    served: int
    lost: int


class Run:
    """One crawl in virtual time."""

    def __init__(self, profile: Profile, seed: int, trace: bool = False) -> None:
        self.rng = random.Random(seed)
        self.site = profile.site(random.Random(seed + 1000))
        self.lane = Lane(ceiling=CEILING, now=0.0, rng=random.Random(seed + 2000))
        self.profile = profile
        self.trace = trace
        self.left = math.inf if profile.pages is None else profile.pages
        self.end = profile.seconds if profile.pages is None else 40_000.0
        self.events: list[tuple[float, int, str, object]] = []
        self.count = 0
        self.retries: deque[int] = deque()
        self.accepted: list[float] = []
        self.answers: list[tuple[float, bool]] = []
        self.latencies: list[float] = []
        self.asked_until = 0.0
        self.early = 0
        self.poll_at = math.inf

    def push(self, at: float, kind: str, what: object) -> None:
        if at < math.inf:
            self.count += 1
            heapq.heappush(self.events, (at, self.count, kind, what))

    def run(self) -> None:
        now = 0.0
        self.pump(now)
        while self.events:
            now, _, kind, what = heapq.heappop(self.events)
            if now > self.end or len(self.accepted) == self.profile.pages:
                break
            if kind == "poll":
                if what != self.poll_at:  # an earlier one was asked for meanwhile
                    continue
                self.poll_at = math.inf
            elif kind == "retry":
                self.retries.append(what)  # type: ignore[arg-type]
            elif kind == "arrive":
                self.arrive(now, what)  # type: ignore[arg-type]
                continue
            else:
                self.finish(now, what)  # type: ignore[arg-type]
            self.pump(now)

    def pump(self, now: float) -> None:
        while self.left > 0 or self.retries:
            ready = self.lane.ready_at(now)
            if ready > now:
                if ready < self.poll_at:
                    self.poll_at = ready
                    self.push(ready + self.rng.uniform(0, LATENESS), "poll", ready)
                return
            if self.retries:
                tries = self.retries.popleft()
            else:
                self.left -= 1
                tries = 0
            self.early += now < self.asked_until
            ticket = self.lane.sent(now)
            self.push(now + self.network(), "arrive", (ticket, now, tries))

    def network(self) -> float:
        return NETWORK * self.rng.uniform(0.8, 1.2)

    def arrive(self, now: float, what: tuple[Ticket, float, int]) -> None:
        answer = self.site.answer(now)
        sent_at = what[1]
        at = now + answer.after + self.network()
        if at > sent_at + TIMEOUT:
            at, answer = sent_at + TIMEOUT, Answer(TIMEOUT, Outcome.FAILED)
        self.push(at, "finish", (*what, answer))

    def finish(self, now: float, what: tuple[Ticket, float, int, Answer]) -> None:
        ticket, sent_at, tries, answer = what
        answered = answer.after < TIMEOUT
        verdict = Verdict(answer.outcome, "", answer.pause, answer.quota, answered)
        self.lane.finished(ticket, now, verdict, latency=now - sent_at)
        self.answers.append((now, answer.outcome.is_bad))
        if self.trace and answer.outcome.is_bad:
            word = answer.outcome.value
            print(f"{now:9.3f} {word} load={ticket.load} tries={tries} {self.state()}")
        if not answer.outcome.is_bad:
            self.accepted.append(now)
            self.latencies.append(now - sent_at)
            return
        if answer.pause is not None:
            self.asked_until = max(self.asked_until, now + answer.pause)
        wait = self.rng.uniform(0, min(300.0, 2.0 ** (tries + 1)))
        self.push(max(now + wait, self.lane.paused_until), "retry", tries + 1)

    def state(self) -> str:
        lane = self.lane
        return (
            f"C={lane.concurrency:.1f} r={lane.rate:.2f} in={lane.in_flight} "
            f"pause={lane.paused_until:.2f} open={lane.breaker_open} "
            f"served={len(self.accepted)}"
        )

    def oracle(self, until: float) -> float:
        """Pages that a perfect client would have by ``until``."""
        edges = [0.0, *(at for at in self.site.changes if 0 < at < until), until]
        pages = sum(self.site.capacity(a) * (b - a) for a, b in pairwise(edges))
        if isinstance(self.site, Window):
            return self.site.limit * math.ceil(until / self.site.length)
        return pages + self.site.credit

    def oracle_time(self, pages: int) -> float:
        low, high = 0.0, 40_000.0
        if not self.site.changes:
            high = 2 * pages / self.site.capacity(0) + 60
        while high - low > 0.01:
            middle = (low + high) / 2
            low, high = (middle, high) if self.oracle(middle) < pages else (low, middle)
        return high + LATENCY

    def seconds_to_90(self) -> float:
        """When the rate of a second (or of ten pages) first reached 90 % of the capacity."""
        times = self.accepted
        span = max(1.0, 10 / (self.site.capacity(0) or 10))
        first = 0
        for i, at in enumerate(times):
            while times[first] < at - span:
                first += 1
            reached = (i - first + 1) / span
            if at >= span / 2 and reached >= 0.9 * self.site.capacity(at):
                return at
        return math.inf

    def result(self, name: str) -> Result:
        pages = self.profile.pages
        served = len(self.accepted)
        if pages is None:
            goodput = served / self.oracle(self.end)
        else:
            goodput = self.oracle_time(pages) / self.accepted[-1] if served == pages else 0.0
        half = (self.end if pages is None else self.accepted[-1]) / 2
        late = [bad for at, bad in self.answers if at >= half]
        bad = sum(bad for _, bad in self.answers)
        return Result(
            profile=name,
            goodput=goodput,
            refused=bad / len(self.answers),
            refused_late=sum(late) / len(late) if late else 0.0,
            early=self.early,
            seconds_to_90=self.seconds_to_90(),
            latency=statistics.median(self.latencies[len(self.latencies) // 2 :]),
            served=served,
            lost=0 if pages is None else pages - served,
        )


def median(results: list[Result]) -> Result:
    """Medians of several runs of one profile; the worst of what must be zero."""

    def middle(field: str) -> float:
        return float(statistics.median(getattr(result, field) for result in results))

    return Result(
        profile=results[0].profile,
        goodput=middle("goodput"),
        refused=middle("refused"),
        refused_late=middle("refused_late"),
        early=max(result.early for result in results),
        seconds_to_90=middle("seconds_to_90"),
        latency=middle("latency"),
        served=int(middle("served")),
        lost=max(result.lost for result in results),
    )


def finite(row: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no infinity: never reached is null."""
    return {key: None if value == math.inf else value for key, value in row.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    parser.add_argument("--profile", action="append", help="only profiles whose name has this")
    parser.add_argument("--seeds", type=int, default=3, help="runs per profile; medians are shown")
    parser.add_argument("--trace", action="store_true", help="print every bad answer")
    args = parser.parse_args()
    results = []
    if not args.json:
        print(
            f"{'profile':30} {'goodput':>8} {'refused':>8} {'2nd half':>8} {'early':>5} "
            f"{'to 90 %':>8} {'latency':>7} {'served':>7} {'lost':>4}"
        )
    for name, profile in _profiles():
        if args.profile and not any(part in name for part in args.profile):
            continue
        runs = []
        for seed in range(args.seeds):
            run = Run(profile, seed, args.trace)
            run.run()
            runs.append(run.result(name))
        result = median(runs)
        results.append(result)
        if not args.json:
            print(
                f"{name:30} {result.goodput:8.3f} {result.refused:8.2%} "
                f"{result.refused_late:8.2%} {result.early:5d} {result.seconds_to_90:8.1f} "
                f"{result.latency:7.3f} {result.served:7d} {result.lost:4d}",
                flush=True,
            )
    if args.json:
        print(json.dumps([finite(asdict(result)) for result in results], indent=1))


if __name__ == "__main__":
    main()
