"""Readers of shards: the base of all, and those of one file and of two."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from fastshard._core.streaming.reader import OpenRows, ReaderBase
from fastshard.codecs.raw_files import locate, open_raw
from fastshard.errors import FormatError
from fastshard.streaming.index import (
    INDEX_NAME,
    FileInfo,
    parse_shard,
    parse_size_limit,
)
from fastshard.streaming.read import local_files

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

__all__ = ["JointReader", "Reader", "SplitReader"]


class Reader(ReaderBase, ABC):
    """Random access to the samples of a shard.

    A format of one's own is a subclass with `decode_sample` and `get_sample_data`; if
    it has files, it appends them to `file_pairs`. All else works from these.

    Parameters
    ----------
    dirname : str
        Local directory of the dataset.
    split : str, optional
        Subdirectory; ``"val/nested"`` is one, too.
    compression : str, optional
        Name of the compression of the files, with or without a level: ``"zstd:7"``.
    hashes : list of str
        Algorithms of the hashes that the index has of each file.
    samples : int
        Number of samples.
    size_limit : int or str, optional
        Bytes of a shard at which the next one began. ``"100kb"`` is 100 * 1024.
    fields : iterable of str, optional
        Columns to decode. Default: all.
    copy : bool
        Whether bytes and arrays are copies. False: memoryviews and arrays on the mapped
        file, read-only, which stay valid while they are referenced.
    allow_unsafe_types : bool
        Decode columns of encoding ``"pkl"``, which can run any code.
    cache_dir : str, optional
        Directory for raw files that cannot be decompressed beside the compressed ones.
    max_memory : int, optional
        Largest raw file, in bytes, to be decompressed to memory if it can be written
        nowhere.
    validate_hash : str, optional
        Hash of the files that is checked when they are opened.

    Attributes
    ----------
    file_pairs : list of (FileInfo, FileInfo or None)
        Raw files and their compressed forms.

    Raises
    ------
    ValueError
        `size_limit` is negative or no size.

    Examples
    --------
    >>> import json
    >>> from fastshard.streaming import Reader
    >>> class LinesReader(Reader):
    ...     def decode_sample(self, data):
    ...         return {"line": data.decode()}
    ...
    ...     def get_sample_data(self, idx):
    ...         return [b"one", b"two", b"three"][idx]
    >>> reader = LinesReader("lines", None, None, [], 3, None)
    >>> len(reader), reader[-1]
    (3, {'line': 'three'})
    >>> reader[:2]
    [{'line': 'one'}, {'line': 'two'}]
    """

    # Set by `fastshard.streaming.install`: a raw file that is missing is an error, for
    # mosaicml-streaming downloads and decompresses it itself; it may evict all files.
    installed: ClassVar[bool] = False

    def __init__(
        self,
        dirname: str,
        split: str | None,
        compression: str | None,
        hashes: list[str],
        samples: int,
        size_limit: int | str | None,
        *,
        fields: Iterable[str] | None = None,
        copy: bool = True,
        allow_unsafe_types: bool = False,
        cache_dir: str | None = None,
        max_memory: int | None = None,
        validate_hash: str | None = None,
    ) -> None:
        self.dirname = dirname
        self.split = split or ""
        self.compression = compression
        self.hashes = hashes
        self.samples = samples
        self.size_limit = parse_size_limit(size_limit)
        self.file_pairs: list[tuple[FileInfo, FileInfo | None]] = []
        self.fields = list_fields(fields)
        self.copy = copy
        self.allow_unsafe_types = allow_unsafe_types
        self.cache_dir = cache_dir
        self.max_memory = max_memory
        self.validate_hash = validate_hash

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        where = os.path.join(self.dirname, self.split)
        name = self.file_pairs[-1][0].basename if self.file_pairs else ""
        return (
            f"{type(self).__name__}({os.path.join(where, name)!r}; "
            f"{self.samples:,} samples)"
        )

    def validate(self, allow_unsafe_types: bool) -> None:
        """Check that the shard's samples may be decoded.

        Parameters
        ----------
        allow_unsafe_types : bool
            Whether encodings that can run code are allowed.

        Raises
        ------
        ValueError
            A column has such an encoding, and it is not allowed.

        Examples
        --------
        >>> reader.validate(allow_unsafe_types=False)
        """

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.samples

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.samples

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Iterate over the samples."""
        for i in range(len(self)):
            yield self[i]

    @abstractmethod
    def decode_sample(self, data: Any) -> dict[str, Any]:
        """Decode a sample.

        Parameters
        ----------
        data : bytes-like
            The sample as it is stored.

        Raises
        ------
        FormatError
            The bytes are not a sample of this format.

        Examples
        --------
        >>> reader.decode_sample(reader.get_sample_data(7)) == reader[7]
        True
        """

    @abstractmethod
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
        >>> type(reader.get_sample_data(0))
        <class 'bytes'>
        """

    def get_item(
        self, idx: int, *, fields: Iterable[str] | None = None
    ) -> dict[str, Any]:
        """Return a sample.

        Parameters
        ----------
        idx : int
            Its position, from 0. Negative ones are those of ``reader[idx]`` alone.
        fields : iterable of str, optional
            Columns to decode. Default: the reader's.

        Returns
        -------
        dict of str to object
            Values by column.

        Raises
        ------
        IndexError
            There is no such sample.
        KeyError
            There is no such column.
        FileNotFoundError
            Neither the raw nor the compressed file exists.
        FormatError
            A file is damaged.

        Examples
        --------
        >>> reader.get_item(7, fields=["id"])
        {'id': 7}
        """
        i = self._check_position(idx)
        if self._has_rows():
            return self._sample(i, fields)
        sample = self.decode_sample(self.get_sample_data(i))
        return select_fields(sample, self.fields if fields is None else fields)

    def read_columns(
        self, positions: ArrayLike, fields: Iterable[str] | None = None
    ) -> dict[str, NDArray[Any] | list[Any]]:
        """Return columns of several samples.

        Parameters
        ----------
        positions : array_like of int
            Positions of samples; negative ones count from the end.
        fields : iterable of str, optional
            Columns to read. Default: the reader's.

        Returns
        -------
        dict of str to numpy.ndarray or list
            An array, which is writable, for columns of numbers and of arrays of one
            shape; a list of values for others.

        Raises
        ------
        IndexError
            There is no such sample.
        KeyError
            There is no such column.
        FileNotFoundError
            Neither the raw nor the compressed file exists.
        FormatError
            A file is damaged.

        Examples
        --------
        >>> reader.read_columns([5, 0, -1])["id"]
        array([ 5,  0, 99])
        """
        places = self._check_positions(positions)
        if not self._has_rows():
            samples = [self.get_item(i, fields=fields) for i in places.tolist()]
            names = samples[0] if samples else ()
            return {name: [sample[name] for sample in samples] for name in names}
        from fastshard._core.streaming.reader import read_columns

        return read_columns(self._get_open(), places, fields)

    def evict(self, *, force: bool = False) -> int:
        """Remove the files of the shard that exist.

        Raw files of a compressed shard stay if the compressed ones do not exist.

        Parameters
        ----------
        force : bool
            Remove the only copy, too.

        Returns
        -------
        int
            Bytes of the removed files, by the index; 0 the second time.

        Raises
        ------
        FormatError
            A file's name leaves the directory.
        OSError
            A file cannot be removed.

        Examples
        --------
        >>> reader.evict(), reader.evict()
        (2483, 0)
        """
        self._release()
        return local_files.evict(self, force=force or self.installed)

    def set_up_local(self, listing: Collection[str], safe_keep_zip: bool) -> int:
        """Bring the files of the shard to a consistent state.

        Parameters
        ----------
        listing : collection of str
            Paths of all files in the directory of the split.
        safe_keep_zip : bool
            Whether compressed files stay beside raw ones.

        Returns
        -------
        int
            Bytes of the files that are there, by the index; 0 if the shard is not.

        Raises
        ------
        ValueError
            The shard has no compression, but a compressed file.

        Examples
        --------
        >>> reader.set_up_local({"dataset/shard.00000.mds"}, safe_keep_zip=False)
        2483
        """
        self._release()
        return local_files.set_up_local(self, listing, safe_keep_zip)

    def get_raw_size(self) -> int:
        """Return the bytes of the raw files, by the index.

        Examples
        --------
        >>> reader.get_raw_size()
        2483
        """
        return local_files.get_raw_size(self)

    def get_zip_size(self) -> int | None:
        """Return the bytes of the compressed files; None if a file is not compressed.

        Examples
        --------
        >>> reader.get_zip_size() is None
        True
        """
        return local_files.get_zip_size(self)

    def get_max_size(self) -> int:
        """Return the maximum of bytes on disk: those of all files.

        Examples
        --------
        >>> reader.get_max_size()
        2483
        """
        return local_files.get_max_size(self)

    def get_persistent_size(self, keep_zip: bool) -> int:
        """Return the bytes of the files that stay after decompression.

        Parameters
        ----------
        keep_zip : bool
            Whether compressed files stay.

        Examples
        --------
        >>> reader.get_persistent_size(keep_zip=False)
        2483
        """
        return local_files.get_persistent_size(self, keep_zip)

    def _add_files(self, key: str, raw: FileInfo, packed: FileInfo | None) -> None:
        """Append a raw file and its compressed form to `file_pairs`."""
        if raw is None:  # in an object of JSON
            path = os.path.join(self.dirname, self.split, INDEX_NAME)
            raise FormatError(f"expected {key!r} to be a file, got null", path, 0)
        self.file_pairs.append((raw, packed))

    def _check_position(self, idx: int) -> int:
        """Return a position as an int, or raise IndexError."""
        i = int(idx)
        if not 0 <= i < self.size:
            raise IndexError(
                f"sample {idx} is out of range: the shard has {self.size:,}"
            )
        return i

    def _check_positions(self, positions: ArrayLike) -> NDArray[np.int64]:
        """Return positions as a contiguous array without negative ones."""
        import numpy as np

        given = np.asarray(positions)
        if given.size and given.dtype.kind not in "iu":
            raise TypeError(f"positions must be integers, got {given.dtype}")
        if given.ndim != 1:
            raise ValueError(f"positions must have one dimension, got {given.ndim}")
        size = self.size
        if given.size and not (-size <= given.min() and given.max() < size):
            worst = given.min() if given.min() < -size else given.max()
            raise IndexError(f"sample {worst} is out of range: the shard has {size:,}")
        places = given.astype(np.int64)
        places[places < 0] += size
        return places

    def _find_raw(self, raw: FileInfo, packed: FileInfo | None) -> str | bytes:
        """Return the path of a raw file, or its bytes; decompress it if need be."""
        folder = os.path.join(self.dirname, self.split)
        if self.installed:
            path = locate(folder, raw.basename)
            if not os.path.exists(path):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return path
        return open_raw(
            folder,
            raw,
            packed,
            self.compression,
            cache_dir=self.cache_dir,
            max_memory=self.max_memory,
            validate_hash=self.validate_hash,
        )

    def _open_file(self, raw: FileInfo, packed: FileInfo | None) -> OpenRows:
        """Open a raw file, whose size is checked."""
        path = locate(os.path.join(self.dirname, self.split), raw.basename)
        return OpenRows(self._find_raw(raw, packed), path, raw.bytes)


def select_fields(
    sample: dict[str, Any], fields: Iterable[str] | None
) -> dict[str, Any]:
    """Return some values of a sample."""
    if fields is None:
        return sample
    return {name: sample[name] for name in list_fields(fields) or ()}


def list_fields(fields: Iterable[str] | None) -> list[str] | None:
    """Return names of columns as a list; one name may be a str."""
    if fields is None:
        return None
    return [fields] if isinstance(fields, str) else list(fields)


def parse_args(
    format_name: str | None, dirname: str, split: str | None, obj: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a reader from the object of its shard."""
    path = os.path.join(dirname, split or "", INDEX_NAME)
    given = obj if isinstance(obj, Mapping) else {}
    version, found = given.get("version", 2), given.get("format", format_name)
    if version != 2:
        reason = f"Unsupported streaming data version: {version}. Expected version 2."
        raise FormatError(reason, path, 0)
    if format_name is not None and found != format_name:
        reason = f"Unsupported data format: {found}. Expected to be `{format_name}`."
        raise FormatError(reason, path, 0)
    args = parse_shard(obj, path)
    del args["format"]
    return args


class JointReader(Reader):
    """Base of readers of one-file shards.

    Parameters
    ----------
    dirname, split, compression, hashes
        As for `Reader`.
    raw_data : FileInfo
        The file.
    samples, size_limit
        As for `Reader`.
    zip_data : FileInfo, optional
        Its compressed form.
    **options
        Keyword arguments of `Reader`.
    """

    def __init__(
        self,
        dirname: str,
        split: str | None,
        compression: str | None,
        hashes: list[str],
        raw_data: FileInfo,
        samples: int,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
        **options: Any,
    ) -> None:
        super().__init__(
            dirname, split, compression, hashes, samples, size_limit, **options
        )
        self.raw_data = raw_data
        self.zip_data = zip_data
        self._add_files("raw_data", raw_data, zip_data)


class SplitReader(Reader):
    """Base of readers of two-file shards: data, and offsets of samples.

    Parameters
    ----------
    dirname, split, compression, hashes
        As for `Reader`.
    raw_data, raw_meta : FileInfo
        The files.
    samples, size_limit
        As for `Reader`.
    zip_data, zip_meta : FileInfo, optional
        Their compressed forms.
    **options
        Keyword arguments of `Reader`.
    """

    def __init__(
        self,
        dirname: str,
        split: str | None,
        compression: str | None,
        hashes: list[str],
        raw_data: FileInfo,
        raw_meta: FileInfo,
        samples: int,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
        zip_meta: FileInfo | None,
        **options: Any,
    ) -> None:
        super().__init__(
            dirname, split, compression, hashes, samples, size_limit, **options
        )
        self.raw_data = raw_data
        self.raw_meta = raw_meta
        self.zip_data = zip_data
        self.zip_meta = zip_meta
        self._add_files("raw_meta", raw_meta, zip_meta)
        self._add_files("raw_data", raw_data, zip_data)

    def _open_meta(self) -> tuple[str, memoryview]:
        """Return path and bytes of the meta file."""
        opened = self._open_file(self.raw_meta, self.zip_meta)
        folder = os.path.join(self.dirname, self.split)
        return locate(folder, self.raw_meta.basename), opened.view(self.raw_meta.bytes)
