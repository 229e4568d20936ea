"""``scrapy redrive``: what was given up is sent again, as it was, and counted."""

from __future__ import annotations

import configparser
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import default_settings
from scrapy.utils.misc import load_object

from scrapy_backpressure.commands.redrive import Command
from tests.crawl.audit import assert_sound
from tests.crawl.conftest import DEFAULT_SETTINGS, REACTORS, ROOT, Crawls, Sites
from tests.crawl.runner import SPIDER_MODULE
from tests.site import Site

FAST = {"RETRY_TIMES": 1, "BACKPRESSURE_BACKOFF_BASE": 0.05, "BACKPRESSURE_INTERVAL": 0.1}
PROJECT = f"""
import json
from scrapy import signals
from scrapy.core.engine import ExecutionEngine

ExecutionEngine._SLOT_HEARTBEAT_INTERVAL = 0.5
SPIDER_MODULES = ["{SPIDER_MODULE}"]
COMMANDS_MODULE = "scrapy_backpressure.commands"


class Stats:
    @classmethod
    def from_crawler(cls, crawler):
        self = cls()
        self.crawler = crawler
        crawler.signals.connect(self.stopped, signals.engine_stopped)
        return self

    def stopped(self):
        with open("stats.json", "w") as file:
            json.dump(self.crawler.stats.get_stats(), file, default=str)


EXTENSIONS = {{Stats: 1}}
locals().update(json.load(open("settings.json")))
"""
POST = """
class Post(Spider):
    name = "post"

    async def start(self):
        yield Request(
            f"{self.base}/echo?q=1",
            method="POST",
            body=b'{"page": 7}',
            headers={"Content-Type": "application/json", "X-Shop": "n"},
            cb_kwargs={"page": 7, "tags": ["a", "b"]},
            meta={"shop": "north"},
            callback=self.parse_answer,
            errback=self.failed,
            priority=5,
        )

    def parse_answer(self, response, page, tags):
        yield {
            "page": page,
            "tags": tags,
            "shop": response.meta["shop"],
            "method": response.request.method,
            "body": response.request.body.decode(),
            "header": response.request.headers["X-Shop"].decode(),
            "priority": response.request.priority,
            "dont_filter": response.request.dont_filter,
        }

    def failed(self, failure):
        yield {"failed": failure.value.response.status}
"""
ANSWER = {
    "page": 7,
    "tags": ["a", "b"],
    "shop": "north",
    "method": "POST",
    "body": '{"page": 7}',
    "header": "n",
    "priority": 5,
    "dont_filter": False,
}


@dataclass
class Run:
    """What ``scrapy redrive`` left behind; *letters*: records of this run."""

    returncode: int
    stats: dict[str, Any]
    items: list[Any]
    letters: list[dict[str, Any]]
    log: str
    output: str
    folder: Path

    @property
    def missing(self) -> int | None:
        return self.stats.get("backpressure/audit/missing")


Redrives = Callable[..., Run]


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def redrive(tmp_path: Path) -> Redrives:
    """``redrive("spider", "file", ...)`` runs the command where the crawls of the test ran."""

    def run(
        *args: str,
        settings: Mapping[str, Any] | None = None,
        reactor: str = "asyncio",
        output: bool = True,
        stop_when: Callable[[], bool] | None = None,
    ) -> Run:
        if reactor == "none" and not hasattr(default_settings, "TWISTED_REACTOR_ENABLED"):
            pytest.skip("this Scrapy needs a reactor")
        place = tmp_path / "crawl"
        for pattern in ("items.jsonl", "stats.json", "dead_letters/*"):
            for left in place.glob(pattern):
                left.unlink()
        (place / "scrapy.cfg").write_text("[settings]\ndefault = project_settings\n")
        (place / "project_settings.py").write_text(PROJECT)
        merged = {**DEFAULT_SETTINGS, **REACTORS[reactor], **FAST, **(settings or {})}
        (place / "settings.json").write_text(json.dumps(merged))
        to = ["-o", "items.jsonl:jsonlines"] if output else []
        process = subprocess.Popen(
            [sys.executable, "-m", "scrapy", "redrive", *args, *to],
            cwd=place,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            if stop_when is not None:
                ends = time.monotonic() + 20
                while not stop_when() and process.poll() is None and time.monotonic() < ends:
                    time.sleep(0.02)
                process.send_signal(signal.SIGINT)
            printed, log = process.communicate(timeout=60)
        finally:
            process.kill()
        stats = place / "stats.json"
        return Run(
            returncode=process.returncode,
            stats=json.loads(stats.read_text()) if stats.exists() else {},
            items=[item for path in place.glob("items.jsonl") for item in lines(path)],
            letters=[each for path in place.glob("dead_letters/*.jsonl") for each in lines(path)],
            log=log,
            output=printed,
            folder=place,
        )

    return run


def given_up(crawl: Crawls, where: Site, source: str = POST, **settings: Any) -> dict[str, Any]:
    """Crawl, and have the one letter of it in ``letters.jsonl``; return that."""
    result = crawl(source, {**FAST, **settings}, args={"base": where.url("")})
    assert_sound(result, errors=True)
    [letter] = result.dead_letters
    write(result.folder / "letters.jsonl", letter)
    return letter


def write(path: Path, *records: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def pages(where: Site, count: int, **changes: Any) -> list[dict[str, Any]]:
    """Records of GETs of ``/page/0``, ``/page/1``, …, as the spider of PAGES has given up."""
    letter = {"schema": 1, "id": "0", "spider": "pages", "time": "2030-01-01T00:00:00.000+00:00"}
    letter |= {"first_seen": "2029-01-01T00:00:00.000+00:00", "outcome": "failed"}
    request: dict[str, Any] = {"method": "GET", "headers": {}, "meta": {}, "cb_kwargs": {}}
    request |= {"body": {"text": ""}, "callback": "parse", "errback": None, "flags": []}
    request |= {"priority": 0, "dont_filter": False}
    return [
        {
            **letter,
            **{"reason": "retries", "attempts": [], "dropped": [], "redrives": 0},
            "request": {**request, "url": where.url(f"/page/{number}")},
            "response": None,
            **changes,
        }
        for number in range(count)
    ]


PAGES = """
class Pages(Spider):
    name = "pages"
    start_urls = ["http://127.0.0.1:9/never"]

    def parse(self, response):
        yield {"url": response.url}
"""


def spider(tmp_path: Path, source: str = PAGES) -> Path:
    """Make a folder for :func:`redrive` in which no crawl has run; return its letters' file."""
    folder = tmp_path / "crawl"
    folder.mkdir()
    text = f"import scrapy\nfrom scrapy import Request, Spider\n{source}"
    (folder / f"{SPIDER_MODULE}.py").write_text(text, encoding="utf-8")
    return folder / "letters.jsonl"


# -- what is sent --------------------------------------------------------------------------------


@pytest.mark.parametrize("reactor", REACTORS)
def test_given_up_post_reaches_its_callback_once_the_site_has_recovered(
    site: Sites, crawl: Crawls, redrive: Redrives, reactor: str
) -> None:
    where = site(faults=[{"match": "/echo", "status": 503, "times": 2}])
    given_up(crawl, where)
    run = redrive("post", "letters.jsonl", reactor=reactor)
    assert run.returncode == 0, run.log
    assert run.items == [ANSWER]
    assert (run.letters, run.missing) == ([], 0)
    assert "1 sent again" in run.log
    assert not (run.folder / "letters.jsonl.rest.jsonl").exists()


def test_redriven_request_is_not_filtered_as_seen_and_retries_go_on(
    site: Sites, crawl: Crawls, redrive: Redrives
) -> None:
    where = site(faults=[{"match": "/echo", "status": 503, "times": 3}])
    given_up(crawl, where, JOBDIR="job")
    run = redrive("post", "letters.jsonl", settings={"JOBDIR": "job"})
    assert run.items == [ANSWER]
    assert run.stats["backpressure/audit/dropped"] == run.missing == 0
    assert run.stats["retry/count"] == 1


def test_what_fails_again_is_counted_up_to_the_ceiling(
    site: Sites, crawl: Crawls, redrive: Redrives
) -> None:
    where = site(faults=[{"match": "/echo", "status": 500}])
    first = given_up(crawl, where)
    for number in (1, 2):
        run = redrive("post", "letters.jsonl", "--max-redrives", "2")
        assert (run.returncode, run.items) == (0, [{"failed": 500}])
        [letter] = run.letters
        assert letter["redrives"] == number
        assert letter["first_seen"] == first["first_seen"] < letter["attempts"][0]["time"]
        assert len(letter["attempts"]) == 2
        assert (letter["request"], letter["id"]) == (first["request"], first["id"])
        write(run.folder / "letters.jsonl", letter)
    hits = where.host()["hits"]
    run = redrive("post", "letters.jsonl", "--max-redrives", "2")
    assert where.host()["hits"] == hits
    assert (run.returncode, run.letters) == (0, [])
    assert "letters.jsonl, line 1 has been sent again 2 times; --max-redrives is 2" in run.log
    kept = (run.folder / "letters.jsonl.rest.jsonl").read_bytes()
    assert kept == (run.folder / "letters.jsonl").read_bytes()


def test_the_spiders_own_start_is_not_run(site: Sites, redrive: Redrives, tmp_path: Path) -> None:
    where = site()
    source = """
class Old(Spider):
    name = "pages"

    def start_requests(self):
        raise RuntimeError("the spider's own start")

    def start(self):
        raise RuntimeError("the spider's own start")

    def parse(self, response):
        yield {"url": response.url, "spider": type(self).__name__}
"""
    write(spider(tmp_path, source), *pages(where, 1))
    run = redrive("pages", "letters.jsonl")
    assert run.items == [{"url": where.url("/page/0"), "spider": "Old"}], run.log


def test_spider_gets_its_arguments_and_its_own_init(
    site: Sites, redrive: Redrives, tmp_path: Path
) -> None:
    source = """
class Shop(Spider):
    name = "pages"

    def __init__(self, shop, *, currency="EUR"):
        super().__init__()
        self.shop, self.currency = shop, currency

    @classmethod
    def from_crawler(cls, crawler, shop, **kwargs):
        spider = super().from_crawler(crawler, shop, **kwargs)
        spider.made_by = cls.__name__
        return spider

    def parse(self, response):
        yield {"shop": self.shop, "currency": self.currency, "made_by": self.made_by}
"""
    write(spider(tmp_path, source), *pages(site(), 1))
    run = redrive("pages", "letters.jsonl", "-a", "shop=north", "-a", "currency=SEK")
    assert run.items == [{"shop": "north", "currency": "SEK", "made_by": "Shop"}], run.log


def test_components_set_up_one_by_one_do_as_the_addon_does(
    site: Sites, redrive: Redrives, tmp_path: Path
) -> None:
    write(spider(tmp_path), *pages(site(faults=[{"status": 503}]), 1))
    parts = {
        "ADDONS": {},
        "EXTENSIONS": {
            "scrapy_backpressure.BackpressureExtension": 100,
            "project_settings.Stats": 1,
        },
        "DOWNLOADER_MIDDLEWARES": {
            "scrapy.downloadermiddlewares.retry.RetryMiddleware": None,
            "scrapy_backpressure.RetryMiddleware": 550,
            "scrapy_backpressure.ConcurrencyMiddleware": 950,
        },
        "SCHEDULER_PRIORITY_QUEUE": "scrapy_backpressure.SlotAwarePriorityQueue",
    }
    run = redrive("pages", "letters.jsonl", settings=parts)
    assert [letter["redrives"] for letter in run.letters] == [1], run.log
    assert run.missing == 0


@pytest.mark.parametrize("name", ["letters.json", "letters.json.gz", "letters.jsonl.gz"])
def test_feed_of_any_form_is_read_as_it_was_written(
    site: Sites, crawl: Crawls, redrive: Redrives, name: str
) -> None:
    where = site(faults=[{"match": "/echo", "status": 503, "times": 2}])
    options: dict[str, Any] = {"format": "jsonlines" if "jsonl" in name else "json"}
    if name.endswith(".gz"):
        options["postprocessing"] = ["scrapy.extensions.postprocessing.GzipPlugin"]
    feeds = {name: options}
    settings = {**FAST, "BACKPRESSURE_DEAD_LETTER_FEEDS": feeds}
    assert_sound(crawl(POST, settings, args={"base": where.url("")}), errors=True)
    assert redrive("post", name).items == [ANSWER]


def test_feeds_of_the_project_get_the_items(
    site: Sites, redrive: Redrives, tmp_path: Path
) -> None:
    where = site()
    file = spider(tmp_path)
    write(file, *pages(where, 1))
    feeds = {"own.jsonl": {"format": "jsonlines"}}
    redrive("pages", "letters.jsonl", settings={"FEEDS": feeds}, output=False)
    assert lines(file.with_name("own.jsonl")) == [{"url": where.url("/page/0")}]


def test_letters_pass_the_start_gate(site: Sites, redrive: Redrives, tmp_path: Path) -> None:
    where = site(latency=0.02)
    write(spider(tmp_path), *pages(where, 150))
    run = redrive("pages", "letters.jsonl", settings={"BACKPRESSURE_QUEUE_HIGH": 10})
    assert len(run.items) == 150
    assert run.stats["backpressure/queue/depth_max"] <= 12
    assert run.missing == 0


def test_redirect_of_a_redriven_request_is_filtered_as_any_other(
    site: Sites, redrive: Redrives, tmp_path: Path
) -> None:
    where = site()
    [record, *_] = pages(where, 1)
    record["request"]["url"] = where.url("/redirect?to=" + where.url("/page/1", host="127.0.0.2"))
    source = PAGES.replace("start_urls", 'allowed_domains = ["127.0.0.1"]\n    start_urls')
    write(spider(tmp_path, source), record)
    run = redrive("pages", "letters.jsonl")
    assert (run.items, run.missing) == ([], 0)
    assert run.stats["offsite/filtered"] == 1
    assert where.host("127.0.0.2") == {}


def test_what_a_callback_yields_starts_with_no_redrives(
    site: Sites, redrive: Redrives, tmp_path: Path
) -> None:
    where = site(faults=[{"match": "/page/9", "status": 503}])
    source = PAGES.replace(
        'yield {"url": response.url}',
        'yield response.request.replace(url=response.urljoin("/page/9"))',
    )
    write(spider(tmp_path, source), *pages(where, 1, redrives=2))
    [letter] = redrive("pages", "letters.jsonl").letters
    assert letter["request"]["url"] == where.url("/page/9")
    assert letter["redrives"] == 0


def test_run_that_adds_to_the_feed_it_reads_does_not_go_in_circles(
    site: Sites, redrive: Redrives, tmp_path: Path
) -> None:
    where = site(faults=[{"status": 500}])
    file = spider(tmp_path)
    write(file, *pages(where, 3))
    feeds = {"letters.jsonl": {"format": "jsonlines"}}
    run = redrive("pages", "letters.jsonl", settings={"BACKPRESSURE_DEAD_LETTER_FEEDS": feeds})
    assert "3 sent again" in run.log
    assert [letter["redrives"] for letter in lines(file)] == [0, 0, 0, 1, 1, 1]


# -- what is kept, and what is left out ----------------------------------------------------------


def test_records_that_do_not_fit_are_kept_as_they_are_while_others_go_on(
    site: Sites, redrive: Redrives, tmp_path: Path
) -> None:
    where = site()
    file = spider(tmp_path)
    [good, other, unknown] = pages(where, 3)
    other["spider"] = "shop"
    unknown["request"]["callback"] = "parse_item"
    broken = b'{"schema": 1, "id": \xff'
    unfit = [broken, b"[1]", json.dumps(other).encode(), json.dumps(unknown).encode()]
    file.write_bytes(b"\n".join([*unfit[:3], json.dumps(good).encode(), unfit[3]]))
    run = redrive("pages", "letters.jsonl", "--rest", "rest.jsonl")
    assert run.returncode == 0
    assert [item["url"] for item in run.items] == [where.url("/page/0")]
    assert (run.folder / "rest.jsonl").read_bytes().splitlines() == unfit
    for said in (
        "letters.jsonl, line 1 is no JSON",
        "letters.jsonl, line 2 is no JSON object",
        "letters.jsonl, line 3 is of another spider, 'shop'",
        "letters.jsonl, line 5 names the callback 'parse_item', which is no method of the spider",
        "1 sent again, 0 left out by the options, 4 not fit to be sent; 4 kept in rest.jsonl",
    ):
        assert said in run.log


def test_options_choose_among_records_of_many_files(
    site: Sites, redrive: Redrives, tmp_path: Path
) -> None:
    where = site()
    file = spider(tmp_path)
    wanted = pages(where, 3, reason="blocked", outcome="blocked")
    write(file, *pages(where, 1, reason="stalled"), *wanted)
    old = pages(where, 9, reason="blocked", time="2020-01-01T00:00:00.000+00:00")
    write(file.with_name("more.jsonl"), *old, wanted[0], *pages(where, 1, reason="blocked"))
    options = ["--reason", "blocked,throttled", "--outcome", "blocked", "--since", "2029-12-31"]
    options += ["--url-pattern", "/page/[12]$", "--limit", "1"]
    run = redrive("pages", "letters.jsonl", "more.jsonl", *options)
    assert [item["url"] for item in run.items] == [where.url("/page/1")]
    assert "1 sent again, 14 left out by the options" in run.log
    assert not (run.folder / "letters.jsonl.rest.jsonl").exists()


def test_dry_run_counts_by_reason_and_host_and_sends_nothing(
    site: Sites, redrive: Redrives, tmp_path: Path
) -> None:
    where = site()
    file = spider(tmp_path)
    others = pages(where, 2, reason="blocked")
    write(file, *pages(where, 3), *others, *pages(where, 1, spider="shop"))
    run = redrive("pages", "letters.jsonl", "--dry-run")
    assert run.returncode == 0
    assert [line.split() for line in run.output.splitlines()[:3]] == [
        ["reason", "host", "requests"],
        ["retries", "127.0.0.1", "3"],
        ["blocked", "127.0.0.1", "2"],
    ]
    assert "5 to be sent, 0 left out by the options, 1 not fit to be sent" in run.output
    assert where.stats()["hits"] == 0
    assert sorted(path.name for path in file.parent.glob("letters*")) == ["letters.jsonl"]


def test_what_was_not_sent_when_the_crawl_was_stopped_is_kept(
    site: Sites, redrive: Redrives, tmp_path: Path
) -> None:
    where = site(latency=0.2)
    records = pages(where, 400)
    write(spider(tmp_path), *records)
    run = redrive(
        "pages",
        "letters.jsonl",
        settings={"BACKPRESSURE_QUEUE_HIGH": 10},
        stop_when=lambda: where.stats()["hits"] >= 5,
    )
    assert (run.returncode, run.missing) == (0, 0)
    kept = lines(run.folder / "letters.jsonl.rest.jsonl")
    urls = [letter["request"]["url"] for letter in [*kept, *run.letters]]
    urls += [item["url"] for item in run.items]
    assert sorted(urls) == sorted(record["request"]["url"] for record in records)
    assert f"{len(kept)} not sent before the crawl was stopped" in run.log


def test_request_that_was_queued_when_the_crawl_was_stopped_is_not_counted_as_sent(
    site: Sites, redrive: Redrives, tmp_path: Path
) -> None:
    where = site(latency=0.2)
    write(spider(tmp_path), *pages(where, 50))
    run = redrive("pages", "letters.jsonl", stop_when=lambda: where.stats()["hits"] >= 2)
    assert {letter["redrives"] for letter in run.letters if letter["reason"] == "shutdown"} == {0}


def test_crawl_that_cannot_start_says_that_nothing_was_read(
    site: Sites, redrive: Redrives, tmp_path: Path
) -> None:
    source = PAGES.replace("def parse", "def __init__(self, shop):\n        pass\n\n    def parse")
    file = spider(tmp_path, source)
    write(file, *pages(site(), 1))
    run = redrive("pages", "letters.jsonl")
    assert run.returncode == 1
    assert "nothing was read, as the crawl did not start" in run.log
    assert not file.with_name("letters.jsonl.rest.jsonl").exists()


def test_file_that_is_damaged_is_read_up_to_there_and_told_of(
    site: Sites, redrive: Redrives, tmp_path: Path
) -> None:
    where = site()
    file = spider(tmp_path)
    write(file, *pages(where, 1))
    damaged = gzip.compress(json.dumps(pages(where, 2)[1]).encode() + b"\n")[:-4]
    file.with_name("damaged.jsonl.gz").write_bytes(damaged)
    run = redrive("pages", "damaged.jsonl.gz", "letters.jsonl")
    assert run.returncode == 1
    assert "damaged.jsonl.gz cannot be read further than line" in run.log
    assert where.url("/page/0") in {item["url"] for item in run.items}


def test_without_the_package_in_the_settings_the_command_says_what_is_missing(
    site: Sites, redrive: Redrives, tmp_path: Path
) -> None:
    where = site()
    write(spider(tmp_path), *pages(where, 1))
    run = redrive("pages", "letters.jsonl", settings={"ADDONS": {}})
    assert len(run.items) == 1
    assert "scrapy_backpressure is not enabled here" in run.log


# -- before anything is sent ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nobody", "letters.jsonl"], "there is no spider nobody"),
        (["pages"], "at least one file"),
        (["pages", "none.jsonl"], "none.jsonl cannot be read: No such file"),
        (["pages", "/dev/null"], "/dev/null is no file; what comes through a pipe is"),
        (["pages", "letters.jsonl", "--reason", "x"], "--reason accepts retries, blocked, "),
        (["pages", "letters.jsonl", "--outcome", "x"], "--outcome accepts throttled, "),
        (["pages", "letters.jsonl", "--since", "x"], "--since accepts a date or time in ISO"),
        (["pages", "letters.jsonl", "--url-pattern", "("], "--url-pattern accepts a regular"),
        (["pages", "letters.jsonl", "--limit", "0"], "--limit accepts an integer of at least 1"),
        (["pages", "letters.jsonl", "--max-redrives", "x"], "--max-redrives accepts an integer"),
        (["pages", "letters.jsonl", "--rest", "no/such"], "--rest accepts a file in a folder"),
        (["pages", "letters.jsonl", "--resaon", "x"], "there is no option --resaon"),
        (["pages", "letters.jsonl", "--rest", "letters.jsonl"], "--rest accepts a file that is"),
    ],
)
def test_command_that_cannot_be_run_is_refused_before_any_crawl(
    args: list[str], said: str, redrive: Redrives, tmp_path: Path
) -> None:
    write(spider(tmp_path))
    run = redrive(*args)
    assert run.returncode == 2
    assert said in run.log
    assert "Spider opened" not in run.log


def test_setting_that_is_wrong_is_told_of_before_any_crawl(
    redrive: Redrives, tmp_path: Path
) -> None:
    write(spider(tmp_path))
    run = redrive("pages", "letters.jsonl", settings={"BACKPRESSURE_DEAD_LETTER_FEEDS": "x"})
    assert run.returncode == 2
    assert "BACKPRESSURE_DEAD_LETTER_FEEDS accepts a dict of the form of FEEDS" in run.log
    assert "Traceback" not in run.log


def test_installed_package_adds_the_command_to_scrapy() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    name, _, path = config["options.entry_points"]["scrapy.commands"].strip().partition(" = ")
    assert (name, load_object(path.replace(":", "."))) == ("redrive", Command)


def test_feed_of_dead_letters_is_not_overwritten_before_it_is_read(
    site: Sites, redrive: Redrives, tmp_path: Path
) -> None:
    file = spider(tmp_path)
    write(file.parent / "dead" / "pages.jsonl", *pages(site(), 1))
    feeds = {"dead/%(name)s.jsonl": {"format": "jsonlines", "overwrite": True}}
    run = redrive("pages", "dead/pages.jsonl", settings={"BACKPRESSURE_DEAD_LETTER_FEEDS": feeds})
    assert run.returncode == 2
    assert "would overwrite dead/%(name)s.jsonl" in run.log
    assert len(lines(file.parent / "dead" / "pages.jsonl")) == 1
