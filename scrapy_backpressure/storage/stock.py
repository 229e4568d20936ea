"""What Scrapy's own scheduler and filter left in a JOBDIR."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.pqueues import ScrapyPriorityQueue
from scrapy.utils.misc import load_object

from scrapy_backpressure import _scrapy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

_STATE = "active.json"
_SIZE_BYTES = 2


class StockJobdir:
    """The queue and the fingerprints that an earlier run with Scrapy's scheduler left, if any.

    They are only read: from a copy, as Scrapy's queues forget what they give.
    """

    def __init__(self, crawler: Crawler, jobdir: str) -> None:
        self._crawler = crawler
        self.folder = jobdir
        self._folder = Path(jobdir, "requests.queue")
        self._copy = Path(jobdir, "requests.queue.copy")
        self._seen = Path(jobdir, "requests.seen")

    @property
    def has_requests(self) -> bool:
        """Whether there is a queue, even an empty one."""
        return self._folder.is_dir()

    @property
    def written(self) -> int:
        """When the queue was written, which no other one shares; 0 if its run was killed."""
        state = self._folder / _STATE
        return state.stat().st_mtime_ns if state.exists() else 0

    @property
    def has_fingerprints(self) -> bool:
        """Whether there are fingerprints of what was seen."""
        return self._seen.is_file()

    def queues(self) -> Iterator[ScrapyPriorityQueue]:
        """Yield queues, each with its ``pop()`` in the order in which Scrapy would send.

        Raises:
            Exception: whatever Scrapy, or a queue class of the project, makes of the files.
            ValueError: they are not those of Scrapy's own priority queues.
        """
        state = self._folder / _STATE
        if not state.exists():
            if any(path.is_file() for path in self._folder.rglob("*")):
                logger.warning(
                    "%s is of a run that was killed, which Scrapy's scheduler does not survive: "
                    "what was queued there cannot be read, by Scrapy neither",
                    self._folder,
                )
            return
        active = json.loads(state.read_text(encoding="utf-8"))
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._folder, self._copy)
        try:
            if isinstance(active, dict):
                for slot, priorities in active.items():
                    yield self._queue(_scrapy.slot_folder(str(self._copy), slot), priorities)
            elif isinstance(active, list):
                yield self._queue(self._copy, active)
            else:
                raise ValueError(f"{_STATE} is not that of a priority queue of Scrapy's")
        finally:
            shutil.rmtree(self._copy, ignore_errors=True)

    def _queue(self, folder: Path, priorities: list[int]) -> ScrapyPriorityQueue:
        settings = self._crawler.settings
        start = settings["SCHEDULER_START_DISK_QUEUE"]
        return ScrapyPriorityQueue(
            self._crawler,
            load_object(settings["SCHEDULER_DISK_QUEUE"]),
            str(folder),
            priorities,
            start_queue_cls=load_object(start) if start else None,
        )

    def fingerprints(self) -> Iterator[bytes]:
        """Yield the fingerprints: lines of hexadecimal digits, or since Scrapy 2.19 each after its
        length. What a kill has cut off is left out.
        """
        data = self._seen.read_bytes()
        if data[:1] != b"\0":
            for line in data.split(b"\n"):
                try:
                    fingerprint = bytes.fromhex(line.decode("ascii"))
                except ValueError:
                    continue
                if fingerprint:
                    yield fingerprint
            return
        position = 0
        while position + _SIZE_BYTES <= len(data):
            start = position + _SIZE_BYTES
            position = start + int.from_bytes(data[position:start], "big")
            if position <= len(data):
                yield data[start:position]

    def set_aside(self, *, with_fingerprints: bool) -> list[Path]:
        """Rename what was read, so that it is read once; return the new names."""
        moved = []
        for path, found in (
            (self._folder, self.has_requests),
            (self._seen, with_fingerprints and self.has_fingerprints),
        ):
            if found:
                target = path.with_name(f"{path.name}.imported")
                number = 1
                while target.exists():
                    number += 1
                    target = path.with_name(f"{path.name}.imported-{number}")
                moved.append(path.rename(target))
        return moved
