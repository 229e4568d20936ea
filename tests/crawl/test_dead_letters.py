"""What is given up is written down, whole and once, and nothing of it reaches the user's feeds."""

from __future__ import annotations

import json
from pathlib import Path

from tests.crawl.audit import assert_sound
from tests.crawl.conftest import Crawls, Sites

FAST_RETRIES = {"RETRY_TIMES": 1, "BACKPRESSURE_BACKOFF_BASE": 0.1}
PAGES = """
class Pages(Spider):
    name = "pages"

    async def start(self):
        for number in range(3):
            yield Request(f"{self.base}/page/{number}")

    def parse(self, response):
        yield {"url": response.url}
"""


def test_record_of_a_post_is_complete_enough_to_send_it_again(site: Sites, crawl: Crawls) -> None:
    where = site(faults=[{"match": "/echo", "status": 503}])
    source = """
    class Post(Spider):
        name = "post"

        async def start(self):
            yield Request(
                f"{self.base}/echo?q=1",
                method="POST",
                body=b'{"page": 7}',
                headers={"Content-Type": "application/json", "Authorization": "Basic c2VjcmV0"},
                cb_kwargs={"page": 7, "tags": ["a", "b"]},
                meta={"shop": "north"},
                callback=self.parse_answer,
                errback=self.failed,
                priority=5,
            )

        def parse_answer(self, response, page, tags):
            pass

        def failed(self, failure):
            pass
    """
    result = crawl(source, FAST_RETRIES, args={"base": where.url("")})
    assert_sound(result, errors=True)
    [letter] = result.dead_letters
    assert (letter["reason"], letter["outcome"], letter["spider"]) == ("retries", "failed", "post")
    request = letter["request"]
    assert request["url"] == where.url("/echo?q=1")
    assert request["method"] == "POST"
    assert request["body"] == {"text": '{"page": 7}'}
    assert request["headers"]["Content-Type"] == ["application/json"]
    assert "Authorization" not in request["headers"]
    assert request["cb_kwargs"] == {"page": 7, "tags": ["a", "b"]}
    assert request["meta"]["shop"] == "north"
    assert not [key for key in request["meta"] if key.startswith("backpressure_")]
    assert (request["callback"], request["errback"]) == ("parse_answer", "failed")
    assert [attempt["status"] for attempt in letter["attempts"]] == [503, 503]
    assert letter["response"]["status"] == 503
    assert letter["redrives"] == 0
    assert letter["first_seen"] < letter["time"]


def test_item_that_a_pipeline_rejects_with_an_error_makes_one_record(
    site: Sites, crawl: Crawls
) -> None:
    where = site()
    source = (
        PAGES
        + """
class Pipeline:
    def process_item(self, item):
        if item["url"].endswith("/page/1"):
            raise RuntimeError("the database is full")
        return item
"""
    )
    settings = {
        "BACKPRESSURE_DEAD_LETTER_ON": ["item_error"],
        "ITEM_PIPELINES": {"spider_under_test.Pipeline": 300},
    }
    result = crawl(source, settings, args={"base": where.url("")})
    assert_sound(result, errors=True)
    [letter] = result.dead_letters
    assert letter["reason"] == "item_error"
    assert letter["request"]["url"] == where.url("/page/1")
    assert "the database is full" in letter["attempts"][-1]["exception"]


def test_two_broken_items_of_one_page_make_one_record(site: Sites, crawl: Crawls) -> None:
    where = site()
    source = """
    class Two(Spider):
        name = "two"

        async def start(self):
            yield Request(f"{self.base}/page/0")

        def parse(self, response):
            yield {"number": 1}
            yield {"number": 2}
            raise ValueError("and the callback")

    class Pipeline:
        def process_item(self, item):
            raise RuntimeError("the database is full")
    """
    settings = {
        "BACKPRESSURE_DEAD_LETTER_ON": ["item_error", "spider_error"],
        "ITEM_PIPELINES": {"spider_under_test.Pipeline": 300},
    }
    result = crawl(source, settings, args={"base": where.url("")})
    assert_sound(result, errors=True)
    assert len(result.dead_letters) == 1


def test_answers_that_the_spider_does_not_take_are_recorded_on_demand(
    site: Sites, crawl: Crawls
) -> None:
    where = site(faults=[{"match": "/page/1", "status": 404}])
    settings = {"BACKPRESSURE_DEAD_LETTER_ON": ["http_error"]}
    result = crawl(PAGES, settings, args={"base": where.url("")})
    assert_sound(result)
    [letter] = result.dead_letters
    assert (letter["reason"], letter["response"]["status"]) == ("http_error", 404)


def test_challenge_page_with_status_200_never_reaches_the_callback(
    site: Sites, crawl: Crawls
) -> None:
    challenge = '<html><form method="get" action="/errors/validateCaptcha"></form></html>'
    where = site(faults=[{"match": "/page/1", "status": 200, "body": challenge}])
    result = crawl(PAGES, FAST_RETRIES, args={"base": where.url("")})
    assert_sound(result, errors=True)
    assert len(result.items) == 2
    [letter] = result.dead_letters
    assert (letter["reason"], letter["outcome"]) == ("blocked", "blocked")
    assert letter["request"]["url"] == where.url("/page/1")


def test_dead_letters_are_no_items_of_the_spider(site: Sites, crawl: Crawls) -> None:
    where = site(faults=[{"match": "/page/1", "status": 503}])
    settings = {**FAST_RETRIES, "FEEDS": {"out.jsonl": {"format": "jsonlines"}}}
    result = crawl(PAGES, settings, args={"base": where.url("")})
    assert_sound(result, errors=True)
    assert len(result.dead_letters) == 1
    lines = (result.folder / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert sorted(json.loads(line)["url"] for line in lines) == [
        where.url("/page/0"),
        where.url("/page/2"),
    ]
    assert result.stat("item_scraped_count") == 2
    assert result.stat("feedexport/success_count/FileFeedStorage") == 1


def test_answer_that_the_spider_asked_for_is_no_dead_letter(site: Sites, crawl: Crawls) -> None:
    where = site(faults=[{"match": "/page/1", "status": 503}])
    source = PAGES.replace('name = "pages"', 'name = "pages"\n    handle_httpstatus_list = [503]')
    result = crawl(source, FAST_RETRIES, args={"base": where.url("")})
    assert_sound(result, errors=True)
    assert len(result.items) == 3
    assert result.dead_letters == []


def test_without_feeds_the_given_up_are_still_counted(site: Sites, crawl: Crawls) -> None:
    where = site(faults=[{"match": "/page/1", "status": 503}])
    settings = {**FAST_RETRIES, "BACKPRESSURE_DEAD_LETTER_FEEDS": {}}
    result = crawl(PAGES, settings, args={"base": where.url("")})
    assert_sound(result, errors=True)
    assert not (result.folder / "dead_letters").exists()
    assert result.stat("backpressure/dead_letters/retries") == 1


def test_copy_of_response_meta_does_not_carry_the_attempts_of_another_request(
    site: Sites, crawl: Crawls
) -> None:
    where = site(
        faults=[
            {"match": "/page/0", "times": 1, "status": 503},
            {"match": "/page/1", "status": 503},
        ]
    )
    source = """
    class Copy(Spider):
        name = "copy"

        async def start(self):
            yield Request(f"{self.base}/page/0")

        def parse(self, response):
            meta = {**response.meta, "retry_times": 0}
            yield Request(f"{self.base}/page/1", callback=self.parse_next, meta=meta)

        def parse_next(self, response):
            pass
    """
    result = crawl(source, FAST_RETRIES, args={"base": where.url("")})
    assert_sound(result, errors=True)
    [letter] = result.dead_letters
    assert len(letter["attempts"]) == 2  # its own


def test_redirect_to_another_host_does_not_carry_the_attempts_at_the_first(
    site: Sites, crawl: Crawls
) -> None:
    first, second = "127.0.0.2", "127.0.0.3"
    where = site(
        {
            "hosts": {
                first: {"faults": [{"times": 1, "status": 429}]},
                second: {"faults": [{"status": 503}]},
            }
        }
    )
    source = """
    class Redirected(Spider):
        name = "redirected"

        async def start(self):
            yield Request(self.url)

        def parse(self, response):
            pass
    """
    url = where.url("/redirect?to=" + where.url("/page/1", host=second), host=first)
    result = crawl(source, FAST_RETRIES, args={"url": url})
    assert_sound(result, errors=True)
    assert where.host(first)["hits"] == 2
    [letter] = result.dead_letters
    assert letter["request"]["url"] == where.url("/page/1", host=second)
    assert [attempt["status"] for attempt in letter["attempts"]] == [503, 503]


def test_letter_is_in_the_file_before_the_crawl_ends(
    site: Sites, crawl: Crawls, tmp_path: Path
) -> None:
    where = site(faults=[{"match": "/page/1", "status": 503}, {"match": "/page/2", "stall": True}])
    result = crawl(
        PAGES,
        {"RETRY_TIMES": 0},
        args={"base": where.url("")},
        kill_after=lambda: any(
            file.stat().st_size for file in tmp_path.glob("crawl/dead_letters/*.jsonl")
        ),
        timeout=20,
    )
    assert result.returncode < 0
    assert [letter["reason"] for letter in result.dead_letters] == ["retries"]


def test_request_of_which_no_record_can_be_made_is_not_counted_as_a_letter(
    site: Sites, crawl: Crawls
) -> None:
    where = site(faults=[{"status": 503}])
    source = """
    class NoFingerprints:
        def fingerprint(self, request):
            raise RuntimeError("no fingerprint")

    class Bad(Spider):
        name = "bad"

        async def start(self):
            yield Request(f"{self.base}/page/1", dont_filter=True)
    """
    settings = {
        "REQUEST_FINGERPRINTER_CLASS": "spider_under_test.NoFingerprints",
        "RETRY_TIMES": 0,
    }
    result = assert_sound(crawl(source, settings, args={"base": where.url("")}), errors=True)
    assert result.stat("backpressure/audit/dead_lettered") == 0
    assert result.stat("backpressure/audit/given_up") == 1
    assert any("No dead letter can be made of" in line for line in result.troubles)
