"""Bars: kept or missed, and by which figure; and which comparison is better."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.virtual.figures import Figures, Row, summary
from benchmarks.virtual.profiles import profiles
from benchmarks.virtual.tables import conclusion, document, table
from benchmarks.virtual.verdicts import AtLeast, AtMost, Bar, Either, judge, rivals

FIGURES = Figures(
    goodput=0.98,
    refused=0.015,
    refusals=10,
    refused_late=0.001,
    refusals_settled=None,
    early=0,
    to_90=4.0,
    up=None,
    down=None,
    resumed=None,
    latency=1.0,
    least_share=None,
    lost=0,
    served=650,
    seconds=300.0,
)


def row(contender: str = "ours", worst: dict[str, Any] | None = None, **changes: Any) -> Row:
    figures = replace(FIGURES, **changes)
    return Row("site", contender, (figures,), figures, replace(figures, **(worst or {})))


def kept(bar: Bar, ours: Row, oracle: Row | None = None) -> bool:
    (verdict,) = judge("site", [bar], ours, oracle)
    return verdict.kept


@pytest.mark.parametrize(
    ("bar", "expected"),
    [
        (AtLeast("goodput", 0.98), True),
        (AtLeast("goodput", 0.981), False),
        (AtMost("to_90", 4.0), True),
        (AtMost("to_90", 3.9), False),
        (AtMost("up", 3.0), False),  # a figure that is missing keeps nothing
        (Either(AtMost("refused", 0.01), AtMost("refusals", 12)), True),
        (Either(AtMost("refused", 0.01), AtMost("refusals", 9)), False),
    ],
)
def test_a_bar_is_kept_or_missed(bar: Bar, expected: bool) -> None:
    assert kept(bar, row()) is expected


def test_a_bar_may_be_a_share_of_the_oracles_figure() -> None:
    bar = AtLeast("goodput", 0.97, of_oracle=True)
    assert bar.needs_oracle
    assert kept(bar, row(goodput=0.80), row("oracle", goodput=0.82))
    assert not kept(bar, row(goodput=0.79), row("oracle", goodput=0.82))
    assert not kept(bar, row(goodput=0.99), None)


def test_what_must_never_happen_is_judged_on_the_worst_run() -> None:
    ours = row(worst={"early": 1, "goodput": 0.5})
    assert not kept(AtMost("early", 0), ours)
    assert kept(AtLeast("goodput", 0.97), ours)


def test_verdicts_tell_figure_and_bar() -> None:
    bars: list[Bar] = [AtLeast("goodput", 0.97), AtMost("to_90", 3), AtMost("resumed", 5)]
    ours = row(to_90=math.inf)
    told = [verdict.text for verdict in judge("site", bars, ours, None)]
    assert told == ["goodput 98 % ≥ 97 %", "to_90 never > 3", "resumed nan > 5"]
    lines = list(conclusion(list(judge("site", bars, ours, None)), {}))
    assert [line.split()[0] for line in lines] == ["kept", "MISSED", "MISSED", "1"]


@pytest.mark.parametrize(
    ("goodput", "refused", "in_both", "in_one"),
    [
        (0.99, 0.014, True, False),
        (0.99, 0.05, False, True),
        (0.5, 0.0, False, True),
        (0.984, 0.0149, False, False),  # too little to tell
        (0.984, 0.0, False, True),
    ],
)
def test_a_comparison_that_is_better_in_both_is_a_miss(
    goodput: float, refused: float, in_both: bool, in_one: bool
) -> None:
    both, one = rivals(row(), [row("aimd", goodput=goodput, refused=refused)])
    assert (bool(both), bool(one)) == (in_both, in_one)
    assert not any(verdict.kept for verdict in both)


def test_among_very_many_random_failures_a_few_less_are_chance() -> None:
    ours = row(refused=0.4020)
    assert rivals(ours, [row("cubic", goodput=1.4, refused=0.4012)])[0] == []
    assert rivals(ours, [row("cubic", goodput=1.4, refused=0.39)])[0] != []


def test_a_comparison_with_fewer_seeds_is_compared_on_those() -> None:
    runs = [replace(FIGURES, goodput=goodput) for goodput in (0.99, 0.5, 0.5)]
    ours = summary("site", "ours", runs)
    assert rivals(ours, [row("aimd", goodput=0.99, refused=0.0)])[0] == []


def test_bars_name_figures_that_exist() -> None:
    oracle = row("oracle")
    for profile in profiles().values():
        for verdict in judge(profile.name, profile.bars, row(), oracle):
            assert verdict.text


def test_rows_are_told_as_a_table_and_as_json() -> None:
    rows = {"site": {"ours": row(to_90=math.inf)}}
    heads, line = table(rows)
    assert heads.split()[:3] == ["profile", "contender", "worst"]
    assert line.split()[:4] == ["site", "ours", "98.00%", "98.00%"]
    told = document(rows, [], {})
    assert told["rows"][0]["median"]["to_90"] is None
