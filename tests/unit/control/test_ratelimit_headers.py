from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scrapy_backpressure.control.outcome import Quota
from scrapy_backpressure.control.ratelimit_headers import parse_quota, parse_retry_after

NOW = 1746136900.0
"""2025-05-01 22:01:40 UTC."""
DATE = "Thu, 01 May 2025 22:01:40 GMT"


def retry_after(*values: str) -> float | None:
    return parse_retry_after(values, now=NOW)


def quota(*lines: str) -> Quota | None:
    headers: dict[str, list[str]] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        headers.setdefault(name.lower(), []).append(value)
    return parse_quota(headers, now=NOW)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        (" 12 ", 12.0),
        ("0.493", 0.493),
        ("30s", 30.0),
        ("1m0s", 60.0),
        ("6m0s", 360.0),
        ("1h2m3s", 3723.0),
        ("500ms", 0.5),
        ("30 seconds", 30.0),
        ("2 Minutes", 120.0),
    ],
)
def test_durations_are_read_in_seconds(text: str, seconds: float) -> None:
    assert retry_after(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "Thu, 01 May 2025 22:02:40 GMT",
        "Fri, 02 May 2025 00:02:40 +0200",
        "Thu, 01 May 2025 22:02:40 -0000",
        "Thu, 01 May 2025 17:02:40 EST",
        "Thu, 01 May 2025 22:02:40 XYZ",
        "Thu, 01 May 2025 22:02:40",
        "Thursday, 01-May-25 22:02:40 GMT",
        "Thu May  1 22:02:40 2025",
        "2025-05-01T22:02:40Z",
        "2025-05-01T22:02:40.000+00:00",
        "2025-05-02T00:02:40+02:00",
        "2025-05-01 17:02:40 -0500",
        "1746136960",
        "1746136960.0",
        "1746136960000",
    ],
)
def test_points_in_time_are_read_as_the_time_until_then(text: str) -> None:
    assert retry_after(text) == pytest.approx(60.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-5",
        "nan",
        "inf",
        "-inf",
        "1e999",
        "120junk",
        "soon",
        "1_000",
        "\uff11\uff12",
        "Thu, 01 May 2025 22:01:39 GMT",
        "Thu, 32 Foo 2025 22:02:40 GMT",
        "2025-13-01T00:00:00Z",
        "1746136899",
        "9" * 5000,
    ],
)
def test_zero_past_and_garbage_count_as_absent(text: str) -> None:
    assert retry_after(text) is None


def test_no_header_gives_none() -> None:
    assert retry_after() is None


def test_list_gives_its_longest_member() -> None:
    assert retry_after("60, 120") == 120.0


def test_two_headers_give_the_longest() -> None:
    assert retry_after("120", "60") == 120.0


def test_garbage_beside_a_number_does_not_hide_it() -> None:
    assert retry_after("junk, 60") == 60.0


def test_two_dates_in_one_header_are_told_apart() -> None:
    text = "Thu, 01 May 2025 22:02:40 GMT, Thu, 01 May 2025 22:03:40 GMT"
    assert retry_after(text) == 120.0


def test_huge_value_stays_huge() -> None:
    assert retry_after("9999999999") == pytest.approx(9999999999 - NOW)


def test_date_header_corrects_a_skewed_clock() -> None:
    wait = parse_retry_after(["Thu, 01 May 2025 22:02:40 GMT"], now=NOW + 86_400, date=DATE)
    assert wait == 60.0


def test_unreadable_date_header_is_ignored() -> None:
    assert parse_retry_after(["1746136960"], now=NOW, date="yesterday") == 60.0


TEXTS = st.one_of(
    st.text(),
    st.text("0123456789.,;:=\"'eE+-/ \\hmsdwqrtZGMT", max_size=60),
    st.floats().map(str),
    st.integers().map(str),
    st.datetimes().map(lambda moment: moment.isoformat()),
    st.datetimes().map(lambda moment: moment.strftime("%a, %d %b %Y %H:%M:%S GMT")),
)


@given(values=st.lists(TEXTS, max_size=3), date=st.none() | TEXTS, now=st.floats(0, 1e10))
@example(values=["Mon, 01 Jan 0000 00:00:00 GMT"], date="Mon, 01 Jan 99999 0:0:0 GMT", now=0)
@example(values=["1e308"], date="1e308", now=0.0)
def test_any_retry_after_gives_a_positive_finite_wait_or_none(
    values: list[str], date: str | None, now: float
) -> None:
    wait = parse_retry_after(values, now=now, date=date)
    assert wait is None or (math.isfinite(wait) and wait > 0)


NAMES = st.sampled_from(
    [
        "ratelimit",
        "ratelimit-policy",
        "ratelimit-limit",
        "x-ratelimit",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-used",
        "x-ratelimit-reset",
        "x-ratelimit-reset-after",
        "x-ratelimit-next",
        "x-ratelimit-reset-requests",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-limit-minute",
        "x-shopify-shop-api-call-limit",
        "date",
    ]
)


@given(
    headers=st.dictionaries(NAMES | st.text(max_size=30), st.lists(TEXTS, max_size=3), max_size=6),
    now=st.floats(0, 1e10),
)
@example(headers={"ratelimit": ['"default";r=1;t=1e999, limit=nan']}, now=0.0)
@example(headers={"x-ratelimit-limit": ["1e308"], "x-ratelimit-used": ["1e308"]}, now=0.0)
@example(headers={"x-ratelimit-remaining": ["1e308"], "x-ratelimit-used": ["1e308"]}, now=0.0)
def test_any_quota_holds_finite_values_not_below_zero(
    headers: dict[str, list[str]], now: float
) -> None:
    found = parse_quota(headers, now=now)
    if found is not None:
        fields = (found.limit, found.remaining, found.reset, found.window, found.concurrency)
        assert any(value is not None for value in fields)
        assert all(value is None or (math.isfinite(value) and value >= 0) for value in fields)


DIALECTS = {
    "draft, separate headers": (
        ["RateLimit-Limit: 100", "RateLimit-Remaining: 50", "RateLimit-Reset: 5"],
        Quota(100, 50, 5),
    ),
    "draft, window in the limit": (
        ["RateLimit-Limit: 100, 100;w=60", "RateLimit-Remaining: 50"],
        Quota(100, 50, None, 60),
    ),
    "draft, several windows in the limit": (
        ["RateLimit-Limit: 10, 10;w=1, 50;w=60", "RateLimit-Remaining: 9"],
        Quota(10, 9, None, 1),
    ),
    "draft, dictionary": (
        ["RateLimit: limit=100, remaining=50, reset=5", "RateLimit-Policy: 100;w=60"],
        Quota(100, 50, 5, 60),
    ),
    "draft, dictionary with semicolons": (
        ["RateLimit: limit=100; remaining=50; reset=5"],
        Quota(100, 50, 5),
    ),
    "draft, items": (
        ['RateLimit: "default";r=50;t=30', 'RateLimit-Policy: "default";q=100;w=60'],
        Quota(100, 50, 30, 60),
    ),
    "draft, item alone": (['RateLimit: "default";r=50;t=30'], Quota(None, 50, 30)),
    "draft, policy alone": (['RateLimit-Policy: "burst";q=100;w=60'], Quota(100, window=60)),
    "GitHub": (
        [
            "X-RateLimit-Limit: 60",
            "X-RateLimit-Remaining: 56",
            "X-RateLimit-Used: 4",
            "X-RateLimit-Reset: 1746136960",
        ],
        Quota(60, 56, 60),
    ),
    "GitLab": (
        [
            "RateLimit-Limit: 60",
            "RateLimit-Observed: 67",
            "RateLimit-Remaining: 0",
            "RateLimit-Reset: 1746136930",
        ],
        Quota(60, 0, 30),
    ),
    "Twitter": (
        [
            "X-Rate-Limit-Limit: 900",
            "X-Rate-Limit-Remaining: 899",
            "X-Rate-Limit-Reset: 1746137800",
        ],
        Quota(900, 899, 900),
    ),
    "Reddit": (
        ["X-RateLimit-Used: 4", "X-RateLimit-Remaining: 96.0", "X-RateLimit-Reset: 240"],
        Quota(100, 96, 240),
    ),
    "Discord": (
        [
            "X-RateLimit-Limit: 5",
            "X-RateLimit-Remaining: 0",
            "X-RateLimit-Reset: 1746136999.125",
            "X-RateLimit-Reset-After: 64.57",
            "X-RateLimit-Bucket: abcd1234",
        ],
        Quota(5, 0, 64.57),
    ),
    "RocketChat": (
        ["X-RateLimit-Limit: 10", "X-RateLimit-Remaining: 9", "X-RateLimit-Reset: 1746136960000"],
        Quota(10, 9, 60),
    ),
    "OpenAI": (
        [
            "X-RateLimit-Limit-Requests: 60",
            "X-RateLimit-Remaining-Requests: 59",
            "X-RateLimit-Reset-Requests: 6m0s",
            "X-RateLimit-Limit-Tokens: 150000",
            "X-RateLimit-Remaining-Tokens: 3",
            "X-RateLimit-Reset-Tokens: 500ms",
        ],
        Quota(60, 59, 360),
    ),
    "resource before the field": (
        [
            "Anthropic-RateLimit-Requests-Limit: 50",
            "Anthropic-RateLimit-Requests-Remaining: 49",
            "Anthropic-RateLimit-Requests-Reset: 2025-05-01T22:02:40Z",
        ],
        Quota(50, 49, 60),
    ),
    "Akamai": (
        ["X-RateLimit-Limit: 40", "X-RateLimit-Next: 2025-05-01T22:02:40.000Z"],
        Quota(40, 0, 60),
    ),
    "Shopify": (["X-Shopify-Shop-Api-Call-Limit: 32/40"], Quota(40, 8)),
    "Kong": (
        ["X-RateLimit-Limit-Minute: 20", "X-RateLimit-Remaining-Minute: 19"],
        Quota(20, 19, None, 60),
    ),
    "used without remaining": (["X-RateLimit-Limit: 10", "X-RateLimit-Used: 12"], Quota(10, 0)),
}


@pytest.mark.parametrize(("lines", "expected"), DIALECTS.values(), ids=DIALECTS)
def test_dialect_is_read(lines: list[str], expected: Quota) -> None:
    assert quota(*lines) == expected


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["Content-Type: text/html"],
        ["X-RateLimit-Limit: unlimited", "X-RateLimit-Remaining: nan"],
        ["X-RateLimit-Remaining: -1"],
        ["X-RateLimit-Remaining: 1e999"],
        ["X-RateLimit-Bucket: 7"],
        ["RateLimit: what; is=this"],
        ['RateLimit-Policy: "bytes";q=100000;w=60;qu="content-bytes"'],
        ["X-Shopify-Shop-Api-Call-Limit: 32 of 40"],
        ["X-RateLimit-Remaining-Tokens: 3", "X-RateLimit-Reset-Tokens: 9s"],
    ],
)
def test_headers_without_anything_usable_give_none(lines: list[str]) -> None:
    assert quota(*lines) is None


def test_of_several_quotas_the_slowest_pace_binds() -> None:
    found = quota('RateLimit: "burst";r=5;t=1, "daily";r=100;t=50000')
    assert found == Quota(None, 100, 50000)


def test_used_up_quota_binds_before_any_pace() -> None:
    found = quota('RateLimit: "daily";r=100;t=50000, "burst";r=0;t=1')
    assert found == Quota(None, 0, 1)


def test_of_used_up_quotas_the_last_to_reset_binds() -> None:
    found = quota('RateLimit: "burst";r=0;t=1, "daily";r=0;t=5000')
    assert found == Quota(None, 0, 5000)


def test_used_up_tokens_stop_requests_too() -> None:
    found = quota(
        "X-RateLimit-Remaining-Requests: 59",
        "X-RateLimit-Reset-Requests: 1s",
        "X-RateLimit-Remaining-Tokens: 0",
        "X-RateLimit-Reset-Tokens: 9s",
    )
    assert found == Quota(None, 0, 9)


def test_repeated_headers_give_the_most_binding_values() -> None:
    found = quota(
        "X-RateLimit-Limit: 100",
        "X-RateLimit-Limit: 60",
        "X-RateLimit-Remaining: 50",
        "X-RateLimit-Remaining: 7",
        "X-RateLimit-Reset: 5",
        "X-RateLimit-Reset: 30",
    )
    assert found == Quota(60, 7, 30)


def test_reset_in_the_past_is_now() -> None:
    assert quota("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1746136800") == Quota(
        None, 0, 0.0
    )


def test_concurrent_requests_policy_sets_only_the_concurrency() -> None:
    found = quota(
        'RateLimit: "burst";r=50;t=30, "parallel";r=2',
        'RateLimit-Policy: "burst";q=100;w=60, "parallel";q=10;qu="concurrent-requests"',
    )
    assert found == Quota(100, 50, 30, 60, concurrency=10)


def test_concurrency_alone_is_a_quota() -> None:
    found = quota('RateLimit-Policy: "parallel";q=10;qu="concurrent-requests"')
    assert found == Quota(concurrency=10)


def test_separator_inside_a_quoted_name_does_not_split() -> None:
    assert quota('RateLimit: "a,b;c";r=50;t=30') == Quota(None, 50, 30)


def test_epoch_reset_is_read_against_the_date_header() -> None:
    headers = {
        "date": [DATE],
        "x-ratelimit-remaining": ["0"],
        "x-ratelimit-reset": ["1746136960"],
    }
    assert parse_quota(headers, now=NOW - 5000) == Quota(None, 0, 60)
