"""What tests of a limiter share: one that is driven by hand."""

from __future__ import annotations

from scrapy_backpressure.control.limiter import Caps, Limiter
from scrapy_backpressure.control.pacer import Ticket

CEILING = 64
LATENCY = 0.1


class Drive:
    """Drives a limiter by hand."""

    def __init__(self, *, start: float = 4, minimum: float = 1, seen: Caps | None = None) -> None:
        self.limiter = Limiter(start=start, minimum=minimum, now=0.0, seen=seen)
        self.now = 0.0

    def send(self, count: int = 1) -> list[Ticket]:
        """Requests that are under way together."""
        limit = round(self.limiter.concurrency)
        return [self.limiter.sent(self.now, i + 1, limit) for i in range(count)]

    def accept(self, tickets: list[Ticket], latency: float = LATENCY) -> None:
        for ticket in tickets:
            self.limiter.accepted(ticket, self.now, latency, CEILING)

    def refuse(self, tickets: list[Ticket]) -> list[bool]:
        return [self.limiter.refused(ticket, self.now) for ticket in tickets]

    def round(self) -> None:
        """One round trip at full concurrency, all of it served."""
        tickets = self.send(round(self.limiter.concurrency))
        self.now += LATENCY
        self.accept(tickets)

    def silence(self, times: int = 5) -> None:
        """A second each in which one request is refused."""
        for _ in range(times):
            self.refuse(self.send())
            self.now += 1
