"""What an errback gets for a request that this package gave up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.exceptions import IgnoreRequest

if TYPE_CHECKING:
    from scrapy.http import Response


class GivenUp(IgnoreRequest):
    """A request was given up where Scrapy would have gone on with it.

    ``reason`` is that of the dead letter. ``response`` is the answer that would have passed for a
    success, such as a challenge page with status 200; None if the request was not sent, since its
    site has not answered well for too long, or asks for a longer pause than
    BACKPRESSURE_MAX_PAUSE.
    """

    def __init__(self, reason: str, response: Response | None = None) -> None:
        super().__init__(f"Given up ({reason})")
        self.reason = reason
        self.response = response
