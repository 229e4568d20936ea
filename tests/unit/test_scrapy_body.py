from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy.utils import _compression

from scrapy_backpressure._scrapy_body import body_prefix, is_incomplete

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


# -- whether it is whole ---------------------------------------------------------------------

PAGE = b"<p>a thing to buy</p>" * 500
LONG = bytes((i * i * 31 + (i >> 3) * 17) % 251 for i in range(200_000))
"""Several chunks of it in any coding."""


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


def brotli(data: bytes) -> bytes:
    library = getattr(_compression, "brotli", None)
    if library is None:
        pytest.skip("no library for brotli")
    compressed: bytes = library.compress(data)
    return compressed


def zstd(data: bytes) -> bytes:
    if (library := getattr(_compression, "zstd", None)) is not None:
        compressed: bytes = library.compress(data)
    elif (library := getattr(_compression, "zstandard", None)) is not None:
        compressed = library.ZstdCompressor().compress(data)
    else:
        pytest.skip("no library for zstd")
    return compressed


def gzip_with_all_fields(data: bytes) -> bytes:
    head, rest = compress(data)[:10], compress(data)[10:]
    flags = bytes([4 | 8 | 16 | 2])
    fields = b"\x02\x00ab" + b"name\0" + b"comment\0" + b"\x12\x34"
    return head[:3] + flags + head[4:] + fields + rest


CODINGS: dict[str, tuple[str, Callable[[bytes], bytes], int]] = {
    "gzip": ("gzip", compress, 8),
    "x-gzip": ("x-gzip", compress, 8),
    "gzip, all fields": ("gzip", gzip_with_all_fields, 8),
    "deflate": ("deflate", zlib.compress, 4),
    "raw deflate": ("deflate", raw_deflate, 0),
    "br": ("br", brotli, 0),
    "zstd": ("zstd", zstd, 0),
}
"""Value of the header, how it is made, and the bytes at the end that hold no content."""
EACH = pytest.mark.parametrize(("name", "encode", "trailer"), CODINGS.values(), ids=CODINGS)


@EACH
@pytest.mark.parametrize("content", [b"", b"x", PAGE, LONG], ids=["empty", "tiny", "page", "long"])
def test_whole_stream_is_whole(
    name: str, encode: Callable[[bytes], bytes], trailer: int, content: bytes
) -> None:
    assert not is_incomplete(encode(content), [name])


@EACH
@pytest.mark.parametrize("content", [PAGE, LONG], ids=["page", "long"])
def test_stream_that_breaks_off_is_incomplete(
    name: str, encode: Callable[[bytes], bytes], trailer: int, content: bytes
) -> None:
    raw = encode(content)
    ends = {1, 5, len(raw) // 2, len(raw) - trailer - 1}
    assert [end for end in sorted(ends) if not is_incomplete(raw[:end], [name])] == []


@EACH
def test_stream_that_lacks_what_stands_behind_its_content_is_whole(
    name: str, encode: Callable[[bytes], bytes], trailer: int
) -> None:
    raw = encode(PAGE)
    cuts = range(1, trailer + 1)
    assert [cut for cut in cuts if is_incomplete(raw[:-cut], [name])] == []


@pytest.mark.parametrize(("name", "encode", "length"), [("gzip", compress, 8), ("br", brotli, 0)])
def test_wrong_checksum_costs_no_page(
    name: str, encode: Callable[[bytes], bytes], length: int
) -> None:
    raw = encode(PAGE)
    assert not is_incomplete(raw[: len(raw) - length] + b"?" * length, [name])


def test_broken_stream_is_incomplete() -> None:
    raw = compress(LONG)
    assert is_incomplete(raw[:300] + b"\xff\x00\xff\xaa" * 8 + raw[332:], ["gzip"])


def test_page_that_has_its_end_is_whole_though_its_stream_has_none() -> None:
    page = b"<html>" + PAGE + b"</html>"
    compressor = zlib.compressobj(wbits=31)
    raw = compressor.compress(page) + compressor.flush(zlib.Z_SYNC_FLUSH)
    assert not is_incomplete(raw, ["gzip"], page)


@pytest.mark.parametrize("garbage", [b"\0" * 20, b"garbage", b"\x1f"])
@pytest.mark.parametrize("encode", [compress, zstd], ids=["gzip", "zstd"])
def test_what_stands_behind_a_stream_does_not_matter(
    encode: Callable[[bytes], bytes], garbage: bytes
) -> None:
    name = "zstd" if encode is zstd else "gzip"
    assert not is_incomplete(encode(PAGE) + garbage, [name])


@pytest.mark.parametrize("encode", [compress, zstd], ids=["gzip", "zstd"])
def test_each_of_several_members_has_to_be_whole(encode: Callable[[bytes], bytes]) -> None:
    name = "zstd" if encode is zstd else "gzip"
    two = encode(PAGE) + encode(LONG)
    assert (is_incomplete(two, [name]), is_incomplete(two[:-50], [name])) == (False, True)


def test_each_of_several_codings_has_to_be_whole() -> None:
    inner_cut = brotli(compress(LONG)[:-500])
    outer_cut = brotli(compress(LONG))[:-500]
    whole = brotli(compress(LONG))
    found = [is_incomplete(raw, ["gzip, br"]) for raw in (inner_cut, outer_cut, whole)]
    assert found == [True, True, False]


@pytest.mark.parametrize("encodings", [[], ["identity"], ["compress"], ["gzip, compress"]])
def test_nothing_is_said_of_what_cannot_be_decoded_here(encodings: list[str]) -> None:
    assert not is_incomplete(b"anything", encodings)


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
def test_empty_body_is_whole(name: str) -> None:
    assert not is_incomplete(b"", [name], b"")


@pytest.mark.parametrize(
    ("raw", "name", "decoded"),
    [
        (compress(PAGE), "gzip", PAGE),
        (zlib.compress(PAGE), "deflate", PAGE),
        (b"whatever", "br", b"<p>some</p></BODY></html>\n<!-- cached -->"),
    ],
    ids=["length", "checksum", "closing tag"],
)
def test_what_is_seen_to_be_whole_is_not_decoded_again(
    monkeypatch: pytest.MonkeyPatch, raw: bytes, name: str, decoded: bytes
) -> None:
    monkeypatch.setattr("scrapy_backpressure._scrapy_body._run", None)
    assert not is_incomplete(raw, [name], decoded)


def test_decoding_a_bomb_takes_constant_memory() -> None:
    import tracemalloc

    for encode, name in ((compress, "gzip"), (zlib.compress, "deflate"), (brotli, "br")):
        bomb: Any = encode(b"a" * 30_000_000)
        tracemalloc.start()
        assert not is_incomplete(bomb, [name])
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
        tracemalloc.stop()


@given(
    raw=st.binary(),
    head=st.sampled_from([b"", b"\x1f\x8b\x08\x1e", b"\x78\x9c", b"\x28\xb5\x2f\xfd"]),
    name=st.sampled_from(["gzip", "deflate", "br", "zstd", "gzip, br"]),
)
def test_any_bytes_are_judged_without_an_error(raw: bytes, head: bytes, name: str) -> None:
    assert is_incomplete(head + raw, [name]) in (True, False)
