"""Crawls that are killed at random moments, and resumed until they are done.

    python -m benchmarks.kills [--kills N] [--seed N] [--json FILE]

A list, a sitemap and a recursive spider in turn, over a site on which some pages fail, are
throttled or redirect at first, until there were enough kills (SIGKILL). After each one the file of
the crawl is read: a page whose request was seen, and is in the file no more, is done, and must
never be asked for again. What that run had asked for and is not done may be fetched once more.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pickle
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scrapy import Request
from scrapy.utils.request import fingerprint

from benchmarks.killed import SITEMAPS, WANTED
from benchmarks.running import start_crawl
from benchmarks.verdicts import Verdict
from tests.site import Site

KILLS = 45
PAGES = 400
_PATIENCE = 120.0  # seconds for one run
_LATEST = 1.5
"""Seconds after the opening of the spider before which a kill comes."""
_SITE = {
    "default": {
        "latency": 0.05,
        "faults": [
            {"match": "/page/*77", "times": 1, "status": 429, "headers": {"Retry-After": "0.3"}},
            {"match": "/page/*[37]", "times": 1, "status": 503},
            {"match": "/page/*9", "times": 1, "drop": True},
        ],
    }
}
_SETTINGS: dict[str, Any] = {
    "ADDONS": {"scrapy_backpressure.Addon": 300},
    "JOBDIR": "job",
    "RETRY_TIMES": 5,
    "BACKPRESSURE_BACKOFF_BASE": 0.2,
    "BACKPRESSURE_BACKOFF_MAX": 1,
}


@dataclass(frozen=True)
class Kill:
    """What a kill found: so many seconds into the run, pages that were done, pages that may be
    fetched twice, and the requests in the file by what they waited for.
    """

    second: float
    done: int
    at_risk: int
    queued: int
    parked: int

    def __str__(self) -> str:
        return (
            f"    after {self.second:>5.2f} s: {self.done} done, {self.at_risk} in flight or not "
            f"committed; in the file: {self.queued} queued or leased, {self.parked} parked"
        )


@dataclass
class Killed:
    """One crawl, from its first run to the end of its last."""

    spider: str
    kills: list[Kill] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    """Pages that were never scraped."""
    twice: int = 0
    """Fetches of pages that had been fetched before."""
    refetched: list[str] = field(default_factory=list)
    """Pages that were asked for although they were done."""
    audit: dict[str, int] = field(default_factory=dict)
    """Of all runs."""
    handled: int = 0
    """Answers that there were to handle."""

    @property
    def at_risk(self) -> int:
        """Pages that were in flight, or not committed, at any of the kills."""
        return sum(kill.at_risk for kill in self.kills)

    def __str__(self) -> str:
        return (
            f"{self.spider:<8} {len(self.kills):>3} kills: {len(self.lost)} pages lost, "
            f"{self.twice} fetched twice ({self.at_risk} were in flight or not committed), "
            f"{len(self.refetched)} of those that were done; audit of all runs: "
            f"{self.audit['handled']} of {self.handled} handled, {self.audit['missing']} missing"
        )


class _Crawl:
    """A crawl in its folder, and the site that it asks."""

    def __init__(self, spider: str, pages: int, folder: Path, site: Site) -> None:
        self._folder = folder
        self._site = site
        (folder / "spider_under_test.py").write_text(
            f"from benchmarks.killed import {spider}\n\n\n"
            f"class Spider({spider}):\n    name = {spider!r}\n",
            encoding="utf-8",
        )
        self._job = {
            "settings": _SETTINGS,
            "args": {"base": site.url(""), "pages": str(pages)},
            "heartbeat": 0.5,
        }

    def run(self, kill_at: float | None) -> float | None:
        """Run it; return the second of its kill, None if it ended before.

        *kill_at*: seconds after the spider opened, or, below 0, after the process started. None:
        it is left to end.
        """
        opened = self._folder / "opened"
        opened.unlink(missing_ok=True)
        started = time.monotonic()
        process = start_crawl(self._folder, self._job)
        try:
            while kill_at is not None and process.poll() is None:
                if kill_at < 0 and time.monotonic() - started > -kill_at:
                    break
                if kill_at >= 0 and opened.exists():
                    time.sleep(kill_at)
                    break
                time.sleep(0.01)
            if kill_at is None:
                process.wait(_PATIENCE)
        finally:
            killed = process.poll() is None
            process.kill()
            process.wait()
        if kill_at is None and process.returncode:
            log = (self._folder / "log.txt").read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"the crawl failed; its log ends:\n{log[-3000:]}")
        return time.monotonic() - started if killed else None

    def hits(self) -> tuple[Counter[str], Counter[str]]:
        """How often each path was asked for, and how often of these it was refused or failed."""
        while self._site.stats()["in_flight"]:
            time.sleep(0.02)
        requests = self._site.host().get("requests", ())
        return (
            Counter(target for _, target, _ in requests),
            Counter(target for _, target, kind in requests if kind not in ("served", "gone")),
        )

    def done(self, hits: Counter[str]) -> tuple[set[str], Counter[str]]:
        """The paths that are done, of those that were asked for; requests in the file by kind."""
        with tempfile.TemporaryDirectory() as copy, _read(self._folder / "job", copy) as db:
            base = self._site.url("")
            open_paths: set[str] = set()
            counts: Counter[str] = Counter()
            for kind, data in db.execute(
                "SELECT 'queued', data FROM requests UNION ALL SELECT 'parked', data FROM parked"
            ):
                counts[kind] += 1
                open_paths.add(pickle.loads(data)["url"].removeprefix(base))
            seen = {found for (found,) in db.execute("SELECT fingerprint FROM seen")}
        known = {path for path in hits if fingerprint(Request(base + path)) in seen}
        return known - open_paths, counts

    def scraped(self) -> set[int]:
        """The pages of which there are items."""
        text = (self._folder / "items.jsonl").read_text(encoding="utf-8")
        return {json.loads(line)["page"] for line in text.split("\n")[:-1]}

    def audit(self) -> dict[str, int]:
        """Of all runs, as the last one told it."""
        stats = json.loads((self._folder / "outcome.json").read_text(encoding="utf-8"))["stats"]
        prefix = "backpressure/audit/all_runs/"
        return {name.removeprefix(prefix): n for name, n in stats.items() if prefix in name}


class _read:
    """The database of a crawl that was killed, as the next run will find it."""

    def __init__(self, job: Path, copy: str) -> None:
        for name in ("backpressure.sqlite", "backpressure.sqlite-wal"):
            if (job / name).exists():
                shutil.copy(job / name, copy)
        self._db = sqlite3.connect(os.path.join(copy, "backpressure.sqlite"))

    def __enter__(self) -> sqlite3.Connection:
        return self._db

    def __exit__(self, *_: object) -> None:
        self._db.close()


def moments(rng: random.Random) -> Iterator[float]:
    """When to kill: mostly while the crawl is at work, at times while it starts."""
    while True:
        yield -rng.uniform(0.1, 1.0) if rng.random() < 0.1 else rng.uniform(0.0, _LATEST)


def kill_and_resume(spider: str, rng: random.Random, *, kills: int, pages: int = PAGES) -> Killed:
    """Kill a crawl at most *kills* times, then let it end, and say what came of it."""
    result = Killed(spider)
    never_again: dict[str, int] = {}
    before: Counter[str] = Counter()
    with Site(_SITE) as site, tempfile.TemporaryDirectory() as folder:
        crawl = _Crawl(spider, pages, Path(folder), site)
        for moment in itertools.islice(moments(rng), kills):
            second = crawl.run(moment)
            if second is None:
                break  # it was faster
            hits, bad = crawl.hits()
            if not Path(folder, "job", "backpressure.sqlite").exists():
                result.kills.append(Kill(second, 0, 0, 0, 0))
                continue
            done, counts = crawl.done(hits)
            fetched = hits - bad
            at_risk = sum(fetched[path] > before[path] for path in set(hits) - done)
            before = fetched
            result.kills.append(
                Kill(round(second, 2), len(done), at_risk, counts["queued"], counts["parked"])
            )
            for path in done:
                never_again.setdefault(path, hits[path])
        else:
            crawl.run(None)
        hits, bad = crawl.hits()
        wanted = WANTED[spider](pages)
        result.lost = sorted(wanted - crawl.scraped())
        result.twice = sum(hits[path] - bad[path] - 1 for path in hits)
        result.refetched = [path for path, times in never_again.items() if hits[path] > times]
        result.audit = crawl.audit()
        result.handled = len(wanted) + SITEMAPS[spider]
    return result


def verdicts_of(crawls: list[Killed]) -> Iterator[Verdict]:
    """Judge all crawls together."""
    kills = sum(len(crawl.kills) for crawl in crawls)
    title = f"{kills} kills, {len(crawls)} crawls"
    lost = sum(len(crawl.lost) for crawl in crawls)
    yield Verdict(title, "no page is lost", f"{lost}", lost == 0)
    again = sum(len(crawl.refetched) for crawl in crawls)
    yield Verdict(title, "no page that was done is fetched again", f"{again}", again == 0)
    twice, risk = sum(c.twice for c in crawls), sum(c.at_risk for c in crawls)
    bar = "fetched twice at most what was in flight or not committed"
    yield Verdict(title, bar, f"{twice} of {risk}", all(c.twice <= c.at_risk for c in crawls))
    sound = all(
        c.audit["missing"] == c.audit["lost"] == 0 and c.audit["handled"] == c.handled
        for c in crawls
    )
    yield Verdict(title, "the audit of all runs has each page once", str(sound), sound)


def main() -> int:
    """Run the benchmark; the exit code says whether all bars hold."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kills", description="Kill crawls, resume them, count."
    )
    parser.add_argument("--kills", type=int, default=KILLS, help=f"at least; {KILLS}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    crawls: list[Killed] = []
    for spider in itertools.cycle(WANTED):
        left = options.kills - sum(len(crawl.kills) for crawl in crawls)
        if left <= 0:
            break
        crawls.append(kill_and_resume(spider, rng, kills=left))
        print(crawls[-1], flush=True)
        print(*crawls[-1].kills, sep="\n", flush=True)
    verdicts = list(verdicts_of(crawls))
    print("", *verdicts, sep="\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(c) for c in crawls], indent=1) + "\n")
    return 0 if all(verdict.passed for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
