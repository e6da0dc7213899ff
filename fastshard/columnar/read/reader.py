"""Reader of columnar datasets: by id, by SQL, in batches."""

from __future__ import annotations

import json
import os
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from fastshard._core.columnar.rows import RowReader
from fastshard._core.dataset.gather import resolve_positions
from fastshard._core.io.page_ring import PageRing
from fastshard._util.options import check_choice, named_options
from fastshard._util.sizes import parse_size
from fastshard.columnar.connection import (
    INDEX_ERRORS,
    ReaderConnection,
    translate_error,
)
from fastshard.columnar.read.batch import scan_samples, stack_columns
from fastshard.columnar.read.lookup import Known
from fastshard.columnar.read.query import Params, query, query_ids
from fastshard.columnar.read.samples import (
    build_samples_from_rows,
    load_image,
    load_samples,
)
from fastshard.columnar.read.snapshot import Snapshot, row_sql, rows_sql
from fastshard.columnar.schema import parse_metadata, quote_name
from fastshard.dataset.shardset import Reading as Memory
from fastshard.errors import (
    ClosedError,
    FastshardError,
    FieldNotFoundError,
    FormatError,
    SampleNotFoundError,
)
from fastshard.formats.tar import Mode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard._core.columnar.rows import ColumnSamples
    from fastshard.dataset.verify import Fault

__all__ = [
    "TIMEOUT",
    "ArraySequence",
    "Asking",
    "Looking",
    "Reading",
    "ShardedDatasetReader",
]


Arrays = dict[str, "NDArray[Any]"]


class ArraySequence(Sequence[Arrays]):
    """The samples of a dataset, each as a dict from field to array, as they were added.

    The arrays are views of the shards. `torch.utils.data.DataLoader` takes it as a
    map-style dataset: its default collation stacks the arrays, which copies them.

    Pickled, it takes the dataset's path along.
    """

    def __init__(self, samples: ColumnSamples, again: tuple[Any, ...]) -> None:
        self._samples = samples
        self._at = samples.arrays
        self._again = again  # what a reader is made of

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, i: int) -> Arrays: ...
    @overload
    def __getitem__(self, i: slice) -> list[Arrays]: ...
    def __getitem__(self, i: int | slice) -> Arrays | list[Arrays]:
        """Return the arrays of a sample; those fields that it has.

        Raises
        ------
        IndexError
            There is no such position.
        FormatError, OSError, ClosedError
            An array cannot be read.
        """
        if type(i) is not int and isinstance(i, slice):
            return [self._at(k) for k in range(*i.indices(len(self)))]
        return self._at(i)

    def __getitems__(self, positions: Iterable[int]) -> list[Arrays]:
        """Return several: how torch's DataLoader asks for a batch.

        Their bytes are brought together, and copied into one array a field, which
        the arrays of each sample are rows of: they can be written to.
        """
        samples = self._samples
        order = resolve_positions(positions, len(samples))
        try:
            stacks = stack_columns(samples, order, samples.columns, "list")
        except FieldNotFoundError:  # not all of them have every field
            return [samples.arrays(i, None, True) for i in order]
        items: list[Arrays] = [{} for _ in order]
        for field, stack in stacks.items():
            ragged = isinstance(stack, list)
            for k, item in enumerate(items):
                item[field] = stack[k].copy() if ragged else stack[k, ...]
        return items

    def __repr__(self) -> str:
        return f"<{len(self):,} samples of {self._samples.owner.path!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _samples_again, (self._again,)


def _samples_again(args: tuple[Any, ...]) -> ArraySequence:

    root, cache_tars, options = args
    return ShardedDatasetReader(root, cache_tars, **options).samples


TIMEOUT = 30.0  # seconds


class Asking:
    """A snapshot of a dataset, and what its index says; reads no arrays.

    Parameters
    ----------
    root : str or path-like
    mode : {"mmap", "private", "pread"}
    allow_pickle : bool
        As for `ShardedDatasetReader`.
    ring : PageRing, optional
        Bounds the resident pages of the shards.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        mode: Mode,
        allow_pickle: bool,
        ring: PageRing | None = None,
    ) -> None:
        self._closed = True  # until all is well
        self._allow_pickle = allow_pickle
        self.root: str = os.fsdecode(root)
        self._home = os.path.abspath(self.root)  # wherever the process goes
        self._snapshot = Snapshot(self._home, mode, ring=ring)
        self._count: int | None = None
        self._generation = self._snapshot.generation
        self._closed = False

    def _forget(self) -> None:
        """Let go of what was made of the snapshot."""
        self._count = None

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def __len__(self) -> int:
        """Return the number of samples."""
        self._check_open()
        if self._count is None:
            ((count,),) = self._select("SELECT COUNT(*) FROM samples")
            self._count = int(count)
        return self._count

    def list_fields(self) -> list[str]:
        """Return the names of all fields, as they were added."""
        self._check_open()
        return list(self._snapshot.folders)

    def shard_counts(self, field_name: str) -> dict[int, int]:
        """Return how many samples each shard of a field holds, by its number.

        Raises
        ------
        FieldNotFoundError
            There is no such field.
        """
        self._check_field(field_name)
        column = quote_name(f"{field_name}_shard")
        return dict(
            self._select(
                f"SELECT {column}, COUNT(*) FROM samples WHERE {column} IS NOT NULL "
                f"GROUP BY {column} ORDER BY {column}"
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
        """Return the ids of samples, as they were added.

        Parameters
        ----------
        where : str, optional
            An SQL expression over the columns of ``samples``: ``"forecast_offset IS
            NOT NULL"``, ``"json_extract(meta_json, '$.length') > ?"``. It can read
            this index and nothing else, and change nothing.
        params : sequence or mapping
            What stands for its ``?``, or ``:name``.
        limit : int, optional
        timeout : float, optional
            Seconds; None: as long as it takes.

        Raises
        ------
        QueryError
            It is no such expression, or asks for what it may not.
        QueryTimeoutError
            It took longer.
        """
        connection = self._query_connection()
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
        """Return columns of the index of some samples, as they were added.

        Parameters
        ----------
        where, params, limit, timeout
            As for `query_ids`.
        columns : sequence of str
            Names of columns of ``samples``, such as one that
            `ShardedDatasetWriter.add_metadata_column` made.

        Returns
        -------
        list of dict
            By column.
        """
        connection = self._query_connection()
        return query(connection, where, params, columns, limit, timeout=timeout)

    def stat(self, *, deep: bool = False) -> dict[str, Any]:
        """Count what the dataset holds now; see `fastshard.columnar.stat`."""
        from fastshard.columnar.stats import stat

        self._check_open()
        return stat(self._home, deep=deep)

    def verify(self) -> list[Fault]:
        """Look for faults in the dataset as it is now; see `columnar.verify`."""
        from fastshard.columnar.verification import verify

        self._check_open()
        return verify(self._home, allow_pickle=self._allow_pickle)

    def refresh(self) -> None:
        """See the dataset as it is now."""
        self._check_open()
        try:
            self._snapshot.renew()
        finally:
            self._generation = self._snapshot.generation
            self._forget()

    def close(self) -> None:
        """Let go of the index and the shards. Arrays stay valid."""
        if not self._closed:
            self._closed = True
            self._snapshot.close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the reader of {self.root} is closed: open another")
        if self._generation != self._snapshot.generation:  # this is a child of fork
            self._generation = self._snapshot.generation
            self._forget()

    def _connection(self) -> ReaderConnection:
        self._check_open()
        return self._snapshot.connection()

    def _query_connection(self) -> ReaderConnection:
        self._check_open()
        return self._snapshot.query_connection()

    def _check_field(self, field: str) -> None:
        self._check_open()
        if field not in self._snapshot.folders:
            known = ", ".join(self._snapshot.folders)
            raise FieldNotFoundError(field, f"{self.root}, which has {known}")

    def _fields(self, fields: str | Iterable[str] | None) -> list[str]:
        """Return the fields that are meant, all of which there are."""
        self._check_open()
        if fields is None:
            return list(self._snapshot.folders)
        wanted = [fields] if isinstance(fields, str) else list(fields)
        for field in wanted:
            self._check_field(field)
        return wanted

    def _select(self, sql: str) -> list[tuple[Any, ...]]:
        connection = self._connection()
        try:
            with connection.lock:
                rows: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
        except INDEX_ERRORS as error:
            if self._closed:  # by another thread, meanwhile
                raise ClosedError(
                    f"the reader of {self.root} is closed: open another"
                ) from error
            raise translate_error(error, self._snapshot.path) from error
        return rows


AT_ONCE = 1024  # ids that are looked up by one query
FEW = 1000  # look-ups before all rows may be read
WORTH_IMAGE = 32  # all are, from a copy of the index, once so many parts make a whole
WORTH_ALL = 8  # the same of columns, by SQL


class Reading:
    """How samples are read of which only some fields are wanted.

    Attributes
    ----------
    sql : str
        The query of the row of an id.
    rows : RowReader
    known : Known or None
        What needs no query; None: not all rows were read.
    """

    def __init__(
        self, fields: list[str], snapshot: Snapshot, known: Known | None
    ) -> None:
        self.sql = row_sql(fields)
        self.rows = RowReader(fields, snapshot.files.file, snapshot.path)
        self.known = known
        self._many_sql: str | None = None

    @property
    def many_sql(self) -> str:
        """The query of the rows of a JSON array of ids."""
        if self._many_sql is None:
            self._many_sql = rows_sql(self.rows.fields)
        return self._many_sql


class Looked:
    """What was looked up of one state of a dataset.

    Attributes
    ----------
    readings : dict
        By the fields that are read; None: all.
    samples : ColumnSamples or None
        All of them, once they were read.
    asked : int
        Rows, by their ids.
    enough : int
        Rows that, once so many were asked for, all may be worth reading.
    """

    def __init__(self) -> None:
        self.readings: dict[tuple[str, ...] | None, Reading] = {}
        self.samples: ColumnSamples | None = None
        self.asked = 0
        self.enough = FEW

    def keep(self, samples: ColumnSamples) -> ColumnSamples:
        """Keep all samples: single ones need SQL no more."""
        self.samples = samples
        self.readings = {}
        return samples


class Looking(Asking):
    """A snapshot of a dataset in which samples are looked up.

    Parameters
    ----------
    root, mode, allow_pickle, ring
        As for `Asking`.
    cache_tars : bool
        As for `ShardedDatasetReader`.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        mode: Mode,
        cache_tars: bool,
        allow_pickle: bool,
        ring: PageRing | None = None,
    ) -> None:
        super().__init__(root, mode, allow_pickle, ring)
        self.cache_tars = cache_tars
        if allow_pickle:
            from fastshard.columnar.values import unpickle_array

            self._snapshot.unpickle = unpickle_array

    def _forget(self) -> None:
        super()._forget()
        self._looked = Looked()  # as a whole: another thread may be at the old one

    def _reading(self, fields: Iterable[str] | None) -> Reading:
        self._check_open()
        looked = self._looked
        readings = looked.readings
        key = None if fields is None else tuple(self._fields(fields))
        found = readings.get(key)
        if found is None:
            wanted = self._fields(None) if key is None else list(key)
            whole, known = looked.samples, None
            if whole is not None and _answers(whole):
                known = Known(whole, whole.columns_of(wanted))
            found = readings[key] = Reading(wanted, self._snapshot, known)
        return found

    def _rows(self, reading: Reading, ids: list[str]) -> list[tuple[Any, ...]]:
        """Return the rows of some ids; in each the metadata and the id come last."""
        connection = self._connection()
        rows: list[tuple[Any, ...]] = []
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            try:
                with connection.lock:
                    wanted = (json.dumps(some),)
                    rows += connection.execute(reading.many_sql, wanted).fetchall()
            except INDEX_ERRORS as error:
                raise self._fault(error, "") from error
        if len(rows) != len(ids):
            raise FormatError("samples have the same id", self._snapshot.path, 0)
        for row, sample_id in zip(rows, ids, strict=True):
            if row[-1] != sample_id:  # NULL: there is none
                raise SampleNotFoundError(sample_id, self.root)
        return rows

    def _ids(self, ids: Iterable[Any]) -> list[str]:
        if isinstance(ids, str):
            raise TypeError(f"ids are a list, not the str {ids!r:.80}")
        return [i if type(i) is str else self._plain(i) for i in ids]

    def _plain(self, sample_id: Any) -> str:
        """Return an id as a str of no subclass."""
        if isinstance(sample_id, str):
            return str.__str__(sample_id)
        self._check_open()
        raise TypeError(f"an id is a str, not {type(sample_id).__name__}")

    def _fault(self, error: Exception, sample_id: str) -> Exception:
        """Return what is raised instead of an error of looking up an id."""
        if isinstance(error, UnicodeEncodeError):  # half a surrogate pair
            return SampleNotFoundError(sample_id, self.root)
        if self._closed:
            return ClosedError(f"the reader of {self.root} is closed: open another")
        assert isinstance(error, INDEX_ERRORS)
        return translate_error(error, self._snapshot.path)

    def _with_objects(
        self,
        reading: Reading,
        row: tuple[Any, ...],
        sample_id: str,
        copy: bool,
        error: FormatError,
    ) -> dict[str, NDArray[Any]]:
        """Return arrays some of which are of objects, if that is allowed."""
        from fastshard.columnar.headers import needs_pickle
        from fastshard.columnar.values import arrays_with_objects

        if self._allow_pickle:
            return arrays_with_objects(reading.rows, row, sample_id, copy)
        if needs_pickle(error.reason):
            reason = f"{error.reason}: allow_pickle=True reads it, and runs its code"
            raise FormatError(reason, error.path, error.offset, error.member)
        raise error

    def _let_go(self) -> None:
        if not self.cache_tars:
            self._snapshot.files.forget()

    def _loaded(self) -> ColumnSamples:
        """Return all samples; reads all rows of the index, once."""
        self._check_open()
        looked = self._looked
        if looked.samples is not None:
            return looked.samples
        return looked.keep(load_samples(self._snapshot))

    def _note_looked_up(self, count: int) -> None:
        """Read all rows once that would have taken no longer than the look-ups.

        What is wrong with others is not said to who has found what he looked for.
        """
        looked = self._looked
        looked.asked += count
        if looked.asked < looked.enough or looked.samples is not None:
            return
        looked.enough = sys.maxsize
        try:
            enough = max(FEW, len(self) // WORTH_IMAGE)
            if looked.asked < enough:
                looked.enough = enough
                return
            whole = load_image(self._snapshot)
        except (FastshardError, OSError):
            return
        if whole is not None:
            looked.keep(whole)

    def _placed(self, wanted: Iterable[Any]) -> tuple[ColumnSamples, array[int]]:
        """Return samples that have those wanted, and the positions of these."""
        keys: Any = wanted if hasattr(wanted, "dtype") else list(wanted)
        if getattr(keys, "ndim", 1) != 1:
            raise ValueError("ids or positions have one dimension")
        if isinstance(wanted, str):
            raise TypeError(f"ids are a list, not the str {wanted!r:.80}")
        if len(keys) and type(keys[0]).__name__ in ("bool", "bool_"):  # NumPy's too
            raise TypeError("a mask selects by numpy.flatnonzero(mask)")
        if not len(keys) or not isinstance(keys[0], str):
            samples = self._loaded()
            return samples, resolve_positions(keys, len(samples))
        keys = keys if type(keys) is list else self._ids(keys)
        looked = self._looked
        self._note_looked_up(len(keys))
        if looked.samples is None and looked.asked * WORTH_ALL < len(self):
            keys = self._ids(keys)
            rows = self._rows(self._reading(None), keys)
            order = array("q", range(len(keys)))
            return build_samples_from_rows(self._snapshot, rows, keys), order
        samples = self._loaded()
        return samples, samples.find_keys(keys)


def _answers(samples: ColumnSamples) -> bool:
    """Whether samples say what SQL would; of equal ids that one counts it finds."""
    return samples.has_metadata and not samples.names.has_duplicates


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
        except (*INDEX_ERRORS, UnicodeEncodeError) as error:
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
        found = stack_columns(samples, order, samples.columns_of(wanted), ragged)
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
        return scan_samples(
            samples, wanted, chosen, batch_size, ahead, self._ring, ragged
        )

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
