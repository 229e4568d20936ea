"""What is remembered of failed attempts, and whose they are."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from scrapy import Request

from scrapy_backpressure.history import (
    DUE,
    HISTORY,
    KEPT_ATTEMPTS,
    as_first_sent,
    history,
    redrive,
    sent,
    strip,
    take_due,
    with_attempt,
)

URL = "http://site.example/page"


def attempt(number: int = 0, outcome: str = "failed") -> dict[str, Any]:
    return {"time": 1000.0 + number, "status": 503, "outcome": outcome, "reason": "503"}


def after(request: Request, *attempts: dict[str, Any]) -> Request:
    for each in attempts:
        request = request.replace(meta={**request.meta, HISTORY: with_attempt(request, each)})
    return request


def test_fresh_request_has_no_history() -> None:
    assert history(Request(URL)) is None


def test_first_attempt_says_when_the_request_was_first_seen() -> None:
    request = after(Request(URL), attempt(1), attempt(2))
    found = history(request)
    assert found is not None
    assert found["first_seen"] == 1001.0
    assert [each["time"] for each in found["attempts"]] == [1001.0, 1002.0]


def test_only_throttled_attempts_are_counted_as_such() -> None:
    request = after(Request(URL), attempt(), attempt(1, "throttled"), attempt(2, "throttled"))
    assert request.meta[HISTORY]["throttled"] == 2


def test_oldest_attempts_are_forgotten_but_stay_counted() -> None:
    throttled = [attempt(number, "throttled") for number in range(KEPT_ATTEMPTS + 5)]
    found = after(Request(URL), *throttled).meta[HISTORY]
    assert len(found["attempts"]) == KEPT_ATTEMPTS
    assert found["attempts"][-1] == throttled[-1]
    assert found["throttled"] == KEPT_ATTEMPTS + 5
    assert found["first_seen"] == 1000.0


def test_taking_note_of_an_attempt_leaves_the_request_as_it_is() -> None:
    request = after(Request(URL), attempt())
    with_attempt(request, attempt(1))
    assert len(request.meta[HISTORY]["attempts"]) == 1


def test_history_of_another_host_is_not_the_requests_own() -> None:
    request = after(Request(URL), attempt()).replace(url="http://other.example/page")
    assert history(request) is None
    assert len(with_attempt(request, attempt(1))["attempts"]) == 1


def test_history_stays_on_a_redirect_within_the_host() -> None:
    request = after(Request(URL), attempt()).replace(url="https://site.example/login")
    assert history(request) is not None


def test_redrives_are_kept() -> None:
    past = {**with_attempt(Request(URL), attempt()), "redrives": 2}
    request = Request(URL, meta={HISTORY: past})
    assert with_attempt(request, attempt(1))["redrives"] == 2


def redriven(**options: Any) -> Request:
    request = Request(URL, **options)
    redrive(request, first_seen=500.0, redrives=2)
    return request


def test_redriven_request_passes_the_seen_filter_until_it_is_sent() -> None:
    request = redriven()
    before = request.dont_filter
    sent(request)
    assert (before, request.dont_filter) == (True, False)


def test_redriven_request_that_is_never_filtered_stays_so() -> None:
    request = redriven(dont_filter=True)
    sent(request)
    assert request.dont_filter is True


def test_redrive_is_counted_once_it_is_sent() -> None:
    request = redriven()
    before = request.meta[HISTORY]["redrives"]
    sent(request)
    assert (before, request.meta[HISTORY]["redrives"]) == (2, 3)


def test_redrive_is_counted_once_however_often_the_request_is_tried() -> None:
    request = redriven()
    sent(request)
    again = after(request, attempt()).replace(dont_filter=True)  # as retries have it
    sent(again)
    assert again.meta[HISTORY]["redrives"] == 3
    assert again.dont_filter is True


def test_redirect_of_a_redriven_request_is_not_one_more_redrive() -> None:
    request = redriven()
    sent(request)
    redirected = request.replace(url=f"{URL}/2")
    sent(redirected)
    assert redirected.meta[HISTORY]["redrives"] == 3


def test_redriven_request_keeps_the_time_at_which_it_was_first_seen() -> None:
    request = redriven()
    sent(request)
    assert after(request, attempt()).meta[HISTORY]["first_seen"] == 500.0


def test_redriven_request_that_is_given_up_unsent_is_as_it_was() -> None:
    assert as_first_sent(redriven(priority=3)).dont_filter is False


def test_request_that_is_no_redrive_is_left_alone_when_it_is_sent() -> None:
    request = Request(URL, dont_filter=True)
    sent(request)
    assert (request.dont_filter, dict(request.meta)) == (True, {})


@pytest.mark.parametrize("key", [HISTORY, "backpressure_anything"])
def test_strip_removes_our_keys(key: str) -> None:
    request = Request(URL, meta={key: 1, "own": 2})
    strip(request)
    assert request.meta == {"own": 2}


def test_strip_copes_with_keys_that_are_no_text() -> None:
    meta: Any = {1: 2}
    request = Request(URL, meta=meta)
    strip(request)
    assert dict(request.meta) == meta


def test_strip_leaves_the_time_that_a_spider_set() -> None:
    request = Request(URL, meta={DUE: 1.0})
    strip(request)
    assert request.meta == {DUE: 1.0}


@pytest.mark.parametrize(("told", "due"), [(None, None), (5, 5.0), ("5.5", 5.5)])
def test_due_time_is_taken_out(told: Any, due: float | None) -> None:
    request = Request(URL, meta={DUE: told})
    assert take_due(request) == due
    assert request.meta == {}


@pytest.mark.parametrize("told", ["soon", float("nan"), [1], datetime(2030, 1, 1), 10**400])
def test_due_time_that_is_no_number_is_refused_and_taken_out(told: Any) -> None:
    request = Request(URL, meta={DUE: told})
    with pytest.raises(ValueError, match="backpressure_due accepts epoch seconds"):
        take_due(request)
    assert request.meta == {}


@pytest.mark.parametrize("found", ["x", 5, [1]])
def test_history_that_is_none_counts_as_absent(found: Any) -> None:
    request = Request(URL, meta={HISTORY: found})
    assert with_attempt(request, attempt())["attempts"] == [attempt()]
