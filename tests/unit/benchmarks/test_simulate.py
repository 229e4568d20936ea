"""The command: what it runs, and that it tells the same whatever the number of processes."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from benchmarks.simulate import main
from benchmarks.virtual.jobs import best_pace, wants_pace
from benchmarks.virtual.profiles import profiles


def simulate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: str
) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["simulate", *args])
    code = main()
    return code, capsys.readouterr().out


def test_processes_change_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--profile", "60-pages", "--profile", "50-pages", "--seeds", "2", "--json", "-")
    one = simulate(monkeypatch, capsys, *args, "--jobs", "1")
    two = simulate(monkeypatch, capsys, *args, "--jobs", "2")
    assert one == two
    told: dict[str, Any] = json.loads(one[1])
    assert {row["contender"] for row in told["rows"]} > {"ours", "oracle", "aimd"}


def test_the_oracle_runs_where_a_bar_needs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out = simulate(
        monkeypatch,
        capsys,
        *("--profile", "bucket-2-burst-1", "--contender", "ours", "--seeds", "1", "--jobs", "1"),
    )
    assert [line.split()[1] for line in out.splitlines()[1:3]] == ["ours", "oracle"]


def test_the_exit_code_says_whether_a_bar_is_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ("--profile", "60-pages-bucket-2", "--seeds", "1", "--jobs", "1")
    code, out = simulate(monkeypatch, capsys, *quick)
    assert code == int("MISSED " in out)
    assert simulate(monkeypatch, capsys, *quick, "--no-check")[0] == 0


def test_jitter_costs_the_oracle_of_a_fast_bucket_without_a_burst() -> None:
    assert [name for name, profile in profiles().items() if wants_pace(profile)] == [
        "bucket-0.5-burst-1",
        "bucket-2-burst-1",
        "bucket-10-burst-1",
        "bucket-100-burst-1",
        "steps-rate-50-5-50",
        "ban-3s-20-burst-1",
    ]
    pace = best_pace("bucket-10-burst-1")
    assert 0 < pace.spare < 0.003
    assert 0.95 < pace.goodput < 1
