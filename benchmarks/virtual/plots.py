"""One picture a run: what was sent and served, the limits, and the refusals, over time.

The colours are from Okabe and Ito's palette, which the colour-blind can tell apart.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # no display is needed

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.virtual.contenders import OURS
from benchmarks.virtual.crawl import Run
from benchmarks.virtual.figures import Truth
from benchmarks.virtual.jobs import Job, start

SENT, SERVED, CAPACITY, CONCURRENCY, RATE, REFUSED = (
    "#E69F00",
    "#0072B2",
    "#000000",
    "#009E73",
    "#CC79A7",
    "#D55E00",
)
INCHES, DPI = (9.0, 6.6), 100
BINS = 150
"""Most intervals in which requests are counted."""
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E0E0E0",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
}
_ABOVE: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.97), "borderpad": 0.0}
"""Where a legend hides nothing."""


def draw_job(what: tuple[Job, Path]) -> Path:
    """Run a recorded job and draw it into a folder; the file."""
    job, folder = what
    name = job.profile.replace("%", "-percent")
    path = folder / (f"{name}.png" if job.contender == OURS else f"{name}-{job.contender}.png")
    draw(start(job), f"{job.profile}, {job.contender}, seed {job.seed}", path)
    return path


def draw(run: Run, title: str, path: Path) -> None:
    """Draw a run that was recorded."""
    record = run.record
    truth = Truth(run.profile, run.site)
    width = _width(record.end, len(record.sent))
    edges = [i * width for i in range(math.ceil(record.end / width) + 1)]
    with mpl.rc_context(_STYLE):
        figure, (rates, limits, refusals) = plt.subplots(
            3, 1, sharex=True, figsize=INCHES, dpi=DPI, height_ratios=[3, 2, 1]
        )
        rates.set_title(title, loc="left", fontweight="bold")
        _draw_rates(rates, run, truth, edges)
        _draw_limits(limits, run, 2 * max(map(truth.capacity, [0.0, *truth.changes])))
        counts = _counts(record.refused, edges)
        refusals.bar(edges[:-1], counts, width=width, align="edge", color=REFUSED)
        refusals.set_ylabel(f"bad answers\nin {width:g} s")
        refusals.set_ylim(0, max(5, *counts) if counts else 5)
        refusals.set_xlabel("seconds")
        refusals.set_xlim(0, record.end)
        figure.align_ylabels()
        figure.tight_layout()
        figure.savefig(path)
        plt.close(figure)


def _width(seconds: float, requests: int) -> float:
    """Seconds in which to count: round, few enough, and with ten requests in each if it can be."""
    least = max(seconds / BINS, min(seconds / 20, 10 * seconds / max(1, requests)))
    power = 10.0 ** math.floor(math.log10(least))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= least)


def _counts(times: Sequence[float], edges: Sequence[float]) -> list[int]:
    places = [bisect_left(times, edge) for edge in edges]
    return [after - before for before, after in pairwise(places)]


def _draw_rates(axes: Axes, run: Run, truth: Truth, edges: Sequence[float]) -> None:
    width = edges[1] - edges[0]
    record = run.record
    for times, label, colour in (
        (record.sent, "sent", SENT),
        (record.accepted, "served", SERVED),
    ):
        per_second = [count / width for count in _counts(times, edges)]
        axes.step([*edges], [per_second[0], *per_second], where="pre", color=colour, label=label)
    steps = [0.0, *(at for at in truth.changes if 0 < at < record.end), record.end]
    capacity = [truth.capacity(at) for at in steps[:-1]]
    axes.step(
        steps,
        [*capacity, capacity[-1]],
        where="post",
        color=CAPACITY,
        linestyle="--",
        linewidth=1.0,
        label="capacity",
    )
    axes.set_ylabel("requests per second")
    # A hammering limiter must not squeeze the rest to the ground.
    axes.set_ylim(0, 1.6 * max(capacity))
    axes.legend(**_ABOVE, ncols=3)


def _draw_limits(axes: Axes, run: Run, most: float) -> None:
    """Concurrency and rate, the latter up to ``most``."""
    samples = run.record.limits
    times = [at for at, _, _ in samples]
    at_once = [concurrency for _, concurrency, _ in samples]
    axes.step(times, at_once, where="post", color=CONCURRENCY, label="at once (C)")
    axes.set_ylabel("C")
    axes.set_ylim(0, 1.2 * max(at_once, default=1))
    other = axes.twinx()
    other.grid(visible=False)
    other.spines["right"].set_visible(True)
    rates = [rate if rate < math.inf else math.nan for _, _, rate in samples]
    other.step(times, rates, where="post", color=RATE, label="per second (r)")
    known = [rate for rate in rates if not math.isnan(rate)]
    other.set_ylim(0, min(most, 1.2 * max(known)) if known else most)
    other.set_ylabel("r" if known else "r (none)")
    lines = [*axes.get_lines(), *other.get_lines()]
    axes.legend(lines, [str(line.get_label()) for line in lines], **_ABOVE, ncols=2)
