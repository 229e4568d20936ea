"""Crawls of three kinds of spiders, killed twice each; ``make bench-kills`` kills many more."""

from __future__ import annotations

import random

import pytest

from benchmarks.killed import WANTED
from benchmarks.kills import kill_and_resume, verdicts_of


@pytest.mark.parametrize("spider", WANTED)
def test_crawl_that_is_killed_loses_nothing_and_repeats_only_what_was_not_committed(
    spider: str,
) -> None:
    killed = kill_and_resume(spider, random.Random(spider), kills=2, pages=200)
    assert killed.kills
    assert [str(verdict) for verdict in verdicts_of([killed]) if not verdict.passed] == []
