"""Writer of MDS shards."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fastshard._core.streaming.encode import RowBuffer, RowEncoder
from fastshard.streaming.encodings.registry import (
    get_mds_encodings,
    is_mds_encoding,
    mds_encoder,
    mds_size,
)
from fastshard.streaming.write.base import (
    MAX_OFFSET,
    JointWriter,
    dump_config,
    too_large,
)

__all__ = ["MDSWriter"]


class MDSWriter(JointWriter):
    """Writer of MDS shards, rows of typed columns.

    Parameters
    ----------
    columns : mapping of str to str
        Encodings by the columns' names: ``"bytes"``, ``"str"``, ``"int"``, the names of
        NumPy's numbers such as ``"float32"``, ``"str_int"``, ``"str_float"``,
        ``"str_decimal"``, ``"ndarray"``, ``"ndarray:float32"``,
        ``"ndarray:float32:3,4"``, ``"pil"``, ``"jpeg"``, ``"png"``, ``"jpeg_array"``,
        ``"list[pil]"``, ``"list[jpeg]"``, ``"list[png]"``, ``"json"``, ``"pkl"``, or
        one of `register_encoding`.
    out : str or path-like
        Directory, which must be empty or not exist.
    keep_local : bool
        Accepted for mosaicml-streaming's sake: without an upload files are kept.
    compression : str, optional
        ``"br"``, ``"bz2"``, ``"gz"``, ``"snappy"`` or ``"zstd"``, with a level as in
        ``"zstd:7"``.
    hashes : sequence of str, optional
        Names of hashes to store in the index, sorted: ``["sha1", "xxh64"]``.
    size_limit : int, str or None
        Bytes of a shard, at most, before compression: ``"64mb"``. A larger sample gets
        a shard of its own. None: one shard, of less than 4 GiB.
    **kwargs : Any
        ``exist_ok=True`` removes the directory with all that is in it, if it exists.
        ``progress_bar``, ``max_workers`` and ``retry`` are accepted, for they belong to
        mosaicml-streaming's uploads.

    Attributes
    ----------
    column_names, column_encodings : list of str
        The columns, sorted by name.
    column_sizes : list of int or None
        Bytes of each value of a column; None if they vary.

    Raises
    ------
    ValueError
        An argument is invalid, or `out` is a URL.
    TypeError
        An encoding does not exist.
    FileExistsError
        The directory is not empty.
    MissingLibraryError
        The library of the compression or of a hash is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from fastshard.streaming import MDSWriter
    >>> columns = {"text": "str", "label": "int", "vector": "ndarray:float32:3"}
    >>> with MDSWriter(columns=columns, out="rows", hashes=["sha1"]) as writer:
    ...     for i in range(3):
    ...         vector = np.full(3, i, "float32")
    ...         writer.write({"text": f"row {i}", "label": i, "vector": vector})
    >>> len(writer.shards), writer.shards[0]["samples"]
    (1, 3)

    An image, an array or any value that is given as bytes is stored unchanged:

    >>> with MDSWriter(columns={"photo": "jpeg"}, out="photos") as writer:
    ...     writer.write({"photo": b"..."})
    """

    format = "mds"
    extra_bytes_per_sample = 4  # of the table of offsets
    max_shard_bytes: ClassVar[int] = MAX_OFFSET

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
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
            if not is_mds_encoding(encoding):
                raise TypeError(
                    f"MDSWriter passed column `{name}` with encoding `{encoding}` is "
                    f"unsupported. Supported encodings are {get_mds_encodings()}"
                )
        self.column_sizes = list(map(mds_size, self.column_encodings))
        self._encoder = RowEncoder(
            self.column_names,
            self.column_encodings,
            self.column_sizes,
            list(map(mds_encoder, self.column_encodings)),
        )
        # Rows are held in one block, unless a subclass may look at them.
        self._rows = RowBuffer() if type(self) is MDSWriter else None
        self._samples: list[bytes] = []
        super().__init__(
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            extra_bytes_per_sample=self.extra_bytes_per_sample,
            **kwargs,
        )
        self.config_data = dump_config(self.get_config())
        self.extra_bytes_per_shard = 4 + 4 + len(self.config_data)
        self._reset_cache()

    @property
    def new_samples(self) -> list[bytes]:
        """Rows of the shard that is not full."""
        if self._rows is not None:
            rows, self._rows = self._rows, None
            self._samples = [rows[i] for i in range(len(rows))]
        return self._samples

    @new_samples.setter
    def new_samples(self, samples: list[bytes]) -> None:
        self._samples, self._rows = samples, None

    def _count_held(self) -> int:
        return len(self._samples if self._rows is None else self._rows)

    def _reset_cache(self) -> None:
        """Begin a shard."""
        if self._rows is None:
            super()._reset_cache()
            return
        if self._closed:
            self._rows = RowBuffer()  # frees the memory, which the next shard reuses
        self._rows.clear()
        self.new_shard_size = self.extra_bytes_per_shard

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add a row; write a shard if it is full without it.

        Parameters
        ----------
        sample : mapping of str to object
            The values by column. Keys that are not columns are ignored.

        Raises
        ------
        KeyError
            A column is missing, or its value has not the fixed size.
        AttributeError
            A value has another type than its column.
        ValueError
            A value cannot be stored, or the shard would exceed 4 GiB.
        ClosedError
            The writer is finished.
        OSError
            The shard cannot be written.

        Examples
        --------
        >>> from fastshard.streaming import MDSWriter
        >>> with MDSWriter(columns={"a": "int", "b": "str"}, out="rows") as writer:
        ...     writer.write({"a": 1, "b": "x", "c": "no column"})
        >>> writer.shards[0]["samples"]
        1
        """
        rows = self._rows
        if rows is None or self._closed:
            super().write(sample)
            return
        try:
            size = self._encoder.append(rows, sample) + self.extra_bytes_per_sample
        except Exception as error:
            self._note_sample(error)
            raise
        nbytes = self.new_shard_size + size
        if nbytes > (self.size_limit or self.max_shard_bytes):
            row = rows.pop()
            if self.size_limit:
                self.flush_shard()
                self._reset_cache()
            nbytes = self.new_shard_size + size
            if nbytes > self.max_shard_bytes:
                raise too_large(nbytes)
            rows.append(row)
        self.new_shard_size = nbytes

    def flush_shard(self) -> None:
        """Write the buffered rows as a shard.

        Raises
        ------
        OSError
            The file cannot be written.

        Examples
        --------
        >>> from fastshard.streaming import MDSWriter
        >>> writer = MDSWriter(columns={"a": "str"}, out="rows")
        >>> writer.flush_shard()
        >>> writer.shards[0]["raw_data"]["basename"]
        'shard.00000.mds'
        """
        rows = self._rows
        if rows is None:
            super().flush_shard()
            return
        with memoryview(rows) as view:
            self._add_joint_shard([self._encode_head(rows), view], len(rows))

    def _encode_head(self, rows: RowBuffer) -> bytes:
        """Return the header of a shard."""
        count = len(rows)
        start = 4 + 4 * (count + 1) + len(self.config_data)
        try:
            offsets = rows.offsets(start)
        except OverflowError:
            raise too_large(start + rows.nbytes) from None
        return struct.pack("<I", count) + offsets + self.config_data

    def encode_sample(self, sample: Mapping[str, Any]) -> bytes:
        """Return the bytes of a row.

        Parameters
        ----------
        sample : mapping of str to object
            The values by column.

        Returns
        -------
        bytes
            The sizes of the fields that vary, and all fields.

        Raises
        ------
        KeyError
            A column is missing, or its value has not the fixed size.
        AttributeError
            A value has another type than its column.
        ValueError
            A value cannot be stored.

        Examples
        --------
        >>> from fastshard.streaming import MDSWriter
        >>> writer = MDSWriter(columns={"a": "str", "b": "uint8"}, out="rows")
        >>> writer.encode_sample({"a": "x", "b": 7})
        b'\\x01\\x00\\x00\\x00x\\x07'
        """
        return self._encoder.encode(sample)

    def get_config(self) -> dict[str, Any]:
        """Return the configuration of each shard for the index.

        Examples
        --------
        >>> from fastshard.streaming import MDSWriter
        >>> writer = MDSWriter(columns={"a": "str", "b": "uint8"}, out="rows")
        >>> writer.get_config()["column_sizes"]
        [None, 1]
        """
        return {
            **super().get_config(),
            "column_names": self.column_names,
            "column_encodings": self.column_encodings,
            "column_sizes": self.column_sizes,
        }

    def encode_joint_shard(self) -> bytes:
        """Return the file of a shard of `new_samples`.

        Raises
        ------
        ValueError
            The file would exceed 4 GiB.

        Examples
        --------
        >>> from fastshard.streaming import MDSWriter
        >>> with MDSWriter(columns={"a": "str"}, out="rows") as writer:
        ...     writer.write({"a": "x"})
        ...     writer.encode_joint_shard()[-5:]
        b'\\x01\\x00\\x00\\x00x'
        """
        rows = self._rows
        if rows is None:
            rows = RowBuffer()
            for row in self._samples:
                rows.append(row)
        return b"".join([self._encode_head(rows), rows])
