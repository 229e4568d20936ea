"""What each part of the package may lean on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import scrapy_backpressure

PACKAGE = Path(scrapy_backpressure.__file__).parent
FILES = [path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py"))]
WITHOUT_A_CLOCK = {"scrapy", "twisted", "asyncio", "time"}


def imports(file: str) -> Iterator[str]:
    """Dotted names that a file imports anywhere, for type hints as well."""
    for node in ast.walk(ast.parse((PACKAGE / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("file", [file for file in FILES if file.startswith("control/")])
def test_control_knows_nothing_of_scrapy_and_reads_no_clock(file: str) -> None:
    for name in imports(file):
        top, *rest = name.split(".")
        assert top not in WITHOUT_A_CLOCK
        assert top != "scrapy_backpressure" or rest[0] == "control"


@pytest.mark.parametrize("file", [file for file in FILES if not file.startswith("_scrapy")])
def test_private_names_of_scrapy_are_imported_in_one_place(file: str) -> None:
    private = [
        name
        for name in imports(file)
        if name.startswith("scrapy.") and any(part.startswith("_") for part in name.split("."))
    ]
    assert private == []
