"""A policy that fails costs no page: the default one decides."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response
from scrapy.utils.test import get_crawler

from scrapy_backpressure.control.outcome import Outcome, Verdict
from scrapy_backpressure.judge import Judge
from scrapy_backpressure.policy import OutcomePolicy

REQUEST = Request("http://site.example/")


class Saying(OutcomePolicy):
    """Says what it was told to say."""

    says: Any = None

    def classify_response(self, request: Request, response: Response) -> Verdict:
        if isinstance(self.says, Exception):
            raise self.says
        verdict: Verdict = self.says
        return verdict

    def classify_exception(self, request: Request, exception: Exception) -> Verdict:
        raise RuntimeError("no idea")


def judge(says: Any) -> Judge:
    return Judge(get_crawler(), type("Policy", (Saying,), {"says": says}))


def answer(status: int) -> Response:
    return Response(REQUEST.url, status=status, request=REQUEST)


def test_verdict_of_the_policy_is_taken() -> None:
    verdict = Verdict(Outcome.BLOCKED, "own", 3)
    assert judge(verdict).classify_response(REQUEST, answer(200)) is verdict


@pytest.mark.parametrize(
    "says",
    [
        ZeroDivisionError("division by zero"),
        None,
        "throttled",
        Outcome.THROTTLED,
        Verdict("throttled"),  # type: ignore[arg-type]
        Verdict(Outcome.THROTTLED, "x", "1"),  # type: ignore[arg-type]
        Verdict(Outcome.THROTTLED, "x", float("nan")),
    ],
    ids=repr,
)
def test_the_default_policy_decides_for_one_that_fails(
    says: Any, caplog: pytest.LogCaptureFixture
) -> None:
    asked = judge(says)
    outcomes = [
        asked.classify_response(REQUEST, answer(status)).outcome for status in (200, 429, 503)
    ]
    assert outcomes == [Outcome.ACCEPTED, Outcome.THROTTLED, Outcome.FAILED]
    told = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 1
    assert "BACKPRESSURE_OUTCOME_POLICY failed" in told[0].getMessage()


def test_the_default_policy_decides_about_exceptions_too() -> None:
    assert judge(None).classify_exception(REQUEST, TimeoutError()).outcome is Outcome.FAILED


def test_each_failure_is_counted() -> None:
    crawler = get_crawler()
    asked = Judge(crawler, Saying)
    for _ in range(3):
        asked.classify_response(REQUEST, answer(200))
    assert crawler.stats is not None
    assert crawler.stats.get_value("backpressure/policy_errors") == 3


@pytest.mark.parametrize("named", ["no.such.Policy", "json.NoPolicy", "json.loads", Request])
def test_what_is_no_policy_is_refused_by_the_name_of_the_setting(named: Any) -> None:
    with pytest.raises(ValueError, match="BACKPRESSURE_OUTCOME_POLICY accepts a subclass"):
        Judge(get_crawler(), named)
