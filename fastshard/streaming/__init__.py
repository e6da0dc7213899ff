"""MosaicML Streaming shards: MDS, JSON, CSV, TSV and XSV, read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastshard.streaming.encodings import register_encoding
    from fastshard.streaming.index import FileInfo
    from fastshard.streaming.read.base import JointReader, Reader, SplitReader
    from fastshard.streaming.read.jsonl import JSONReader
    from fastshard.streaming.read.mds import MDSReader
    from fastshard.streaming.read.readers import reader_from_json
    from fastshard.streaming.read.xsv import CSVReader, TSVReader, XSVReader
    from fastshard.streaming.write.base import JointWriter, SplitWriter, Writer
    from fastshard.streaming.write.jsonl import JSONWriter
    from fastshard.streaming.write.mds import MDSWriter
    from fastshard.streaming.write.xsv import CSVWriter, TSVWriter, XSVWriter

__all__ = [
    "CSVReader",
    "CSVWriter",
    "FileInfo",
    "JSONReader",
    "JSONWriter",
    "JointReader",
    "JointWriter",
    "MDSReader",
    "MDSWriter",
    "Reader",
    "SplitReader",
    "SplitWriter",
    "TSVReader",
    "TSVWriter",
    "Writer",
    "XSVReader",
    "XSVWriter",
    "reader_from_json",
    "register_encoding",
]

MODULES = {  # not named as their contents, which they would hide
    "CSVWriter": "write.xsv",
    "FileInfo": "index",
    "JSONWriter": "write.jsonl",
    "JointWriter": "write.base",
    "MDSWriter": "write.mds",
    "SplitWriter": "write.base",
    "TSVWriter": "write.xsv",
    "Writer": "write.base",
    "reader_from_json": "read.readers",
    "SplitReader": "read.base",
    "JointReader": "read.base",
    "Reader": "read.base",
    "XSVReader": "read.xsv",
    "TSVReader": "read.xsv",
    "CSVReader": "read.xsv",
    "JSONReader": "read.jsonl",
    "MDSReader": "read.mds",
    "XSVWriter": "write.xsv",
    "register_encoding": "encodings",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"{__name__}.{MODULES[name]}")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
