"""Bodies as they leave the downloader: the beginning of a compressed one, and whether it is whole.

Touches the private names ``scrapy.utils._compression.brotli``, ``.zstandard`` and ``.zstd``, to
use whichever library Scrapy itself decodes with. Checked on Scrapy 2.14, 2.16, 2.18 and 2.19.
"""

from __future__ import annotations

import zlib
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy.utils import _compression

if TYPE_CHECKING:
    from collections.abc import Callable

_GZIP = 31
_ZLIB = 15
_RAW = -15
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_CHUNK = 65_536
_TAIL = 512
"""Bytes at the end of a page within which its closing tag is looked for."""


def codings(encodings: list[str]) -> list[str]:
    """The codings that values of ``Content-Encoding`` name, in the order of their application."""
    names = [name.strip().lower() for value in encodings for name in value.split(",")]
    return [name for name in names if name and name != "identity"]


def body_prefix(body: bytes, encodings: list[str], limit: int) -> bytes:
    """Return at most ``limit`` bytes of the decoded ``body``.

    ``encodings`` are the values of ``Content-Encoding``. A body that cannot be decoded (unknown
    or several encodings, a library that is missing, broken data) gives ``b""``; one that is
    not compressed although a header says so gives its own beginning. Never raises.
    """
    names = codings(encodings)
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


def gzip_size(raw: bytes) -> int:
    """The decoded size that a gzip stream ends with, modulo 2**32."""
    return int.from_bytes(raw[-4:], "little")


# -- whether it is whole -------------------------------------------------------------------------


def is_incomplete(raw: bytes, encodings: list[str], decoded: bytes | None = None) -> bool:
    """Whether the content of ``raw`` is surely not whole: its stream breaks off, or is broken.

    A stream whose content is whole is a page, whatever is missing or wrong behind it: the checksum
    and the length at the end of gzip and zlib. So is an empty body, and one in a coding that is
    not known here, of which nothing can be said.

    ``decoded`` is what decoding it gave, if that is known. Where it shows that the stream is whole
    (by the length at the end of gzip, the checksum of zlib, the closing tag of a page), nothing
    is decompressed; else the stream is, in constant memory. Never raises.
    """
    names = codings(encodings)
    if not raw or not names:
        return False
    if decoded is not None and len(names) == 1 and _ends_as_it_should(raw, names[0], decoded):
        return False
    # The last coding was applied last, so it is the outer one.
    for position in range(len(names) - 1, -1, -1):
        keep = position > 0
        try:
            whole, raw = _run(names[position], raw, keep)
        except _Unknown:
            return False
        except Exception:  # each library has its own
            return True
        if not whole:
            return True
    return False


class _Unknown(Exception):
    """A coding that nothing here can decode."""


def _ends_as_it_should(raw: bytes, name: str, decoded: bytes) -> bool:
    is_gzip = name in ("gzip", "x-gzip") and len(raw) >= 18
    if is_gzip and gzip_size(raw) == len(decoded) & 0xFFFFFFFF:
        return True
    if name == "deflate" and zlib.adler32(decoded) == int.from_bytes(raw[-4:], "big"):
        return True
    return b"</html" in decoded[-_TAIL:].lower()


def _run(name: str, raw: bytes, keep: bool) -> tuple[bool, bytes]:
    """Decode a stream; whether its content has an end, and the content if that is to be kept."""
    if name in ("gzip", "x-gzip"):
        return _run_gzip(raw, keep)
    if name == "deflate":
        return _run_deflate(raw, keep)
    if name == "br" and (brotli := getattr(_compression, "brotli", None)) is not None:
        return _run_brotli(brotli, raw, keep)
    if name == "zstd":
        if (zstd := getattr(_compression, "zstd", None)) is not None:
            return _run_zstd(zstd.ZstdDecompressor, raw, keep)
        if (zstandard := getattr(_compression, "zstandard", None)) is not None:
            return _run_zstd(zstandard.ZstdDecompressor().decompressobj, raw, keep)
    raise _Unknown


class _Inflated(NamedTuple):
    whole: bool
    content: bytes
    end: int
    """Where the stream ends."""
    crc: int


def _run_raw_deflate(raw: bytes, start: int, keep: bool) -> _Inflated:
    """Inflate from *start*."""
    inflater = zlib.decompressobj(_RAW)
    parts: list[bytes] = []
    position, crc = start, 0
    while position < len(raw) and not inflater.eof:
        data = raw[position : position + _CHUNK]
        position += len(data)
        while data and not inflater.eof:
            part = inflater.decompress(data, _CHUNK)
            crc = zlib.crc32(part, crc)
            if keep:
                parts.append(part)
            data = inflater.unconsumed_tail
    return _Inflated(inflater.eof, b"".join(parts), position - len(inflater.unused_data), crc)


def _run_gzip(raw: bytes, keep: bool) -> tuple[bool, bytes]:
    position, parts = 0, []
    while True:
        found = _run_raw_deflate(raw, _after_gzip_header(raw, position), keep)
        parts.append(found.content)
        position = found.end + 8  # its checksum and its length
        if found.whole and raw.startswith(_GZIP_MAGIC, position):
            continue
        # Anything else behind the last member is no part of the stream, unless the checksum says
        # that the stream has come to an end where it should not.
        checksum = int.from_bytes(raw[found.end : found.end + 4], "little")
        whole = found.whole and (position >= len(raw) or checksum == found.crc)
        return whole, b"".join(parts)


def _after_gzip_header(raw: bytes, start: int) -> int:
    """Where the data of a gzip member begins (RFC 1952, section 2.3).

    :raises ValueError: there is no whole header.
    """
    if raw[start : start + 3] != _GZIP_MAGIC + b"\x08" or len(raw) < start + 10:
        raise ValueError("no header of gzip")
    flags, position = raw[start + 3], start + 10
    if flags & 4:  # extra fields
        position += 2 + int.from_bytes(raw[position : position + 2], "little")
    for flag in (8, 16):  # a name, a comment
        if flags & flag:
            position = raw.index(b"\0", position) + 1
    if flags & 2:  # a checksum of the header
        position += 2
    return position


def _run_deflate(raw: bytes, keep: bool) -> tuple[bool, bytes]:
    # With a header of zlib, as it should be, or without, as some servers send it.
    starts = [0] if raw[0] & 15 != 8 or int.from_bytes(raw[:2], "big") % 31 else [2, 0]
    for start in starts:
        try:
            found = _run_raw_deflate(raw, start, keep)
        except zlib.error:
            continue
        if found.whole:
            return True, found.content
    return False, b""


def _run_brotli(brotli: Any, raw: bytes, keep: bool) -> tuple[bool, bytes]:
    decoder = brotli.Decompressor()
    process: Callable[..., bytes] = decoder.process
    parts: list[bytes] = []
    bounded = True
    try:
        part = process(raw, output_buffer_limit=_CHUNK)
    except TypeError:  # before 1.2, all at once
        bounded, part = False, process(raw)
    while part:
        if keep:
            parts.append(part)
        if decoder.is_finished() or not bounded:
            break
        part = process(b"", output_buffer_limit=_CHUNK)
    return bool(decoder.is_finished()), b"".join(parts)


def _run_zstd(new: Callable[[], Any], raw: bytes, keep: bool) -> tuple[bool, bytes]:
    parts: list[bytes] = []
    while raw:
        decoder = new()
        bounded = hasattr(decoder, "needs_input")
        part = decoder.decompress(raw, max_length=_CHUNK) if bounded else decoder.decompress(raw)
        while True:
            if keep:
                parts.append(part)
            if not bounded or decoder.eof or decoder.needs_input:
                break
            part = decoder.decompress(b"", max_length=_CHUNK)
        if not getattr(decoder, "eof", True):
            return False, b"".join(parts)
        raw = decoder.unused_data
        if not raw.startswith(_ZSTD_MAGIC):  # anything else behind the last frame
            break
    return True, b"".join(parts)
