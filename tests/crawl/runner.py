"""Runs one crawl as its job file says: ``python -m tests.crawl.runner job.json``.

Started by the ``crawl`` fixture; beside the spider's own output it leaves ``items.jsonl`` (each
line written when the item is scraped) and, at the end, ``outcome.json``: stats and peak memory.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import warnings
from pathlib import Path
from typing import Any

from scrapy import Spider, signals
from scrapy.core.engine import ExecutionEngine
from scrapy.crawler import AsyncCrawlerProcess, Crawler, CrawlerProcess
from scrapy.settings import Settings
from scrapy.utils.project import get_project_settings

SPIDER_MODULE = "spider_under_test"


def find_spider(folder: Path) -> type[Spider]:
    """Return the last spider defined in the module that the test wrote into *folder*."""
    sys.path.insert(0, str(folder))
    module = importlib.import_module(SPIDER_MODULE)
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Spider)
        and value.__module__ == SPIDER_MODULE
        and value.__dict__.get("name")
    ]
    return found[-1]


class Recorder:
    """Writes down items as they are scraped, and when the spider was opened."""

    def __init__(self, folder: Path) -> None:
        self._opened = folder / "opened"
        self._items = (folder / "items.jsonl").open("a", encoding="utf-8")

    def listen(self, crawler: Crawler) -> None:
        crawler.signals.connect(self.spider_opened, signals.spider_opened)
        crawler.signals.connect(self.item_scraped, signals.item_scraped)

    def spider_opened(self) -> None:
        self._opened.touch()

    def item_scraped(self, item: Any) -> None:
        data = dict(item) if hasattr(item, "keys") else item
        self._items.write(json.dumps(data, default=str) + "\n")
        self._items.flush()

    def close(self) -> None:
        self._items.close()


def main(job_file: Path) -> int:
    """Run the crawl of *job_file* in its folder; return the exit code that Scrapy gives."""
    job = json.loads(job_file.read_text(encoding="utf-8"))
    folder = job_file.parent
    warnings.filterwarnings("error", module=r"scrapy_backpressure(\.|$)")
    # The engine looks for work at least this often; tests need not wait the usual 5 s.
    ExecutionEngine._SLOT_HEARTBEAT_INTERVAL = job["heartbeat"]
    settings: Settings = get_project_settings()
    settings.setdict(job["settings"], priority="project")
    plain_twisted = "asyncio" not in (settings["TWISTED_REACTOR"] or "asyncio")
    process = CrawlerProcess(settings) if plain_twisted else AsyncCrawlerProcess(settings)
    crawler = process.create_crawler(find_spider(folder))
    recorder = Recorder(folder)
    recorder.listen(crawler)
    process.crawl(crawler, **job["args"])
    ran = False
    try:
        process.start()
        ran = (folder / "opened").exists()
    finally:
        recorder.close()
        outcome = {
            "stats": crawler.stats.get_stats() if ran else {},
            "peak_rss_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }
        text = json.dumps(outcome, default=str)
        (folder / "outcome.json").write_text(text, encoding="utf-8")
    return int(process.bootstrap_failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
