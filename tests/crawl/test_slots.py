"""A request runs in the slot of its URL, unless the user has named another."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crawl.audit import assert_sound
from tests.crawl.conftest import Crawls, Sites

HERE, THERE = "127.0.0.2", "127.0.0.3"


def crawl_of(parse: str, failed: str = "pass", start: str = "") -> str:
    return f"""
from scrapy.http import Response

class Slots(Spider):
    name = "slots"

    async def start(self):
        yield Request(self.here, errback=self.failed, meta={{{start}}})

    def parse(self, response):
        {parse}

    def failed(self, failure):
        {failed}

    def told(self, response):
        yield {{"url": response.url, "slot": response.meta["download_slot"]}}
"""


@pytest.mark.parametrize(
    ("parse", "start", "slot"),
    [
        ("yield Request(self.there, self.told, meta=response.meta)", "", THERE),
        ("yield Request(self.there, self.told, meta=dict(response.meta))", "", THERE),
        (
            "import copy; yield Request(self.there, self.told, meta=copy.deepcopy(response.meta))",
            "",
            THERE,
        ),
        ("yield response.request.replace(url=self.there, callback=self.told)", "", THERE),
        (
            "yield Request(self.there, self.told, meta=response.meta)",
            "'download_slot': 'mine'",
            "mine",
        ),
        (
            "yield Request(self.there, self.told, meta={'download_slot': "
            "response.meta['download_slot']})",
            "",
            HERE,
        ),
        ("yield Request(self.there, self.told, meta={'download_slot': 'own'})", "", "own"),
    ],
    ids=["meta", "dict", "deep copy", "replace", "own slot", "passed on by itself", "named"],
)
@pytest.mark.parametrize("more", [{}, {"JOBDIR": "job"}], ids=["memory", "jobdir"])
def test_slot_of_a_request_made_from_a_response(
    site: Sites, crawl: Crawls, parse: str, start: str, slot: str, more: dict[str, Any]
) -> None:
    where = site({"hosts": {HERE: {}, THERE: {}}})
    args = {"here": where.url("/page/0", host=HERE), "there": where.url("/page/1", host=THERE)}
    result = assert_sound(crawl(crawl_of(parse, start=start), more, args=args))
    assert [item["slot"] for item in result.items] == [slot]


def test_slot_of_a_request_made_in_an_errback(site: Sites, crawl: Crawls) -> None:
    where = site({"hosts": {HERE: {"faults": [{"status": 404}]}, THERE: {}}})
    args = {"here": where.url("/page/0", host=HERE), "there": where.url("/page/1", host=THERE)}
    failed = "yield Request(self.there, self.told, meta=failure.request.meta)"
    result = assert_sound(crawl(crawl_of("pass", failed), args=args))
    assert [item["slot"] for item in result.items] == [THERE]


@pytest.mark.parametrize(("start", "slot"), [("", THERE), ("'download_slot': 'mine'", "mine")])
def test_slot_of_a_redirect(site: Sites, crawl: Crawls, start: str, slot: str) -> None:
    where = site({"hosts": {HERE: {}, THERE: {}}})
    there = where.url("/page/1", host=THERE)
    args = {"here": where.url(f"/redirect?to={there}", host=HERE)}
    source = crawl_of("yield from self.told(response)", start=start)
    result = assert_sound(crawl(source, args=args))
    assert [item["slot"] for item in result.items] == [slot]


@pytest.mark.parametrize(("start", "slot"), [("", HERE), ("'download_slot': 'mine'", "mine")])
def test_slot_of_a_retry(site: Sites, crawl: Crawls, start: str, slot: str) -> None:
    where = site({"hosts": {HERE: {"faults": [{"status": 503, "times": 1}]}}})
    source = crawl_of("yield from self.told(response)", start=start)
    settings = {"BACKPRESSURE_BACKOFF_BASE": 0.02, "JOBDIR": "job"}
    args = {"here": where.url("/page/0", host=HERE)}
    assert [item["slot"] for item in assert_sound(crawl(source, settings, args=args)).items] == [
        slot
    ]


def test_pause_of_one_host_does_not_hold_another_whose_meta_it_got(
    site: Sites, crawl: Crawls
) -> None:
    refused = {"times": 1, "per": "host", "status": 429, "headers": {"Retry-After": "4"}}
    where = site({"hosts": {HERE: {}, THERE: {"faults": [refused]}}})
    parse = """
        if response.url == self.here:
            yield Request(self.there, self.told, meta=response.meta)
            for number in range(5):
                yield Request(self.here.replace("/0", f"/{number + 1}"), self.told)
"""
    args = {"here": where.url("/page/0", host=HERE), "there": where.url("/page/1", host=THERE)}
    result = assert_sound(crawl(crawl_of(parse.strip()), args=args))
    # Those of the first host are all there before the other's pause is over.
    assert [item["slot"] for item in result.items] == [HERE] * 5 + [THERE]
