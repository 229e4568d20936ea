"""What the site counts, as ``/__stats__`` shows it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .behaviour import Decision

_KINDS = ("served", "refused", "challenged", "failed", "dropped", "stalled", "gone")


class HostStats:
    """The counts of one host.

    ``hits``: requests that arrived; ``served``: right pages that were sent whole; ``pages``:
    how many different ones; ``refused``: throttled; ``early``: hits before an earlier
    Retry-After or ban had ended; ``gone``: the client left before the answer; ``peak``: the most
    requests at work at once, those about to be refused included.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.hits = 0
        self.early = 0
        self.in_flight = 0
        self.peak = 0
        self._served: set[str] = set()
        # (seconds since the first request, target, kind) of each hit, in order of its end
        self._log: list[tuple[float, str, str]] = []

    def arrived(self, decision: Decision) -> None:
        """Count a request that came in."""
        self.hits += 1
        self.early += decision.early
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)

    def ended(self, target: str, kind: str, status: int | None, arrived_at: float) -> None:
        """Count how a request ended; *status* None when nothing was sent."""
        self.in_flight -= 1
        kind = "served" if kind == "page" else kind
        self.counts[kind] += 1
        if status is not None:
            self.statuses[status] += 1
        if kind == "served" and (status is None or status < 300):
            self._served.add(target)
        self._log.append((round(arrived_at, 4), target, kind))

    def summary(self, *, detail: bool) -> dict[str, Any]:
        """Return the counts; with *detail* also every hit and the hits of each path."""
        told: dict[str, Any] = {
            "hits": self.hits,
            **{kind: self.counts[kind] for kind in _KINDS},
            "pages": len(self._served),
            "early": self.early,
            "in_flight": self.in_flight,
            "peak": self.peak,
            "statuses": {str(code): count for code, count in sorted(self.statuses.items())},
        }
        if detail:
            log = sorted(self._log)
            paths: dict[str, dict[str, Any]] = {}
            for second, target, _ in log:
                entry = paths.setdefault(target, {"hits": 0, "times": []})
                entry["hits"] += 1
                entry["times"].append(second)
            told["requests"] = log
            told["paths"] = paths
        return told


def site_summary(
    hosts: dict[str, HostStats], *, now: float, peak: int, detail: bool
) -> dict[str, Any]:
    """Return the counts of the whole site and, under ``hosts``, of each host.

    *now*: seconds since the first request; *peak*: most in flight at once over all hosts.
    """
    per_host = {name: stats.summary(detail=detail) for name, stats in sorted(hosts.items())}
    numbers = ("hits", *_KINDS, "pages", "early", "in_flight")
    totals = {name: sum(host[name] for host in per_host.values()) for name in numbers}
    return {"seconds": round(now, 4), **totals, "peak": peak, "hosts": per_host}
