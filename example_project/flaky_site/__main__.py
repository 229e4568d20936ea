"""``python -m flaky_site profile.json [--host 127.0.0.1] [--port 0]``.

Prints the port as the first line and serves until SIGINT or SIGTERM, or until its standard input
ends when that is a pipe: so it does not outlive the process that started it.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import signal
import stat
import sys
from pathlib import Path

from .server import FlakySite, SiteProtocol


class _EndOfInput(asyncio.Protocol):
    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()


async def _listen(site: FlakySite, host: str, port: int) -> tuple[list[asyncio.Server], int]:
    """Listen on *host* and on the other loopback addresses of the profile, all at one port."""
    loop = asyncio.get_running_loop()
    others = [name for name in site.addresses() if name != host and host != "0.0.0.0"]
    attempts = 1 if port else 20
    while True:
        servers: list[asyncio.Server] = []
        bound = port
        try:
            for address in (host, *others):
                servers.append(
                    await loop.create_server(
                        lambda: SiteProtocol(site), address, bound, backlog=1024
                    )
                )
                bound = servers[0].sockets[0].getsockname()[1]
        except OSError as error:
            for server in servers:
                server.close()
            attempts -= 1
            if error.errno != errno.EADDRINUSE or not attempts:
                raise
        else:
            return servers, bound


async def _serve(profile: Path, host: str, port: int) -> None:
    site = FlakySite(json.loads(profile.read_text(encoding="utf-8")))
    servers, bound = await _listen(site, host, port)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    if stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        await loop.connect_read_pipe(lambda: _EndOfInput(ended), sys.stdin)
    print(bound, flush=True)  # last: whoever reads it may end us at once
    await ended.wait()
    for server in servers:
        server.close()


def main() -> None:
    """Serve the profile named on the command line."""
    parser = argparse.ArgumentParser(prog="flaky_site", description="A site that throttles.")
    parser.add_argument("profile", type=Path, help="a JSON file, see flaky_site/profile.py")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    arguments = parser.parse_args()
    try:
        asyncio.run(_serve(arguments.profile, arguments.host, arguments.port))
    except (OSError, KeyError, TypeError, ValueError) as error:
        parser.exit(2, f"flaky_site: {error}\n")


if __name__ == "__main__":
    main()
