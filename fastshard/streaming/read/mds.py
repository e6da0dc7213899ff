"""Reader of MDS shards."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from fastshard._core.streaming.plan import MdsRows, RowPlan
from fastshard._core.streaming.reader import OpenRows
from fastshard.streaming.index import FileInfo
from fastshard.streaming.read.base import JointReader, parse_args
from fastshard.streaming.read.schemas import mds_plan

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["MDSReader"]

EMPTY = b"\0\0\0\0\x0a\0\0\0{}"  # a shard without samples


class MDSReader(JointReader):
    """Random access to the samples of an MDS shard.

    Values are those of mosaicml-streaming: int, str, bytes, NumPy scalars, read-only
    arrays, `Decimal`, Pillow images, parsed JSON.

    Parameters
    ----------
    dirname, split
        As for `Reader`.
    column_encodings, column_names : list of str
        Columns in the order of their bytes.
    column_sizes : list of int or None
        Bytes of each column's fields; None if they vary.
    compression, hashes
        As for `Reader`.
    raw_data : FileInfo
        The file.
    samples, size_limit
        As for `Reader`.
    zip_data : FileInfo, optional
        Its compressed form.
    **options
        Keyword arguments of `Reader`: fields, copy, allow_unsafe_types, cache_dir,
        max_memory, validate_hash.

    Examples
    --------
    >>> import json
    >>> from fastshard.streaming import MDSReader, MDSWriter
    >>> with MDSWriter(out="numbers", columns={"n": "int", "text": "str"}) as writer:
    ...     for n in range(3):
    ...         writer.write({"n": n, "text": f"number {n}"})
    >>> with open("numbers/index.json") as file:
    ...     shard = json.load(file)["shards"][0]
    >>> reader = MDSReader.from_json("numbers", None, shard)
    >>> reader[-1]
    {'n': 2, 'text': 'number 2'}
    >>> reader.read_columns([0, 2], fields=["n"])
    {'n': array([0, 2])}
    """

    def __init__(
        self,
        dirname: str,
        split: str | None,
        column_encodings: list[str],
        column_names: list[str],
        column_sizes: list[int | None],
        compression: str | None,
        hashes: list[str],
        raw_data: FileInfo,
        samples: int,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
        **options: Any,
    ) -> None:
        super().__init__(
            dirname,
            split,
            compression,
            hashes,
            raw_data,
            samples,
            size_limit,
            zip_data,
            **options,
        )
        self.column_encodings = column_encodings
        self.column_names = column_names
        self.column_sizes = column_sizes

    @classmethod
    def from_json(
        cls, dirname: str, split: str | None, obj: Mapping[str, Any], **options: Any
    ) -> Self:
        """Return the reader of a shard of an index.

        Parameters
        ----------
        dirname : str
            Local directory of the dataset.
        split : str, optional
        obj : dict
            The shard's object in ``index.json``.
        **options
            Keyword arguments of `Reader`.

        Raises
        ------
        FormatError
            Version or format are others, a key is missing, or a value has another type
            than the format's, or another length.

        Examples
        --------
        >>> from fastshard.streaming import MDSReader
        >>> len(MDSReader.from_json("dataset", None, shards[0]))
        100
        """
        return cls(
            dirname=dirname,
            split=split,
            **parse_args("mds", dirname, split, obj),
            **options,
        )

    def validate(self, allow_unsafe_types: bool) -> None:
        """Check that the shard's samples may be decoded.

        Parameters
        ----------
        allow_unsafe_types : bool
            Whether encodings that can run code are allowed, from now on.

        Raises
        ------
        ValueError
            A column has such an encoding, and it is not allowed.

        Warns
        -----
        UserWarning
            An encoding is unknown: its column cannot be decoded.

        Examples
        --------
        >>> reader.validate(allow_unsafe_types=False)
        """
        from fastshard.streaming.encodings import is_mds_encoding, is_mds_encoding_safe

        for name, encoding in zip(
            self.column_names, self.column_encodings, strict=False
        ):
            if not (allow_unsafe_types or is_mds_encoding_safe(encoding)):
                raise ValueError(
                    f"Column {name} contains an unsafe type: {encoding}. To proceed "
                    "anyway, set ``allow_unsafe_types=True``."
                )
            if not is_mds_encoding(encoding):
                import warnings

                warnings.warn(
                    f"Column {name} has an unknown encoding: {encoding}. It fails when "
                    "it is decoded; see fastshard.streaming.register_encoding.",
                    stacklevel=2,
                )
        if allow_unsafe_types != self.allow_unsafe_types:
            self.allow_unsafe_types = allow_unsafe_types
            self._release()

    def decode_sample(self, data: Buffer) -> dict[str, Any]:
        """Decode a sample.

        Parameters
        ----------
        data : bytes-like
            The sample as it is stored.

        Raises
        ------
        FormatError
            The bytes are not a row of these columns.

        Examples
        --------
        >>> reader.decode_sample(reader.get_sample_data(7)) == reader[7]
        True
        """
        return self._decode(data)

    def get_sample_data(self, idx: int) -> bytes:
        """Return a sample as it is stored.

        Parameters
        ----------
        idx : int
            Its position, from 0.

        Raises
        ------
        IndexError
            There is no such sample.
        FileNotFoundError
            Neither the raw nor the compressed file exists.
        FormatError
            A file is damaged.

        Examples
        --------
        >>> len(reader.get_sample_data(0))
        18
        """
        return self._sample_bytes(self._check_position(idx))

    def _plan(self) -> RowPlan:
        return mds_plan(
            tuple(self.column_names),
            tuple(self.column_encodings),
            tuple(self.column_sizes),
            self.allow_unsafe_types,
        )

    def _make_rows(self) -> MdsRows:
        path = os.path.join(self.dirname, self.split, self.raw_data.basename)
        return MdsRows(path, self._plan(), EMPTY, len(EMPTY), 0)

    def _open_rows(self) -> OpenRows:
        opened = self._open_file(self.raw_data, self.zip_data)
        path = os.path.join(self.dirname, self.split, self.raw_data.basename)
        table_size = 4 * (self.samples + 2)
        first = int.from_bytes(opened.view(8)[4:], "little")  # the first sample
        head = opened.view(max(table_size, first))
        plan = self._plan()
        rows = MdsRows(path, plan, head, self.raw_data.bytes, self.samples)
        opened.set_rows(rows, plan.mask(self.fields), self.copy)
        return opened
