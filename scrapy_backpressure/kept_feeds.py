"""A feed that could not be stored is kept as a file, instead of being deleted."""

from __future__ import annotations

import inspect
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from scrapy.extensions.feedexport import FileFeedStorage, StdoutFeedStorage
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)


def keep_if_not_stored(storage: Any, folder: Path, name: str) -> None:
    """Have *storage*, which hands its feed on when the crawl ends, keep it where that fails.

    The feed is then a file *name* in *folder*, with a number in front, and an ERROR says so.
    Nothing to do for a local file, which is written as the letters come.
    """
    if isinstance(storage, FileFeedStorage | StdoutFeedStorage):
        return
    store = storage.store

    def keep(file: IO[bytes]) -> Deferred[None]:
        deferred: Deferred[None] = deferred_from_coro(_store(store, file, folder, name))
        return deferred

    storage.store = keep


async def _store(
    store: Callable[[IO[bytes]], Any], file: IO[bytes], folder: Path, name: str
) -> None:
    # A storage closes the file, whether it has stored it or not, and with that it is gone.
    spare = _link(file)
    try:
        stored = store(file)
        if isinstance(stored, Deferred):
            await maybe_deferred_to_future(stored)
        elif inspect.isawaitable(stored):
            await stored
    except Exception:
        if spare is not None:
            handle, kept = tempfile.mkstemp(suffix=f"-{name}", prefix="not-stored-", dir=folder)
            os.close(handle)
            shutil.copyfile(spare, kept)
            logger.exception("Dead letters that cannot be stored are kept in %s", kept)
        raise
    finally:
        if spare is not None:
            spare.unlink()


def _link(file: IO[bytes]) -> Path | None:
    """Another name for the file on disk; None if it has none."""
    name = getattr(file, "name", None)
    if not isinstance(name, str) or not os.path.isfile(name):
        return None
    file.flush()
    spare = Path(f"{name}.spare")
    try:
        os.link(name, spare)
    except OSError:  # a file system without links
        shutil.copyfile(name, spare)
    return spare
