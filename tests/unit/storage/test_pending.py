"""Requests of the scheduler in SQLite: their order, their leases, and what a kill leaves."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrapy_backpressure.storage import opening, pending
from scrapy_backpressure.storage.parked import ParkedRequests
from scrapy_backpressure.storage.pending import PendingRequests
from scrapy_backpressure.storage.sqlite import Database
from scrapy_backpressure.storage.totals import MOVED


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job" / "backpressure.sqlite"


def opened(path: Path) -> PendingRequests:
    return PendingRequests(Database(path))


def push(store: PendingRequests, number: int, slot: str = "a", fingerprint: bytes | None = None):
    data = b"%06d" % number
    store.push(number, data, slot=slot, urgency=0, rank=-number, fingerprint=fingerprint)


def lease(store: PendingRequests, slot: str = "a") -> int | None:
    row = store.lease(slot)
    return None if row is None else int(row.data)


def copied(path: Path) -> Path:
    """What a kill at this moment would leave."""
    copy = path.with_name("copy.sqlite")
    for suffix in ("", "-wal"):
        copy.with_name(copy.name + suffix).unlink(missing_ok=True)
        if path.with_name(path.name + suffix).exists():
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    return copy


class TestLeases:
    def test_what_is_leased_does_not_wait(self, path):
        store = opened(path)
        push(store, 1)
        assert lease(store) == 1
        assert len(store) == store.slots["a"] == 0
        assert lease(store) is None
        store.database.close()

    def test_lease_of_a_run_that_ended_waits_again(self, path):
        store = opened(path)
        for number in (1, 2, 3):
            push(store, number)
        assert lease(store) == 3
        assert lease(store) == 2
        store.finish(3, "handled")
        store.database.close()
        store = opened(path)
        assert len(store) == 2
        assert [lease(store), lease(store), lease(store)] == [2, 1, None]
        store.database.close()

    def test_nothing_comes_out_that_is_not_before_the_given_place(self, path):
        store = opened(path)
        push(store, 1)
        assert store.lease("a", (0, -1)) is None
        assert store.lease("a", (0, 0)) is not None
        store.database.close()

    def test_priority_beyond_what_sqlite_can_hold_is_kept_in_order(self, path):
        store = opened(path)
        for number, urgency in enumerate((10**30, 0, -(10**30)), start=1):
            store.push(number, b"%d" % number, slot="a", urgency=urgency, rank=number)
        assert [lease(store) for _ in range(3)] == [3, 2, 1]
        store.database.close()

    def test_bytes_that_changed_on_disk_are_told(self, path):
        store = opened(path)
        push(store, 1)
        store.database.close()
        store = opened(path)
        store.database.read("UPDATE requests SET data = x'00'")
        row = store.lease("a")
        assert row is not None
        assert not row.is_whole
        store.database.close()

    def test_all_come_out_once_in_batches(self, path):
        store = opened(path)
        for number in range(1, 6):
            push(store, number, slot="ab"[number % 2])
        found = [*store.pop_all(2), *store.pop_all(2), *store.pop_all(2), *store.pop_all(2)]
        assert sorted(map(int, found)) == [1, 2, 3, 4, 5]
        assert len(store) == len(store.slots) == 0
        store.database.close()


class TestHeads:
    """The first requests of each slot are in memory as well."""

    @settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["push", "push", "lease", "lease", "finish", "count", "pop_all"]),
                st.sampled_from("ab"),
                st.integers(-2, 2),
                st.integers(0, 3),
            ),
            max_size=80,
        )
    )
    def test_order_is_that_of_the_file_whatever_is_in_memory(self, monkeypatch, steps):
        monkeypatch.setattr(pending, "_BATCH", 2)
        monkeypatch.setattr(pending, "_MOST_CACHED", 5)
        store = PendingRequests(Database(None))
        waiting: dict[str, list[tuple[int, int, int]]] = {"a": [], "b": []}
        leased: list[int] = []
        for number, (step, slot, urgency, spread) in enumerate(steps, start=1):
            if step == "push":
                rank = number * (1 if spread % 2 else -1)
                store.push(number, b"%d" % number, slot=slot, urgency=urgency, rank=rank)
                waiting[slot] = sorted([*waiting[slot], (urgency, rank, number)])
            elif step == "lease":
                row = store.lease(slot)
                expected = waiting[slot].pop(0)[2] if waiting[slot] else None
                assert (None if row is None else row.id) == expected
                if row is not None:
                    assert int(row.data) == row.id
                    leased.append(row.id)
            elif step == "finish" and leased:
                store.finish(leased.pop(spread % len(leased)), "handled")
            elif step == "count":
                store._count()
            elif step == "pop_all":
                popped = [int(data) for data in store.pop_all(spread)]
                line = [number for slot in "ab" for _, _, number in waiting[slot]]
                assert popped == line[:spread]
                for name in "ab":
                    waiting[name] = [entry for entry in waiting[name] if entry[2] not in popped]
            assert store.slots == {name: len(line) for name, line in waiting.items() if line}
            assert len(store) == sum(map(len, waiting.values()))
            held = sum(len(head.line) for head in store._heads.values())
            assert held == store._cached <= 5 + 2
        store.database.close()

    def test_what_was_kept_with_a_request_spares_reading_it(self, path):
        store = opened(path)
        store.push(1, b"1", slot="a", urgency=0, rank=1, keep="one")
        row = store.lease("a")
        assert row is not None
        assert (row.id, row.kept) == (1, "one")
        store.database.close()

    def test_slots_without_number_do_not_fill_the_memory(self, path):
        store = opened(path)
        for number in range(1, 40_001):
            push(store, number, slot=f"s{number % 20_000}")
        assert store._cached <= pending._MOST_CACHED
        for number in range(20_000):
            assert store.lease(f"s{number}") is not None
        assert store._cached <= pending._MOST_CACHED + pending._BATCH
        store.database.close()


class TestKill:
    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.lists(
            st.sampled_from(["push", "page", "replace", "park", "release", "commit"]),
            min_size=60,
            max_size=200,
        ),
        st.randoms(use_true_random=False),
    )
    def test_it_leaves_the_state_after_some_operation_since_the_last_commit(
        self, tmp_path, steps, rng
    ):
        """A page leads to requests and then ends; a retry replaces its page in one go."""
        folder = tmp_path / "kill"
        shutil.rmtree(folder, ignore_errors=True)
        path = folder / "backpressure.sqlite"
        store = opened(path)
        parked = ParkedRequests(store.database)
        number = 0
        requests: set[int] = set()
        waiting: set[int] = set()
        seen: set[int] = set()
        states = [(frozenset(requests), frozenset(waiting), frozenset(seen))]

        def note() -> None:
            states.append((frozenset(requests), frozenset(waiting), frozenset(seen)))

        def new() -> None:
            nonlocal number
            number += 1
            push(store, number, fingerprint=b"%06d" % number)
            requests.add(number)
            seen.add(number)

        for step in steps:
            page = lease(store) if step in ("page", "replace") else None
            if step == "push":
                new()
            elif step == "page" and page is not None:
                for _ in range(rng.randrange(5)):
                    new()
                    note()
                store.finish(page, "handled")
                requests.discard(page)
            elif step == "replace" and page is not None:
                new()
                store.finish(page, MOVED)
                requests.discard(page)
            elif step == "park":
                number += 1
                parked.park(b"%06d" % number, due=0.0, slot="a")
                waiting.add(number)
            elif step == "release":
                with store.database.together():
                    for data in [row.data for row in parked.pop_due(1.0, 100)]:
                        waiting.discard(int(data))
                        push(store, int(data))
                        requests.add(int(data))
            elif step == "commit":
                store.database.commit()
                states.clear()
            note()
            if rng.random() < 0.2:
                survivor = opened(copied(path))
                assert survivor.database.totals.ledger().lost == 0
                left = [int(data) for data in survivor.pop_all(1000)]
                still = [int(row.data) for row in ParkedRequests(survivor.database).pop_all(1000)]
                known = {
                    int(fingerprint)
                    for (fingerprint,) in survivor.database.read("SELECT fingerprint FROM seen")
                }
                survivor.database.close()
                assert (frozenset(left), frozenset(still), frozenset(known)) in states
                assert len(left) == len(set(left))
        store.database.close()

    def test_no_more_than_a_batch_is_lost(self, path):
        store = opened(path)
        for number in range(1, 201):
            push(store, number)
        survivor = opened(copied(path))
        assert len(survivor) > 100
        survivor.database.close()
        store.database.close()


class TestFile:
    def test_a_file_of_the_first_version_is_upgraded_in_place(self, path):
        path.parent.mkdir()
        with sqlite3.connect(path) as db:
            for sql in opening._PARKED:
                db.execute(sql)
            db.execute("INSERT INTO parked VALUES (7, 1.5, 'a', x'00', 3523407757)")
            db.execute("PRAGMA user_version = 1")
        db.close()
        store = opened(path)
        parked = ParkedRequests(store.database)
        assert [row.data for row in parked.pop_due(2.0, 10)] == [b"\0"]
        push(store, 1)
        store.database.close()
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]
        store = opened(path)
        assert len(store) == 1
        store.database.close()

    def test_a_damaged_file_of_the_first_version_gives_back_what_was_parked(self, path, caplog):
        path.parent.mkdir()
        with sqlite3.connect(path) as db:
            for sql in opening._PARKED:
                db.execute(sql)
            rows = [(n, 1.5, "a", bytes(500), 0) for n in range(1, 100)]
            db.executemany("INSERT INTO parked VALUES (?, ?, ?, ?, ?)", rows)
            db.execute("UPDATE parked SET checksum = 42187130")  # of 500 zeros
            db.execute("PRAGMA user_version = 1")
        db.close()
        os.truncate(path, path.stat().st_size // 2)
        database = Database(path)
        assert 10 < len(ParkedRequests(database)) < 99
        assert len(PendingRequests(database)) == 0
        database.close()

    def filled(self, path: Path, count: int = 300) -> None:
        store = opened(path)
        for number in range(1, count + 1):
            data = b"%06d" % number + os.urandom(500)
            store.push(
                number,
                data,
                slot="a",
                urgency=0,
                rank=-number,
                fingerprint=b"seen %d" % number,
            )
        store.lease("a")
        store.database.close()

    def test_damage_costs_what_stood_there_and_the_warning_says_how_many(self, path, caplog):
        self.filled(path)
        damaged = bytearray(path.read_bytes())
        page = int.from_bytes(damaged[16:18], "big")
        at = damaged.index(b"000100") // page * page
        damaged[at : at + page] = bytes(page)
        path.write_bytes(damaged)
        store = opened(path)
        kept = len(store)
        assert 280 < kept < 300
        assert f"{kept} carried over, {300 - kept} lost" in caplog.text
        assert all(store.has_seen(b"seen %d" % number) for number in range(1, 301))
        store.database.close()

    def test_damage_that_is_met_in_the_middle_of_the_crawl_is_repaired(
        self, path, caplog, monkeypatch
    ):
        monkeypatch.setattr(opening, "_CHECKED_BYTES", 0)  # as if the file were large
        self.filled(path)
        damaged = bytearray(path.read_bytes())
        page = int.from_bytes(damaged[16:18], "big")
        at = damaged.index(b"000100") // page * page
        damaged[at : at + page] = bytes(page)
        path.write_bytes(damaged)
        with caplog.at_level(logging.WARNING):
            store = opened(path)
            found = set()
            while len(store):
                try:
                    row = store.lease("a")
                except sqlite3.DatabaseError:
                    continue
                assert row is not None
                found.add(row.id)
        assert "is damaged" in caplog.text
        assert 280 < len(found) < 300
        store.database.close()


class TestFullDisk:
    def test_what_cannot_be_kept_is_not_seen_either(self, path):
        store = opened(path)
        pages = store.database.read("PRAGMA page_count").fetchone()[0]
        store.database.read(f"PRAGMA max_page_count = {pages + 5}")
        number = 0
        with pytest.raises(sqlite3.Error, match="full"):  # noqa: PT012 (which one is not known)
            while number < 100:
                number += 1
                fingerprint = b"%06d" % number
                data = bytes(1000)
                store.push(number, data, slot="a", urgency=0, rank=number, fingerprint=fingerprint)
        assert not store.has_seen(b"%06d" % number)
        seen = sum(store.has_seen(b"%06d" % earlier) for earlier in range(1, number))
        assert len(store) == seen
        store.database.close()


@pytest.mark.skipif(sys.platform == "win32", reason="needs the resource module")
def test_memory_does_not_grow_with_the_queue():
    script = """
import os, resource
from scrapy_backpressure.storage.pending import PendingRequests
from scrapy_backpressure.storage.sqlite import Database

store = PendingRequests(Database(None))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for number in range(60_000):
    data = os.urandom(1000)
    store.push(
        number, data, slot=f"s{number % 100}", urgency=0, rank=number, fingerprint=data[:20]
    )
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
    )
    assert int(result.stdout) < 20_000  # KiB; the data is 60 MB
