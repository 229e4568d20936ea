"""One crawl in a process of its own, against a site in another, and what both had to say."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.profiles import Host
from benchmarks.spider import MEDIAN_LATENCY
from tests.site import Site

ROOT = Path(__file__).resolve().parent.parent
COMMON: Mapping[str, Any] = {
    "LOG_LEVEL": "INFO",
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "ROBOTSTXT_OBEY": False,
}
# The runner looks for its spider in a module of the crawl's folder.
_SPIDER = """from benchmarks.spider import Pages


class BenchmarkPages(Pages):
    name = "pages"
"""
_GRACE = 90.0  # seconds that a crawl may need to start and to close
_HEARTBEAT = 5.0  # seconds; Scrapy's own
_FILES = 16_384  # open ones, for two thousand hosts with a few connections each


@dataclass(frozen=True)
class Crawl:
    """What a crawl left behind.

    *stats*: Scrapy's; *peak_rss*: bytes; *cpu*: seconds of processor time of the crawl;
    *log*: all of it; *site*: the site's counts, with detail if asked for.
    """

    stats: Mapping[str, Any]
    peak_rss: int
    cpu: float
    log: str
    site: Mapping[str, Any]

    @property
    def stopped(self) -> bool:
        """Whether it was stopped before it had finished."""
        return bool(self.stats.get("finish_reason") != "finished")


def profile_of(hosts: Sequence[Host], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the profile of a site with *hosts*, the keys *changes* of each rule replaced."""
    return {"hosts": {host.address: {**host.rule, **changes} for host in hosts}}


def crawl(
    hosts: Sequence[Host],
    settings: Mapping[str, Any],
    *,
    seconds: float,
    changes: Mapping[str, Any] | None = None,
    args: Mapping[str, Any] | None = None,
    detail: bool = True,
) -> Crawl:
    """Crawl *hosts* with *settings*; stop after *seconds*.

    *changes*: keys of the hosts' rules to replace; *args*: more attributes of the spider.
    Raises RuntimeError when the crawl does not end by itself, or fails.
    """
    _allow_files(_FILES)
    with Site(profile_of(hosts, changes or {})) as site, tempfile.TemporaryDirectory() as folder:
        job = {
            "settings": {**COMMON, **settings, "CLOSESPIDER_TIMEOUT": seconds},
            "args": {
                "port": site.port,
                "hosts": [[host.address, host.pages] for host in hosts],
                **(args or {}),
            },
            "heartbeat": _HEARTBEAT,
        }
        cpu_before = _children_cpu()
        log = _run(Path(folder), job, seconds + _GRACE)
        cpu = _children_cpu() - cpu_before
        outcome = json.loads(Path(folder, "outcome.json").read_text(encoding="utf-8"))
        told = site.stats(detail=detail)
    return Crawl(outcome["stats"], outcome["peak_rss_kb"] * 1024, cpu, log, told)


def _allow_files(wanted: int) -> None:
    """Let the processes started from here have so many files open, if the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def start_crawl(folder: Path, job: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    """Start the crawl *job* of the spider in *folder*, where its ``log.txt`` goes as well."""
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(job), encoding="utf-8")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    with (folder / "log.txt").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.crawl.runner", str(job_file)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _run(folder: Path, job: Mapping[str, Any], patience: float) -> str:
    (folder / "spider_under_test.py").write_text(_SPIDER, encoding="utf-8")
    overtime = False
    process = start_crawl(folder, job)
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        overtime = True
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    text = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")
    if overtime or process.returncode:
        what = "did not end" if overtime else "failed"
        raise RuntimeError(f"the crawl {what}; its log ends:\n{text[-3000:]}")
    return text


def _children_cpu() -> float:
    """Processor seconds of the child processes that have ended: sites and crawls in turn."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True)
class Measured:
    """One line of the table.

    Counts are those of the site. *seconds*: from the first request to the last page served;
    *goodput*: different pages a second in that time. Of *good* hosts alone, where some hosts do
    not count. Shares are of the requests that arrived; the second half is one of time. *rest*:
    pages a second of those that succeeded at the first attempt. *latency*: median seconds that
    a page took, as the crawl saw it; 0 where it was not told.
    """

    pages: int
    wanted: int
    seconds: float
    goodput: float
    refused: float
    refused_later: float
    hits: int
    failed: int
    early: int
    rest: float
    stopped: bool = False
    missing: int | None = None
    cpu_per_page: float = 0.0
    refusals: int = 0
    latency: float = 0.0


def measure(
    result: Crawl, hosts: Sequence[Host], good_hosts: Sequence[Host], latency: float
) -> Measured:
    """Read a line of the table from the site's counts.

    *latency*: seconds by which a page of a good host ends after it was asked for.
    """
    told = result.site["hosts"]
    good = [host.address for host in good_hosts]
    hits = sorted(
        (second, kind, (name, target))
        for name, host in told.items()
        for second, target, kind in host["requests"]
    )
    # Ends of the first right answer of each page, and whether that was the first answer at all.
    served: dict[tuple[str, str], float] = {}
    asked: set[tuple[str, str]] = set()
    untroubled: list[float] = []
    for second, kind, page in hits:
        if page[0] in good and kind == "served" and page not in served:
            served[page] = second + latency
            if page not in asked:
                untroubled.append(second + latency)
        asked.add(page)
    seconds = max(served.values(), default=0.0)
    half = hits[-1][0] / 2 if hits else 0.0
    later = [kind for second, kind, _ in hits if second >= half]
    return Measured(
        pages=result.site["pages"],
        wanted=sum(host.pages for host in hosts),
        seconds=seconds,
        goodput=len(served) / seconds if seconds else 0.0,
        refused=result.site["refused"] / len(hits) if hits else 0.0,
        refused_later=later.count("refused") / len(later) if later else 0.0,
        hits=len(hits),
        failed=result.site["failed"],
        early=result.site["early"],
        rest=len(untroubled) / max(untroubled) if untroubled else 0.0,
        stopped=result.stopped,
        missing=result.stats.get("backpressure/audit/missing"),
        cpu_per_page=result.cpu / max(1, result.site["pages"]),
        refusals=result.site["refused"],
        latency=result.stats.get(MEDIAN_LATENCY, 0.0),
    )


def elapsed(since: float) -> str:
    """Return minutes and seconds since *since* (monotonic), for the eye."""
    minutes, seconds = divmod(int(time.monotonic() - since), 60)
    return f"{minutes}:{seconds:02d}"
