"""When the next request is due."""

from __future__ import annotations

import pytest

from scrapy_backpressure.control.pacer import Pacer, Ticket


def send(pacer: Pacer, now: float, interval: float = 1.0) -> Ticket:
    ticket = Ticket(1, now, 1)
    pacer.sent(ticket, interval, by_rate=True)
    return ticket


def test_the_next_request_is_due_one_interval_later() -> None:
    pacer = Pacer()
    send(pacer, 10.0)
    assert pacer.due(1.0) == pytest.approx(11.0)


def test_a_slightly_late_request_does_not_shift_those_after_it() -> None:
    pacer = Pacer()
    send(pacer, 10.0)
    send(pacer, 11.004)
    assert pacer.due(1.0) == pytest.approx(12.0)


def test_a_very_late_request_earns_no_burst() -> None:
    pacer = Pacer()
    send(pacer, 10.0)
    send(pacer, 20.0)
    assert pacer.due(1.0) == pytest.approx(21.0)


def test_pace_that_was_taken_back_is_free_again() -> None:
    pacer = Pacer()
    send(pacer, 10.0)
    pacer.take_back(send(pacer, 11.0))
    assert pacer.due(1.0) == pytest.approx(11.0)


def test_a_stricter_pacer_makes_up_for_less() -> None:
    pacer = Pacer()
    pacer.be_stricter()
    send(pacer, 10.0)
    send(pacer, 11.004)
    assert pacer.due(1.0) == pytest.approx(12.004)
