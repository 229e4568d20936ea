from __future__ import annotations

import gzip
import json
import time
from email.utils import formatdate
from typing import Any

import pytest
from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.http import HtmlResponse, Response
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler
from twisted.internet import error as twisted_error
from twisted.web import client as twisted_client

from scrapy_backpressure.control.outcome import Outcome, Quota, Verdict
from scrapy_backpressure.policy import Evidence, OutcomePolicy

# Twisted has no type hints for these.
client: Any = twisted_client
error: Any = twisted_error

REQUEST = Request("https://example.com/page")
PROXIED = Request("https://example.com/page", meta={"proxy": "http://127.0.0.1:8080"})
GOOD_PAGE = b"<html><head><title>Shop</title></head><body>" + b"<p>a thing to buy</p>" * 50
HTML = {"Content-Type": "text/html; charset=utf-8"}


def policy(**settings: Any) -> OutcomePolicy:
    return OutcomePolicy(Settings(settings))


def judge(
    status: int = 200,
    body: bytes = b"",
    headers: dict[str, Any] | None = None,
    *,
    by: OutcomePolicy | None = None,
    url: str = "https://example.com/page",
    flags: list[str] | None = None,
    request: Request = REQUEST,
) -> Verdict:
    response = HtmlResponse(url, status=status, headers=headers, body=body, flags=flags)
    return (by or policy()).classify_response(request, response)


# --- plain answers


@pytest.mark.parametrize("status", [200, 201, 204, 206])
def test_success_is_accepted(status: int) -> None:
    assert judge(status, GOOD_PAGE) == Verdict(Outcome.ACCEPTED, str(status))


@pytest.mark.parametrize("status", [301, 302, 304, 400, 401, 403, 404, 410, 451, 501, 520])
def test_answer_that_tells_nothing_is_neutral(status: int) -> None:
    assert judge(status, GOOD_PAGE) == Verdict(Outcome.NEUTRAL, str(status))


@pytest.mark.parametrize("status", [200, 429, 503])
def test_cached_answer_is_neutral(status: int) -> None:
    assert judge(status, flags=["cached"]) == Verdict(Outcome.NEUTRAL, "cached")


@pytest.mark.parametrize("status", [500, 502, 503, 504, 522, 524, 408])
def test_retry_status_is_failed(status: int) -> None:
    assert judge(status) == Verdict(Outcome.FAILED, str(status))


def test_retry_http_codes_setting_is_honoured() -> None:
    by = policy(RETRY_HTTP_CODES=[418])
    assert [judge(status, by=by).outcome for status in (418, 500)] == [
        Outcome.FAILED,
        Outcome.NEUTRAL,
    ]


def test_failure_carries_the_pause_it_tells() -> None:
    assert judge(500, headers={"Retry-After": "7"}) == Verdict(Outcome.FAILED, "500", 7.0)


def test_success_carries_no_pause() -> None:
    assert judge(202, headers={"Retry-After": "7"}) == Verdict(Outcome.ACCEPTED, "202")


@pytest.mark.parametrize("status", [200, 404])
def test_quota_is_told_with_any_answer(status: int) -> None:
    headers = {"X-RateLimit-Limit": "60", "X-RateLimit-Remaining": "59"}
    assert judge(status, headers=headers).quota == Quota(60, 59)


def test_policy_is_made_from_a_crawler() -> None:
    crawler = get_crawler(settings_dict={"RETRY_HTTP_CODES": [418]})
    assert judge(418, by=OutcomePolicy.from_crawler(crawler)).outcome is Outcome.FAILED


# --- throttling


def test_429_is_throttled() -> None:
    assert judge(429) == Verdict(Outcome.THROTTLED, "429")


def test_429_is_throttled_when_not_in_retry_http_codes() -> None:
    assert judge(429, by=policy(RETRY_HTTP_CODES=[500])).outcome is Outcome.THROTTLED


def test_retry_after_is_the_pause() -> None:
    assert judge(429, headers={"Retry-After": "30"}).pause == 30.0


@pytest.mark.parametrize("text", ["0", "-5", "soon"])
def test_unusable_retry_after_gives_no_pause(text: str) -> None:
    assert judge(429, headers={"Retry-After": text}).pause is None


def test_unusable_retry_after_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    by = policy()
    with caplog.at_level("INFO", "scrapy_backpressure.policy"):
        for _ in range(3):
            judge(429, headers={"Retry-After": "soon"}, by=by)
    assert [record.getMessage().count("soon") for record in caplog.records] == [1]


def test_two_retry_after_headers_give_the_longer_pause() -> None:
    assert judge(429, headers={"Retry-After": ["30", "90"]}).pause == 90.0


def test_retry_after_date_is_read_against_the_date_of_the_answer() -> None:
    start = time.time() - 50_000
    headers = {"Retry-After": formatdate(start + 60), "Date": formatdate(start)}
    assert judge(429, headers=headers).pause == pytest.approx(60.0)


def test_used_up_quota_pauses_until_its_reset() -> None:
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "42"}
    assert judge(429, headers=headers).pause == 42.0


def test_retry_after_wins_over_the_reset_of_the_quota() -> None:
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "42", "Retry-After": "3"}
    assert judge(429, headers=headers).pause == 3.0


def test_reset_without_a_count_is_the_pause_of_a_429() -> None:
    assert judge(429, headers={"X-RateLimit-Reset-After": "1.5"}).pause == 1.5


def test_429_whose_counters_tell_of_room_is_throttled_without_pause() -> None:
    headers = {"X-RateLimit-Remaining": "9", "X-RateLimit-Reset": "42"}
    verdict = judge(429, headers=headers)
    assert (verdict.outcome, verdict.pause) == (Outcome.THROTTLED, None)


def test_503_with_retry_after_is_throttled() -> None:
    headers = {"Retry-After": "5"}
    assert judge(503, headers=headers) == Verdict(Outcome.THROTTLED, "503", 5.0)


@pytest.mark.parametrize("status", [403, 503])
def test_refusal_with_a_used_up_quota_is_throttled(status: int) -> None:
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "42"}
    verdict = judge(status, headers=headers)
    assert (verdict.outcome, verdict.pause) == (Outcome.THROTTLED, 42.0)


def test_github_secondary_limit_is_throttled() -> None:
    body = json.dumps({"message": "You have exceeded a secondary rate limit."}).encode()
    assert judge(403, body) == Verdict(Outcome.THROTTLED, "403")


def test_404_with_a_used_up_quota_is_neutral() -> None:
    assert judge(404, headers={"X-RateLimit-Remaining": "0"}).outcome is Outcome.NEUTRAL


# --- proxies


@pytest.mark.parametrize(
    ("status", "headers", "outcome"),
    [
        (503, {"X-Crawlera-Error": "banned"}, Outcome.BLOCKED),
        (503, {"X-Crawlera-Error": "noslaves"}, Outcome.PROXY_FAILED),
        (503, {"X-Crawlera-Error": "serverbusy"}, Outcome.PROXY_FAILED),
        (429, {"X-Crawlera-Error": "too_many_conns"}, Outcome.THROTTLED),
        (502, {"x-luminati-error": "Proxy Error"}, Outcome.PROXY_FAILED),
        (200, {"x-brd-err-code": "peer_1"}, Outcome.PROXY_FAILED),
        (407, {}, Outcome.PROXY_FAILED),
    ],
)
def test_answers_of_proxies_are_told_apart(
    status: int, headers: dict[str, str], outcome: Outcome
) -> None:
    assert judge(status, headers=headers, request=PROXIED).outcome is outcome


def test_page_with_a_header_of_the_proxy_is_accepted() -> None:
    assert judge(200, GOOD_PAGE, {"x-brd-error": "none"}).outcome is Outcome.ACCEPTED


# --- exceptions


class TunnelError(Exception):
    """Named as Scrapy's, whose module needs Twisted's client."""


class DownloadTimeoutError(Exception):
    """Named as that of Scrapy >= 2.15."""


class DownloadConnectionRefusedError(Exception):
    """Named as that of Scrapy >= 2.15."""


class CannotResolveHostError(Exception):
    """Named as that of Scrapy >= 2.15."""


class DownloadFailedError(Exception):
    """Named as that of Scrapy >= 2.15."""


def caused(exception: Exception, cause: Exception) -> Exception:
    exception.__cause__ = cause
    return exception


TOOK_LONGER = "Getting https://example.com/page took longer than 180 seconds."


@pytest.mark.parametrize(
    "exception",
    [
        TunnelError("Could not open CONNECT tunnel with proxy 127.0.0.1:8080 [{'status': 407}]"),
        DownloadConnectionRefusedError("refused"),
        CannotResolveHostError("no such host"),
        caused(DownloadTimeoutError("User timeout"), error.TimeoutError()),
        error.ConnectionRefusedError(),
        error.DNSLookupError(),
        error.TimeoutError(),
        error.TCPTimedOutError(),
        error.NoRouteError(),
        caused(DownloadFailedError("502"), type("ClientHttpProxyError", (Exception,), {})()),
        caused(DownloadTimeoutError(TOOK_LONGER), type("ConnectTimeout", (Exception,), {})()),
    ],
    ids=repr,
)
def test_proxy_that_cannot_be_reached_is_at_fault(exception: Exception) -> None:
    expected = Verdict(Outcome.PROXY_FAILED, type(exception).__name__, answered=False)
    assert policy().classify_exception(PROXIED, exception) == expected


@pytest.mark.parametrize(
    "exception",
    [
        DownloadTimeoutError(TOOK_LONGER),
        error.TimeoutError(TOOK_LONGER),
        error.ConnectionLost(),
        client.ResponseFailed([]),
        caused(
            DownloadConnectionRefusedError("certificate verify failed"),
            type("ClientConnectorError", (Exception,), {})(),
        ),
    ],
    ids=repr,
)
def test_trouble_behind_the_proxy_is_not_its_fault(exception: Exception) -> None:
    verdict = policy().classify_exception(PROXIED, exception)
    assert verdict.outcome is not Outcome.PROXY_FAILED


@pytest.mark.parametrize("exception", [error.ConnectionRefusedError(), error.TimeoutError()])
def test_retry_exception_without_proxy_is_failed(exception: Exception) -> None:
    by = policy(RETRY_EXCEPTIONS=["twisted.internet.error.ConnectError"])
    expected = Verdict(Outcome.FAILED, type(exception).__name__, answered=False)
    assert by.classify_exception(REQUEST, exception) == expected


@pytest.mark.parametrize("exception", [error.ConnectionLost(), OSError("broken gzip")])
def test_default_retry_exceptions_are_failed(exception: Exception) -> None:
    assert policy().classify_exception(REQUEST, exception).outcome is Outcome.FAILED


def test_retry_exceptions_setting_takes_classes() -> None:
    by = policy(RETRY_EXCEPTIONS=[KeyError])
    assert by.classify_exception(REQUEST, KeyError()).outcome is Outcome.FAILED


def test_body_that_breaks_off_is_a_failed_answer() -> None:
    class ResponseDataLossError(Exception):
        """Named as that of Scrapy >= 2.15."""

    by = policy(RETRY_EXCEPTIONS=[ResponseDataLossError])
    expected = Verdict(Outcome.FAILED, "ResponseDataLossError", answered=True)
    assert by.classify_exception(REQUEST, ResponseDataLossError()) == expected


@pytest.mark.parametrize("exception", [IgnoreRequest(), ValueError("a bug"), KeyError()])
def test_other_exception_is_neutral(exception: Exception) -> None:
    expected = Verdict(Outcome.NEUTRAL, type(exception).__name__)
    assert policy().classify_exception(PROXIED, exception) == expected


# --- policies of users


def test_subclass_can_treat_520_as_throttled() -> None:
    class Policy(OutcomePolicy):
        def is_throttled(self, evidence: Evidence) -> bool:
            return evidence.status == 520 or super().is_throttled(evidence)

    verdict = judge(520, headers={"Retry-After": "4"}, by=Policy(Settings()))
    assert verdict == Verdict(Outcome.THROTTLED, "520", 4.0)


@pytest.mark.parametrize("compress", [False, True])
def test_subclass_can_treat_a_json_body_as_throttled(compress: bool) -> None:
    class Policy(OutcomePolicy):
        def is_throttled(self, evidence: Evidence) -> bool:
            limited = b'"error":"rate limited"' in evidence.body
            return limited or super().is_throttled(evidence)

    body = b'{"error":"rate limited"}'
    headers = {"Content-Type": "application/json"}
    if compress:
        body = gzip.compress(body)
        headers["Content-Encoding"] = "gzip"
    response = Response("https://example.com/page", headers=headers, body=body)
    verdict = Policy(Settings()).classify_response(REQUEST, response)
    assert verdict == Verdict(Outcome.THROTTLED, "200")


# --- cost


def test_large_page_is_accepted_without_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrapy_backpressure.policy.body_prefix", None)
    assert judge(200, GOOD_PAGE * 50, HTML).outcome is Outcome.ACCEPTED
