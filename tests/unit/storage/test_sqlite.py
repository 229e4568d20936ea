from __future__ import annotations

import logging
import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scrapy_backpressure.storage import sqlite
from scrapy_backpressure.storage.parked import ParkedRequests, ParkedRow
from scrapy_backpressure.storage.sqlite import Database

HOLDER = """
import sys
from scrapy_backpressure.storage.parked import ParkedRequests
from scrapy_backpressure.storage.sqlite import Database

database = Database(sys.argv[1])
parked = ParkedRequests(database)
for number in range(3):
    parked.park(b"request %d" % number, due=float(number), slot="a")
database.commit()
parked.park(b"not committed", due=9.0, slot="a")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job" / "backpressure.sqlite"


@pytest.fixture(params=["file", "temporary"])
def parked(request, path):
    parked = ParkedRequests(Database(path if request.param == "file" else None))
    yield parked
    parked.database.close()


def start_holder(path: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def filled(path: Path, count: int = 300, size: int = 500) -> set[bytes]:
    """Make a database of *count* requests, and return them."""
    parked = ParkedRequests(Database(path))
    content = {b"%06d" % number + os.urandom(size) for number in range(count)}
    for number, data in enumerate(sorted(content)):
        parked.park(data, due=float(number), slot=f"site{number % 3}")
    parked.database.close()
    return content


def data_of(rows: list[ParkedRow]) -> list[bytes]:
    return [row.data for row in rows]


def drain(parked: ParkedRequests) -> list[bytes]:
    result = []
    while batch := parked.pop_all(100):
        result += data_of(batch)
    return result


class TestOrder:
    def test_oldest_due_comes_first(self, parked):
        for due in (3.0, 1.0, 2.0):
            parked.park(b"%d" % due, due=due, slot="a")
        assert data_of(parked.pop_due(10.0, 10)) == [b"1", b"2", b"3"]

    def test_what_is_due_at_the_same_time_comes_in_the_order_of_parking(self, parked):
        for number in range(3):
            parked.park(b"%d" % number, due=1.0, slot="a")
        assert data_of(parked.pop_due(1.0, 10)) == [b"0", b"1", b"2"]

    def test_what_is_not_due_stays(self, parked):
        parked.park(b"early", due=1.0, slot="a")
        parked.park(b"late", due=1.5, slot="a")
        assert data_of(parked.pop_due(1.4, 10)) == [b"early"]
        assert len(parked) == 1

    def test_no_more_than_the_limit_come_out(self, parked):
        for number in range(5):
            parked.park(b"%d" % number, due=float(number), slot="a")
        assert data_of(parked.pop_due(10.0, 2)) == [b"0", b"1"]

    def test_pop_all_also_takes_what_is_never_due(self, parked):
        parked.park(b"never", due=math.inf, slot="a")
        assert parked.pop_due(1e12, 10) == []
        assert data_of(parked.pop_all(10)) == [b"never"]

    def test_next_due_is_the_earliest(self, parked):
        parked.park(b"", due=2.0, slot="a")
        parked.park(b"", due=1.0, slot="b")
        assert parked.next_due() == 1.0

    def test_next_due_of_nothing_is_none(self, parked):
        assert parked.next_due() is None

    def test_a_due_time_that_is_no_number_is_refused(self, parked):
        with pytest.raises(ValueError, match="nan"):
            parked.park(b"", due=math.nan, slot="a")

    @settings(max_examples=40, deadline=None)
    @given(
        st.lists(
            st.one_of(
                st.tuples(st.floats(0, 100), st.sampled_from(["a", "b", "ü"])),
                st.tuples(st.just("pop"), st.floats(0, 100), st.integers(0, 5)),
                st.just(("commit",)),
            ),
            max_size=60,
        )
    )
    def test_it_behaves_as_a_sorted_list(self, operations):
        parked = ParkedRequests(Database(None))
        model: list[tuple[float, int, str]] = []
        for number, operation in enumerate(operations):
            if operation[0] == "pop":
                _, now, limit = operation
                expected = sorted(entry for entry in model if entry[0] <= now)[:limit]
                assert data_of(parked.pop_due(now, limit)) == [
                    b"%d" % entry[1] for entry in expected
                ]
                model = [entry for entry in model if entry not in expected]
            elif operation[0] == "commit":
                parked.database.commit()
            else:
                due, slot = operation
                parked.park(b"%d" % number, due=due, slot=slot)
                model.append((due, number, slot))
            slots = [slot for _, _, slot in model]
            assert len(parked) == len(model)
            assert all(parked.slot_count(slot) == slots.count(slot) for slot in "abü")
            assert parked.next_due() == min((due for due, _, _ in model), default=None)
        parked.database.close()


class TestFile:
    def test_everything_is_there_after_reopening(self, path):
        content = filled(path)
        parked = ParkedRequests(Database(path))
        assert len(parked) == 300
        assert parked.slot_count("site1") == 100
        assert set(drain(parked)) == content
        parked.database.close()

    def test_closing_twice_is_harmless(self, parked):
        parked.database.close()
        parked.database.close()

    def test_what_was_committed_survives_a_kill(self, path):
        kill(start_holder(path))
        parked = ParkedRequests(Database(path))
        assert drain(parked) == [b"request 0", b"request 1", b"request 2"]
        parked.database.close()

    def test_operations_are_committed_without_being_told(self, path):
        parked = ParkedRequests(Database(path))
        for number in range(200):
            parked.park(b"", due=float(number), slot="a")
        copy = path.with_name("copy.sqlite")  # what a kill at this moment would leave
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
        survivor = ParkedRequests(Database(copy))
        assert len(survivor) > 100
        survivor.database.close()
        parked.database.close()

    def test_a_second_process_is_told_that_the_jobdir_is_in_use(self, path):
        holder = start_holder(path)
        try:
            with pytest.raises(RuntimeError, match=r"JOBDIR .*job is in use by another crawl"):
                Database(path)
        finally:
            kill(holder)

    def test_a_second_crawl_in_this_process_is_told_as_well(self, path):
        parked = ParkedRequests(Database(path))
        with pytest.raises(RuntimeError, match="in use by another crawl"):
            Database(path)
        parked.database.close()

    def test_a_newer_schema_is_refused_and_left_alone(self, path):
        filled(path, 3)
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 7")
        db.close()
        with pytest.raises(RuntimeError, match=r"newer version of scrapy-backpressure \(schema 7"):
            Database(path)
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]

    def test_a_database_of_another_program_is_refused(self, path):
        path.parent.mkdir()
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE theirs (id)")
        db.close()
        with pytest.raises(RuntimeError, match="another program"):
            Database(path)

    def test_a_path_that_cannot_be_opened_is_an_os_error(self, tmp_path):
        with pytest.raises(OSError, match="cannot be opened"):
            Database(tmp_path)


class TestDamage:
    def opened(self, path, caplog) -> tuple[ParkedRequests, str]:
        with caplog.at_level(logging.WARNING):
            parked = ParkedRequests(Database(path))
        return parked, caplog.text

    @pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
    def test_a_cut_file_gives_back_what_stands_before_the_cut(self, path, caplog, share):
        content = filled(path)
        os.truncate(path, int(path.stat().st_size * share))
        parked, _ = self.opened(path, caplog)
        found = drain(parked)
        parked.database.close()
        assert set(found) <= content
        assert len(found) > 300 * (share - 0.2)

    def test_the_warning_says_how_many_were_lost(self, path, caplog):
        filled(path)
        damaged = bytearray(path.read_bytes())
        page = int.from_bytes(damaged[16:18], "big")
        at = damaged.index(b"000100") // page * page
        damaged[at : at + page] = bytes(page)
        path.write_bytes(damaged)
        parked, text = self.opened(path, caplog)
        kept = len(parked)
        parked.database.close()
        assert 280 < kept < 300
        assert f"{kept} carried over, {300 - kept} lost" in text

    def test_the_damaged_file_is_kept_unchanged(self, path, caplog):
        filled(path)
        os.truncate(path, 20_000)
        before = path.read_bytes()
        self.opened(path, caplog)[0].database.close()
        (aside,) = path.parent.glob("backpressure.sqlite.corrupt-*")
        assert aside.read_bytes() == before
        assert str(aside) in caplog.text

    @pytest.mark.parametrize("content", [b"", b"not a database at all " * 500])
    def test_a_file_that_is_no_database_starts_empty_with_a_warning(self, path, caplog, content):
        path.parent.mkdir()
        path.write_bytes(content)
        parked, text = self.opened(path, caplog)
        assert len(parked) == 0
        assert "0 carried over, an unknown number lost" in text
        parked.database.close()

    def test_the_new_file_is_sound(self, path, caplog):
        filled(path)
        os.truncate(path, 50_000)
        self.opened(path, caplog)[0].database.close()
        caplog.clear()
        parked, text = self.opened(path, caplog)
        assert text == ""
        assert len(parked) > 0
        parked.database.close()

    def test_a_journal_cut_in_the_middle_of_a_write_gives_the_commits_before_it(self, path):
        kill(start_holder(path))
        journal = path.with_name(f"{path.name}-wal")
        os.truncate(journal, journal.stat().st_size - 100)
        parked = ParkedRequests(Database(path))
        assert set(drain(parked)) <= {b"request 0", b"request 1", b"request 2"}
        parked.database.close()

    @pytest.mark.parametrize(
        ("word", "other"), [(b"slot TEXT", b"sl0t TEXT"), (b"INTEGER PRIMARY", b"INTEGEQ PRIMARY")]
    )
    def test_a_changed_letter_of_the_schema_is_damage(self, path, caplog, word, other):
        filled(path, 3)
        path.write_bytes(path.read_bytes().replace(word, other))
        parked, text = self.opened(path, caplog)
        assert "is damaged" in text
        parked.park(b"new", due=1.0, slot="a")
        assert drain(parked)[-1] == b"new"
        assert len(parked) == 0
        parked.database.close()

    @settings(
        max_examples=60,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(st.integers(0, 2**32), st.integers(1, 300))
    @example(16966, 1)  # the header says that the file is only to be read
    def test_no_damage_keeps_it_from_opening(self, tmp_path, seed, length):
        rng = random.Random(seed)
        folder = tmp_path / "fuzz"
        shutil.rmtree(folder, ignore_errors=True)
        path = folder / "backpressure.sqlite"
        filled(path, 60)
        damaged = bytearray(path.read_bytes())
        # Every other one in the header or the first page, where it hurts most.
        at = rng.randrange(rng.choice([100, 4096, len(damaged)]))
        damaged[at : at + length] = rng.randbytes(length)
        damaged[60:64] = bytes([0, 0, 0, 2])  # the version: another one is another case
        path.write_bytes(damaged)
        parked = ParkedRequests(Database(path))
        while parked.pop_all(50):
            pass
        assert len(parked) == 0
        parked.database.close()


class TestFullDisk:
    def full(self, path) -> ParkedRequests:
        parked = ParkedRequests(Database(path))
        pages = parked.database.read("PRAGMA page_count").fetchone()[0]
        parked.database.read(f"PRAGMA max_page_count = {pages + 5}")
        return parked

    def park_until_full(self, parked) -> int:
        kept = 0
        with pytest.raises(sqlite3.Error, match="full"):  # noqa: PT012 (which one is not known)
            while kept < 100:
                parked.park(bytes(1000), due=1.0, slot="a")
                kept += 1
        return kept

    def test_park_raises_and_the_counts_stay_true(self, path, caplog):
        parked = self.full(path)
        kept = self.park_until_full(parked)
        if "lost its last" in caplog.text:
            kept = 0
        assert len(parked) == parked.slot_count("a") == kept
        assert len(drain(parked)) == kept
        parked.database.close()

    def test_it_goes_on_when_there_is_room_again(self, path):
        parked = self.full(path)
        self.park_until_full(parked)
        drain(parked)
        parked.park(b"later", due=1.0, slot="a")
        parked.database.close()
        parked = ParkedRequests(Database(path))
        assert drain(parked) == [b"later"]
        parked.database.close()


def test_commit_that_fails_is_tried_again_after_a_second_and_ever_later(path, monkeypatch):
    database = Database(path)
    now, tries = 0, []

    def fail():
        tries.append(now)
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(sqlite, "monotonic", lambda: float(now))
    with monkeypatch.context() as broken:
        broken.setattr(database.totals, "save", fail)
        for now in range(200):  # noqa: B007 - it is the time that monotonic() tells
            database.write_in_time()
        assert tries == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert database.write()
    assert not database.stuck
    database.close()


@pytest.mark.skipif(sys.platform == "win32", reason="needs the resource module")
def test_commit_that_meets_a_full_disk_costs_nothing_that_was_done(path):
    script = """
import resource, sqlite3, sys
from scrapy_backpressure.storage.parked import ParkedRequests
from scrapy_backpressure.storage.sqlite import Database

unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
database = Database(sys.argv[1])
parked = ParkedRequests(database)
resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, unlimited[1]))
number = 0
while not database.stuck:
    parked.park(b"%06d" % number + bytes(500), due=float(number), slot="a")
    number += 1
for _ in range(200):  # while it is full
    parked.park(b"%06d" % number + bytes(500), due=float(number), slot="a")
    number += 1
assert len(parked.pop_due(9.0, 100)) == 10
assert not database.write()
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
assert database.write()
database.close()
print(number)
"""
    result = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
    )
    parked = ParkedRequests(Database(path))
    assert [int(data[:6]) for data in drain(parked)] == list(range(10, int(result.stdout)))
    parked.database.close()


@pytest.mark.skipif(sys.platform == "win32", reason="needs the resource module")
def test_memory_does_not_grow_with_the_queue():
    script = """
import os, resource
from scrapy_backpressure.storage.parked import ParkedRequests
from scrapy_backpressure.storage.sqlite import Database

parked = ParkedRequests(Database(None))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for number in range(60_000):
    parked.park(os.urandom(1000), due=float(number), slot="a")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
    )
    assert int(result.stdout) < 20_000  # KiB; the data is 60 MB
