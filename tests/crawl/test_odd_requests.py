"""Whatever a user puts into a request: the crawl goes on, and the request ends in one way."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.crawl.audit import assert_sound
from tests.crawl.conftest import REACTORS, CrawlResult, Crawls, Sites

SOURCE = """
class Odd(Spider):
    name = "odd"
    custom_settings = {"DEPTH_LIMIT": 0}

    async def start(self):
        for number, odd in enumerate(self.odd):
            if self.at_start:
                yield self.make(number, odd)
            else:  # each from a callback of its own, in which Scrapy itself may fail
                yield Request("data:," + str(number), cb_kwargs={"odd": odd}, dont_filter=True)
        yield Request(self.base + "/page/99999", callback=self.plain)

    def parse(self, response, odd):
        yield self.make(int(response.text), odd)

    def make(self, number, odd):
        name, literal = odd
        value = eval(literal)
        request = Request(
            f"{self.base}/page/{number}",
            callback=self.got,
            errback=self.failed,
            cb_kwargs={"number": number},
        )
        if name.startswith("."):
            try:
                setattr(request, name[1:], value)
            except Exception:  # what cannot be set is no request
                return {"number": number, "got": "no request"}
        elif name.startswith(":"):
            request.headers.setdefault(name[1:], []).append(value)
        elif name == "url":
            request = request.replace(url=value, meta={"verbatim_url": True})
        else:
            request.meta[name] = value
        return request

    def got(self, response, number):
        yield {"number": number, "got": response.status}

    def failed(self, failure):
        name = type(failure.value).__name__
        yield {
            "number": failure.request.cb_kwargs["number"],
            "error": name,
            "text": str(failure.value),
        }

    def plain(self, response):
        yield {"number": -1, "got": response.status}
"""
SETTINGS = {
    "RETRY_TIMES": 2,
    "BACKPRESSURE_BACKOFF_BASE": 0.02,
    "BACKPRESSURE_DEAD_LETTER_FEEDS": {},
    "LOG_LEVEL": "ERROR",
    "DOWNLOAD_TIMEOUT": 5,
}
SITE = {"faults": [{"match": "/page/*[02468]", "status": 503, "times": 1}]}
"""Every second page fails once, so that its request is parked and comes back."""


def ends(result: CrawlResult) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for item in result.items:
        found.setdefault(item["number"], []).append(item.get("got") or item.get("error"))
    return found


# -- cases -----------------------------------------------------------------------------------

UNREACHABLE = "http://user:p[ss@127.0.0.1:1"


@pytest.mark.parametrize("reactor", REACTORS)
@pytest.mark.parametrize("more", [{}, {"JOBDIR": "job"}], ids=["memory", "jobdir"])
def test_proxy_of_any_kind_ends_in_the_errback(
    site: Sites, crawl: Crawls, more: dict[str, Any], reactor: str
) -> None:
    where = site({"default": SITE})
    odd = [
        ("proxy", literal)
        for literal in (repr(UNREACHABLE), "{'a': 1}", "b'http://127.0.0.1:1'", "['x']", "5")
    ]
    args = {"odd": odd, "base": where.url(""), "at_start": True}
    result = crawl(SOURCE, {**SETTINGS, **more}, args=args, reactor=reactor)
    assert_sound(result, errors=True)
    found = ends(result)
    assert found.pop(-1) == [200]
    assert sorted(found) == list(range(len(odd)))
    assert [len(told) for told in found.values()] == [1] * len(odd)
    assert 200 not in {told for (told,) in found.values()}


@pytest.mark.parametrize(
    ("odd", "named"),
    [
        (("download_slot", "['a']"), "download_slot"),
        (("download_slot", "5"), "download_slot"),
        (("download_slot", "b'a'"), "download_slot"),
        ((".priority", "'high'"), "priority"),
        ((".priority", "float('nan')"), "priority"),
        (("url", "'http://[::1/'"), "http://[::1/"),
    ],
    ids=str,
)
@pytest.mark.parametrize("more", [{}, {"JOBDIR": "job"}], ids=["memory", "jobdir"])
@pytest.mark.parametrize("at_start", [True, False], ids=["start", "callback"])
def test_request_that_no_queue_can_take_ends_in_an_errback_that_names_what_is_odd(
    site: Sites,
    crawl: Crawls,
    more: dict[str, Any],
    odd: tuple[str, str],
    named: str,
    at_start: bool,
) -> None:
    where = site({"default": SITE})
    args = {"odd": [odd], "base": where.url(""), "at_start": at_start}
    result = assert_sound(crawl(SOURCE, {**SETTINGS, **more}, args=args), errors=True)
    found = ends(result)
    if odd[0] == "url" and "error" not in str(result.items):
        pytest.skip("this Scrapy takes no URL as it is")
    assert found == {0: ["ValueError"], -1: [200]}
    assert named in next(item["text"] for item in result.items if item["number"] == 0)


# -- anything --------------------------------------------------------------------------------

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**63, 10**400, -(10**40)]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["\ud800", "http://user:p[ss@127.0.0.1:1", "http://127.0.0.1:1", "a\0b"]),
    st.binary(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
).map(repr) | st.sampled_from(
    ["object()", "lambda: 1", "{1, 2}", "(1, 'a')", "type('T', (), {})()"]
)
LITERALS = VALUES.map(
    lambda text: text.replace("nan", "float('nan')").replace("inf", "float('inf')")
)
NAMES = st.sampled_from(
    [
        *("proxy", "download_slot", "download_timeout", "download_maxsize", "download_latency"),
        *("max_retry_times", "retry_times", "priority_adjust", "give_up_log_level", "dont_retry"),
        *("cookiejar", "depth", "is_start_request", "dont_redirect", "redirect_times"),
        *("handle_httpstatus_list", "dont_cache", "dont_merge_cookies", "_auth_proxy"),
        *("backpressure_history", "anything", ".priority", ".dont_filter", ".flags", ".cookies"),
        *(":X-Odd", ":Cookie", ".method"),
    ]
)


@settings(
    max_examples=6,
    phases=[Phase.explicit, Phase.generate],  # each is a crawl, so none is made smaller
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(odd=st.lists(st.tuples(NAMES, LITERALS), min_size=20, max_size=40), durable=st.booleans())
def test_no_value_in_a_request_is_worse_than_in_scrapy(
    site: Sites, crawl: Crawls, odd: list[tuple[str, str]], durable: bool
) -> None:
    where = site({"default": SITE})
    args = {"odd": odd, "base": where.url(""), "at_start": False}
    stock = crawl(SOURCE, {**SETTINGS, "ADDONS": None}, args=args, folder="stock")
    where.reset()
    more = {"SCHEDULER": "scrapy_backpressure.DurableScheduler"} if durable else {}
    ours = crawl(SOURCE, {**SETTINGS, **more}, args=args)
    assert_sound(ours, errors=True)
    found, expected = ends(ours), ends(stock)
    assert found.get(-1) == [200]
    # Each ends once, and what Scrapy fetches is fetched.
    assert Counter({n: len(found.get(n, [])) for n in range(len(odd))}) == Counter(
        range(len(odd))
    ), ours.log[-3000:]
    worse = {
        (odd[number], tuple(told), tuple(found[number]))
        for number, told in expected.items()
        if number >= 0 and told == [200] != found[number]
    }
    assert worse == set()
