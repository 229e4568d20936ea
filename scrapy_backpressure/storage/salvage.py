"""What can still be read of a damaged file, in a new one."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)

_MAX_ID = 2**62


class _Table(NamedTuple):
    name: str
    in_order: str
    """Name of its index."""
    columns: dict[str, type]
    """Besides ``id`` in front, and ``data`` and ``checksum`` at the end."""


_TABLES = (
    _Table("parked", "parked_due", {"due": float, "slot": str}),
    _Table(
        "requests",
        "requests_turn",
        {"slot": str, "urgency": int, "rank": int},
    ),
)


def salvage(path: Path, error: Exception, make: Callable[[sqlite3.Connection], None]) -> None:
    """Replace the broken file *path* by a sound one with what could be read of it.

    *make* makes the tables; *error* is what showed that it is broken.
    """
    aside = _copy_aside(path)
    fresh = path.with_name(f"{path.name}.salvage")
    fresh.unlink(missing_ok=True)
    kept = 0
    lost: int | None = 0
    target = sqlite3.connect(fresh, isolation_level=None)
    broken = sqlite3.connect(path, isolation_level=None)
    broken.text_factory = lambda text: text.decode(errors="replace")
    try:
        # Makes SQLite read a file that is shorter than its header says, instead of refusing it.
        broken.execute("PRAGMA writable_schema = ON")
        make(target)
        target.execute("BEGIN")
        for table in _TABLES:
            marks = ", ".join("?" * (len(table.columns) + 3))
            rows = 0
            for row in _readable_rows(broken, table):
                target.execute(f"INSERT OR IGNORE INTO {table.name} VALUES ({marks})", row)
                rows += 1
            kept += rows
            entries = _entries(broken, table)
            lost = None if lost is None or entries is None else lost + max(0, entries - rows)
        for fingerprint in _readable_fingerprints(broken):
            target.execute("INSERT OR IGNORE INTO seen VALUES (?)", (fingerprint,))
        with contextlib.suppress(sqlite3.Error):
            totals = broken.execute("SELECT name, count FROM totals").fetchall()
            target.executemany("INSERT INTO totals VALUES (?, ?)", totals)
        target.execute("COMMIT")
    finally:
        target.close()
        with contextlib.suppress(sqlite3.Error):
            broken.close()
    # In this order: SQLite would apply a journal left behind to the new file.
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    os.replace(fresh, path)
    logger.warning(
        "%s is damaged (%s). Requests of an earlier run: %d carried over, %s lost. The "
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


def _entries(db: sqlite3.Connection, table: _Table) -> int | None:
    """How many rows there were: the index may be whole where the table is not."""
    column = next(iter(table.columns))
    try:
        entries = db.execute(
            f"SELECT count({column}) FROM {table.name} INDEXED BY {table.in_order}"
        )
        number: int = entries.fetchone()[0]
    except sqlite3.Error:
        return 0 if table.name not in _tables_of(db) else None
    return number


def _tables_of(db: sqlite3.Connection) -> set[str]:
    """The tables that the version of a file says it has."""
    with contextlib.suppress(sqlite3.Error):
        if db.execute("PRAGMA user_version").fetchone()[0] == 1:
            return {"parked"}
    return {table.name for table in _TABLES}


def _readable_rows(db: sqlite3.Connection, table: _Table) -> Iterator[tuple[Any, ...]]:
    """Yield every row that can still be read.

    Rows stand in pages in the order of their ids, so unreadable ones come in runs. From where
    reading fails, try further on, twice as far each time; then halve what was skipped to find
    where the run ends. That is some sixty reads for each run, whatever its length.
    """
    failed, position = 0, 1
    while position <= _MAX_ID:
        reader = _Reader(db, table, position, _MAX_ID)
        yield from reader
        if reader.next > position and failed:
            high = position
            while high - failed > 1:
                middle = (failed + high) // 2
                gap = _Reader(db, table, middle, high - 1)
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

    def __init__(self, db: sqlite3.Connection, table: _Table, first: int, last: int) -> None:
        self.next = first
        self.broken = False
        self._table = table
        self._rows = (db, first, last)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        db, first, last = self._rows
        types = tuple(self._table.columns.values())
        columns = ", ".join(self._table.columns)
        try:
            for row in db.execute(
                f"SELECT id, {columns}, data, checksum FROM {self._table.name}"
                " WHERE id BETWEEN ? AND ? ORDER BY id",
                (first, last),
            ):
                number, *values, data, checksum = row
                # Damaged ids need not be in order.
                self.next = min(max(self.next, number + 1), last + 1)
                if (
                    all(map(isinstance, values, types))
                    and isinstance(data, bytes)
                    and crc32(data) == checksum
                ):
                    yield row
        except sqlite3.Error:
            self.broken = True


def _readable_fingerprints(db: sqlite3.Connection) -> Iterator[bytes]:
    """Yield what can be read from either end. One that is lost is a page fetched again."""
    for order in ("ASC", "DESC"):
        with contextlib.suppress(sqlite3.Error):
            for (found,) in db.execute(
                f"SELECT fingerprint FROM seen ORDER BY fingerprint {order}"
            ):
                if isinstance(found, bytes):
                    yield found
            return
