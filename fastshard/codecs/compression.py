"""The five compressions of shards: br, bz2, gz, snappy and zstd, with their levels.

A file is one stream without random access. Decompression is bounded by the raw size
that the index states: pieces of at most `PIECE_BYTES` are asked of a library, and the
first byte beyond the size is an error.

Output is that of mosaicml-streaming, byte for byte: its zstd compresses with worker
threads, which changes the blocks of files of some MiB. For br this needs the library
brotli; cramjam compresses a little differently.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from fastshard.codecs.libraries import import_library
from fastshard.errors import FormatError

__all__ = [
    "COMPRESSIONS",
    "INPUT_BYTES",
    "Codec",
    "join_pieces",
    "parse_compression",
]

PIECE_BYTES = 256 << 10  # bytes of output requested from a library
INPUT_BYTES = 64 << 10  # bytes given to a library, which copies the rest
LEVELS: dict[str, tuple[range, int]] = {  # and the default, by algorithm
    "br": (range(12), 11),
    "bz2": (range(1, 10), 9),
    "gz": (range(10), 9),
    "snappy": (range(0), 0),
    "zstd": (range(1, 23), 3),
}
FIRST_BYTES = 256 << 20  # initial memory for a result
SNAPPY_RATIO = 64  # above the format's largest: 64 bytes by a copy of 3
GZIP_TIME = slice(4, 8)  # bytes of a header
MEMORY = "<memory>"
EXTRA = "'fastshard[mds]'"  # has the libraries


class Decoder(Protocol):
    """Incremental decompression of one stream, as of `bz2.BZ2Decompressor`."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class Codec(NamedTuple):
    """A compression of shards.

    Attributes
    ----------
    algo : {"br", "bz2", "gz", "snappy", "zstd"}
    level : int
        Of snappy 0: it has no levels.
    """

    algo: str
    level: int

    @property
    def extension(self) -> str:
        """Suffix of compressed files, without a dot."""
        return self.algo

    def compress(self, data: bytes) -> bytes:
        """Compress data into one stream."""
        return COMPRESSORS[self.algo](data, self.level)

    def decompress(self, data: bytes, nbytes: int, path: str = MEMORY) -> bytes:
        """Decompress data to exactly `nbytes` bytes."""
        return join_pieces(self.iter_pieces([data], nbytes, path), nbytes, path)

    def iter_pieces(
        self,
        chunks: Iterable[bytes | memoryview],
        nbytes: int,
        path: str = MEMORY,
        *,
        exact: bool = True,
    ) -> Iterator[bytes]:
        """Decompress chunks of a file; yield pieces that are `nbytes` long together."""
        whole = WHOLE.get(self.algo)
        if whole is None or (self.algo == "br" and brotli_streams()):
            return _iter_streams(self.algo, chunks, nbytes, path, exact)
        return whole(chunks, nbytes, path, exact)

    def __str__(self) -> str:
        return f"{self.algo}:{self.level}"


def parse_compression(text: str, path: str | None = None) -> Codec:
    """Return the compression of a name such as ``"zstd"`` or ``"zstd:7"``."""
    if text not in COMPRESSIONS:
        reason = (
            f"{text!r} is not a supported compression algorithm: one of "
            f'{", ".join(LEVELS)}, with a level as in "zstd:7"'
        )
        raise ValueError(reason) if path is None else FormatError(reason, path, 0)
    algo, _, level = text.partition(":")
    return Codec(algo, int(level) if level else LEVELS[algo][1])


COMPRESSIONS = tuple(
    name
    for algo, (levels, _) in LEVELS.items()
    for name in (algo, *(f"{algo}:{level}" for level in levels))
)


def join_pieces(pieces: Iterator[bytes], nbytes: int, path: str = MEMORY) -> bytes:
    """Return pieces of `Codec.iter_pieces`, which are `nbytes` long, as one object."""
    from fastshard._core.io.source import allocate_bytes

    check_plausible(nbytes, path)
    first = next(pieces, b"")
    at = len(first)
    if at == nbytes:
        for _ in pieces:  # reads the stream to its end
            pass
        return first
    whole, out = allocate_bytes(min(nbytes, max(FIRST_BYTES, at)))
    out[:at] = first
    for piece in pieces:
        end = at + len(piece)
        if end > len(out):  # not by the size alone, which a hostile index states
            larger, room = allocate_bytes(min(nbytes, max(2 * len(out), end)))
            room[:at] = out[:at]
            whole, out = larger, room
        out[at:end] = piece
        at = end
    return whole


def check_plausible(nbytes: int, path: str) -> None:
    """Raise FormatError for a size that no machine can hold."""
    if not 0 <= nbytes < 1 << 48:
        raise FormatError(f"a raw size of {nbytes:,} bytes", path, 0)


def _iter_streams(
    algo: str,
    chunks: Iterable[bytes | memoryview],
    nbytes: int,
    path: str,
    exact: bool,
) -> Iterator[bytes]:
    """Decompress streams, one after the other, of libraries that yield pieces."""
    new_decoder = DECODERS[algo]()
    decoder: Decoder | None = None
    streams = 0
    left = nbytes
    end = 0  # of the input that was given to the library
    for data in _split_chunks(chunks):
        end += len(data)
        while decoder is not None or data:
            if decoder is None:
                if streams and algo == "br":
                    raise FormatError(
                        "bytes follow the compressed data", path, end - len(data)
                    )
                if streams and algo == "gz" and not (data := data.lstrip(b"\0")):
                    break  # gzip pads files with zeros
                decoder = new_decoder()
                streams += 1
            with _convert_errors(algo, path, end - len(data)):
                piece = decoder.decompress(data, min(PIECE_BYTES, left + 1))
            left -= len(piece)
            if left < 0:
                raise too_large(nbytes, path, end)
            if piece:
                yield piece
            if decoder.eof:
                data, decoder = decoder.unused_data, None
            elif decoder.needs_input:
                break
            else:
                data = b""
    if decoder is not None or not streams:
        raise FormatError("the compressed data end early", path, end)
    if left and exact:
        raise too_small(nbytes - left, nbytes, path, end)


def _split_chunks(chunks: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Yield chunks of at most `INPUT_BYTES`."""
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        for i in range(0, len(view), INPUT_BYTES):
            yield bytes(view[i : i + INPUT_BYTES])


def too_large(nbytes: int, path: str, at: int) -> FormatError:
    """Return the error of data that exceed their size."""
    return FormatError(
        f"more than the {nbytes:,} bytes that the index states", path, at
    )


def too_small(got: int, nbytes: int, path: str, at: int) -> FormatError:
    """Return the error of data that are shorter than the index states."""
    return FormatError(
        f"decompressed to {got:,} bytes; the index states {nbytes:,}", path, at
    )


@contextmanager
def _convert_errors(algo: str, path: str, at: int) -> Iterator[None]:
    """Convert errors of a library into a FormatError."""
    try:
        yield
    except (FormatError, MemoryError):
        raise
    except Exception as error:
        raise FormatError(f"{algo}: {error}", path, at) from error


# zstd


def _zstd() -> Any:
    if sys.version_info >= (3, 14):
        return importlib.import_module("compression.zstd")
    return import_library("backports.zstd", "backports.zstd is needed for zstd", EXTRA)


def _compress_zstd(data: bytes, level: int) -> bytes:
    zstd = _zstd()
    names = zstd.CompressionParameter
    options = {names.compression_level: level}
    if names.nb_workers.bounds()[1] > 0:
        options[names.nb_workers] = 1  # splits large inputs as upstream's library does
    compressed: bytes = zstd.compress(data, options=options)
    return compressed


# gz


class GzipDecoder:
    """A member of a gzip file, with the interface of `Decoder`."""

    def __init__(self) -> None:
        import zlib

        self._member = zlib.decompressobj(wbits=31)
        self._rest = b""  # input beyond the limit
        self._full = False

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def needs_input(self) -> bool:
        return not self._rest and not self._full

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece = self._member.decompress(self._rest + data, max_length)
        self._rest = self._member.unconsumed_tail
        self._full = len(piece) == max_length  # zlib may hold more output
        return piece


def _compress_gz(data: bytes, level: int) -> bytes:
    import gzip

    compressed = bytearray(gzip.compress(data, level))
    compressed[GZIP_TIME] = bytes(4)  # equal input gives equal files
    return bytes(compressed)


# bz2


def _compress_bz2(data: bytes, level: int) -> bytes:
    import bz2

    return bz2.compress(data, level)


def _new_bz2() -> Callable[[], Decoder]:
    import bz2

    return bz2.BZ2Decompressor


# br


def _find_brotli() -> Any:
    """Return the library brotli if it is installed and works without a GIL."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None  # importing it would enable the GIL
    try:
        return importlib.import_module("brotli")
    except ImportError:
        return None


def brotli_streams() -> bool:
    """Return whether a library is installed that limits the output of br."""
    brotli = _find_brotli()
    return hasattr(getattr(brotli, "Decompressor", None), "can_accept_more_data")


class BrotliDecoder:
    """A br stream, with the interface of `Decoder`."""

    unused_data = b""  # the library raises for bytes behind the stream

    def __init__(self) -> None:
        self._stream = _find_brotli().Decompressor()
        self._drained = False

    @property
    def eof(self) -> bool:
        finished: bool = self._stream.is_finished()
        return finished

    @property
    def needs_input(self) -> bool:
        return self._drained

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece: bytes = self._stream.process(data, output_buffer_limit=max_length)
        self._drained = not piece and self._stream.can_accept_more_data()
        return piece


def _compress_br(data: bytes, level: int) -> bytes:
    brotli = _find_brotli()
    if brotli is not None:
        compressed: bytes = brotli.compress(data, quality=level)
        return compressed
    cramjam = import_library("cramjam", "cramjam is needed for br", EXTRA)
    return bytes(cramjam.brotli.compress(data, level=level))


def _decompress_br(
    chunks: Iterable[bytes | memoryview], nbytes: int, path: str, exact: bool
) -> Iterator[bytes]:
    """Decompress br by cramjam, which ignores bytes behind the stream.

    Checked by a second decompression, without the last byte: it must fail.
    """
    cramjam = import_library("cramjam", "cramjam is needed for br", EXTRA)
    data = b"".join(chunks)
    check_plausible(nbytes, path)
    try:
        out = bytearray(nbytes)  # untouched pages take no memory
    except MemoryError:
        reason = f"a raw size of {nbytes:,} bytes does not fit in memory"
        raise FormatError(reason, path, 0) from None
    got = _into(cramjam.brotli.decompress_into, data, out, "br", path)
    if got < nbytes and exact:
        raise too_small(got, nbytes, path, len(data))
    yield bytes(memoryview(out)[:got])
    try:
        cramjam.brotli.decompress_into(memoryview(data)[:-1], out)
    except cramjam.DecompressionError:
        return
    raise FormatError("bytes follow the compressed data", path, len(data) - 1)


# snappy


def _compress_snappy(data: bytes, level: int) -> bytes:
    cramjam = import_library("cramjam", "cramjam is needed for snappy", EXTRA)
    return bytes(cramjam.snappy.compress_raw(data))


def _decompress_snappy(
    chunks: Iterable[bytes | memoryview], nbytes: int, path: str, exact: bool
) -> Iterator[bytes]:
    """Decompress the raw block format, which begins with the size of the result."""
    cramjam = import_library("cramjam", "cramjam is needed for snappy", EXTRA)
    data = b"".join(chunks)
    check_plausible(nbytes, path)
    with _convert_errors("snappy", path, 0):
        got = cramjam.snappy.decompress_raw_len(data)
    if got > nbytes:
        raise too_large(nbytes, path, 0)
    if got < nbytes:
        if exact:
            raise too_small(got, nbytes, path, 0)
        nbytes = got
    if nbytes > SNAPPY_RATIO * len(data):
        raise FormatError("the compressed data end early", path, len(data))
    out = bytearray(nbytes)
    _into(cramjam.snappy.decompress_raw_into, data, out, "snappy", path)
    yield bytes(out)


def _into(
    decompress: Callable[[bytes, bytearray], int],
    data: bytes,
    out: bytearray,
    algo: str,
    path: str,
) -> int:
    with _convert_errors(algo, path, 0):
        return decompress(data, out)


COMPRESSORS: dict[str, Callable[[bytes, int], bytes]] = {
    "br": _compress_br,
    "bz2": _compress_bz2,
    "gz": _compress_gz,
    "snappy": _compress_snappy,
    "zstd": _compress_zstd,
}
DECODERS: dict[str, Callable[[], Callable[[], Decoder]]] = {
    "br": lambda: BrotliDecoder,
    "bz2": _new_bz2,
    "gz": lambda: GzipDecoder,
    "zstd": lambda: _zstd().ZstdDecompressor,
}
# Algorithms whose libraries hold a whole file; br unless `brotli_streams`.
WHOLE: dict[
    str, Callable[[Iterable[bytes | memoryview], int, str, bool], Iterator[bytes]]
] = {"br": _decompress_br, "snappy": _decompress_snappy}
