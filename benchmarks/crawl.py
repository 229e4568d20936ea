"""Real crawls, ours beside stock Scrapy, on sites that throttle, fail and stall: one table.

    python -m benchmarks.crawl [--only ROW]... [--contenders NAME]... [--quick] [--json FILE]

Each crawl is a process of its own against a site of its own, one after the other. The oracle is a
stock crawl that knows the site's limit and is fixed at it; where the limit changes over time, its
time is computed. All of a row's contenders ask for the same pages. Goodput is what the site saw:
different pages served, from the first request to the last page. Stock crawls are stopped when a
perfect client would be done, or after 30 s; the pages they had by then are marked with a ``*``.

With --quick, each crawl asks for a fifth of the pages; such figures show that it works, no more.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.memory import FEW, MANY, MemoryLine, measure_memory, seconds
from benchmarks.profiles import (
    CONTENDERS,
    ORACLE,
    OURS,
    OURS_SETTINGS,
    OURS_UNHINDERED,
    QUICK,
    Row,
    rows,
)
from benchmarks.running import Measured, crawl, elapsed, measure

MEMORY = "memory"
MOST_REFUSED = 0.05
LEAST_GOODPUT = 0.85
LEAST_REST = 0.9
"""Of our pace without 503s, for pages that no random 503 met: 5 % of the places are not theirs."""
MOST_SLOWED = 1.1
MOST_MEMORY = 1.15
LEAST_PAGES = 0.99
"""Of stock's pages in the memory row: both are bound by the sites, so they differ by chance."""
LONGEST_BASELINE = 30.0
"""Seconds for a stock crawl that may be slow without end; also cut when the oracle is done."""
HEADER = (
    f"{'site':<26} {'contender':<22} {'pages':>12} {'pages/s':>8} {'of oracle':>9}"
    f" {'refused':>8} {'2nd half':>8} {'early':>6} {'seconds':>8}"
)
Results = dict[str, dict[str, Measured]]


@dataclass(frozen=True)
class Verdict:
    """Whether ours keeps one of its promises, and by which figure."""

    row: str
    bar: str
    figure: str
    passed: bool

    def __str__(self) -> str:
        return f"{'PASS' if self.passed else 'FAIL'}  {self.row:<26} {self.bar}: {self.figure}"


def computed(row: Row) -> Measured:
    """The oracle of a site whose limit changes: nobody could be faster, so none is crawled."""
    rate = row.good_pages / row.ideal
    return Measured(row.pages, row.pages, row.ideal, rate, 0, 0, row.pages, 0, 0, rate)


def contend(row: Row, name: str) -> Measured:
    """Run the crawl of one contender on the site of *row*."""
    hosts, changes = row.hosts, dict[str, Any]()
    patience = min(row.ideal + 3.0, LONGEST_BASELINE)
    if name == ORACLE:
        if row.oracle is None:
            return computed(row)
        settings, hosts, changes = row.oracle, row.good_hosts, dict(row.oracle_rule)
    elif name == OURS_UNHINDERED:
        settings, hosts, changes = OURS_SETTINGS, row.good_hosts, dict(row.oracle_rule)
    else:
        settings = CONTENDERS[name]
    if name in {ORACLE, OURS, OURS_UNHINDERED}:
        patience = 3 * row.ideal + 60.0
    result = crawl(hosts, {**settings, **row.settings}, seconds=patience, changes=changes)
    return measure(result, hosts, row.good_hosts, row.latency)


def line(row: Row, name: str, it: Measured, oracle: Measured | None) -> str:
    """Return one line of the table."""
    share = f"{it.goodput / oracle.goodput:.2f}" if oracle and oracle.goodput else "-"
    pages = f"{it.pages}{'*' if it.stopped else ''}/{it.wanted}"
    return (
        f"{row.title:<26} {name:<22} {pages:>12} {it.goodput:>8.1f} {share:>9}"
        f" {it.refused:>8.1%} {it.refused_later:>8.1%} {it.early:>6} {it.seconds:>8.1f}"
    )


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
        f"refused at most {MOST_REFUSED:.0%}", f"{ours.refused:.1%}", ours.refused <= MOST_REFUSED
    )
    yield verdict("the audit balances", f"{ours.missing} missing", ours.missing == 0)
    if oracle is None:
        return
    share = ours.goodput / oracle.goodput
    yield verdict(
        f"goodput at least {LEAST_GOODPUT} of the oracle", f"{share:.2f}", share >= LEAST_GOODPUT
    )
    if OURS_UNHINDERED not in found:
        return
    unhindered = found[OURS_UNHINDERED]
    if row.oracle_rule:
        share = ours.rest / unhindered.goodput
        yield verdict(
            f"pages without a 503 at {LEAST_REST} of our pace without any",
            f"{share:.2f}",
            share >= LEAST_REST,
        )
    else:
        slowed = ours.seconds / unhindered.seconds
        yield verdict(
            f"good hosts within {MOST_SLOWED} of a run without the stalled one",
            f"{slowed:.2f}",
            slowed <= MOST_SLOWED,
        )


def memory_verdicts(few: MemoryLine, many: MemoryLine, stock: MemoryLine) -> Iterator[Verdict]:
    """Judge ours on the memory row."""
    ratio = many.peak_rss / few.peak_rss
    bar = f"peak RSS at most {MOST_MEMORY} of that with {FEW}"
    yield Verdict(f"{MANY} requests", bar, f"{ratio:.2f}", ratio <= MOST_MEMORY)
    bar = f"at least {LEAST_PAGES} of the pages of stock with {FEW} waiting"
    figure = f"{many.pages} to {stock.pages}"
    yield Verdict(f"{MANY} requests", bar, figure, many.pages >= LEAST_PAGES * stock.pages)
    missing = many.missing
    yield Verdict(f"{MANY} requests", "the audit balances", f"{missing} missing", missing == 0)


def run_rows(wanted: Collection[Row], names: Collection[str]) -> tuple[Results, list[Verdict]]:
    """Crawl *wanted* with the contenders *names*, printing the table as it grows."""
    results: Results = {}
    verdicts: list[Verdict] = []
    if wanted:
        print(HEADER, "-" * len(HEADER), sep="\n", flush=True)
    for row in wanted:
        found = results[row.name] = {}
        order = [ORACLE, *CONTENDERS]
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
    known = [row.name for row in rows()]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.crawl", description="Real crawls beside stock Scrapy."
    )
    parser.add_argument("--only", action="append", choices=[*known, MEMORY], metavar="ROW")
    names = [ORACLE, *CONTENDERS]
    parser.add_argument("--contenders", action="append", choices=names, metavar="NAME")
    parser.add_argument("--quick", action="store_true", help=f"1/{QUICK} of the pages")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.epilog = f"Rows: {', '.join([*known, MEMORY])}. Contenders: {', '.join(names)}."
    options = parser.parse_args()
    only = options.only or [*known, MEMORY]
    started = time.monotonic()
    results, verdicts = run_rows(
        [row for row in rows(quick=options.quick) if row.name in only],
        options.contenders or names,
    )
    memory: tuple[MemoryLine, ...] = ()
    if MEMORY in only and (not options.contenders or OURS in options.contenders):
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
            "memory": [asdict(it) for it in memory],
            "verdicts": [asdict(verdict) for verdict in verdicts],
        }
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
