"""The bars for ours, and whether they are kept.

Bars are judged on medians over the seeds; what must never happen (an early hit, a lost page) on
the worst of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from benchmarks.virtual.figures import Row

NEVER = {"early", "lost", "refusals_settled"}
"""Figures that are judged on the worst run."""
SHARES = {"goodput", "refused", "refused_late", "least_share"}
"""Figures that are told as percentages."""
BETTER_GOODPUT = 0.005
BETTER_REFUSED = 0.0005
"""By how much a comparison has to be better to count as better ..."""
OF_REFUSED = 0.01
"""... and by this part of our refusals: of random failures chance brings so many more or less."""


class Bar(Protocol):
    """What a row must reach."""

    @property
    def needs_oracle(self) -> bool:
        """Whether it cannot be judged without the oracle's row."""

    def kept(self, row: Row, oracle: Row | None) -> bool:
        """Whether the row does."""

    def told(self, row: Row, oracle: Row | None) -> str:
        """Figure and bar, as a comparison that is true."""


def _figure(row: Row, name: str) -> float:
    value = getattr(row.worst if name in NEVER else row.median, name)
    return math.nan if value is None else float(value)


def _text(name: str, value: float) -> str:
    if math.isinf(value):
        return "never"
    return f"{100 * value:.4g} %" if name in SHARES else f"{value:.4g}"


@dataclass(frozen=True)
class AtLeast:
    """A figure must be as high as this; ``of_oracle``: as this share of the oracle's."""

    name: str
    bar: float
    of_oracle: bool = False

    @property
    def needs_oracle(self) -> bool:
        return self.of_oracle

    def _least(self, oracle: Row | None) -> float:
        if not self.of_oracle:
            return self.bar
        return self.bar * _figure(oracle, self.name) if oracle else math.nan

    def kept(self, row: Row, oracle: Row | None) -> bool:
        return _figure(row, self.name) >= self._least(oracle)

    def told(self, row: Row, oracle: Row | None) -> str:
        least = _text(self.name, self._least(oracle))
        sign = "≥" if self.kept(row, oracle) else "<"
        of_oracle = f" ({self.bar:g} of the oracle's)" if self.of_oracle else ""
        return f"{self.name} {_text(self.name, _figure(row, self.name))} {sign} {least}{of_oracle}"


@dataclass(frozen=True)
class AtMost:
    """A figure must be as low as this."""

    name: str
    bar: float
    needs_oracle = False

    def kept(self, row: Row, oracle: Row | None) -> bool:
        return _figure(row, self.name) <= self.bar

    def told(self, row: Row, oracle: Row | None) -> str:
        sign = "≤" if self.kept(row, oracle) else ">"
        figure = _text(self.name, _figure(row, self.name))
        return f"{self.name} {figure} {sign} {_text(self.name, self.bar)}"


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
        one, other = (bar.kept(row, oracle) for bar in (self.one, self.other))
        if one or not other:
            text = self.one.told(row, oracle)
            return text if one else f"{text} and {self.other.told(row, oracle)}"
        return self.other.told(row, oracle)


@dataclass(frozen=True)
class Verdict:
    """Whether ours keeps one bar."""

    profile: str
    text: str
    kept: bool


def judge(profile: str, bars: Iterable[Bar], ours: Row, oracle: Row | None) -> Iterator[Verdict]:
    """One verdict for each bar of a profile."""
    for bar in bars:
        yield Verdict(profile, bar.told(ours, oracle), bar.kept(ours, oracle))


def rivals(ours: Row, others: Iterable[Row]) -> tuple[list[Verdict], list[str]]:
    """Which comparisons beat ours: in goodput and refusals both, which is a bar, and in one.

    On the seeds that both have run, so that luck is the same for both.
    """
    both: list[Verdict] = []
    one: list[str] = []
    for row in others:
        mine, its = ours.of_first(len(row.runs)).median, row.median
        more = its.goodput - mine.goodput > BETTER_GOODPUT
        fewer = mine.refused - its.refused > max(BETTER_REFUSED, OF_REFUSED * mine.refused)
        goodput, refused = f"{its.goodput:.1%}", f"{its.refused:.2%}"
        if more and fewer:
            text = (
                f"{row.contender} is better in both: goodput {goodput} > {mine.goodput:.1%}, "
                f"refused {refused} < {mine.refused:.2%}"
            )
            both.append(Verdict(ours.profile, text, kept=False))
        elif more:
            one.append(f"{row.contender} goodput {goodput} ({refused})")
        elif fewer:
            one.append(f"{row.contender} refusals {refused} ({goodput})")
    return both, one
