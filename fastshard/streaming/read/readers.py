"""Readers by format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastshard.streaming.read.base import Reader, parse_args
from fastshard.streaming.read.jsonl import JSONReader
from fastshard.streaming.read.mds import MDSReader
from fastshard.streaming.read.xsv import CSVReader, TSVReader, XSVReader

__all__ = ["READERS", "reader_from_json"]

READERS: dict[str, type[MDSReader | JSONReader | XSVReader]] = {
    "csv": CSVReader,
    "json": JSONReader,
    "mds": MDSReader,
    "tsv": TSVReader,
    "xsv": XSVReader,
}


def reader_from_json(
    dirname: str, split: str | None, obj: Mapping[str, Any], **options: Any
) -> Reader:
    """Return the reader of a shard of an index.

    Parameters
    ----------
    dirname : str
        Local directory of the dataset.
    split : str, optional
        Subdirectory that holds the index.
    obj : dict
        The shard's object in ``index.json``.
    **options
        Keyword arguments of `Reader`.

    Returns
    -------
    Reader
        Of the shard's format.

    Raises
    ------
    FormatError
        Version or format are others, a key is missing, or a value has another type
        than the format's, or another length.

    Examples
    --------
    >>> import json
    >>> from fastshard.streaming import reader_from_json
    >>> with open("dataset/index.json") as file:
    ...     shards = json.load(file)["shards"]
    >>> reader = reader_from_json("dataset", None, shards[0])
    >>> reader[7]
    {'id': 7, 'text': 'text 7'}
    """
    args = parse_args(None, dirname, split, obj)
    kind = READERS[obj["format"]]
    return kind(dirname=dirname, split=split, **args, **options)
