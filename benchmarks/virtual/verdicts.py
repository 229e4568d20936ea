"""The bars for ours, and whether they are kept.

Bars are judged on medians over the seeds; what must never happen (an early hit, a lost page) on
the worst of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from benchmarks.virtual.figures import Row

NEVER = {"early", "lost", "refusals_settled"}
"""Figures that are judged on the worst run."""
SHARES = {"goodput", "refused", "refused_late", "least_share"}
BETTER_GOODPUT = 0.005
BETTER_REFUSED = 0.0005
"""By how much a comparison has to be better to count as better."""


class Bar(Protocol):
    """What a row must reach."""

    def kept(self, row: Row, oracle: Row | None) -> bool:
        """Whether it does. ``oracle``: the row of one that knows the site, if it has run."""

    def told(self, row: Row, oracle: Row | None) -> str:
        """The bar and the figure in words."""

    @property
    def needs_oracle(self) -> bool:
        """Whether it cannot be judged without."""


def _figure(row: Row, name: str) -> float:
    value = getattr(row.worst if name in NEVER else row.median, name)
    return math.nan if value is None else float(value)


def _text(name: str, value: float) -> str:
    if name in SHARES:
        return f"{100 * value:.2f} %"
    return "never" if value == math.inf else f"{value:.4g}"


@dataclass(frozen=True)
class AtLeast:
    """A figure must be as high as this; ``of_oracle``: as this share of the oracle's."""

    name: str
    bar: float
    of_oracle: bool = False

    @property
    def needs_oracle(self) -> bool:
        return self.of_oracle

    def _bar(self, oracle: Row | None) -> float:
        if not self.of_oracle:
            return self.bar
        return self.bar * _figure(oracle, self.name) if oracle else math.nan

    def kept(self, row: Row, oracle: Row | None) -> bool:
        return _figure(row, self.name) >= self._bar(oracle)

    def told(self, row: Row, oracle: Row | None) -> str:
        figure, bar = _text(self.name, _figure(row, self.name)), self._bar(oracle)
        of = f" ({self.bar:g} of oracle)" if self.of_oracle else ""
        return f"{self.name} {figure}, at least {_text(self.name, bar)}{of}"


@dataclass(frozen=True)
class AtMost:
    """A figure must be as low as this."""

    name: str
    bar: float
    needs_oracle = False

    def kept(self, row: Row, oracle: Row | None) -> bool:
        return _figure(row, self.name) <= self.bar

    def told(self, row: Row, oracle: Row | None) -> str:
        figure = _text(self.name, _figure(row, self.name))
        return f"{self.name} {figure}, at most {_text(self.name, self.bar)}"


@dataclass(frozen=True)
class Either:
    """One of two must be kept."""

    one: Bar
    other: Bar

    @property
    def needs_oracle(self) -> bool:
        return self.one.needs_oracle or self.other.needs_oracle

    def kept(self, row: Row, oracle: Row | None) -> bool:
        return self.one.kept(row, oracle) or self.other.kept(row, oracle)

    def told(self, row: Row, oracle: Row | None) -> str:
        return f"{self.one.told(row, oracle)}; or {self.other.told(row, oracle)}"


@dataclass(frozen=True)
class Verdict:
    """Whether ours keeps one bar."""

    profile: str
    text: str
    kept: bool


Rows = Mapping[str, Mapping[str, "Row"]]
"""Profile to contender to row."""


def judge(profile: str, bars: Iterable[Bar], ours: Row, oracle: Row | None) -> Iterator[Verdict]:
    """One verdict for each bar of a profile."""
    for bar in bars:
        yield Verdict(profile, bar.told(ours, oracle), bar.kept(ours, oracle))


def rivals(ours: Row, others: Iterable[Row]) -> tuple[list[Verdict], list[str]]:
    """Which comparisons beat ours: in goodput and refusals both, which is a bar, and in one."""
    both: list[Verdict] = []
    one: list[str] = []
    for row in others:
        more = row.median.goodput - ours.median.goodput
        fewer = ours.median.refused - row.median.refused
        text = (
            f"{row.contender}: goodput {100 * row.median.goodput:.1f} % "
            f"(ours {100 * ours.median.goodput:.1f} %), refused {100 * row.median.refused:.2f} % "
            f"(ours {100 * ours.median.refused:.2f} %)"
        )
        if more > BETTER_GOODPUT and fewer > BETTER_REFUSED:
            both.append(Verdict(ours.profile, f"beaten by {text}", kept=False))
        elif more > BETTER_GOODPUT or fewer > BETTER_REFUSED:
            one.append(text)
    return both, one


def lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Compact: one line a profile that keeps all, one for each bar that is missed."""
    by_profile: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_profile.setdefault(verdict.profile, []).append(verdict)
    for profile, some in by_profile.items():
        missed = [verdict for verdict in some if not verdict.kept]
        kept = "; ".join(verdict.text for verdict in some if verdict.kept)
        if kept:
            yield f"kept    {profile:28} {kept}"
        for verdict in missed:
            yield f"MISSED  {profile:28} {verdict.text}"
