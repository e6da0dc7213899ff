"""Readers of XSV shards: values between separators, of any kind or of CSV and TSV."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from fastshard._core.streaming.reader import OpenRows
from fastshard._core.streaming.text_rows import XsvRows, XsvSchema
from fastshard.streaming.index import FileInfo
from fastshard.streaming.read.base import SplitReader, parse_args
from fastshard.streaming.read.schemas import xsv_schema

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["CSVReader", "TSVReader", "XSVReader"]


class XSVReader(SplitReader):
    """Random access to the samples of an XSV shard.

    There are no quotes: a value has neither the separator nor the newline in it.

    Parameters
    ----------
    dirname, split
        As for `Reader`.
    column_encodings, column_names : list of str
        ``"str"``, ``"int"`` or ``"float"`` of each column, and its name.
    compression, hashes
        As for `Reader`.
    newline : str
        End of each row.
    raw_data, raw_meta : FileInfo
        The files.
    samples
        As for `Reader`.
    separator : str
        Between the values of a row.
    size_limit
        As for `Reader`.
    zip_data, zip_meta : FileInfo, optional
        Their compressed forms.
    lenient : bool
        Drop the values of a row beyond its columns, as mosaicml-streaming does.
    **options
        Keyword arguments of `Reader`.

    Examples
    --------
    >>> import json
    >>> from fastshard.streaming import XSVReader, XSVWriter
    >>> columns = {"n": "int", "text": "str"}
    >>> with XSVWriter(out="rows", columns=columns, separator=" | ") as writer:
    ...     writer.write({"n": 1, "text": "one, two"})
    >>> with open("rows/index.json") as file:
    ...     shard = json.load(file)["shards"][0]
    >>> XSVReader.from_json("rows", None, shard)[0]
    {'n': 1, 'text': 'one, two'}
    """

    format: ClassVar[str] = "xsv"

    def __init__(
        self,
        dirname: str,
        split: str | None,
        column_encodings: list[str],
        column_names: list[str],
        compression: str | None,
        hashes: list[str],
        newline: str,
        raw_data: FileInfo,
        raw_meta: FileInfo,
        samples: int,
        separator: str,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
        zip_meta: FileInfo | None,
        *,
        lenient: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            dirname,
            split,
            compression,
            hashes,
            raw_data,
            raw_meta,
            samples,
            size_limit,
            zip_data,
            zip_meta,
            **options,
        )
        self.column_encodings = column_encodings
        self.column_names = column_names
        self.newline = newline
        self.separator = separator
        self.lenient = lenient

    @classmethod
    def from_json(
        cls, dirname: str, split: str | None, obj: Mapping[str, Any], **options: Any
    ) -> Self:
        """Return the reader of a shard of an index; see `MDSReader.from_json`."""
        return cls(
            dirname=dirname,
            split=split,
            **parse_args(cls.format, dirname, split, obj),
            **options,
        )

    def decode_sample(self, data: Buffer) -> dict[str, Any]:
        """Decode a sample; see `Reader.decode_sample`."""
        return self._decode(data)

    def get_sample_data(self, idx: int) -> bytes:
        """Return a sample's row, with its end; see `Reader.get_sample_data`."""
        return self._sample_bytes(self._check_position(idx))

    def _schema(self) -> XsvSchema:
        return xsv_schema(
            tuple(self.column_names),
            tuple(self.column_encodings),
            self.newline,
            self.separator,
            self.lenient,
        )

    def _make_rows(self) -> XsvRows:
        path = os.path.join(self.dirname, self.split, self.raw_data.basename)
        header = (self.separator.join(self.column_names) + self.newline).encode()
        empty = bytes(4) + len(header).to_bytes(4, "little") + b"{}"
        return XsvRows(path, self._schema(), path, empty, len(header), 0)

    def _open_rows(self) -> OpenRows:
        meta_path, meta = self._open_meta()
        opened = self._open_file(self.raw_data, self.zip_data)
        path = os.path.join(self.dirname, self.split, self.raw_data.basename)
        schema = self._schema()
        first = int.from_bytes(meta[4:8], "little")  # the end of the header
        rows = XsvRows(
            path,
            schema,
            meta_path,
            meta,
            self.raw_data.bytes,
            self.samples,
            opened.view(first),
        )
        opened.set_rows(rows, schema.mask(self.fields), self.copy)
        return opened


class SeparatedReader(XSVReader):
    """Base of readers whose format has one separator.

    Parameters
    ----------
    dirname, split, column_encodings, column_names, compression, hashes, newline
        As for `XSVReader`.
    raw_data, raw_meta, samples, size_limit, zip_data, zip_meta
        As for `XSVReader`.
    **options
        Keyword arguments of `XSVReader`.
    """

    separator: str

    def __init__(
        self,
        dirname: str,
        split: str | None,
        column_encodings: list[str],
        column_names: list[str],
        compression: str | None,
        hashes: list[str],
        newline: str,
        raw_data: FileInfo,
        raw_meta: FileInfo,
        samples: int,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
        zip_meta: FileInfo | None,
        **options: Any,
    ) -> None:
        super().__init__(
            dirname,
            split,
            column_encodings,
            column_names,
            compression,
            hashes,
            newline,
            raw_data,
            raw_meta,
            samples,
            self.separator,
            size_limit,
            zip_data,
            zip_meta,
            **options,
        )


class CSVReader(SeparatedReader):
    """Random access to the samples of a CSV shard.

    Parameters
    ----------
    dirname, split, column_encodings, column_names, compression, hashes, newline
        As for `XSVReader`.
    raw_data, raw_meta, samples, size_limit, zip_data, zip_meta
        As for `XSVReader`.
    **options
        Keyword arguments of `XSVReader`.
    """

    format = "csv"
    separator = ","


class TSVReader(SeparatedReader):
    """Random access to the samples of a TSV shard.

    Parameters
    ----------
    dirname, split, column_encodings, column_names, compression, hashes, newline
        As for `XSVReader`.
    raw_data, raw_meta, samples, size_limit, zip_data, zip_meta
        As for `XSVReader`.
    **options
        Keyword arguments of `XSVReader`.
    """

    format = "tsv"
    separator = "\t"
