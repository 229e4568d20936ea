"""DurableScheduler beside Scrapy's own: the same order, the same filter, what is left."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scrapy import Request, Spider
from scrapy.core.scheduler import Scheduler
from scrapy.crawler import Crawler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.test import get_crawler
from twisted.python.failure import Failure

from scrapy_backpressure import _scrapy
from scrapy_backpressure.durable import DurableScheduler
from scrapy_backpressure.extension import BackpressureExtension, extension_of
from scrapy_backpressure.storage import sqlite
from scrapy_backpressure.storage.totals import MOVED

OURS = {
    "EXTENSIONS": {"scrapy_backpressure.BackpressureExtension": 1},
    "BACKPRESSURE_DEAD_LETTER_FEEDS": {},
    "CONCURRENT_REQUESTS": 0,
}
PAGE = "http://site.example/"


class Pages(Spider):
    name = "pages"

    def parse_other(self, response: object) -> None: ...


class NoFifo(RFPDupeFilter):
    """A filter of a project's own."""


def made(jobdir: Path | None, **own: Any) -> Crawler:
    """A crawler of which everything but the engine is real."""
    where = {} if jobdir is None else {"JOBDIR": str(jobdir)}
    crawler = get_crawler(Pages, {**OURS, **where, **own})
    crawler.spider = Pages.from_crawler(crawler)
    limits = SimpleNamespace(concurrency=10**6, delay=0.0, jitter=0.0)

    def key_of(request: Request) -> str:
        return str(request.meta.get("download_slot", "site.example"))

    engine = SimpleNamespace(
        downloader=SimpleNamespace(
            get_slot_key=key_of,
            _get_slot=lambda request: (key_of(request), limits),
            slots={},
            active=set(),
        ),
        _slot=SimpleNamespace(remove_request=lambda request: None, closing=None),
    )
    crawler.engine = engine  # type: ignore[assignment]
    return crawler


class Run:
    """A scheduler of one run, and what the engine would do with it."""

    def __init__(self, jobdir: Path | None, **own: Any) -> None:
        self.crawler = made(jobdir, **own)
        self.extension = extension_of(self.crawler, BackpressureExtension)
        scheduler = DurableScheduler.from_crawler(self.crawler)
        assert isinstance(scheduler, DurableScheduler)
        self.scheduler = scheduler
        assert self.crawler.spider is not None
        scheduler.open(self.crawler.spider)

    def push(self, path: str, **options: Any) -> bool:
        return self.scheduler.enqueue_request(Request(PAGE + path, **options))

    def take(self) -> Request | None:
        """The next request, which is fetched at once."""
        request = self.scheduler.next_request()
        if request is not None:
            self.extension.admission.release(self.extension.admission.flights.pop(request))
        return request

    def done(self, request: Request) -> None:
        self.crawler.engine._slot.remove_request(request)  # type: ignore[union-attr]

    def paths(self) -> list[str]:
        """Everything, in order."""
        found = []
        while (request := self.take()) is not None:
            found.append(request.url.removeprefix(PAGE))
            self.done(request)
        return found

    def stat(self, name: str) -> Any:
        return self.crawler.stats.get_value(name, 0)

    def close(self) -> None:
        self.scheduler.close("finished")
        self.extension.database.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """``run(jobdir=True, **settings)``: a new run, after the one before it has ended."""
    runs: list[Run] = []

    def start(*, jobdir: bool = True, **own: Any) -> Run:
        if runs:
            runs[-1].close()
        runs.append(Run(tmp_path / "job" if jobdir else None, **own))
        return runs[-1]

    yield start
    if runs:
        runs[-1].close()


@contextmanager
def stock(jobdir: Path, **own: Any) -> Iterator[Scheduler]:
    """Scrapy's scheduler, with a queue that knows no slots."""
    queue = "scrapy.pqueues.ScrapyPriorityQueue"
    crawler = made(jobdir, **{"EXTENSIONS": {}, "SCHEDULER_PRIORITY_QUEUE": queue, **own})
    scheduler = Scheduler.from_crawler(crawler)
    assert crawler.spider is not None
    scheduler.open(crawler.spider)
    yield scheduler
    scheduler.close("finished")


# Scrapy 2.14 does not close the files of its queues.
UNCLOSED = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

# -- order -----------------------------------------------------------------------------------

FIFO = {
    "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
    "SCHEDULER_START_DISK_QUEUE": None,
}
STEPS = st.one_of(
    st.tuples(st.integers(-2, 2), st.booleans()),  # a request: priority, whether of start()
    st.just("take"),
    st.just("stop"),
)


@UNCLOSED
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(STEPS, max_size=40), st.sampled_from([{}, FIFO, {"SCHEDULER_START_DISK_QUEUE": None}])
)
def test_order_within_a_slot_is_that_of_scrapy_over_runs(tmp_path, steps, own) -> None:
    for name in ("ours", "theirs"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    steps = [*steps, *["take"] * len(steps)]
    orders = []

    def play(steps: list[Any], take: Any, push: Any) -> list[str]:
        """Up to the next stop, which is removed with what was before it."""
        found = []
        while steps and (step := steps.pop(0)) != "stop":
            if step == "take":
                found.append(take())
            else:
                priority, is_start = step
                meta = {"is_start_request": True} if is_start else {}
                url = f"{PAGE}{len(steps)}"
                push(Request(url, priority=priority, meta=meta, dont_filter=True))
        return found

    left, found = list(steps), []
    while left:
        ours = Run(tmp_path / "ours", **own)

        def take(ours=ours) -> str | None:
            request = ours.take()
            if request is None:
                return None
            ours.done(request)
            return str(request.url)

        found += play(left, take, ours.scheduler.enqueue_request)
        ours.close()
    orders.append(found)
    left, found = list(steps), []
    while left:
        with stock(tmp_path / "theirs", **own) as theirs:

            def take_theirs(theirs=theirs) -> str | None:
                request = theirs.next_request()
                return None if request is None else request.url

            found += play(left, take_theirs, theirs.enqueue_request)
    orders.append(found)
    assert orders[0] == orders[1]


def test_what_stays_in_memory_keeps_its_place(run) -> None:
    ours = run()
    for number, priority in enumerate((0, 1, 0, 1)):
        callback = (lambda response: None) if number in (1, 2) else None
        ours.push(str(number), priority=priority, callback=callback)
    assert ours.paths() == ["3", "1", "2", "0"]


def test_slots_take_turns(run) -> None:
    ours = run()
    for number in range(6):
        ours.push(str(number), meta={"download_slot": "ab"[number // 3]})
    assert ours.scheduler.slot_length("a") == 3
    assert ours.paths() == ["2", "5", "1", "4", "0", "3"]


# -- the filter ------------------------------------------------------------------------------


def test_what_was_seen_is_refused_in_the_next_run_as_well(run, caplog) -> None:
    with caplog.at_level(logging.DEBUG):
        ours = run()
        assert ours.push("1")
        assert not ours.push("1")
        assert ours.push("1", dont_filter=True)
        ours = run()
        assert not ours.push("1")
    assert ours.stat("dupefilter/filtered") == 1
    assert caplog.text.count("Filtered duplicate request") == 2
    assert "no more duplicates will be shown" in caplog.text


def test_filter_of_the_project_is_asked_instead(run, tmp_path) -> None:
    ours = run(DUPEFILTER_CLASS=NoFifo)
    assert ours.push("1")
    assert not ours.push("1")
    assert ours.stat("dupefilter/filtered") == 1
    ours = run(DUPEFILTER_CLASS=NoFifo)
    assert not ours.push("1")
    assert (tmp_path / "job" / "requests.seen").exists()
    assert not ours.scheduler._store.has_seen(
        ours.crawler.request_fingerprinter.fingerprint(Request(PAGE + "1"))
    )


def test_request_that_was_in_memory_at_the_end_may_come_again(run) -> None:
    ours = run()
    for path in ("1", "2"):
        assert ours.push(path, callback=lambda response: None)
        assert not ours.push(path)
    request = ours.take()
    ours.done(request)
    ours = run()
    assert [path for path in ("1", "2") if ours.push(path)] == ["1"]


def test_request_in_memory_is_seen_once_its_retry_is_done(run) -> None:
    for retry_ends in (False, True):
        ours = run()
        assert ours.push("1", callback=lambda response: None)
        request = ours.take()
        ours.scheduler.enqueue_request(request.replace(dont_filter=True))
        ours.extension.accounts.ends[request] = MOVED
        ours.done(request)
        if retry_ends:
            retry = ours.take()
            ours.extension.accounts.ends[retry] = "handled"
            ours.done(retry)
    assert not run().push("1")


def test_redirect_to_a_page_that_was_seen_is_a_duplicate_in_the_books_of_all_runs(run) -> None:
    ours = run()
    accounts, spider = ours.extension.accounts, ours.crawler.spider
    ours.push("old")
    ours.push("new")
    request = ours.scheduler.next_request()
    redirect = Request(PAGE + "old")
    accounts.fetch_started(request)
    accounts.fetch_ended(request, redirect)
    accounts.request_scheduled(redirect, spider)
    accounts.enqueued(redirect, ours.scheduler.enqueue_request(redirect))
    ours.done(request)
    assert ours.extension.database.totals.ledger().dropped == {"dupefilter": 1}


# -- what is left ----------------------------------------------------------------------------


def test_request_whose_page_is_not_done_is_there_in_the_next_run(run) -> None:
    ours = run()
    for path in ("1", "2", "3"):
        ours.push(path, cb_kwargs={"at": path}, callback=ours.crawler.spider.parse_other)
    ours.done(ours.take())
    ours.take()
    assert len(ours.scheduler) == 1
    ours = run()
    assert len(ours.scheduler) == 2
    request = ours.take()
    assert (request.url, request.cb_kwargs) == (PAGE + "2", {"at": "2"})
    assert request.callback == ours.crawler.spider.parse_other
    assert ours.paths() == ["1"]
    assert not ours.scheduler.has_pending_requests()


def test_request_whose_fetch_the_end_of_the_process_cancels_has_not_ended(run) -> None:
    ours = run()
    ours.push("1")
    request = ours.scheduler.next_request()
    accounts = ours.extension.accounts
    accounts.fetch_started(request)
    cancelled = Failure(asyncio.CancelledError())  # type: ignore[no-untyped-call]
    accounts.fetch_ended(request, cancelled)
    assert not accounts.ledger.dead
    assert accounts.end_of(request) is None
    assert run().paths() == ["1"]


def test_stats_are_those_of_scrapy(run) -> None:
    ours = run()
    ours.push("1")
    ours.push("2", callback=lambda response: None)
    ours.paths()
    counts = {
        name: ours.stat(f"scheduler/{name}")
        for way in ("enqueued", "dequeued")
        for name in (way, f"{way}/disk", f"{way}/memory")
    }
    assert counts == {
        "enqueued": 2,
        "enqueued/disk": 1,
        "enqueued/memory": 1,
        "dequeued": 2,
        "dequeued/disk": 1,
        "dequeued/memory": 1,
    }
    assert ours.stat("scheduler/unserializable") == 1


def test_drain_gives_what_only_memory_has(run, caplog) -> None:
    ours = run()
    for number in range(3):
        ours.push(str(number), callback=(lambda response: None) if number else None)
    assert sorted(request.url for request in ours.scheduler.drain()) == [PAGE + "1", PAGE + "2"]
    assert len(ours.scheduler) == 1
    assert caplog.text.count("would not survive a stop") == 1


def test_drain_leaves_what_was_written_where_the_last_commit_fails(run, monkeypatch) -> None:
    def fail(*_: Any) -> Any:
        raise sqlite3.OperationalError("database or disk is full")

    ours = run()
    ours.push("written")
    ours.extension.database.commit()
    ours.push("new")
    with monkeypatch.context() as broken:
        broken.setattr(ours.extension.database, "commit", fail)
        assert [request.url for request in ours.scheduler.drain()] == [PAGE + "new"]
    assert run().paths() == ["written"]


def test_drain_gives_everything_without_a_jobdir(run) -> None:
    ours = run(jobdir=False)
    shared: dict[str, Any] = {}
    ours.push("1", meta={"shared": shared})
    ours.push("2")
    assert ours.stat("scheduler/enqueued/memory") == 1
    assert ours.stat("scheduler/unserializable") == 0
    requests = {request.url: request for request in ours.scheduler.drain()}
    assert set(requests) == {PAGE + "1", PAGE + "2"}
    assert requests[PAGE + "1"].meta["shared"] is shared
    assert len(ours.scheduler) == 0


def test_request_that_the_spider_cannot_read_is_left_for_a_run_that_can(
    run, monkeypatch, caplog
) -> None:
    ours = run()
    ours.push("1", callback=ours.crawler.spider.parse_other)
    ours.push("2")
    with monkeypatch.context() as renamed:
        renamed.delattr(Pages, "parse_other")
        ours = run()
        assert ours.paths() == ["2"]
        assert ours.stat("backpressure/scheduler/unreadable") == 1
        assert ours.extension.accounts.ledger.persisted == 1
    assert "is left for the next run" in caplog.text
    assert run().paths() == ["1"]


def test_engine_is_done_with_a_request_although_that_cannot_be_noted(run) -> None:
    ours = run()
    removed: list[Request] = []
    ours.crawler.engine._slot.remove_request = removed.append

    def fail(request: Request) -> None:
        raise ValueError("a fingerprinter of the project that fails")

    _scrapy.watch_done(ours.crawler.engine, fail)
    request = Request(PAGE)
    with pytest.raises(ValueError, match="of the project"):
        ours.done(request)
    assert removed == [request]


def test_queue_that_cannot_be_read_is_tried_again_later(run, monkeypatch, caplog) -> None:
    ours = run()
    ours.push("1")
    now = [ours.extension.clock.now()]
    monkeypatch.setattr(ours.scheduler, "_now", lambda: now[0])
    monkeypatch.setattr(ours.extension.admission, "wake_at", lambda when: None)

    def fail(*_: Any) -> Any:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(ours.scheduler._store, "lease", fail)
        assert ours.take() is None
    assert "Cannot read the queue" in caplog.text
    assert ours.take() is None
    now[0] += 11
    assert ours.paths() == ["1"]


def test_request_that_cannot_be_written_stays_in_memory(run, monkeypatch, caplog) -> None:
    ours = run()

    def fail(*_: Any, **__: Any) -> Any:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(ours.scheduler._store, "push", fail)
        assert ours.push("1")
    assert "stays in memory" in caplog.text
    assert not ours.push("1")
    assert ours.paths() == ["1"]


def test_nothing_is_sent_while_too_much_waits_for_a_full_disk(run, monkeypatch) -> None:
    monkeypatch.setattr(sqlite, "_MOST_CHANGES", 5)
    ours = run()
    for number in range(6):
        ours.push(str(number))
    ours.extension.database.stuck = True
    assert ours.take() is None
    assert ours.scheduler.has_pending_requests()
    assert ours.extension.database.write()
    assert len(ours.paths()) == 6


# -- a JOBDIR of Scrapy's own scheduler ------------------------------------------------------


@UNCLOSED
@pytest.mark.parametrize(
    "own", [{}, FIFO, {"SCHEDULER_PRIORITY_QUEUE": "scrapy_backpressure.SlotAwarePriorityQueue"}]
)
def test_what_scrapy_left_goes_on_in_the_same_order(run, tmp_path, own) -> None:
    def fill(scheduler: Scheduler) -> None:
        for number in range(12):
            meta = {"is_start_request": True} if number % 4 == 0 else {}
            scheduler.enqueue_request(Request(f"{PAGE}{number}", priority=number % 3, meta=meta))

    with stock(tmp_path / "job", **own) as theirs:
        fill(theirs)
    with stock(tmp_path / "other", **own) as theirs:
        fill(theirs)
        expected = []
        while (request := theirs.next_request()) is not None:
            expected.append(request.url.removeprefix(PAGE))
    ours = run(**own)
    assert not ours.push("3")  # seen by Scrapy's filter
    assert ours.push("new")
    found = ours.paths()
    assert len(found) == 13
    found.remove("new")
    assert found == expected
    assert not (tmp_path / "job" / "requests.queue").exists()
    assert (tmp_path / "job" / "requests.queue.imported").is_dir()
    assert (tmp_path / "job" / "requests.seen.imported").is_file()
    assert len(run(**own).scheduler) == 0


@UNCLOSED
def test_take_over_that_was_killed_before_its_end_is_not_repeated(run, tmp_path) -> None:
    def left(path: str) -> None:
        with stock(tmp_path / "job") as theirs:
            theirs.enqueue_request(Request(PAGE + path))

    left("1")
    run()
    queue = tmp_path / "job" / "requests.queue"
    queue.with_name("requests.queue.imported").rename(queue)
    assert run().paths() == ["1"]
    assert not queue.exists()
    left("2")  # another one, which is taken over as well
    assert run().paths() == ["2"]


def test_file_of_a_filter_of_the_project_is_nothing_to_take_over(run, caplog) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        run(DUPEFILTER_CLASS=NoFifo).push("1")
    assert "Took over" not in caplog.text


def test_fingerprints_are_read_in_either_format(run, tmp_path) -> None:
    (tmp_path / "job").mkdir()
    fingerprinter = made(None).request_fingerprinter
    lines = b"".join(
        fingerprinter.fingerprint(Request(PAGE + path)).hex().encode() + b"\n" for path in "12"
    )
    (tmp_path / "job" / "requests.seen").write_bytes(lines[:-1])
    ours = run()
    assert [path for path in "123" if ours.push(path)] == ["3"]
    sized = b"".join(b"\0\x14" + fingerprinter.fingerprint(Request(PAGE + path)) for path in "45")
    (tmp_path / "job" / "requests.seen").write_bytes(sized[:-1])  # cut off by a kill
    ours = run()
    assert [path for path in "456" if ours.push(path)] == ["5", "6"]
    assert (tmp_path / "job" / "requests.seen.imported-2").exists()


@UNCLOSED
def test_what_cannot_be_taken_over_is_refused_and_left_as_it_is(tmp_path) -> None:
    with stock(tmp_path / "job") as theirs:
        for path in "12":
            theirs.enqueue_request(Request(PAGE + path))
    state = tmp_path / "job" / "requests.queue" / "active.json"
    before = state.read_text(encoding="utf-8")
    state.write_text(json.dumps("of another queue"), encoding="utf-8")
    with pytest.raises(RuntimeError, match=r"SCHEDULER = .*Scheduler.*, or use another JOBDIR"):
        Run(tmp_path / "job")
    state.write_text(before, encoding="utf-8")
    with stock(tmp_path / "job") as theirs:
        assert len(theirs) == 2
        assert not theirs.enqueue_request(Request(PAGE + "1"))


def test_queue_of_a_killed_run_of_scrapy_is_told_of(run, tmp_path, caplog) -> None:
    with stock(tmp_path / "job") as theirs:
        theirs.enqueue_request(Request(PAGE + "1"))
    (tmp_path / "job" / "requests.queue" / "active.json").unlink()
    assert len(run().scheduler) == 0
    assert "is of a run that was killed" in caplog.text


# -- set-up ----------------------------------------------------------------------------------


def test_disabled_package_leaves_scrapys_scheduler(tmp_path) -> None:
    crawler = made(None, BACKPRESSURE_ENABLED=False)
    assert type(DurableScheduler.from_crawler(crawler)) is Scheduler


def test_scheduler_without_the_extension_says_what_to_add() -> None:
    with pytest.raises(Exception, match="DurableScheduler needs BackpressureExtension"):
        DurableScheduler.from_crawler(made(None, EXTENSIONS={}))
