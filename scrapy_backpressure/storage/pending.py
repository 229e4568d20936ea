"""The requests of the scheduler, and the fingerprints of all that it has seen."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from scrapy_backpressure.storage.totals import MOVED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy_backpressure.storage.sqlite import Database

_INSERT = "INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?)"
_SEE = "INSERT OR IGNORE INTO seen VALUES (?)"
_FIND = "SELECT 1 FROM seen WHERE fingerprint = ?"
_NEXT = """SELECT urgency, rank, id, data, checksum FROM requests
WHERE slot = ? AND (urgency, rank) >= (?, ?) ORDER BY urgency, rank LIMIT ?"""
_REST = "SELECT id, slot, data FROM requests WHERE id >= ? ORDER BY slot, urgency, rank LIMIT ?"

_LIMIT = 2**62
Place = tuple[int, int]
"""Urgency and rank: where a request stands in the line of its slot."""
FIRST: Place = (-_LIMIT, -_LIMIT)
LAST: Place = (_LIMIT, _LIMIT)
"""Places before and behind all others."""

_BATCH = 32
"""Requests of a slot that are read at once; twice as many are kept in memory."""
_MOST_CACHED = 2048
"""Requests of all slots that are kept in memory."""


class Row(NamedTuple):
    """A request that was handed out."""

    id: int
    data: bytes
    """Empty where there is something *kept*."""
    is_whole: bool
    """Whether the bytes are those that were written."""
    kept: Any = None
    """What was pushed with it, if it has not been forgotten since."""


class _Head:
    """The first requests of a slot, in memory as well as in the file."""

    __slots__ = ("floor", "line")

    def __init__(self, floor: Place) -> None:
        self.floor = floor
        """What waits before this place is here; what waits from it on is in the file alone."""
        self.line: list[tuple[int, int, Row]] = []
        """Urgency, rank and request, the first one to go first."""


class PendingRequests:
    """Requests of *database* that wait for their turn, as bytes, and those that are leased.

    A leased request stays in the file until its page is done, so that the next run finds it
    waiting again, however this one ends.

    In each slot the smallest ``(urgency, rank)`` goes first; no two are equal. The first few of
    each slot are in memory as well, so that a request which does not wait for long is written
    once, and never read.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._length = 0
        self.slots: Counter[str] = Counter()
        """How many wait, by slot."""
        self._leased: set[int] = set()
        self._heads: dict[str, _Head] = {}
        self._cached = 0
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
        keep: Any = None,
    ) -> None:
        """Keep *data* under the id *number*, and remember *fingerprint* as seen: both, or none.

        *keep*: what the row may come with when it is handed out, to spare decoding it.

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
        head = self._heads.get(slot)
        if head is None:
            head = self._heads[slot] = _Head(LAST)
        if (urgency, rank) < head.floor:
            row = Row(number, data if keep is None else b"", True, keep)
            self._cache(head, (urgency, rank, row))

    def _cache(self, head: _Head, entry: tuple[int, int, Row]) -> None:
        insort(head.line, entry)
        self._cached += 1
        if len(head.line) > 2 * _BATCH:
            self._cut(head, _BATCH)
        elif self._cached > _MOST_CACHED:
            self._cut(head, 0)

    def _cut(self, head: _Head, left: int) -> None:
        """Leave the first *left* in memory."""
        head.floor = head.line[left][:2]
        self._cached -= len(head.line) - left
        del head.line[left:]

    def lease(self, slot: str, before: Place = LAST) -> Row | None:
        """Hand out the first request of *slot*; None if it is not *before* that place.

        Raises:
            sqlite3.Error: it could not be read.
        """
        if not self.slots.get(slot):
            return None
        head = self._heads[slot]
        if not head.line:
            self._read_on(slot, head)
            if not head.line:  # somebody else has changed the file
                self._length -= self.slots.pop(slot)
                del self._heads[slot]
                return None
        if head.line[0][:2] >= before:
            return None
        row = head.line.pop(0)[2]
        self._cached -= 1
        self._leased.add(row.id)
        self._gone(slot)
        return row

    def _read_on(self, slot: str, head: _Head) -> None:
        batch = _BATCH if self._cached < _MOST_CACHED else 1
        while not head.line and head.floor < LAST:
            with self.database.operation(0):
                rows = self.database.read(_NEXT, (slot, *head.floor, batch)).fetchall()
            for urgency, rank, number, data, checksum in rows:
                if number not in self._leased:
                    row = Row(number, data, crc32(data) == checksum)
                    head.line.append((urgency, rank, row))
            head.floor = LAST if len(rows) < batch else (rows[-1][0], rows[-1][1] + 1)
        self._cached += len(head.line)

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
        self._leased.discard(number)
        if found.rowcount:
            self.database.totals.left(end)

    def has_seen(self, fingerprint: bytes) -> bool:
        """Whether a request with *fingerprint* was kept, or passed to :meth:`see`."""
        with self.database.operation(0):
            return self.database.read(_FIND, (fingerprint,)).fetchone() is not None

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
            rows = self.database.read(_REST, (first, limit + len(self._leased))).fetchall()
            popped = [row for row in rows if row[0] not in self._leased][:limit]
            for number, _, _ in popped:
                self.database.change("DELETE FROM requests WHERE id = ?", (number,))
        self.database.totals.left(MOVED, len(popped))
        for _, slot, _ in popped:
            head = self._heads[slot]
            self._cached -= len(head.line)
            head.line.clear()
            head.floor = FIRST
            self._gone(slot)
        return [data for _, _, data in popped]

    def _gone(self, slot: str) -> None:
        self._length -= 1
        self.slots[slot] -= 1
        if not self.slots[slot]:
            del self.slots[slot], self._heads[slot]

    def _count(self) -> None:
        slots = Counter(
            dict(self.database.read("SELECT slot, count(*) FROM requests GROUP BY slot"))
        )
        for number in self._leased:
            for (slot,) in self.database.read("SELECT slot FROM requests WHERE id = ?", (number,)):
                slots[slot] -= 1
        self.slots = +slots
        self._length = self.slots.total()
        self._heads = {slot: _Head(FIRST) for slot in self.slots}
        self._cached = 0
