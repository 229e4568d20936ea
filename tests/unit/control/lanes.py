"""What tests of a lane share: a lane, and requests through it."""

from __future__ import annotations

import random

from scrapy_backpressure.control.lane import Lane, Ticket
from scrapy_backpressure.control.outcome import Outcome, Quota, Verdict

ACCEPTED, THROTTLED, FAILED = Outcome.ACCEPTED, Outcome.THROTTLED, Outcome.FAILED
LATENCY = 0.1


def make(*, ceiling: int = 64, start: float = 4, seed: int = 1, timeout: float = 180.0) -> Lane:
    """A new lane."""
    rng = random.Random(seed)
    return Lane(ceiling=ceiling, start=start, now=0.0, rng=rng, timeout=timeout)


def fill(lane: Lane, now: float) -> list[Ticket]:
    """Send what the lane lets go at this moment."""
    tickets = []
    while lane.ready_at(now) <= now:
        tickets.append(lane.sent(now))
    return tickets


def pour(lane: Lane, now: float, seconds: float) -> list[Ticket]:
    """Send what the lane lets go in the next seconds, while nothing is answered."""
    tickets = []
    until = now + seconds
    while (at := lane.ready_at(now)) <= until:
        now = max(now, at)
        tickets.append(lane.sent(now))
    return tickets


def finish(
    lane: Lane,
    ticket: Ticket,
    now: float,
    outcome: Outcome = ACCEPTED,
    *,
    pause: float | None = None,
    quota: Quota | None = None,
    answered: bool = True,
) -> Outcome:
    """Answer one request, as long after it was sent as ``now`` is; its effective outcome."""
    verdict = Verdict(outcome, "", pause, quota, answered)
    return lane.finished(ticket, now, verdict, latency=now - ticket.sent_at)


def exchange(
    lane: Lane, now: float, outcome: Outcome = ACCEPTED, *, answered: bool = True
) -> float:
    """One request as soon as it may go, answered a tenth of a second later; the time then."""
    now = max(now, lane.ready_at(now))
    ticket = lane.sent(now)
    finish(lane, ticket, now + LATENCY, outcome, answered=answered)
    return now + LATENCY


def exchanges(
    lane: Lane, count: int, outcome: Outcome = ACCEPTED, *, now: float = 0.0, answered: bool = True
) -> float:
    """One request after the other; the time afterwards."""
    for _ in range(count):
        now = exchange(lane, now, outcome, answered=answered)
    return now


def answer_with(lane: Lane, quota: Quota) -> None:
    """One request that is accepted with these headers, at 0.1 s."""
    finish(lane, lane.sent(0.0), LATENCY, quota=quota)
