"""Turns among ready keys, and keys that sleep."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from scrapy_backpressure.control.rotation import Rotation

KEYS = "abcde"


@dataclass
class Naive:
    """The same, with one list in order and every key looked at each time."""

    line: list[str] = field(default_factory=list)
    loads: dict[str, int] = field(default_factory=dict)
    asleep: dict[str, tuple[float, int]] = field(default_factory=dict)
    resting: list[str] = field(default_factory=list)
    number: int = 0

    def add(self, key: str) -> None:
        if key not in self.loads:
            self.loads[key] = 0
            self.line.append(key)

    def discard(self, key: str) -> None:
        self.step_out(key)
        self.loads.pop(key, None)

    def step_out(self, key: str) -> None:
        for line in (self.line, self.resting):
            if key in line:
                line.remove(key)
        self.asleep.pop(key, None)

    def set_load(self, key: str, load: int) -> None:
        if key in self.line and self.loads[key] != load:
            self.line.remove(key)
            self.line.append(key)
        if key in self.loads:
            self.loads[key] = load

    def sleep(self, key: str, until: float) -> None:
        if key in self.loads:
            self.step_out(key)
            self.number += 1
            self.asleep[key] = (until, self.number)

    def rest(self, key: str, until: float) -> None:
        self.sleep(key, until)
        if key in self.loads:
            self.resting.append(key)

    def wake(self, key: str) -> None:
        if key in self.asleep:
            self.step_out(key)
            self.line.append(key)

    def next(self, now: float) -> str | None:
        for key in sorted(self.asleep, key=lambda key: self.asleep[key]):
            if self.asleep[key][0] <= now:
                self.wake(key)
        line, due = self.line or self.resting, self.next_wake()
        if not line or (not self.line and due is not None and due <= now + 1.0):
            return None
        key = min(line, key=lambda key: self.loads[key]) if self.line else line[0]
        line.remove(key)
        line.append(key)
        return key

    def next_wake(self) -> float | None:
        times = [until for until, _ in self.asleep.values() if until != math.inf]
        return min(times, default=None)


names = st.sampled_from(KEYS)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["add", "discard", "wake"]), names, st.just(0.0)),
        st.tuples(st.just("set_load"), names, st.integers(0, 2)),
        st.tuples(st.sampled_from(["sleep", "rest"]), names, st.sampled_from([0.5, 2.0, 7.0])),
        st.tuples(st.just("sleep"), names, st.just(math.inf)),
        st.tuples(st.just("next"), names, st.sampled_from([0.0, 0.5, 1.0])),
    ),
    max_size=120,
)


@given(steps)
def test_behaves_as_a_list_that_is_looked_through(
    actions: list[tuple[str, str, float]],
) -> None:
    rotation: Rotation[str] = Rotation()
    naive = Naive()
    now = 0.0
    for action, key, seconds in actions:
        if action == "next":
            now += seconds
            assert rotation.next(now) == naive.next(now)
        elif action == "set_load":
            rotation.set_load(key, int(seconds))
            naive.set_load(key, int(seconds))
        elif action in ("sleep", "rest"):
            getattr(rotation, action)(key, now + seconds)
            getattr(naive, action)(key, now + seconds)
        else:
            getattr(rotation, action)(key)
            getattr(naive, action)(key)
        assert rotation.next_wake() == naive.next_wake()
        assert len(rotation) == len(naive.loads)
        assert {k for k in KEYS if k in rotation} == set(naive.loads)
        assert {k for k in KEYS if rotation.rests(k)} == set(naive.resting)


@given(st.lists(names, min_size=1, unique=True), st.integers(1, 5))
def test_ready_keys_get_equally_many_turns(keys: list[str], rounds: int) -> None:
    rotation: Rotation[str] = Rotation()
    for key in keys:
        rotation.add(key)
    turns = [rotation.next(0.0) for _ in range(rounds * len(keys))]
    assert turns == keys * rounds


def test_nothing_is_next_when_there_are_no_keys() -> None:
    assert Rotation[str]().next(0.0) is None


def test_blocked_key_wakes_only_when_it_is_woken() -> None:
    rotation: Rotation[str] = Rotation()
    rotation.add("a")
    rotation.sleep("a", math.inf)
    assert rotation.next(1e9) is None
    assert rotation.next_wake() is None
    rotation.wake("a")
    assert rotation.next(0.0) == "a"


def test_a_later_sleep_replaces_an_earlier_one() -> None:
    rotation: Rotation[str] = Rotation()
    rotation.add("a")
    rotation.sleep("a", 1.0)
    rotation.sleep("a", 5.0)
    assert rotation.next(4.0) is None
    assert rotation.next(5.0) == "a"


def test_key_that_left_and_came_back_does_not_wake_by_its_old_alarm() -> None:
    rotation: Rotation[str] = Rotation()
    rotation.add("a")
    rotation.sleep("a", 1.0)
    rotation.discard("a")
    rotation.add("a")
    rotation.sleep("a", math.inf)
    assert rotation.next(2.0) is None


def test_ready_tells_the_order_without_changing_it() -> None:
    rotation: Rotation[str] = Rotation()
    for key in "abc":
        rotation.add(key)
    rotation.sleep("b", 10.0)
    assert rotation.ready(0.0) == ["a", "c"]
    assert rotation.next(0.0) == "a"
    assert rotation.ready(10.0) == ["c", "a", "b"]


def test_memory_follows_the_number_of_keys_and_not_of_pauses() -> None:
    rotation: Rotation[str] = Rotation()
    rotation.add("a")
    for number in range(10_000):
        rotation.sleep("a", 1000.0 + number)
        rotation.wake("a")
    assert len(rotation._alarms) < 200


def test_keys_with_the_least_under_way_come_first() -> None:
    rotation: Rotation[str] = Rotation()
    rotation.add("a", 2)
    rotation.add("b", 1)
    rotation.add("c", 1)
    assert [rotation.next(0.0) for _ in range(4)] == ["b", "c", "b", "c"]
    rotation.set_load("b", 3)
    rotation.set_load("c", 3)
    assert rotation.next(0.0) == "a"


def test_resting_key_goes_while_no_other_is_ready() -> None:
    rotation: Rotation[str] = Rotation()
    rotation.add("a")
    rotation.add("b", 9)
    rotation.rest("a", 5.0)
    assert [rotation.next(0.0) for _ in range(2)] == ["b", "b"]
    rotation.sleep("b", math.inf)
    assert [rotation.next(0.0) for _ in range(2)] == ["a", "a"]


def test_resting_key_takes_part_again_when_its_time_has_come() -> None:
    rotation: Rotation[str] = Rotation()
    rotation.add("a")
    rotation.add("b", 9)
    rotation.rest("a", 5.0)
    assert rotation.next(5.0) == "a"


def test_resting_key_leaves_its_place_to_one_that_is_about_to_be_ready() -> None:
    rotation: Rotation[str] = Rotation()
    rotation.add("a")
    rotation.add("b")
    rotation.rest("a", 5.0)
    rotation.sleep("b", 3.0)
    assert rotation.next(2.5) is None
    assert rotation.next(1.0) == "a"
