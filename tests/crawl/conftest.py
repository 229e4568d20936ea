"""The ``crawl`` fixture: a real Scrapy crawl in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import default_settings

from tests.crawl.runner import SPIDER_MODULE
from tests.site import Site

ROOT = Path(__file__).resolve().parents[2]

DEFAULT_SETTINGS: Mapping[str, Any] = {
    "ADDONS": {"scrapy_backpressure.Addon": 300},
    "LOG_LEVEL": "INFO",
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "ROBOTSTXT_OBEY": False,
}
REACTORS: Mapping[str, Mapping[str, Any]] = {
    "asyncio": {},
    "epoll": {"TWISTED_REACTOR": "twisted.internet.epollreactor.EPollReactor"},
    "none": {"TWISTED_REACTOR_ENABLED": False},
}
PREAMBLE = "import scrapy\nfrom scrapy import Request, Spider\n\n"
# Log lines, or what Python prints on its way out, that no crawl of ours may leave.
_SIGNS_OF_TROUBLE = (
    " ERROR: ",
    " CRITICAL: ",
    "Unhandled error in Deferred",
    "was never awaited",
    "Task was destroyed",
    "exception was never retrieved",
)

LISTED_PAGES = """
class Pages(Spider):
    name = "pages"

    async def start(self):
        for url in self.urls:
            yield Request(url)

    def parse(self, response):
        yield {"url": response.url}
"""
# Yields the URL of each page of the list that is its argument *urls*.

When = float | Callable[[], bool]


@dataclass
class CrawlResult:
    """What a crawl left behind.

    *stats*: Scrapy's, empty when the process was killed; *items*: in the order scraped;
    *dead_letters*: the records of ``dead_letters/*.jsonl``, oldest file first; *elapsed*: seconds
    from the opening of the spider to the end of the process; *peak_rss*: bytes; *folder*: where
    the crawl ran (JOBDIR and feeds with relative paths are in it).
    """

    returncode: int
    stats: dict[str, Any]
    items: list[Any]
    dead_letters: list[dict[str, Any]]
    log: str
    elapsed: float
    peak_rss: int
    folder: Path = field(repr=False)

    @property
    def reason(self) -> str | None:
        """The finish reason; None when the process was killed."""
        return self.stats.get("finish_reason")

    @property
    def troubles(self) -> list[str]:
        """Lines of the log that tell of errors and of things left undone."""
        lines = self.log.splitlines()
        return [line for line in lines if any(sign in line for sign in _SIGNS_OF_TROUBLE)]

    def stat(self, name: str, default: Any = 0) -> Any:
        """Return a stat."""
        return self.stats.get(name, default)


Sites = Callable[..., Site]
Crawls = Callable[..., CrawlResult]


def _read_lines(paths: Iterable[Path]) -> list[Any]:
    lines: list[Any] = []
    for path in paths:
        # A killed process may leave half a line at the end.
        whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
        lines.extend(json.loads(line) for line in whole.splitlines())
    return lines


def _wait_until(process: subprocess.Popen[bytes], when: When, opened: Path, ends: float) -> bool:
    """Wait for *when* (seconds after the spider opened, or a condition) or the process's end.

    Whether one of them came in time.
    """
    opened_at: float | None = None
    while process.poll() is None and time.monotonic() < ends:
        if opened_at is None and opened.exists():
            opened_at = time.monotonic()
        if callable(when):
            if when():
                return True
        elif opened_at is not None and time.monotonic() >= opened_at + when:
            return True
        time.sleep(0.02)
    return process.poll() is not None


@pytest.fixture
def crawl(tmp_path: Path) -> Callable[..., CrawlResult]:
    """``crawl(source, settings, ...)`` runs a spider and returns a :class:`CrawlResult`.

    *source* is the text of a module with a spider (``scrapy``, ``Request`` and ``Spider`` are
    imported already); it is importable as ``spider_under_test``, so that settings can name what
    it defines. *settings* go on top of DEFAULT_SETTINGS; a value None takes a default away.
    *args* become attributes of the spider. *reactor*: "asyncio", "epoll" or "none" (skips the
    test where Scrapy cannot do without one). *sigint_after* sends SIGINT, after that
    *sigint_again_after* a second one, and after that *kill_after* SIGKILL: so many seconds after
    the spider opened, or once the given function returns true. Every crawl of a test runs in the
    same folder (``folder="name"`` for another one), so that a second call resumes the JOBDIR of
    the first; items and log are those of that call alone. Fails the
    test when the crawl takes longer than *timeout* seconds.
    """

    def run(
        source: str,
        settings: Mapping[str, Any] | None = None,
        *,
        timeout: float = 60.0,
        args: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        env: Mapping[str, str] | None = None,
        kill_after: When | None = None,
        sigint_after: When | None = None,
        sigint_again_after: When | None = None,
        reactor: str = "asyncio",
        heartbeat: float = 0.5,
        folder: str = "crawl",
    ) -> CrawlResult:
        if reactor == "none" and not hasattr(default_settings, "TWISTED_REACTOR_ENABLED"):
            pytest.skip("this Scrapy needs a reactor")
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        for left in ("opened", "items.jsonl", "outcome.json"):
            (place / left).unlink(missing_ok=True)
        text = PREAMBLE + textwrap.dedent(source)
        (place / f"{SPIDER_MODULE}.py").write_text(text, encoding="utf-8")
        merged = {**DEFAULT_SETTINGS, **REACTORS[reactor], **(settings or {})}
        job = {
            "settings": {name: value for name, value in merged.items() if value is not None},
            "args": dict(args),
            "heartbeat": heartbeat,
        }
        job_file = place / "job.json"
        job_file.write_text(json.dumps(job), encoding="utf-8")
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "PYTHONDONTWRITEBYTECODE": "1",  # the spider's module changes within a second
            **(env or {}),
        }
        started = time.time()
        with (place / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.crawl.runner", str(job_file)],
                cwd=place,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            overtime = False
            try:
                ends = time.monotonic() + timeout
                plan = (
                    (sigint_after, signal.SIGINT),
                    (sigint_again_after, signal.SIGINT),
                    (kill_after, signal.SIGKILL),
                )
                for when, number in plan:
                    if when is None:
                        continue
                    if not _wait_until(process, when, place / "opened", ends):
                        raise subprocess.TimeoutExpired(process.args, timeout)
                    process.send_signal(number)
                process.wait(max(0.1, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                overtime = True
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        opened = place / "opened"
        ended = time.time()
        written = (place / "log.txt").read_text(encoding="utf-8", errors="replace")
        if overtime:
            pytest.fail(f"the crawl did not end in {timeout} s; its log ends:\n{written[-4000:]}")
        outcome: dict[str, Any] = {}
        if (place / "outcome.json").exists():
            outcome = json.loads((place / "outcome.json").read_text(encoding="utf-8"))
        letters = sorted(place.glob("dead_letters/*.jsonl"), key=lambda path: path.stat().st_mtime)
        return CrawlResult(
            returncode=process.returncode,
            stats=outcome.get("stats", {}),
            items=_read_lines(place.glob("items.jsonl")),
            dead_letters=_read_lines(letters),
            log=written,
            elapsed=ended - (opened.stat().st_mtime if opened.exists() else started),
            peak_rss=outcome.get("peak_rss_kb", 0) * 1024,
            folder=place,
        )

    return run
