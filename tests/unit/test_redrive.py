"""Dead letters on their way back: what is read, what is refused, and what a request gets back."""

from __future__ import annotations

import base64
import contextlib
import functools
import gzip
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scrapy import Request, Spider
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler

from scrapy_backpressure.deadletter import SCHEMA, DeadLetter, is_internal
from scrapy_backpressure.history import HISTORY
from scrapy_backpressure.redrive import Record, Unfit, Wanted, entries, parse_since

NOON = 1893499200.0  # 2030-01-01T12:00:00 UTC


def decorated(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapper(*args: Any) -> Any:
        return method(*args)

    return wrapper


class Shop(Spider):
    name = "shop"
    rows = ("not", "a", "method")

    class Helper: ...

    def parse_item(self, response: Any) -> None: ...

    @decorated
    def parse_decorated(self, response: Any) -> None: ...

    @staticmethod
    def parse_static(response: Any) -> None: ...

    def failed(self, failure: Any) -> None: ...


def spider() -> Shop:
    crawler = get_crawler(Shop)
    crawler.request_fingerprinter = RequestFingerprinter(crawler)
    found = crawler.spider = Shop.from_crawler(crawler)
    return found


SHOP = spider()


def letter(request: Request, *, secrets: bool = True) -> dict[str, Any]:
    """The record of *request*, as it comes out of a feed."""
    built = DeadLetter.build(
        request, crawler=SHOP.crawler, outcome=None, reason="retries", now=NOON, secrets=secrets
    )
    record: dict[str, Any] = json.loads(json.dumps(asdict(built)))
    return record


def changed(**changes: Any) -> bytes:
    """A good record, but for *changes*; ``request__url`` is that of its request."""
    record = letter(Request("http://shop.example/1"))
    for name, value in changes.items():
        field, _, part = name.partition("__")
        if part:
            record[field][part] = value
        else:
            record[field] = value
    return json.dumps(record).encode()


def restored(record: dict[str, Any]) -> Request:
    return Record.parse(json.dumps(record).encode()).to_request(Shop, SHOP)


def read(path: Path) -> list[tuple[int, bytes]]:
    return [(entry.line, entry.text) for entry in entries(path, path.stat().st_size)]


def feed(tmp_path: Path, name: str, data: bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


# -- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jl", "a"])
def test_lines_are_records_and_empty_ones_are_none(tmp_path: Path, name: str) -> None:
    path = feed(tmp_path, name, b'{"a": 1}\n\n  \r\n{"b": 2}\r\n[broken')
    assert read(path) == [(1, b'{"a": 1}'), (4, b'{"b": 2}'), (5, b"[broken")]


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
@pytest.mark.parametrize("between", [",\n", ",", "\n]\n[\n", "][", ""])
def test_elements_of_arrays_are_records(tmp_path: Path, name: str, between: str) -> None:
    path = feed(tmp_path, name, f'[\n{{"a": 1}}{between}{{"b": 2}}\n]\n'.encode())
    assert [text for _, text in read(path)] == [b'{"a": 1}', b'{"b": 2}']


def test_indented_element_comes_in_one_line_and_tells_where_it_began(tmp_path: Path) -> None:
    path = feed(tmp_path, "a.json", json.dumps([{"a": [1, 2]}, {"b": "c"}], indent=4).encode())
    found = read(path)
    assert [line for line, _ in found] == [2, 8]
    assert [json.loads(text) for _, text in found] == [{"a": [1, 2]}, {"b": "c"}]
    assert not any(b"\n" in text for _, text in found)


def test_broken_element_leaves_the_next_ones_whole(tmp_path: Path) -> None:
    path = feed(tmp_path, "a.json", b'[\n{"a": 1},\n{"b": \xff,\n{"c": 3}\n]')
    assert read(path) == [(2, b'{"a": 1}'), (3, b'{"b": \xff,'), (4, b'{"c": 3}')]


def test_array_that_was_cut_off_gives_what_is_whole_and_the_rest_as_it_is(tmp_path: Path) -> None:
    assert read(feed(tmp_path, "a.json", b'[\n{"a": 1},\n{"b"')) == [
        (2, b'{"a": 1}'),
        (3, b'{"b"'),
    ]


def test_lines_in_a_file_named_json_are_records(tmp_path: Path) -> None:
    assert read(feed(tmp_path, "a.json", b'{"a": 1}\n{"b": 2}\n')) == [
        (1, b'{"a": 1}'),
        (2, b'{"b": 2}'),
    ]


def test_several_gzip_streams_in_one_file_are_read_on(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n') + gzip.compress(b'{"b": 2}\n'))
    assert [text for _, text in read(path)] == [b'{"a": 1}', b'{"b": 2}']


def test_what_is_added_to_a_file_meanwhile_is_not_read(tmp_path: Path) -> None:
    path = feed(tmp_path, "a.jsonl", b"1\n2\n")
    found = []
    for entry in entries(path, path.stat().st_size):
        found.append(entry.text)
        with path.open("ab") as file:
            file.write(b"3\n" * 10_000)
    assert found == [b"1", b"2"]


@pytest.mark.parametrize("cut", [3, 12, -10, -1])
def test_damaged_gzip_is_an_error_of_the_file(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 10)[:cut])
    with pytest.raises(OSError, match=r"damaged|gzip|CRC"):
        read(path)


def test_records_before_the_damage_are_read(tmp_path: Path) -> None:
    lines = b"".join(b'{"a": %d}\n' % number for number in range(50_000))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(lines)[:-20_000])
    reading = entries(path, path.stat().st_size)
    assert next(reading).text == b'{"a": 0}'


def test_memory_does_not_grow_with_the_number_of_lines(tmp_path: Path) -> None:
    path = feed(tmp_path, "a.jsonl", (b'{"a": "' + b"x" * 500 + b'"}\n') * 20_000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in entries(path, path.stat().st_size)) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 200_000  # of 10 MB
    finally:
        tracemalloc.stop()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.one_of(
        st.binary(),
        st.lists(
            st.sampled_from([b"[", b"]", b"{", b"}", b'"', b",", b"\n", b'{"a":1}', b"\xff"])
        ).map(b"".join),
    ),
    name=st.sampled_from(["a.jsonl", "a.json", "a.json.gz", "a.jsonl.gz"]),
    zipped=st.booleans(),
)
def test_any_bytes_are_entries_or_an_error_of_the_file(
    tmp_path: Path, data: bytes, name: str, zipped: bool
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if zipped else data)
    try:
        found = read(path)
    except OSError:
        assert data[:2] == b"\x1f\x8b"  # which makes it gzip
        return
    assert not any(b"\n" in text for _, text in found)
    numbers = [line for line, _ in found]
    assert numbers == sorted(numbers)


# -- checking ------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        *("schema", "spider", "time", "first_seen", "outcome", "reason", "dropped", "redrives"),
        *("request", "request__url", "request__method", "request__headers", "request__body"),
        *("request__meta", "request__cb_kwargs", "request__callback", "request__errback"),
        *("request__priority", "request__dont_filter", "request__flags", "request__cookies"),
    ]
)


@given(st.binary())
def test_any_bytes_are_a_record_or_unfit(data: bytes) -> None:
    with pytest.raises(Unfit):
        Record.parse(data)


@given(FIELDS, JSON)
def test_record_with_any_value_anywhere_makes_a_request_or_is_unfit(
    field: str, value: Any
) -> None:
    try:
        request = Record.parse(changed(**{field: value})).to_request(Shop, SHOP)
    except Unfit as error:
        str(error).encode()  # it can be logged
    else:
        assert isinstance(request, Request)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is no JSON"),
        (b"[1]", "is no JSON object"),
        (b"[" * 100_000, "is no JSON: "),
        (b"{}", "has no schema"),
        (changed(schema=2), "has the schema 2, written by a newer version; known is 1"),
        (changed(schema=0), "has the schema 0; known is 1"),
        (changed(schema=True), "has True for schema, not an integer"),
        (b'{"schema": ' + b"[" * 900 + b"]" * 900 + b"}", "has a list for schema"),
        (changed(redrives=-1), "has -1 for redrives"),
        (changed(first_seen="yesterday"), "has 'yesterday' for first_seen, not an ISO 8601 time"),
        (changed(time="0001-01-01T00:00:00+09:00"), "for time, not an ISO 8601 time"),
        (changed(request__url="/1"), "has '/1' for url, not a URL"),
        (changed(request__url="http://[1"), "for url, not a URL"),
        (changed(request__method=None), "has None for method, not text"),
        (changed(request__headers={"A": "1"}), "has '1' for A, not a list of texts"),
        (changed(request__headers={"A": [1]}), "has more than texts in A"),
        (changed(request__body={}), "has no base64"),
        (changed(request__body={"base64": "?"}), "has a body that is no base64"),
        (changed(request__priority=1.5), "has 1.5 for priority, not an integer"),
        (changed(dropped=["callback"]), "does not have its callback"),
        (changed(dropped=["errback"]), "does not have its errback"),
        (changed(request__cb_kwargs=[]), "has a list for cb_kwargs, not an object"),
    ],
)
def test_record_that_does_not_fit_says_why(data: bytes, said: str) -> None:
    with pytest.raises(Unfit) as error:
        Record.parse(data).to_request(Shop, SHOP)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        *("nothing", "rows", "name", "Helper", "__init__", "__class__", ""),
        *("parse_item.__func__", "crawler", "logger"),
    ],
)
def test_callback_that_is_no_method_of_the_spider_is_refused(name: str) -> None:
    with pytest.raises(Unfit, match="which is no method of the spider"):
        Record.parse(changed(request__callback=name)).to_request(Shop, SHOP)


def test_record_cannot_have_a_property_of_the_spider_run() -> None:
    ran = []

    class Other(Shop):
        @property
        def page(self) -> Any:
            ran.append(1)

    record = Record.parse(changed(request__callback="page"))
    with pytest.raises(Unfit):
        record.to_request(Other, Other())
    assert not ran


def test_method_that_the_spider_hides_by_something_else_is_refused() -> None:
    hiding = spider()
    hiding.parse_item = 5  # type: ignore[method-assign, assignment]
    with pytest.raises(Unfit, match="no method of the spider"):
        Record.parse(changed(request__callback="parse_item")).to_request(Shop, hiding)


@pytest.mark.parametrize("name", ["parse_item", "parse_decorated", "parse_static", "log"])
def test_callback_is_the_method_of_the_spider(name: str) -> None:
    request = Record.parse(changed(request__callback=name)).to_request(Shop, SHOP)
    assert request.callback == getattr(SHOP, name)


def test_check_needs_no_spider() -> None:
    record = Record.parse(changed(request__callback="parse_item"))
    assert record.to_request(Shop).url == "http://shop.example/1"


def test_secrets_do_not_stand_in_the_reason_why_a_record_is_unfit() -> None:
    with pytest.raises(Unfit) as error:
        Record.parse(changed(request__url="http://user:secret@[1")).to_request(Shop, SHOP)
    assert "secret" not in str(error.value)


# -- restoring -----------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXT, values, max_size=3),
    max_leaves=5,
)
TOKEN = st.text("abcXYZ-", min_size=1, max_size=8)
VALUE = st.text("abc =;,", max_size=8)
REQUESTS = st.builds(
    Request,
    url=st.sampled_from(["http://shop.example/1?a=b&c=%20", "https://user:pass@a.example:81/é"]),
    method=st.sampled_from(["GET", "POST", "PUT"]),
    headers=st.dictionaries(TOKEN, st.lists(VALUE, min_size=1, max_size=2), max_size=3),
    body=st.binary(max_size=20) | TEXT,
    cookies=st.dictionaries(TOKEN, VALUE, max_size=2)
    | st.lists(st.fixed_dictionaries({"name": TOKEN, "value": VALUE, "path": TEXT}), max_size=2),
    meta=st.dictionaries(TEXT.filter(lambda key: not is_internal(key)), PLAIN, max_size=3),
    cb_kwargs=st.dictionaries(TEXT, PLAIN, max_size=3),
    callback=st.sampled_from([None, SHOP.parse_item, SHOP.parse_decorated]),
    errback=st.sampled_from([None, SHOP.failed]),
    priority=st.integers(-1000, 1000),
    dont_filter=st.booleans(),
    flags=st.lists(TEXT, max_size=2),
)


@given(REQUESTS)
def test_request_comes_back_as_it_was(request: Request) -> None:
    again = restored(letter(request))
    past = again.meta.pop(HISTORY)
    again.dont_filter = past["dont_filter"]
    assert again.to_dict(spider=SHOP) == request.to_dict(spider=SHOP)


def test_body_that_is_no_text_comes_back() -> None:
    record = letter(Request("http://shop.example/1", method="POST", body=b"\xff\x00"))
    assert record["request"]["body"] == {"base64": base64.b64encode(b"\xff\x00").decode()}
    assert restored(record).body == b"\xff\x00"


def test_request_passes_the_seen_filter() -> None:
    assert restored(letter(Request("http://shop.example/1"))).dont_filter is True


def test_history_goes_on_and_attempts_start_again() -> None:
    record = letter(Request("http://shop.example/1", priority=7))
    record |= {"redrives": 2, "first_seen": "2029-12-31T12:00:00.000+00:00"}
    record["attempts"] = [{"time": "2030-01-01T00:00:00.000+00:00", "status": 503}]
    past = restored(record).meta[HISTORY]
    assert (past["redrives"], past["first_seen"]) == (2, NOON - 86400)
    assert (past["attempts"], past["throttled"], past["priority"]) == ([], 0, 7)


def test_meta_that_only_this_package_writes_is_not_taken_from_a_record() -> None:
    record = letter(Request("http://shop.example/1"))
    record["request"]["meta"] = {"backpressure_due": 9e9, "retry_times": 5, "own": 1}
    assert {key for key in restored(record).meta if key != HISTORY} == {"own"}


def test_field_that_is_not_known_does_no_harm() -> None:
    assert restored({**letter(Request("http://shop.example/1")), "note": 1}).url


# -- choosing ------------------------------------------------------------------------------------


def test_without_a_wish_every_record_is_wanted() -> None:
    assert Wanted().accepts(Record.parse(changed()))


@pytest.mark.parametrize(
    ("wanted", "accepted"),
    [
        (Wanted(reasons=frozenset({"retries", "blocked"})), True),
        (Wanted(reasons=frozenset({"blocked"})), False),
        (Wanted(outcomes=frozenset({"none"})), True),
        (Wanted(outcomes=frozenset({"failed"})), False),
        (Wanted(since=NOON), True),
        (Wanted(since=NOON + 1), False),
    ],
)
def test_record_is_wanted_if_it_is_as_asked_for(wanted: Wanted, accepted: bool) -> None:
    assert wanted.accepts(Record.parse(changed())) is accepted


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", NOON - 90),
        ("1.5h", NOON - 5400),
        ("3d", NOON - 3 * 86400),
        ("2w", NOON - 14 * 86400),
        (" 15m ", NOON - 900),
        ("2030-01-01T12:00", NOON),
        ("2030-01-01T12:00:00Z", NOON),
        ("2030-01-01T14:00:00+02:00", NOON),
        ("2030-01-01", NOON - 43200),
    ],
)
def test_since_is_a_time_or_an_age(text: str, seconds: float) -> None:
    assert parse_since(text, NOON) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5", "h", "-1h", "1h30m", "0001-01-01T00:00+09:00"])
def test_since_that_is_neither_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"isoformat|year|range"):
        parse_since(text, NOON)


@given(st.text())
def test_any_text_for_since_is_a_time_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(parse_since(text, NOON), float)


def test_known_schema_is_that_of_the_records() -> None:
    assert letter(Request("http://shop.example/1"))["schema"] == SCHEMA
