"""Writers of CSV, TSV and XSV shards."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fastshard.streaming.encodings.rows import ROW_TYPES, is_xsv_encoding, xsv_encode
from fastshard.streaming.write.base import MAX_OFFSET, SplitWriter
from fastshard.streaming.write.jsonl import encode_meta

__all__ = ["CSVWriter", "TSVWriter", "XSVWriter"]


class XSVWriter(SplitWriter):
    """Writer of lines of text values between separators, with a header line.

    Nothing is quoted: a value that contains the separator or the newline is refused.

    Parameters
    ----------
    columns : mapping of str to str
        ``"str"``, ``"int"`` or ``"float"`` by the columns' names.
    separator : str
        Text between values.
    newline : str
        Text behind each line.
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
        Bytes of a shard's lines, at most, before compression: ``"64mb"``. None: one
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
        An encoding does not exist, or a name contains the separator or the newline.
    FileExistsError
        The directory is not empty.
    MissingLibraryError
        The library of the compression or of a hash is not installed.

    Examples
    --------
    >>> from fastshard.streaming import XSVWriter
    >>> columns = {"text": "str", "label": "int"}
    >>> with XSVWriter(columns=columns, separator=" | ", out="rows") as writer:
    ...     writer.write({"text": "one", "label": 1})
    >>> from pathlib import Path
    >>> Path("rows/shard.00000.xsv").read_text()
    'label | text\\n1 | one\\n'
    """

    format = "xsv"
    max_shard_bytes = MAX_OFFSET

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        separator: str,
        newline: str = "\n",
        out: str | os.PathLike[str],
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        self.columns = columns
        self.column_names = sorted(columns)
        self.column_encodings = [columns[name] for name in self.column_names]
        for name, encoding in zip(
            self.column_names, self.column_encodings, strict=True
        ):
            _check_text(name, separator, newline, name)
            if not is_xsv_encoding(encoding):
                raise AssertionError(f"column {name!r} has no encoding {encoding!r}")
        super().__init__(
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            **kwargs,
        )
        self.separator = separator
        self.newline = newline
        self._columns = [
            (name, columns[name], ROW_TYPES[columns[name]]) for name in sorted(columns)
        ]
        self._uncounted_bytes = len(self._header())

    def _header(self) -> bytes:
        return (self.separator.join(self.column_names) + self.newline).encode()

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
        AssertionError
            A value contains the separator or the newline.

        Examples
        --------
        >>> from fastshard.streaming import CSVWriter
        >>> writer = CSVWriter(columns={"a": "float", "b": "str"}, out="rows")
        >>> writer.encode_sample({"a": 0.5, "b": "x"})
        b'0.5,x\\n'
        """
        texts = []
        for name, encoding, kind in self._columns:
            value = sample[name]
            if kind is str and type(value) is str:
                texts.append(value)
                continue
            try:
                texts.append(xsv_encode(encoding, value))
            except AttributeError as error:
                error.add_note(f"encoding column {name!r}")
                raise
        line = self.separator.join(texts)
        if (
            self.newline in line
            or len(self.separator) > 1  # may begin in a value and end behind it
            or line.count(self.separator) != len(texts) - 1
        ):
            self._check_texts(texts)
        return (line + self.newline).encode()

    def _check_texts(self, texts: Sequence[str]) -> None:
        for name, text in zip(self.column_names, texts, strict=True):
            _check_text(text, self.separator, self.newline, name)

    def get_config(self) -> dict[str, Any]:
        """Return the configuration of each shard for the index.

        Examples
        --------
        >>> from fastshard.streaming import CSVWriter
        >>> writer = CSVWriter(columns={"a": "float"}, out="rows")
        >>> writer.get_config()["column_names"]
        ['a']
        """
        return {
            **super().get_config(),
            "column_names": self.column_names,
            "column_encodings": self.column_encodings,
            "separator": self.separator,
            "newline": self.newline,
        }

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
        >>> from fastshard.streaming import CSVWriter
        >>> with CSVWriter(columns={"a": "float"}, out="rows") as writer:
        ...     writer.write({"a": 0.5})
        ...     data, meta = writer.encode_split_shard()
        >>> data
        b'a\\n0.5\\n'
        """
        header = self._header()
        meta = encode_meta(self.new_samples, len(header), self.get_config())
        return b"".join([header, *self.new_samples]), meta


class FixedSeparatorWriter(XSVWriter):
    """Writer of a format that has one separator, which its files do not name."""

    fixed_separator: ClassVar[str]

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
        super().__init__(
            columns=columns,
            separator=self.fixed_separator,
            newline=newline,
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            **kwargs,
        )

    def get_config(self) -> dict[str, Any]:
        """Return the configuration of each shard for the index.

        Returns
        -------
        dict
            Without a separator.

        Examples
        --------
        >>> from fastshard.streaming import CSVWriter
        >>> writer = CSVWriter(columns={"a": "float"}, out="rows")
        >>> "separator" in writer.get_config()
        False
        """
        config = super().get_config()
        del config["separator"]
        return config


class CSVWriter(FixedSeparatorWriter):
    """Writer of CSV shards: lines of values between commas, with a header line.

    Nothing is quoted: a value that contains a comma or the newline is refused. The
    other parameters and errors are those of `XSVWriter`.

    Parameters
    ----------
    columns : mapping of str to str
        ``"str"``, ``"int"`` or ``"float"`` by the columns' names.
    newline : str
        Text behind each line.
    out : str or path-like
        Directory, which must be empty or not exist.

    Examples
    --------
    >>> from fastshard.streaming import CSVWriter
    >>> with CSVWriter(columns={"text": "str", "label": "int"}, out="rows") as writer:
    ...     writer.write({"text": "one", "label": 1})
    >>> from pathlib import Path
    >>> Path("rows/shard.00000.csv").read_text()
    'label,text\\n1,one\\n'
    """

    format = "csv"
    fixed_separator = ","


class TSVWriter(FixedSeparatorWriter):
    """Writer of TSV shards: lines of values between tabs, with a header line.

    Nothing is quoted: a value that contains a tab or the newline is refused. The
    other parameters and errors are those of `XSVWriter`.

    Parameters
    ----------
    columns : mapping of str to str
        ``"str"``, ``"int"`` or ``"float"`` by the columns' names.
    newline : str
        Text behind each line.
    out : str or path-like
        Directory, which must be empty or not exist.

    Examples
    --------
    >>> from fastshard.streaming import TSVWriter
    >>> with TSVWriter(columns={"text": "str", "label": "int"}, out="rows") as writer:
    ...     writer.write({"text": "one", "label": 1})
    >>> from pathlib import Path
    >>> Path("rows/shard.00000.tsv").read_text()
    'label\\ttext\\n1\\tone\\n'
    """

    format = "tsv"
    fixed_separator = "\t"


def _check_text(text: str, separator: str, newline: str, column: str) -> None:
    for name, part in (("separator", separator), ("newline", newline)):
        if part in text:
            raise AssertionError(
                f"text of column {column!r} contains the {name} {part!r}, or it is "
                "empty: rows have no quotes"
            )
