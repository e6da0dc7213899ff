"""MosaicML Streaming shards: MDS, JSON, CSV, TSV and XSV, read and written.

Examples
--------
A writer makes shards and an ``index.json``; a reader has the samples of one shard.

>>> import json
>>> from fastshard.streaming import MDSWriter, reader_from_json
>>> with MDSWriter(out="dataset", columns={"id": "int", "text": "str"}) as writer:
...     for i in range(100):
...         writer.write({"id": i, "text": f"text {i}"})
>>> with open("dataset/index.json") as file:
...     shards = json.load(file)["shards"]
>>> reader = reader_from_json("dataset", None, shards[0])
>>> reader[7]
{'id': 7, 'text': 'text 7'}
>>> [sample["id"] for sample in reader[-3:]]
[97, 98, 99]
"""

from importlib import import_module
from sys import modules
from typing import Any

_HOMES = {  # names by their modules, which are imported at first use
    "encodings": "register_encoding",
    "index": "FileInfo",
    "installation": "install uninstall",
    "merge": "merge_index",
    "read.base": "JointReader Reader SplitReader",
    "read.jsonl": "JSONReader",
    "read.mds": "MDSReader",
    "read.readers": "reader_from_json",
    "read.xsv": "CSVReader TSVReader XSVReader",
    "rebuild": "rebuild_index",
    "samples": "StreamSample",
    "write.base": "JointWriter SplitWriter Writer",
    "write.jsonl": "JSONWriter",
    "write.mds": "MDSWriter",
    "write.xsv": "CSVWriter TSVWriter XSVWriter",
}
_MODULES = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _MODULES:
        from fastshard._util.hints import missing_name

        raise missing_name(name, modules[__name__])
    module = import_module(f"{__name__}.{_MODULES[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
