"""The one SQLite file of a crawl, and what a commit of it holds."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from scrapy_backpressure.storage.opening import open_file, open_temporary, repair
from scrapy_backpressure.storage.totals import Totals

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

logger = logging.getLogger(__name__)

_COMMIT_EVERY = 64
"""Operations in a transaction: enough that its cost does not show, few enough to lose."""

_MOST_CHANGES = 20_000
"""Statements that may wait in memory for a disk that is full; a page takes about five."""

_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
"""Seconds until a commit that failed is tried again, doubled each time."""


class Database:
    """Everything that a crawl keeps outside of memory.

    Operations are gathered into transactions of 64, in their order; :meth:`commit` ends one early.
    A process that is killed loses what it did since the last commit, never more, never half an
    operation, and never an earlier one instead of a later one.

    A file belongs to one object at a time. One that is found to be damaged is kept aside
    (``….corrupt-<time>``), what can be read of it is carried over, and a warning says what was
    lost.

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
        self._path = None if path is None else Path(path)
        self._db = open_temporary() if self._path is None else open_file(self._path)
        self._closed = False
        self._changes: list[tuple[str, tuple[Any, ...]]] = []
        """Since the last commit. SQLite takes them all back where a commit fails."""
        self.new_from: dict[str, int] = {}
        """The first id of each table that the last commit does not hold."""
        self.stuck = False
        """Whether the last commit failed, as when the disk is full."""
        self._wait = 0.0
        self._try_at = 0.0
        self._operations = 0
        self._together = 0
        self._all_or_nothing = False
        self._counts: list[Callable[[], None]] = []
        self.totals = Totals(self)

    @property
    def overfull(self) -> bool:
        """Whether so much waits to be written that no more should be begun."""
        return self.stuck and len(self._changes) > _MOST_CHANGES

    @property
    def persistent(self) -> bool:
        """Whether the next run finds what is in here."""
        return self._path is not None

    def counted(self, count: Callable[[], None]) -> None:
        """Call *count* now, and whenever operations of the past turn out to be lost."""
        self._counts.append(count)
        count()

    def read(self, sql: str, values: Iterable[Any] = ()) -> sqlite3.Cursor:
        """Run a statement that changes nothing."""
        return self._db.execute(sql, tuple(values))

    def change(self, sql: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Run a statement as part of the :meth:`operation` under way."""
        if not self._all_or_nothing:
            self._changes.append((sql, values))
        return self._db.execute(sql, values)

    @contextlib.contextmanager
    def operation(self, count: int = 1, *, follows: bool = False) -> Iterator[None]:
        """What is executed in this context is in one transaction, or has not happened at all.

        Args:
            count: how many operations it stands for.
            follows: whether it also has to be in that of the operation before.

        Raises:
            sqlite3.Error: from what was executed.
        """
        due = self._operations >= _COMMIT_EVERY and not self.stuck
        if due and not (follows or self._together or self._all_or_nothing):
            self.write()
        if not self._db.in_transaction:
            self._db.execute("BEGIN")
        before = len(self._changes)
        try:
            yield
        except Exception as error:  # not only SQLite's: a value that it cannot hold
            if not self._all_or_nothing:
                del self._changes[before:]
                self._failed(error)
            raise
        self._operations += count

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """All operations in this context go into one transaction, unless one of them commits."""
        self._together += 1
        try:
            yield
        finally:
            self._together -= 1

    @contextlib.contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """What is done in this context, however much it is, is committed at its end.

        If anything in it raises, let it pass: then nothing of it has happened.
        """
        self.commit()
        self._db.execute("PRAGMA cache_spill = ON")  # it need not fit in memory
        self._all_or_nothing = True
        try:
            yield
            with self.operation():
                self.totals.save()
            self._db.execute("COMMIT")
            self._committed()
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._forget()
            raise
        finally:
            self._all_or_nothing = False
            self._db.execute("PRAGMA cache_spill = OFF")

    def commit(self) -> None:
        """Make everything so far survive the end of the process, however it ends.

        Raises:
            sqlite3.Error: it could not be written. Nothing is lost yet: call again later.
        """
        if self._closed:
            return
        try:
            with self.operation(0, follows=True):
                self.totals.save()
            self._db.execute("COMMIT")
        except sqlite3.Error:
            self.stuck = True
            self._wait = min(max(_FIRST_WAIT, 2 * self._wait), _LONGEST_WAIT)
            self._try_at = monotonic() + self._wait
            self._redo()
            raise
        self.stuck = False
        self._wait = 0.0
        self._committed()

    def _committed(self) -> None:
        self._changes.clear()
        self.new_from.clear()
        self._operations = 0

    def lost_from(self, table: str) -> int | None:
        """The first id in *table* that would be lost with this process, after a last attempt to
        write; None if there is none.
        """
        if self.persistent:
            self.write()
            return self.new_from.get(table)
        return 0

    def write(self) -> bool:
        """Commit; log it where that fails. Whether it has not."""
        try:
            self.commit()
        except sqlite3.Error:
            logger.exception("Cannot write %s", self._path or "the temporary database")
            return False
        return True

    def write_in_time(self) -> None:
        """As :meth:`write`, but not soon after one that failed: each does everything again."""
        if not self.stuck or monotonic() >= self._try_at:
            self.write()

    def close(self) -> None:
        """Commit and release the file. Further calls do nothing.

        Raises:
            sqlite3.Error: the last operations could not be written.
        """
        if self._closed:
            return
        try:
            self.commit()
        finally:
            self._closed = True
            self._db.close()

    def _failed(self, error: Exception) -> None:
        # Damage has no class of its own; what else fails is one of the subclasses.
        if type(error) is not sqlite3.DatabaseError or self._path is None:
            self._redo()
            return
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("COMMIT")
        self._db.close()
        self._db = repair(self._path, error)
        self._forget()

    def _redo(self) -> None:
        """Do again what is not committed; in memory, where SQLite keeps it until it is."""
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._db.execute("PRAGMA cache_spill = OFF")
            self._db.execute("BEGIN")
            for change in self._changes:
                self._db.execute(*change)
        except sqlite3.Error:
            logger.exception("The database lost its last %d operations", self._operations)
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            self._forget()

    def _forget(self) -> None:
        """What was not committed is gone; what there is, is on disk."""
        self._committed()
        for count in self._counts:
            count()
