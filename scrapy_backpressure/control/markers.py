"""The marks by which bans and challenges are known, as data.

A mark that good pages carry as well proves nothing alone: each has a weight, and an answer is
a ban when the weights of one vendor reach :data:`THRESHOLD`. Headers that a vendor sends with
a refusal and never otherwise decide alone.

A page with status 2xx is somebody's article until shown otherwise, and a wrong guess costs a page.
There a mark counts only where the vendor has it (a script is no text that speaks of it), each
counts as one sign, so that it takes two, and only in a page that has next to no text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

THRESHOLD = 2
"""Weight from which a vendor's marks prove a ban."""


MAX_NOTICE = 2000
"""Bytes of visible text that a challenge with status 2xx has at most."""

_HIDDEN = re.compile(rb"<(script|style|title|template)\b")


class Place(Enum):
    """Where in a page with status 2xx a mark is a sign."""

    TITLE = "title"
    """The title begins with it."""
    CODE = "code"
    """In a tag, a script or a comment."""
    TEXT = "text"
    """In what a reader sees, <noscript> included."""


@dataclass(frozen=True, slots=True)
class HeaderMark:
    """A header whose value contains ``value`` (lower case; empty: any value)."""

    name: str
    """Lower case."""
    value: str = ""
    weight: int = THRESHOLD
    statuses: tuple[int, ...] = ()
    """Where it counts; empty: with any status."""


@dataclass(frozen=True, slots=True)
class BodyMark:
    """Bytes in the lower-cased body."""

    text: bytes
    in_title: bool = False
    """Whether only the title of the page counts."""
    on_error: int = THRESHOLD
    """Weight in an answer with an error status."""
    on_page: Place | None = None
    """Where it is a sign in a page with status 2xx; None: it is none."""
    signs: int = 1
    """Weight of that sign."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """What one bot protection, or one site, sends to those it refuses."""

    name: str
    headers: tuple[HeaderMark, ...] = ()
    body: tuple[BodyMark, ...] = ()
    statuses: tuple[int, ...] = ()
    """Error statuses in which marks of the body count; empty: any from 400."""
    paths: tuple[str, ...] = ()
    """URL paths (their beginnings) of the page that refuses, or that a redirect leads to, on hosts
    that have the vendor's name in theirs."""
    always: tuple[int, ...] = ()
    """Statuses that nobody else uses: they decide alone."""


VENDORS: tuple[Vendor, ...] = (
    Vendor(
        "cloudflare",
        headers=(
            HeaderMark("cf-mitigated", "challenge"),
            HeaderMark("server", "cloudflare", weight=1, statuses=(403, 429, 503)),
        ),
        body=(
            BodyMark(b"just a moment...", in_title=True, on_page=Place.TITLE),
            BodyMark(b"attention required! | cloudflare", in_title=True, on_page=Place.TITLE),
            BodyMark(b"_cf_chl_opt", on_page=Place.CODE),
            BodyMark(b"enable javascript and cookies to continue", on_error=0, on_page=Place.TEXT),
            BodyMark(b"you have been blocked", on_error=0, on_page=Place.TEXT),
            BodyMark(b'cf-error-code">1015<'),
            BodyMark(b'cf-error-code">1020<'),
            BodyMark(b"error code: 1015", on_error=1),
            BodyMark(b"error code: 1020", on_error=1),
            BodyMark(b"error 1015", on_error=1),
            BodyMark(b"error 1020", on_error=1),
        ),
        statuses=(403, 429, 503),
    ),
    Vendor(
        "datadome",
        headers=(HeaderMark("x-dd-b", statuses=(401, 403, 405, 429)),),
        body=(
            BodyMark(b"captcha-delivery.com", on_page=Place.CODE),
            BodyMark(b"disable any ad blocker", on_error=0, on_page=Place.TEXT),
        ),
        statuses=(401, 403, 405, 429),
    ),
    Vendor(
        "perimeterx",
        body=(
            BodyMark(b"access to this page has been denied", in_title=True, on_page=Place.TITLE),
            BodyMark(b"window._pxappid", on_page=Place.CODE),
            BodyMark(b"px-captcha", on_page=Place.CODE),
        ),
        statuses=(403, 429),
    ),
    Vendor(
        "imperva",
        headers=(HeaderMark("x-iinfo", weight=1, statuses=(403, 429, 503)),),
        body=(
            BodyMark(b"incapsula incident id", on_page=Place.TEXT),
            BodyMark(b"pardon our interruption", in_title=True, on_page=Place.TITLE),
            BodyMark(b"pardon our interruption", on_error=1),
            BodyMark(b"made us think you", on_error=0, on_page=Place.TEXT),
            BodyMark(b"_incapsula_resource", on_error=1, on_page=Place.CODE),
        ),
    ),
    Vendor(
        "akamai",
        # The edge puts its own name there only when it answers in place of the site.
        headers=(HeaderMark("server", "akamaighost", statuses=(403,)),),
        body=(
            BodyMark(b"access denied", in_title=True, on_error=1),
            BodyMark(b"reference #", on_error=1),
            BodyMark(b"reference&#32;&#35;", on_error=1),
        ),
        statuses=(403,),
    ),
    Vendor(
        "aws-waf",
        headers=(
            HeaderMark("x-amzn-waf-action", "challenge"),
            HeaderMark("x-amzn-waf-action", "captcha"),
        ),
    ),
    Vendor("kasada", headers=(HeaderMark("x-kpsdk-ct", statuses=(403, 429)),)),
    Vendor("sucuri", headers=(HeaderMark("x-sucuri-block", statuses=(403,)),)),
    Vendor("ddos-guard", headers=(HeaderMark("server", "ddos-guard", statuses=(403,)),)),
    Vendor("vercel", headers=(HeaderMark("x-vercel-mitigated", "challenge"),)),
    Vendor("linkedin", always=(999,)),
    Vendor(
        "anubis",
        body=(
            BodyMark(b"anubis_challenge", on_page=Place.CODE),
            BodyMark(b"/.within.website/", on_error=0, on_page=Place.CODE),
            BodyMark(b"making sure you", on_error=0, on_page=Place.TITLE),
        ),
    ),
    Vendor(
        "google",
        body=(
            BodyMark(b"unusual traffic from your", on_error=1, on_page=Place.TEXT),
            BodyMark(b"computer network", on_error=1),
            BodyMark(b"/sorry/", on_error=1, on_page=Place.CODE),
        ),
        paths=("/sorry/",),
    ),
    Vendor(
        "amazon",
        body=(
            BodyMark(b"/errors/validatecaptcha"),
            # A form that goes there is the challenge itself.
            BodyMark(b'action="/errors/validatecaptcha', on_error=0, on_page=Place.CODE, signs=2),
            BodyMark(b"robot check", in_title=True, on_page=Place.TITLE),
            BodyMark(b"captchacharacters", on_error=0, on_page=Place.CODE),
            BodyMark(b"characters you see", on_error=0, on_page=Place.TEXT),
        ),
        paths=("/errors/validateCaptcha",),
    ),
)

MARKS_BY_HEADER: Mapping[str, tuple[tuple[str, HeaderMark], ...]] = MappingProxyType(
    {
        name: tuple(
            (vendor.name, mark)
            for vendor in VENDORS
            for mark in vendor.headers
            if mark.name == name
        )
        for name in sorted({mark.name for vendor in VENDORS for mark in vendor.headers})
    }
)
"""Header name to (vendor, mark) of all marks that look at it."""
VENDOR_BY_STATUS: Mapping[int, str] = MappingProxyType(
    {status: vendor.name for vendor in VENDORS for status in vendor.always}
)
"""Status that decides alone to vendor."""
VENDOR_BY_PATH: tuple[tuple[str, str], ...] = tuple(
    (path, vendor.name) for vendor in VENDORS for path in vendor.paths
)
"""(beginning of a URL path, vendor)."""


SIGNS: tuple[tuple[str, BodyMark], ...] = tuple(
    (vendor.name, mark) for vendor in VENDORS for mark in vendor.body if mark.on_page is not None
)
"""(vendor, mark) of all marks that are signs in a page with status 2xx."""


def signs_of_challenge(page: bytes) -> dict[str, int]:
    """The weights by vendor of the signs in *page*, the lower-case beginning of one with 2xx.

    Empty for a page with more text than a challenge has.
    """
    found = [(vendor, mark) for vendor, mark in SIGNS if mark.text in page]
    if not found:
        return {}
    code, text, title = take_apart(page)
    if len(b" ".join(text.split())) > MAX_NOTICE:
        return {}
    weights: dict[str, int] = {}
    for vendor, mark in found:
        if mark.on_page is Place.TITLE:
            there = title.startswith(mark.text)
        else:
            there = mark.text in (code if mark.on_page is Place.CODE else text)
        if there:
            weights[vendor] = weights.get(vendor, 0) + mark.signs
    return weights


def title_of(page: bytes) -> bytes:
    """The beginning of the title of a page in lower case."""
    start = page.find(b"<title")
    start = page.find(b">", start) + 1 if start >= 0 else 0
    return page[start : start + 256].partition(b"</title")[0].strip() if start else b""


def take_apart(page: bytes) -> tuple[bytes, bytes, bytes]:
    """Code (tags, scripts, styles, comments), visible text and title of a lower-case page.

    A page that breaks off within any of them ends there.
    """
    code: list[bytes] = []
    text: list[bytes] = []
    title = b""
    position = 0
    while (start := page.find(b"<", position)) >= 0:
        text.append(page[position:start])
        name = _HIDDEN.match(page, start)
        if page.startswith(b"<!--", start):
            end, closing = page.find(b"-->", start), 3
        elif name is not None:
            end, closing = page.find(b"</" + name[1], name.end()), 2 + len(name[1])
        else:
            end, closing = page.find(b">", start), 1
        position = len(page) if end < 0 else end + closing
        code.append(page[start:position])
        if not title and name is not None and name[1] == b"title":
            title = title_of(code[-1])
    text.append(page[position:])
    return b"\n".join(code), b" ".join(text), title
