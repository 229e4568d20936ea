"""What the queue costs: time of a ``pop()`` by the number of slots, and memory of many requests.

    python -m benchmarks.scheduling [--quick] [--json FILE]

Each measurement is a process of its own, with a real crawler whose engine runs. The queue is kept
in a steady state, as by a crawl that fetches 300 pages a second, 32 of them at once: each step
pops a request, ends the oldest one under way and pushes that back. Every second one that ends puts
its slot to sleep, for so long that half of the slots sleep at any time. Time is virtual, so that
the measurement itself does not wake slots; the cost of a pop is real.

With --quick, a tenth of the slots and requests; such figures show that it works, no more.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import scrapy
from scrapy.crawler import AsyncCrawlerProcess, Crawler
from scrapy.pqueues import DownloaderAwarePriorityQueue
from scrapy.squeues import FifoMemoryQueue, LifoMemoryQueue

from benchmarks.profiles import OURS_SETTINGS
from benchmarks.running import COMMON, ROOT
from benchmarks.verdicts import Verdict
from scrapy_backpressure import SlotAwarePriorityQueue
from scrapy_backpressure.control.outcome import Outcome
from scrapy_backpressure.control.outcome import Verdict as Answer
from scrapy_backpressure.extension import BackpressureExtension

FEW_SLOTS, SLOTS, MANY_SLOTS = 100, 10_000, 100_000
STOCK_SLOTS = 50_000
REQUESTS = 1_000_000
QUICK = 10
MOST_GROWTH = 3.0
"""A pop with MANY_SLOTS, in times of one with FEW_SLOTS: caches miss, but nothing is searched."""
MOST_OF_STOCK = 0.01
MOST_MEMORY = 1.1
_AT_ONCE = 32
_STEP = 1 / 300  # virtual seconds
_BATCHES, _POPS = 7, 3000
_STOCK_POPS = 5  # a batch; one takes milliseconds
_IDLE = 2000  # slots whose memory is weighed

Figures = dict[str, float]


def requests_of(slots: int, each: Callable[[int], int]) -> Iterator[scrapy.Request]:
    """Requests for so many hosts, the first of each first."""
    counts = [each(slot) for slot in range(slots)]
    for number in range(max(counts)):
        for slot, count in enumerate(counts):
            if number < count:
                yield scrapy.Request(f"http://host{slot}.example/page/{number}")


def one_to_three(slot: int) -> int:
    """Requests of each slot in the steady state."""
    return 1 + slot % 3


def make_queue(crawler: Crawler, kind: str) -> DownloaderAwarePriorityQueue:
    """A queue as Scrapy's scheduler makes it for what is kept in memory."""
    queue = SlotAwarePriorityQueue if kind == "ours" else DownloaderAwarePriorityQueue
    return queue.from_crawler(crawler, LifoMemoryQueue, "", start_queue_cls=FifoMemoryQueue)


class Now:
    """Virtual time for the extension of one crawl, in seconds."""

    def __init__(self, extension: BackpressureExtension) -> None:
        self.time = 1000.0
        extension.clock.now = lambda: self.time  # type: ignore[method-assign]


def pop_ours(crawler: Crawler, slots: int) -> Figures:
    """Seconds of a pop, of a push, and of the first pop of a slot."""
    extension = crawler.get_extension(BackpressureExtension)
    assert extension is not None
    admission, rng = extension.admission, random.Random(1)
    now, asleep = Now(extension), slots * _STEP
    queue = make_queue(crawler, "ours")
    for request in requests_of(slots, one_to_three):
        queue.push(request)
        slot = admission.slot_of(request, now=now.time)
        if slot.paused_until <= now.time and rng.random() < 0.25:
            for lane in slot.lanes.values():
                lane.paused_until = now.time + rng.random() * asleep
    under_way: deque[scrapy.Request] = deque()
    pops, pushes, empty = [], [], 0
    for _ in range(_BATCHES):
        popping = pushing = 0.0
        for step in range(_POPS):
            now.time += _STEP
            began = time.perf_counter()
            popped = queue.pop()
            popping += time.perf_counter() - began
            if popped is None:
                empty += 1
            else:
                under_way.append(popped)
            if len(under_way) <= _AT_ONCE:
                continue
            done = under_way.popleft()
            flight = admission.flights.pop(done)
            lanes = flight.slot.lanes.values()
            admission.release(flight)
            if step % 2:
                for lane in lanes:
                    lane.paused_until = now.time + asleep
            began = time.perf_counter()
            queue.push(done)
            pushing += time.perf_counter() - began
        pops.append(popping / _POPS)
        pushes.append(pushing / _POPS)
    sleeping = sum(slot.paused_until > now.time for slot in admission.slots.values())
    return {
        "pop": statistics.median(pops),
        "push": statistics.median(pushes),
        "asleep": sleeping / slots,
        "empty": empty,
    }


def pop_stock(crawler: Crawler, slots: int) -> Figures:
    """Seconds of a pop of Scrapy's own queue, one popped and one pushed in turn."""
    queue = make_queue(crawler, "stock")
    for request in requests_of(slots, one_to_three):
        queue.push(request)
    pops = []
    for _ in range(_BATCHES):
        popping = 0.0
        for _ in range(_STOCK_POPS):
            began = time.perf_counter()
            popped = queue.pop()
            popping += time.perf_counter() - began
            assert popped is not None
            queue.push(popped)
        pops.append(popping / _STOCK_POPS)
    return {"pop": statistics.median(pops)}


def first_pop(crawler: Crawler, slots: int) -> Figures:
    """Seconds of a pop that hands out the first request of a slot that nothing is known of."""
    extension = crawler.get_extension(BackpressureExtension)
    assert extension is not None
    queue = make_queue(crawler, "ours")
    for request in requests_of(slots, lambda _: 1):
        queue.push(request)
    began = time.perf_counter()
    count = 0
    while (popped := queue.pop()) is not None:
        count += 1
        extension.admission.release(extension.admission.flights.pop(popped))
    return {"pop": (time.perf_counter() - began) / count}


def memory(crawler: Crawler, slots: int, kind: str) -> Figures:
    """Peak resident memory in bytes, with ten requests for each slot pushed."""
    before = _peak()
    queue = make_queue(crawler, kind)
    each = REQUESTS // MANY_SLOTS
    for request in requests_of(slots, lambda _: each):
        queue.push(request)
    assert len(queue) == slots * each
    return {"peak": _peak(), "before": before}


def idle_slot(crawler: Crawler, slots: int, answers: int) -> Figures:
    """Bytes that stay with us of a slot after so many good answers, nothing queued any more.

    Scrapy's own slots are not counted: it drops them after a minute.
    """
    extension = crawler.get_extension(BackpressureExtension)
    assert extension is not None
    admission, now = extension.admission, Now(extension)
    queue = make_queue(crawler, "ours")
    accepted = Answer(Outcome.ACCEPTED, "")
    tracemalloc.start()
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(answers):
        for request in requests_of(slots, lambda _: 1):
            queue.push(request)
        while (popped := queue.pop()) is not None:
            flight = admission.flights.pop(popped)
            admission.departed(flight, now.time)
            now.time += 0.1
            admission.learn(flight, accepted, now.time)
    crawler.engine.downloader.slots.clear()
    del request, flight
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(admission.slots) == slots
    return {"bytes": (after - before) / slots}


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


PARTS: dict[str, Callable[..., Figures]] = {
    "pop_ours": pop_ours,
    "pop_stock": pop_stock,
    "first_pop": first_pop,
    "memory": memory,
    "idle_slot": idle_slot,
}


class Measuring(scrapy.Spider):
    """Measures one part while its crawl runs, and asks for nothing."""

    name = "measuring"
    part: str
    arguments: list[Any]
    figures: Figures

    async def start(self) -> AsyncIterator[Any]:
        self.figures.update(PARTS[self.part](self.crawler, *self.arguments))
        for request in list[scrapy.Request]():
            yield request


def run_part(part: str, arguments: list[Any]) -> Figures:
    """Measure in this process; needs one without a reactor."""
    ours = part not in {"pop_stock", "memory"} or "ours" in arguments
    settings = {**COMMON, "LOG_LEVEL": "ERROR", **(OURS_SETTINGS if ours else {})}
    if ours:
        settings["BACKPRESSURE_DEAD_LETTER_FEEDS"] = {}
    process = AsyncCrawlerProcess(settings)
    figures: Figures = {}
    process.crawl(Measuring, part=part, arguments=arguments, figures=figures)
    process.start()
    return figures


def measure(part: str, *arguments: Any) -> Figures:
    """Measure in a process of its own. Raises RuntimeError when that fails."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scheduling", "--part", json.dumps([part, *arguments])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    found: Figures = json.loads(lines[-1]) if done.returncode == 0 and lines else {}
    if not found:
        raise RuntimeError(f"{part} failed:\n{done.stderr[-3000:]}")
    return found


def measure_all(part: int) -> dict[str, Figures]:
    """All figures, printed as they come; of *part* as many slots and requests."""
    found: dict[str, Figures] = {}
    few, some, many, stock = FEW_SLOTS, SLOTS // part, MANY_SLOTS // part, STOCK_SLOTS // part
    for slots in (few, some, many):
        it = found[f"ours {slots}"] = measure("pop_ours", slots)
        print(
            f"ours,  {slots:>7} slots: {1e6 * it['pop']:>9.1f} µs a pop,"
            f" {1e6 * it['push']:>6.1f} µs a push; {it['asleep']:.0%} asleep",
            flush=True,
        )
    it = found["first"] = measure("first_pop", some)
    print(f"ours,  first pop of a slot: {1e6 * it['pop']:>5.1f} µs", flush=True)
    it = found["stock"] = measure("pop_stock", stock)
    print(f"stock, {stock:>7} slots: {1e6 * it['pop']:>9.1f} µs a pop", flush=True)
    for kind in ("ours", "stock"):
        it = found[f"memory {kind}"] = measure("memory", many, kind)
        print(
            f"{kind + ',':<6} {REQUESTS // part} requests in {many} slots:"
            f" peak {it['peak'] / 2**20:.0f} MB",
            flush=True,
        )
    for answers in (1, 50):
        it = found[f"idle {answers}"] = measure("idle_slot", _IDLE, answers)
        print(f"an idle slot after {answers} answers: {it['bytes']:.0f} bytes", flush=True)
    return found


def verdicts_of(found: dict[str, Figures], part: int) -> Iterator[Verdict]:
    """Judge ours."""
    few, many = (found[f"ours {slots}"]["pop"] for slots in (FEW_SLOTS, MANY_SLOTS // part))
    growth = many / few
    bar = f"at most {MOST_GROWTH:g} times that with {FEW_SLOTS}"
    yield Verdict(f"pop, {MANY_SLOTS // part} slots", bar, f"{growth:.2f}", growth <= MOST_GROWTH)
    share = many / found["stock"]["pop"]
    bar = f"at most {MOST_OF_STOCK} of stock's with {STOCK_SLOTS // part}"
    yield Verdict(f"pop, {MANY_SLOTS // part} slots", bar, f"{share:.4f}", share <= MOST_OF_STOCK)
    ratio = found["memory ours"]["peak"] / found["memory stock"]["peak"]
    bar = f"at most {MOST_MEMORY} of stock's"
    yield Verdict("peak memory of the queue", bar, f"{ratio:.3f}", ratio <= MOST_MEMORY)


def main() -> int:
    """Run the benchmark; the exit code says whether it could be run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scheduling", description="What the queue costs."
    )
    parser.add_argument("--quick", action="store_true", help=f"1/{QUICK} of the slots")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--part", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        part, *arguments = options.part
        print(json.dumps(run_part(part, arguments)))
        return 0
    share = QUICK if options.quick else 1
    found = measure_all(share)
    verdicts = list(verdicts_of(found, share))
    print("", *verdicts, sep="\n")
    print(f"{sum(v.passed for v in verdicts)} of {len(verdicts)} hold")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
