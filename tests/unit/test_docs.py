"""The documents name what the code has: every setting with its default, and every stat."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest
from scrapy.commands import ScrapyCommand
from scrapy.commands.crawl import Command as Crawl
from scrapy.settings import Settings

import scrapy_backpressure
from scrapy_backpressure.commands.redrive import Command as Redrive
from scrapy_backpressure.settings import (
    DEAD_LETTER_CATEGORIES,
    DEAD_LETTER_REASONS,
    PREFIX,
    BackpressureSettings,
)
from tests.crawl.audit import assert_sound
from tests.crawl.conftest import CrawlResult, crawl
from tests.site import Site

__all__ = ["crawl"]  # a fixture

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def rows(name: str, head: str) -> Iterator[list[str]]:
    """The cells of the rows of all tables of a document whose first column is called *head*."""
    wanted = in_table = False
    for line in (ROOT / "docs" / name).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("|"):
            in_table = False
        elif not in_table:
            in_table, wanted = True, cells[0] == head
        elif wanted and not line.startswith("|-"):
            yield cells


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# -- settings --------------------------------------------------------------------------------

SETTINGS = {name: row for row in rows("settings.md", "setting") for name in names(row[0])}


def test_no_document_names_a_setting_that_there_is_not() -> None:
    known = {PREFIX + field.name.upper() for field in fields(BackpressureSettings)}
    for page in PAGES:
        assert set(re.findall(rf"{PREFIX}[A-Z_]+\b", page.read_text(encoding="utf-8"))) <= known


@pytest.mark.parametrize("field", fields(BackpressureSettings), ids=lambda field: field.name)
def test_setting_stands_in_the_document_with_its_default_and_meaning(field: Field[Any]) -> None:
    name = PREFIX + field.name.upper()
    _, default, meaning = SETTINGS[name]
    actual = getattr(BackpressureSettings(), field.name)
    told = ast.literal_eval(default.strip("`"))
    assert told == (list(actual) if isinstance(actual, tuple) else actual)
    assert meaning.replace(PREFIX, "").startswith(field.metadata["meaning"])


# -- stats -----------------------------------------------------------------------------------

STATS_PREFIX = "backpressure/"
ANY = "*"
"""In the name of a stat: a part that a crawl fills in. Documents write it in capitals."""


def documented_stats() -> set[str]:
    """Names, without the prefix that all have."""
    told = [name for cells in rows("stats.md", "stat") for name in names(cells[0])]
    audit = rows("stats.md", "stat under `audit/`")
    told += [f"audit/{name}" for cells in audit for name in names(cells[0])]
    return {re.sub(r"\b[A-Z]+\b", ANY, name) for name in told}


class _Stats(ast.NodeVisitor):
    def __init__(self) -> None:
        self.found: set[str] = set()

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value.startswith(STATS_PREFIX):
            self.found.add(node.value.removeprefix(STATS_PREFIX))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        parts = (part.value if isinstance(part, ast.Constant) else ANY for part in node.values)
        self.visit_Constant(ast.Constant("".join(map(str, parts))))


def source_stats() -> set[str]:
    """All texts of the package that begin as stats do, with what is filled in as ``*``."""
    stats = _Stats()
    for path in Path(scrapy_backpressure.__file__).parent.rglob("*.py"):
        stats.visit(ast.parse(path.read_text(encoding="utf-8")))
    return stats.found


def is_told(stat: str) -> bool:
    """Whether a stat stands in the document."""
    patterns = (re.escape(told).replace(r"\*", "[^/]+") for told in documented_stats())
    return any(re.fullmatch(pattern, stat) for pattern in patterns)


def test_every_stat_that_the_source_names_is_documented() -> None:
    # Of names that are put together elsewhere, which the crawl below shows.
    beginnings = {f"audit/{ANY}", "dead_letters/", f"slot/{ANY}"}
    assert beginnings <= source_stats()
    assert [stat for stat in sorted(source_stats() - beginnings) if not is_told(stat)] == []


def test_every_documented_stat_is_named_by_the_source() -> None:
    known = [re.escape(stat).replace(r"\*", ".+") for stat in source_stats()]
    # What Scrapy's exporter counts goes under a beginning of ours.
    known += [rf"slot/\*/{name}" for name in ("concurrency", "rate")] + ["dead_letters/.+"]
    unknown = [
        told
        for told in sorted(documented_stats())
        if not any(re.fullmatch(pattern, told) for pattern in known)
    ]
    assert unknown == []


def test_stats_of_a_crawl_are_documented(
    site: Callable[..., Site], crawl: Callable[..., CrawlResult]
) -> None:
    faults: list[dict[str, Any]] = [
        {"match": "/page/1", "status": 503},
        {"match": "/page/2", "challenge": True, "times": 1},
        {"match": "/page/3", "status": 429, "times": 1, "headers": {"Retry-After": "0.2"}},
        {"match": "/page/4", "status": 404},
        {"match": "/page/5", "drop": True},
    ]
    source = """
    class Pages(Spider):
        name = "pages"

        async def start(self):
            for number in [0, *range(30)]:
                yield Request(f"{self.base}/page/{number}")

        def parse(self, response):
            pass
    """
    settings = {
        "RETRY_TIMES": 1,
        "BACKPRESSURE_BACKOFF_BASE": 0.2,
        "BACKPRESSURE_QUEUE_HIGH": 10,
        "BACKPRESSURE_DEAD_LETTER_ON": ["retries"],
        "BACKPRESSURE_INTERVAL": 0.1,
        "BACKPRESSURE_SLOT_STATS": 1,
        "JOBDIR": "job",
    }
    result = crawl(source, settings, args={"base": site(latency=0.05, faults=faults).url("")})
    assert_sound(result, errors=True)
    own = {
        name.removeprefix(STATS_PREFIX).replace("127.0.0.1", "host")
        for name in result.stats
        if name.startswith(STATS_PREFIX)
    }
    assert [name for name in sorted(own) if not is_told(name)] == []
    assert {name for name in documented_stats() if name.startswith("audit/")} <= {
        *own,
        f"audit/dropped/{ANY}",
        f"audit/all_runs/dropped/{ANY}",
    }


def test_every_category_of_dead_letters_is_documented() -> None:
    told = {
        name for row in rows("stats.md", "reason") for name in [*names(row[0]), *names(row[2])]
    }
    assert set(DEAD_LETTER_CATEGORIES) <= told


def test_every_reason_of_dead_letters_is_documented() -> None:
    told = {name for row in rows("stats.md", "reason") for name in names(row[0])}
    assert told == set(DEAD_LETTER_REASONS)


# -- commands --------------------------------------------------------------------------------


def test_every_option_that_redrive_adds_is_documented() -> None:
    def options(command: ScrapyCommand) -> set[str]:
        parser = argparse.ArgumentParser()
        command.settings = Settings()
        command.add_options(parser)
        return {name for action in parser._actions for name in action.option_strings}

    told = {name for row in rows("dead-letters.md", "option") for name in names(row[0])}
    own = options(Redrive()) - options(Crawl())
    assert own == {name for name in told if name.startswith("--")}
