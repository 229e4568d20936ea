"""Which key may go next, among many of which most are asleep.

Ready keys take turns. Blocked keys wait for :meth:`Rotation.wake`, sleeping keys for a time.
Every operation costs O(1), or O(log n) in the number of sleeping keys.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")

_BLOCKED = float("inf")


class Rotation(Generic[K]):
    """Keys in turn; some asleep until a time (seconds, any clock), some until they are woken."""

    def __init__(self) -> None:
        self._ready: OrderedDict[K, None] = OrderedDict()
        self._asleep: dict[K, float] = {}
        self._alarms: list[tuple[float, int, K]] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._ready) + len(self._asleep)

    def __contains__(self, key: K) -> bool:
        return key in self._ready or key in self._asleep

    def add(self, key: K) -> None:
        """Let *key* take part; a new one comes last. No effect on a key that is in already."""
        if key not in self:
            self._ready[key] = None

    def discard(self, key: K) -> None:
        """Forget *key*."""
        self._ready.pop(key, None)
        self._asleep.pop(key, None)

    def next(self, now: float) -> K | None:
        """The key whose turn it is, put last in line; None if no key is ready."""
        self._wake_due(now)
        if not self._ready:
            return None
        key, _ = self._ready.popitem(last=False)
        self._ready[key] = None
        return key

    def ready(self, now: float) -> list[K]:
        """The ready keys, next one first. Costs O(number of ready keys)."""
        self._wake_due(now)
        return list(self._ready)

    def sleep(self, key: K, until: float) -> None:
        """Pass *key* over until the time *until*; ``inf`` means until :meth:`wake`."""
        if key not in self:
            return
        self._ready.pop(key, None)
        self._asleep[key] = until
        if until != _BLOCKED:
            self._order += 1  # equal times: first asleep, first awake
            heapq.heappush(self._alarms, (until, self._order, key))
            if len(self._alarms) > 2 * len(self._asleep) + 64:
                self._drop_stale_alarms()

    def wake(self, key: K) -> None:
        """Make *key* ready now, if it sleeps."""
        if self._asleep.pop(key, None) is not None:
            self._ready[key] = None

    def next_wake(self) -> float | None:
        """Time at which the next sleeping key wakes; None if none does by itself."""
        alarms = self._alarms
        while alarms and self._asleep.get(alarms[0][2]) != alarms[0][0]:
            heapq.heappop(alarms)  # woken, forgotten or put to sleep anew since
        return alarms[0][0] if alarms else None

    def _drop_stale_alarms(self) -> None:
        # Keys that were woken before their time leave theirs behind; without this the heap would
        # grow with the number of pauses instead of the number of sleepers.
        self._alarms = [alarm for alarm in self._alarms if self._asleep.get(alarm[2]) == alarm[0]]
        heapq.heapify(self._alarms)

    def _wake_due(self, now: float) -> None:
        while (due := self.next_wake()) is not None and due <= now:
            self.wake(heapq.heappop(self._alarms)[2])
