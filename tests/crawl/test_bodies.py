"""Bodies that break off, or cannot be decoded, are failed downloads; nothing that Scrapy hands out
is lost for it."""

from __future__ import annotations

import base64
import gzip
import textwrap
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from scrapy.utils import _compression

from tests.crawl.audit import assert_sound
from tests.crawl.conftest import Crawls, Sites

PAGE = b"<html><body>" + bytes(48 + (i * i * 31 + (i >> 3) * 17) % 64 for i in range(4000))
SETTINGS = {"RETRY_TIMES": 2, "BACKPRESSURE_BACKOFF_BASE": 0.02}
SOURCE = """
class Pages(Spider):
    name = "pages"

    async def start(self):
        for name, url in self.urls.items():
            meta = self.metas.get(name, {}) if hasattr(self, "metas") else {}
            yield Request(url, meta={"name": name, **meta}, errback=self.failed)

    def parse(self, response):
        size, partial = len(response.body), "partial" in response.flags
        yield {"name": response.meta["name"], "size": size, "partial": partial}

    def failed(self, failure):
        yield {"name": failure.request.meta["name"], "error": type(failure.value).__name__}
"""


def encoders() -> dict[str, Callable[[bytes], bytes]]:
    found: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
    if (brotli := getattr(_compression, "brotli", None)) is not None:
        found["br"] = brotli.compress
    if (zstd := getattr(_compression, "zstd", None)) is not None:
        found["zstd"] = zstd.compress
    elif (zstandard := getattr(_compression, "zstandard", None)) is not None:
        found["zstd"] = zstandard.ZstdCompressor().compress
    return found


CODINGS = encoders()


def answer(path: str, coding: str, body: bytes, **more: Any) -> dict[str, Any]:
    """A fault: *body* is what *path* answers, said to be in *coding*."""
    return {
        "match": path,
        "status": 200,
        "headers": {"Content-Encoding": coding},
        "body": base64.b64encode(body).decode(),
        "base64": True,
        **more,
    }


def cut(coding: str) -> bytes:
    whole = CODINGS[coding](PAGE)
    return whole[: len(whole) // 2]


def broken(coding: str) -> dict[str, bytes]:
    """Bodies that are no pages, by what is wrong with them."""
    whole = CODINGS[coding](PAGE)
    return {
        "cut": cut(coding),
        "cut in its head": whole[:5],
        "not encoded": b"<html>502 from somewhere</html>",
        "broken": whole[:300] + b"\xff\x00\xff\xaa" * 8 + whole[332:],
    }


@pytest.mark.parametrize("coding", CODINGS)
def test_body_that_is_no_page_is_retried(site: Sites, crawl: Crawls, coding: str) -> None:
    names = list(broken(coding))
    if coding in ("br", "zstd"):  # without a checksum, what is changed decodes to something
        names.remove("broken")
    paths = {name: f"/page/{n}" for n, name in enumerate(names)}
    whole = CODINGS[coding](PAGE)
    faults = [answer(paths[name], coding, broken(coding)[name], times=1) for name in names]
    faults += [answer(path, coding, whole) for path in paths.values()]
    where = site(faults=faults)
    urls = {name: where.url(path) for name, path in paths.items()}
    result = assert_sound(crawl(SOURCE, SETTINGS, args={"urls": urls}))
    assert {item["name"]: item.get("size") for item in result.items} == dict.fromkeys(
        names, len(PAGE)
    )
    assert {name: len(where.times(path)) for name, path in paths.items()} == dict.fromkeys(
        names, 2
    )


@pytest.mark.parametrize("coding", CODINGS)
def test_body_that_always_breaks_off_is_handed_out_in_the_end(
    site: Sites, crawl: Crawls, coding: str
) -> None:
    where = site(faults=[answer("/page/0", coding, cut(coding))])
    args = {"urls": {"cut": where.url("/page/0")}}
    stock = crawl(SOURCE, {**SETTINGS, "ADDONS": None}, args=args, folder="stock")
    where.reset()
    result = assert_sound(crawl(SOURCE, SETTINGS, args=args), errors=True)
    assert result.items == [{**item, "partial": True} for item in stock.items] != []
    assert (where.stats()["hits"], result.dead_letters) == (3, [])
    assert result.stat("backpressure/bodies/incomplete") == 3
    assert result.stat("backpressure/bodies/partial") == 1


@pytest.mark.parametrize("coding", CODINGS)
def test_body_that_can_never_be_decoded_is_an_error_and_one_letter(
    site: Sites, crawl: Crawls, coding: str
) -> None:
    where = site(faults=[answer("/page/0", coding, b"<html>502</html>")])
    args = {"urls": {"plain": where.url("/page/0")}}
    stock = crawl(SOURCE, {**SETTINGS, "ADDONS": None}, args=args, folder="stock")
    where.reset()
    result = assert_sound(crawl(SOURCE, SETTINGS, args=args), errors=True)
    assert result.items == stock.items != []
    (letter,) = result.dead_letters
    assert (where.stats()["hits"], letter["reason"], letter["outcome"]) == (3, "retries", "failed")
    assert {attempt["reason"] for attempt in letter["attempts"]} == {stock.items[0]["error"]}


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(PAGE)[:-8]),
        ("gzip", gzip.compress(PAGE)[:-3]),
        ("gzip", gzip.compress(PAGE)[:-8] + b"????????"),
        ("deflate", zlib.compress(PAGE)[:-4]),
        ("gzip", b""),
        ("br", b""),
    ],
    ids=["no trailer", "half a trailer", "wrong trailer", "deflate", "empty gzip", "empty br"],
)
def test_body_that_has_all_its_content_is_a_page_at_once(
    site: Sites, crawl: Crawls, coding: str, body: bytes
) -> None:
    where = site(faults=[answer("*", coding, body)])
    args = {"urls": {str(n): where.url(f"/page/{n}") for n in range(3)}}
    stock = crawl(SOURCE, {**SETTINGS, "ADDONS": None}, args=args, folder="stock")
    where.reset()
    result = assert_sound(crawl(SOURCE, SETTINGS, args=args))
    expected = sorted(map(str, stock.items))
    assert (sorted(map(str, result.items)), where.stats()["hits"]) == (expected, 3)


def test_part_that_was_asked_for_is_a_page_at_once(site: Sites, crawl: Crawls) -> None:
    where = site(faults=[answer("*", "gzip", cut("gzip"), status=206)])
    result = assert_sound(crawl(SOURCE, SETTINGS, args={"urls": {"part": where.url("/page/0")}}))
    assert (len(result.items), result.items[0]["partial"], where.stats()["hits"]) == (1, False, 1)


def test_body_that_may_not_be_retried_is_handed_out_at_once(site: Sites, crawl: Crawls) -> None:
    where = site(faults=[answer("*", "gzip", cut("gzip"))])
    args = {"urls": {"cut": where.url("/page/0")}, "metas": {"cut": {"dont_retry": True}}}
    result = assert_sound(crawl(SOURCE, SETTINGS, args=args), errors=True)
    assert [item["partial"] for item in result.items] == [True]
    assert (where.stats()["hits"], result.dead_letters) == (1, [])


@pytest.mark.parametrize("coding", CODINGS)
def test_cache_keeps_no_body_that_breaks_off(site: Sites, crawl: Crawls, coding: str) -> None:
    whole = answer("/page/0", coding, CODINGS[coding](PAGE))
    where = site(faults=[answer("/page/0", coding, cut(coding), times=1), whole])
    settings = {**SETTINGS, "HTTPCACHE_ENABLED": True}
    args = {"urls": {"page": where.url("/page/0")}}
    first = assert_sound(crawl(SOURCE, settings, args=args))
    second = assert_sound(crawl(SOURCE, settings, args=args))
    assert [item["size"] for item in first.items + second.items] == [len(PAGE)] * 2
    assert where.stats()["hits"] == 2


def test_decoder_of_the_users_own_is_watched_as_well(site: Sites, crawl: Crawls) -> None:
    source = """
    from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware

    class Slow(HttpCompressionMiddleware):
        async def process_response(self, request, response):
            return super().process_response(request, response)
    """
    whole = answer("*", "gzip", gzip.compress(PAGE))
    where = site(
        faults=[
            answer("/page/0", "gzip", cut("gzip"), times=1),
            answer("/page/1", "gzip", b"<html>", times=1),
            whole,
        ]
    )
    settings = {
        **SETTINGS,
        "DOWNLOADER_MIDDLEWARES": {
            "scrapy.downloadermiddlewares.httpcompression.HttpCompressionMiddleware": None,
            "spider_under_test.Slow": 590,
        },
    }
    args = {"urls": {str(n): where.url(f"/page/{n}") for n in range(2)}}
    result = assert_sound(crawl(textwrap.dedent(source) + SOURCE, settings, args=args))
    assert [item["size"] for item in result.items] == [len(PAGE)] * 2
    assert where.stats()["hits"] == 4
