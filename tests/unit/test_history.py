"""What is remembered of failed attempts, whose they are, and that nothing else carries it."""

from __future__ import annotations

import copy
from datetime import datetime
from typing import Any

import pytest
from scrapy import Request

from scrapy_backpressure.history import (
    DUE,
    HISTORY,
    KEPT_ATTEMPTS,
    Histories,
    carry,
    redrive,
    take_due,
)

URL = "http://site.example/page"


def attempt(number: int = 0, outcome: str = "failed") -> dict[str, Any]:
    return {"time": 1000.0 + number, "status": 503, "outcome": outcome, "reason": "503"}


def under_way(histories: Histories, request: Request, *attempts: dict[str, Any]) -> Request:
    """*request*, or its last retry, as it is sent."""
    histories.take(request)
    for each in attempts:
        again = request.copy()
        carry(again, histories.with_attempt(request, each))
        histories.take(again)
        request = again
    return request


def test_fresh_request_has_no_history() -> None:
    assert Histories().of(Request(URL)) is None


def test_first_attempt_says_when_the_request_was_first_seen() -> None:
    histories = Histories()
    found = histories.of(under_way(histories, Request(URL), attempt(1), attempt(2)))
    assert found is not None
    assert found["first_seen"] == 1001.0
    assert [each["time"] for each in found["attempts"]] == [1001.0, 1002.0]


def test_only_throttled_attempts_are_counted_as_such() -> None:
    histories = Histories()
    told = attempt(), attempt(1, "throttled"), attempt(2, "throttled")
    found = histories.of(under_way(histories, Request(URL), *told))
    assert found is not None
    assert found["throttled"] == 2


def test_oldest_attempts_are_forgotten_but_stay_counted() -> None:
    histories = Histories()
    throttled = [attempt(number, "throttled") for number in range(KEPT_ATTEMPTS + 5)]
    found = histories.of(under_way(histories, Request(URL), *throttled))
    assert found is not None
    assert len(found["attempts"]) == KEPT_ATTEMPTS
    assert found["attempts"][-1] == throttled[-1]
    assert found["throttled"] == KEPT_ATTEMPTS + 5
    assert found["first_seen"] == 1000.0


def test_taking_note_of_an_attempt_leaves_the_history_as_it_is() -> None:
    histories = Histories()
    request = under_way(histories, Request(URL), attempt())
    histories.with_attempt(request, attempt(1))
    found = histories.of(request)
    assert found is not None
    assert len(found["attempts"]) == 1


# -- under way, nothing is in the request ----------------------------------------------------


def test_request_under_way_carries_nothing_of_ours() -> None:
    request = under_way(Histories(), Request(URL, meta={"own": 1}), attempt())
    assert (dict(request.meta), request.dont_filter) == ({"own": 1}, False)


@pytest.mark.parametrize("as_copied", [Request.copy, copy.copy, Request.replace])
def test_copy_of_a_request_under_way_has_no_history(as_copied: Any) -> None:
    histories = Histories()
    copied = as_copied(under_way(histories, Request(URL), attempt()))
    assert histories.of(copied) is None


def test_retry_passes_the_seen_filter_only_until_it_is_sent() -> None:
    histories = Histories()
    again = Request(URL)
    carry(again, histories.with_attempt(again, attempt()))
    before = again.dont_filter
    histories.take(again)
    assert (before, again.dont_filter) == (True, False)


def test_retry_of_a_request_that_is_never_filtered_stays_so() -> None:
    request = under_way(Histories(), Request(URL, dont_filter=True), attempt(), attempt())
    assert request.dont_filter is True


@pytest.mark.parametrize(
    "found",
    [
        1,
        {},
        {"host": "site.example"},
        {"host": "site.example", "attempts": 5, "throttled": 0},
    ],
)
def test_history_that_somebody_else_wrote_is_taken_away(found: Any) -> None:
    histories = Histories()
    request = Request(URL, meta={HISTORY: found})
    histories.take(request)
    assert (histories.of(request), dict(request.meta)) == (None, {})


def test_history_of_another_host_is_not_the_requests_own() -> None:
    histories = Histories()
    queued = Request(URL)
    carry(queued, histories.with_attempt(queued, attempt()))
    other = queued.replace(url="http://other.example/page")
    histories.take(other)
    assert (histories.of(other), other.meta) == (None, {})


# -- what a middleware sends instead ---------------------------------------------------------


@pytest.mark.parametrize("url", [f"{URL}/2", "https://site.example/login", URL])
def test_successor_on_the_same_host_goes_on_with_the_history(url: str) -> None:
    histories = Histories()
    request = under_way(histories, Request(URL), attempt())
    successor = request.replace(url=url)
    histories.hand_on(request, successor)
    passes = successor.dont_filter
    found = histories.of(under_way(histories, successor))
    assert found is not None
    assert (len(found["attempts"]), passes, successor.dont_filter) == (1, True, False)


def test_successor_on_another_host_is_a_request_like_any() -> None:
    histories = Histories()
    request = under_way(histories, Request(URL), attempt())
    successor = request.replace(url="http://other.example/")
    histories.hand_on(request, successor)
    assert (histories.of(successor), successor.dont_filter) == (None, False)


def test_successor_of_a_first_attempt_is_filtered_as_ever() -> None:
    histories = Histories()
    request = under_way(histories, Request(URL))
    successor = request.replace(url=f"{URL}/2")
    histories.hand_on(request, successor)
    assert (dict(successor.meta), successor.dont_filter) == ({}, False)


# -- redrives --------------------------------------------------------------------------------


def redriven(**options: Any) -> Request:
    request = Request(URL, **options)
    redrive(request, first_seen=500.0, redrives=2)
    return request


def redrives(histories: Histories, request: Request) -> int:
    found = histories.of(request)
    assert found is not None
    count: int = found["redrives"]
    return count


def test_redriven_request_passes_the_seen_filter_until_it_is_sent() -> None:
    request = redriven()
    before = request.dont_filter
    under_way(Histories(), request)
    assert (before, request.dont_filter) == (True, False)


def test_redriven_request_that_is_never_filtered_stays_so() -> None:
    assert under_way(Histories(), redriven(dont_filter=True)).dont_filter is True


def test_redrive_is_counted_once_it_is_sent() -> None:
    histories, request = Histories(), redriven()
    before = redrives(histories, request)
    under_way(histories, request)
    assert (before, redrives(histories, request)) == (2, 3)


def test_redrive_is_counted_once_however_often_the_request_is_tried() -> None:
    histories = Histories()
    again = under_way(histories, redriven(), attempt(), attempt())
    assert redrives(histories, again) == 3


def test_redirect_of_a_redriven_request_is_not_one_more_redrive() -> None:
    histories = Histories()
    request = under_way(histories, redriven())
    redirected = request.replace(url=f"{URL}/2")
    histories.hand_on(request, redirected)
    assert redrives(histories, under_way(histories, redirected)) == 3


def test_redriven_request_keeps_the_time_at_which_it_was_first_seen() -> None:
    histories = Histories()
    found = histories.of(under_way(histories, redriven(), attempt()))
    assert found is not None
    assert found["first_seen"] == 500.0


def test_redriven_request_that_is_given_up_unsent_is_as_it_was() -> None:
    first = Histories().as_first_sent(redriven(priority=3))
    assert (first.dont_filter, dict(first.meta)) == (False, {})


def test_request_without_a_history_is_left_alone() -> None:
    request = Request(URL, dont_filter=True)
    Histories().take(request)
    assert (request.dont_filter, dict(request.meta)) == (True, {})


# -- due times -------------------------------------------------------------------------------


@pytest.mark.parametrize(("told", "due"), [(None, None), (5, 5.0), ("5.5", 5.5)])
def test_due_time_is_taken_out(told: Any, due: float | None) -> None:
    request = Request(URL, meta={DUE: told})
    assert take_due(request) == due
    assert request.meta == {}


@pytest.mark.parametrize("told", ["soon", float("nan"), [1], datetime(2030, 1, 1), 10**400])
def test_due_time_that_is_none_is_told(told: Any) -> None:
    with pytest.raises(ValueError, match="backpressure_due accepts epoch seconds"):
        take_due(Request(URL, meta={DUE: told}))
