"""Parked requests: each waits for its time."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from scrapy_backpressure.storage.totals import MOVED

if TYPE_CHECKING:
    from scrapy_backpressure.storage.sqlite import Database

_INSERT = "INSERT INTO parked VALUES (?, ?, ?, ?, ?)"
_ALL = "FROM parked WHERE due >= 0 AND id >= ? ORDER BY due, id LIMIT ?"
_DUE = "FROM parked WHERE due BETWEEN 0 AND ? ORDER BY due, id LIMIT ?"
_ASIDE = -1.0
"""The due time of what the next run is to try."""


class ParkedRow(NamedTuple):
    """A request that was taken out."""

    id: int
    slot: str
    data: bytes
    checksum: int

    @property
    def is_whole(self) -> bool:
        """Whether the bytes are those that were written."""
        return crc32(self.data) == self.checksum


class ParkedRequests:
    """Requests of *database* that wait until they are due, as bytes.

    An object without requests is false, as any empty container: compare with None to tell whether
    there is one.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._slots: Counter[str] = Counter()
        self._length = 0
        self._last_id = 0
        if database.read("SELECT 1 FROM parked WHERE due < 0 LIMIT 1").fetchone():
            with database.operation():
                database.change("UPDATE parked SET due = 0 WHERE due < 0")
        database.counted(self._count)

    def park(self, data: bytes, *, due: float, slot: str) -> None:
        """Keep *data* until *due* (epoch seconds; may be infinite).

        Raises:
            ValueError: *due* is not a number.
            sqlite3.Error: it could not be kept, as when the disk is full.
        """
        if math.isnan(due):
            raise ValueError("due must be a number of seconds, got nan")
        with self.database.operation():
            number = self._last_id + 1
            self.database.change(_INSERT, (number, max(due, 0.0), slot, data, crc32(data)))
            self.database.new_from.setdefault("parked", number)
        self._last_id = number
        self.database.totals.entered()
        self._length += 1
        self._slots[slot] += 1

    def set_aside(self, row: ParkedRow) -> None:
        """Put *row* back as it was, for the next run: this one cannot read it.

        Raises:
            sqlite3.Error: it could not be kept.
        """
        with self.database.operation():
            self.database.change(_INSERT, (row.id, _ASIDE, row.slot, row.data, row.checksum))
        self.database.totals.entered()

    def pop_due(self, now: float, limit: int) -> list[ParkedRow]:
        """Remove and return up to *limit* requests that are due at *now* (epoch seconds), the
        longest due first.
        """
        return self._pop(_DUE, (now, limit))

    def pop_all(self, limit: int, first: int = 0) -> list[ParkedRow]:
        """Remove and return up to *limit* requests, due or not, in the order of their due times:
        those with an id from *first* on.

        Call it until it returns nothing.
        """
        return self._pop(_ALL, (first, limit))

    def next_due(self) -> float | None:
        """Return when the next request is due (epoch seconds), or None if there is none."""
        if not self._length:
            return None
        due: float = self.database.read("SELECT min(due) FROM parked WHERE due >= 0").fetchone()[0]
        return due

    def __len__(self) -> int:
        return self._length

    def slot_count(self, slot: str) -> int:
        """Return how many requests are parked for *slot*."""
        return self._slots.get(slot, 0)

    def _pop(self, rows: str, parameters: tuple[float, ...]) -> list[ParkedRow]:
        if not self._length:
            return []
        with self.database.operation(int(parameters[-1])):
            found = self.database.read(f"SELECT id, slot, data, checksum {rows}", parameters)
            popped = [ParkedRow(*row) for row in found]
            # One statement takes them all out, or none.
            self.database.change(f"DELETE FROM parked WHERE id IN (SELECT id {rows})", parameters)
        self.database.totals.left(MOVED, len(popped))
        for row in popped:
            self._length -= 1
            self._slots[row.slot] -= 1
            if not self._slots[row.slot]:
                del self._slots[row.slot]
        return popped

    def _count(self) -> None:
        self._slots = Counter(
            dict(
                self.database.read(
                    "SELECT slot, count(*) FROM parked WHERE due >= 0 GROUP BY slot"
                )
            )
        )
        self._length = sum(self._slots.values())
        last: int | None = self.database.read("SELECT max(id) FROM parked").fetchone()[0]
        # Never one that was in use: what is new is told by its id.
        self._last_id = max(self._last_id, last or 0)
