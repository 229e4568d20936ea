"""What became of the requests of all runs that used one file."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from scrapy_backpressure.ledger import Ledger

if TYPE_CHECKING:
    from scrapy_backpressure.storage.sqlite import Database

logger = logging.getLogger(__name__)

MOVED = "moved"
"""The end of a request that goes on as another one, or in memory."""
_UNSAVED = "unsaved"
_TAKEN_OVER = "taken_over"
_LOST = "lost"


class Totals:
    """The books of *database*, in the same transactions as its requests.

    What enters the file is accepted, and what leaves it has ended in one way, or takes its entry
    with it to where it goes on. Requests that were never in the file are booked when they end. So
    at every commit, and hence after every kill, what was accepted and has not ended is in the
    file; :attr:`Ledger.missing` says what is not.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counts: Counter[str] = Counter()
        self._changed = False
        self.unsaved = 0
        """Requests that only memory has, and that a kill would take with it."""
        database.counted(self._load)
        if database.persistent and self._counts[_UNSAVED]:
            logger.warning(
                "%d requests went with the run before, which was killed: they could not be "
                "serialised, so only memory had them. What led to them may yield them again",
                self._counts[_UNSAVED],
            )
            self._count(self._counts[_UNSAVED], "accepted", _LOST)

    def _load(self) -> None:
        """Read what the last commit holds; requests that are gone since were lost to damage."""
        counts = dict(self._database.read("SELECT name, count FROM totals"))
        self._counts = Counter(counts)
        self._changed = False
        if not counts:  # a new file, or one of a version that had no books
            self._count(self._requests(), "accepted")
        elif (damaged := self.ledger().missing) > 0:
            logger.error("%d requests of this crawl are missing in its file", damaged)
            self._count(damaged, _LOST)

    def _count(self, number: int, *names: str) -> None:
        for name in names:
            self._counts[name] += number
        self._changed = True

    @property
    def taken_over(self) -> int:
        """When the queue of Scrapy's scheduler was written that was taken over last."""
        return self._counts[_TAKEN_OVER]

    @taken_over.setter
    def taken_over(self, written: int) -> None:
        self._counts[_TAKEN_OVER] = written
        self._changed = True

    def entered(self) -> None:
        """A request is in the file that was not."""
        self._count(1, "accepted")

    def left(self, end: str | None, number: int = 1) -> None:
        """Requests have left the file: *end* is MOVED, or a count of the ledger, such as
        ``handled`` or ``dropped/dupefilter``. None: nobody knows, so they are missing.
        """
        if end == MOVED:
            self._count(-number, "accepted")
        elif end is not None:
            self._count(number, end)

    def ended_outside(self, end: str | None) -> None:
        """A request has ended that was not in the file."""
        if end is not None and end != MOVED:
            self._count(1, "accepted", end)

    def save(self) -> None:
        """Write what has changed. Part of every commit.

        Raises:
            sqlite3.Error: it could not be written.
        """
        if self._counts[_UNSAVED] != self.unsaved:
            self._counts[_UNSAVED] = self.unsaved
            self._changed = True
        if self._changed:
            for total in self._counts.items():
                self._database.change("INSERT OR REPLACE INTO totals VALUES (?, ?)", total)
            self._changed = False

    def _requests(self) -> int:
        found: int = self._database.read(
            "SELECT (SELECT count(*) FROM requests) + (SELECT count(*) FROM parked)"
        ).fetchone()[0]
        return found

    def ledger(self) -> Ledger:
        """The books as those of one crawl.

        Raises:
            sqlite3.Error: the file could not be read.
        """
        ledger = Ledger(persisted=self._requests())
        for name, count in self._counts.items():
            kind, _, reason = name.partition("/")
            if kind in ("accepted", "handled", _LOST):
                setattr(ledger, kind, count)
            elif kind in ("dead", "given_up", "dropped"):
                getattr(ledger, kind)[reason] = count
        return ledger
