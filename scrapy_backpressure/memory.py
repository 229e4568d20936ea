"""How near the process is to the memory limit of Scrapy's MemoryUsage extension."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

_CLOSE_SHARE = 0.9
_OPEN_SHARE = 0.85
_STATM = Path("/proc/self/statm")


def resident_mb() -> float | None:
    """Resident memory in MiB; None where the system does not tell.

    MemoryUsage reads the peak, which never falls; this is what is in use now.
    """
    try:
        import resource

        pages = int(_STATM.read_text().split()[1])
        return pages * resource.getpagesize() / 2**20
    except (ImportError, OSError, ValueError, IndexError):
        return None


class MemoryWatch:
    """High from 90 % of MEMUSAGE_LIMIT_MB up, until 85 % are reached again."""

    def __init__(self, settings: BaseSettings) -> None:
        enabled = settings.getbool("MEMUSAGE_ENABLED") and sys.platform != "win32"
        self._limit = float(settings.getint("MEMUSAGE_LIMIT_MB")) if enabled else 0.0
        self.high = False

    def update(self) -> None:
        """Measure."""
        if not self._limit:
            return
        resident = resident_mb()
        if resident is not None:
            share = resident / self._limit
            self.high = share > _OPEN_SHARE if self.high else share >= _CLOSE_SHARE
