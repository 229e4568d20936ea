"""Parked requests in SQLite: bounded memory, and with a file, the next run finds them again."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import sqlite3
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1

_TABLE = """CREATE TABLE parked (
    id INTEGER PRIMARY KEY,
    due REAL NOT NULL,
    slot TEXT NOT NULL,
    data BLOB NOT NULL,
    checksum INTEGER NOT NULL
)"""
_INDEX = "CREATE INDEX parked_due ON parked (due)"
_SCHEMA = f"BEGIN; {_TABLE}; {_INDEX}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"

_COMMIT_EVERY = 64
"""Operations in a transaction: enough that its cost does not show, few enough to lose."""

_CACHE_KIB = 4096
"""Memory that SQLite may use for pages. What a temporary database has above it goes to disk."""

_BUSY_SECONDS = 1.0
"""How long to wait for a crawl that is just ending."""

_MAX_ID = 2**62

_INSERT = "INSERT INTO parked (due, slot, data, checksum) VALUES (?, ?, ?, ?)"
_ALL = "FROM parked ORDER BY due, id LIMIT ?"
_DUE = "FROM parked WHERE due <= ? ORDER BY due, id LIMIT ?"

_Row = tuple[float, str, bytes, int]


class ParkedRequests:
    """Requests that wait until they are due, as bytes.

    Operations are gathered into transactions of 64; :meth:`commit` ends one early. A process that
    is killed loses what it did since the last commit, never more, and never half an operation.

    A file belongs to one object at a time. One that is damaged when it is opened is kept aside
    (``….corrupt-<time>``), what can be read of it is carried over, and a warning says what was
    lost.

    An object without requests is false, as any empty container: compare with None to tell whether
    there is one.

    Args:
        path: the database file, made if it is not there. None: a private temporary database, gone
            when it is closed, that SQLite moves to disk (``SQLITE_TMPDIR``, else the temporary
            directory of the system) beyond 4 MiB.

    Raises:
        RuntimeError: another crawl has the file open, or a newer version of this package or
            another program wrote it.
        OSError: the file or its folder cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._db = _open_temporary() if path is None else _open_file(Path(path))
        self._closed = False
        self._operations = 0
        self._slots: Counter[str] = Counter()
        self._length = 0
        self._count()

    def park(self, data: bytes, *, due: float, slot: str) -> None:
        """Keep *data* until *due* (epoch seconds; may be infinite).

        Raises:
            ValueError: *due* is not a number.
            sqlite3.Error: it could not be kept, as when the disk is full.
        """
        if math.isnan(due):
            raise ValueError("due must be a number of seconds, got nan")
        with self._operation():
            self._db.execute(_INSERT, (due, slot, data, crc32(data)))
        self._length += 1
        self._slots[slot] += 1
        self._end_operations(1)

    def pop_due(self, now: float, limit: int) -> list[bytes]:
        """Remove and return up to *limit* requests that are due at *now* (epoch seconds), the
        longest due first.
        """
        return self._pop(_DUE, (now, limit))

    def pop_all(self, limit: int) -> list[bytes]:
        """Remove and return up to *limit* requests, due or not, in the order of their due times.

        Call it until it returns nothing.
        """
        return self._pop(_ALL, (limit,))

    def next_due(self) -> float | None:
        """Return when the next request is due (epoch seconds), or None if there is none."""
        if not self._length:
            return None
        due: float = self._db.execute("SELECT min(due) FROM parked").fetchone()[0]
        return due

    def __len__(self) -> int:
        return self._length

    def slot_count(self, slot: str) -> int:
        """Return how many requests are parked for *slot*."""
        return self._slots.get(slot, 0)

    def commit(self) -> None:
        """Make everything so far survive the end of the process, however it ends.

        Raises:
            sqlite3.Error: it could not be written. Nothing is lost yet: call again later.
        """
        if self._db.in_transaction:
            self._db.execute("COMMIT")
        self._operations = 0

    def close(self) -> None:
        """Commit and release the file. Further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self.commit()
        finally:
            self._db.close()

    def _pop(self, rows: str, parameters: tuple[float, ...]) -> list[bytes]:
        if not self._length:
            return []
        with self._operation():
            popped = self._db.execute(f"SELECT slot, data {rows}", parameters).fetchall()
            # One statement takes them all out, or none.
            self._db.execute(f"DELETE FROM parked WHERE id IN (SELECT id {rows})", parameters)
        for slot, _ in popped:
            self._length -= 1
            self._slots[slot] -= 1
            if not self._slots[slot]:
                del self._slots[slot]
        self._end_operations(len(popped))
        return [data for _, data in popped]

    @contextlib.contextmanager
    def _operation(self) -> Iterator[None]:
        if not self._db.in_transaction:
            self._db.execute("BEGIN")
        try:
            yield
        except sqlite3.Error:
            # Some failures, a full disk among them, make SQLite roll back the whole transaction
            # and not the one statement. Then the counts are those of the last commit again.
            if not self._db.in_transaction:
                logger.exception(
                    "The queue of parked requests lost its last %d operations", self._operations
                )
                self._operations = 0
                self._count()
            raise

    def _end_operations(self, count: int) -> None:
        self._operations += count
        if self._operations < _COMMIT_EVERY:
            return
        try:
            self.commit()
        except sqlite3.Error:
            # The operation itself is done. The transaction stays open for a later try.
            logger.exception("The queue of parked requests cannot be written to disk")
            self._operations = 0

    def _count(self) -> None:
        self._slots = Counter(
            dict(self._db.execute("SELECT slot, count(*) FROM parked GROUP BY slot"))
        )
        self._length = sum(self._slots.values())


def _connect(path: str) -> sqlite3.Connection:
    # isolation_level=None: no transaction begins or ends but where this module says so.
    db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    # Damaged text must not make a row unreadable.
    db.text_factory = lambda text: text.decode(errors="replace")
    return db


def _open_temporary() -> sqlite3.Connection:
    db = _connect("")
    db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    # Nobody reads it after a crash: no need to wait for the disk.
    db.execute("PRAGMA synchronous = OFF")
    db.execute("PRAGMA journal_mode = MEMORY")
    db.executescript(_SCHEMA)
    return db


def _open_file(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if path.exists() and not path.stat().st_size:
            raise sqlite3.DatabaseError("the file is empty")
        return _open_checked(path)
    # Damaged names of tables come as UnicodeDecodeError.
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        _raise_if_sound(error, path)
        _salvage(path, error)
    try:
        return _open_checked(path)
    except sqlite3.DatabaseError as error:
        _raise_if_sound(error, path)
        raise


def _open_checked(path: Path) -> sqlite3.Connection:
    db = _connect(str(path))
    try:
        # Held until the connection closes, and released by the system if the process dies. WAL
        # in this mode needs no shared memory, hence works on network file systems too.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        db.execute("PRAGMA journal_mode = WAL")
        # With WAL, NORMAL loses nothing when the process is killed; a power cut costs at most
        # the last transactions, and never the consistency of the file.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("BEGIN IMMEDIATE")
        # A damaged header may say that the file is only to be read, which shows at a write alone.
        version = db.execute("PRAGMA user_version").fetchone()[0]
        db.execute(f"PRAGMA user_version = {version}")
        db.execute("ROLLBACK")
        _check(db, path, version)
    except BaseException:
        db.close()
        raise
    return db


def _check(db: sqlite3.Connection, path: Path, version: int) -> None:
    if version > SCHEMA_VERSION:
        raise RuntimeError(
            f"{path} was written by a newer version of scrapy-backpressure (schema {version}, "
            f"this one knows {SCHEMA_VERSION}): upgrade it, or use another JOBDIR"
        )
    problem = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if problem != "ok":
        raise sqlite3.DatabaseError(problem)
    if version == 0:
        if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise RuntimeError(f"{path} is a database of another program: use another JOBDIR")
        db.executescript(_SCHEMA)
        return
    made = db.execute("SELECT sql FROM sqlite_master ORDER BY type DESC").fetchall()
    if made != [(_TABLE,), (_INDEX,)]:  # SQLite takes a letter that changed for meant
        raise sqlite3.DatabaseError("its tables are not those that were made")


def _raise_if_sound(error: Exception, path: Path) -> None:
    """Raise what a user can act on, if *error* is not of a kind that comes from damage."""
    if "locked" in str(error):
        raise RuntimeError(
            f"JOBDIR {path.parent} is in use by another crawl, which has {path.name} open: wait "
            f"for it to end, or use another JOBDIR"
        ) from error
    if not path.is_file() or not os.access(path, os.R_OK | os.W_OK) or "full" in str(error):
        raise OSError(f"{path} cannot be opened: {error}") from error


def _salvage(path: Path, error: Exception) -> None:
    """Replace the broken file *path* by a sound one with what could be read of it."""
    aside = _copy_aside(path)
    fresh = path.with_name(f"{path.name}.salvage")
    fresh.unlink(missing_ok=True)
    kept = 0
    lost: int | None = None
    target = _connect(str(fresh))
    broken = _connect(str(path))
    try:
        # Makes SQLite read a file that is shorter than its header says, instead of refusing it.
        broken.execute("PRAGMA writable_schema = ON")
        target.executescript(_SCHEMA)
        target.execute("BEGIN")
        for row in _readable_rows(broken):
            target.execute(_INSERT, row)
            kept += 1
        target.execute("COMMIT")
        with contextlib.suppress(sqlite3.Error):  # the index may be whole where the table is not
            entries = broken.execute("SELECT count(due) FROM parked INDEXED BY parked_due")
            lost = max(0, entries.fetchone()[0] - kept)
    finally:
        target.close()
        with contextlib.suppress(sqlite3.Error):
            broken.close()
    # In this order: SQLite would apply a journal left behind to the new file.
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    os.replace(fresh, path)
    logger.warning(
        "%s is damaged (%s). Requests parked by an earlier run: %d carried over, %s lost. The "
        "damaged file is kept as %s.",
        path,
        error,
        kept,
        "an unknown number" if lost is None else lost,
        aside,
    )


def _copy_aside(path: Path) -> Path:
    stamp = datetime.now(tz=timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    aside = path.with_name(f"{path.name}.corrupt-{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    shutil.copy2(path, aside)
    journal = path.with_name(f"{path.name}-wal")
    if journal.exists():
        shutil.copy2(journal, aside.with_name(f"{aside.name}-wal"))
    return aside


def _readable_rows(db: sqlite3.Connection) -> Iterator[_Row]:
    """Yield every row that can still be read.

    Rows stand in pages in the order of their ids, so unreadable ones come in runs. From where
    reading fails, try further on, twice as far each time; then halve what was skipped to find
    where the run ends. That is some sixty reads for each run, whatever its length.
    """
    failed, position = 0, 1
    while position <= _MAX_ID:
        reader = _Reader(db, position, _MAX_ID)
        yield from reader
        if reader.next > position and failed:
            high = position
            while high - failed > 1:
                middle = (failed + high) // 2
                gap = _Reader(db, middle, high - 1)
                yield from gap
                if gap.broken:
                    failed = max(middle, gap.next)
                else:
                    high = middle
            failed = 0
        if not reader.broken:
            return
        if reader.next > position:
            failed = position = reader.next
        jump = max(1, position - failed)
        failed = failed or position
        position += jump


class _Reader:
    """Reads the rows with ids from *first* to *last*, as far as it goes."""

    def __init__(self, db: sqlite3.Connection, first: int, last: int) -> None:
        self.next = first
        self.broken = False
        self._rows = (db, first, last)

    def __iter__(self) -> Iterator[_Row]:
        db, first, last = self._rows
        try:
            for number, *row in db.execute(
                "SELECT id, due, slot, data, checksum FROM parked"
                " WHERE id BETWEEN ? AND ? ORDER BY id",
                (first, last),
            ):
                # Damaged ids need not be in order.
                self.next = min(max(self.next, number + 1), last + 1)
                due, slot, data, checksum = row
                if (
                    isinstance(due, float)
                    and isinstance(slot, str)
                    and isinstance(data, bytes)
                    and crc32(data) == checksum
                ):
                    yield due, slot, data, checksum
        except sqlite3.Error:
            self.broken = True
