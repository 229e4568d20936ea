"""The requests of the scheduler, and the fingerprints of all that it has seen."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from scrapy_backpressure.storage.totals import MOVED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy_backpressure.storage.sqlite import Database

_INSERT = "INSERT INTO requests VALUES (?, ?, ?, ?, 0, ?, ?)"
_SEE = "INSERT OR IGNORE INTO seen VALUES (?)"
_FIND = "SELECT 1 FROM seen WHERE fingerprint = ?"
_NEXT = """SELECT id, data, checksum FROM requests
WHERE leased = 0 AND slot = ? AND (urgency, rank) < (?, ?)
ORDER BY urgency, rank LIMIT 1"""
_ALL = "FROM requests WHERE leased = 0 AND id >= ? ORDER BY slot, urgency, rank LIMIT ?"

_LIMIT = 2**62
LAST = (_LIMIT, _LIMIT)
"""A place in the line of a slot behind all others."""


class Row(NamedTuple):
    """A request that was handed out."""

    id: int
    data: bytes
    is_whole: bool
    """Whether the bytes are those that were written."""


class PendingRequests:
    """Requests of *database* that wait for their turn, as bytes, and those that are leased.

    A request is leased until its page is done. What is leased when the database is opened belongs
    to a run that was killed, and waits again.

    In each slot the smallest ``(urgency, rank)`` goes first; no two are equal.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._length = 0
        self.slots: Counter[str] = Counter()
        """How many wait, by slot."""
        if database.read("SELECT 1 FROM requests WHERE leased = 1 LIMIT 1").fetchone():
            with database.operation():
                database.change("UPDATE requests SET leased = 0 WHERE leased = 1")
        database.counted(self._count)

    @property
    def last_id(self) -> int:
        """The largest id in use; 0 if there is none."""
        found: int | None = self.database.read("SELECT max(id) FROM requests").fetchone()[0]
        return found or 0

    def __len__(self) -> int:
        return self._length

    def push(
        self,
        number: int,
        data: bytes,
        *,
        slot: str,
        urgency: int,
        rank: int,
        fingerprint: bytes | None = None,
    ) -> None:
        """Keep *data* under the id *number*, and remember *fingerprint* as seen: both, or none.

        Raises:
            sqlite3.Error: it could not be kept, as when the disk is full.
        """
        urgency = max(-_LIMIT, min(urgency, _LIMIT - 1))
        with self.database.operation():
            if fingerprint is not None:
                self.database.change(_SEE, (fingerprint,))
            self.database.change(_INSERT, (number, slot, urgency, rank, data, crc32(data)))
            self.database.new_from.setdefault("requests", number)
        self.database.totals.entered()
        self._length += 1
        self.slots[slot] += 1

    def lease(self, slot: str, before: tuple[int, int] = LAST) -> Row | None:
        """Hand out the first request of *slot*; None if it is not *before* that place.

        Raises:
            sqlite3.Error: it could not be read, or it could not be noted that it is leased.
        """
        if not self.slots.get(slot):
            return None
        with self.database.operation():
            row = self.database.read(_NEXT, (slot, *before)).fetchone()
            if row is None:
                if before == LAST:  # somebody else has changed the file
                    self._length -= self.slots.pop(slot)
                return None
            self.database.change("UPDATE requests SET leased = 1 WHERE id = ?", (row[0],))
        self._gone(slot)
        return Row(row[0], row[1], crc32(row[1]) == row[2])

    def finish(self, number: int, end: str | None) -> None:
        """End the lease of the request *number*: its page is done, and ended as *end* (a word of
        :class:`~scrapy_backpressure.storage.totals.Totals`).

        Whatever the page led to just before (its retry, the redirect of it) is in the same
        transaction.

        Raises:
            sqlite3.Error: it could not be noted, so the next run fetches the page again.
        """
        with self.database.operation(follows=True):
            found = self.database.change("DELETE FROM requests WHERE id = ?", (number,))
        if found.rowcount:
            self.database.totals.left(end)

    def has_seen(self, fingerprint: bytes) -> bool:
        """Whether a request with *fingerprint* was kept, or passed to :meth:`see`."""
        with self.database.operation(0):
            found = self.database.read("SELECT 1 FROM seen WHERE fingerprint = ?", (fingerprint,))
            return found.fetchone() is not None

    def see(self, fingerprints: Iterable[bytes]) -> None:
        """Remember *fingerprints*. Many of them cost least in their order.

        Raises:
            sqlite3.Error: they could not be kept.
        """
        with self.database.operation():
            for fingerprint in fingerprints:
                self.database.change(_SEE, (fingerprint,))

    def pop_all(self, limit: int, first: int = 0) -> list[bytes]:
        """Remove and return up to *limit* requests that wait, each slot's in their order: those
        with an id from *first* on.

        Call it until it returns nothing.
        """
        if not self._length:
            return []
        with self.database.operation(limit):
            which = (first, limit)
            popped = self.database.read(f"SELECT slot, data {_ALL}", which).fetchall()
            self.database.change(f"DELETE FROM requests WHERE id IN (SELECT id {_ALL})", which)
        self.database.totals.left(MOVED, len(popped))
        for slot, _ in popped:
            self._gone(slot)
        return [data for _, data in popped]

    def _gone(self, slot: str) -> None:
        self._length -= 1
        self.slots[slot] -= 1
        if not self.slots[slot]:
            del self.slots[slot]

    def _count(self) -> None:
        self.slots = Counter(
            dict(
                self.database.read(
                    "SELECT slot, count(*) FROM requests WHERE leased = 0 GROUP BY slot"
                )
            )
        )
        self._length = sum(self.slots.values())
