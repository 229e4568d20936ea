"""Growth before the first refusal."""

from __future__ import annotations

from scrapy_backpressure.control.pacer import Ticket
from scrapy_backpressure.control.slow_start import SlowStart

LATENCY = 0.1


def test_slow_start_stops_at_the_ceiling() -> None:
    start = SlowStart(4.0)
    for i in range(100):
        start.accepted(Ticket(i, 0.0, round(start.concurrency)), LATENCY, 10.0)
    assert start.concurrency == 10.0


def test_slow_start_ends_when_growth_only_brings_latency() -> None:
    start = SlowStart(4.0)
    growing = True
    for i in range(200):
        load = round(start.concurrency)
        growing = growing and start.accepted(Ticket(i, 0.0, load), load / 50, 64.0)
    assert not growing
