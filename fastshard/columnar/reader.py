"""Reading columnar datasets: arrays by id, by position, in columns, in file order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, overload

from fastshard._util.options import check_choice, named_options
from fastshard._util.sizes import parse_size
from fastshard.columnar.arrays import Arrays, ArraySequence
from fastshard.columnar.asking import TIMEOUT
from fastshard.columnar.connect import FAULTS
from fastshard.columnar.looking import Looking
from fastshard.columnar.metadata import parse_metadata
from fastshard.columnar.query import Params
from fastshard.columnar.stacks import stacks_of
from fastshard.columnar.sweep import sweep
from fastshard.dataset.shardset import Reading as Memory
from fastshard.errors import FastshardError, FormatError, SampleNotFoundError
from fastshard.formats.tar import Mode

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ShardedDatasetReader"]


class ShardedDatasetReader(Looking):
    """Read a columnar dataset: a snapshot of it, until `refresh`.

    >>> reader = ShardedDatasetReader("my_dataset")
    >>> arrays, metadata = reader.get_sample("sample_000000000001")

    Arrays are views of mapped shards: read-only, without a copy, valid for as long
    as they are referenced. Any thread may use a reader; it survives fork and
    pickles by its path. Datasets that other writers of the format made are read
    without touching a file.

    Once one id in 32 was asked for, all rows of the index are kept in memory, with
    their metadata: some 200 bytes a sample. `samples` and `scan` keep them at once.

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
        Bytes of the shards that may be resident, however they are read.
    allow_pickle : bool
        Read arrays of Python objects too. That runs code from the data: only of who
        you trust.

    Raises
    ------
    FileNotFoundError
        There is no such index.
    FormatError
        It is not one of a columnar dataset.
    OSError
        It cannot be read.
    """

    @named_options("ShardedDatasetReader")
    def __init__(
        self,
        root: str | os.PathLike[str],
        cache_tars: bool = True,
        *,
        mode: Mode = "mmap",
        max_memory: int | str | None = None,
        allow_pickle: bool = False,
    ) -> None:
        check_choice("mode", mode, ("mmap", "private", "pread"))
        most = None if max_memory is None else parse_size(max_memory)
        self._memory = Memory(max_memory=most)
        self._ring = self._memory.ring()
        super().__init__(root, mode, cache_tars, allow_pickle, self._ring)
        self._options: dict[str, Any] = {
            "mode": mode,
            "max_memory": max_memory,
            "allow_pickle": allow_pickle,
        }
        self._forget()

    def _forget(self) -> None:
        super()._forget()
        self._arrays: ArraySequence | None = None

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
        if type(sample_id) is not str:
            sample_id = self._plain(sample_id)
        connection = self._snapshot.open or self._connection()
        reading = self._looked.readings.get(None) if fields is None else None
        if reading is None or self._generation != self._snapshot.generation:
            reading = self._reading(fields)
        if reading.known is not None:
            try:
                found = reading.known.one(sample_id, copy)
            finally:
                self._let_go()
            if found is not None:
                return found
        try:
            with connection.lock:
                row = connection.rows.execute(reading.sql, (sample_id,)).fetchone()
        except (*FAULTS, UnicodeEncodeError) as error:
            raise self._fault(error, sample_id) from error
        if row is None:
            raise SampleNotFoundError(sample_id, self.root)
        try:
            arrays = reading.rows.arrays(row, sample_id, copy)
        except FormatError as error:
            arrays = self._with_objects(reading, row, sample_id, copy, error)
        self._let_go()
        self._note_looked_up(1)
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
        ids = self._ids(sample_ids)
        if reading.known is not None:
            try:
                known = reading.known.many(ids, copy)
            finally:
                self._let_go()
            if known is not None:
                return known
        path = self._snapshot.path
        make = reading.rows.arrays
        found = []
        for row, sample_id in zip(self._rows(reading, ids), ids, strict=True):
            try:
                arrays = make(row, sample_id, copy)
            except FormatError as error:
                arrays = self._with_objects(reading, row, sample_id, copy, error)
            found.append((arrays, parse_metadata(row[-2], sample_id, path)))
        self._let_go()
        self._note_looked_up(len(ids))
        return found

    @overload
    def columns(
        self,
        ids: Iterable[Any],
        fields: str | Iterable[str] | None = None,
        *,
        ragged: Literal["error"] = "error",
    ) -> Arrays: ...
    @overload
    def columns(
        self,
        ids: Iterable[Any],
        fields: str | Iterable[str] | None = None,
        *,
        ragged: Literal["error", "list"],
    ) -> dict[str, NDArray[Any] | list[NDArray[Any]]]: ...
    def columns(
        self,
        ids: Iterable[Any],
        fields: str | Iterable[str] | None = None,
        *,
        ragged: Literal["error", "list"] = "error",
    ) -> dict[str, Any]:
        """Return fields of many samples, each as one array.

        Parameters
        ----------
        ids : iterable of str or of int
            Ids, or positions in the order that samples were added in.
        fields : str or iterable of str, optional
            All of the dataset's without them.
        ragged : {"error", "list"}
            What of a field whose shape or dtype is not the same in all samples: an
            error; or a list of arrays, without a copy.

        Returns
        -------
        dict of str to ndarray [ids, *shape]
            Copies: they are the caller's own.

        Raises
        ------
        RaggedError
            A field is ragged; the error names the sample (a `ValueError`).
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
        samples, order = self._placed(ids)
        found = stacks_of(samples, order, samples.columns_of(wanted), ragged)
        self._let_go()
        return found

    def scan(
        self,
        fields: str | Iterable[str] | None = None,
        where: str | None = None,
        batch_size: int | None = None,
        *,
        params: Params = (),
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
        FormatError, OSError, RaggedError
            As for `columns`, in the turn of the sample or batch; the iteration ends.
        """
        wanted = self._fields(fields)
        if "__key__" in wanted:
            raise FastshardError(
                "a field is called '__key__', as the ids are: name other fields"
            )
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"a batch has at least 1 sample, not {batch_size}")
        ids = None
        if where is not None:
            ids = self.query_ids(where, params, timeout=timeout)
        samples = self._loaded()
        chosen = None if ids is None else samples.find_keys(ids)
        ahead = self._memory.window_bytes
        return sweep(samples, wanted, chosen, batch_size, ahead, self._ring, ragged)

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
            again = (self._home, self.cache_tars, self._options)
            self._arrays = ArraySequence(self._loaded(), again)
        return self._arrays

    def __repr__(self) -> str:
        state = "closed" if self._closed else ", ".join(self._snapshot.folders)
        return f"<ShardedDatasetReader {self.root!r}: {state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_open()
        return _again, (self._home, self.cache_tars, self._options)


def _again(
    root: str, cache_tars: bool, options: dict[str, Any]
) -> ShardedDatasetReader:
    return ShardedDatasetReader(root, cache_tars, **options)
