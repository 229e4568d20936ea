"""An HTTP/1.1 server on asyncio that answers as :mod:`flaky_site.behaviour` decides."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import time
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from .behaviour import Decision, HostBehaviour
from .pages import Asked, Page, challenge_page, find_page, text_page
from .profile import Profile, load_profile
from .stats import HostStats, site_summary

_REASONS = {status.value: status.phrase for status in HTTPStatus}
_MAX_BODY = 32 * 1024 * 1024


@dataclass(slots=True)
class Load:
    """How many requests are at work at once on the whole site."""

    in_flight: int = 0
    peak: int = 0


class FlakySite:
    """The site behind the sockets: its profile, its hosts and what they counted."""

    def __init__(self, profile: dict[str, Any]) -> None:
        """Raise ValueError when *profile* makes no sense."""
        self._addresses: set[str] | None = None
        self.reset(profile)

    def reset(self, profile: dict[str, Any] | None = None) -> None:
        """Forget all that happened, and take *profile* if one is given.

        Raises ValueError when the profile makes no sense; then nothing has changed.
        """
        if profile is not None:
            loaded = load_profile(profile)
            if self._addresses is None:
                self._addresses = _loopback(loaded)
            elif not _loopback(loaded) <= self._addresses:
                new = sorted(_loopback(loaded) - self._addresses)
                raise ValueError(f"{new[0]} is not listened to: it was not in the first profile")
            self.profile = loaded
        self._started: float | None = None
        self._behaviours: dict[str, HostBehaviour] = {}
        self._stats: dict[str, HostStats] = {}
        self.load = Load()

    def addresses(self) -> list[str]:
        """Return the loopback addresses that the first profile spoke of."""
        return sorted(self._addresses or ())

    def now(self) -> float:
        """Return the seconds since the first request, which this call may be about."""
        if self._started is None:
            self._started = time.monotonic()
        return time.monotonic() - self._started

    def host(self, name: str) -> tuple[HostBehaviour, HostStats]:
        """Return behaviour and counts of a host, made at its first request."""
        behaviour = self._behaviours.get(name)
        if behaviour is None:
            behaviour = HostBehaviour(
                self.profile.hosts.get(name, self.profile.default),
                rng=random.Random(f"{self.profile.seed}/{name}"),
                grace=self.profile.grace,
                epoch=time.time,
            )
            self._behaviours[name] = behaviour
            self._stats[name] = HostStats()
        return behaviour, self._stats[name]

    def summary(self, *, detail: bool) -> dict[str, Any]:
        """Return what ``/__stats__`` shows."""
        now = 0.0 if self._started is None else self.now()
        return site_summary(self._stats, now=now, peak=self.load.peak, detail=detail)


class _Open:
    """A request that has arrived and is not answered yet."""

    __slots__ = ("arrived_at", "asked", "behaviour", "decision", "load", "stats")

    def __init__(self, site: FlakySite, asked: Asked, host: str) -> None:
        self.load = site.load  # kept, as a reset gives the site a new one
        self.asked = asked
        self.behaviour, self.stats = site.host(host)
        self.arrived_at = site.now()
        self.decision = self.behaviour.arrive(asked.target, self.arrived_at)
        self.stats.arrived(self.decision)
        self.load.in_flight += 1
        self.load.peak = max(self.load.peak, self.load.in_flight)

    def end(self, kind: str, status: int | None) -> None:
        self.behaviour.finished(self.decision)
        self.stats.ended(self.asked.target, kind, status, self.arrived_at)
        self.load.in_flight -= 1


class SiteProtocol(asyncio.Protocol):
    """One connection of a client: one request at a time, kept alive."""

    def __init__(self, site: FlakySite) -> None:
        self._site = site
        self._buffer = bytearray()
        self._open: _Open | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._keep_alive = True
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if self._open is not None:
            kind = "stalled" if self._open.decision.kind == "stalled" else "gone"
            self._open.end(kind, None)
            self._open = None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._open is None:
            self._read_requests()

    def _read_requests(self) -> None:
        """Take the requests that are complete, until one has to wait for its answer."""
        while self._open is None and self._transport is not None:
            head_end = self._buffer.find(b"\r\n\r\n")
            if head_end < 0:
                return
            lines = self._buffer[:head_end].decode("latin-1").split("\r\n")
            try:
                method, target, _version = lines[0].split(" ", 2)
                headers = [_header(line) for line in lines[1:]]
                known = {name.lower(): value for name, value in headers}
                length = int(known.get("content-length", 0))
                if "transfer-encoding" in known or not 0 <= length <= _MAX_BODY:
                    raise ValueError("a body of unknown or too large size")
            except ValueError:
                self._keep_alive = False
                self._send(text_page(400, "This request cannot be read.\n"))
                return
            body_end = head_end + 4 + length
            if len(self._buffer) < body_end:
                return
            body = bytes(self._buffer[head_end + 4 : body_end])
            del self._buffer[:body_end]
            self._keep_alive = known.get("connection", "").lower() != "close"
            self._handle(method, target, headers, known.get("host", ""), body)

    def _handle(
        self, method: str, target: str, headers: list[tuple[str, str]], host: str, body: bytes
    ) -> None:
        if not target.startswith("/"):
            # The absolute form, as a proxy gets it: the host is the one in the URL.
            parts = urlsplit(target)
            host = parts.netloc.rpartition("@")[2]
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        asked = Asked(method, target, f"http://{host}", headers, body)
        if target.startswith("/__"):
            self._send(_control(self._site, asked))
            return
        self._open = _Open(self._site, asked, host.partition(":")[0])
        decision = self._open.decision
        if decision.kind == "stalled":
            return
        if decision.delay > 0:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(decision.delay, self._answer_late)
        else:
            self._answer()

    def _answer_late(self) -> None:
        self._timer = None
        self._answer()
        self._read_requests()

    def _answer(self) -> None:
        opened, self._open = self._open, None
        if opened is None or self._transport is None:
            return
        decision = opened.decision
        if decision.kind == "dropped" and not decision.drop_within:
            opened.end("dropped", None)
            self._transport.abort()
            self._transport = None
            return
        page = _page_for(opened.asked, decision)
        opened.end(decision.kind, page.status)
        if decision.drop_within:
            self._send(page, whole=False)
            return
        self._send(page, head_only=opened.asked.method == "HEAD")

    def _send(self, page: Page, *, head_only: bool = False, whole: bool = True) -> None:
        if self._transport is None:
            return
        keep = self._keep_alive and whole
        lines = [
            f"HTTP/1.1 {page.status} {_REASONS.get(page.status, 'Status')}",
            f"Date: {formatdate(usegmt=True)}",
            f"Content-Type: {page.content_type}",
            f"Content-Length: {len(page.body)}",
            *(f"{name}: {value}" for name, value in page.headers),
        ]
        if not keep:
            lines.append("Connection: close")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
        body = b"" if head_only else page.body if whole else page.body[: len(page.body) // 2]
        self._transport.write(head + body)
        if not keep:
            self._transport.close()
            self._transport = None


def _page_for(asked: Asked, decision: Decision) -> Page:
    """The page that *decision* asks for, with its status, headers and body."""
    if decision.kind == "challenged":
        page = challenge_page()
    elif decision.status is not None and decision.status >= 400:
        page = text_page(decision.status, f"{_REASONS.get(decision.status, 'Failed')}.\n")
    else:
        page = find_page(asked)
    status = page.status if decision.status is None else decision.status
    if isinstance(decision.body, bytes):
        page = Page(status, page.content_type, decision.body, page.headers)
    elif decision.body is not None:
        page = text_page(status, decision.body)
    body, headers = page.body, page.headers + decision.headers
    if decision.cut_gzip:
        packed = gzip.compress(body)
        body, headers = packed[: len(packed) // 2], (*headers, ("Content-Encoding", "gzip"))
    return Page(status, page.content_type, body, headers)


def _control(site: FlakySite, asked: Asked) -> Page:
    """Answer ``/__stats__`` and ``/__reset__``."""
    parts = urlsplit(asked.target)
    if parts.path == "/__stats__":
        return text_page(200, json.dumps(site.summary(detail="detail=1" in parts.query)))
    if parts.path == "/__reset__" and asked.method == "POST":
        try:
            site.reset(json.loads(asked.body) if asked.body.strip() else None)
        except (KeyError, TypeError, ValueError) as error:
            return text_page(400, f"{error}\n")
        return text_page(200, "{}")
    return text_page(404, "There are GET /__stats__ and POST /__reset__.\n")


def _loopback(profile: Profile) -> set[str]:
    return {name for name in profile.hosts if name.startswith("127.")}


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise ValueError("a header without a colon")
    return name, value.strip()
