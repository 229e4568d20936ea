"""What ours has to keep in real crawls, and whether it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.profiles import ORACLE, OURS, OURS_UNHINDERED, Row
from benchmarks.running import Measured

MOST_REFUSED = 0.01
FEW_REFUSALS = 12
"""Answers that may be refusals however few pages there are: a limit is found by meeting it."""
LEAST_GOODPUT = 0.95
LEAST_REST = 0.9
"""Of our pace without 503s, for pages that no random 503 met: 5 % of the places are not theirs."""
MOST_SLOWED = 1.05


@dataclass(frozen=True)
class Verdict:
    """Whether ours keeps one of its promises, and by which figure."""

    row: str
    bar: str
    figure: str
    passed: bool

    def __str__(self) -> str:
        return f"{'PASS' if self.passed else 'FAIL'}  {self.row:<26} {self.bar}: {self.figure}"


def verdicts_of(row: Row, found: Mapping[str, Measured]) -> Iterator[Verdict]:
    """Judge ours on *row*."""
    ours, oracle = found.get(OURS), found.get(ORACLE)
    if ours is None:
        return

    def verdict(bar: str, figure: str, passed: bool) -> Verdict:
        return Verdict(row.title, bar, figure, passed)

    yield verdict("every page", f"{ours.pages} of {ours.wanted}", ours.pages == ours.wanted)
    yield verdict("no early hit", str(ours.early), ours.early == 0)
    yield verdict(
        f"refused at most {MOST_REFUSED:.0%} or {FEW_REFUSALS} answers",
        f"{ours.refused:.1%}, {ours.refusals}",
        ours.refused <= MOST_REFUSED or ours.refusals <= FEW_REFUSALS,
    )
    yield verdict("the audit balances", f"{ours.missing} missing", ours.missing == 0)
    if oracle is not None:
        share = ours.goodput / oracle.goodput
        bar = f"goodput at least {LEAST_GOODPUT} of the oracle"
        yield verdict(bar, f"{share:.2f}", share >= LEAST_GOODPUT)
    if row.most_latency is not None:
        times = ours.latency / row.latency
        bar = f"median latency at most {row.most_latency} of the unloaded one"
        yield verdict(bar, f"{times:.2f}", times <= row.most_latency)
    unhindered = found.get(OURS_UNHINDERED)
    if unhindered is None:
        return
    if row.calm:
        share = ours.rest / unhindered.goodput
        bar = f"pages without a 503 at {LEAST_REST} of our pace without any"
        yield verdict(bar, f"{share:.2f}", share >= LEAST_REST)
    else:
        slowed = ours.seconds / unhindered.seconds
        bar = f"good hosts within {MOST_SLOWED} of a run without the stalled one"
        yield verdict(bar, f"{slowed:.3f}", slowed <= MOST_SLOWED)
