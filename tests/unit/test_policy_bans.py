from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.http import HtmlResponse
from scrapy.settings import Settings
from scrapy.utils import _compression

from scrapy_backpressure.control.markers import take_apart
from scrapy_backpressure.control.outcome import Outcome, Verdict
from scrapy_backpressure.policy import OutcomePolicy

HTML = {"Content-Type": "text/html; charset=utf-8"}
GOOD_PAGE = b"<html><head><title>Shop</title></head><body>" + b"<p>a thing to buy</p>" * 50


def judge(
    status: int = 200,
    body: bytes = b"",
    headers: dict[str, Any] | None = None,
    *,
    url: str = "https://example.com/page",
) -> Verdict:
    response = HtmlResponse(url, status=status, headers=headers, body=body)
    return OutcomePolicy(Settings()).classify_response(Request(url), response)


def page(title: str, body: str = "", *, padding: int = 0) -> bytes:
    filler = "<p>some words</p>" * (padding // 17)
    return f"<html><head><title>{title}</title></head><body>{body}{filler}</body>".encode()


@pytest.mark.parametrize(
    ("vendor", "status", "headers", "body"),
    [
        ("cloudflare", 403, {"cf-mitigated": "challenge"}, b""),
        ("cloudflare", 503, {}, page("Just a moment...")),
        ("cloudflare", 403, {}, page("Attention Required! | Cloudflare")),
        ("cloudflare", 403, {}, b"<script>window._cf_chl_opt={}</script>"),
        ("cloudflare", 429, {"Server": "cloudflare"}, b"error code: 1015"),
        ("cloudflare", 403, {}, b'<span class="cf-error-code">1020</span>'),
        ("datadome", 403, {"X-DD-B": "1"}, b""),
        ("datadome", 403, {}, b'{"url":"https://geo.captcha-delivery.com/captcha/"}'),
        ("perimeterx", 403, {}, page("Access to this page has been denied.")),
        ("perimeterx", 403, {}, b"<script>window._pxAppId='PX1'</script>"),
        ("perimeterx", 403, {}, b"<div id='px-captcha'>"),
        ("imperva", 403, {}, b"Request unsuccessful. Incapsula incident ID: 1-2"),
        ("imperva", 403, {"X-Iinfo": "1-2-3"}, b"<p>Pardon Our Interruption</p>"),
        ("akamai", 403, {"Server": "AkamaiGHost"}, b""),
        ("akamai", 403, {}, page("Access Denied", "Reference #18.2f")),
        ("akamai", 403, {}, page("Access Denied", "Reference&#32;&#35;18&#46;2f")),
        ("aws-waf", 202, {"x-amzn-waf-action": "challenge"}, b""),
        ("aws-waf", 405, {"x-amzn-waf-action": "captcha"}, b""),
        ("kasada", 429, {"x-kpsdk-ct": "abc"}, b""),
        ("sucuri", 403, {"X-Sucuri-Block": "geo"}, b""),
        ("ddos-guard", 403, {"Server": "ddos-guard"}, b""),
        ("vercel", 403, {"x-vercel-mitigated": "challenge"}, b""),
        ("linkedin", 999, {}, b""),
        ("anubis", 401, HTML, b'<script id="anubis_challenge" type="application/json">'),
        ("google", 429, {}, b"detected unusual traffic from your computer network."),
        ("amazon", 200, HTML, b'<form method="get" action="/errors/validateCaptcha">'),
        ("amazon", 503, {}, page("Robot Check")),
    ],
)
def test_marks_of_a_vendor_are_a_ban(
    vendor: str, status: int, headers: dict[str, str], body: bytes
) -> None:
    verdict = judge(status, body, headers)
    assert (verdict.outcome, verdict.reason) == (Outcome.BLOCKED, vendor)


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (403, {"Server": "cloudflare"}, page("Members only")),
        (200, {"Server": "cloudflare", "Set-Cookie": "cf_clearance=1"}, GOOD_PAGE),
        (404, {"Server": "cloudflare"}, b"error code: 1015"),
        (200, {"X-Datadome": "protected"}, GOOD_PAGE),
        (200, HTML, page("Shop", "<script src='//js.captcha-delivery.com/x'></script>")),
        (200, HTML, page("Shop", "<script>window._pxAppId='PX1'</script>")),
        (200, {"X-Iinfo": "1-2-3"}, GOOD_PAGE),
        (403, {"X-Iinfo": "1-2-3"}, page("Members only")),
        (403, {"Set-Cookie": "_abck=1"}, page("Access Denied")),
        (200, {"x-kpsdk-ct": "abc"}, GOOD_PAGE),
        (200, {"Server": "ddos-guard"}, GOOD_PAGE),
        (200, HTML, page("What to do when a site says Just a minute")),
        (200, HTML, page("Blog", "The title says: just a moment... and nothing comes")),
        (200, HTML, page("Shop", '<a href="/errors/validateCaptcha">', padding=60_000)),
        (200, {"Content-Type": "application/json"}, b'"/errors/validateCaptcha"'),
    ],
)
def test_one_weak_mark_is_no_ban(status: int, headers: dict[str, str], body: bytes) -> None:
    assert judge(status, body, headers).outcome in (Outcome.ACCEPTED, Outcome.NEUTRAL)


CHALLENGES = {
    "cloudflare": page(
        "Just a moment...",
        "<noscript>Enable JavaScript and cookies to continue</noscript>"
        "<script>(function(){window._cf_chl_opt = {cvId: '3'};})();</script>",
    ),
    "datadome": page(
        "shop.example",
        '<p id="cmsg">Please enable JS and disable any ad blocker</p>'
        "<script>var dd={'rt':'c','host':'geo.captcha-delivery.com'}</script>",
    ),
    "perimeterx": page(
        "Access to this page has been denied",
        "<script>window._pxAppId = 'PX1';</script><div id='px-captcha'></div>",
    ),
    "imperva": page(
        "",
        '<iframe src="/_Incapsula_Resource?CWUDNSAI=9">Request unsuccessful. '
        "Incapsula incident ID: 12-34</iframe>",
    ),
    "anubis": page(
        "Making sure you&#39;re not a bot!",
        '<script id="anubis_challenge" type="application/json">{"rules":{}}</script>',
    ),
    "google": page(
        "https://site.example/",
        "Our systems have detected unusual traffic from your computer network."
        '<form action="/sorry/index"></form>',
    ),
    "amazon": page(
        "Robot Check", "<p>Type the characters you see in this image</p><input id=captcha>"
    ),
}
"""Pages with status 200 of those that refuse, shortened."""


@pytest.mark.parametrize("vendor", CHALLENGES)
def test_challenge_with_status_200_is_a_ban(vendor: str) -> None:
    verdict = judge(200, CHALLENGES[vendor], HTML)
    assert (verdict.outcome, verdict.reason) == (Outcome.BLOCKED, vendor)


@pytest.mark.parametrize("vendor", CHALLENGES)
def test_page_with_text_is_no_challenge(vendor: str) -> None:
    body = CHALLENGES[vendor].replace(b"</body>", b"<p>a thing to read</p>" * 200 + b"</body>")
    assert judge(200, body, HTML).outcome is Outcome.ACCEPTED


@pytest.mark.parametrize(
    "body",
    [
        page("t", "<p>_cf_chl_opt and cf_clearance, explained</p>"),
        page("How Cloudflare says Just a moment...", "<code>window._cf_chl_opt</code>"),
        page("Just a moment... and other titles", "<p>They set _cf_chl_opt.</p>"),
        page("t", "<script>track('_cf_chl_opt')</script><p>Welcome</p>"),
        page("t", "<p>Look for captcha-delivery.com, px-captcha, window._pxAppId</p>"),
        page("Pardon Our Interruption: a film"),
        page("Robot Check", "<p>We check robots.</p>"),
        page("Access to this page has been denied, a novel"),
        page("t", "<p>unusual traffic from your computer network, and how it gets to /sorry/</p>"),
        page("t", "<a href='/errors/validateCaptcha'>a link</a>"),
        page("Access Denied: a novel"),
        b"<!-- _cf_chl_opt <title>Just a moment...",
        b"<title",
    ],
)
def test_small_page_that_speaks_of_challenges_is_a_page(body: bytes) -> None:
    assert judge(200, body, HTML).outcome is Outcome.ACCEPTED


@given(st.text("<>/!-scripttle abc_-", max_size=200))
def test_any_page_is_taken_apart_without_an_error(text: str) -> None:
    page = f"{text}<script>_cf_chl_opt".encode()
    code, visible, _ = take_apart(page)
    assert len(code) + len(visible) >= len(page.replace(b"<", b"")) - len(text)


def test_challenge_with_status_429_is_a_ban() -> None:
    headers = {"cf-mitigated": "challenge", "Retry-After": "9", **HTML}
    verdict = judge(429, page("Just a moment..."), headers)
    assert verdict == Verdict(Outcome.BLOCKED, "cloudflare", 9.0)


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("https://www.google.co.uk/search?q=1", "/sorry/index?continue=x"),
        ("https://example.com/page", "https://www.google.com/sorry/index"),
    ],
)
def test_redirect_to_a_page_that_refuses_is_a_ban(url: str, location: str) -> None:
    verdict = judge(302, headers={"Location": location}, url=url)
    assert (verdict.outcome, verdict.reason) == (Outcome.BLOCKED, "google")


def test_429_of_a_page_that_refuses_is_a_ban() -> None:
    verdict = judge(429, url="https://www.google.com/sorry/index?q=1")
    assert (verdict.outcome, verdict.reason) == (Outcome.BLOCKED, "google")


@pytest.mark.parametrize(
    "location", ["/login?next=/sorry/", "http://[/sorry/", "/sorry/gone", "http://google/"]
)
def test_other_redirect_is_no_ban(location: str) -> None:
    assert judge(302, headers={"Location": location}).outcome is Outcome.NEUTRAL


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", raw_deflate)],
)
@pytest.mark.parametrize("status", [200, 503])
def test_marks_are_found_in_a_compressed_body(encoding: str, compress: Any, status: int) -> None:
    headers = {"Content-Encoding": encoding, **HTML}
    body = compress(CHALLENGES["amazon"])
    assert judge(status, body, headers).reason == "amazon"


def test_marks_are_found_in_a_brotli_body() -> None:
    brotli = pytest.importorskip("brotli")
    headers = {"Content-Encoding": "br"}
    assert judge(503, brotli.compress(page("Robot Check")), headers).reason == "amazon"


def test_marks_are_found_in_a_zstd_body() -> None:
    library = getattr(_compression, "zstd", None) or getattr(_compression, "zstandard", None)
    if library is None:
        pytest.skip("no library for zstd")
    headers = {"Content-Encoding": "zstd"}
    assert judge(503, library.compress(page("Robot Check")), headers).reason == "amazon"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_mark_in_a_page_that_is_large_once_decoded_is_no_ban(encoding: str) -> None:
    compress = gzip.compress if encoding == "gzip" else zlib.compress
    body = compress(page("Shop", '<a href="/errors/validateCaptcha">', padding=60_000))
    headers = {"Content-Encoding": encoding, **HTML}
    assert judge(200, body, headers).outcome is Outcome.ACCEPTED
