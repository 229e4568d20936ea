from __future__ import annotations

import json
import pickle
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from itemadapter import ItemAdapter
from scrapy import FormRequest, Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import Headers, JsonRequest, Response, XmlRpcRequest
from scrapy.utils.test import get_crawler

from scrapy_backpressure.control.outcome import Outcome
from scrapy_backpressure.deadletter import DeadLetter
from scrapy_backpressure.storage.codec import JsonRecord, clean_text, decode, encode, is_plain


class Pages(Spider):
    name = "pages"

    def parse_page(self, response):
        pass

    def failed(self, failure):
        pass

    @staticmethod
    def static(response):
        pass

    def __private(self, response):
        pass

    def private(self):
        return self.__private


class Tagged(Request):
    attributes: tuple[str, ...] = (*Request.attributes, "tag")

    def __init__(self, *args: Any, tag: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tag = tag


@pytest.fixture
def spider() -> Pages:
    return Pages()


@pytest.fixture(scope="module")
def crawler() -> Crawler:
    crawler = get_crawler(Pages)
    crawler.spider = crawler._create_spider()
    return crawler


def assert_same(request: Request, other: Request) -> None:
    assert type(other) is type(request)
    for name in request.attributes:
        assert getattr(other, name) == getattr(request, name), name


class TestRoundTrip:
    @pytest.mark.parametrize(
        "request_",
        [
            Request("http://a.example/?q=%20#x", headers={"A": ["1", "2"]}, cookies={"c": "d"}),
            Request("http://a.example/", meta={"depth": 2, "any": {1: {2}}}, cb_kwargs={"n": 1}),
            Request("http://a.example/", method="PUT", body=b"\xff\x00", priority=-3, flags=["f"]),
            JsonRequest("http://a.example/", data={"b": 1}, dumps_kwargs={"indent": 1}),
            XmlRpcRequest("http://a.example/", methodname="call", params=(1, "a")),
            Tagged("http://a.example/", tag="kept"),
        ],
        ids=lambda request: type(request).__name__,
    )
    def test_every_attribute_comes_back(self, spider, request_):
        assert_same(request_, decode(encode(request_, spider), spider))

    @pytest.mark.filterwarnings("ignore:.*FormRequest is deprecated")  # by Scrapy 2.16 alone
    @pytest.mark.parametrize("method", ["GET", "POST"])
    def test_a_form_comes_back(self, spider, method):
        form = {"user": "me", "list": ["1", "2"]}
        request = FormRequest("http://a.example/?old=1", method=method, formdata=form)
        assert_same(request, decode(encode(request, spider), spider))

    def test_callbacks_are_methods_of_the_spider_at_hand(self, spider):
        data = encode(
            Request("http://a.example/", callback=spider.parse_page, errback=spider.failed), spider
        )
        other = Pages()
        request = decode(data, other)
        assert request.callback == other.parse_page
        assert request.errback == other.failed

    def test_a_private_method_is_found_again(self, spider):
        data = encode(Request("http://a.example/", callback=spider.private()), spider)
        assert decode(data, spider).callback == spider.private()

    @given(
        st.dictionaries(st.text(), st.one_of(st.text(), st.integers(), st.binary()), max_size=5),
        st.binary(),
    )
    def test_meta_and_body_come_back(self, meta, body):
        meta.pop("verbatim_url", None)
        spider = Pages()
        request = Request("http://a.example/", method="POST", meta=meta, body=body)
        assert_same(request, decode(encode(request, spider), spider))


_a_lambda: Any = lambda response: None  # noqa: E731 - it is lambdas that are refused


class _Other:
    def method(self, failure: Any) -> None: ...


class TestRefusal:
    def test_a_lambda_is_refused_with_the_reason(self, spider):
        with pytest.raises(ValueError, match=r"<GET http://a.example/> cannot be written.*lambda"):
            encode(Request("http://a.example/", callback=_a_lambda), spider)

    def test_a_method_of_another_object_is_refused(self, spider):
        with pytest.raises(ValueError, match="not an instance method"):
            encode(Request("http://a.example/", errback=_Other().method), spider)

    def test_what_cannot_be_pickled_is_refused_with_the_reason(self, spider):
        with pytest.raises(ValueError, match=r"cannot pickle '_thread.lock'"):
            encode(Request("http://a.example/", meta={"lock": threading.Lock()}), spider)

    def test_a_class_that_could_not_be_found_again_is_refused(self, spider):
        class Local(Request):
            pass

        with pytest.raises(ValueError, match="Local"):
            encode(Local("http://a.example/"), spider)

    def test_a_method_that_is_gone_is_named(self, spider):
        data = encode(Request("http://a.example/", callback=spider.parse_page), spider)
        with pytest.raises(ValueError, match="parse_page"):
            decode(data, Spider(name="other"))

    def test_the_request_that_cannot_be_restored_is_told_without_credentials(self, spider):
        url = "http://user:secret@a.example/page"
        data = encode(Request(url, callback=spider.parse_page), spider)
        with pytest.raises(ValueError, match=r"\(http://a\.example/page\)") as told:
            decode(data, Spider(name="other"))
        assert "secret" not in str(told.value)

    @pytest.mark.parametrize("data", [b"", b"no pickle", pickle.dumps(3), pickle.dumps({})])
    def test_damaged_bytes_are_a_value_error(self, spider, data):
        with pytest.raises(ValueError, match="cannot be restored"):
            decode(data, spider)


class TestPlain:
    @pytest.mark.parametrize(
        "value", [None, True, 1, 1.5, "text", b"bytes", (1, ("a",)), frozenset({1})]
    )
    def test_immutable_values_are_plain(self, value):
        assert is_plain(Request("http://a.example/", meta={"key": value}, cb_kwargs={"k": value}))

    @pytest.mark.parametrize("value", [[], {}, {1}, object(), ([],), bytearray(b"")])
    def test_anything_else_in_meta_is_not(self, value):
        assert not is_plain(Request("http://a.example/", meta={"key": value}))

    def test_nor_in_cb_kwargs(self):
        assert not is_plain(Request("http://a.example/", cb_kwargs={"item": {}}))

    def test_keys_of_scrapy_and_of_this_package_do_not_count(self):
        meta = {"handle_httpstatus_list": [404], "backpressure_history": {"attempts": []}}
        assert is_plain(Request("http://a.example/", meta=meta))


class TestJsonRecord:
    @pytest.mark.parametrize(
        "value", [None, True, 3, -(2**70), 1.5, "ü\x00", [1, [2]], {"a": {"b": None}}]
    )
    def test_what_json_holds_is_unchanged(self, value):
        record = JsonRecord(secrets=False)
        assert record.value(value, "meta") == value
        assert not record.dropped

    @pytest.mark.parametrize(
        "value",
        [b"", {1}, object(), float("nan"), float("inf"), "\ud800", 10**5000, 1j],
        ids=["bytes", "set", "object", "nan", "inf", "surrogate", "huge", "complex"],
    )
    def test_what_json_cannot_hold_is_named(self, value):
        record = JsonRecord(secrets=False)
        assert record.value({"kept": 1, "lost": value}, "meta") == {"kept": 1}
        assert list(record.dropped) == ["meta.lost"]

    def test_the_place_in_a_list_stays(self):
        record = JsonRecord(secrets=False)
        assert record.value([1, {2}, 3], "rows") == [1, None, 3]
        assert list(record.dropped) == ["rows[1]"]

    def test_a_key_that_is_no_text_is_named(self):
        record = JsonRecord(secrets=False)
        assert record.value({1: "a"}, "meta") == {}
        assert list(record.dropped) == ["meta[1]"]

    def test_a_structure_that_contains_itself_ends(self):
        loop: list[Any] = []
        loop.append(loop)
        record = JsonRecord(secrets=False)
        json.dumps(record.value(loop, "meta"))
        assert len(record.dropped) == 1

    @pytest.mark.parametrize(
        "url",
        [
            "http://a.example/?user=me:you&mail=me@a.example",
            "http://a.example/@me?next=http://b.example/@you",
            "mailto:me@a.example",
            "https://a.example/cookie:policy?set-cookie:a=b",
        ],
    )
    def test_a_url_without_credentials_is_unchanged(self, url):
        record = JsonRecord(secrets=False)
        assert record.value({"link": url}, "meta") == {"link": url}

    @pytest.mark.parametrize(
        "text", ["Cookie: the story", "cookies, chocolate", "the author: me@a.example"]
    )
    def test_a_title_is_no_header(self, text):
        assert JsonRecord(secrets=False).value(text, "meta.title") == text

    @pytest.mark.parametrize(
        ("proxy", "clean"),
        [
            ("http://me:secret@p.example:8080", "http://p.example:8080"),
            ("me:secret@p.example:8080", "p.example:8080"),
            ("http://me:s/e?c#r@et@p.example:8080", "http://p.example:8080"),
            ("http://p.example:8080", "http://p.example:8080"),
        ],
    )
    def test_a_proxy_loses_its_credentials(self, proxy, clean):
        assert JsonRecord(secrets=False).proxy(proxy, "proxy") == clean

    @pytest.mark.parametrize(
        "text",
        [
            "connecting to http://me:SECRET@p.example:8080 failed",
            "connecting to me:SECRET@p.example:8080 failed",
            "http://api.example/?url=http%3A%2F%2Fme%3ASECRET%40b.example%2F failed",
            "Proxy-Authorization: Basic SECRET",
            "headers {b'Authorization': [b'Basic SECRET']}",
            "Cookie: session=SECRET; other=SECRET",
        ],
    )
    def test_an_error_message_loses_credentials(self, text):
        assert "SECRET" not in clean_text(text)

    @pytest.mark.parametrize("name", ["static", "failed", "_Pages__private"])
    def test_a_callback_is_named(self, spider, name):
        record = JsonRecord(secrets=False)
        assert record.method(spider, getattr(spider, name), "callback") == name

    @pytest.mark.parametrize("callback", [lambda _: None, print, Pages().parse_page])
    def test_a_callback_that_the_spider_has_not_is_dropped(self, spider, callback):
        record = JsonRecord(secrets=False)
        assert record.method(spider, callback, "callback") is None
        assert list(record.dropped) == ["callback"]

    def test_headers_that_are_not_text_are_dropped(self):
        record = JsonRecord(secrets=False)
        assert record.headers(Headers({"X": b"\xff", "Y": "1"}), "headers") == {"Y": ["1"]}
        assert list(record.dropped) == ["headers.X"]


def build(crawler: Crawler, request: Request, **kwargs: Any) -> DeadLetter:
    arguments = {"outcome": Outcome.FAILED, "reason": "503", "now": 1.0, **kwargs}
    return DeadLetter.build(request, crawler=crawler, **arguments)


class TestSecrets:
    """In a whole record: what is tested is that no part of it forgets to look."""

    def request(self) -> Request:
        return Request(
            "http://me:SECRET@a.example/?next=http%3A%2F%2Fme%3ASECRET%40b.example",
            headers={
                "Authorization": "Basic SECRET",
                "Proxy-Authorization": "SECRET",
                "Cookie": "SECRET=SECRET",
                "Referer": "http://me:SECRET@a.example/",
            },
            cookies={"a": "SECRET"},
            meta={"proxy": "http://me:SECRET@p:1", "http_pass": "SECRET", "depth": 0},
            flags=["via http://me:SECRET@p:1"],
        )

    def test_what_was_removed_is_named(self, crawler):
        letter = build(crawler, self.request())
        assert letter.dropped == [
            "url",
            "headers.Authorization",
            "headers.Proxy-Authorization",
            "headers.Cookie",
            "headers.Referer",
            "meta.proxy",
            "meta.http_pass",
            "flags[0]",
            "cookies",
        ]

    def test_what_surrounds_them_stays(self, crawler):
        request = build(crawler, self.request()).request
        assert request["url"] == "http://a.example/?next=http%3A%2F%2Fb.example"
        assert request["headers"] == {"Referer": ["http://a.example/"]}
        assert request["meta"] == {"proxy": "http://p:1", "depth": 0}

    def test_they_are_kept_when_they_are_wanted(self, crawler):
        letter = build(crawler, self.request(), secrets=True)
        assert letter.request["url"] == self.request().url
        assert letter.request["headers"]["Authorization"] == ["Basic SECRET"]
        assert letter.request["cookies"] == {"a": "SECRET"}
        assert letter.dropped == []

    def test_the_body_is_kept_as_it_is(self, crawler):
        body = "http://me:password@a.example/"
        letter = build(crawler, Request("http://a.example/", method="POST", body=body))
        assert letter.request["body"] == {"text": body}

    @settings(max_examples=150, deadline=None)
    @given(data=st.data())
    def test_no_credential_appears_in_the_record(self, crawler, data):
        secret = "S3CR3T"
        symbols = st.text("ab:@%!$&'()*+,;=-._~", max_size=4)
        word = st.text("abc-._~é1", min_size=1, max_size=6)
        password = f"{data.draw(symbols)}{secret}{data.draw(symbols)}"
        scheme = data.draw(st.sampled_from(["http", "https", "socks5", "ftp", "HTTP"]))
        tail = data.draw(st.sampled_from(["", "/", ":8080", "/p?q=1#f", "/@x?m=a@b.example"]))
        url = f"{scheme}://{data.draw(word)}:{password}@host.example{tail}"
        header = data.draw(
            st.sampled_from(["Authorization", "proxy-authorization", "COOKIE", "Set-Cookie"])
        )
        around = data.draw(st.sampled_from(["%s", "<%s>", "see %s now", '{"u": "%s"}', "a\n%s\n"]))
        text = around % url
        value = data.draw(
            st.recursive(
                st.sampled_from([text, url, f"{header}: Basic {secret}", 1]),
                lambda inner: st.one_of(
                    st.lists(inner, max_size=3),
                    st.dictionaries(st.sampled_from(["k", url, header]), inner, max_size=3),
                ),
                max_leaves=5,
            )
        )
        # A cookie in running text is one when it looks like one.
        value = json.loads(json.dumps(value).replace("ookie: Basic ", "ookie: a="))
        value = json.loads(json.dumps(value).replace("OOKIE: Basic ", "OOKIE: a="))
        attempt = {
            "time": 1.0,
            "status": None,
            "exception": f"ConnectError: {text} {header}: {secret}",
            "outcome": "failed",
            "reason": text,
            "proxy": url,
            "latency": None,
        }
        request = Request(
            "http://a.example/",
            headers={header: secret, "Referer": url.encode()},
            meta={
                "proxy": url,
                "value": value,
                header: secret,
            },
            cb_kwargs={"value": value},
            cookies={"a": secret},
            flags=[text],
        )
        request._set_url(url)
        response = Response(url, headers={"Set-Cookie": secret, "Location": url.encode()})
        letter = build(
            crawler,
            request,
            history={"attempts": [attempt]},
            response=response,
            reason=f"{text}: {header}={secret}",
        )
        assert secret not in json.dumps(ItemAdapter(letter).asdict())


class TestWhatWasSetLater:
    @pytest.mark.parametrize(("attribute", "value"), [("priority", 1.5), ("flags", 1.5)])
    def test_a_request_of_which_none_could_be_made_is_not_written(self, spider, attribute, value):
        request = Request("http://a.example/")
        setattr(request, attribute, value)
        with pytest.raises(ValueError, match="cannot be written to disk"):
            encode(request, spider)

    def test_a_header_that_is_no_text_is_not_written(self, spider):
        request = Request("http://a.example/")
        request.headers.setdefault("X-Odd", []).append(object())
        with pytest.raises(ValueError, match="cannot be written to disk"):
            encode(request, spider)
