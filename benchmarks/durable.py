"""What a queue that survives costs, beside stock Scrapy's: pace, memory, and going on.

    python -m benchmarks.durable [--only ROW]... [--quick] [--json FILE]

``list`` and ``recursive``: crawls with a JOBDIR of an unlimited site without latency, ours and
stock in pairs; all pages are start requests, or found on the first one. ``memory``: a spider that
finds a million links, none of which is fetched but to find more; its peak memory beside that with
ten thousand. ``resume``: that crawl is killed, and started again; how soon its next request
arrives. Callbacks are not held back, as that many could never be found then.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu import Pair, cpu_verdicts, measure_pairs
from benchmarks.discovery import FOUND
from benchmarks.profiles import OURS_SETTINGS, QUICK, STOCK_MANY_SETTINGS
from benchmarks.running import COMMON, start_crawl
from benchmarks.verdicts import Verdict
from tests.site import Site

MANY = 1_000_000
FEW = 10_000
PACE_PAGES = 10_000
MOST_MEMORY = 1.2
LEAST_PACE = 1.0
MOST_SECONDS = 2.0
ROWS = ("list", "recursive", "memory", "resume")
_PATIENCE = 1200.0
_MEGABYTE = 1024 * 1024
_JOB: Mapping[str, Any] = {"JOBDIR": "job"}
_OURS: Mapping[str, Any] = {**OURS_SETTINGS, "BACKPRESSURE_GATE_CALLBACKS": False}
DURABLE = "ours, JOBDIR"
CONTENDERS: Mapping[str, Mapping[str, Any]] = {
    DURABLE: {**_OURS, **_JOB},
    "ours, temporary file": {**_OURS, "SCHEDULER": "scrapy_backpressure.DurableScheduler"},
    "stock, JOBDIR": {**STOCK_MANY_SETTINGS, **_JOB},
    "stock, in memory": STOCK_MANY_SETTINGS,
}


@dataclass(frozen=True)
class Found:
    """A crawl that has found so many links: its peak memory in bytes, and the seconds it took.

    *resumed*: seconds from the start of the next run's process to its first request, and
    *opened* those until its spider was open; None where it was not run.
    """

    contender: str
    links: int
    peak_rss: int
    seconds: float
    resumed: float | None = None
    opened: float | None = None

    def __str__(self) -> str:
        text = (
            f"  {self.contender:<22} {self.links:>8} links {self.peak_rss / _MEGABYTE:>6.0f} MB"
            f" {1e6 * self.seconds / self.links:>5.0f} µs each"
        )
        if self.resumed is not None:
            text += f"; killed, it sends {self.resumed:.2f} s after its start"
            text += f" (spider open at {self.opened:.2f} s)"
        return text


def find(contender: str, links: int, *, resume: bool = False) -> Found:
    """Let a crawl find so many links, and kill it; with *resume*, start it again, and kill it."""
    with Site({}) as site, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "spider_under_test.py").write_text(
            "from benchmarks.discovery import Discovery\n\n\n"
            "class Spider(Discovery):\n    name = 'discovery'\n",
            encoding="utf-8",
        )
        job = {
            "settings": {**COMMON, **CONTENDERS[contender]},
            "args": {"base": site.url(""), "wanted": str(links)},
            "heartbeat": 5.0,
        }
        _run_until(folder, job, lambda: (folder / FOUND).exists())
        told = json.loads((folder / FOUND).read_text(encoding="utf-8"))
        resumed = opened = None
        if resume:
            site.reset({})
            started = time.time()
            (folder / "opened").unlink()
            resumed = _run_until(folder, job, lambda: site.stats()["hits"] > 0) - started
            opened = (folder / "opened").stat().st_mtime - started
    return Found(contender, links, told["peak_rss"], told["seconds"], resumed, opened)


def _run_until(folder: Path, job: Mapping[str, Any], condition: Callable[[], bool]) -> float:
    """Run a crawl until *condition* holds, and kill it; return when that was."""
    process = start_crawl(folder, job)
    ends = time.monotonic() + _PATIENCE
    try:
        while not condition():
            if process.poll() is not None or time.monotonic() > ends:
                log = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")
                raise RuntimeError(f"the crawl did not get there; its log ends:\n{log[-3000:]}")
            time.sleep(0.01)
        when = time.time()
        time.sleep(1.5)  # what is done is written down within a second
    finally:
        process.kill()
        process.wait()
    return when


def measure_found(contenders: Iterable[str], *, quick: bool, resume: bool) -> list[Found]:
    """Each of the contenders with few and with many links."""
    many = MANY // (QUICK if quick else 1)
    found = []
    for contender in contenders:
        for links in (FEW, many):
            again = resume and contender == DURABLE
            found.append(find(contender, links, resume=again))
            print(found[-1], flush=True)
    return found


def found_verdicts(found: list[Found]) -> Iterator[Verdict]:
    """Judge ours on the memory and resume rows."""
    for few, many in zip(found[::2], found[1::2], strict=True):
        title = f"{many.contender}, {many.links}"
        ratio = many.peak_rss / few.peak_rss
        if "ours" in many.contender:
            bar = f"peak RSS at most {MOST_MEMORY} of that with {few.links}"
            yield Verdict(title, bar, f"{ratio:.2f}", ratio <= MOST_MEMORY)
        if many.resumed is not None:
            bar = f"sends within {MOST_SECONDS:g} s of its start"
            figure = f"{many.resumed:.2f} s"
            yield Verdict(title, bar, figure, many.resumed <= MOST_SECONDS)


def measure_pace(row: str, *, quick: bool) -> list[Pair]:
    """Ours and stock with a JOBDIR, in pairs."""

    def tell(pair: Pair) -> None:
        print(pair, flush=True)

    print(f"{row}, {PACE_PAGES} pages:")
    return measure_pairs(
        pages=PACE_PAGES // (QUICK if quick else 1),
        ours={**OURS_SETTINGS, **_JOB},
        stock={**STOCK_MANY_SETTINGS, **_JOB},
        args={"follow": row == "recursive"},
        tell=tell,
    )


def main() -> int:
    """Run the benchmark; the exit code says whether it could be run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.durable", description="What a JOBDIR costs beside stock's."
    )
    parser.add_argument("--only", action="append", choices=ROWS, metavar="ROW")
    parser.add_argument("--quick", action="store_true", help=f"1/{QUICK} of the requests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args()
    wanted = options.only or ROWS
    verdicts: list[Verdict] = []
    figures: dict[str, Any] = {}
    for row in ("list", "recursive"):
        if row in wanted:
            pairs = measure_pace(row, quick=options.quick)
            figures[row] = [asdict(pair) for pair in pairs]
            verdicts += cpu_verdicts(pairs, f"{row}, with a JOBDIR", least_pace=LEAST_PACE)
    if "memory" in wanted or "resume" in wanted:
        found = measure_found(
            CONTENDERS if "memory" in wanted else [DURABLE],
            quick=options.quick,
            resume="resume" in wanted,
        )
        figures["found"] = [asdict(line) for line in found]
        verdicts += found_verdicts(found)
    print("", *verdicts, sep="\n")
    print(f"{sum(v.passed for v in verdicts)} of {len(verdicts)} hold")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
