"""``scrapy redrive``: sends dead letters through their spider again."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy.commands import BaseRunSpiderCommand
from scrapy.exceptions import UsageError
from twisted.internet.defer import CancelledError
from w3lib.url import file_uri_to_path

from scrapy_backpressure.clock import Slices
from scrapy_backpressure.control.outcome import Outcome
from scrapy_backpressure.extension import BackpressureExtension
from scrapy_backpressure.redrive import Entry, Record, Unfit, Wanted, entries, parse_since
from scrapy_backpressure.settings import DEAD_LETTER_REASONS, BackpressureSettings

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Iterator, Sequence
    from typing import IO

    from scrapy import Request, Spider

logger = logging.getLogger(__name__)

_OUTCOMES = (*(outcome.value for outcome in Outcome if outcome.is_bad), "none")
_SLICE = 0.02
"""Seconds for which feeds may be read before the event loop has its turn."""
_WARNED_MAX = 100
"""Names of what records lost that get a line in the log."""


class Redrive:
    """One run over the feeds *files*: what is sent, what is kept, what is left out.

    *files*: paths, and how many bytes of each are read; *name*: the spider's; *limit*: requests
    to send at most; *ceiling*: how often a request is sent again at most; *rest*: where records
    that are not fit to be sent are added, as they are; None for nowhere.
    """

    def __init__(
        self,
        files: Sequence[tuple[Path, int]],
        *,
        name: str,
        spidercls: type[Spider],
        wanted: Wanted,
        limit: int | None,
        ceiling: int,
        rest: Path | None,
    ) -> None:
        self._files = files
        self._name = name
        self._spidercls = spidercls
        self._wanted = wanted
        self._limit = limit
        self._ceiling = ceiling
        self._rest = rest
        self._rest_file: IO[bytes] | None = None
        self._warned: set[str] = set()
        self._reading: Iterator[tuple[Entry, Record, Request] | None] | None = None
        self.sent = 0
        self.left_out = 0
        """Records that the options do not ask for."""
        self.unfit = 0
        self.unsent = 0
        """Fit records that were not sent as the crawl was stopped before."""
        self.failures = 0
        """Files that could not be read to their end, and records not written to the rest."""

    def read(self, spider: Spider | None) -> Iterator[tuple[Entry, Record, Request] | None]:
        """What is to be sent, with None for each record that is not; the others are reported."""
        found = 0
        for path, size in self._files:
            line = 0
            try:
                for entry in entries(path, size):
                    line = entry.line
                    if found == self._limit:
                        self.left_out += 1
                        yield None
                        continue
                    fit = self._checked(entry, spider)
                    found += fit is not None
                    yield fit
            except OSError:
                self.failures += 1
                logger.exception("%s cannot be read further than line %d", path, line)

    def _checked(
        self, entry: Entry, spider: Spider | None
    ) -> tuple[Entry, Record, Request] | None:
        try:
            record = Record.parse(entry.text)
            if not self._wanted.accepts(record):
                self.left_out += 1
                return None
            if record.spider != self._name:
                raise Unfit(f"is of another spider, {record.spider!a}")
            if record.redrives >= self._ceiling:
                raise Unfit(
                    f"has been sent again {record.redrives} times; --max-redrives is "
                    f"{self._ceiling}"
                )
            request = record.to_request(self._spidercls, spider)
        except Unfit as error:
            self.unfit += 1
            logger.warning("Not sent: %s %s", entry, error)
            self._keep(entry)
            return None
        for name in record.dropped:
            if name not in self._warned and len(self._warned) < _WARNED_MAX:
                self._warned.add(name)
                logger.warning(
                    "Sent without its %a, or with another, as the record does not hold it: %s "
                    "(further ones are not logged)",
                    *(name, entry),
                )
        return entry, record, request

    def _keep(self, entry: Entry) -> None:
        if self._rest is None:
            return
        try:
            if self._rest_file is None:
                self._rest_file = self._rest.open("ab")
            self._rest_file.write(entry.text + b"\n")
            self._rest_file.flush()
        except OSError:
            self.failures += 1
            logger.exception("Not written to the rest file: %s", entry)

    async def start(self, spider: Spider) -> AsyncIterator[Request]:
        """Yield what is to be sent, in the place of the spider's own ``start()``."""
        if spider.crawler.get_extension(BackpressureExtension) is None:
            logger.warning(
                "scrapy_backpressure is not enabled here, so what fails again makes no dead "
                'letter; to enable it: ADDONS = {"scrapy_backpressure.Addon": 300}'
            )
        slices = Slices(_SLICE)
        self._reading = self.read(spider)
        while True:
            if slices.over:
                try:
                    await slices.breathe()
                except CancelledError:  # Twisted's, an error to the engine; see also the gate
                    return
            try:
                fit = next(self._reading)
            except StopIteration:
                return
            if fit is not None:
                self.sent += 1
                yield fit[2]

    def close(self) -> None:
        """Keep what the crawl, which has ended, did not ask for any more."""
        for fit in self._reading or ():
            if fit is not None:
                if not self.unsent:
                    logger.info("Keeping the dead letters that were not sent in %s", self._rest)
                self.unsent += 1
                self._keep(fit[0])
        if self._rest_file is not None:
            self._rest_file.close()

    @property
    def started(self) -> bool:
        """Whether the crawl has begun to ask for requests."""
        return self._reading is not None

    @property
    def summary(self) -> str:
        """A line on what became of the records."""
        if not self.started:
            return "Dead letters: nothing was read, as the crawl did not start"
        parts = [f"{self.sent} sent again", f"{self.left_out} left out by the options"]
        if self.unfit:
            parts.append(f"{self.unfit} not fit to be sent")
        if self.unsent:
            parts.append(f"{self.unsent} not sent before the crawl was stopped")
        kept = self.unfit + self.unsent
        where = f"; {kept} kept in {self._rest}" if kept and self._rest else ""
        return f"Dead letters: {', '.join(parts)}{where}"


class Command(BaseRunSpiderCommand):
    """Sends dead letters through their spider again."""

    requires_project = True

    def syntax(self) -> str:
        return "[options] <spider> <file> ..."

    def short_desc(self) -> str:
        return "Send dead letters through their spider again"

    def long_desc(self) -> str:
        return (
            "Run a spider with the requests of dead-letter feeds (JSON Lines or JSON, also with "
            "gzip) in the place of its own start requests."
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        group = parser.add_argument_group(title="Dead letters")
        add = group.add_argument
        several = "may be repeated, or several with commas"
        add("--reason", action="append", default=[], help=f"only with this reason ({several})")
        add("--outcome", action="append", default=[], help=f"only with this outcome ({several})")
        add("--since", metavar="TIME", help="only given up since, as 2030-01-31T12:00, 2h or 3d")
        add("--url-pattern", metavar="REGEX", help="only whose URL has this regular expression")
        add("--limit", metavar="N", help="send at most N")
        add(
            "--max-redrives",
            metavar="N",
            default="5",
            help="send none that has been sent again N times before (default: 5)",
        )
        add("--rest", metavar="FILE", help="file for what cannot be sent (<file>.rest.jsonl)")
        add("--dry-run", action="store_true", help="count by reason and host, and send nothing")

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        super().process_options(args, opts)
        unknown = [arg for arg in args if arg.startswith("-")]
        if unknown:
            raise _wrong(f"there is no option {unknown[0]}")
        if len(args) < 2:
            raise _wrong("the name of a spider and at least one file of dead letters are needed")
        self._files = [_file(arg) for arg in args[1:]]
        self._rest = Path(opts.rest or f"{args[1]}.rest.jsonl")
        if not self._rest.parent.is_dir():
            raise _wrong(f"--rest accepts a file in a folder that exists; got {self._rest}")
        if self._is_read(self._rest):
            raise _wrong(f"--rest accepts a file that is not read as well; got {self._rest}")
        self._limit = None if opts.limit is None else _count("--limit", opts.limit)
        self._ceiling = _count("--max-redrives", opts.max_redrives)
        self._wanted = Wanted(
            reasons=_names("--reason", opts.reason, DEAD_LETTER_REASONS),
            outcomes=_names("--outcome", opts.outcome, _OUTCOMES),
            since=None if opts.since is None else _since(opts.since),
            url=None if opts.url_pattern is None else _pattern(opts.url_pattern),
        )

    def _is_read(self, path: Path | None) -> bool:
        return (
            path is not None
            and path.exists()
            and any(path.samefile(other) for other, _ in self._files)
        )

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        assert self.crawler_process is not None
        name = args[0]
        try:
            spidercls = self.crawler_process.spider_loader.load(name)
        except KeyError:
            raise _wrong(f"there is no spider {name} in this project") from None
        redrive = Redrive(
            self._files,
            name=opts.spargs.get("name", name),
            spidercls=spidercls,
            wanted=self._wanted,
            limit=self._limit,
            ceiling=self._ceiling,
            rest=None if opts.dry_run else self._rest,
        )
        if opts.dry_run:
            _count_only(redrive)
        else:
            self._crawl(redrive, spidercls, opts.spargs)
        self.exitcode = self.exitcode or int(redrive.failures > 0)

    def _crawl(self, redrive: Redrive, spidercls: type[Spider], spargs: dict[str, str]) -> None:
        process = self.crawler_process
        assert process is not None
        crawler = process.create_crawler(_starting_with(redrive, spidercls))
        try:
            config = BackpressureSettings.from_settings(crawler.settings)
        except ValueError as error:
            raise _wrong(str(error)) from None
        for feed, options in config.dead_letter_feeds.items():
            if options.get("overwrite") and self._is_read(_local_path(str(feed), spidercls.name)):
                raise _wrong(f"BACKPRESSURE_DEAD_LETTER_FEEDS would overwrite {feed}; move it")
        process.crawl(crawler, **spargs)
        process.start()
        redrive.close()
        if process.bootstrap_failed or not redrive.started:
            self.exitcode = 1
        print(redrive.summary, file=sys.stderr)  # stdout may be a feed of items


def _starting_with(redrive: Redrive, spidercls: type[Spider]) -> type[Spider]:
    """A class that makes spiders of *spidercls* which start with what *redrive* sends."""

    class Redriven(spidercls):  # type: ignore[valid-type, misc]
        @classmethod
        def from_crawler(cls, *args: Any, **kwargs: Any) -> Any:
            # Of the user's own class: who looks at the type of the spider finds no other.
            spider = spidercls.from_crawler(*args, **kwargs)
            spider.start = lambda: redrive.start(spider)  # type: ignore[method-assign]
            return spider

    return Redriven


def _count_only(redrive: Redrive) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for fit in redrive.read(None):
        if fit is not None:
            _, record, request = fit
            counts[_printable(record.reason), urlsplit(request.url).hostname or ""] += 1
    rows = [("reason", "host", "requests")]
    rows += [(reason, host, str(count)) for (reason, host), count in counts.most_common()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for reason, host, count in rows:
        print(f"{reason:{widths[0]}}  {host:{widths[1]}}  {count:>{widths[2]}}")
    print(
        f"{counts.total()} to be sent, {redrive.left_out} left out by the options, "
        f"{redrive.unfit} not fit to be sent"
    )


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


# -- options -------------------------------------------------------------------------------------


def _wrong(message: str) -> UsageError:
    return UsageError(message, print_help=False)  # exit code 2


def _file(name: str) -> tuple[Path, int]:
    path = Path(name)
    try:
        if path.exists() and not path.is_file():
            raise _wrong(f"{name} is no file; what comes through a pipe is to be saved first")
        with path.open("rb"):
            return path, path.stat().st_size
    except OSError as error:
        raise _wrong(f"{name} cannot be read: {error.strerror}") from None


def _count(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise _wrong(f"{option} accepts an integer of at least 1; got {text!r}")
    return int(text)


def _names(option: str, values: list[str], known: Sequence[str]) -> frozenset[str]:
    names = [name.strip() for value in values for name in value.split(",")]
    for name in names:
        if name not in known:
            raise _wrong(f"{option} accepts {', '.join(known)}; got {name!r}")
    return frozenset(names)


def _since(text: str) -> float:
    try:
        return parse_since(text, time.time())
    except ValueError:
        accepted = "a date or time in ISO 8601 (UTC unless it says so), or an age as 90m, 2h or 3d"
        raise _wrong(f"--since accepts {accepted}; got {text!r}") from None


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise _wrong(
            f"--url-pattern accepts a regular expression; got {text!r}: {error}"
        ) from None


def _local_path(uri: str, name: str) -> Path | None:
    """The file that a feed of dead letters is written to, if it has no time in its name."""
    try:
        uri = uri % defaultdict(str, name=name)
        return Path(file_uri_to_path(uri) if uri.startswith("file:") else uri)
    except (TypeError, ValueError):
        return None
