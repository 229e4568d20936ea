"""The rows of the real crawls: what a perfect client needs, and the bars for ours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cpu import Cost, Pair, cpu_verdicts
from benchmarks.profiles import CONTENDERS, ORACLE, OURS, OURS_UNHINDERED, Row
from benchmarks.rows import rows, stepped_seconds
from benchmarks.running import Measured, profile_of
from benchmarks.verdicts import verdicts_of
from flaky_site.profile import load_profile

MEASURED = Measured(
    pages=1000,
    wanted=1000,
    seconds=100.0,
    goodput=10.0,
    refused=0.005,
    refused_later=0.0,
    hits=1000,
    failed=0,
    early=0,
    rest=10.0,
    missing=0,
    refusals=5,
    latency=0.1,
)
ALL = {row.name: row for row in rows()}


def failed(row: Row, ours: Measured, **others: Measured) -> list[str]:
    found = {ORACLE: MEASURED, OURS: ours, **others}
    return [verdict.bar for verdict in verdicts_of(row, found) if not verdict.passed]


def test_a_capacity_that_changes_serves_in_steps() -> None:
    steps = [(0.0, 10.0), (10.0, 0.0), (20.0, 5.0)]
    assert [stepped_seconds(pages, steps) for pages in (50, 100, 105)] == [5, 10, 21]


@pytest.mark.parametrize("quick", [False, True])
def test_every_row_is_a_site_that_can_be(quick: bool) -> None:
    chosen = rows(quick=quick)
    assert len({row.name for row in chosen}) == len(chosen)
    for row in chosen:
        load_profile(profile_of(row.hosts, {}))
        load_profile(profile_of(row.hosts, row.calm))
        assert set(row.baselines) <= set(CONTENDERS)
        assert 0 < row.ideal < 160


def test_a_perfect_client_is_bound_by_the_windows_the_hole_and_the_places() -> None:
    assert ALL["window"].ideal == pytest.approx(120, abs=1)
    assert ALL["hole"].ideal == pytest.approx(1200 / 40 + 10)
    assert ALL["queueing"].ideal == pytest.approx(1000 / 50)
    assert ALL["broad"].ideal == pytest.approx(10_000 * 0.7 / 100)
    assert [host.address for host in ALL["broad"].hosts][249:251] == ["127.0.1.250", "127.0.2.1"]


def test_ours_that_does_as_well_as_the_oracle_keeps_every_bar() -> None:
    for row in ALL.values():
        assert failed(row, MEASURED, **{OURS_UNHINDERED: MEASURED}) == []


@pytest.mark.parametrize(
    ("share", "answers", "kept"),
    [(0.01, 100, True), (0.05, 12, True), (0.011, 13, False)],
)
def test_few_refusals_are_a_share_or_a_number(share: float, answers: int, kept: bool) -> None:
    bars = failed(ALL["ten"], replace(MEASURED, refused=share, refusals=answers))
    assert (bars == []) is kept


def test_what_is_lost_early_slow_or_late_is_told() -> None:
    row, fine = ALL["queueing"], MEASURED
    for worse, bar in (
        (replace(fine, pages=999), "every page"),
        (replace(fine, early=1), "no early hit"),
        (replace(fine, missing=1), "the audit balances"),
        (replace(fine, goodput=9.4), "goodput at least 0.95 of the oracle"),
        (replace(fine, latency=0.16), "median latency at most 1.5 of the unloaded one"),
    ):
        assert failed(row, worse) == [bar]


def test_good_hosts_are_compared_with_a_run_without_the_stalled_one() -> None:
    slower = replace(MEASURED, seconds=106.0)
    (bar,) = failed(ALL["stalled"], slower, **{OURS_UNHINDERED: MEASURED})
    assert bar == "good hosts within 1.05 of a run without the stalled one"


def test_the_cpu_row_is_judged_by_the_median_of_its_pairs() -> None:
    stock = Cost(0.002, 300.0)
    costs = [Cost(0.00208, 295.0), Cost(0.009, 100.0), Cost(0.0019, 310.0)]
    cpu, pace = cpu_verdicts([Pair(ours, stock) for ours in costs])
    assert (cpu.figure, cpu.passed) == ("1.040", True)
    assert (pace.figure, pace.passed) == ("0.983", True)


def test_stock_crawls_are_stopped_before_the_whole_takes_too_long() -> None:
    seconds = 0.0
    for row in rows():
        seconds += sum(min(row.ideal + 3, row.baseline) for _ in row.baselines)
        seconds += 0 if row.oracle is None else min(row.ideal, row.oracle_seconds)
        seconds += 1.05 * row.ideal * (2 if row.has_trouble else 1)
    assert seconds < 30 * 60
