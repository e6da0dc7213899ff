"""Reader of columnar datasets: by id, by SQL, in batches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex, overload

from fastshard._util.options import check_choice, check_option_names
from fastshard._util.sizes import parse_size
from fastshard._util.terminal import escape_line, join_names
from fastshard.columnar.layout.schema import INDEX_NAME, quote_name
from fastshard.columnar.read.batch import scan_samples
from fastshard.columnar.read.dataset_schema import DatasetSchema, read_schema
from fastshard.columnar.read.lookup import Metadata, RowLookup, SampleKeys
from fastshard.columnar.read.query import Params, query, query_ids
from fastshard.columnar.read.selection import RowSelection
from fastshard.columnar.read.sequence import Arrays, ArraySequence
from fastshard.columnar.read.snapshot import Snapshot
from fastshard.columnar.read.stacks.selection import StackSelection
from fastshard.columnar.read.stacks.stacking import Stacking
from fastshard.columnar.read.stacks.tables import TableBuilder
from fastshard.columnar.shardset import ColumnSet
from fastshard.dataset.paths.not_found import unmarked_error
from fastshard.dataset.sequence.torch_base import Dataset as TorchDataset
from fastshard.dataset.shardset import ReadOptions
from fastshard.errors import FastshardError
from fastshard.formats.stacking.padding import Padding, Ragged
from fastshard.formats.tar import Mode

if TYPE_CHECKING:
    from fastshard.columnar.layout.headers import Unpickle
    from fastshard.columnar.read.column_sample import ColumnSample
    from fastshard.columnar.windows import WindowDataset
    from fastshard.dataset.dataset import Dataset
    from fastshard.dataset.verify import Fault

__all__ = ["TIMEOUT", "ArraySequence", "ShardedDatasetReader"]

MAX_SELECTIONS = 64  # that are kept for `columns`
TIMEOUT = 30.0  # seconds of a query
HAS_ID = "SELECT 1 FROM samples WHERE id = ?"


class ShardedDatasetReader(TorchDataset[Arrays]):
    """Read a columnar dataset: samples by id, by position, by a query, or all of them.

    A reader sees the dataset as it was when the reader was made, until `refresh`.

    It is a map-style dataset for `torch.utils.data.DataLoader`, of all samples in
    insertion order: ``reader[i]`` is the dict of the sample's arrays.

    Arrays are views of the shards' memory, not copies, except small ones that
    `get_sample` reads first from one of many shards. They are read-only unless `mode`
    is ``"private"``, and valid for as long as they are referenced, also after `close`.
    Threads may share a reader. It survives fork and pickles by its path and options.

    Samples are looked up in the index one by one at first. Once many have been looked
    up (one in 32 of all, 256 at least), all rows of the index are loaded, with their
    metadata: about 200 bytes of memory a sample. `samples` and `scan` load them at
    once.

    Parameters
    ----------
    root : str or path-like
        The dataset's directory, which holds ``index.sqlite``.
    cache_tars : bool
        Keep shards open between calls.
    mode : {"mmap", "private", "pread"}
        How shards are read. ``"mmap"`` maps them, and arrays are read-only.
        ``"private"`` makes arrays writable, in memory only: the files never change.
        ``"pread"`` copies each array.
    max_memory : int or str, optional
        Maximum resident bytes of mapped shards, as a number or as ``"1GiB"``.
    allow_pickle : bool
        Read arrays of Python objects too. That runs code from the data: use it only
        for data from a trusted source.

    Attributes
    ----------
    root : str
        The directory, as it was given.

    Raises
    ------
    ShardNotFoundError
        The directory has no ``index.sqlite`` (a `FileNotFoundError`).
    FormatError
        The index is not that of a columnar dataset.
    OSError
        The index cannot be read.
    TypeError, ValueError
        An option is misspelt, or has an invalid value.

    Examples
    --------
    >>> import numpy as np
    >>> from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
    >>> with ShardedDatasetWriter("weather") as writer:
    ...     writer.add_fields(["history", "target"])
    ...     arrays = {"history": np.arange(4), "target": np.ones(2)}
    ...     sample_id = writer.add_sample(arrays, metadata={"city": "Bonn"})
    >>> reader = ShardedDatasetReader("weather")
    >>> arrays, metadata = reader.get_sample("sample_000000000001")
    >>> arrays["history"], metadata
    (array([0, 1, 2, 3]), {'city': 'Bonn'})
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
        options: dict[str, Any] = {"ring": self._ring, "keep_shards": cache_tars}
        try:
            self._snapshot = Snapshot(self.root, mode, unpickle=unpickle, **options)
        except FileNotFoundError:
            raise unmarked_error(self.root, "columnar", INDEX_NAME) from None
        self._lookup = RowLookup(self._snapshot)
        self._items: ArraySequence | None = None  # of the state at its first use

    @property
    def cache_tars(self) -> bool:
        """True if shards stay open between calls; may be set.

        Examples
        --------
        >>> reader.cache_tars
        True
        """
        return self._snapshot.keep_shards

    @cache_tars.setter
    def cache_tars(self, keep: bool) -> None:
        self._snapshot.keep_shards = keep

    @property
    def closed(self) -> bool:
        """True after `close`.

        Examples
        --------
        >>> reader.closed
        False
        """
        return self._snapshot.closed

    def __len__(self) -> int:
        """Return the number of samples.

        Returns
        -------
        int
            Samples of the snapshot, with or without arrays.

        Raises
        ------
        ClosedError
            The reader is closed.
        FormatError, OSError
            The index cannot be read.

        Examples
        --------
        >>> len(reader)
        3
        """
        items = self._items
        if items is not None and not self._snapshot.closed:
            return len(items)
        return self._current().count()

    @overload
    def __getitem__(self, key: SupportsIndex | str) -> Arrays: ...
    @overload
    def __getitem__(self, key: slice) -> list[Arrays]: ...
    def __getitem__(self, key: SupportsIndex | str | slice) -> Arrays | list[Arrays]:
        """Return the arrays of a sample, or of a slice of samples.

        The first use by position loads all rows of the index; use the reader so before
        worker processes fork, ``reader[0]``, and they share the rows. A forked process
        continues with the samples of that moment; one that unpickles the reader opens
        the dataset anew.

        Parameters
        ----------
        key : int, slice or str
            Position in insertion order, negative ones from the end; or a sample's id.

        Returns
        -------
        dict of str to ndarray, or list of them
            By field, as an item of `samples`: views of the shards. Fields that the
            sample lacks are left out.

        Raises
        ------
        IndexError
            The position is out of range.
        SampleNotFoundError
            No sample has this id (a `KeyError`).
        FormatError, OSError
            An array, or the index, cannot be read.
        ClosedError
            The reader is closed.

        Examples
        --------
        >>> reader[1]
        {'history': array([1, 1, 1, 1]), 'target': array([1., 1.])}
        >>> len(reader[1:]), reader["sample_000000000003"]["history"]
        (2, array([2, 2, 2, 2]))
        """
        if isinstance(key, str):
            return self.get_sample(key)[0]
        return self._get_items()[key]

    def __getitems__(self, positions: Iterable[int]) -> list[Arrays]:
        """Return several samples: torch's DataLoader fetches a batch by this method.

        The arrays of a field are rows of one new array, and writable.
        """
        return self._get_items().__getitems__(positions)

    def __iter__(self) -> Iterator[Arrays]:
        """Iterate over the arrays of all samples, in insertion order.

        `scan` is faster: it reads in the order of the bytes, and ahead.
        """
        return iter(self._get_items())

    def __contains__(self, sample_id: object) -> bool:
        """Return whether a sample has this id."""
        if not isinstance(sample_id, str):
            self._current()
            return False
        try:
            return bool(self._snapshot.select(HAS_ID, (str.__str__(sample_id),)))
        except UnicodeEncodeError:  # half a surrogate pair is in no id
            return False

    def get_sample(
        self, sample_id: str, fields: Iterable[str] | None = None, *, copy: bool = False
    ) -> tuple[Arrays, Metadata]:
        """Return the arrays and the metadata of a sample.

        Parameters
        ----------
        sample_id : str
            The sample's id.
        fields : iterable of str, optional
            Fields to read; by default all that the sample has.
        copy : bool
            Return writable copies instead of views of the shards.

        Returns
        -------
        arrays : dict of str to ndarray
            By field, in the stored shape and dtype. Fields that the sample lacks are
            left out.
        metadata : dict
            As the writer stored it; ``{}`` if there is none.

        Raises
        ------
        SampleNotFoundError
            No sample has this id (a `KeyError`).
        FieldNotFoundError
            The dataset has no such field (a `KeyError`).
        FormatError
            The index or a shard is damaged, or an array holds Python objects and
            `allow_pickle` is not set.
        ClosedError
            The reader is closed.
        OSError
            A shard cannot be read.

        Examples
        --------
        >>> arrays, metadata = reader.get_sample("sample_000000000001", ["target"])
        >>> arrays, metadata
        ({'target': array([1., 1.])}, {'day': 0})
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
        """Return the arrays and the metadata of many samples.

        Parameters
        ----------
        sample_ids : iterable of str
            Ids; one may occur several times.
        fields : iterable of str, optional
            Fields to read; by default all that each sample has.
        copy : bool
            Return writable copies instead of views of the shards.

        Returns
        -------
        list of (dict, dict)
            Arrays and metadata as `get_sample` returns them, in the order of the ids.

        Raises
        ------
        SampleNotFoundError, FieldNotFoundError, FormatError, ClosedError, OSError
            As for `get_sample`.
        TypeError
            `sample_ids` is a str, or has an item that is not a str.

        Examples
        --------
        >>> ids = ["sample_000000000003", "sample_000000000001"]
        >>> [metadata for arrays, metadata in reader.get_many(ids)]
        [{'day': 2}, {'day': 0}]
        """
        return self._current().get_many(sample_ids, fields, copy)

    @overload
    def columns(
        self,
        ids: SampleKeys,
        fields: None = None,
        *,
        ragged: Literal["error"] = "error",
        fill: None = None,
        missing: Any = "error",
        lengths: bool = True,
    ) -> Arrays: ...
    @overload
    def columns(
        self,
        ids: SampleKeys,
        fields: str | Iterable[str] | None = None,
        *,
        ragged: Ragged = "error",
        fill: Any = None,
        missing: Any = "error",
        lengths: bool = True,
    ) -> dict[str, Any]: ...
    def columns(
        self,
        ids: SampleKeys,
        fields: str | Iterable[str] | None = None,
        *,
        ragged: Ragged = "error",
        fill: Any = None,
        missing: Any = "error",
        lengths: bool = True,
    ) -> dict[str, Any]:
        """Return fields of many samples, each field as one array.

        Parameters
        ----------
        ids : iterable of str or of int
            Ids, or positions in insertion order.
        fields : str or iterable of str, optional
            Fields to read, and metadata columns, those of
            `ShardedDatasetWriter.add_metadata_column`; by default all fields of the
            dataset, and no metadata column. A name of both is the field.
        ragged : {"error", "list", "pad"}, default "error"
        fill : scalar, or mapping of str to scalar, optional
            As for `fastshard.collate`. Arrays of a list are views of the shards.
        missing : "error", scalar, or mapping of str to scalar
            For samples that lack a field, as those made before the field was: raise
            `FieldNotFoundError`, or fill their rows with a value, for all fields or by
            field; None among them stands for NaN, NaT, or zero in dtypes that have
            neither. For a metadata column it is the value in place of NULL.
        lengths : bool, default True
            As for `fastshard.collate`.

        Returns
        -------
        dict of str to ndarray [ids, *shape]
            Writable copies, in the order of `ids`. A metadata column of type INTEGER is
            int64, one of REAL float64, any other a list of its values. With
            ``ragged="pad"`` also ``"__lengths__"``, 0 for samples that lack a field.

        Raises
        ------
        RaggedError
            A field is ragged, or cannot be padded; the error names the samples (a
            `ValueError`).
        FieldNotFoundError
            The dataset, or one of the samples, lacks a field, or a metadata column is
            NULL.
        SampleNotFoundError, IndexError
            An id does not exist, or a position is out of range.
        TypeError, ValueError
            `ids` are not ids or positions in one dimension, or are a mask; or a value
            of `fill` or `missing` cannot be stored in a field's dtype.
        QueryTimeoutError
            Reading a metadata column took longer than 30 seconds.
        FastshardError
            A metadata column holds a value that is not of its type.
        FormatError, ClosedError, OSError
            As for `get_sample`.

        Examples
        --------
        >>> reader.columns(["sample_000000000002", "sample_000000000003"], "history")
        {'history': array([[1, 1, 1, 1],
               [2, 2, 2, 2]])}
        >>> reader.columns([-1, 0], "history")["history"].shape
        (2, 4)

        Arrays of different lengths:

        >>> with ShardedDatasetWriter("series") as writer:
        ...     arrays = {"history": np.array([7, 8])}
        ...     sample_id = writer.add_sample(arrays, metadata={"day": 3})
        >>> reader.refresh()
        >>> padded = reader.columns(
        ...     [2, 3], "history", ragged="pad", fill=-1
        ... )
        >>> padded["history"]
        array([[ 2,  2,  2,  2],
               [ 7,  8, -1, -1]])
        >>> is_data = np.arange(4) < padded["__lengths__"]["history"]
        >>> padded["history"][is_data]
        array([2, 2, 2, 2, 7, 8])

        The new sample lacks the field ``target``:

        >>> reader.columns([2, 3], "target", missing=np.nan)
        {'target': array([[ 1.,  1.],
               [nan, nan]])}
        """
        lookup = self._current()
        if fields is not None and not isinstance(fields, str):
            fields = tuple(fields)
        is_default = ragged == "error" and fill is None
        is_default = is_default and type(missing) is str and missing == "error"
        selection = lookup.selections.get(fields) if is_default else None
        if selection is None:
            if isinstance(missing, str) and missing == "skip":
                raise ValueError(
                    'columns(missing="skip") would leave out ids: select those that '
                    'have the fields, as query_ids("NAME_offset IS NOT NULL", ids=ids)'
                )
            selection = StackSelection(
                lookup.metadata,
                fields,
                Stacking(Padding(ragged, fill, lengths), missing),
                ("error",),
                lookup.load,
            )
            if is_default and len(lookup.selections) < MAX_SELECTIONS:
                lookup.selections[fields] = selection
        samples, order = lookup.locate(ids)
        stacks = selection.stack(samples, order)
        self._snapshot.release_shards()
        return stacks

    def scan(
        self,
        fields: str | Iterable[str] | None = None,
        where: str | None = None,
        batch_size: int | None = None,
        *,
        params: Params = (),
        ragged: Ragged = "error",
        fill: Any = None,
        missing: Any = None,
        lengths: bool = True,
        timeout: float | None = TIMEOUT,
    ) -> Iterator[dict[str, Any]]:
        """Iterate over samples in file order, prefetching their bytes.

        The order is that of the first field's bytes; samples without that field come
        last.

        Parameters
        ----------
        fields : str or iterable of str, optional
            Fields to read, and metadata columns, as for `columns`; by default all
            fields of the dataset, and no metadata column.
        where : str, optional
            Condition for the samples; as for `query_ids`.
        batch_size : int, optional
            Samples to stack into each batch; the last batch may be smaller. By default
            samples are not stacked.
        params : sequence or mapping
            Values for the placeholders of `where`.
        ragged, fill
            As for `columns`, for each batch: its arrays are padded to the largest among
            them.
        missing : "error", "skip", scalar, or mapping of str to scalar, optional
            For samples that lack a field, as those made before the field was, or whose
            metadata column is NULL: raise `FieldNotFoundError`; leave the samples out;
            or fill with a value, as for `columns`. By default a batch with such a
            sample is an error, and a single sample has no such entry.
        lengths : bool, default True
            As for `columns`.
        timeout : float, optional
            Seconds that the query of `where` may take; None: no limit.

        Returns
        -------
        iterator of dict
            Of each sample: its id as ``"__key__"``, and each field that it has as an
            array, a view of the shard. Of each batch: a list of ids as ``"__key__"``,
            and each field as a writable array ``[samples, *shape]``. A metadata column
            is a value, or of a batch as for `columns`.

        Raises
        ------
        FieldNotFoundError
            The dataset has no such field; during the iteration, a sample lacks it.
        QueryError, QueryTimeoutError
            As for `query_ids`.
        FormatError, OSError, RaggedError, ValueError
            As for `columns`, when the iteration reaches the sample or batch, which ends
            it.
        FastshardError
            A field is named ``"__key__"``: name the others in `fields`.
        ClosedError
            The reader is closed.
        ValueError
            `batch_size` is below 1, or an option is invalid.

        Examples
        --------
        >>> for sample in reader.scan("history"):
        ...     print(sample["__key__"], sample["history"].sum())
        sample_000000000001 0
        sample_000000000002 4
        sample_000000000003 8
        >>> for batch in reader.scan("target", batch_size=2):
        ...     print(len(batch["__key__"]), batch["target"].shape)
        2 (2, 2)
        1 (1, 2)

        A field that was added later, and a metadata column:

        >>> with ShardedDatasetWriter("series") as writer:
        ...     writer.add_field("forecast")
        ...     writer.add_metadata_column("day", "$.day", int)
        ...     writer.update_sample("sample_000000000003", {"forecast": np.ones(2)})
        >>> reader.refresh()
        >>> for batch in reader.scan(["forecast", "day"], batch_size=9, missing=0):
        ...     print(batch["forecast"].tolist(), batch["day"])
        [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]] [2 0 1]
        >>> for sample in reader.scan(["forecast", "day"], missing="skip"):
        ...     print(sample)
        {'__key__': 'sample_000000000003', 'forecast': array([1., 1.]), 'day': 2}
        """
        lookup = self._current()
        stacking = Stacking(Padding(ragged, fill, lengths), missing)
        selection = StackSelection(
            lookup.metadata, fields, stacking, ("error", "skip"), lookup.load
        )
        if "__key__" in selection.names:
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
        return scan_samples(
            samples,
            selection.fields,
            selection.begin_scan(samples, positions),
            batch_size,
            self._reading.window_bytes,
            self._ring,
            partial(selection.stack, samples),
            selection.completer(samples),
        )

    @property
    def samples(self) -> ArraySequence:
        """All samples as a sequence of dicts from field to array, in insertion order.

        The first use loads all rows of the index. `torch.utils.data.DataLoader` takes
        the sequence as a map-style dataset.

        Returns
        -------
        ArraySequence
            Its arrays are views of the shards. Take it anew after `refresh`: an older
            one does not see the new state, and its shards may be gone after `compact`.

        Raises
        ------
        ClosedError
            The reader is closed.
        FormatError, OSError
            The index cannot be read.

        Examples
        --------
        >>> len(reader.samples), reader.samples[-1]["history"]
        (3, array([2, 2, 2, 2]))
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

    def dataset(
        self,
        where: str | None = None,
        params: Params = (),
        fields: str | Iterable[str] | None = None,
        *,
        timeout: float | None = TIMEOUT,
    ) -> Dataset[ColumnSample]:
        """Return a `fastshard.Dataset` of the samples that satisfy a condition.

        The query runs now; rows of the index are loaded at the first use, and no array
        is read before its sample is accessed.

        Parameters
        ----------
        where : str, optional
            Condition for the samples; as for `query_ids`. By default all samples: the
            dataset equals ``fastshard.open(root)``.
        params : sequence or mapping
            Values for the placeholders of `where`.
        fields : str or iterable of str, optional
            Fields of the samples, and metadata columns; by default all fields. As of
            `Dataset.select_fields`.
        timeout : float, optional
            Seconds that the query may take; None: no limit.

        Returns
        -------
        Dataset of ColumnSample
            The samples in insertion order. It shares the reader's index, shards and
            options, and is closed with the reader. After `refresh` take it anew, as
            `samples`.

        Raises
        ------
        FieldNotFoundError
            The dataset has no such field.
        QueryError, QueryTimeoutError, ClosedError, FormatError, OSError
            As for `query_ids`.

        Notes
        -----
        A state resumes with the same samples: once others satisfy the condition,
        `Dataset.resume` raises `StateError`. Samples that do not satisfy it may come
        and go. A pickle holds the ids, not the query: unpickled, it has the same
        samples, and raises `SampleNotFoundError` if one was deleted. With all samples
        it holds the path, and has those of the present state.

        Examples
        --------
        >>> late = reader.dataset("json_extract(meta_json, '$.day') > ?", (0,))
        >>> len(late), late[0].metadata
        (2, {'day': 1})
        >>> [batch["history"].shape for batch in late.shuffle(seed=7).batches(2)]
        [(2, 4)]
        """
        from fastshard.dataset.dataset import Dataset

        lookup = self._current()
        names = None
        if fields is not None:
            names = [fields] if isinstance(fields, str) else list(fields)
            lookup.metadata.split(names)  # raises
        ids = None
        if where is not None:
            ids = self.query_ids(where, params, timeout=timeout)
        selected: Dataset[Any] = Dataset(self._select(lookup, ids, where or ""))
        if names is not None:
            selected = selected.select_fields(*names)
        return selected

    def windows(
        self,
        fields: str | Iterable[str],
        length: int,
        stride: int = 1,
        where: str | None = None,
        params: Params = (),
        *,
        timeout: float | None = TIMEOUT,
    ) -> WindowDataset[dict[str, Any]]:
        """Return a dataset of windows along the first axis of each sample's arrays.

        The query runs now; headers are read once, at the first use, for the lengths of
        the arrays.

        Parameters
        ----------
        fields : str or iterable of str
            One field or more. The arrays of a sample must have the same number of
            steps, the length of the first axis.
        length : int
            Steps of a window.
        stride : int, default 1
            Steps from the start of a window to that of the next.
        where : str, optional
            Condition for the samples; as for `query_ids`. By default all samples.
        params : sequence or mapping
            Values for the placeholders of `where`.
        timeout : float, optional
            Seconds that the query may take; None: no limit.

        Returns
        -------
        WindowDataset
            ``windows[i]`` is a dict of ``"__key__"``, ``"__start__"``, the window's
            first step, and each field: a view of the shard, ``[length, ...]``.
            ``windows.batches(n)`` gives a list of n ids, and arrays ``[n]`` and
            ``[n, length, ...]``. Every window is whole: samples that are shorter, or
            lack a field, have no window, and are counted by ``short_sample_count``. The
            dataset is closed with the reader.

        Raises
        ------
        FieldNotFoundError
            The dataset has no such field.
        RaggedError
            At the first use: the fields of a sample differ in length, or an array has
            no axes; the error names the sample.
        FormatError, OSError
            As for `get_sample`.
        QueryError, QueryTimeoutError, ClosedError
            As for `query_ids`.
        ValueError, TypeError
            A number is out of range or not an int, or there is no field.

        Notes
        -----
        A window costs no memory, a sample 8 bytes. A state resumes with windows of the
        same samples, lengths and options, and raises `StateError` otherwise. A pickle
        has the same windows: with a condition it holds the ids of the samples; without
        one it raises `StateError` once samples were added or removed.

        Examples
        --------
        >>> windows = reader.windows("history", 3, stride=1)
        >>> len(windows), windows[1]["__start__"], windows[1]["history"]
        (6, 1, array([0, 0, 0]))
        >>> batch = next(windows.shuffle(seed=7).batches(4))
        >>> batch["history"].shape, batch["__start__"].shape, len(batch["__key__"])
        ((4, 3), (4,), 4)
        """
        from fastshard.columnar.windows import (
            SeriesWindows,
            WindowDataset,
            WindowOptions,
        )

        lookup = self._current()
        names = self._snapshot.resolve_fields(fields)
        options = WindowOptions.checked(names, length, stride)
        ids = None
        if where is not None:
            ids = self.query_ids(where, params, timeout=timeout)
        return WindowDataset(
            SeriesWindows(self._select(lookup, ids, where or ""), options)
        )

    def list_fields(self) -> list[str]:
        """Return the names of all fields, in the order they were added.

        Raises
        ------
        ClosedError
            The reader is closed.

        Examples
        --------
        >>> reader.list_fields()
        ['history', 'target']
        """
        self._current()
        return list(self._snapshot.folders)

    def to_arrow(
        self,
        ids: SampleKeys | None = None,
        fields: str | Iterable[str] | None = None,
    ) -> Any:
        """Return samples as a ``pyarrow.Table``.

        Arrays are copied once, from the shards into the table's memory; booleans, texts
        and dates are converted once more.

        Parameters
        ----------
        ids : iterable of str or of int, optional
            Ids, or positions in insertion order; by default all samples.
        fields : str or iterable of str, optional
            Fields and metadata columns; by default all of both.

        Returns
        -------
        pyarrow.Table
            A column ``id`` of strings, and one for each field and metadata column, null
            where a sample has no value. Arrays without axes become values; of one axis
            and equal lengths ``fixed_size_list``; of more axes and equal shapes
            ``fixed_shape_tensor``, an extension type whose ``to_numpy_ndarray`` is a
            view; all others lists, nested as deep as they have axes. A metadata column
            of type INTEGER is int64, REAL double, TEXT string.

        Raises
        ------
        MissingLibraryError
            pyarrow is not installed (an `ImportError`).
        FastshardError
            A field has no Arrow type: complex numbers, structures, or arrays that
            differ in dtype or number of axes; or a metadata column holds a value that
            is not of its type.
        FieldNotFoundError
            The dataset has neither a field nor a metadata column of a name.
        SampleNotFoundError, IndexError, TypeError, ValueError
            As for `columns`.
        FormatError, ClosedError, OSError, QueryTimeoutError
            As for `columns`.

        Examples
        --------
        >>> table = reader.to_arrow(["sample_000000000002", "sample_000000000003"])
        >>> for column in table.schema:
        ...     print(column.name, column.type)
        id string
        history fixed_size_list<item: int64>[4]
        target fixed_size_list<item: double>[2]
        >>> table["history"].to_pylist()
        [[1, 1, 1, 1], [2, 2, 2, 2]]
        """
        table = self._build_table(ids, fields).to_arrow()
        self._snapshot.release_shards()
        return table

    def to_pandas(
        self,
        ids: SampleKeys | None = None,
        fields: str | Iterable[str] | None = None,
    ) -> Any:
        """Return samples as a ``pandas.DataFrame``, indexed by id.

        Parameters
        ----------
        ids, fields
            As for `to_arrow`.

        Returns
        -------
        pandas.DataFrame
            With the index ``id``, and a column for each field and metadata column.
            Arrays without axes become values of their dtype; all others are NumPy
            arrays, one in each cell, rows of one copy if their shapes are equal. A
            sample without a value has None in a column of arrays, NaN or NA in one of
            values. A metadata column of type INTEGER is int64, or Int64 if it has NULL;
            REAL is float64, any other object.

        Raises
        ------
        MissingLibraryError
            pandas is not installed (an `ImportError`).
        FastshardError
            A metadata column holds a value that is not of its type.
        FieldNotFoundError
            The dataset has neither a field nor a metadata column of a name.
        SampleNotFoundError, IndexError, TypeError, ValueError
            As for `columns`.
        FormatError, ClosedError, OSError, QueryTimeoutError
            As for `columns`.

        Examples
        --------
        >>> frame = reader.to_pandas([0, 2], "history")
        >>> frame
                                  history
        id
        sample_000000000001  [0, 0, 0, 0]
        sample_000000000003  [2, 2, 2, 2]
        >>> frame.loc["sample_000000000003", "history"].mean()
        np.float64(2.0)
        """
        frame = self._build_table(ids, fields).to_pandas()
        self._snapshot.release_shards()
        return frame

    def _build_table(
        self, ids: SampleKeys | None, fields: str | Iterable[str] | None
    ) -> TableBuilder:
        """Return the builder of a table of samples."""
        import numpy as np

        lookup = self._current()
        table = lookup.metadata
        if fields is None:
            fields = [*self._snapshot.folders, *table.columns]
        names = [fields] if isinstance(fields, str) else list(dict.fromkeys(fields))
        stored, metadata = table.split(names)
        if ids is None:
            samples = lookup.load()
            order: Any = np.arange(len(samples))
        else:
            samples, order = lookup.locate(ids)
        return TableBuilder(samples, order, table, stored, metadata, names)

    def schema(self) -> DatasetSchema:
        """Return the fields with their dtypes and shapes, and the metadata columns.

        It is exact: the header of every array is compared, parsed once for each layout,
        and nothing is sampled. That takes as long as reading all headers: once a state
        of the dataset, about 0.6 us an array of one shape in the page cache, some 3 us
        of ragged ones; packs have one header for all their rows. Arrays that are not in
        the page cache are read from the disk, small ones whole.

        Returns
        -------
        DatasetSchema
            ``samples``, ``fields`` and ``columns``; its ``repr`` is a table.

        Raises
        ------
        FormatError
            The index or an array is damaged, or an array holds Python objects and
            `allow_pickle` is not set.
        ClosedError
            The reader is closed.
        OSError
            The index or a shard cannot be read.

        Examples
        --------
        >>> reader.schema()
        <schema of 3 samples
          history  int64 (4,), 3 samples
          target   float64 (2,), 3 samples>
        >>> reader.schema().fields["target"].shape
        (2,)
        """
        lookup = self._current()
        if lookup.schema is None:
            lookup.schema = read_schema(self._snapshot, lookup.load())
            self._snapshot.release_shards()
        return lookup.schema

    def shard_counts(self, field_name: str) -> dict[int, int]:
        """Return the number of samples in each shard of a field.

        Returns
        -------
        dict of int to int
            Number of samples by shard number, in the order of the numbers.

        Raises
        ------
        FieldNotFoundError
            The dataset has no such field.
        ClosedError
            The reader is closed.
        FormatError, OSError
            The index cannot be read.

        Examples
        --------
        >>> reader.shard_counts("history")
        {0: 3}
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
        ids: Iterable[str] | None = None,
        timeout: float | None = TIMEOUT,
    ) -> list[str]:
        """Return the ids of the samples that satisfy a condition, in insertion order.

        Parameters
        ----------
        where : str, optional
            An SQL expression over the columns of ``samples``: ``"target_offset IS NOT
            NULL"`` for samples that have the field ``target``,
            ``"json_extract(meta_json, '$.day') > ?"`` for metadata. It can read this
            index alone, and change nothing. By default all samples are selected.
        params : sequence or mapping
            Values of its ``?``, or ``:name``.
        limit : int, optional
            Maximum number of ids.
        ids : iterable of str, optional
            Only samples with one of these ids, of any number. Ids without a sample and
            repeated ones are ignored; the order stays that of the insertion.
        timeout : float, optional
            Seconds that the query may take; None: no limit.

        Returns
        -------
        list of str
            Ids, for `get_many` and `columns`.

        Raises
        ------
        QueryError
            `where` is not one valid expression, or not an allowed one (a `ValueError`).
        QueryTimeoutError
            The query took longer than `timeout`.
        ClosedError
            The reader is closed.
        FormatError, OSError
            The index is damaged, or cannot be read.
        TypeError, ValueError
            `limit` is not an int of at least 0, `timeout` is negative, or an id is
            not a str.

        Examples
        --------
        >>> reader.query_ids("json_extract(meta_json, '$.day') > ?", (0,), limit=1)
        ['sample_000000000002']
        >>> some = ["sample_000000000003", "sample_000000000001", "unknown"]
        >>> reader.query_ids(ids=some)
        ['sample_000000000001', 'sample_000000000003']
        >>> reader.query_ids("json_extract(meta_json, '$.day') > ?", (0,), ids=some)
        ['sample_000000000003']
        """
        connection = self._snapshot.connect_query()
        return query_ids(connection, where, params, limit, ids=ids, timeout=timeout)

    def query(
        self,
        where: str | None = None,
        params: Params = (),
        columns: Sequence[str] = ("id", "meta_json"),
        limit: int | None = None,
        *,
        ids: Iterable[str] | None = None,
        timeout: float | None = TIMEOUT,
    ) -> list[dict[str, Any]]:
        """Return columns of the index for the samples that satisfy a condition.

        Parameters
        ----------
        where : str, optional
            As for `query_ids`.
        params : sequence or mapping
            Values of the placeholders: first those in `columns`, then those in `where`.
        columns : sequence of str
            Columns of ``samples``, among them those made by
            `ShardedDatasetWriter.add_metadata_column`, or SQL expressions.
        limit : int, optional
            Maximum number of samples.
        ids : iterable of str, optional
            As for `query_ids`.
        timeout : float, optional
            Seconds that the query may take; None: no limit.

        Returns
        -------
        list of dict
            Of each sample, by column: None, int, float, str or bytes. In insertion
            order.

        Raises
        ------
        QueryError, QueryTimeoutError, ClosedError, FormatError, OSError
            As for `query_ids`.
        TypeError, ValueError
            As for `query_ids`.

        Examples
        --------
        >>> day = "json_extract(meta_json, '$.day')"
        >>> reader.query(f"{day} = 1", columns=("id", day))
        [{'id': 'sample_000000000002', "json_extract(meta_json, '$.day')": 1}]
        """
        connection = self._snapshot.connect_query()
        return query(
            connection, where, params, columns, limit, ids=ids, timeout=timeout
        )

    def stat(self, *, deep: bool = False) -> dict[str, Any]:
        """Count the dataset's samples, shards and bytes.

        Parameters
        ----------
        deep : bool
            Read the headers of all shards too, for the dtypes and shapes of the arrays
            and the bytes that updates left behind.

        Returns
        -------
        dict
            As for `fastshard.columnar.stat`.

        Raises
        ------
        FormatError
            The index, or with `deep` a shard, is damaged.
        ClosedError
            The reader is closed.
        OSError
            The index or a shard cannot be read.

        Examples
        --------
        >>> figures = reader.stat(deep=True)
        >>> figures["samples"], figures["fields"]["history"]["arrays"]
        (3, [{'dtype': 'int64', 'shape': [4], 'count': 3}])
        """
        from fastshard.columnar.stats import stat

        self._current()
        return stat(self._snapshot.home, deep=deep)

    def verify(self) -> list[Fault]:
        """Check the index, and every row against its members.

        Returns
        -------
        list of Fault
            As for `fastshard.columnar.verify`: empty for a sound dataset.

        Raises
        ------
        ClosedError
            The reader is closed.
        OSError
            The index cannot be read.

        Examples
        --------
        >>> reader.verify()
        []
        """
        from fastshard.columnar.verification import verify

        self._current()
        return verify(
            self._snapshot.home, allow_pickle=self._snapshot.unpickle is not None
        )

    def refresh(self) -> None:
        """Move to the present state of the dataset.

        Arrays that were returned before stay as they are. `samples` and `scan` have to
        be called again.

        Raises
        ------
        ClosedError
            The reader is closed.
        FormatError, OSError
            The index cannot be read. It is opened again at the next use.

        Examples
        --------
        >>> with ShardedDatasetWriter("series") as writer:
        ...     sample_id = writer.add_sample({"history": np.zeros(4)})
        >>> len(reader)
        3
        >>> reader.refresh()
        >>> len(reader)
        4
        """
        try:
            self._snapshot.refresh()
        finally:
            self._lookup = RowLookup(self._snapshot)
            self._items = None

    def close(self) -> None:
        """Close the index and the shards. Arrays stay valid.

        May be called twice. A reader in a ``with`` block is closed at its end.

        Examples
        --------
        >>> reader.close()
        >>> reader.get_sample("sample_000000000001")
        Traceback (most recent call last):
            ...
        fastshard.errors.ClosedError: the reader of series is closed: open another
        """
        if not self._snapshot.closed:
            self._snapshot.close()

    def _current(self) -> RowLookup:
        """Return the lookup of the snapshot's state, a new one after a fork."""
        self._snapshot.connect()
        if self._lookup.generation != self._snapshot.generation:
            self._lookup = RowLookup(self._snapshot)
        return self._lookup

    def _select(
        self, lookup: RowLookup, ids: list[str] | None, condition: str
    ) -> ColumnSet:
        """Return a shard set of some samples, by default all; see `RowSelection`."""
        reduction = _restore_set, (self._arguments(), ids, condition)
        snapshot = self._snapshot
        return ColumnSet(
            snapshot.home,
            mode=self._options["mode"],
            limit=None,
            reading=self._reading,
            selection=RowSelection(
                snapshot, lookup, self._ring, ids, condition, reduction
            ),
        )

    def _get_items(self) -> ArraySequence:
        """Return the samples by position, also after a fork those of its beginning."""
        items = self._items
        if items is None or self._snapshot.closed:
            items = self._items = self.samples
        return items

    def _arguments(self) -> tuple[str, bool, dict[str, Any]]:
        return self._snapshot.home, self.cache_tars, self._options

    def __enter__(self) -> Self:
        self._current()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        fields = join_names(list(self._snapshot.folders))
        texts = (fields, escape_line(str(self.root)), "closed" if self.closed else "")
        return f"ShardedDatasetReader({'; '.join(filter(None, texts))})"

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


def _restore_set(
    args: tuple[str, bool, dict[str, Any]], ids: list[str] | None, condition: str
) -> ColumnSet:
    """Open a selection of a reader's samples from its pickle."""
    reader = _restore_reader(*args)
    return reader._select(reader._current(), ids, condition)
