"""Drive `Lane` against model sites in virtual time, beside other limiters and one that knows all.

    python -m benchmarks.simulate [--profile PART]... [--contender NAME]... [--seeds N]
                                  [--json FILE] [--plots DIR] [--trace] [--jobs N] [--no-check]

An hour of crawling takes seconds, and the same seed gives the same run, whatever the number of
jobs. Each row shows medians over the seeds. At the end come the bars for ours; the exit code is 1
if one is missed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.virtual.contenders import COMPARISONS, NAMES, ORACLE, OURS
from benchmarks.virtual.figures import Row, as_json, summary
from benchmarks.virtual.jobs import Job, cost, run_job, spare_of, wants_spare
from benchmarks.virtual.profiles import Profile, profiles
from benchmarks.virtual.verdicts import Rows, Verdict, judge, lines, rivals

COMPARISON_SEEDS = 3
"""Most seeds for all but ours: they are there to compare, not to be tuned."""
T = TypeVar("T")
R = TypeVar("R")


def simulate(
    chosen: list[Profile], contenders: list[str], seeds: int, jobs: int
) -> dict[str, dict[str, Row]]:
    """Run all, and put the rows together: profile to contender to row."""
    fewer = min(seeds, COMPARISON_SEEDS)
    with_oracle = {
        profile.name
        for profile in chosen
        if ORACLE in contenders
        or (OURS in contenders and any(bar.needs_oracle for bar in profile.bars))
    }
    searched = [p.name for p in chosen if p.name in with_oracle and wants_spare(p)]
    spares = dict(zip(searched, _map(spare_of, searched, jobs), strict=True))
    todo = [
        Job(profile.name, name, seed, spares.get(profile.name, 0.0))
        for profile in chosen
        for name in NAMES
        if name in contenders or (name == ORACLE and profile.name in with_oracle)
        for seed in range(seeds if name == OURS else fewer)
    ]
    # The longest first, so that none is left over at the end.
    todo.sort(key=cost, reverse=True)
    done = dict(zip(todo, _map(run_job, todo, jobs), strict=True))
    rows: dict[str, dict[str, Row]] = {}
    for profile in chosen:
        for name in NAMES:
            mine = [job for job in done if (job.profile, job.contender) == (profile.name, name)]
            runs = [done[job] for job in sorted(mine, key=lambda job: job.seed)]
            if runs:
                rows.setdefault(profile.name, {})[name] = summary(profile.name, name, runs)
    return rows


def _map(work: Callable[[T], R], todo: list[T], jobs: int) -> list[R]:
    if jobs == 1 or len(todo) < 2:
        return [work(one) for one in todo]
    with multiprocessing.Pool(min(jobs, len(todo))) as pool:
        return pool.map(work, todo, chunksize=1)


def verdicts(rows: Rows) -> tuple[list[Verdict], dict[str, list[str]]]:
    """Verdicts on ours; and by profile, what is better than ours in one of two."""
    told: list[Verdict] = []
    better: dict[str, list[str]] = {}
    for name, by_contender in rows.items():
        ours = by_contender.get(OURS)
        if ours is None:
            continue
        told += judge(name, profiles()[name].bars, ours, by_contender.get(ORACLE))
        others = [row for other, row in by_contender.items() if other in COMPARISONS]
        both, one = rivals(ours, others)
        told += both
        if one:
            better[name] = one
    return told, better


COLUMNS = (
    ("goodput", 8, "share"),
    ("refused", 8, "share"),
    ("refusals", 8, "count"),
    ("refused_late", 8, "share"),
    ("early", 6, "count"),
    ("to_90", 7, "time"),
    ("up", 7, "time"),
    ("down", 7, "time"),
    ("resumed", 7, "time"),
    ("latency", 7, "times"),
    ("least_share", 7, "share"),
    ("lost", 5, "count"),
)
TITLES = {"refused_late": "2nd half", "to_90": "to 90%", "least_share": "share"}
FORMATS = {"share": "{:.2%}", "count": "{:.0f}", "time": "{:.1f}", "times": "{:.2f}"}


def table(rows: Rows) -> Iterator[str]:
    """All rows; early hits and lost pages are the worst run's."""
    heads = "".join(f" {TITLES.get(name, name):>{width}}" for name, width, _ in COLUMNS)
    yield f"{'profile':36} {'contender':12} {'worst':>8}{heads}"
    for name, by_contender in rows.items():
        for contender, row in by_contender.items():
            cells = ""
            for figure, width, kind in COLUMNS:
                of = row.worst if figure in ("early", "lost") else row.median
                value = getattr(of, figure)
                text = "" if value is None else FORMATS[kind].format(value)
                cells += f" {text:>{width}}"
            yield f"{name:36} {contender:12} {row.worst.goodput:8.2%}{cells}"


def as_document(rows: Rows, told: list[Verdict], better: dict[str, list[str]]) -> dict[str, Any]:
    """All there is to tell, for JSON."""
    return {
        "rows": [
            {
                "profile": row.profile,
                "contender": row.contender,
                "seeds": row.seeds,
                "median": as_json(row.median),
                "worst": as_json(row.worst),
            }
            for by_contender in rows.values()
            for row in by_contender.values()
        ],
        "bars": [
            {"profile": verdict.profile, "bar": verdict.text, "kept": verdict.kept}
            for verdict in told
        ],
        "better_in_one": better,
    }


def main() -> int:
    """Run the command; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", action="append", help="only profiles whose name has this")
    parser.add_argument("--contender", action="append", choices=NAMES, help="only these")
    parser.add_argument("--seeds", type=int, default=5, help="runs per profile of ours")
    parser.add_argument("--json", metavar="FILE", help="write all figures there; - for stdout")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw there (matplotlib)")
    parser.add_argument("--trace", action="store_true", help="print every bad answer; one job")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--no-check", action="store_true", help="exit code 0 whatever is missed")
    args = parser.parse_args()
    started = time.monotonic()
    chosen = [
        profile
        for name, profile in profiles().items()
        if not args.profile or any(part in name for part in args.profile)
    ]
    contenders = args.contender or list(NAMES)
    if args.trace:
        trace(chosen, contenders, args.seeds)
        return 0
    rows = simulate(chosen, contenders, args.seeds, args.jobs)
    told, better = verdicts(rows)
    if args.json == "-":
        print(json.dumps(as_document(rows, told, better), indent=1))
    else:
        report(rows, told, better)
        print(f"{time.monotonic() - started:.0f} s with {args.jobs} jobs", file=sys.stderr)
        if args.json:
            document = json.dumps(as_document(rows, told, better), indent=1)
            Path(args.json).write_text(document + "\n", encoding="utf-8")
    missed = not all(verdict.kept for verdict in told)
    return int(missed and not args.no_check)


def report(rows: Rows, told: list[Verdict], better: dict[str, list[str]]) -> None:
    """Print the table and what becomes of the bars."""
    print("\n".join(table(rows)))
    seeds = sorted({row.seeds for by_contender in rows.values() for row in by_contender.values()})
    print(f"\nMedians over {' or '.join(map(str, seeds))} seeds (most for ours).")
    if better:
        print("\nBetter than ours in one of goodput and refusals:")
    for name, texts in better.items():
        for text in texts:
            print(f"        {name:28} {text}")
    if told:
        print()
        print("\n".join(lines(told)))
        missed = sum(not verdict.kept for verdict in told)
        print(f"\n{len(told) - missed} kept, {missed} MISSED")


def trace(chosen: list[Profile], contenders: list[str], seeds: int) -> None:
    """Print every bad answer."""
    for profile in chosen:
        for name in contenders:
            for seed in range(seeds):
                print(f"{profile.name}, {name}, seed {seed}")
                spare = spare_of(profile.name) if name == ORACLE and wants_spare(profile) else 0.0
                run_job(Job(profile.name, name, seed, spare), trace=print)


if __name__ == "__main__":
    sys.exit(main())
