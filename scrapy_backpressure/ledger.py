"""The audit: every request that entered the crawl has ended in exactly one way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


def _by_name(counts: Counter[str]) -> str:
    return f" ({', '.join(f'{n} {name}' for name, n in counts.most_common())})" if counts else ""


@dataclass
class Ledger:
    """Counts of requests that entered the crawl, and of how they ended.

    A retry or a redirect goes on with its request; neither enters anew.
    """

    accepted: int = 0
    """Requests that ``start()``, a callback or ``engine.crawl()`` gave to the scheduler."""
    resumed: int = 0
    """Requests that an earlier run of this JOBDIR left."""
    handled: int = 0
    """Requests whose answer went to the spider."""
    dead: Counter[str] = field(default_factory=Counter)
    """Dead letters by reason."""
    given_up: Counter[str] = field(default_factory=Counter)
    """Requests given up for a reason that DEAD_LETTER_ON leaves out."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Requests dropped by a filter, by its name."""
    persisted: int = 0
    """Requests left for the next run of this JOBDIR."""
    lost: int = 0
    """Requests that damage of the file cost, or a kill, of those that only memory had."""

    @property
    def entered(self) -> int:
        """All that has to be accounted for."""
        return self.accepted + self.resumed

    @property
    def ended(self) -> int:
        """All that is accounted for."""
        return (
            self.handled
            + self.dead.total()
            + self.given_up.total()
            + self.dropped.total()
            + self.persisted
            + self.lost
        )

    @property
    def missing(self) -> int:
        """Requests that are not accounted for; 0 in a sound crawl, once it is closed."""
        return self.entered - self.ended

    def __str__(self) -> str:
        parts = [
            f"{self.handled} handled",
            f"{self.dead.total()} dead-lettered",
            f"{self.persisted} persisted",
            f"{self.dropped.total()} dropped by filters{_by_name(self.dropped)}",
        ]
        if self.given_up:
            parts.append(f"{self.given_up.total()} given up without a letter")
        if self.lost:
            parts.append(f"{self.lost} lost")
        entered = f"{self.accepted} accepted"
        if self.resumed:
            entered += f" + {self.resumed} resumed"
        return f"{entered} = {' + '.join(parts)}"
