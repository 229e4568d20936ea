"""The marks by which bans and challenges are known, as data.

A mark that good pages carry as well proves nothing alone: each has a weight, and an answer is
a ban when the weights of one vendor reach :data:`THRESHOLD`. Headers that a vendor sends with
a refusal and never otherwise decide alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

THRESHOLD = 2
"""Weight from which a vendor's marks prove a ban."""


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
    on_success: int = 0
    """Weight in a small page with status 2xx."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """What one bot protection, or one site, sends to those it refuses."""

    name: str
    headers: tuple[HeaderMark, ...] = ()
    body: tuple[BodyMark, ...] = ()
    statuses: tuple[int, ...] = ()
    """Error statuses in which marks of the body count; empty: any from 400."""
    paths: tuple[str, ...] = ()
    """URL paths (their beginnings) of the page that refuses, or that a redirect leads to."""
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
            BodyMark(b"just a moment...", in_title=True, on_success=2),
            BodyMark(b"attention required! | cloudflare", in_title=True, on_success=2),
            BodyMark(b"_cf_chl_opt", on_success=2),
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
        body=(BodyMark(b"captcha-delivery.com", on_success=1),),
        statuses=(401, 403, 405, 429),
    ),
    Vendor(
        "perimeterx",
        body=(
            BodyMark(b"access to this page has been denied", in_title=True, on_success=2),
            BodyMark(b"window._pxappid", on_success=1),
            BodyMark(b"px-captcha", on_success=1),
        ),
        statuses=(403, 429),
    ),
    Vendor(
        "imperva",
        headers=(HeaderMark("x-iinfo", weight=1, statuses=(403, 429, 503)),),
        body=(
            BodyMark(b"incapsula incident id", on_success=2),
            BodyMark(b"pardon our interruption", in_title=True, on_success=2),
            BodyMark(b"pardon our interruption", on_error=1),
            BodyMark(b"_incapsula_resource", on_error=1),
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
    Vendor("anubis", body=(BodyMark(b"anubis_challenge", on_success=2),)),
    Vendor(
        "google",
        body=(
            BodyMark(b"unusual traffic from your", on_error=1, on_success=1),
            BodyMark(b"computer network", on_error=1, on_success=1),
            BodyMark(b"/sorry/", on_error=1, on_success=1),
        ),
        paths=("/sorry/",),
    ),
    Vendor(
        "amazon",
        body=(
            BodyMark(b"/errors/validatecaptcha", on_success=2),
            BodyMark(b"robot check", in_title=True, on_success=2),
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


def _success_marks(*, in_title: bool) -> tuple[tuple[bytes, str, int], ...]:
    return tuple(
        (mark.text, vendor.name, mark.on_success)
        for vendor in VENDORS
        for mark in vendor.body
        if mark.on_success and mark.in_title is in_title
    )


SUCCESS_MARKS = _success_marks(in_title=False)
"""(bytes, vendor, weight) of all marks that count anywhere in a page with status 2xx ..."""
SUCCESS_TITLES = _success_marks(in_title=True)
"""... and of those that count in its title."""
