"""Reader of JSON shards."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from fastshard._core.streaming.reader import OpenRows
from fastshard._core.streaming.text_rows import JsonRows, JsonSchema
from fastshard.streaming.index import FileInfo
from fastshard.streaming.read.base import SplitReader, parse_args
from fastshard.streaming.read.schemas import json_schema

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["JSONReader"]

EMPTY = b"\0\0\0\0\0\0\0\0{}"  # the meta file of a shard without samples


class JSONReader(SplitReader):
    r"""Random access to the samples of a JSON shard.

    Rows follow the rules of ``json.loads``: NaN, Infinity, integers of any size.

    Parameters
    ----------
    dirname, split
        As for `Reader`.
    columns : dict of str to str
        Encodings by name.
    compression, hashes
        As for `Reader`.
    newline : str
        End of each line.
    raw_data, raw_meta : FileInfo
        The files.
    samples, size_limit
        As for `Reader`.
    zip_data, zip_meta : FileInfo, optional
        Their compressed forms.
    **options
        Keyword arguments of `Reader`.

    Examples
    --------
    >>> import json
    >>> from fastshard.streaming import JSONReader, JSONWriter
    >>> with JSONWriter(out="lines", columns={"n": "int", "x": "float"}) as writer:
    ...     writer.write({"n": 10**30, "x": float("inf")})
    >>> with open("lines/index.json") as file:
    ...     shard = json.load(file)["shards"][0]
    >>> reader = JSONReader.from_json("lines", None, shard)
    >>> reader[0]
    {'n': 1000000000000000000000000000000, 'x': inf}
    >>> reader.get_sample_data(0)
    b'{"n": 1000000000000000000000000000000, "x": Infinity}\n'
    """

    def __init__(
        self,
        dirname: str,
        split: str | None,
        columns: dict[str, str],
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
        self.columns = columns
        self.newline = newline

    @classmethod
    def from_json(
        cls, dirname: str, split: str | None, obj: Mapping[str, Any], **options: Any
    ) -> Self:
        """Return the reader of a shard of an index; see `MDSReader.from_json`."""
        return cls(
            dirname=dirname,
            split=split,
            **parse_args("json", dirname, split, obj),
            **options,
        )

    def decode_sample(self, data: Buffer) -> dict[str, Any]:
        """Decode a sample; see `Reader.decode_sample`."""
        return self._decode(data)

    def get_sample_data(self, idx: int) -> bytes:
        """Return a sample's line, with its end; see `Reader.get_sample_data`."""
        return self._sample_bytes(self._check_position(idx))

    def _schema(self) -> JsonSchema:
        return json_schema(tuple(self.columns.items()), self.newline)

    def _make_rows(self) -> JsonRows:
        path = os.path.join(self.dirname, self.split, self.raw_data.basename)
        return JsonRows(path, self._schema(), path, EMPTY, 0, 0)

    def _open_rows(self) -> OpenRows:
        meta_path, meta = self._open_meta()
        opened = self._open_file(self.raw_data, self.zip_data)
        path = os.path.join(self.dirname, self.split, self.raw_data.basename)
        schema = self._schema()
        nbytes = self.raw_data.bytes
        rows = JsonRows(path, schema, meta_path, meta, nbytes, self.samples)
        opened.set_rows(rows, schema.mask(self.fields), self.copy)
        return opened
