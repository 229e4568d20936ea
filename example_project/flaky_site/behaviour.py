"""What a host does with a request: decisions only, no sockets, no clock, no randomness of its own.

*now* is in seconds since the first request; the random generator is passed in.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from .profile import Fault, HostProfile, Latency, Rule
from .quota import quota_headers


@dataclass(frozen=True, slots=True)
class Decision:
    """How one request is answered.

    *kind* is ``page`` (as asked for), ``refused`` (throttled), ``challenged``, ``failed``,
    ``dropped`` (the connection is cut) or ``stalled`` (never answered). *status* None means that
    of the page, *body* None the page itself; *delay* is in seconds. A request that
    *takes_place* counts against ``max_at_once`` until :meth:`HostBehaviour.finished`.
    """

    kind: str
    delay: float
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: str | bytes | None = None
    takes_place: bool = True
    drop_within: bool = False
    cut_gzip: bool = False
    early: bool = False


class HostBehaviour:
    """The limits and faults of one host, and what it remembers of its visitors."""

    def __init__(
        self,
        profile: HostProfile,
        *,
        rng: random.Random,
        grace: float = 0.05,
        epoch: Callable[[], float],
    ) -> None:
        """*grace*: seconds a refusal needs to reach the client; *epoch*: tells the wall clock."""
        self.in_flight = 0
        self._profile = profile
        self._rng = rng
        self._grace = grace
        self._epoch = epoch
        self._tokens: float | None = None
        self._tokens_at = 0.0
        self._window_index = -1
        self._window_used = 0
        self._ban_until = 0.0
        self._holds: deque[tuple[float, float]] = deque()  # (known to the client, ends)
        self._busy_until: list[float] = []  # a heap: when each place of serve_at_once is free
        self._fault_hits: Counter[tuple[int, str]] = Counter()

    def arrive(self, target: str, now: float) -> Decision:
        """Decide about a request for *target* (path and query) that arrives *now*."""
        rule = self._profile.rule_at(now)
        early = self._is_early(now)
        if self._fault(rule, target, now, lost=True) is not None:
            return Decision("stalled", 0.0, takes_place=False, early=early)
        banned = now < self._ban_until
        wait = None if banned else self._over_limit(rule, now)
        if banned or wait is not None:
            if rule.ban and (early or not banned):
                self._ban_until = now + rule.ban
            return self._refuse(rule, now, max(wait or 0.0, self._ban_until - now), early)
        self._spend(rule, now)
        decision = self._answer(rule, target, now, early)
        if decision.takes_place:
            self.in_flight += 1
        return decision

    def finished(self, decision: Decision) -> None:
        """Give back the place that *decision* took."""
        if decision.takes_place:
            self.in_flight -= 1

    # Limits

    def _over_limit(self, rule: Rule, now: float) -> float | None:
        """Seconds after which to ask again, or None when the request is within the limits."""
        if rule.max_at_once is not None and self.in_flight >= rule.max_at_once:
            return rule.latency.usual
        if rule.rate is not None and self._refill(rule, rule.rate, now) < 1.0:
            return (1.0 - (self._tokens or 0.0)) / rule.rate
        if rule.window is not None:
            self._turn_window(rule.window.seconds, now)
            if self._window_used >= rule.window.limit:
                return (self._window_index + 1) * rule.window.seconds - now
        return None

    def _spend(self, rule: Rule, now: float) -> None:
        if rule.rate is not None:
            self._tokens = self._refill(rule, rule.rate, now) - 1.0
        if rule.window is not None:
            self._turn_window(rule.window.seconds, now)
            self._window_used += 1

    def _refill(self, rule: Rule, rate: float, now: float) -> float:
        if self._tokens is None:
            self._tokens = rule.burst
        else:
            self._tokens = min(rule.burst, self._tokens + (now - self._tokens_at) * rate)
        self._tokens_at = now
        # Sums of floats may miss a whole token by a hair.
        return self._tokens + 1e-9

    def _turn_window(self, seconds: float, now: float) -> None:
        index = math.floor(now / seconds)
        if index != self._window_index:
            self._window_index, self._window_used = index, 0

    # Answers

    def _refuse(self, rule: Rule, now: float, wait: float, early: bool) -> Decision:
        headers = [*rule.headers, *self._quota(rule, now), *rule.refuse_headers]
        value = rule.retry_after
        if value == "auto":
            headers.append(("Retry-After", str(max(1, math.ceil(wait)))))
        elif isinstance(value, tuple):
            headers.extend(("Retry-After", each) for each in value)
        elif value is not None:
            headers.append(("Retry-After", str(value)))
        left = now + rule.refuse_latency
        self._hold(left, _announced(headers) or self._ban_until - now)
        return Decision(
            kind="refused",
            delay=rule.refuse_latency,
            status=rule.refuse_status,
            headers=tuple(headers),
            body=rule.refuse_body,
            takes_place=False,
            early=early,
        )

    def _answer(self, rule: Rule, target: str, now: float, early: bool) -> Decision:
        fault = self._fault(rule, target, now, lost=False)
        seconds = self._latency(rule.latency)
        if fault is not None and fault.latency is not None:
            seconds = fault.latency
        delay = self._queued(rule, seconds, now)
        headers = (*rule.headers, *self._quota(rule, now))
        if fault is None:
            return Decision("page", delay, headers=headers, early=early)
        headers = (*headers, *fault.headers)
        announced = _announced(headers)
        if announced:
            self._hold(now + delay, announced)
        return Decision(
            kind=_kind(fault),
            delay=delay,
            status=403 if fault.challenge and fault.status is None else fault.status,
            headers=headers,
            body=fault.body,
            drop_within=fault.drop == "within",
            cut_gzip=fault.cut_gzip,
            early=early,
        )

    def _fault(self, rule: Rule, target: str, now: float, *, lost: bool) -> Fault | None:
        """The fault that befalls a request; *lost*: on its way, else at the site."""
        for number, fault in enumerate(rule.faults):
            if lost is not (fault.stall == "lost"):
                continue
            if not fault.start <= now < fault.until or not fault.matches(target):
                continue
            if fault.share < 1.0 and self._rng.random() >= fault.share:
                continue
            if fault.times is not None:
                key = (number, target if fault.per == "path" else "")
                if self._fault_hits[key] >= fault.times:
                    continue
                self._fault_hits[key] += 1
            return fault
        return None

    def _latency(self, latency: Latency) -> float:
        if latency.slow_share and self._rng.random() < latency.slow_share:
            return latency.slow
        return latency.usual

    def _queued(self, rule: Rule, seconds: float, now: float) -> float:
        """Seconds until the answer when only ``serve_at_once`` are worked on at a time."""
        places = rule.serve_at_once
        if places is None:
            return seconds
        busy = self._busy_until
        while busy and busy[0] <= now:
            heapq.heappop(busy)
        # Those beyond the places wait for the ones that end last.
        start = now if len(busy) < places else heapq.nlargest(places, busy)[-1]
        heapq.heappush(busy, start + seconds)
        return start + seconds - now

    def _quota(self, rule: Rule, now: float) -> list[tuple[str, str]]:
        if rule.quota is None:
            return []
        if rule.window is not None:
            self._turn_window(rule.window.seconds, now)
            limit, used = rule.window.limit, self._window_used
            reset = (self._window_index + 1) * rule.window.seconds - now
        elif rule.rate is not None:
            limit = math.floor(rule.burst)
            missing = rule.burst - (rule.burst if self._tokens is None else self._tokens)
            used, reset = math.ceil(missing - 1e-6), missing / rule.rate
        else:
            limit, used, reset = rule.max_at_once or 0, self.in_flight, rule.latency.usual
        return quota_headers(
            rule.quota, limit=limit, remaining=limit - used, reset=reset, epoch=self._epoch()
        )

    # Early hits

    def _hold(self, left: float, seconds: float) -> None:
        if seconds > 0:
            self._holds.append((left + self._grace, left + seconds))

    def _is_early(self, now: float) -> bool:
        """Whether a client that read our refusals would not have come yet."""
        while self._holds and self._holds[0][1] <= now:
            self._holds.popleft()
        return bool(self._holds) and self._holds[0][0] < now


def _kind(fault: Fault) -> str:
    if fault.stall:
        return "stalled"
    if fault.drop:
        return "dropped"
    if fault.challenge:
        return "challenged"
    if fault.status == 429:
        return "refused"
    failed = fault.cut_gzip or (fault.status is not None and fault.status >= 400)
    return "failed" if failed else "page"


def _announced(headers: list[tuple[str, str]] | tuple[tuple[str, str], ...]) -> float:
    """Seconds that the Retry-After headers ask for; 0 for those that are not plain seconds."""
    longest = 0.0
    for name, value in headers:
        if name.lower() == "retry-after" and value.replace(".", "", 1).isdigit():
            longest = max(longest, float(value))
    return longest
