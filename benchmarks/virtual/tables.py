"""The figures as a table, as JSON, and what becomes of the bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.virtual.contenders import COMPARISONS, ORACLE, OURS
from benchmarks.virtual.figures import Row, as_json
from benchmarks.virtual.profiles import profiles
from benchmarks.virtual.verdicts import NEVER, Verdict, judge, rivals

Rows = Mapping[str, Mapping[str, Row]]
"""Profile to contender to row."""
COLUMNS = (
    ("goodput", "goodput", 8, "{:.2%}"),
    ("refused", "refused", 8, "{:.2%}"),
    ("refusals", "answers", 8, "{:.0f}"),
    ("refused_late", "2nd half", 8, "{:.2%}"),
    ("early", "early", 6, "{:.0f}"),
    ("to_90", "to 90 %", 8, "{:.1f}"),
    ("up", "up", 6, "{:.1f}"),
    ("down", "down", 6, "{:.1f}"),
    ("resumed", "alive", 6, "{:.1f}"),
    ("latency", "latency", 7, "{:.2f}"),
    ("least_share", "share", 7, "{:.2%}"),
    ("lost", "lost", 5, "{:.0f}"),
    ("seconds", "seconds", 7, "{:.0f}"),
)
LEGEND = """\
goodput: of what a perfect client gets; worst: the same of the worst seed; refused, answers: bad
answers of all; early: sent in a pause that was asked for; to 90 %, up: s until 90 % of the
capacity, at the start and after it rose; down: s until 1.1 × after it fell; alive: s from a dead
site's revival to the first request; latency: × unloaded; share: the lesser of two crawlers;
lost: pages given up; seconds: virtual. Medians over the seeds; early and lost: the worst."""


def table(rows: Rows) -> Iterator[str]:
    """A line for each row."""
    heads = "".join(f" {head:>{width}}" for _, head, width, _ in COLUMNS)
    yield f"{'profile':36} {'contender':12} {'worst':>7}{heads}"
    for name, by_contender in rows.items():
        for contender, row in by_contender.items():
            cells = ""
            for figure, _, width, form in COLUMNS:
                value = getattr(row.worst if figure in NEVER else row.median, figure)
                cells += f" {'' if value is None else form.format(value):>{width}}"
            yield f"{name:36} {contender:12} {row.worst.goodput:7.2%}{cells}".rstrip()


def verdicts(rows: Rows) -> tuple[list[Verdict], dict[str, list[str]]]:
    """Verdicts on ours; and by profile, what is better than ours in one of two."""
    told: list[Verdict] = []
    better: dict[str, list[str]] = {}
    for name, by_contender in rows.items():
        ours = by_contender.get(OURS)
        if ours is None:
            continue
        told += judge(name, profiles()[name].bars, ours, by_contender.get(ORACLE))
        both, one = rivals(ours, [row for row in by_contender.values() if _compared(row)])
        told += both
        if one:
            better[name] = one
    return told, better


def _compared(row: Row) -> bool:
    return row.contender in COMPARISONS


def conclusion(told: Sequence[Verdict], better: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """What is better in one of two, then a line a profile, and one for each bar missed."""
    if better:
        yield "Better than ours in goodput (refused) or in refusals (goodput), not in both:"
        for name, texts in better.items():
            yield f"        {name:36} {'; '.join(texts)}"
        yield ""
    for name in dict.fromkeys(verdict.profile for verdict in told):
        mine = [verdict for verdict in told if verdict.profile == name]
        if kept := [verdict.text for verdict in mine if verdict.kept]:
            yield f"kept    {name:36} {', '.join(kept)}"
        yield from (f"MISSED  {name:36} {verdict.text}" for verdict in mine if not verdict.kept)
    missed = sum(not verdict.kept for verdict in told)
    if told:
        yield f"\n{len(told) - missed} kept, {missed} MISSED"


def document(
    rows: Rows, told: Sequence[Verdict], better: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """All there is to tell, for JSON: figures that do not apply are left out, null is never."""
    return {
        "rows": [
            {
                "profile": row.profile,
                "contender": row.contender,
                "seeds": len(row.runs),
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
        "better_in_one": {name: list(texts) for name, texts in better.items()},
    }
