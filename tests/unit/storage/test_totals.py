"""The books of all runs: they balance at every commit, and say so where they do not."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from scrapy_backpressure.ledger import Ledger
from scrapy_backpressure.storage.parked import ParkedRequests
from scrapy_backpressure.storage.pending import PendingRequests
from scrapy_backpressure.storage.sqlite import Database
from scrapy_backpressure.storage.totals import MOVED


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "backpressure.sqlite"


def push(store: PendingRequests, *numbers: int) -> None:
    for number in numbers:
        store.push(number, b"data", slot="a", urgency=0, rank=number)


def test_each_end_is_counted_by_its_name_over_runs(path: Path) -> None:
    database = Database(path)
    store = PendingRequests(database)
    push(store, 1, 2, 3, 4)
    store.finish(1, "handled")
    store.finish(2, "dead/retries")
    database.close()
    database = Database(path)
    store = PendingRequests(database)
    store.finish(3, "dropped/HttpError")
    assert database.totals.ledger() == Ledger(
        accepted=4,
        handled=1,
        dead=Counter(retries=1),
        dropped=Counter(HttpError=1),
        persisted=1,
    )
    database.close()


def test_request_that_is_parked_and_comes_back_is_one(path: Path) -> None:
    database = Database(path)
    store, parked = PendingRequests(database), ParkedRequests(database)
    push(store, 1)
    parked.park(b"its retry", due=0.0, slot="a")
    store.finish(1, MOVED)
    parked.pop_due(1.0, 10)
    push(store, 2)
    store.finish(2, "handled")
    assert database.totals.ledger() == Ledger(accepted=1, handled=1)
    database.close()


def test_request_whose_end_nobody_knows_is_missing(path: Path) -> None:
    database = Database(path)
    store = PendingRequests(database)
    push(store, 1)
    store.finish(1, None)
    assert database.totals.ledger().missing == 1
    database.close()


def test_request_that_was_never_in_the_file_is_counted_when_it_ends(path: Path) -> None:
    database = Database(path)
    database.totals.ended_outside("dropped/dupefilter")
    database.close()
    database = Database(path)
    assert database.totals.ledger() == Ledger(accepted=1, dropped=Counter(dupefilter=1))
    database.close()


def test_requests_that_are_gone_from_the_file_are_told_once_and_then_lost(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(path)
    push(PendingRequests(database), 1, 2, 3)
    database.close()
    with sqlite3.connect(path) as other:
        other.execute("DELETE FROM requests WHERE id = 2")
    other.close()
    for _ in range(2):
        database = Database(path)
        assert database.totals.ledger() == Ledger(accepted=3, lost=1, persisted=2)
        database.close()
    assert caplog.text.count("1 requests of this crawl are missing in its file") == 1


def test_requests_that_only_memory_had_are_told_after_a_kill(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(path)
    database.totals.unsaved = 2
    database.close()
    for _ in range(2):
        database = Database(path)
        assert database.totals.ledger() == Ledger(accepted=2, lost=2)
        database.close()
    assert caplog.text.count("2 requests went with the run before") == 1


def test_books_begin_with_what_a_file_without_any_has(path: Path) -> None:
    database = Database(path)
    push(PendingRequests(database), 1, 2)
    database.close()
    with sqlite3.connect(path) as other:
        other.execute("DELETE FROM totals")
    other.close()
    database = Database(path)
    assert database.totals.ledger() == Ledger(accepted=2, persisted=2)
    database.close()
