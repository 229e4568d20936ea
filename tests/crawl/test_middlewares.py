"""What a middleware of the user's makes of an answer counts, wherever it stands: as in Scrapy.

:data:`DEEDS` is the table of docs/middlewares.md, whose rows it has to have.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.crawl.audit import assert_sound
from tests.crawl.conftest import LISTED_PAGES, CrawlResult, Crawls, Sites
from tests.site import Site

SOURCE = """
from collections import Counter
from urllib.parse import urlsplit

from scrapy.exceptions import IgnoreRequest
from scrapy.http import HtmlResponse

done = Counter()

class Between:
    def process_request(self, request):
        deed = request.meta.get("deed", "")
        if deed == "request: response":
            return page(request, 200)
        if deed == "request: 503 each time":
            return page(request, 503)
        if deed == "request: 503 once" and first(request):
            return page(request, 503)
        if deed == "request: another request" and first(request):
            return request.replace(url=request.url.replace("/0", "/1"))
        if deed == "request: OSError once" and first(request):
            raise OSError("told so")
        if deed == "request: OSError each time":
            raise OSError("told so")
        if deed == "request: ValueError":
            raise ValueError("told so")
        if deed == "request: IgnoreRequest":
            raise IgnoreRequest("told so")

    def process_response(self, request, response):
        deed = request.meta.get("deed", "")
        if deed.startswith("response: solved") and response.status != 200:
            return page(request, 200)
        if deed == "response: 200 made 503 once" and first(request):
            return response.replace(status=503)
        if deed == "response: 200 made 503 each time":
            return response.replace(status=503)
        if deed == "response: 200 made 503 in place, once" and first(request):
            response.status = 503
        if deed == "response: 503 made 200 in place":
            response.status = 200
        if deed == "response: 200 made 429 once" and first(request):
            return response.replace(status=429)
        if deed == "response: 200 made 404":
            return response.replace(status=404)
        if deed == "response: 503 made 404":
            return response.replace(status=404)
        if deed == "response: 503, copy of the request" and first(request):
            return request.replace(dont_filter=True)
        if deed == "response: ban, another request" and first(request):
            return request.replace(url=request.url.replace("/0", "/1"))
        if deed == "response: ban, then a redirect" and first(request):
            return request.replace(dont_filter=True)
        if deed == "response: IgnoreRequest":
            raise IgnoreRequest("told so")
        if deed == "response: ValueError":
            raise ValueError("told so")
        if deed == "response: OSError":
            raise OSError("told so")
        return response

    def process_exception(self, request, exception):
        deed = request.meta.get("deed", "")
        if deed == "exception: response":
            return page(request, 200)
        if deed == "exception: response of 503":
            return page(request, 503)
        if deed == "exception: another request" and first(request):
            return request.replace(url=request.url.replace("/0", "/1"))
        if deed == "exception: ValueError":
            raise ValueError("told so")

def first(request):
    done[request.meta["deed"]] += 1
    return done[request.meta["deed"]] == 1

def page(request, status):
    return HtmlResponse(request.url, status=status, body=b"made up", request=request)

class Deeds(Spider):
    name = "deeds"

    async def start(self):
        for deed, base in self.bases.items():
            yield Request(f"{base}/page/0", meta={"deed": deed}, errback=self.failed)

    def parse(self, response):
        made_up = response.text == "made up"
        yield self.told(response.request, [response.status, made_up, response.url[-1]])

    def failed(self, failure):
        return self.told(failure.request, type(failure.value).__name__)

    def told(self, request, what):
        return {"deed": request.meta["deed"], "what": what}
"""

BAN = {"challenge": True}
ALWAYS_503 = {"status": 503}
DROPS = {"drop": True}
DEEDS: dict[str, dict[str, Any] | None] = {
    "request: response": None,
    "request: 503 each time": None,
    "request: 503 once": None,
    "request: another request": None,
    "request: OSError once": None,
    "request: OSError each time": None,
    "request: ValueError": None,
    "request: IgnoreRequest": None,
    "response: solved 503": ALWAYS_503,
    "response: solved 429": {"status": 429, "headers": {"Retry-After": "0.1"}},
    "response: solved ban": BAN,
    "response: 200 made 503 once": None,
    "response: 200 made 503 each time": None,
    "response: 200 made 503 in place, once": None,
    "response: 503 made 200 in place": ALWAYS_503,
    "response: 200 made 429 once": None,
    "response: 200 made 404": None,
    "response: 503 made 404": ALWAYS_503,
    "response: 503, copy of the request": {"status": 503, "times": 1},
    "response: ban, another request": {"challenge": True, "match": "/page/0"},
    "response: ban, then a redirect": {"challenge": True, "match": "/page/0", "times": 1},
    "response: IgnoreRequest": None,
    "response: ValueError": None,
    "response: OSError": None,
    "exception: response": DROPS,
    "exception: response of 503": DROPS,
    "exception: another request": {"drop": True, "match": "/page/0"},
    "exception: ValueError": DROPS,
    "exception: nothing": DROPS,
    "exception: nothing, once": {"drop": True, "times": 1},
}
"""What the middleware does, with what the site does to page 0."""

PLACES = (555, 585, 595, 650, 720, 760, 870, 920)
"""One between any two of Scrapy's own, from 550 (retries) to 950 (ours)."""

SETTINGS = {
    "RETRY_TIMES": 2,
    "BACKPRESSURE_THROTTLE_TIMES": 2,
    "BACKPRESSURE_BACKOFF_BASE": 0.02,
    "BACKPRESSURE_DEAD_LETTER_ON": ["retries", "blocked", "download_error", "http_error"],
}


def answers_with(fault: dict[str, Any] | None, deed: str) -> dict[str, Any]:
    rule: dict[str, Any] = {"faults": [fault] if fault else []}
    if deed.endswith("then a redirect"):
        moved = {"match": "/page/0", "times": 2, "status": 302, "headers": {"Location": "/page/1"}}
        rule["faults"].append(moved)
    return rule


def what_came(result: CrawlResult, where: Site, address: dict[str, str]) -> dict[str, Any]:
    """What the spider got and the site was asked for, by deed."""
    got: dict[str, Any] = {deed: [] for deed in DEEDS}
    for item in result.items:
        got[item["deed"]].append(item["what"])
    hits = {deed: where.host(host).get("paths", {}) for deed, host in address.items()}
    return {
        deed: (told, {path: found["hits"] for path, found in sorted(hits[deed].items())})
        for deed, told in got.items()
    }


@pytest.mark.parametrize("place", PLACES)
def test_middleware_has_the_effect_that_it_has_in_scrapy(
    site: Sites, crawl: Crawls, place: int
) -> None:
    address = {deed: f"127.0.0.{n}" for n, deed in enumerate(DEEDS, start=2)}
    rules = {address[deed]: answers_with(fault, deed) for deed, fault in DEEDS.items()}
    where = site({"hosts": rules})
    args = {"bases": {deed: where.url("", host=host) for deed, host in address.items()}}
    settings = {**SETTINGS, "DOWNLOADER_MIDDLEWARES": {"spider_under_test.Between": place}}
    stock = crawl(SOURCE, {**settings, "ADDONS": None}, args=args, folder="stock")
    expected = what_came(stock, where, address)
    where.reset()
    ours = assert_sound(crawl(SOURCE, settings, args=args), errors=True)
    assert what_came(ours, where, address) == expected
    # Nobody who got a page has a letter as well.
    letters = Counter(letter["request"]["meta"]["deed"] for letter in ours.dead_letters)
    assert {
        deed: letters[deed] for deed, (told, _) in expected.items() if isinstance(told[0], list)
    } == {deed: 0 for deed, (told, _) in expected.items() if isinstance(told[0], list)}


def test_each_row_of_the_document_is_tried() -> None:
    text = (Path(__file__).parents[2] / "docs" / "middlewares.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `((?:request|response|exception): [^`]+)`", text, re.MULTILINE))
    assert told == set(DEEDS)


def test_page_that_answers_what_was_given_up_has_no_letter(site: Sites, crawl: Crawls) -> None:
    where = site(faults=[{"status": 503}])
    source = """
    from scrapy.http import HtmlResponse

    class Fallback:
        def process_response(self, request, response):
            if response.status == 503:
                return HtmlResponse(request.url, body=b"kept", request=request)
            return response
    """
    settings = {**SETTINGS, "DOWNLOADER_MIDDLEWARES": {"spider_under_test.Fallback": 100}}
    urls = [where.url("/page/0")]
    result = crawl(textwrap.dedent(source) + LISTED_PAGES, settings, args={"urls": urls})
    assert_sound(result, errors=True)
    assert (len(result.items), result.dead_letters, where.stats()["hits"]) == (1, [], 3)


# -- HttpCache -------------------------------------------------------------------------------


def test_stale_page_of_the_cache_is_served_where_the_site_fails(
    site: Sites, crawl: Crawls
) -> None:
    fresh = {"headers": {"Cache-Control": "max-age=0", "ETag": '"x"'}}
    where = site({"default": fresh})
    failing = {
        **fresh,
        "faults": [
            {"match": "/page/0", "status": 503},
            {"match": "/page/1", "drop": True},
        ],
    }
    settings = {
        **SETTINGS,
        "HTTPCACHE_ENABLED": True,
        "HTTPCACHE_POLICY": "scrapy.extensions.httpcache.RFC2616Policy",
    }
    args = {"urls": [where.url(f"/page/{n}") for n in range(3)]}
    assert len(assert_sound(crawl(LISTED_PAGES, settings, args=args)).items) == 3
    where.reset({"default": failing})
    second = assert_sound(crawl(LISTED_PAGES, settings, args=args))
    assert (len(second.items), second.dead_letters) == (3, [])
    assert second.stat("httpcache/revalidate") == 1
    assert second.stat("httpcache/errorrecovery") == 1


# -- redirects -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("meta", "more"),
    [
        ({}, {"REDIRECT_ENABLED": False}),
        ({"dont_redirect": True}, {}),
        ({"handle_httpstatus_list": [302]}, {}),
        ({}, {}),
    ],
    ids=["disabled", "dont_redirect", "handled", "followed"],
)
def test_redirect_that_is_to_be_retried_is_retried_where_nothing_follows_it(
    site: Sites, crawl: Crawls, meta: dict[str, Any], more: dict[str, Any]
) -> None:
    moved = {"times": 1, "status": 302, "headers": {"Location": "/page/9"}}
    where = site(faults=[{"match": "/page/0", **moved}])
    source = """
    class Moved(Spider):
        name = "moved"

        async def start(self):
            yield Request(self.url, meta=self.meta)

        def parse(self, response):
            yield {"status": response.status, "page": response.url[-1]}
    """
    settings = {**SETTINGS, **more, "RETRY_HTTP_CODES": [302, 503]}
    args = {"url": where.url("/page/0"), "meta": meta}
    stock = crawl(source, {**settings, "ADDONS": None}, args=args, folder="stock")
    expected = stock.items, where.host()["paths"].keys(), where.host()["hits"]
    where.reset()
    ours = assert_sound(crawl(source, settings, args=args))
    assert (ours.items, where.host()["paths"].keys(), where.host()["hits"]) == expected
    assert len(ours.items) == 1


@pytest.mark.parametrize(
    ("meta", "more"),
    [({"dont_retry": True}, {}), ({}, {"RETRY_HTTP_CODES": [503]})],
    ids=["dont_retry", "not in RETRY_HTTP_CODES"],
)
def test_refusal_that_is_not_retried_is_followed_as_in_scrapy(
    site: Sites, crawl: Crawls, meta: dict[str, Any], more: dict[str, Any]
) -> None:
    refresh = '<html><head><meta http-equiv="refresh" content="0;url=/page/9"></head></html>'
    where = site(faults=[{"match": "/page/0", "status": 429, "body": refresh}])
    source = """
    class Refresh(Spider):
        name = "refresh"

        async def start(self):
            yield Request(self.url, meta=self.meta)

        def parse(self, response):
            yield {"page": response.url[-1]}
    """
    args = {"url": where.url("/page/0"), "meta": meta}
    result = assert_sound(crawl(source, {**SETTINGS, **more}, args=args))
    assert result.items == [{"page": "9"}]


SORRY = """
class Sorry(Spider):
    name = "sorry"

    async def start(self):
        yield Request(self.url, meta=self.meta)

    def parse(self, response):
        yield {"url": response.url}
"""


def test_page_called_sorry_is_followed(site: Sites, crawl: Crawls) -> None:
    moved = {"status": 302, "headers": {"Location": "/sorry/gone"}}
    gone = {"match": "/sorry/gone", "status": 200, "body": '<html><a href="/sorry/">sorry</a>'}
    where = site(faults=[{"match": "/page/0", **moved}, gone])
    args = {"url": where.url("/page/0"), "meta": {}}
    result = assert_sound(crawl(SORRY, SETTINGS, args=args))
    assert [item["url"] for item in result.items] == [where.url("/sorry/gone")]


def test_redirect_to_the_page_that_refuses_is_no_redirect(site: Sites, crawl: Crawls) -> None:
    moved = {"status": 302, "headers": {"Location": "/sorry/index?continue=x"}, "times": 1}
    where = site({"hosts": {"www.google.example": {"faults": [{"match": "/page/0", **moved}]}}})
    args = {"url": "http://www.google.example/page/0", "meta": {"proxy": where.url("")}}
    result = assert_sound(crawl(SORRY, SETTINGS, args=args))
    assert [item["url"] for item in result.items] == ["http://www.google.example/page/0"]
    assert where.host("www.google.example")["paths"].keys() == {"/page/0"}
    assert result.stat("backpressure/outcome/blocked/google") == 1


# -- what stays on copies --------------------------------------------------------------------


def test_nothing_of_ours_is_in_the_meta_of_a_request_under_way(site: Sites, crawl: Crawls) -> None:
    faults: list[dict[str, Any]] = [
        {"challenge": True},
        {"status": 503},
        {"status": 429, "headers": {"Retry-After": "0.1"}},
        {"drop": True},
        {"cut_gzip": True},
    ]
    hosts = [f"127.0.0.{n}" for n in range(2, 2 + len(faults))]
    rules = {
        host: {"faults": [{**fault, "times": 1}]}
        for host, fault in zip(hosts, faults, strict=True)
    }
    where = site({"hosts": rules})
    source = """
    KNOWN = {
        "download_timeout", "download_slot", "download_latency", "retry_times", "is_start_request",
        "depth",
    }

    class Watch:
        def process_request(self, request):
            assert set(request.meta) <= KNOWN, request.meta

        def process_response(self, request, response):
            assert set(request.meta) <= KNOWN, request.meta
            return response

        def process_exception(self, request, exception):
            assert set(request.meta) <= KNOWN, request.meta

    for place in (10, 555, 595, 620, 820, 920, 990):
        globals()[f"Watch{place}"] = type(f"Watch{place}", (Watch,), {})

    class Pages(Spider):
        name = "pages"

        async def start(self):
            for url in self.urls:
                yield Request(url, errback=self.failed)

        def parse(self, response):
            yield {"odd": sorted(set(response.meta) - KNOWN)}

        def failed(self, failure):
            return {"odd": repr(failure.value)}
    """
    watches = {f"spider_under_test.Watch{n}": n for n in (10, 555, 595, 620, 820, 920, 990)}
    args = {"urls": [where.url("/page/0", host=host) for host in hosts]}
    settings = {**SETTINGS, "DOWNLOADER_MIDDLEWARES": watches}
    result = assert_sound(crawl(source, settings, args=args))
    assert result.items == [{"odd": []}] * len(faults)
    assert where.stats()["hits"] == 2 * len(faults)


def test_retry_that_is_redirected_off_site_is_filtered(site: Sites, crawl: Crawls) -> None:
    where = site({"hosts": {"127.0.0.2": {}, "127.0.0.3": {}}})
    moved = {"status": 302, "headers": {"Location": where.url("/page/9", host="127.0.0.3")}}
    faults = [{"status": 503, "times": 1}, moved]
    where.reset({"hosts": {"127.0.0.2": {"faults": faults}, "127.0.0.3": {}}})
    source = LISTED_PAGES.replace(
        'name = "pages"', 'name = "pages"\n    allowed_domains = ["127.0.0.2"]'
    )
    args = {"urls": [where.url("/page/0", host="127.0.0.2")]}
    result = assert_sound(crawl(source, SETTINGS, args=args))
    assert (where.host("127.0.0.3"), result.stat("offsite/filtered")) == ({}, 1)
    assert result.stat("backpressure/audit/dropped/request_scheduled") == 1


def test_retry_that_is_redirected_on_site_is_followed_though_seen(
    site: Sites, crawl: Crawls
) -> None:
    moved = {"status": 302, "headers": {"Location": "/page/0"}, "times": 1}
    where = site(faults=[{"match": "/page/0", "status": 503, "times": 1}, {**moved}])
    result = assert_sound(crawl(LISTED_PAGES, SETTINGS, args={"urls": [where.url("/page/0")]}))
    assert (len(result.items), where.host()["hits"]) == (1, 3)
