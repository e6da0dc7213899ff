"""Modules of mosaicml-streaming, with its names for our parts."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from functools import partial
from types import ModuleType

from fastshard import streaming as ours
from fastshard._core.streaming.reader import ReaderBase
from fastshard.codecs import compression, hashes
from fastshard.errors import FormatError
from fastshard.streaming.encodings import arrays, images, numbers, registry, rows, text

LARGEST = 1 << 20  # bytes of data that the tests compress


def replace() -> None:
    """Put modules of our names in the place of upstream's; writers, too."""
    streaming = importlib.import_module("streaming")
    for name in ("CSV", "JSON", "MDS", "TSV", "XSV"):
        setattr(streaming, f"{name}Writer", getattr(ours, f"{name}Writer"))
    for name, contents in modules().items():
        whole = f"streaming.base.{name}"
        parent = importlib.import_module(whole.rpartition(".")[0])
        module = ModuleType(whole)
        vars(module).update(contents)
        setattr(parent, whole.rpartition(".")[2], module)
        sys.modules[whole] = module


def modules() -> dict[str, dict[str, object]]:
    """Return the contents of modules below ``streaming.base``."""
    return {
        "array": {"Array": Array},
        "compression": COMPRESSION,
        "hashing": {
            "get_hash": hashes.compute_hash,
            "get_hashes": lambda: set(hashes.HASHES),
            "is_hash": lambda algo: algo in hashes.HASHES,
        },
        "format.mds.encodings": MDS,
        "format.json.encodings": {
            **{kind.title(): partial(JSONType, kind) for kind in rows.ROW_TYPES},
            "is_json_encoded": rows.is_json_encoded,
            "is_json_encoding": rows.is_json_encoding,
        },
        "format.xsv.encodings": {
            **{kind.title(): partial(XSVType, kind) for kind in rows.ROW_TYPES},
            "is_xsv_encoding": rows.is_xsv_encoding,
            "xsv_decode": rows.xsv_decode,
            "xsv_encode": rows.xsv_encode,
        },
    }


class Array(ReaderBase):
    """Our indexing, with the method by which the tests make lists of positions."""

    def _each_slice_index(self, at: slice) -> Iterator[int]:
        return iter(range(*at.indices(self.size)))


class Algorithm:
    """A compression by algorithm and level."""

    def __init__(self, algo: str, level: int | None = None) -> None:
        self.codec = compression.parse_compression(
            algo if level is None else f"{algo}:{level}"
        )
        self.level = self.codec.level
        self.levels = list(compression.LEVELS[algo][0])
        self.extension = self.codec.extension
        self.compress = self.codec.compress

    def decompress(self, data: bytes) -> bytes:
        """Decompress data of any size: the error of a wrong one tells the right one."""
        try:
            return self.codec.decompress(data, LARGEST)
        except FormatError as error:
            size = re.search(r"decompressed to ([\d,]+) bytes", str(error))
            if size is None:
                raise
            return self.codec.decompress(data, int(size[1].replace(",", "")))


def compress(algo: str | None, data: bytes) -> bytes:
    return of_name(algo).compress(data) if algo else data


def decompress(algo: str | None, data: bytes) -> bytes:
    return of_name(algo).decompress(data) if algo else data


def of_name(name: str) -> Algorithm:
    codec = compression.parse_compression(name)
    return Algorithm(codec.algo, codec.level or None)


COMPRESSION = {
    "Brotli": partial(Algorithm, "br"),
    "Bzip2": partial(Algorithm, "bz2"),
    "Gzip": partial(Algorithm, "gz"),
    "Snappy": partial(Algorithm, "snappy"),
    "Zstandard": partial(Algorithm, "zstd"),
    "compress": compress,
    "decompress": decompress,
    "get_compression_extension": lambda algo: (
        compression.parse_compression(algo).extension
    ),
    "is_compression": lambda algo: algo in compression.COMPRESSIONS,
}
MDS = {
    "Bytes": text.BytesEncoding,
    "Str": text.StrEncoding,
    "Int": numbers.IntEncoding,
    "NDArray": arrays.NDArrayEncoding,
    **{
        name: partial(numbers.ScalarEncoding, name.lower())
        for name in (
            *("UInt8", "UInt16", "UInt32", "UInt64"),
            *("Int8", "Int16", "Int32", "Int64"),
            *("Float16", "Float32", "Float64"),
        )
    },
    "StrInt": numbers.StrIntEncoding,
    "StrFloat": numbers.StrFloatEncoding,
    "StrDecimal": numbers.StrDecimalEncoding,
    "PIL": images.PILEncoding,
    "JPEG": images.JPEGEncoding,
    "JPEGArray": images.JPEGArrayEncoding,
    "PNG": images.PNGEncoding,
    "PILList": partial(images.ImageListEncoding, images.PILEncoding()),
    "JPEGList": partial(images.ImageListEncoding, images.JPEGEncoding()),
    "PNGList": partial(images.ImageListEncoding, images.PNGEncoding()),
    "Pickle": text.PickleEncoding,
    "JSON": text.JSONEncoding,
    **{
        name: getattr(registry, name)
        for name in (
            "get_mds_encoded_size",
            "get_mds_encodings",
            "is_mds_encoding",
            "mds_decode",
            "mds_encode",
        )
    },
}


class JSONType:
    """The check of values of a JSON column."""

    def __init__(self, kind: str) -> None:
        self.is_encoded = partial(rows.is_json_encoded, kind)


class XSVType:
    """The text of values of an XSV column."""

    def __init__(self, kind: str) -> None:
        self.encode = partial(rows.xsv_encode, kind)
        self.decode = partial(rows.xsv_decode, kind)
