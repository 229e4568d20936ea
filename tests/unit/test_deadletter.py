from __future__ import annotations

import csv
import json
import os
import pickle
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from itemadapter import ItemAdapter
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.http import Response
from scrapy.settings import default_settings
from scrapy.utils.test import get_crawler

from scrapy_backpressure.control.outcome import Outcome
from scrapy_backpressure.deadletter import DeadLetter, DeadLetterExporter

CRAWL = """
import json, os, signal, sys, time
import scrapy
from scrapy import signals
from scrapy.crawler import AsyncCrawlerProcess, CrawlerProcess
from scrapy_backpressure.control.outcome import Outcome
from scrapy_backpressure.deadletter import DeadLetter, DeadLetterExporter
from scrapy_backpressure.signals import request_dead_lettered

options = json.loads(sys.argv[1])
told = []

class Pages(scrapy.Spider):
    name = "pages"

    @classmethod
    def from_crawler(cls, crawler):
        spider = super().from_crawler(crawler)
        crawler.signals.connect(spider.tell, signals.feed_exporter_closed)
        crawler.signals.connect(spider.tell, signals.feed_slot_closed)
        return spider

    def tell(self, signal):
        told.append(str(signal))

    async def start(self):
        yield scrapy.Request("data:,", dont_filter=True)

    def parse(self, response):
        for number in range(options["letters"]):
            self.send(number)
        if options.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"item": 1}

    def send(self, number):
        request = scrapy.Request(f"http://a.example/{number}", meta={"\\x00 1": ["\\x01"]})
        letter = DeadLetter.build(
            request, crawler=self.crawler, outcome=Outcome.FAILED, reason="503", now=time.time()
        )
        self.crawler.signals.send_catch_log(
            request_dead_lettered, letter=letter, request=request, reason="503", spider=self
        )

    def last(self):
        self.send("last")
        if options.get("break_last"):
            raise OSError("broken")

class Letters:
    def __init__(self, crawler):
        self.exporter = DeadLetterExporter.from_crawler(
            crawler, feeds=options["feeds"], before_close=crawler.spider.last
        )

    from_crawler = classmethod(lambda cls, crawler: cls(crawler))

settings = {"EXTENSIONS": {Letters: 1}, "TELNETCONSOLE_ENABLED": False}
settings.update(options.get("settings", {}))
without_reactor = settings.get("TWISTED_REACTOR_ENABLED") is False
process = (AsyncCrawlerProcess if without_reactor else CrawlerProcess)(settings)
crawler = process.create_crawler(Pages)
process.crawl(crawler)
process.start()
print(json.dumps({"stats": crawler.stats.get_stats(), "told": told}, default=str))
"""

LOCAL_FORMATS = ["jsonlines", "jl", "json", "csv", "xml", "pickle", "marshal"]


class Pages(Spider):
    name = "pages"

    def parse_page(self, response, **kwargs):
        pass

    def failed(self, failure):
        pass


def crawl(folder: Path, *, feeds: Any, letters: int = 2, **options: Any) -> Any:
    arguments = json.dumps({"feeds": feeds, "letters": letters, **options})
    return subprocess.run(
        [sys.executable, "-c", CRAWL, arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
    )


def report(result: Any) -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def crawler() -> Crawler:
    crawler = get_crawler(Pages)
    crawler.spider = crawler._create_spider()
    return crawler


def build(crawler: Crawler, request: Request, **kwargs: Any) -> DeadLetter:
    arguments = {"outcome": Outcome.FAILED, "reason": "503", "now": 1_700_000_000.0, **kwargs}
    return DeadLetter.build(request, crawler=crawler, **arguments)


class TestRecord:
    def test_fields_stand_in_the_documented_order(self, crawler):
        letter = build(crawler, Request("http://a.example/"))
        assert list(ItemAdapter(letter).asdict()) == [
            *("schema", "id", "spider", "time", "first_seen", "outcome", "reason"),
            *("attempts", "request", "dropped", "response", "redrives"),
        ]

    def test_the_request_has_all_it_takes_to_send_it_again(self, crawler):
        same: dict[str, Any] = {
            "url": "http://a.example/?q=1",
            "method": "POST",
            "headers": {"X-Two": ["1", "2"]},
            "meta": {"page": 1, "nested": {"a": [1, None]}},
            "cb_kwargs": {"item": {"name": "x"}},
            "priority": 3,
            "dont_filter": True,
            "flags": ["f"],
        }
        methods = {"callback": crawler.spider.parse_page, "errback": crawler.spider.failed}
        letter = build(crawler, Request(**same, **methods, body="ü=1"))
        names = {"callback": "parse_page", "errback": "failed"}
        assert letter.request == {**same, **names, "body": {"text": "ü=1"}}
        assert letter.dropped == []

    def test_the_id_is_the_fingerprint(self, crawler):
        request = Request("http://a.example/")
        expected = crawler.request_fingerprinter.fingerprint(request).hex()
        assert build(crawler, request).id == expected

    def test_a_body_that_is_no_text_is_base64(self, crawler):
        request = Request("http://a.example/", method="POST", body=b"\xff\x00")
        assert build(crawler, request).request["body"] == {"base64": "/wA="}

    def test_times_are_iso_8601_in_utc(self, crawler):
        history = {"first_seen": 1_600_000_000.5, "attempts": []}
        letter = build(crawler, Request("http://a.example/"), history=history)
        assert letter.time == "2023-11-14T22:13:20.000+00:00"
        assert letter.first_seen == "2020-09-13T12:26:40.500+00:00"

    def test_the_last_twenty_attempts_are_kept(self, crawler):
        attempt = {"time": 1_600_000_000.0, "status": 503, "exception": None, "reason": "503"}
        attempt |= {"outcome": "failed", "proxy": "http://me:SECRET@p.example:1"}
        attempts = [{**attempt, "latency": float(number)} for number in range(30)]
        history = {"attempts": attempts, "redrives": 2}
        letter = build(crawler, Request("http://a.example/"), history=history)
        assert [entry["latency"] for entry in letter.attempts] == list(range(10, 30))
        assert letter.attempts[0] == {
            **attempts[10],
            "time": "2020-09-13T12:26:40.000+00:00",
            "proxy": "http://p.example:1",
        }
        assert letter.redrives == 2

    def test_meta_of_this_run_is_left_out(self, crawler):
        meta = {"depth": 1, "download_slot": "s", "download_latency": 0.1, "retry_times": 2}
        meta |= {"_auth_proxy": "http://p", "backpressure_anything": object()}
        letter = build(crawler, Request("http://a.example/", meta=meta))
        assert letter.request["meta"] == {"depth": 1, "download_slot": "s"}
        assert letter.dropped == []

    def test_the_response_is_described(self, crawler):
        response = Response(
            "http://a.example/final",
            status=429,
            headers={"Retry-After": "5", "X-Secret-Thing": "no", "X-RateLimit-Limit": "3"},
            body=b"12345",
        )
        assert build(crawler, Request("http://a.example/"), response=response).response == {
            "status": 429,
            "url": "http://a.example/final",
            "headers": {"Retry-After": ["5"], "X-Ratelimit-Limit": ["3"]},
            "body_size": 5,
        }


class TestFeeds:
    def exporter(self, feeds: Any, **settings_: Any) -> DeadLetterExporter:
        crawler = get_crawler(Pages, settings_)
        return DeadLetterExporter.from_crawler(crawler, feeds=feeds)

    @pytest.mark.parametrize(
        "feeds",
        [
            "letters.jsonl",
            ["letters.jsonl"],
            {"letters.jsonl": "jsonlines"},
            {1: {"format": "json"}},
            {"letters.txt": {"format": "text"}},
            {"letters": {}},
            {"gopher://a/letters": {"format": "json"}},
            {"ftp:///letters": {"format": "json"}},
            {"letters.jsonl": {"format": "json", "batch_item_count": 5}},
            {"letters.jsonl": {"format": "json", "item_filter": "no.such.Filter"}},
        ],
        ids=str,
    )
    def test_what_cannot_be_a_feed_is_an_error_that_names_the_setting(self, feeds):
        with pytest.raises(ValueError, match="BACKPRESSURE_DEAD_LETTER_FEEDS must be a dict"):
            self.exporter(feeds)

    def test_the_error_does_not_show_credentials(self):
        with pytest.raises(ValueError, match="FEEDS") as caught:
            self.exporter({"gopher://me:SECRET@a.example/": {"format": "json"}})
        assert "SECRET" not in str(caught.value)

    def test_no_feeds_turn_it_off(self):
        with pytest.raises(NotConfigured):
            self.exporter({})

    def test_the_format_may_come_from_the_name(self):
        exporter = self.exporter({"letters.csv": {}})
        assert exporter.feeds["letters.csv"]["format"] == "csv"

    def test_a_path_may_have_placeholders(self, tmp_path):
        exporter = self.exporter({tmp_path / "%(name)s.jsonl": {}})
        assert list(exporter.feeds) == [str(tmp_path / "%(name)s.jsonl")]

    def test_settings_for_items_do_not_apply(self):
        exporter = self.exporter(
            {"letters.jsonl": {}},
            FEED_EXPORT_FIELDS=["name"],
            FEED_EXPORT_BATCH_ITEM_COUNT=3,
            FEED_EXPORT_ENCODING="latin-1",
            FEED_STORE_EMPTY=True,
            FEED_URI_PARAMS="no.such.function",
            FEEDS={"items.json": {"format": "json"}},
        )
        assert list(exporter.feeds) == ["letters.jsonl"]
        options = exporter.feeds["letters.jsonl"]
        names = ("fields", "batch_item_count", "encoding", "store_empty", "uri_params")
        assert [options[name] for name in names] == [None, 0, "utf-8", False, None]

    def test_options_of_the_feed_apply(self):
        options = {"fields": ["id"], "store_empty": True, "encoding": "ascii"}
        exporter = self.exporter({"letters.jsonl": options})
        assert {**exporter.feeds["letters.jsonl"], **options} == exporter.feeds["letters.jsonl"]

    def test_the_settings_of_the_crawler_are_unchanged(self):
        crawler = get_crawler(Pages, {"FEEDS": {"items.json": {"format": "json"}}})
        DeadLetterExporter.from_crawler(crawler, feeds={"letters.jsonl": {}})
        assert list(crawler.settings.getdict("FEEDS")) == ["items.json"]


def read_feed(path: Path, format_: str) -> list[Any]:
    """Return the requests of a feed."""
    if format_ in ("jsonlines", "jl"):
        return [letter["request"] for letter in lines(path)]
    if format_ == "json":
        return [letter["request"] for letter in json.loads(path.read_text())]
    if format_ == "csv":
        with path.open(newline="") as file:
            return [json.loads(row["request"]) for row in csv.DictReader(file)]
    if format_ == "xml":
        return [json.loads(e.text or "") for e in ET.parse(path).iterfind("item/request")]
    load = pickle.load if format_ == "pickle" else __import__("marshal").load
    with path.open("rb") as file:
        return [load(file)["request"] for _ in range(3)]


class TestCrawl:
    def test_every_format_holds_every_letter(self, tmp_path):
        feeds = {f"letters.{format_}": {"format": format_} for format_ in LOCAL_FORMATS}
        report(crawl(tmp_path, feeds=feeds))
        for format_ in LOCAL_FORMATS:
            requests = read_feed(tmp_path / f"letters.{format_}", format_)
            urls = [request["url"].rpartition("/")[2] for request in requests]
            assert urls == ["0", "1", "last"], format_
            assert requests[0]["meta"] == {"\x00 1": ["\x01"]}, format_

    def test_nothing_reaches_the_feeds_and_stats_of_items(self, tmp_path):
        result = report(
            crawl(
                tmp_path,
                feeds={"letters.jsonl": {"format": "jsonlines"}},
                settings={"FEEDS": {"items.jsonl": {"format": "jsonlines"}}},
            )
        )
        assert lines(tmp_path / "items.jsonl") == [{"item": 1}]
        assert result["stats"]["item_scraped_count"] == 1
        assert result["stats"]["feedexport/success_count/FileFeedStorage"] == 1
        own = "backpressure/dead_letters/feedexport/success_count/FileFeedStorage"
        assert result["stats"][own] == 1
        assert len(result["told"]) == 2

    def test_the_signals_of_feeds_are_not_sent(self, tmp_path):
        result = report(crawl(tmp_path, feeds={"letters.jsonl": {"format": "jsonlines"}}))
        assert result["told"] == []

    @pytest.mark.parametrize("format_", ["jsonlines", "csv", "xml"])
    def test_letters_survive_a_kill(self, tmp_path, format_):
        feeds = {"letters": {"format": format_}}
        result = crawl(tmp_path, feeds=feeds, kill=True)
        assert result.returncode == -signal.SIGKILL
        text = (tmp_path / "letters").read_text()
        assert "http://a.example/0" in text
        assert "http://a.example/1" in text

    def test_a_second_run_adds_to_the_file_of_the_first(self, tmp_path):
        feeds = {"letters.jsonl": {"format": "jsonlines"}}
        report(crawl(tmp_path, feeds=feeds))
        crawl(tmp_path, feeds=feeds, kill=True)
        assert len(lines(tmp_path / "letters.jsonl")) == 3 + 2

    def test_batches_are_files_of_their_own(self, tmp_path):
        feeds = {"letters-%(batch_id)d.jsonl": {"format": "jsonlines", "batch_item_count": 2}}
        report(crawl(tmp_path, feeds=feeds, letters=4))
        sizes = [len(lines(path)) for path in sorted(tmp_path.glob("letters-*"))]
        assert sizes == [2, 2, 1]

    def test_post_processing_applies(self, tmp_path):
        plugin = "scrapy.extensions.postprocessing.GzipPlugin"
        feeds = {"letters.gz": {"format": "jsonlines", "postprocessing": [plugin]}}
        report(crawl(tmp_path, feeds=feeds))
        assert __import__("gzip").open(tmp_path / "letters.gz").read().count(b"\n") == 3

    def test_a_handler_that_fails_at_the_end_does_not_keep_feeds_open(self, tmp_path):
        feeds = {"letters.json": {"format": "json"}}
        result = crawl(tmp_path, feeds=feeds, break_last=True)
        assert len(read_feed(tmp_path / "letters.json", "json")) == 3
        assert "The last dead letters may be missing" in result.stderr

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
    def test_a_letter_that_finds_the_disk_full_is_in_the_log(self, tmp_path):
        feeds = {"/dev/full": {"format": "jsonlines"}}
        result = crawl(tmp_path, feeds=feeds)
        logged = [
            json.loads(line.partition("feed(s): ")[2])
            for line in result.stderr.splitlines()
            if " ERROR: Dead letter not written" in line
        ]
        assert [letter["request"]["url"][-1] for letter in logged] == ["0", "1", "t"]
        assert report(result)["stats"]["backpressure/dead_letters/write_failed"] == 3

    def test_a_feed_that_fails_does_not_keep_letters_from_the_others(self, tmp_path):
        (tmp_path / "file").touch()
        feeds = {
            "file/letters.jsonl": {"format": "jsonlines"},
            "%(no_such_attribute)s.jsonl": {"format": "jsonlines"},
            "good.jsonl": {"format": "jsonlines"},
        }
        result = crawl(tmp_path, feeds=feeds)
        assert len(lines(tmp_path / "good.jsonl")) == 3
        assert "Dead letter not written to 2 feed(s)" in result.stderr

    @pytest.mark.parametrize("reactor", ["asyncio", "select", "none"])
    def test_it_closes_its_feeds_on_every_reactor(self, tmp_path, reactor):
        choices: dict[str, dict[str, Any]] = {
            "asyncio": {},
            "select": {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"},
            "none": {"TWISTED_REACTOR_ENABLED": False},
        }
        choice = choices[reactor]
        if reactor == "none" and not hasattr(default_settings, "TWISTED_REACTOR_ENABLED"):
            pytest.skip("this Scrapy needs a reactor")
        feeds = {"letters-%(batch_id)d.json": {"format": "json", "batch_item_count": 2}}
        report(crawl(tmp_path, feeds=feeds, settings=choice))
        assert len(read_feed(tmp_path / "letters-1.json", "json")) == 2
        assert len(read_feed(tmp_path / "letters-2.json", "json")) == 1
