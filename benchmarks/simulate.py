"""Drive `Lane` against model sites in virtual time, beside other limiters and one that knows all.

    python -m benchmarks.simulate [--profile PART]... [--contender NAME]... [--seeds N]
                                  [--json FILE] [--plots DIR] [--trace] [--jobs N] [--no-check]

An hour of crawling takes seconds, and the same seed gives the same run, whatever the number of
jobs. Each row shows medians over the seeds. At the end come the bars for ours; the exit code is 1
if one is missed. A comparison that hammers its site is stopped early: see ``seconds``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

from benchmarks.virtual.contenders import NAMES, ORACLE, OURS
from benchmarks.virtual.figures import Row, summary
from benchmarks.virtual.jobs import (
    HAMMERED,
    Job,
    Pace,
    best_pace,
    cost,
    figures_of,
    start,
    wants_pace,
)
from benchmarks.virtual.profiles import Profile, profiles
from benchmarks.virtual.tables import LEGEND, conclusion, document, table, verdicts

COMPARISON_SEEDS = 3
"""Most seeds for all but ours: they are there to compare, not to be tuned."""
T = TypeVar("T")
R = TypeVar("R")


def simulate(
    chosen: list[Profile], contenders: list[str], seeds: int, jobs: int
) -> dict[str, dict[str, Row]]:
    """Run all, and put the rows together: profile to contender to row.

    The oracle runs as well where a bar for ours is a share of its figure.
    """
    paces = find_paces(chosen, jobs)
    todo: list[Job] = []
    for profile in chosen:
        needed = OURS in contenders and any(bar.needs_oracle for bar in profile.bars)
        for name in NAMES:
            if name in contenders or (name == ORACLE and needed):
                count = seeds if name == OURS else min(seeds, COMPARISON_SEEDS)
                pace = paces.get(profile.name, Pace())
                todo += [Job(profile.name, name, seed, pace) for seed in range(count)]
    print(f"{len(todo)} runs with {jobs} jobs", file=sys.stderr)
    # The longest first, so that none is left over at the end.
    todo.sort(key=cost, reverse=True)
    done = dict(zip(todo, each(figures_of, todo, jobs), strict=True))
    rows: dict[str, dict[str, Row]] = {}
    for profile in chosen:
        for name in NAMES:
            mine = [job for job in done if (job.profile, job.contender) == (profile.name, name)]
            runs = [done[job] for job in sorted(mine, key=lambda job: job.seed)]
            if runs:
                rows.setdefault(profile.name, {})[name] = summary(profile.name, name, runs)
    return rows


def find_paces(chosen: list[Profile], jobs: int) -> dict[str, Pace]:
    """The oracle's best pace for each profile that needs one."""
    wanted = [profile.name for profile in chosen if wants_pace(profile)]
    return dict(zip(wanted, each(best_pace, wanted, jobs), strict=True))


def each(work: Callable[[T], R], todo: list[T], jobs: int) -> list[R]:
    """Work on all, in so many processes; results in the order of ``todo``."""
    if jobs == 1 or len(todo) < 2:
        return [work(one) for one in todo]
    # Spawned, not forked, so that it goes alike on all systems.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(todo)), mp_context=spawn) as pool:
        return list(pool.map(work, todo))


def trace(chosen: list[Profile], contenders: list[str], seeds: int) -> None:
    """Print every bad answer."""
    paces = find_paces(chosen, 1)
    for profile in chosen:
        for name in contenders:
            for seed in range(seeds):
                print(f"{profile.name}, {name}, seed {seed}")
                start(Job(profile.name, name, seed, paces.get(profile.name, Pace())), print)


def draw(chosen: list[Profile], contenders: list[str], jobs: int, folder: Path) -> None:
    """Draw the first seed of each; ours alone unless others were asked for."""
    from benchmarks.virtual.plots import draw_job  # matplotlib is wanted only here

    folder.mkdir(parents=True, exist_ok=True)
    paces = find_paces(chosen, jobs) if ORACLE in contenders else {}
    todo = [
        (Job(profile.name, name, 0, paces.get(profile.name, Pace()), recorded=True), folder)
        for profile in chosen
        for name in contenders
    ]
    drawn = each(draw_job, todo, jobs)
    print(f"{len(drawn)} pictures in {folder}", file=sys.stderr)


def main() -> int:
    """Run the command; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", action="append", help="only profiles whose name has this")
    parser.add_argument("--contender", action="append", choices=NAMES, help="only these")
    parser.add_argument("--seeds", type=int, default=5, help="runs per profile of ours")
    parser.add_argument("--json", metavar="FILE", help="write all figures there; - for stdout")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw there (matplotlib)")
    parser.add_argument("--trace", action="store_true", help="print every bad answer, no table")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--no-check", action="store_true", help="exit code 0 whatever is missed")
    args = parser.parse_args()
    began = time.monotonic()
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
    figures = json.dumps(document(rows, told, better), indent=1)
    if args.json == "-":
        print(figures)
    else:
        if args.json:
            Path(args.json).write_text(figures + "\n", encoding="utf-8")
        print("\n".join(table(rows)), LEGEND, sep="\n\n")
        print(
            f"Seeds: {args.seeds} of ours, at most {COMPARISON_SEEDS} of the others. Comparisons "
            f"stop after {HAMMERED} requests,\nor twice a perfect client's if that is more.\n"
        )
        print("\n".join(conclusion(told, better)))
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    if args.plots:
        draw(chosen, args.contender or [OURS], args.jobs, args.plots)
    missed = not all(verdict.kept for verdict in told)
    return int(missed and not args.no_check)


if __name__ == "__main__":
    sys.exit(main())
