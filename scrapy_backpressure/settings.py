"""Every setting, once: name, type, default, meaning.

The settings are read and validated once, by :class:`~scrapy_backpressure.BackpressureExtension`;
everything else is handed the resulting :class:`BackpressureSettings`.
"""

from __future__ import annotations

import difflib
import json
import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scrapy.settings import BaseSettings

PREFIX = "BACKPRESSURE_"

DEAD_LETTER_CATEGORIES = (
    "retries",
    "blocked",
    "download_error",
    "spider_error",
    "item_error",
    "http_error",
)
DEAD_LETTER_REASONS = (
    *DEAD_LETTER_CATEGORIES,
    *("throttled", "stalled", "max_pause"),  # which belong to the category "retries"
    "shutdown",
)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.strip().lower() in ("1", "true"):
        return True
    if isinstance(value, str) and value.strip().lower() in ("0", "false"):
        return False
    raise ValueError("True or False")


def _number(accepted: str, check: Callable[[float], bool]) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError(accepted)
        try:
            number = float(value)
        except (ValueError, OverflowError):
            raise ValueError(accepted) from None
        if not math.isfinite(number) or not check(number):
            raise ValueError(accepted)
        return number

    return parse


def _integer(minimum: int) -> Callable[[Any], int]:
    accepted = f"an integer of at least {minimum}"
    number = _number(accepted, lambda n: n >= minimum and n == int(n))
    return lambda value: int(number(value))


def _optional(parse: Callable[[Any], Any], accepted_none: str) -> Callable[[Any], Any]:
    def parse_or_none(value: Any) -> Any:
        if value is None or value == "" or value == "None":
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f"{error}, or None {accepted_none}") from None

    return parse_or_none


_positive_seconds = _number("a positive number of seconds", lambda n: n > 0)
_share = _number("a number above 0 and up to 1", lambda n: 0 < n <= 1)


def _feeds(value: Any) -> dict[Any, Any]:
    accepted = (
        "a dict of the form of FEEDS, such as "
        '{"dead_letters.jsonl": {"format": "jsonlines"}}, or {} to turn it off'
    )
    if isinstance(value, str):  # from the command line
        try:
            value = json.loads(value or "{}")
        except ValueError:
            raise ValueError(accepted) from None
    if value is None:
        value = {}
    try:
        feeds = dict(value)
    except (TypeError, ValueError):
        raise ValueError(accepted) from None
    if not all(isinstance(options, dict) for options in feeds.values()):
        raise ValueError(accepted)
    return feeds


def _categories(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    known = ", ".join(DEAD_LETTER_CATEGORIES)
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(
        name in DEAD_LETTER_CATEGORIES for name in value
    ):
        raise ValueError(f"a list of names out of {known}")
    return tuple(value)


def _class_path(value: Any) -> Any:
    if isinstance(value, type) or (isinstance(value, str) and "." in value):
        return value
    raise ValueError("a class, or its import path")


def _setting(default: Any, parse: Callable[[Any], Any], meaning: str) -> Any:
    metadata = {"parse": parse, "meaning": meaning}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class BackpressureSettings:
    """The settings of one crawl, validated. A field ``x`` is the setting ``BACKPRESSURE_X``."""

    enabled: bool = _setting(True, _boolean, "Whether the package does anything at all.")
    queue_high: int | None = _setting(
        None,
        _optional(_integer(2), "to size it by throughput"),
        "Open requests at which `start()` and callbacks are held back. None: as many as "
        "`QUEUE_SECONDS` of the measured throughput need, between 256 and 2000.",
    )
    queue_low: int | None = _setting(
        None,
        _optional(_integer(1), "for half of QUEUE_HIGH"),
        "Open requests at which `start()` goes on. None: half of `QUEUE_HIGH`.",
    )
    queue_seconds: float = _setting(
        120.0, _positive_seconds, "Seconds of work to keep queued while `QUEUE_HIGH` is None."
    )
    gate_callbacks: bool = _setting(
        True, _boolean, "Whether callbacks that yield requests are held back as well."
    )
    error_rate: float = _setting(
        0.5,
        _share,
        "Share of bad answers of a slot (of its last 20, in a minute) above which its start "
        "requests wait aside while others pass.",
    )
    interval: float = _setting(1.0, _positive_seconds, "Seconds between two samples.")
    start_concurrency: int = _setting(
        4, _integer(1), "Concurrency with which a lane (a slot through one proxy) starts."
    )
    min_concurrency: int = _setting(
        1, _integer(1), "Concurrency under which a lane slows down in time instead."
    )
    max_pause: float = _setting(
        3600.0,
        _positive_seconds,
        "Longest pause, in seconds, that a crawl waits out. A site that asks for more is left "
        "alone: its requests go to the next run (with a `JOBDIR`) or to the dead letters.",
    )
    backoff_base: float = _setting(
        1.0,
        _positive_seconds,
        "First backoff ceiling in seconds; it doubles at each attempt, and the wait is drawn at "
        "random below it.",
    )
    backoff_max: float = _setting(300.0, _positive_seconds, "Largest backoff in seconds.")
    throttle_times: int = _setting(
        20, _integer(1), "Throttled answers after which a request is given up."
    )
    stall_timeout: float = _setting(
        900.0,
        _positive_seconds,
        "Seconds without one good answer after which a slot's requests are given up.",
    )
    retry_budget: float = _setting(
        0.2,
        _share,
        "Retries of failed requests per first attempt that a slot may send over time. Beyond it "
        "they wait longer; none is dropped.",
    )
    dead_letter_feeds: dict[Any, Any] = _setting(
        {"dead_letters/%(name)s-%(time)s.jsonl": {"format": "jsonlines"}},
        _feeds,
        "Where dead letters go: the form of Scrapy's `FEEDS`, with any storage, format, batches "
        "and post-processing. `{}` turns them off.",
    )
    dead_letter_on: tuple[str, ...] = _setting(
        ("retries", "blocked", "download_error"),
        _categories,
        "What makes a dead letter.",
    )
    dead_letter_secrets: bool = _setting(
        False,
        _boolean,
        "Whether dead letters keep `Authorization`, `Proxy-Authorization`, cookies, and "
        "`user:password` in URLs.",
    )
    outcome_policy: Any = _setting(
        "scrapy_backpressure.OutcomePolicy",
        _class_path,
        "Class that says what an answer means, a subclass of `OutcomePolicy`.",
    )
    robotstxt_timeout: float = _setting(
        10.0, _positive_seconds, "Longest wait, in seconds, for a robots.txt."
    )
    log_interval: float = _setting(
        60.0, _positive_seconds, "Seconds between two log lines that say what binds the crawl."
    )
    slot_stats: int = _setting(
        0, _integer(0), "Number of slots, at most, that get stats of their own. 0: none."
    )

    @property
    def longest_wait(self) -> float:
        """MAX_PAUSE, and the hair by which a lane keeps a pause longer than it was told."""
        return self.max_pause + 0.1

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> BackpressureSettings:
        """Read and validate the ``BACKPRESSURE_`` settings.

        :raises ValueError: an unknown name, or a value of the wrong form; the message names the
            setting and says what is accepted.
        """
        names = {PREFIX + f.name.upper(): f for f in fields(cls)}
        values: dict[str, Any] = {}
        for name in settings:
            if not str(name).startswith(PREFIX):
                continue
            if name not in names:
                raise ValueError(f"Unknown setting {name}{_nearest(name, names)}")
            definition = names[name]
            try:
                values[definition.name] = definition.metadata["parse"](settings[name])
            except ValueError as error:
                raise ValueError(f"{name} accepts {error}; got {settings[name]!r}") from None
        result = cls(**values)
        result._check_together()
        return result

    def _check_together(self) -> None:
        high, low = self.queue_high, self.queue_low
        if low is not None and high is None:
            raise ValueError(
                "BACKPRESSURE_QUEUE_LOW accepts a value only together with BACKPRESSURE_QUEUE_HIGH"
            )
        if high is not None and low is not None and low >= high:
            raise ValueError(
                "BACKPRESSURE_QUEUE_LOW accepts an integer below BACKPRESSURE_QUEUE_HIGH "
                f"({high}); got {low}"
            )
        if self.backoff_base > self.backoff_max:
            raise ValueError(
                f"BACKPRESSURE_BACKOFF_BASE accepts at most BACKPRESSURE_BACKOFF_MAX "
                f"({self.backoff_max:g}); got {self.backoff_base:g}"
            )
        if self.min_concurrency > self.start_concurrency:
            raise ValueError(
                "BACKPRESSURE_MIN_CONCURRENCY accepts at most BACKPRESSURE_START_CONCURRENCY "
                f"({self.start_concurrency}); got {self.min_concurrency}"
            )


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    # Without the prefix, by which all names are alike.
    words = [other.removeprefix(PREFIX) for other in known]
    close = difflib.get_close_matches(name.removeprefix(PREFIX), words, n=1, cutoff=0.5)
    return f"; did you mean {PREFIX}{close[0]}?" if close else f"; known ones: {', '.join(known)}"
