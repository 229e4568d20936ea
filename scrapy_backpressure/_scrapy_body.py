"""Bodies as they leave the downloader: the beginning of a compressed one, and whether it is whole.

Touches the private names ``scrapy.utils._compression.brotli``, ``.zstandard`` and ``.zstd``, to
use whichever library Scrapy itself decodes with. Checked on Scrapy 2.14, 2.16, 2.18 and 2.19.
"""

from __future__ import annotations

import zlib
from io import BytesIO
from typing import Any

from scrapy.utils import _compression

_GZIP = 31
_ZLIB = 15
_RAW = -15
_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK = 16_384


def body_prefix(body: bytes, encodings: list[str], limit: int) -> bytes:
    """Return at most ``limit`` bytes of the decoded ``body``.

    ``encodings`` are the values of ``Content-Encoding``. A body that cannot be decoded (unknown
    or several encodings, a library that is missing, broken data) gives ``b""``; one that is
    not compressed although a header says so gives its own beginning. Never raises.
    """
    names = [name.strip().lower() for value in encodings for name in value.split(",")]
    names = [name for name in names if name and name != "identity"]
    if not names:
        return body[:limit]
    if len(names) > 1:
        return b""
    name = names[0]
    try:
        if name in ("gzip", "x-gzip"):
            if body[:2] != _GZIP_MAGIC:
                return body[:limit]
            return zlib.decompressobj(_GZIP).decompress(body, limit)
        if name == "deflate":
            return _inflate(body, limit)
        if name == "br":
            return _unbrotli(body, limit)
        if name == "zstd":
            return _unzstd(body, limit)
    except Exception:  # each library has its own, and a missing one an ImportError or NameError
        return b""
    return b""


def _inflate(body: bytes, limit: int) -> bytes:
    try:
        return zlib.decompressobj(_ZLIB).decompress(body, limit)
    except zlib.error:
        return zlib.decompressobj(_RAW).decompress(body, limit)


def _unbrotli(body: bytes, limit: int) -> bytes:
    brotli: Any = getattr(_compression, "brotli", None)
    if brotli is None:
        return b""
    decoded: bytes = brotli.Decompressor().process(body, output_buffer_limit=limit)
    return decoded[:limit]


def _unzstd(body: bytes, limit: int) -> bytes:
    stream = BytesIO(body)
    if (zstd := getattr(_compression, "zstd", None)) is not None:
        reader: Any = zstd.ZstdFile(stream)
    elif (zstandard := getattr(_compression, "zstandard", None)) is not None:
        reader = zstandard.ZstdDecompressor().stream_reader(stream)
    else:
        return b""
    decoded: bytes = reader.read(limit)
    return decoded


def is_truncated_gzip(raw: bytes, decoded_length: int) -> bool:
    """Whether ``raw``, a gzip stream, ends before its end.

    ``decoded_length`` is the number of bytes that decoding it gave. When that agrees with the
    length at the end of the stream (RFC 1952, ISIZE), nothing is decompressed; else the stream
    is, in constant memory. Several members, and anything after the last one, are fine; what is
    empty, no gzip or corrupt is not truncated.
    """
    if not raw.startswith(_GZIP_MAGIC):
        return False
    if len(raw) >= 18 and gzip_size(raw) == decoded_length & 0xFFFFFFFF:
        return False
    return gzip_is_cut(raw)


def gzip_is_cut(raw: bytes) -> bool:
    """Decompress ``raw`` in constant memory to see whether its last gzip member has an end."""
    member = zlib.decompressobj(_GZIP)
    position = 0
    try:
        while position < len(raw):
            chunk = raw[position : position + _CHUNK]
            position += len(chunk)
            member.decompress(chunk)
            if member.eof:
                position -= len(member.unused_data)
                if not raw.startswith(_GZIP_MAGIC, position):
                    return False
                member = zlib.decompressobj(_GZIP)
    except zlib.error:
        return False
    return True


def gzip_size(raw: bytes) -> int:
    """The decoded size that a gzip stream ends with, modulo 2**32."""
    return int.from_bytes(raw[-4:], "little")
