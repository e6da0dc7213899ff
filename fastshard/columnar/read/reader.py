"""Reader of columnar datasets: by id, by SQL, in batches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from fastshard._util.options import check_choice, check_option_names
from fastshard._util.sizes import parse_size
from fastshard.columnar.read.batch import scan_samples, stack_columns
from fastshard.columnar.read.lookup import Metadata, RowLookup, SampleKeys
from fastshard.columnar.read.query import Params, query, query_ids
from fastshard.columnar.read.sequence import Arrays, ArraySequence
from fastshard.columnar.read.snapshot import Snapshot
from fastshard.columnar.schema import quote_name
from fastshard.dataset.shardset import ReadOptions
from fastshard.errors import FastshardError
from fastshard.formats.tar import Mode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard.columnar.samples import Unpickle
    from fastshard.dataset.verify import Fault

__all__ = ["TIMEOUT", "ArraySequence", "ShardedDatasetReader"]

TIMEOUT = 30.0  # seconds of a query


class ShardedDatasetReader:
    """Reader of a columnar dataset: a snapshot of it, until `refresh`.

    >>> reader = ShardedDatasetReader("my_dataset")
    >>> arrays, metadata = reader.get_sample("sample_000000000001")

    Arrays are read-only views of mapped shards, not copies, valid for as long as they
    are referenced. A reader may be used by any thread; it survives fork and pickles by
    its path. Datasets made by other writers of the format are read without touching a
    file.

    Once one id in 32 has been looked up, all rows of the index are kept in memory with
    their metadata: about 200 bytes a sample. `samples` and `scan` keep them at once.

    Parameters
    ----------
    root : str or path-like
        The directory that holds ``index.sqlite``.
    cache_tars : bool
        Keep shards open between calls.
    mode : {"mmap", "private", "pread"}
        As for `fastshard.open_shard`: ``"private"`` makes arrays writable, in memory
        only; ``"pread"`` copies.
    max_memory : int or str, optional
        Maximum resident bytes of the shards, by any way of reading.
    allow_pickle : bool
        Read arrays of Python objects too. That runs code from the data: use it only
        for data from a trusted source.

    Raises
    ------
    FileNotFoundError
        The directory has no index.
    FormatError
        The index is not that of a columnar dataset.
    OSError
        The index cannot be read.
    """

    @check_option_names("ShardedDatasetReader")
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
        self.root: str = os.fsdecode(root)
        self._options: dict[str, Any] = {
            "mode": mode,
            "max_memory": max_memory,
            "allow_pickle": allow_pickle,
        }
        limit = None if max_memory is None else parse_size(max_memory)
        self._reading = ReadOptions(max_memory=limit)
        self._ring = self._reading.make_ring()
        unpickle: Unpickle | None = None
        if allow_pickle:
            from fastshard.columnar.read.objects import unpickle_array

            unpickle = unpickle_array
        self._snapshot = Snapshot(
            self.root, mode, ring=self._ring, keep_shards=cache_tars, unpickle=unpickle
        )
        self._lookup = RowLookup(self._snapshot)

    @property
    def cache_tars(self) -> bool:
        """Whether shards stay open between calls."""
        return self._snapshot.keep_shards

    @cache_tars.setter
    def cache_tars(self, keep: bool) -> None:
        self._snapshot.keep_shards = keep

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._snapshot.closed

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._current().count()

    def get_sample(
        self, sample_id: str, fields: Iterable[str] | None = None, *, copy: bool = False
    ) -> tuple[Arrays, Metadata]:
        """Return the arrays and the metadata of a sample.

        Parameters
        ----------
        sample_id : str
        fields : iterable of str, optional
            Fields to read; by default all that the sample has.
        copy : bool
            Return writable copies.

        Returns
        -------
        arrays : dict of str to ndarray
            By field, in the stored shape and dtype, without fields that the sample
            lacks.
        metadata : dict

        Raises
        ------
        SampleNotFoundError
            No sample has this id (a `KeyError`).
        FieldNotFoundError
            The dataset has no such field (a `KeyError`).
        FormatError
            The index or a shard is damaged.
        OSError
            A shard cannot be read.
        """
        lookup = self._lookup
        if lookup.generation != self._snapshot.generation:
            lookup = self._current()
        return lookup.get(sample_id, fields, copy)

    def get_many(
        self,
        sample_ids: Iterable[str],
        fields: Iterable[str] | None = None,
        *,
        copy: bool = False,
    ) -> list[tuple[Arrays, Metadata]]:
        """Return the result of `get_sample` for many samples, in the order given."""
        return self._current().get_many(sample_ids, fields, copy)

    @overload
    def columns(
        self,
        ids: SampleKeys,
        fields: str | Iterable[str] | None = None,
        *,
        ragged: Literal["error"] = "error",
    ) -> Arrays: ...
    @overload
    def columns(
        self,
        ids: SampleKeys,
        fields: str | Iterable[str] | None = None,
        *,
        ragged: Literal["error", "list"],
    ) -> dict[str, NDArray[Any] | list[NDArray[Any]]]: ...
    def columns(
        self,
        ids: SampleKeys,
        fields: str | Iterable[str] | None = None,
        *,
        ragged: Literal["error", "list"] = "error",
    ) -> dict[str, Any]:
        """Return fields of many samples, each field as one array.

        Parameters
        ----------
        ids : iterable of str or of int
            Ids, or positions in insertion order.
        fields : str or iterable of str, optional
            By default all fields of the dataset.
        ragged : {"error", "list"}
            For a field whose shape or dtype differs among the samples: raise
            RaggedError, or return a list of arrays, views of the shards.

        Returns
        -------
        dict of str to ndarray [ids, *shape]
            Copies, writable.

        Raises
        ------
        RaggedError
            A field is ragged; the error names the sample (a `ValueError`).
        FieldNotFoundError
            The dataset, or one of the samples, lacks a field.
        SampleNotFoundError, IndexError
            An id does not exist, or a position is out of range.
        FormatError, OSError
            As for `get_sample`.
        """
        if ragged not in ("error", "list"):
            raise ValueError(f'ragged must be "error" or "list", got {ragged!r}')
        lookup = self._current()
        names = self._snapshot.resolve_fields(fields)
        samples, order = lookup.locate(ids)
        stacks = stack_columns(samples, order, samples.columns_of(names), ragged)
        self._snapshot.release_shards()
        return stacks

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
        """Iterate over samples in file order, prefetching their bytes.

        Parameters
        ----------
        fields : str or iterable of str, optional
            By default all fields of the dataset.
        where, params, timeout
            Condition for the samples; as for `query_ids`.
        batch_size : int, optional
            Samples to stack into each batch; the last batch may be smaller. By
            default samples are not stacked.
        ragged : {"error", "list"}
            As for `columns`, for each batch.

        Returns
        -------
        iterator of dict
            Of each sample: its id as ``"__key__"``, and each field that it has as an
            array, a view of the shard. Of each batch: a list of ids as ``"__key__"``,
            and each field as a writable array ``[samples, *shape]``.

        Raises
        ------
        FormatError, OSError, RaggedError
            As for `columns`, when the iteration reaches the sample or batch, which
            ends it.
        """
        lookup = self._current()
        names = self._snapshot.resolve_fields(fields)
        if "__key__" in names:
            raise FastshardError(
                "the field '__key__' collides with the samples' ids: name other fields"
            )
        if batch_size is not None and batch_size < 1:
            raise ValueError(
                f"batch_size must be an int of at least 1, got {batch_size!r}"
            )
        ids = None
        if where is not None:
            ids = self.query_ids(where, params, timeout=timeout)
        samples = lookup.load()
        positions = None if ids is None else samples.find_keys(ids)
        window = self._reading.window_bytes
        return scan_samples(
            samples, names, positions, batch_size, window, self._ring, ragged
        )

    @property
    def samples(self) -> ArraySequence:
        """All samples as a `Sequence` of dicts from field to array, in insertion order.

        The first use loads all rows of the index.
        """
        lookup = self._lookup
        sequence = lookup.sequence
        if sequence is not None and lookup.generation == self._snapshot.generation:
            return sequence
        lookup = self._current()
        if lookup.sequence is None:
            reduction = _restore_samples, (self._arguments(),)
            lookup.sequence = ArraySequence(lookup.load(), reduction)
        return lookup.sequence

    def list_fields(self) -> list[str]:
        """Return the names of all fields, in the order they were added."""
        self._current()
        return list(self._snapshot.folders)

    def shard_counts(self, field_name: str) -> dict[int, int]:
        """Return the number of samples in each shard of a field, by shard number.

        Raises
        ------
        FieldNotFoundError
            The dataset has no such field.
        """
        self._current()
        self._snapshot.resolve_fields([field_name])
        shard = quote_name(f"{field_name}_shard")
        return dict(
            self._snapshot.select(
                f"SELECT {shard}, COUNT(*) FROM samples WHERE {shard} IS NOT NULL "
                f"GROUP BY {shard} ORDER BY {shard}"
            )
        )

    def query_ids(
        self,
        where: str | None = None,
        params: Params = (),
        limit: int | None = None,
        *,
        timeout: float | None = TIMEOUT,
    ) -> list[str]:
        """Return the ids of the samples that satisfy a condition, in insertion order.

        Parameters
        ----------
        where : str, optional
            An SQL expression over the columns of ``samples``: ``"forecast_offset IS
            NOT NULL"``, ``"json_extract(meta_json, '$.length') > ?"``. It can read
            this index alone, and change nothing.
        params : sequence or mapping
            Values of its ``?``, or ``:name``.
        limit : int, optional
            Maximum number of ids.
        timeout : float, optional
            Seconds; None: no limit.

        Raises
        ------
        QueryError
            `where` is not one valid expression, or not an allowed one.
        QueryTimeoutError
            The query took longer than `timeout`.
        """
        connection = self._snapshot.connect_query()
        return query_ids(connection, where, params, limit, timeout=timeout)

    def query(
        self,
        where: str | None = None,
        params: Params = (),
        columns: Sequence[str] = ("id", "meta_json"),
        limit: int | None = None,
        *,
        timeout: float | None = TIMEOUT,
    ) -> list[dict[str, Any]]:
        """Return columns of the index for some samples, in insertion order.

        Parameters
        ----------
        where, params, limit, timeout
            As for `query_ids`.
        columns : sequence of str
            Columns of ``samples``, among them those made by
            `ShardedDatasetWriter.add_metadata_column`, or SQL expressions.

        Returns
        -------
        list of dict
            Of each sample, by column: None, int, float, str or bytes.
        """
        connection = self._snapshot.connect_query()
        return query(connection, where, params, columns, limit, timeout=timeout)

    def stat(self, *, deep: bool = False) -> dict[str, Any]:
        """Count the dataset's samples and bytes; see `fastshard.columnar.stat`."""
        from fastshard.columnar.stats import stat

        self._current()
        return stat(self._snapshot.home, deep=deep)

    def verify(self) -> list[Fault]:
        """Return the faults of the dataset; see `fastshard.columnar.verify`."""
        from fastshard.columnar.verification import verify

        self._current()
        return verify(
            self._snapshot.home, allow_pickle=self._snapshot.unpickle is not None
        )

    def refresh(self) -> None:
        """Move to the present state of the dataset."""
        try:
            self._snapshot.refresh()
        finally:
            self._lookup = RowLookup(self._snapshot)

    def close(self) -> None:
        """Close the index and the shards. Arrays stay valid."""
        if not self._snapshot.closed:
            self._snapshot.close()

    def _current(self) -> RowLookup:
        """Return the lookup of the snapshot's state, a new one after a fork.

        Raises
        ------
        ClosedError
            The reader is closed.
        """
        self._snapshot.connect()
        if self._lookup.generation != self._snapshot.generation:
            self._lookup = RowLookup(self._snapshot)
        return self._lookup

    def _arguments(self) -> tuple[str, bool, dict[str, Any]]:
        return self._snapshot.home, self.cache_tars, self._options

    def __enter__(self) -> Self:
        self._current()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else ", ".join(self._snapshot.folders)
        return f"<ShardedDatasetReader {self.root!r}: {state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        self._current()
        return _restore_reader, self._arguments()


def _restore_reader(
    root: str, cache_tars: bool, options: dict[str, Any]
) -> ShardedDatasetReader:
    """Open a reader from its pickle."""
    return ShardedDatasetReader(root, cache_tars, **options)


def _restore_samples(args: tuple[str, bool, dict[str, Any]]) -> ArraySequence:
    """Open the samples of a reader from their pickle."""
    return _restore_reader(*args).samples


# The names in pickles of version 0.1.
_again = _restore_reader
_samples_again = _restore_samples
