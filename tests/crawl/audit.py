"""What every test crawl that was not killed has to show."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.crawl.conftest import CrawlResult


def assert_sound(result: CrawlResult, *, errors: bool = False) -> CrawlResult:
    """Fail unless the crawl ended well and lost nothing; return *result*.

    *errors*: log lines of errors are expected (Scrapy logs a given up retry as one).
    """
    assert result.returncode == 0, result.log[-4000:]
    assert result.stat("backpressure/audit/missing", None) == 0, result.log[-4000:]
    for count in ("missing", "lost"):
        all_runs = result.stat(f"backpressure/audit/all_runs/{count}")
        assert all_runs == 0, result.log[-4000:]
    assert errors or not result.troubles, "\n".join(result.troubles)
    return result
