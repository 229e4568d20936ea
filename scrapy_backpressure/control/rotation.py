"""Which key may go next, among many of which most are asleep.

Of the ready keys, those with the least under way come first; equals take turns. A key that rests
goes only while no other is ready, or about to be. Blocked keys wait for :meth:`Rotation.wake`,
sleeping and resting keys for a time. Every operation costs O(log n) in the number of sleeping
keys, and O(m) in that of different loads, which is small.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")

_BLOCKED = float("inf")
_SOON = 1.0


class Rotation(Generic[K]):
    """Keys in turn; some asleep until a time (seconds, any clock), some until they are woken."""

    def __init__(self) -> None:
        self._loads: dict[K, int] = {}
        self._ready: dict[int, OrderedDict[K, None]] = {}  # by load; no line is empty
        self._asleep: dict[K, float] = {}
        self._resting: OrderedDict[K, None] = OrderedDict()  # of those asleep
        self._alarms: list[tuple[float, int, K]] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._loads)

    def __contains__(self, key: K) -> bool:
        return key in self._loads

    def add(self, key: K, load: int = 0) -> None:
        """Let *key* take part; a new one comes last. No effect on a key that is in already."""
        if key not in self._loads:
            self._loads[key] = load
            self._line_up(key)

    def discard(self, key: K) -> None:
        """Forget *key*."""
        if key in self._loads:
            self._step_out(key)
            del self._loads[key]

    def set_load(self, key: K, load: int) -> None:
        """So much of *key* is under way: it comes after all keys with less."""
        if self._loads.get(key, load) == load:
            return
        if key in self._asleep:
            self._loads[key] = load
            return
        self._step_out(key)
        self._loads[key] = load
        self._line_up(key)

    def next(self, now: float) -> K | None:
        """The key whose turn it is, put last in its line; None if there is none."""
        self._wake_due(now)
        if self._ready:
            line = self._ready[min(self._ready)]
        else:
            line, due = self._resting, self.next_wake()
            if not line or (due is not None and due <= now + _SOON):
                return None
        key, _ = line.popitem(last=False)
        line[key] = None
        return key

    def ready(self, now: float) -> list[K]:
        """The ready keys, next one first, then those that rest. Costs O(number of them)."""
        self._wake_due(now)
        lines = [self._ready[load] for load in sorted(self._ready)]
        return [key for line in (*lines, self._resting) for key in line]

    def sleep(self, key: K, until: float) -> None:
        """Pass *key* over until the time *until*; ``inf`` means until :meth:`wake`."""
        if key not in self._loads:
            return
        self._step_out(key)
        self._asleep[key] = until
        if until != _BLOCKED:
            self._order += 1  # equal times: first asleep, first awake
            heapq.heappush(self._alarms, (until, self._order, key))
            if len(self._alarms) > 2 * len(self._asleep) + 64:
                self._drop_stale_alarms()

    def rest(self, key: K, until: float) -> None:
        """Let *key* go only while no other is ready within a second, until the time *until*."""
        if key in self._loads:
            self.sleep(key, until)
            self._resting[key] = None

    def rests(self, key: K) -> bool:
        """Whether *key* rests."""
        return key in self._resting

    def wake(self, key: K) -> None:
        """Make *key* ready now, if it sleeps or rests."""
        if key in self._asleep:
            self._step_out(key)
            self._line_up(key)

    def next_wake(self) -> float | None:
        """Time at which the next sleeping key wakes; None if none does by itself."""
        alarms = self._alarms
        while alarms and self._asleep.get(alarms[0][2]) != alarms[0][0]:
            heapq.heappop(alarms)  # woken, forgotten or put to sleep anew since
        return alarms[0][0] if alarms else None

    def _line_up(self, key: K) -> None:
        self._ready.setdefault(self._loads[key], OrderedDict())[key] = None

    def _step_out(self, key: K) -> None:
        if self._asleep.pop(key, None) is not None:
            self._resting.pop(key, None)
            return
        load = self._loads[key]
        line = self._ready[load]
        del line[key]
        if not line:
            del self._ready[load]

    def _drop_stale_alarms(self) -> None:
        # Keys that were woken before their time leave theirs behind; without this the heap would
        # grow with the number of pauses instead of the number of sleepers.
        self._alarms = [alarm for alarm in self._alarms if self._asleep.get(alarm[2]) == alarm[0]]
        heapq.heapify(self._alarms)

    def _wake_due(self, now: float) -> None:
        while (due := self.next_wake()) is not None and due <= now:
            self.wake(heapq.heappop(self._alarms)[2])
