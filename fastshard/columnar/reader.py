"""Reading columnar datasets: arrays by id, by position, in columns, in file order."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from fastshard._core.gather import positions_of
from fastshard._core.rowreader import RowReader
from fastshard.columnar.arrays import ArraySequence
from fastshard.columnar.asking import TIMEOUT, Asking
from fastshard.columnar.connect import FAULTS, fault_of
from fastshard.columnar.metadata import parse_metadata
from fastshard.columnar.rows import load_samples, some_samples
from fastshard.columnar.snapshot import Snapshot, row_sql, rows_sql
from fastshard.columnar.stacks import stacks_of
from fastshard.columnar.sweep import sweep
from fastshard.errors import (
    ClosedError,
    FormatError,
    SampleNotFoundError,
)
from fastshard.formats.local import Mode
from fastshard.sizes import parse_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard._core.columnsamples import ColumnSamples

__all__ = ["ShardedDatasetReader"]

Arrays = dict[str, "NDArray[Any]"]
AT_ONCE = 1024  # ids that are looked up by one query
WORTH_ALL = 8  # rows are all read once one part in so many was asked for one by one


class Reading:
    """How samples are read of which only some fields are wanted."""

    def __init__(self, fields: list[str], snapshot: Snapshot) -> None:
        self.sql = row_sql(fields)  # of the row of an id
        self.rows = RowReader(fields, snapshot.files.file, snapshot.path)

    @cached_property
    def many_sql(self) -> str:
        """The query of the rows of a JSON array of ids."""
        return rows_sql(self.rows.fields)


class ShardedDatasetReader(Asking):
    """Read a columnar dataset: a snapshot of it, until `refresh`.

    >>> reader = ShardedDatasetReader("my_dataset")
    >>> arrays, metadata = reader.get_sample("sample_000000000001")

    Arrays are views of mapped shards: read-only, without a copy, valid for as long
    as they are referenced. Any thread may use a reader; it survives fork and
    pickles by its path. Datasets that other writers of the format made are read
    without touching a file.

    Parameters
    ----------
    root : str or path-like
        The directory that holds ``index.sqlite``.
    cache_tars : bool
        Keep shards open from call to call.
    mode : {"mmap", "private", "pread"}
        As for `fastshard.open_shard`: ``"private"`` makes arrays writable, in
        memory only; ``"pread"`` copies.
    max_memory : int or str, optional
        Bytes that a `scan` may keep in memory.
    allow_pickle : bool
        Read arrays of Python objects too, with `get_sample` and `get_many`. That
        runs code from the data: only of who you trust.

    Raises
    ------
    FileNotFoundError
        There is no such index.
    FormatError
        It is not one of a columnar dataset.
    OSError
        It cannot be read.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        cache_tars: bool = True,
        *,
        mode: Mode = "mmap",
        max_memory: int | str | None = None,
        allow_pickle: bool = False,
    ) -> None:
        if mode not in ("mmap", "private", "pread"):
            raise ValueError(f'mode is "mmap", "private" or "pread", not {mode!r}')
        super().__init__(root, mode)
        self.cache_tars = cache_tars
        self._options: dict[str, Any] = {
            "mode": mode,
            "max_memory": max_memory,
            "allow_pickle": allow_pickle,
        }
        self._max_memory = None if max_memory is None else parse_size(max_memory)
        self._allow_pickle = allow_pickle
        self._forget()

    def _forget(self) -> None:
        super()._forget()
        self._readings: dict[tuple[str, ...] | None, Reading] = {}
        self._all: ColumnSamples | None = None
        self._arrays: ArraySequence | None = None
        self._asked = 0  # rows, one by one

    def get_sample(
        self, sample_id: str, fields: Iterable[str] | None = None, *, copy: bool = False
    ) -> tuple[Arrays, dict[str, Any]]:
        """Return the arrays of a sample, and its metadata.

        Parameters
        ----------
        sample_id : str
        fields : iterable of str, optional
            Those to read; all that the sample has without them.
        copy : bool
            Return arrays of their own, which can be written to.

        Returns
        -------
        arrays : dict of str to ndarray
            By field, of the shape and dtype that were stored. A field that the
            sample lacks is not in it.
        metadata : dict

        Raises
        ------
        SampleNotFoundError
            There is no such sample (a `KeyError`).
        FieldNotFoundError
            The dataset has no such field (a `KeyError`).
        FormatError
            What the index or a shard says cannot be.
        OSError
            A shard cannot be read.
        """
        connection = self._snapshot.open or self._connection()
        reading = self._readings.get(None) if fields is None else None
        if reading is None:
            reading = self._reading(fields)
        try:
            with connection.lock:
                row = connection.rows.execute(reading.sql, (sample_id,)).fetchone()
        except (*FAULTS, UnicodeEncodeError) as error:
            raise self._fault(error, sample_id) from error
        if row is None:
            raise self._missing(sample_id)
        try:
            arrays = reading.rows.arrays(row, sample_id, copy)
        except FormatError as error:
            arrays = self._with_objects(reading, row, sample_id, copy, error)
        if not self.cache_tars:
            self._snapshot.files.forget()
        return arrays, parse_metadata(row[-1], sample_id, self._snapshot.path)

    def get_many(
        self,
        sample_ids: Iterable[str],
        fields: Iterable[str] | None = None,
        *,
        copy: bool = False,
    ) -> list[tuple[Arrays, dict[str, Any]]]:
        """Return what `get_sample` does, of many samples, in the order given."""
        reading = self._reading(fields)
        ids = list(sample_ids)
        path = self._snapshot.path
        make = reading.rows.arrays
        found = []
        for row, sample_id in zip(self._rows(reading, ids), ids, strict=True):
            try:
                arrays = make(row, sample_id, copy)
            except FormatError as error:
                arrays = self._with_objects(reading, row, sample_id, copy, error)
            found.append((arrays, parse_metadata(row[-2], sample_id, path)))
        if not self.cache_tars:
            self._snapshot.files.forget()
        return found

    def columns(
        self,
        sample_ids: Iterable[Any],
        fields: str | Iterable[str] | None = None,
        *,
        ragged: Literal["error", "list"] = "error",
    ) -> dict[str, Any]:
        """Return fields of many samples, each as one array.

        Parameters
        ----------
        sample_ids : iterable of str or of int
            Ids, or positions in the order that samples were added in.
        fields : str or iterable of str, optional
            All of the dataset's without them.
        ragged : {"error", "list"}
            What of a field whose shape or dtype is not the same in all samples: an
            error; or a list of arrays, without a copy.

        Returns
        -------
        dict of str to ndarray [sample_ids, *shape]
            Copies: they are the caller's own.

        Raises
        ------
        FastshardError
            A field is ragged; the error names the sample.
        FieldNotFoundError
            The dataset, or one of the samples, has no such field.
        SampleNotFoundError, IndexError
            There is no such sample, no such position.
        FormatError, OSError
            As for `get_sample`.
        """
        if ragged not in ("error", "list"):
            raise ValueError(f'ragged is "error" or "list", not {ragged!r}')
        wanted = self._fields(fields)
        samples, order = self._placed(sample_ids)
        found = stacks_of(samples, order, samples.columns_of(wanted), ragged)
        if not self.cache_tars:
            self._snapshot.files.forget()
        return found

    def scan(
        self,
        fields: str | Iterable[str] | None = None,
        where: str | None = None,
        batch_size: int | None = None,
        *,
        params: Sequence[Any] = (),
        ragged: Literal["error", "list"] = "error",
        timeout: float | None = TIMEOUT,
    ) -> Iterator[dict[str, Any]]:
        """Iterate over samples in the order of their bytes, brought before their turn.

        Parameters
        ----------
        fields : str or iterable of str, optional
            Those to read; all of the dataset's without them.
        where, params, timeout
            Of which samples; as for `query_ids`.
        batch_size : int, optional
            Stack so many samples at a time; the last batch may have fewer.
        ragged : {"error", "list"}
            As for `columns`, of a batch.

        Returns
        -------
        iterator of dict
            ``"__key__"`` is the sample's id, and each field that it has an array on
            the shard. With `batch_size` ``"__key__"`` is a list of ids, and each
            field an array ``[samples, *shape]`` of the caller's own.

        Raises
        ------
        FormatError, OSError, FastshardError
            As for `columns`, in the turn of the sample or batch; the iteration ends.
        """
        wanted = self._fields(fields)
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"a batch has at least 1 sample, not {batch_size}")
        ids = None
        if where is not None:
            ids = self.query_ids(where, params, timeout=timeout)
        samples = self._loaded()
        chosen = None if ids is None else samples.find_keys(ids)
        return sweep(samples, wanted, chosen, batch_size, self._max_memory, ragged)

    @property
    def samples(self) -> ArraySequence:
        """All samples as a `Sequence` of dicts from field to array.

        In the order they were added in. The first use reads all rows of the index.
        """
        arrays = self._arrays
        same = self._snapshot.generation == self._generation
        if arrays is not None and same and not self._closed:
            return arrays
        self._check_open()
        if self._arrays is None:
            again = (os.path.abspath(self.root), self.cache_tars, self._options)
            self._arrays = ArraySequence(self._loaded(), again)
        return self._arrays

    def __repr__(self) -> str:
        state = "closed" if self._closed else ", ".join(self._snapshot.folders)
        return f"<ShardedDatasetReader {self.root!r}: {state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_open()
        return _again, (os.path.abspath(self.root), self.cache_tars, self._options)

    def _reading(self, fields: Iterable[str] | None) -> Reading:
        key = None if fields is None else tuple(self._fields(fields))
        found = self._readings.get(key)
        if found is None:
            wanted = self._fields(None) if key is None else list(key)
            found = self._readings[key] = Reading(wanted, self._snapshot)
        return found

    def _rows(self, reading: Reading, ids: list[str]) -> list[tuple[Any, ...]]:
        """Return the rows of some ids; in each the metadata and the id come last."""
        connection = self._connection()
        rows: list[tuple[Any, ...]] = []
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            if not all(isinstance(sample_id, str) for sample_id in some):
                raise self._missing(next(i for i in some if not isinstance(i, str)))
            try:
                with connection.lock:
                    wanted = (json.dumps(some),)
                    rows += connection.execute(reading.many_sql, wanted).fetchall()
            except FAULTS as error:
                raise self._fault(error, "") from error
        for row, sample_id in zip(rows, ids, strict=True):
            if row[-1] != sample_id:  # NULL: there is none
                raise self._missing(sample_id)
        return rows

    def _missing(self, sample_id: Any) -> Exception:
        if isinstance(sample_id, str):
            return SampleNotFoundError(sample_id, self.root)
        return TypeError(f"an id is a str, not {type(sample_id).__name__}")

    def _fault(self, error: Exception, sample_id: Any) -> Exception:
        """Return what is raised instead of an error of looking up an id."""
        if isinstance(error, UnicodeEncodeError) or not isinstance(sample_id, str):
            return self._missing(sample_id)  # half a surrogate pair
        if self._closed:
            return ClosedError(f"the reader of {self.root} is closed")
        assert isinstance(error, FAULTS)
        return fault_of(error, self._snapshot.path)

    def _with_objects(
        self,
        reading: Reading,
        row: tuple[Any, ...],
        sample_id: str,
        copy: bool,
        error: FormatError,
    ) -> Arrays:
        """Return arrays some of which are of objects, if that is allowed."""
        from fastshard.columnar.pickled import arrays_with_objects, is_of_objects

        if self._allow_pickle:
            return arrays_with_objects(reading.rows, row, sample_id, copy)
        if is_of_objects(error):
            reason = f"{error.reason}: allow_pickle=True reads it, and runs its code"
            raise FormatError(reason, error.path, error.offset, error.member)
        raise error

    def _loaded(self) -> ColumnSamples:
        """Return all samples; reads all rows of the index, once."""
        self._check_open()
        if self._all is None:
            self._all = load_samples(self._snapshot)
        return self._all

    def _placed(self, wanted: Iterable[Any]) -> tuple[ColumnSamples, array[int]]:
        """Return samples that have those wanted, and the positions of these."""
        keys: Any = wanted if hasattr(wanted, "dtype") else list(wanted)
        if getattr(keys, "ndim", 1) != 1:
            raise ValueError("ids or positions have one dimension")
        if not len(keys) or not isinstance(keys[0], str):
            samples = self._loaded()
            return samples, positions_of(keys, len(samples))
        keys = keys if type(keys) is list else [str(key) for key in keys]
        if self._all is None:
            self._asked += len(keys)
            if self._asked * WORTH_ALL < len(self):
                rows = self._rows(self._reading(None), keys)
                order = array("q", range(len(keys)))
                return some_samples(self._snapshot, rows, keys), order
        samples = self._loaded()
        return samples, samples.find_keys(keys)


def _again(
    root: str, cache_tars: bool, options: dict[str, Any]
) -> ShardedDatasetReader:
    return ShardedDatasetReader(root, cache_tars, **options)
