"""Writer of JSON shards."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastshard.streaming.encodings.rows import is_json_encoded, is_json_encoding
from fastshard.streaming.write.base import (
    MAX_OFFSET,
    SplitWriter,
    dump_config,
    offsets_of,
)

__all__ = ["JSONWriter", "encode_meta"]


class JSONWriter(SplitWriter):
    """Writer of JSON shards, a line a sample.

    Parameters
    ----------
    columns : mapping of str to str
        ``"str"``, ``"int"`` or ``"float"`` by the columns' names.
    newline : str
        Text behind each sample.
    out : str or path-like
        Directory, which must be empty or not exist.
    keep_local : bool
        Accepted for mosaicml-streaming's sake: without an upload files are kept.
    compression : str, optional
        ``"br"``, ``"bz2"``, ``"gz"``, ``"snappy"`` or ``"zstd"``, with a level as in
        ``"zstd:7"``.
    hashes : sequence of str, optional
        Names of hashes to store in the index, sorted.
    size_limit : int, str or None
        Bytes of a shard's data, at most, before compression: ``"64mb"``. None: one
        shard, of less than 4 GiB.
    **kwargs : Any
        ``exist_ok=True`` removes the directory with all that is in it, if it exists.
        ``progress_bar``, ``max_workers`` and ``retry`` are accepted, for they belong to
        mosaicml-streaming's uploads.

    Raises
    ------
    ValueError
        An argument is invalid, or `out` is a URL.
    AssertionError
        An encoding does not exist.
    FileExistsError
        The directory is not empty.
    MissingLibraryError
        The library of the compression or of a hash is not installed.

    Examples
    --------
    >>> from fastshard.streaming import JSONWriter
    >>> with JSONWriter(columns={"text": "str", "label": "int"}, out="rows") as writer:
    ...     writer.write({"text": "one", "label": 1})
    >>> from pathlib import Path
    >>> Path("rows/shard.00000.json").read_text()
    '{"label": 1, "text": "one"}\\n'
    """

    format = "json"
    max_shard_bytes = MAX_OFFSET

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        newline: str = "\n",
        out: str | os.PathLike[str],
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        for name, encoding in columns.items():
            if not is_json_encoding(encoding):
                raise AssertionError(f"column {name!r} has no encoding {encoding!r}")
        super().__init__(
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            **kwargs,
        )
        self.columns = columns
        self.newline = newline
        self._columns = [
            (name, json.dumps(name) + ": ", columns[name]) for name in sorted(columns)
        ]

    def encode_sample(self, sample: Mapping[str, Any]) -> bytes:
        """Return the line of a sample.

        Parameters
        ----------
        sample : mapping of str to object
            The values by column.

        Raises
        ------
        KeyError
            A column is missing.
        AttributeError
            A value has another type than its column.

        Examples
        --------
        >>> from fastshard.streaming import JSONWriter
        >>> writer = JSONWriter(columns={"a": "float"}, out="rows")
        >>> writer.encode_sample({"a": 0.5, "b": "no column"})
        b'{"a": 0.5}\\n'
        """
        parts = []
        for name, head, encoding in self._columns:
            value = sample[name]
            try:
                is_json_encoded(encoding, value)
            except AttributeError as error:
                error.add_note(f"encoding column {name!r}")
                raise
            parts.append(head + TEXTS[encoding](value))
        return ("{" + ", ".join(parts) + "}" + self.newline).encode()

    def get_config(self) -> dict[str, Any]:
        """Return the configuration of each shard for the index.

        Examples
        --------
        >>> from fastshard.streaming import JSONWriter
        >>> writer = JSONWriter(columns={"a": "float"}, out="rows")
        >>> writer.get_config()["columns"]
        {'a': 'float'}
        """
        config = super().get_config()
        return {**config, "columns": dict(self.columns), "newline": self.newline}

    def encode_split_shard(self) -> tuple[bytes, bytes]:
        """Return the files of a shard of `new_samples`, data and meta.

        Returns
        -------
        data, meta : bytes

        Raises
        ------
        ValueError
            The data would exceed 4 GiB.

        Examples
        --------
        >>> from fastshard.streaming import JSONWriter
        >>> with JSONWriter(columns={"a": "float"}, out="rows") as writer:
        ...     writer.write({"a": 0.5})
        ...     data, meta = writer.encode_split_shard()
        >>> data, meta[:4]
        (b'{"a": 0.5}\\n', b'\\x01\\x00\\x00\\x00')
        """
        meta = encode_meta(self.new_samples, 0, self.get_config())
        return b"".join(self.new_samples), meta


def _int_text(value: int) -> str:
    if value is True or value is False:
        return "true" if value else "false"
    return int.__repr__(value)


def _float_text(value: float) -> str:
    if math.isfinite(value):
        return float.__repr__(value)
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


# The text of a value in JSON, as `json.dumps` writes it.
TEXTS: dict[str, Callable[[Any], str]] = {
    "str": json.encoder.encode_basestring_ascii,
    "int": _int_text,
    "float": _float_text,
}


def encode_meta(
    samples: Sequence[bytes], start: int, config: Mapping[str, Any]
) -> bytes:
    """Return the meta file of samples of which the first is at `start` in the data."""
    offsets = offsets_of(samples, start).tobytes()
    return struct.pack("<I", len(samples)) + offsets + dump_config(config)
