"""One crawl of a flaky site, twice: with stock settings, then with the add-on.

``python demo.py [pages per host]`` starts the site of ``demo.json``, runs the spider ``pages``
against it, and prints what came of it side by side. Then the site recovers, and what the second
crawl gave up is sent again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OUTPUT = HERE / "demo_output"
LETTERS = HERE / "dead_letters"
PROFILE = HERE / "demo.json"
HOSTS = 3
SHOWN = 5  # that many dead letters are printed
PATIENCE = 180.0  # seconds after which a crawl is stopped


@dataclass
class Run:
    """What came of one crawl."""

    title: str
    wanted: int
    urls: set[str]
    letters: list[dict[str, Any]]
    letter_files: list[Path]
    site: dict[str, Any]
    seconds: float

    def rows(self) -> dict[str, str]:
        """Return the column of this run: what was counted, and how much."""
        return {
            "pages got": f"{len(self.urls)} of {self.wanted}",
            "lost without a trace": str(self.wanted - len(self.urls) - len(self.letters)),
            "dead letters": str(len(self.letters)),
            "refused by the site": f"{self.site['refused']} of {self.site['hits']} requests",
            "hits before Retry-After was over": str(self.site["early"]),
            "seconds": f"{self.seconds:.0f}",
        }


@contextmanager
def running_site() -> Iterator[int]:
    """Serve ``demo.json`` and give the port."""
    command = [sys.executable, "-m", "flaky_site", str(PROFILE)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=HERE, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            sys.exit("The site did not start.")
        try:
            yield int(line)
        finally:
            process.terminate()


def ask_site(port: int, path: str, data: bytes | None = None) -> Any:
    """Return what the site's control page at *path* says."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}{path}", data=data, timeout=10) as answer:
        return json.load(answer)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines; none when there is no such file."""
    return (
        [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        if path.exists()
        else []
    )


def run_scrapy(name: str, *arguments: str) -> tuple[set[str], list[Path]]:
    """Run Scrapy; return the URLs of its items and its files of dead letters.

    Its log and items go to ``demo_output``.
    """
    items = OUTPUT / f"{name}.jsonl"
    before = set(LETTERS.glob("*"))
    command = [sys.executable, "-m", "scrapy", *arguments, "-O", f"{items}:jsonlines"]
    with (OUTPUT / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=HERE, stdout=log, stderr=subprocess.STDOUT)
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            code = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
    if code:
        sys.exit(f"The crawl failed, see {log.name}")
    urls = {item["url"] for item in read_lines(items)}
    return urls, sorted(set(LETTERS.glob("*")) - before)


def read_letters(files: list[Path]) -> list[dict[str, Any]]:
    """Return the dead letters of all *files*."""
    return [letter for path in files for letter in read_lines(path)]


def crawl(title: str, name: str, port: int, count: int, *options: str) -> Run:
    """Run the spider once."""
    ask_site(port, "/__reset__", b"")
    print(f"{title}: crawling {HOSTS * count} pages ...", flush=True)
    started = time.monotonic()
    arguments = ["crawl", "pages", "-a", f"port={port}", "-a", f"count={count}", *options]
    urls, files = run_scrapy(name, *arguments)
    seconds = time.monotonic() - started
    return Run(
        title=title,
        wanted=HOSTS * count,
        urls=urls,
        letters=read_letters(files),
        letter_files=files,
        site=ask_site(port, "/__stats__"),
        seconds=seconds,
    )


def redrive(port: int, run: Run) -> None:
    """Have the site recover, and send the dead letters of *run* again."""
    profile = json.loads(PROFILE.read_text("utf-8"))
    for host in profile["hosts"].values():
        host.pop("faults", None)
    ask_site(port, "/__reset__", json.dumps(profile).encode())
    print("\nThe site recovers: scrapy redrive pages", *map(shown, run.letter_files), flush=True)
    files = [str(path) for path in run.letter_files]
    urls, left = run_scrapy("redriven", "redrive", "pages", *files, "-a", f"port={port}")
    print(
        f"Pages got: {len(run.urls | urls)} of {run.wanted}. "
        f"Dead letters: {len(run.letters)} before, {len(read_letters(left))} after."
    )


def shown(path: Path) -> str:
    """Return *path* as one would type it here."""
    return os.path.relpath(path)


def table(runs: list[Run]) -> str:
    """Return the runs side by side."""
    columns = [run.rows() for run in runs]
    width = max(len(name) for name in columns[0])
    lines = [" " * width + "".join(f"  {run.title:>24}" for run in runs)]
    lines.extend(
        f"{name:<{width}}" + "".join(f"  {column[name]:>24}" for column in columns)
        for name in columns[0]
    )
    return "\n".join(lines)


def show_letters(run: Run) -> None:
    """Print the first dead letters of *run*."""
    print("\nDead letters, complete enough to be sent again:", *map(shown, run.letter_files))
    for letter in run.letters[:SHOWN]:
        print(f"  {letter['request']['url']}  {letter['outcome']}: {letter['reason']}")
    if len(run.letters) > SHOWN:
        print(f"  and {len(run.letters) - SHOWN} more")


def main() -> None:
    """Run the demo."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 150
    OUTPUT.mkdir(exist_ok=True)
    with running_site() as port:
        runs = [
            crawl("stock Scrapy", "stock", port, count, "-s", "ADDONS={}"),
            crawl("with the add-on", "backpressure", port, count),
        ]
        print(f"\n{table(runs)}")
        if runs[-1].letters:
            show_letters(runs[-1])
            redrive(port, runs[-1])
    print(f"\nLogs and items: {shown(OUTPUT)}. The site's rules, to be changed: {shown(PROFILE)}.")


if __name__ == "__main__":
    main()
