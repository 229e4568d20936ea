"""Opening the SQLite file of a crawl, with all that can be wrong with it."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING

from scrapy_backpressure.storage.salvage import salvage

if TYPE_CHECKING:
    from pathlib import Path

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
    data BLOB NOT NULL,
    checksum INTEGER NOT NULL
)""",
    "CREATE INDEX requests_turn ON requests (slot, urgency, rank)",
    "CREATE TABLE seen (fingerprint BLOB PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE totals (name TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID",
)
_SCHEMAS = {1: _PARKED, SCHEMA_VERSION: _PARKED + _REQUESTS}

_CACHE_KIB = 4096
"""Memory that SQLite may use for pages. What a temporary database has above it goes to disk."""

_BUSY_SECONDS = 1.0
"""How long to wait for a crawl that is just ending."""

_CHECKED_BYTES = 128 * 2**20
"""Size up to which a file is read as a whole before it is used: half a second."""


def _connect(path: str) -> sqlite3.Connection:
    # isolation_level=None: no transaction begins or ends but where this module says so.
    # Made by one thread and used by another where the engine has one of its own (scrapy shell).
    db = sqlite3.connect(
        path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    # Damaged text must not make a row unreadable.
    db.text_factory = lambda text: text.decode(errors="replace")
    return db


def _make(db: sqlite3.Connection, version: int = 0) -> None:
    """Make the tables that a file of schema *version* lacks."""
    present = _SCHEMAS.get(version, ())
    missing = [sql for sql in _SCHEMAS[SCHEMA_VERSION] if sql not in present]
    text = ";".join(missing)
    db.executescript(f"BEGIN; {text}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")


def open_temporary() -> sqlite3.Connection:
    """Open a private temporary database, gone when it is closed."""
    db = _connect("")
    db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    # Nobody reads it after a crash: no need to wait for the disk.
    db.execute("PRAGMA synchronous = OFF")
    db.execute("PRAGMA journal_mode = MEMORY")
    _make(db)
    return db


def open_file(path: Path) -> sqlite3.Connection:
    """Open the database *path*, made if it is not there, and repaired if it is damaged.

    Raises RuntimeError and OSError as ``Database`` does.
    """
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


def repair(path: Path, error: Exception) -> sqlite3.Connection:
    """Open the database *path* anew, with what can be read of it after *error* showed damage."""
    salvage(path, error, _make)
    return _open_checked(path)


def _open_checked(path: Path) -> sqlite3.Connection:
    db = _connect(str(path))
    try:
        # Held until the connection closes, and released by the system if the process dies. WAL
        # in this mode needs no shared memory, hence works on network file systems too.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        # Else a disk that is full would be met amid a transaction, and cost all of it. This way
        # only a commit meets it, which can be tried again.
        db.execute("PRAGMA cache_spill = OFF")
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
