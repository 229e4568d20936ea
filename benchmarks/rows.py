"""The rows of the table, each with its site, its pages, and what a perfect client needs there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.profiles import (
    AT_ONCE,
    AUTOTHROTTLE,
    BASELINES,
    QUICK,
    STOCK,
    STOCK_MANY,
    Host,
    Probe,
    Row,
    at_once,
    per_second,
)

RETRY_AFTER = 2
BAN = 3
HOLE = (10.0, 20.0)
"""Seconds between which nothing that arrives is answered."""
NGINX_503 = (
    "<html><head><title>503 Service Temporarily Unavailable</title></head><body><center>"
    "<h1>503 Service Temporarily Unavailable</h1></center><hr><center>nginx</center></body></html>"
)


def stepped_seconds(pages: float, levels: Iterable[tuple[float, float]]) -> float:
    """Seconds in which a capacity that changes over time serves *pages*.

    *levels*: (second from which it holds, pages a second), in order, the first at 0.
    """
    steps = list(levels)
    ends = [start for start, _ in steps[1:]]
    left = pages
    for (start, capacity), end in zip(steps, ends, strict=False):
        if capacity * (end - start) >= left:
            return start + left / capacity
        left -= capacity * (end - start)
    start, capacity = steps[-1]
    return start + left / capacity


def _one_host(pages: int, rule: Mapping[str, Any]) -> tuple[Host, ...]:
    return (Host("127.0.0.1", pages, rule),)


def _limited_at_once(
    name: str,
    title: str,
    number: int,
    pages: int,
    *,
    baselines: tuple[str, ...] = BASELINES,
    **rule: Any,
) -> Row:
    latency = 0.1
    return Row(
        name,
        title,
        _one_host(pages, {"latency": latency, "max_at_once": number, **rule}),
        latency,
        pages * latency / number,
        at_once(number),
        baselines=baselines,
    )


def _limited_rate(
    name: str,
    title: str,
    rate: float,
    burst: int,
    pages: int,
    *,
    margin: float = 0.0,
    baselines: tuple[str, ...] = BASELINES,
    **rule: Any,
) -> Row:
    latency = 0.1
    return Row(
        name,
        title,
        _one_host(pages, {"latency": latency, "rate": rate, "burst": burst, **rule}),
        latency,
        (pages - burst) / rate + latency,
        per_second(rate, margin=margin),
        baselines=baselines,
        # At a few pages a second, that the first one costs no time shows for long.
        oracle_seconds=25.0 if rate > 5 else 60.0,
    )


def _window(windows: int) -> Row:
    """A quota told by headers, used up so often, and a fifth of the next.

    A fifth, so that it does not count how the rest of a quota is spread over its time.
    """
    latency, limit, seconds = 0.1, 60, 20
    rule = {
        "latency": latency,
        "window": {"limit": limit, "seconds": seconds},
        "quota": "ratelimit",
    }
    return Row(
        "window",
        f"{limit} per {seconds} s, told",
        _one_host(windows * limit + limit // 5, rule),
        latency,
        windows * seconds + latency,
        None,
        baselines=(STOCK,),
        baseline=22.0,
    )


def _queueing(pages: int) -> Row:
    latency, workers = 0.1, 5
    return Row(
        "queueing",
        f"{workers} workers, endless queue",
        _one_host(pages, {"latency": latency, "serve_at_once": workers}),
        latency,
        pages * latency / workers,
        at_once(workers),
        baselines=(STOCK_MANY, AUTOTHROTTLE),
        most_latency=1.5,
    )


def _hole(pages: int) -> Row:
    """A site that for ten seconds nothing reaches."""
    # A latency that leaves the time of our own little weight.
    latency, places, (since, until) = 0.25, 10, HOLE
    lost = {"stall": "lost", "from": since, "until": until}
    return Row(
        "hole",
        f"10 at once, {until - since:g} s silent",
        _one_host(pages, {"latency": latency, "max_at_once": places, "faults": [lost]}),
        latency,
        stepped_seconds(pages, [(0.0, places / latency), (since, 0.0), (until, places / latency)]),
        None,
        settings={"DOWNLOAD_TIMEOUT": 8},
        baselines=(STOCK,),
        baseline=30.0,
    )


def _broad(hosts: int) -> Row:
    """Many hosts with limits of three kinds; each first page leads to the others of its host.

    The places that CONCURRENT_REQUESTS allows are the limit of them all together.
    """
    latency, pages, places = 0.7, 5, 100  # so that the places bind, not the CPU
    rules: tuple[dict[str, Any], ...] = ({"max_at_once": 2}, {"rate": 5, "burst": 1}, {})
    delays = (latency / 2, 1 / 5, 0.0)
    addresses = [f"127.0.{1 + number // 250}.{1 + number % 250}" for number in range(hosts)]
    return Row(
        "broad",
        f"{hosts} hosts, mixed limits",
        tuple(
            Host(address, pages, {"latency": latency, **rules[number % 3]})
            for number, address in enumerate(addresses)
        ),
        latency,
        hosts * pages * latency / places,
        {
            "RANDOMIZE_DOWNLOAD_DELAY": False,
            "DOWNLOAD_SLOTS": {
                address: {"delay": delays[number % 3]} for number, address in enumerate(addresses)
            },
        },
        settings={"CONCURRENT_REQUESTS": places},
        args={"follow": True},
        baselines=(STOCK,),
    )


def _stepped(pages: int, part: float) -> Row:
    latency, places = 0.1, (10, 3, 14)
    starts = (0.0, 12.0 / part, 27.0 / part)
    first, *rest = zip(starts, places, strict=True)
    steps = [{"at": start, "max_at_once": number} for start, number in rest]
    return Row(
        "steps",
        "10, then 3, then 14 at once",
        _one_host(pages, {"latency": latency, "max_at_once": first[1], "steps": steps}),
        latency,
        stepped_seconds(
            pages, [(start, n / latency) for start, n in zip(starts, places, strict=True)]
        ),
        None,
        baseline=30.0,
        probe=Probe(at_once(places[0]), {"steps": []}, places[0] / latency),
    )


def _random_503(pages: int) -> Row:
    latency = 0.5  # so that the site binds, not the CPU
    fault = {"share": 0.05, "status": 503}
    return Row(
        "random503",
        "unlimited, 5 % random 503s",
        _one_host(pages, {"latency": latency, "faults": [fault]}),
        latency,
        pages * latency / AT_ONCE,
        at_once(AT_ONCE),
        calm={"faults": []},
        # Nobody shall lose a page to bad luck: one in 60 million fails six times in a row.
        settings={"RETRY_TIMES": 5},
    )


def _stalled(name: str, places: int, pages: int, stalled_pages: int) -> Row:
    latency = 0.3
    stalled = "127.0.0.10"
    hosts = [
        Host(f"127.0.0.{number}", pages, {"latency": latency})
        for number in range(1, 11)
        if f"127.0.0.{number}" != stalled
    ]
    slow = {"usual": 10.0, "slow": 20.0, "slow_share": 0.5}
    hosts.append(Host(stalled, stalled_pages, {"latency": slow}))
    few = places < AT_ONCE
    return Row(
        name,
        f"one stalled, {places} places" if few else "ten hosts, one stalled",
        tuple(hosts),
        latency,
        9 * pages * latency / places,
        at_once(AT_ONCE),
        settings={"CONCURRENT_REQUESTS": places} if few else {},
        uncounted=stalled,
        baselines=(STOCK,) if few else BASELINES,
    )


def rows(*, quick: bool = False) -> list[Row]:
    """The rows of the table, in the order in which they are crawled."""
    part = QUICK if quick else 1
    bare: dict[str, Any] = {"refuse_status": 503, "refuse_body": NGINX_503}
    return [
        _limited_at_once("ten", "10 at once", 10, 1200 // part),
        _limited_rate("rate40", "40/s, burst 10", 40, 10, 1200 // part),
        _limited_rate("rate2", "2/s", 2, 1, 300 // part, margin=0.02),
        _limited_at_once(
            "retry-after",
            f"8 at once, Retry-After {RETRY_AFTER}",
            8,
            2400 // part,
            retry_after=RETRY_AFTER,
        ),
        _limited_rate(
            "ban", f"20/s, {BAN} s ban", 20, 20, 1600 // part, retry_after=BAN, ban=float(BAN)
        ),
        _window(6 // part),
        _limited_at_once(
            "ten503", "10 at once, bare 503", 10, 1200 // part, baselines=(STOCK_MANY,), **bare
        ),
        _limited_rate(
            "rate503",
            "10/s, burst 10, bare 503",
            10,
            10,
            600 // part,
            baselines=(STOCK_MANY,),
            **bare,
        ),
        _stepped(2600 // part, part),
        _queueing(1000 // part),
        _hole(1200 if part == 1 else 600),  # the hole has to lie inside
        _random_503(8000 // part),
        _stalled("stalled", AT_ONCE, 300 // part, 24 // part),
        _stalled("stalled8", 8, 240 // part, 10 // part),
        _broad(2000 // part),
    ]
