"""What the retry queue does while its database fails."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider

from scrapy_backpressure import clock
from scrapy_backpressure.clock import Clock
from scrapy_backpressure.parking import RetryQueue
from scrapy_backpressure.storage.codec import Coder
from scrapy_backpressure.storage.parked import ParkedRequests
from scrapy_backpressure.storage.sqlite import Database

URL = "http://site.example/"


class Books:
    """Takes what is due."""

    closing = False

    def __init__(self) -> None:
        self.released: list[str] = []
        self.left = 0

    def release(self, request: Request) -> None:
        self.released.append(request.url)

    def unreadable(self, error: Exception, *, stays: bool) -> None:
        self.left += stays


class Timers:
    """Timers that are set and never ring."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    def call_later(self, delay: float, *_: Any) -> Timers:
        self.delays.append(delay)
        return self

    def cancel(self) -> None:
        pass


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    timers = Timers()
    monkeypatch.setattr(clock, "call_later", timers.call_later)
    return timers


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def queue(books: Any, timers: Timers, tmp_path: Path) -> Iterator[RetryQueue]:
    database = Database(tmp_path / "parked.sqlite")
    queue = RetryQueue(Coder(Spider("pages"), persistent=True), database, Clock(), books)
    yield queue
    queue.close()
    database.close()


def fail(*_: Any) -> Any:
    raise sqlite3.OperationalError("database or disk is full")


def test_commit_that_fails_is_logged_and_nothing_is_lost(
    queue: RetryQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue.park(Request(URL), 0.0, "site.example")
    with monkeypatch.context() as broken:
        broken.setattr(Database, "commit", fail)
        assert not queue._database.write()
    assert "Cannot write" in caplog.text
    assert queue._database.write()
    assert queue.persisted == 1


def test_what_is_due_while_the_database_fails_is_tried_again(
    queue: RetryQueue, books: Books, timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.park(Request(URL), 0.0, "site.example")
    with monkeypatch.context() as broken:
        broken.setattr(ParkedRequests, "pop_due", fail)
        queue._alarm._due()  # rings
    assert 1 < timers.delays[-1] < 60
    queue.release_due()
    assert books.released == [URL]


@pytest.mark.parametrize("damaged", [False, True])
def test_what_cannot_be_read_is_left_as_it_is_for_the_next_run(
    queue: RetryQueue, books: Books, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    def unknown(data: bytes) -> Any:
        raise ValueError("no such callback")

    queue.park(Request(URL), 0.0, "site.example")
    database = queue._database
    if damaged:
        database.read("UPDATE parked SET checksum = checksum + 1")
    with monkeypatch.context() as changed:
        if not damaged:
            changed.setattr(queue._coder, "decode", unknown)
        queue.release_due()
        queue.release_due()
    assert (len(queue), queue.next_due(), books.left) == (0, None, 1)
    queue.release_due()
    assert books.released == []  # one try in each run
    if damaged:
        database.read("UPDATE parked SET checksum = checksum - 1")
    following = ParkedRequests(database)
    assert (len(following), following.next_due()) == (1, 0.0)
    assert [row.is_whole for row in following.pop_due(0.0, 10)] == [True]


def test_what_cannot_be_written_is_not_left_for_the_next_run(
    queue: RetryQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.park(Request(URL), 0.0, "site.example")
    with monkeypatch.context() as broken:
        broken.setattr(Database, "commit", fail)
        left = [request.url for request in queue.drain()]
    assert left == [URL]
    assert queue.persisted == 0


def test_what_was_written_before_stays_for_the_next_run_where_the_last_commit_fails(
    queue: RetryQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("written", "gone"):
        queue.park(Request(URL + path), 0.0 if path == "gone" else 9e9, "site.example")
    queue._database.commit()
    queue.release_due()  # the last one, whose id is not to be used again
    queue.park(Request(URL + "new"), 0.0, "site.example")
    with monkeypatch.context() as broken:
        broken.setattr(Database, "commit", fail)
        left = [request.url for request in queue.drain()]
    assert left == [URL + "new"]
    assert queue.persisted == 1


def test_what_is_written_is_left_for_the_next_run(queue: RetryQueue) -> None:
    queue.park(Request(URL), 0.0, "site.example")
    assert list(queue.drain()) == []
    assert queue.persisted == 1


def test_nothing_is_given_back_while_the_crawl_is_being_closed(
    queue: RetryQueue, books: Books
) -> None:
    queue.park(Request(URL), 0.0, "site.example")
    books.closing = True
    queue.release_due()
    assert books.released == []
    assert len(queue) == 1
