"""The flaky site of ``example_project`` as a process that a test starts and ends."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent / "example_project"


class Site:
    """A running flaky site.

    *profile* is what ``flaky_site/profile.py`` documents, as a dict. Hosts are told apart by
    loopback address: name ``127.0.0.2`` in the profile and ask for
    ``site.url("/page/1", host="127.0.0.2")``. Raises RuntimeError when the site does not start.
    """

    def __init__(self, profile: Mapping[str, Any] | None = None, *, timeout: float = 20.0) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump(profile or {}, file)
            file.flush()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flaky_site", file.name],
                cwd=PROJECT,
                # Coverage of the package is not measured there: it would slow the site down.
                env={k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_")},
                stdin=subprocess.PIPE,  # its end ends the site, should we die
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            self.port = self._read_port(timeout)

    def _read_port(self, timeout: float) -> int:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        line = self._process.stdout.readline() if ready else b""
        if not line.strip().isdigit():
            self._process.kill()
            _, errors = self._process.communicate()
            raise RuntimeError(f"the site did not start: {errors.decode(errors='replace')}")
        return int(line)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        """Return the absolute URL of *path* on one of the site's hosts."""
        return f"http://{host}:{self.port}{path}"

    def stats(self, *, detail: bool = False) -> dict[str, Any]:
        """Return the site's counts: totals, and under ``hosts`` those of each host.

        Each has ``hits served refused challenged failed dropped stalled gone pages early
        in_flight peak``; a host also ``statuses``. With *detail*, a host also has ``requests``
        (``[second, target, kind]`` in order of arrival) and ``paths``
        (``{target: {"hits": n, "times": [second, ...]}}``).
        """
        told: dict[str, Any] = json.loads(
            self._ask("/__stats__?detail=1" if detail else "/__stats__")
        )
        return told

    def host(self, name: str = "127.0.0.1") -> dict[str, Any]:
        """Return the detailed counts of one host; empty when it was never asked."""
        told: dict[str, Any] = self.stats(detail=True)["hosts"].get(name, {})
        return told

    def times(self, path: str, host: str = "127.0.0.1") -> list[float]:
        """Return when *path* was hit, in seconds since the first request to the site."""
        found: list[float] = self.host(host).get("paths", {}).get(path, {}).get("times", [])
        return found

    def reset(self, profile: Mapping[str, Any] | None = None) -> None:
        """Forget what happened; take *profile* if given, on hosts that the first one named.

        Raises ValueError when the profile makes no sense.
        """
        data = b"" if profile is None else json.dumps(profile).encode()
        try:
            self._ask("/__reset__", data)
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(error.read().decode()) from None

    def close(self) -> None:
        """End the site and wait for it."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def __enter__(self) -> Site:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, path: str, data: bytes | None = None) -> bytes:
        # No proxy of the environment may stand between a test and its site.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.url(path), data=data, timeout=10) as answer:
            body: bytes = answer.read()
        return body
