"""Base classes of writers: shards of one file, or of data and meta."""

from __future__ import annotations

import json
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from fastshard._util.files import make_directory, replace_file, sync_directory
from fastshard._util.processes.temporaries import sweep
from fastshard._util.writing.unclosed import Loss, report_dropped, report_ended, watch
from fastshard.codecs.compression import COMPRESSIONS, parse_compression
from fastshard.codecs.hashes import HASHES, open_hash
from fastshard.errors import ClosedError
from fastshard.streaming.encodings.base import Buffer
from fastshard.streaming.index import INDEX_NAME, parse_size_limit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "JointWriter",
    "SplitWriter",
    "Writer",
    "dump_config",
    "offsets_of",
    "save_index",
]

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
MAX_OFFSET = 2**32 - 1  # offsets are stored in 32 bits
KWARGS = ("progress_bar", "max_workers", "retry", "exist_ok")


class Writer(ABC):
    """Writer of a streaming dataset: shards, and the index that lists them.

    Samples are held until a shard is full. A shard is written under a temporary name,
    synced and renamed; ``index.json`` comes last. An exception inside the ``with``
    leaves no index, and of an unfinished shard nothing; finished shards stay. The same
    holds for a writer that is dropped, or open at exit, without `finish`: an
    `UnclosedWriterWarning` says how many samples are not stored. Use a writer in one
    thread at a time. The files are those that mosaicml-streaming writes for the same
    samples, byte for byte, but for the time in gz files, which is 0 here.

    For a format of one's own, derive from `JointWriter` or `SplitWriter`.

    Parameters
    ----------
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
        Bytes of a shard's samples, at most, before compression: ``"64mb"``. None: one
        shard, of less than 4 GiB.
    extra_bytes_per_shard, extra_bytes_per_sample : int
        Bytes that count beside those of the samples.
    **kwargs : Any
        ``exist_ok=True`` removes the directory with all that is in it, if it exists.
        ``progress_bar``, ``max_workers`` and ``retry`` are accepted, for they belong to
        mosaicml-streaming's uploads.

    Attributes
    ----------
    local : str
        The directory.
    new_samples : list of bytes
        Samples of the shard that is not full.
    new_shard_size : int
        Bytes of them, and the extra bytes.
    shards : list of dict
        Entries of the finished shards for the index.

    Raises
    ------
    ValueError
        An argument is invalid, or `out` is a URL.
    FileExistsError
        The directory is not empty.
    MissingLibraryError
        The library of the compression or of a hash is not installed.

    Examples
    --------
    >>> from fastshard.streaming import CSVWriter, JSONWriter, MDSWriter, Writer
    >>> [issubclass(cls, Writer) for cls in (MDSWriter, JSONWriter, CSVWriter)]
    [True, True, True]
    """

    format: ClassVar[str] = ""
    #: Bytes of a shard before compression, at most; None: any number.
    max_shard_bytes: ClassVar[int | None] = None

    new_samples: list[bytes]
    new_shard_size: int

    def __init__(
        self,
        *,
        out: str | os.PathLike[str],
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        extra_bytes_per_shard: int = 0,
        extra_bytes_per_sample: int = 0,
        **kwargs: Any,
    ) -> None:
        self.compression = _check_compression(compression)
        self.hashes = _check_hashes(hashes)
        self.size_limit = _check_size_limit(size_limit)
        invalid = [name for name in kwargs if name not in KWARGS]
        if invalid:
            raise ValueError(f"Invalid Writer argument(s): {invalid} ")
        self.keep_local = keep_local
        self.extra_bytes_per_shard = extra_bytes_per_shard
        self.extra_bytes_per_sample = extra_bytes_per_sample
        self.shards: list[dict[str, Any]] = []
        self.local = _prepare_directory(out, kwargs.get("exist_ok", False))
        self.remote = None
        self._folder = os.path.abspath(self.local)
        self._uncounted_bytes = 0  # of a shard's data that the limit leaves out
        self._closed = False
        self._reset_cache()
        watch(self)

    def _count_held(self) -> int:
        """Return the number of samples not yet written."""
        return len(self.new_samples)

    def _find_loss(self) -> Loss:
        """Return all samples: they cannot be found without an index."""
        stored = sum(shard.get("samples", 0) for shard in self.shards)
        count = 0 if self._closed else stored + self._count_held()
        name = type(self).__name__
        return Loss(name, self._folder, count, "finish", f"no {INDEX_NAME}")

    def __del__(self) -> None:
        report_dropped(self)

    def _reset_cache(self) -> None:
        """Begin a shard."""
        self.new_samples = []
        self.new_shard_size = self.extra_bytes_per_shard

    @abstractmethod
    def encode_sample(self, sample: Mapping[str, Any]) -> bytes:
        """Return the bytes of a sample.

        Parameters
        ----------
        sample : mapping of str to object
            The values by column.
        """

    @abstractmethod
    def flush_shard(self) -> None:
        """Write the buffered samples as a shard."""

    def get_config(self) -> dict[str, Any]:
        """Return the configuration of each shard for the index.

        Examples
        --------
        >>> from fastshard.streaming import MDSWriter
        >>> writer = MDSWriter(columns={"a": "str"}, out="rows", size_limit="1kb")
        >>> writer.get_config()["size_limit"]
        1024
        """
        return {
            "version": 2,
            "format": self.format,
            "compression": self.compression,
            "hashes": self.hashes,
            "size_limit": self.size_limit,
        }

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add a sample; write a shard if it is full without it.

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
        >>> from fastshard.streaming import CSVWriter
        >>> with CSVWriter(columns={"a": "int"}, out="rows") as writer:
        ...     writer.write({"a": 1, "b": "no column"})
        ...     writer.new_samples
        [b'1\\n']
        """
        if self._closed:
            raise ClosedError(f"the writer of {self.local} is finished")
        try:
            new_sample = self.encode_sample(sample)
        except Exception as error:
            self._note_sample(error)
            raise
        size = len(new_sample) + self.extra_bytes_per_sample
        if self.size_limit and self.size_limit < self.new_shard_size + size:
            self.flush_shard()
            self._reset_cache()
        nbytes = self.new_shard_size + size + self._uncounted_bytes
        if self.max_shard_bytes is not None and nbytes > self.max_shard_bytes:
            raise too_large(nbytes)
        self.new_samples.append(new_sample)
        self.new_shard_size += size

    def _note_sample(self, error: Exception) -> None:
        """Add a note with the number of the next sample to its error."""
        error.add_note(f"sample {self._find_loss().samples:,} of {self.local}")

    def finish(self) -> None:
        """Write the last shard and the index; do nothing the second time.

        Raises
        ------
        OSError
            A file cannot be written.

        Examples
        --------
        >>> from fastshard.streaming import CSVWriter
        >>> writer = CSVWriter(columns={"a": "int"}, out="rows")
        >>> writer.write({"a": 1})
        >>> writer.finish()
        >>> import os
        >>> sorted(os.listdir("rows"))
        ['index.json', 'shard.00000.csv', 'shard.00000.csv.meta']
        """
        if self._closed:
            return
        if self._count_held():
            self.flush_shard()
            self._reset_cache()
        sync_directory(self._folder)
        index = {"version": 2, "shards": self.shards}
        save_index(self._folder, dump_config(index))
        self._closed = True
        self._reset_cache()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Finish; after an exception write no index."""
        try:
            if exc_type is None:
                self.finish()
            else:
                report_ended(self, exc_type)
        finally:
            self._closed = True
            self._reset_cache()

    def _name_next_shard(self, extension: str | None = None) -> tuple[str, str | None]:
        """Return the basenames of the next shard's file, raw and compressed."""
        raw = f"shard.{len(self.shards):05}.{self.format}"
        if extension:
            raw += f".{extension}"
        if self.compression is None:
            return raw, None
        return raw, f"{raw}.{parse_compression(self.compression).extension}"

    def _describe(self, parts: Sequence[Buffer], basename: str) -> dict[str, Any]:
        """Describe a file for the index."""
        hashes = {}
        for algo in self.hashes:
            made = open_hash(algo)
            for part in parts:
                made.update(part)
            hashes[algo] = made.hexdigest()
        nbytes = sum(map(len, parts))
        return {"basename": basename, "bytes": nbytes, "hashes": hashes}

    def _publish(
        self, parts: Sequence[Buffer], extension: str | None = None
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Write a file of the next shard; describe it raw and compressed."""
        raw_name, zip_name = self._name_next_shard(extension)
        raw_info = self._describe(parts, raw_name)
        zip_info = None
        if self.compression is not None and zip_name is not None:
            raw = b"".join(parts)
            parts = [parse_compression(self.compression).compress(raw)]
            zip_info = self._describe(parts, zip_name)
        path = os.path.join(self._folder, zip_name or raw_name)
        with replace_file(path, sync_folder=False) as file:  # `finish` syncs it
            for part in parts:
                file.write(part)
        return raw_info, zip_info


class JointWriter(Writer):
    """Writer of shards of one file.

    A format of one's own has `encode_sample` and `encode_joint_shard`; the class
    attribute `format` is its name. See `Writer` for the parameters.

    Examples
    --------
    >>> from fastshard.streaming import JointWriter
    >>> class LineWriter(JointWriter):
    ...     format = "line"
    ...
    ...     def encode_sample(self, sample):
    ...         return sample["text"].encode() + b"\\n"
    ...
    ...     def encode_joint_shard(self):
    ...         return b"".join(self.new_samples)
    >>> with LineWriter(out="lines", size_limit="1kb") as writer:
    ...     writer.write({"text": "one"})
    >>> from pathlib import Path
    >>> Path("lines/shard.00000.line").read_text()
    'one\\n'
    """

    @abstractmethod
    def encode_joint_shard(self) -> bytes:
        """Return the file of a shard of `new_samples`."""

    def flush_shard(self) -> None:
        """Write the buffered samples as a shard.

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
        self._add_joint_shard([self.encode_joint_shard()], len(self.new_samples))

    def _add_joint_shard(self, parts: Sequence[Buffer], count: int) -> None:
        """Write a shard of parts, with a number of samples."""
        raw_data, zip_data = self._publish(parts)
        self.shards.append(
            {
                "samples": count,
                "raw_data": raw_data,
                "zip_data": zip_data,
                **self.get_config(),
            }
        )


class SplitWriter(Writer):
    """Writer of shards of two files, data and meta.

    A format of one's own has `encode_sample` and `encode_split_shard`; the class
    attribute `format` is its name. See `Writer` for the parameters.

    Examples
    --------
    >>> from fastshard.streaming import SplitWriter
    >>> class TextWriter(SplitWriter):
    ...     format = "text"
    ...
    ...     def encode_sample(self, sample):
    ...         return sample["text"].encode()
    ...
    ...     def encode_split_shard(self):
    ...         sizes = bytes(map(len, self.new_samples))
    ...         return b"".join(self.new_samples), sizes
    >>> with TextWriter(out="texts") as writer:
    ...     writer.write({"text": "one"})
    >>> from pathlib import Path
    >>> Path("texts/shard.00000.text.meta").read_bytes()
    b'\\x03'
    """

    extra_bytes_per_shard = 0
    extra_bytes_per_sample = 0

    def __init__(
        self,
        *,
        out: str | os.PathLike[str],
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            extra_bytes_per_shard=self.extra_bytes_per_shard,
            extra_bytes_per_sample=self.extra_bytes_per_sample,
            **kwargs,
        )

    @abstractmethod
    def encode_split_shard(self) -> tuple[bytes, bytes]:
        """Return the files of a shard of `new_samples`, data and meta.

        Returns
        -------
        data, meta : bytes
        """

    def flush_shard(self) -> None:
        """Write the buffered samples as a shard.

        Raises
        ------
        OSError
            A file cannot be written.

        Examples
        --------
        >>> from fastshard.streaming import CSVWriter
        >>> writer = CSVWriter(columns={"a": "str"}, out="rows")
        >>> writer.flush_shard()
        >>> writer.shards[0]["raw_meta"]["basename"]
        'shard.00000.csv.meta'
        """
        data, meta = self.encode_split_shard()
        raw_data, zip_data = self._publish([data])
        raw_meta, zip_meta = self._publish([meta], "meta")
        self.shards.append(
            {
                "samples": len(self.new_samples),
                "raw_data": raw_data,
                "zip_data": zip_data,
                "raw_meta": raw_meta,
                "zip_meta": zip_meta,
                **self.get_config(),
            }
        )


def dump_config(config: Mapping[str, Any]) -> bytes:
    """Return a configuration or an index as it is stored: JSON with sorted keys."""
    return json.dumps(config, sort_keys=True).encode()


def offsets_of(samples: Sequence[bytes], start: int) -> NDArray[np.uint32]:
    """Return the offsets of samples from `start`, and the end of the last."""
    import numpy as np

    ends = np.fromiter(map(len, samples), np.uint64, len(samples)).cumsum()
    offsets = np.concatenate([np.zeros(1, np.uint64), ends]) + np.uint64(start)
    if offsets[-1] > MAX_OFFSET:
        raise too_large(int(offsets[-1]))
    return offsets.astype("<u4")


def too_large(nbytes: int) -> ValueError:
    """Return the error of a shard that 32-bit offsets cannot describe."""
    return ValueError(
        f"a shard of {nbytes:,} bytes: its offsets of 32 bits hold less than 4 GiB; "
        "set size_limit"
    )


def save_index(folder: str, index: bytes) -> str:
    """Write ``index.json`` in place of one that is there; return its path."""
    path = os.path.join(folder, INDEX_NAME)
    with replace_file(path) as file:
        file.write(index)
    return path


def _check_compression(compression: str | None) -> str | None:
    compression = compression or None
    if compression is not None:
        if compression not in COMPRESSIONS:
            raise ValueError(f"Invalid compression: {compression}.")
        parse_compression(compression).compress(b"")  # the library is there
    return compression


def _check_hashes(hashes: Sequence[str] | None) -> list[str]:
    names = list(hashes or [])
    if names != sorted(set(names)):
        raise ValueError("Hashes must be unique and in sorted order.")
    for name in names:
        if name not in HASHES:
            raise ValueError(f"Invalid hash: {name}.")
        open_hash(name)  # the library is there
    return names


def _check_size_limit(size_limit: int | str | None) -> int | None:
    if not size_limit:
        return None
    if not isinstance(size_limit, str) and size_limit < 0:
        raise ValueError(
            "`size_limit` must be greater than zero, instead, found as "
            f"{int(size_limit)}."
        )
    limit = int(parse_size_limit(size_limit) or 0)
    if limit > MAX_OFFSET:
        raise ValueError(
            f"`size_limit` must be less than 2**32, instead, found as {limit}. This is "
            "because sample byte offsets are stored with uint32."
        )
    return limit


def _prepare_directory(out: str | os.PathLike[str], exist_ok: bool) -> str:
    """Return a directory that is there and empty, as an absolute path."""
    if isinstance(out, (tuple, list)):
        raise ValueError(
            f"fastshard writes to a local directory, got out={out!r}: give it the "
            "local one, and upload its files"
        )
    text = os.fspath(out)
    if URL.match(text):
        raise ValueError(
            f"fastshard writes to a local directory, got out={text!r}: give it a path, "
            "and upload the files"
        )
    local = os.path.expanduser(text)
    if os.path.lexists(local):
        sweep(local)
        if exist_ok:
            shutil.rmtree(local)
        elif os.listdir(local):
            raise FileExistsError(f"Directory is not empty: {local}")
    make_directory(os.path.abspath(local))
    return local
