"""Real crawls, ours beside stock Scrapy, on sites that throttle, fail and stall: one table.

    python -m benchmarks.crawl [--only ROW]... [--contenders NAME]... [--quick] [--json FILE]

Each crawl is a process of its own against a site of its own, one after the other. The oracle is a
stock crawl that knows the site's limit and is fixed at it; where the limit changes over time, its
time is computed. All of a row's contenders ask for the same pages. Goodput is what the site saw:
different pages served, from the first request to the last page. Stock crawls are stopped when a
perfect client would be done, or earlier, since their pace shows soon; so is the oracle. What was
stopped has a ``*`` behind its pages. Latency is the median of the pages served.

With --quick, each crawl asks for a fifth of the pages; such figures show that it works, no more.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.cpu import PAGES, PAIRS, Pair, cpu_verdicts, measure_pairs
from benchmarks.memory import MANY, MemoryLine, measure_memory, memory_verdicts, seconds
from benchmarks.profiles import (
    CONTENDERS,
    ORACLE,
    OURS,
    OURS_SETTINGS,
    OURS_UNHINDERED,
    QUICK,
    Row,
)
from benchmarks.rows import rows
from benchmarks.running import Measured, crawl, elapsed, measure
from benchmarks.verdicts import Verdict, verdicts_of

MEMORY = "memory"
CPU = "cpu"
HEADER = (
    f"{'site':<26} {'contender':<22} {'pages':>12} {'pages/s':>8} {'of oracle':>9}"
    f" {'refused':>8} {'2nd half':>8} {'early':>6} {'latency':>8} {'seconds':>8}"
)
Results = dict[str, dict[str, Measured]]


def computed(row: Row) -> Measured:
    """The oracle of a site whose limit changes: nobody could be faster, so none is crawled.

    Of what a steady limit allows, a client gets as much as the row's probe does.
    """
    share, probe = 1.0, row.probe
    if probe is not None:
        result = crawl(row.hosts, probe.settings, seconds=probe.seconds, changes=probe.changes)
        steady = measure(result, row.hosts, row.hosts, row.latency)
        share = min(1.0, steady.goodput / probe.pace)
    seconds = row.ideal / share
    pace = row.good_pages / seconds
    return Measured(row.pages, row.pages, seconds, pace, 0, 0, row.pages, 0, 0, pace)


def contend(row: Row, name: str) -> Measured:
    """Run the crawl of one contender on the site of *row*."""
    hosts, changes = row.hosts, dict[str, Any]()
    patience = 3 * row.ideal + 60.0
    if name == ORACLE:
        if row.oracle is None:
            return computed(row)
        settings, hosts = row.oracle, row.good_hosts
        patience = min(patience, row.oracle_seconds)
    elif name == OURS_UNHINDERED:
        settings, hosts, changes = OURS_SETTINGS, row.good_hosts, dict(row.calm)
    else:
        settings = CONTENDERS[name]
        if name != OURS:
            patience = min(row.ideal + 3.0, row.baseline)
    result = crawl(
        hosts, {**settings, **row.settings}, seconds=patience, changes=changes, args=row.args
    )
    return measure(result, hosts, row.good_hosts, row.latency)


def line(row: Row, name: str, it: Measured, oracle: Measured | None) -> str:
    """Return one line of the table."""
    share = f"{it.goodput / oracle.goodput:.2f}" if oracle and oracle.goodput else "-"
    pages = f"{it.pages}{'*' if it.stopped else ''}/{it.wanted}"
    return (
        f"{row.title:<26} {name:<22} {pages:>12} {it.goodput:>8.1f} {share:>9}"
        f" {it.refused:>8.1%} {it.refused_later:>8.1%} {it.early:>6}"
        f" {it.latency or row.latency:>8.2f} {it.seconds:>8.1f}"
    )


def run_rows(wanted: Collection[Row], names: Collection[str]) -> tuple[Results, list[Verdict]]:
    """Crawl *wanted* with the contenders *names*, printing the table as it grows."""
    results: Results = {}
    verdicts: list[Verdict] = []
    if wanted:
        print(HEADER, "-" * len(HEADER), sep="\n", flush=True)
    for row in wanted:
        found = results[row.name] = {}
        order = [ORACLE, *row.baselines, OURS]
        if row.has_trouble:
            order.append(OURS_UNHINDERED)
        for name in order:
            if name not in names and not (name == OURS_UNHINDERED and OURS in names):
                continue
            found[name] = contend(row, name)
            print(line(row, name, found[name], found.get(ORACLE)), flush=True)
        print(flush=True)
        verdicts.extend(verdicts_of(row, found))
    return results, verdicts


def main() -> int:
    """Run the benchmark; the exit code says whether it could be run, not who won."""
    known = [*(row.name for row in rows()), CPU, MEMORY]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.crawl", description="Real crawls beside stock Scrapy."
    )
    parser.add_argument("--only", action="append", choices=known, metavar="ROW")
    names = [ORACLE, *CONTENDERS]
    parser.add_argument("--contenders", action="append", choices=names, metavar="NAME")
    parser.add_argument("--quick", action="store_true", help=f"1/{QUICK} of the pages")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.epilog = f"Rows: {', '.join(known)}. Contenders: {', '.join(names)}."
    options = parser.parse_args()
    only = options.only or known
    with_ours = not options.contenders or OURS in options.contenders
    started = time.monotonic()
    results, verdicts = run_rows(
        [row for row in rows(quick=options.quick) if row.name in only],
        options.contenders or names,
    )
    pairs: list[Pair] = []
    if CPU in only and with_ours:
        print(f"{PAIRS} pairs of {PAGES} pages of a site without latency or limits:")
        pairs = measure_pairs(
            pages=PAGES // (QUICK if options.quick else 1),
            tell=lambda pair: print(pair, flush=True),
        )
        verdicts.extend(cpu_verdicts(pairs))
        print()
    memory: tuple[MemoryLine, ...] = ()
    if MEMORY in only and with_ours:
        limit = seconds(quick=options.quick)
        print(f"{MANY} start requests, {limit:g} s, sixteen unlimited sites:")
        few, many, stock = memory = measure_memory(quick=options.quick)
        print(*memory, "", sep="\n", flush=True)
        verdicts.extend(memory_verdicts(few, many, stock))
    print(*verdicts, sep="\n")
    print(f"{sum(v.passed for v in verdicts)} of {len(verdicts)} hold; took {elapsed(started)}")
    if options.json:
        data = {
            "quick": options.quick,
            "rows": {
                row: {name: asdict(it) for name, it in found.items()}
                for row, found in results.items()
            },
            "cpu": [asdict(pair) for pair in pairs],
            "memory": [asdict(it) for it in memory],
            "verdicts": [asdict(verdict) for verdict in verdicts],
        }
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
