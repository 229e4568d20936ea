"""What the site has to show: pages, lists, sitemaps, nested links, images, tables."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import parse_qsl, urlsplit

HTML = "text/html; charset=utf-8"
_SENTENCE = "The quick brown fox jumps over the lazy dog and reads the next page. "
_CHALLENGE = """<!DOCTYPE html><html><head><title>Just a moment...</title></head><body>
<h1>Checking that you are human</h1>
<script>window._cf_chl_opt = {cType: "managed"};</script></body></html>
"""


@dataclass(frozen=True, slots=True)
class Page:
    """A status, the type and the bytes of a body, and headers beside Content-Type."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: *target* is path and query; *base* the URL of the host it was sent to."""

    method: str
    target: str
    base: str
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""


def challenge_page() -> Page:
    """Return the page that asks for proof of being human (its status is the fault's)."""
    headers = (("Server", "cloudflare"), ("cf-mitigated", "challenge"))
    return Page(403, HTML, _CHALLENGE.encode(), headers)


def text_page(status: int, text: str) -> Page:
    """Return *text* as a page; it is taken for JSON or HTML when it looks like that."""
    start = text.lstrip()[:1]
    kind = {"{": "application/json", "[": "application/json", "<": HTML}.get(
        start, "text/plain; charset=utf-8"
    )
    return Page(status, kind, text.encode())


def find_page(asked: Asked) -> Page:
    """Return the page for a request; a 404 when there is none.

    ``/page/N`` (``?next``: links to N+1; ``?size=BYTES``), ``/list?n=100&start=0``,
    ``/sitemap_index.xml?children=3&pages=100``, ``/links/?width=5&depth=3``, ``/image/N.png``,
    ``/csv/N`` (N rows), ``/echo`` (what was asked, as JSON), ``/status/CODE``,
    ``/redirect?to=URL``, ``/robots.txt``.
    """
    parts = urlsplit(asked.target)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    first, *rest = parts.path.strip("/").split("/")
    try:
        if first == "page":
            return _page(int(rest[0]), query)
        if first == "list":
            return _list(int(query.get("start", 0)), int(query.get("n", 100)))
        if first == "sitemap_index.xml":
            return _sitemap_index(asked.base, int(query.get("children", 3)), query)
        if first == "sitemap":
            return _sitemap(asked.base, int(rest[0].removesuffix(".xml")), query)
        if first == "links":
            return _links(rest, query, parts.query)
        if first == "image":
            return _image(int(rest[0].removesuffix(".png")))
        if first == "csv":
            return _csv(int(rest[0]))
        if first == "echo":
            return _echo(asked)
        if first == "status":
            return text_page(int(rest[0]), f"Status {int(rest[0])}.\n")
        if first == "redirect":
            return Page(302, HTML, b"", (("Location", query["to"]),))
        if first == "robots.txt":
            return text_page(200, "User-agent: *\nAllow: /\n")
        if first == "":
            return _html("The flaky site", '<a href="/list">pages</a> <a href="/links/">links</a>')
    except (IndexError, KeyError, ValueError):
        pass
    return _html("Not found", "There is no such page.", status=404)


def _html(title: str, content: str, *, status: int = 200) -> Page:
    text = (
        f"<!DOCTYPE html><html><head><title>{title}</title></head>"
        f"<body><h1>{title}</h1>\n{content}\n</body></html>\n"
    )
    return Page(status, HTML, text.encode())


def _page(number: int, query: dict[str, str]) -> Page:
    size = int(query.get("size", 700))
    content = f"<p>{_SENTENCE * (size // len(_SENTENCE) + 1)}</p>"
    if "next" in query:
        content += f'\n<a class="next" href="/page/{number + 1}?next">next</a>'
    return _html(f"Page {number}", content)


def _list(start: int, count: int) -> Page:
    links = (f'<a href="/page/{n}">Page {n}</a>' for n in range(start, start + count))
    return _html("All pages", "<br>\n".join(links))


def _xml(root: str, item: str, urls: Iterable[str]) -> Page:
    inside = "\n".join(f"<{item}><loc>{escape(url)}</loc></{item}>" for url in urls)
    space = "http://www.sitemaps.org/schemas/sitemap/0.9"
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} xmlns="{space}">{inside}</{root}>\n'
    return Page(200, "application/xml", text.encode())


def _sitemap_index(base: str, children: int, query: dict[str, str]) -> Page:
    pages = int(query.get("pages", 100))
    urls = (f"{base}/sitemap/{child}.xml?pages={pages}" for child in range(children))
    return _xml("sitemapindex", "sitemap", urls)


def _sitemap(base: str, child: int, query: dict[str, str]) -> Page:
    pages = int(query.get("pages", 100))
    numbers = range(child * pages, (child + 1) * pages)
    return _xml("urlset", "url", (f"{base}/page/{number}" for number in numbers))


def _links(steps: list[str], query: dict[str, str], raw_query: str) -> Page:
    """A tree of pages: each links to *width* others, *depth* levels deep."""
    here = "/".join(step for step in steps if step)
    level = here.count("/") + 1 if here else 0
    links = ""
    if level < int(query.get("depth", 3)):
        prefix = f"/links/{here}/" if here else "/links/"
        suffix = f"?{escape(raw_query)}" if raw_query else ""
        links = "<br>\n".join(
            f'<a href="{prefix}{n}{suffix}">{n}</a>' for n in range(int(query.get("width", 5)))
        )
    return _html(f"Links {escape(here) or 'start'}", f"<p>{_SENTENCE * 5}</p>\n{links}")


def _image(number: int) -> Page:
    """A PNG of 16 × 16 pixels, in a colour of its own."""
    colour = bytes(((number * 37) % 256, (number * 91) % 256, (number * 53) % 256))
    rows = (b"\x00" + colour * 16) * 16
    header = struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    body = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return Page(200, "image/png", body)


def _csv(rows: int) -> Page:
    lines = ["id,path", *(f"{row},/page/{row}" for row in range(rows))]
    return Page(200, "text/csv; charset=utf-8", ("\n".join(lines) + "\n").encode())


def _echo(asked: Asked) -> Page:
    told = {
        "method": asked.method,
        "target": asked.target,
        "headers": [list(pair) for pair in asked.headers],
        "body": asked.body.decode("utf-8", "replace"),
    }
    return Page(200, "application/json", json.dumps(told).encode())
