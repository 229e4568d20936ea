"""The flaky site: its decisions, its pages, and the process that serves them."""

from __future__ import annotations

import gzip
import json
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse, RemoteDisconnected
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flaky_site.behaviour import Decision, HostBehaviour
from flaky_site.pages import Asked, find_page
from flaky_site.profile import load_profile
from flaky_site.quota import DIALECTS
from tests.site import PROJECT, Site

StartSite = Callable[..., Site]


def host(**rule: Any) -> HostBehaviour:
    profile = load_profile({"default": rule})
    return HostBehaviour(profile.default, rng=random.Random(1), epoch=lambda: 1000.0)


def kinds(behaviour: HostBehaviour, *times: float) -> list[str]:
    return [behaviour.arrive("/page/1", now).kind for now in times]


def retry_after(decision: Decision) -> list[str]:
    return [value for name, value in decision.headers if name == "Retry-After"]


# Limits


def test_more_than_max_at_once_are_refused() -> None:
    assert kinds(host(max_at_once=2), 0, 0, 0) == ["page", "page", "refused"]


def test_a_finished_request_makes_room() -> None:
    behaviour = host(max_at_once=1)
    behaviour.finished(behaviour.arrive("/page/1", 0.0))
    assert kinds(behaviour, 0.1) == ["page"]


def test_a_refused_request_takes_no_place() -> None:
    behaviour = host(max_at_once=1)
    first = behaviour.arrive("/page/1", 0.0)
    behaviour.finished(behaviour.arrive("/page/2", 0.0))
    behaviour.finished(first)
    assert behaviour.in_flight == 0


def test_the_bucket_serves_its_burst_and_then_the_rate() -> None:
    behaviour = host(rate=10, burst=2)
    assert kinds(behaviour, 0, 0, 0, 0.1, 0.15) == ["page", "page", "refused", "page", "refused"]


@given(st.lists(st.floats(0, 0.5), max_size=200))
def test_the_bucket_never_serves_more_than_rate_and_burst(gaps: list[float]) -> None:
    behaviour = host(rate=10, burst=3)
    now, served = 0.0, 0
    for gap in gaps:
        now += gap
        served += behaviour.arrive("/page/1", now).kind == "page"
    assert served <= 3 + 10 * now + 1e-6


def test_a_window_starts_anew_at_its_end() -> None:
    behaviour = host(window={"limit": 2, "seconds": 10})
    assert kinds(behaviour, 1, 2, 3, 9.9, 10) == ["page", "page", "refused", "refused", "page"]


def test_auto_retry_after_is_the_rest_of_the_window() -> None:
    behaviour = host(window={"limit": 1, "seconds": 10}, retry_after="auto")
    behaviour.arrive("/page/1", 1.0)
    assert retry_after(behaviour.arrive("/page/1", 3.5)) == ["7"]


def test_a_list_of_retry_after_values_makes_several_headers() -> None:
    behaviour = host(max_at_once=0, retry_after=["60", "junk"])
    assert retry_after(behaviour.arrive("/page/1", 0.0)) == ["60", "junk"]


def test_serving_some_at_once_lets_the_others_wait() -> None:
    behaviour = host(latency=1, serve_at_once=2)
    delays = [behaviour.arrive("/page/1", 0.0).delay for _ in range(5)]
    assert delays == [1, 1, 2, 2, 3]


def test_a_step_changes_the_limit_in_time() -> None:
    behaviour = host(max_at_once=5, steps=[{"at": 2, "max_at_once": 0}, {"at": 3, "latency": 1}])
    assert kinds(behaviour, 1.9, 2.0, 3.0) == ["page", "refused", "refused"]


def test_slow_answers_have_their_share() -> None:
    behaviour = host(latency={"usual": 0.1, "slow": 2, "slow_share": 0.25})
    delays = [behaviour.arrive("/page/1", 0.0).delay for _ in range(1000)]
    assert 200 < delays.count(2) < 300


def test_what_is_lost_on_its_way_is_not_counted_by_any_limit() -> None:
    hole = {"stall": "lost", "from": 1, "until": 2}
    behaviour = host(max_at_once=1, rate=1, burst=1, faults=[hole])
    assert kinds(behaviour, 1.0, 1.0, 1.9) == ["stalled"] * 3
    assert behaviour.in_flight == 0
    assert kinds(behaviour, 2.0, 2.0) == ["page", "refused"]


# Bans and early hits


def test_a_hit_before_the_end_of_retry_after_is_early() -> None:
    behaviour = host(retry_after=2, steps=[{"at": 0, "max_at_once": 0}, {"at": 1, "latency": 0}])
    early = [behaviour.arrive("/page/1", now).early for now in (0.0, 1.0)]
    assert early == [False, True]


def test_a_hit_that_was_on_its_way_when_the_refusal_left_is_not_early() -> None:
    behaviour = host(max_at_once=0, retry_after=2)
    early = [behaviour.arrive("/page/1", now).early for now in (0.0, 0.04)]
    assert early == [False, False]


def test_a_hit_after_the_end_of_retry_after_is_not_early() -> None:
    behaviour = host(max_at_once=0, retry_after=2)
    early = [behaviour.arrive("/page/1", now).early for now in (0.0, 2.01)]
    assert early == [False, False]


def test_an_early_hit_restarts_the_ban() -> None:
    behaviour = host(rate=100, burst=1, ban=3)
    assert kinds(behaviour, 0, 0, 2, 4, 8) == ["page", "refused", "refused", "refused", "page"]


def test_a_ban_ends_when_nobody_comes_early() -> None:
    behaviour = host(rate=100, burst=1, ban=3, retry_after=3)
    assert kinds(behaviour, 0, 0, 3.01) == ["page", "refused", "page"]


def test_a_retry_after_of_a_fault_counts_for_early_hits() -> None:
    behaviour = host(faults=[{"times": 1, "status": 429, "headers": {"Retry-After": 1}}])
    early = [behaviour.arrive("/page/1", now).early for now in (0.0, 0.5)]
    assert early == [False, True]


# Faults


def test_a_fault_for_good_happens_each_time() -> None:
    behaviour = host(faults=[{"match": "/page/1", "status": 503}])
    assert [behaviour.arrive("/page/1", 0.0).status for _ in range(3)] == [503] * 3


def test_a_fault_leaves_other_paths_alone() -> None:
    behaviour = host(faults=[{"match": "/page/1", "status": 503}])
    assert behaviour.arrive("/page/11", 0.0).kind == "page"


def test_a_fault_matches_the_path_without_its_query() -> None:
    behaviour = host(faults=[{"match": "/page/1", "status": 503}])
    assert behaviour.arrive("/page/1?next", 0.0).kind == "failed"


def test_times_are_counted_for_each_path() -> None:
    behaviour = host(faults=[{"times": 1, "status": 500}])
    statuses = [behaviour.arrive(path, 0.0).status for path in ("/page/1", "/page/2", "/page/1")]
    assert statuses == [500, 500, None]


def test_times_can_be_counted_for_the_host() -> None:
    behaviour = host(faults=[{"times": 1, "per": "host", "status": 500}])
    assert [behaviour.arrive(f"/page/{n}", 0.0).status for n in (1, 2)] == [500, None]


def test_a_fault_ends_in_time() -> None:
    behaviour = host(faults=[{"until": 2, "drop": True}])
    assert kinds(behaviour, 0, 1.9, 2.0) == ["dropped", "dropped", "page"]


def test_a_random_fault_has_its_share() -> None:
    behaviour = host(faults=[{"share": 0.05, "status": 503}])
    assert 30 < kinds(behaviour, *range(1000)).count("failed") < 70


def test_the_same_seed_makes_the_same_faults() -> None:
    rule = {"faults": [{"share": 0.5, "status": 503}]}
    assert kinds(host(**rule), *range(50)) == kinds(host(**rule), *range(50))


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_quota_headers_tell_what_is_left(dialect: str) -> None:
    behaviour = host(window={"limit": 42, "seconds": 60}, quota=dialect)
    told = " ".join(value for _, value in behaviour.arrive("/page/1", 0.0).headers)
    assert "41" in told


@pytest.mark.parametrize(
    ("profile", "complaint"),
    [
        ({"default": {"max_at_onse": 1}}, "max_at_onse"),
        ({"default": {"faults": [{"sahre": 1}]}}, "sahre"),
        ({"default": {"faults": [{"drop": "sideways"}]}}, "drop"),
        ({"default": {"rate": 0}}, "rate"),
        ({"default": {"quota": "klingon"}}, "quota"),
        ({"defaults": {}}, "defaults"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(profile: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        load_profile(profile)


# Pages


def get(target: str) -> str:
    return find_page(Asked("GET", target, "http://site")).body.decode()


def test_a_list_links_to_as_many_pages_as_asked() -> None:
    assert get("/list?n=7").count("<a href=") == 7


def test_a_page_links_to_the_next_when_asked() -> None:
    assert 'href="/page/8?next"' in get("/page/7?next")


def test_child_sitemaps_have_different_pages() -> None:
    assert "http://site/page/5<" in get("/sitemap/1.xml?pages=5")


def test_nested_links_end_at_their_depth() -> None:
    assert "<a href" not in get("/links/0/1?depth=2&width=3")


def test_nested_links_keep_their_query() -> None:
    assert 'href="/links/0/2?depth=2&amp;width=3"' in get("/links/0?depth=2&width=3")


def test_a_table_has_as_many_rows_as_asked() -> None:
    assert len(get("/csv/12").splitlines()) == 13


def test_an_image_is_a_png() -> None:
    page = find_page(Asked("GET", "/image/3.png", ""))
    assert page.body.startswith(b"\x89PNG")


@pytest.mark.parametrize("target", ["/nowhere", "/page/x", "/page", "/redirect"])
def test_what_does_not_exist_is_a_404(target: str) -> None:
    assert find_page(Asked("GET", target, "")).status == 404


# The process


@contextmanager
def fetch(url: str, data: bytes | None = None) -> Iterator[HTTPResponse]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, data=data, timeout=5) as response:
            yield response
    except urllib.error.HTTPError as error:
        with error:
            yield error  # type: ignore[misc]


def status(url: str) -> int:
    with fetch(url) as response:
        return response.status


def test_the_site_tells_back_what_it_was_sent(site: StartSite) -> None:
    with fetch(site().url("/echo?a=1"), b"x=1") as response:
        told = json.load(response)
    assert (told["method"], told["target"], told["body"]) == ("POST", "/echo?a=1", "x=1")


def test_hosts_behave_as_their_own_rules_say(site: StartSite) -> None:
    running = site({"hosts": {"127.0.0.2": {"max_at_once": 0}, "127.0.0.3": {}}})
    codes = [status(running.url("/page/1", host=f"127.0.0.{n}")) for n in (1, 2, 3)]
    assert codes == [200, 429, 200]


def test_the_site_counts_what_it_served_and_refused(site: StartSite) -> None:
    running = site(rate=0.001, burst=2)
    for _ in range(3):
        status(running.url("/page/1"))
    counts = running.stats()
    assert (counts["hits"], counts["served"], counts["refused"]) == (3, 2, 1)


def test_the_site_tells_when_a_path_was_hit(site: StartSite) -> None:
    running = site()
    status(running.url("/page/1"))
    time.sleep(0.1)
    status(running.url("/page/2"))
    assert 0.1 <= running.times("/page/2")[0] < 2


def test_a_reset_forgets_the_counts(site: StartSite) -> None:
    running = site()
    status(running.url("/page/1"))
    running.reset()
    assert running.stats()["hits"] == 0


def test_a_reset_takes_a_new_profile(site: StartSite) -> None:
    running = site()
    running.reset({"default": {"max_at_once": 0, "refuse_status": 503}})
    assert status(running.url("/page/1")) == 503


def test_a_reset_refuses_a_profile_that_makes_no_sense(site: StartSite) -> None:
    with pytest.raises(ValueError, match="nonsense"):
        site().reset({"nonsense": 1})


def test_a_dropped_connection_gives_no_answer(site: StartSite) -> None:
    running = site(faults=[{"drop": True}])
    with pytest.raises((RemoteDisconnected, ConnectionError)), fetch(running.url("/page/1")):
        pass


def test_a_challenge_has_its_marker(site: StartSite) -> None:
    with fetch(site(faults=[{"challenge": True}]).url("/page/1")) as response:
        assert (response.status, response.headers["cf-mitigated"]) == (403, "challenge")


def test_a_cut_gzip_stream_cannot_be_unpacked(site: StartSite) -> None:
    running = site(faults=[{"times": 1, "cut_gzip": True}])
    with fetch(running.url("/page/1")) as response:
        body = response.read()
    with pytest.raises(EOFError):
        gzip.decompress(body)


def test_requests_in_one_packet_are_answered_in_turn(site: StartSite) -> None:
    running = site(latency=0.02)
    ask = b"GET /page/%d HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n"
    with socket.create_connection(("127.0.0.1", running.port), timeout=5) as connection:
        connection.sendall(ask % (1, b"") + ask % (2, b"Connection: close\r\n"))
        told = b"".join(iter(lambda: connection.recv(65536), b""))
    assert told.index(b"<title>Page 1<") < told.index(b"<title>Page 2<")


def test_a_site_with_a_bad_profile_says_why_it_does_not_start() -> None:
    with pytest.raises(RuntimeError, match="max_at_onse"):
        Site({"default": {"max_at_onse": 1}})


@pytest.fixture
def site_process() -> Iterator[subprocess.Popen[bytes]]:
    """The site as ``python -m flaky_site`` starts it, once it serves."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "flaky_site", "demo.json"]
    with subprocess.Popen(command, cwd=PROJECT, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_site(site_process: subprocess.Popen[bytes], number: int) -> None:
    site_process.send_signal(number)
    assert site_process.wait(5) == 0


def test_the_site_ends_with_the_process_that_started_it(
    site_process: subprocess.Popen[bytes],
) -> None:
    assert site_process.stdin is not None
    site_process.stdin.close()
    assert site_process.wait(5) == 0
