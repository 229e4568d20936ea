from __future__ import annotations

import gzip
import zlib
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_backpressure._scrapy_body import body_prefix, is_truncated_gzip

compress = partial(gzip.compress, mtime=0)


def test_decoding_stops_at_the_limit() -> None:
    bomb = gzip.compress(b"a" * 10_000_000)
    assert body_prefix(bomb, ["gzip"], 1000) == b"a" * 1000


@pytest.mark.parametrize("encodings", [["gzip, br"], ["compress"], ["deflate"], ["br"], ["zstd"]])
def test_body_that_cannot_be_decoded_is_empty(encodings: list[str]) -> None:
    assert body_prefix(b"\x00\xffnot compressed", encodings, 1000) == b""


@pytest.mark.parametrize("encodings", [[], ["identity"], ["gzip"]])
def test_body_that_is_not_compressed_is_itself(encodings: list[str]) -> None:
    assert body_prefix(b"plain text", encodings, 5) == b"plain"


@given(
    body=st.binary(),
    encodings=st.lists(st.sampled_from(["gzip", "deflate", "br", "zstd"]) | st.text()),
)
def test_any_body_gives_no_more_than_the_limit(body: bytes, encodings: list[str]) -> None:
    assert len(body_prefix(body, encodings, 10)) <= 10


PAGE = b"<p>a thing to buy</p>" * 500
MEMBERS = st.lists(st.binary(max_size=300), min_size=1, max_size=3)


@given(members=MEMBERS, garbage=st.sampled_from([b"", b"\0" * 20, b"garbage"]))
def test_whole_stream_is_not_truncated(members: list[bytes], garbage: bytes) -> None:
    raw = b"".join(compress(member) for member in members) + garbage
    assert not is_truncated_gzip(raw, sum(map(len, members)))


@given(members=MEMBERS, cut=st.integers(1, 15))
def test_stream_without_its_end_is_truncated(members: list[bytes], cut: int) -> None:
    raw = b"".join(compress(member) for member in members)[:-cut]
    assert is_truncated_gzip(raw, 1_000_000)


@given(raw=st.binary(), length=st.integers(0, 2**33))
def test_any_bytes_are_judged_without_an_error(raw: bytes, length: int) -> None:
    assert is_truncated_gzip(b"\x1f\x8b" + raw, length) in (True, False)


def test_agreeing_length_needs_no_decompression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(zlib, "decompressobj")
    assert not is_truncated_gzip(compress(PAGE), len(PAGE))
