"""The one SQLite file of a crawl: opening it, locking it, and what a commit holds."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_backpressure.storage.salvage import salvage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 2

_PARKED = (
    """CREATE TABLE parked (
    id INTEGER PRIMARY KEY,
    due REAL NOT NULL,
    slot TEXT NOT NULL,
    data BLOB NOT NULL,
    checksum INTEGER NOT NULL
)""",
    "CREATE INDEX parked_due ON parked (due)",
)
_REQUESTS = (
    """CREATE TABLE requests (
    id INTEGER PRIMARY KEY,
    slot TEXT NOT NULL,
    urgency INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    leased INTEGER NOT NULL,
    data BLOB NOT NULL,
    checksum INTEGER NOT NULL
)""",
    "CREATE INDEX requests_turn ON requests (leased, slot, urgency, rank)",
    "CREATE TABLE seen (fingerprint BLOB PRIMARY KEY) WITHOUT ROWID",
)
_SCHEMAS = {1: _PARKED, SCHEMA_VERSION: _PARKED + _REQUESTS}

_COMMIT_EVERY = 64
"""Operations in a transaction: enough that its cost does not show, few enough to lose."""

_CACHE_KIB = 4096
"""Memory that SQLite may use for pages. What a temporary database has above it goes to disk."""

_BUSY_SECONDS = 1.0
"""How long to wait for a crawl that is just ending."""

_CHECKED_BYTES = 128 * 2**20
"""Size up to which a file is read as a whole before it is used: half a second."""


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
        self._db = _open_temporary() if self._path is None else _open_file(self._path)
        self._closed = False
        self._operations = 0
        self._together = 0
        self._counts: list[Callable[[], None]] = []

    @property
    def persistent(self) -> bool:
        """Whether the next run finds what is in here."""
        return self._path is not None

    def counted(self, count: Callable[[], None]) -> None:
        """Call *count* now, and whenever operations of the past turn out to be lost."""
        self._counts.append(count)
        count()

    def execute(self, sql: str, values: Iterable[Any] = ()) -> sqlite3.Cursor:
        """Run one statement, as part of the :meth:`operation` under way if it changes anything."""
        return self._db.execute(sql, tuple(values))

    def executemany(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run one statement for each of *rows*."""
        self._db.executemany(sql, rows)

    @contextlib.contextmanager
    def operation(self, count: int = 1, *, follows: bool = False) -> Iterator[None]:
        """What is executed in this context is in one transaction.

        Args:
            count: how many operations it stands for.
            follows: whether it also has to be in that of the operation before.

        Raises:
            sqlite3.Error: from what was executed.
        """
        if self._operations >= _COMMIT_EVERY and not (follows or self._together):
            # The operations are done. The transaction stays open for a later try if this fails.
            self.write()
            self._operations = 0
        if not self._db.in_transaction:
            self._db.execute("BEGIN")
        try:
            yield
        except sqlite3.Error as error:
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

    def commit(self) -> None:
        """Make everything so far survive the end of the process, however it ends.

        Raises:
            sqlite3.Error: it could not be written. Nothing is lost yet: call again later.
        """
        if not self._closed and self._db.in_transaction:
            self._db.execute("COMMIT")
        self._operations = 0

    def undo(self) -> None:
        """Take back what was not committed."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._operations = 0
        for count in self._counts:
            count()

    def write(self) -> bool:
        """Commit; log it where that fails. Whether it has not."""
        try:
            self.commit()
        except sqlite3.Error:
            logger.exception("Cannot write %s", self._path or "the temporary database")
            return False
        return True

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

    def _failed(self, error: sqlite3.Error) -> None:
        # Damage has no class of its own; what else fails is one of the subclasses.
        if type(error) is sqlite3.DatabaseError and self._path is not None:
            with contextlib.suppress(sqlite3.Error):
                self.commit()
            self._db.close()
            salvage(self._path, error, _make)
            self._db = _open_checked(self._path)
        elif self._db.in_transaction:
            return  # SQLite took back the one statement
        else:
            # Some failures, a full disk among them, make SQLite roll back the whole transaction.
            logger.exception("The database lost its last %d operations", self._operations)
        self._operations = 0
        for count in self._counts:
            count()


def _connect(path: str) -> sqlite3.Connection:
    # isolation_level=None: no transaction begins or ends but where this module says so.
    db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    # Damaged text must not make a row unreadable.
    db.text_factory = lambda text: text.decode(errors="replace")
    return db


def _make(db: sqlite3.Connection, version: int = 0) -> None:
    """Make the tables that a file of schema *version* lacks."""
    present = _SCHEMAS.get(version, ())
    missing = [sql for sql in _SCHEMAS[SCHEMA_VERSION] if sql not in present]
    text = ";".join(missing)
    db.executescript(f"BEGIN; {text}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")


def _open_temporary() -> sqlite3.Connection:
    db = _connect("")
    db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    # Nobody reads it after a crash: no need to wait for the disk.
    db.execute("PRAGMA synchronous = OFF")
    db.execute("PRAGMA journal_mode = MEMORY")
    _make(db)
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
        salvage(path, error, _make)
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
    # Damage in a larger file is found, and repaired, when it is met.
    if path.stat().st_size <= _CHECKED_BYTES:
        problem = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if problem != "ok":
            raise sqlite3.DatabaseError(problem)
    made = {sql for (sql,) in db.execute("SELECT sql FROM sqlite_master")}
    if version == 0 and made:
        raise RuntimeError(f"{path} is a database of another program: use another JOBDIR")
    if made != set(_SCHEMAS.get(version, ())):  # SQLite takes a letter that changed for meant
        raise sqlite3.DatabaseError("its tables are not those that were made")
    if version < SCHEMA_VERSION:
        _make(db, version)


def _raise_if_sound(error: Exception, path: Path) -> None:
    """Raise what a user can act on, if *error* is not of a kind that comes from damage."""
    if "locked" in str(error):
        raise RuntimeError(
            f"JOBDIR {path.parent} is in use by another crawl, which has {path.name} open: wait "
            f"for it to end, or use another JOBDIR"
        ) from error
    if not path.is_file() or not os.access(path, os.R_OK | os.W_OK) or "full" in str(error):
        raise OSError(f"{path} cannot be opened: {error}") from error
