"""What holds of a lane whatever comes, in whatever order."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_backpressure.control.lane import Lane, Ticket
from scrapy_backpressure.control.outcome import Outcome, Quota, Verdict

VERDICTS = st.builds(
    Verdict,
    st.sampled_from(Outcome),
    st.just(""),
    st.none() | st.floats(0.01, 100.0),
    st.none()
    | st.builds(
        Quota,
        limit=st.none() | st.floats(0, 1000),
        remaining=st.none() | st.floats(0, 1000),
        reset=st.none() | st.floats(0, 1000),
        window=st.none() | st.floats(0, 1000),
        concurrency=st.none() | st.floats(0, 100),
    ),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "finish", "finish", "cancel", "ceiling"]),
        st.floats(0.0, 30.0),
        st.integers(0, 1000),
        VERDICTS,
    ),
    max_size=120,
)


class Story:
    """A lane that meets a list of events in any order, and what must hold at each."""

    def __init__(self, ceiling: int, seed: int) -> None:
        self.lane = Lane(ceiling=ceiling, now=0.0, rng=random.Random(seed))
        self.live: list[Ticket] = []
        self.now = 0.0

    def step(self, action: str, passed: float, pick: int, verdict: Verdict) -> None:
        self.now += passed
        lane, live = self.lane, self.live
        if action == "send":
            if lane.ready_at(self.now) <= self.now:
                assert self.now >= lane.paused_until
                assert lane.in_flight < lane.ceiling
                live.append(lane.sent(self.now))
        elif action == "ceiling":
            lane.ceiling = 1 + pick % 70
        elif live:
            ticket = live.pop(pick % len(live))
            if action == "finish":
                latency = self.now - ticket.sent_at
                outcome = lane.finished(ticket, self.now, verdict, latency=latency)
                of_load = verdict.outcome is Outcome.FAILED and outcome is Outcome.THROTTLED
                assert outcome is verdict.outcome or of_load
            else:
                lane.cancel(ticket, self.now)
        assert lane.in_flight == len(live)

    def tell(self, steps: list[tuple[str, float, int, Verdict]]) -> None:
        for step in steps:
            self.step(*step)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, ceiling=st.integers(1, 70), seed=st.integers(0, 9))
def test_neither_a_pause_nor_the_ceiling_is_ever_broken(
    steps: list[tuple[str, float, int, Verdict]], ceiling: int, seed: int
) -> None:
    Story(ceiling, seed).tell(steps)


@settings(max_examples=100, deadline=None)
@given(steps=STEPS, ceiling=st.integers(1, 70), seed=st.integers(0, 9))
def test_caps_stay_sane(
    steps: list[tuple[str, float, int, Verdict]], ceiling: int, seed: int
) -> None:
    story = Story(ceiling, seed)
    story.tell(steps)
    lane = story.lane
    assert 1 <= lane.concurrency <= lane.ceiling
    assert lane.rate > 0


@settings(max_examples=100, deadline=None)
@given(steps=STEPS, ceiling=st.integers(1, 70), seed=st.integers(0, 9))
def test_an_idle_lane_is_always_ready_in_the_end(
    steps: list[tuple[str, float, int, Verdict]], ceiling: int, seed: int
) -> None:
    story = Story(ceiling, seed)
    story.tell(steps)
    lane = story.lane
    for ticket in story.live:
        lane.cancel(ticket, story.now)
    now = story.now
    for _ in range(5):
        at = lane.ready_at(now)
        assert at < math.inf
        if at <= now:
            return
        now = at
    pytest.fail("never ready")
