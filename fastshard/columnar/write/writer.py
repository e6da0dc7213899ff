"""Writer of columnar datasets: arrays in tar shards, rows in an SQLite index."""

from __future__ import annotations

import errno
import operator
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fastshard._core.dataset.npy import name_member
from fastshard._core.parse.json import encode_flat
from fastshard._util.options import check_option_names
from fastshard._util.terminal import escape_line
from fastshard.columnar.layout.schema import (
    MAX_COUNTER,
    check_sample_id,
    read_fields,
    select_fields,
)
from fastshard.columnar.layout.shard_limit import ShardLimits
from fastshard.columnar.layout.values import encode_metadata
from fastshard.columnar.write import fields
from fastshard.columnar.write.compact.rewrite import Compaction, compact_columns
from fastshard.columnar.write.connection import WriterConnection, savepoint
from fastshard.columnar.write.rows import RowWriter, delete_rows, register_rows
from fastshard.columnar.write.session import WriterSession
from fastshard.columnar.write.shard_handle import ShardHandle
from fastshard.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["ShardedDatasetWriter"]


class ShardedDatasetWriter:
    """Write arrays by field, a sample at a time, durably.

    Each field has tar shards of its own. ``index.sqlite`` has a row for each sample,
    with the shard and offset of each array and the metadata. `flush` and `close` return
    when all samples added so far are on disk, where they survive a killed process and a
    power loss. Samples added since the last flush are there completely or not at all.
    The writer itself flushes when a shard buffer is full and the last flush is a minute
    ago.

    A dataset has one writer at a time and any number of readers. In one process, a new
    writer closes the one before it. Threads may share a writer; forked processes may
    not. A writer that is dropped, or open at exit, is closed, with a `ResourceWarning`;
    with an `UnclosedWriterWarning` if its samples cannot be stored.

    Parameters
    ----------
    root : str or path-like
        The dataset's directory. It is created if it does not exist; an existing dataset
        is continued.
    samples_per_shard : int, optional
        Maximum number of arrays of a field in a shard. By default 1000; in packed
        fields 50,000, and a shard that has reached 256 MiB takes no more. An existing
        shard that is below the limit is continued.
    allow_pickle : bool
        Store arrays of Python objects too, pickled.
    pack : bool
        Store arrays of up to 64 KiB in packs: members that hold the arrays of many
        samples of equal dtype and shape, as rows. Small arrays take a fraction of the
        space then. synthefy-dataset-utils does not read packs; `compact` with
        ``pack=False`` gives the samples members of their own.

    Attributes
    ----------
    root : Path
        The directory.
    samples_per_shard : int
        As given, or the default of fields that this writer adds.

    Raises
    ------
    ValueError
        `samples_per_shard` is not positive; or a field cannot be packed, because a
        column of the user has the name ``<field>_row``.
    WriterLockedError
        Another process writes to the dataset (a `BlockingIOError`).
    FormatError
        The index is damaged or not of a columnar dataset; or it is missing, and there
        are shards.
    OSError
        The dataset cannot be opened.
    TypeError
        An option is misspelt, or has a wrong type.

    Examples
    --------
    >>> import numpy as np
    >>> from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
    >>> with ShardedDatasetWriter("weather", samples_per_shard=1000) as writer:
    ...     writer.add_fields(["history", "target"])
    ...     arrays = {"history": np.arange(4), "target": np.ones(2)}
    ...     writer.add_sample(arrays, metadata={"length": 4})
    'sample_000000000001'
    >>> ShardedDatasetReader("weather").get_sample("sample_000000000001", ["history"])
    ({'history': array([0, 1, 2, 3])}, {'length': 4})
    """

    @check_option_names("ShardedDatasetWriter")
    def __init__(
        self,
        root: str | os.PathLike[str],
        samples_per_shard: int | None = None,
        *,
        allow_pickle: bool = False,
        pack: bool = False,
    ) -> None:
        if samples_per_shard is not None:
            samples_per_shard = operator.index(samples_per_shard)
            if not 0 < samples_per_shard < 1 << 63:
                raise ValueError(
                    f"samples_per_shard must be positive, got {samples_per_shard}"
                )
        limits = ShardLimits.make(samples_per_shard)
        self.samples_per_shard = limits.find(packed=bool(pack)).arrays
        self.root = Path(os.fsdecode(root))
        self._session = WriterSession(
            self.root, limits, allow_pickle=allow_pickle, packs=bool(pack)
        )
        self._transaction = self._session.transaction
        self._rows = RowWriter(self._session)

    @property
    def conn(self) -> WriterConnection:
        """The index's SQLite connection, to add columns and SQL indexes.

        Its `commit` is the writer's `flush`: it stores the arrays first. Its `close`
        closes the writer.

        Returns
        -------
        sqlite3.Connection
            Valid until the writer is closed.

        Examples
        --------
        >>> with ShardedDatasetWriter("series") as writer:
        ...     writer.conn.execute("SELECT count(*) FROM samples").fetchone()
        (3,)
        """
        return self._session.conn

    @property
    def closed(self) -> bool:
        """True if nothing more can be written.

        Examples
        --------
        >>> with ShardedDatasetWriter("series") as writer:
        ...     writer.closed
        False
        >>> writer.closed
        True
        """
        return self._session.closed

    def add_field(self, name: str) -> None:
        """Add one field, durably. An existing one is skipped.

        Parameters
        ----------
        name : str
            As for `add_fields`.

        Raises
        ------
        ValueError, OSError, ClosedError, WriterLockedError
            As for `add_fields`.

        Examples
        --------
        >>> with ShardedDatasetWriter("series") as writer:
        ...     writer.add_field("forecast")
        """
        self.add_fields([name])

    def add_fields(self, names: Sequence[str]) -> None:
        """Add fields, durably. Existing ones are skipped.

        Samples that exist already lack a new field, until `update_sample`,
        `write_shard` or `open_shard` add it to them.

        Parameters
        ----------
        names : sequence of str
            ASCII letters, digits and ``_``, no digit first, at most 128 characters.
            Names that differ in case alone collide.

        Raises
        ------
        ValueError
            A name is not an identifier, or a column of it exists. None is added.
        TypeError
            `names` is a str.
        OSError
            A directory cannot be created. None is added.
        ClosedError, WriterLockedError
            As for `flush`.

        Examples
        --------
        >>> with ShardedDatasetWriter("series") as writer:
        ...     writer.add_fields(["history", "forecast", "weights"])
        >>> ShardedDatasetReader("series").list_fields()
        ['history', 'target', 'forecast', 'weights']
        """
        if isinstance(names, str):
            raise TypeError(f"names must be a list of str, got the str {names!r:.80}")
        session = self._session
        with session.mutex:
            if session.state or session.busy:
                session.check_idle()
            self._load_missed_fields()
            columns = fields.list_columns(session.conn)
            existing = self._transaction.columns
            new = fields.select_new_fields(
                list(names), existing, columns, packs=session.packs
            )
            if new:
                self._insert_fields(new)
            session.flush()

    def _insert_fields(self, names: Sequence[str]) -> None:
        """Add new fields to the index, and load them."""
        session = self._session
        self._make_folders(names)
        try:
            with savepoint(session.conn) as cursor:
                for name in names:
                    base = os.path.join(session.home, f"{name}_shards")
                    fields.insert_field(cursor, name, base)
            self._transaction.add_columns(
                select_fields(session.conn, session.path), session.limits
            )
        except (OSError, sqlite3.Error) as error:
            session.fail(error)

    def _load_missed_fields(self) -> None:
        """Load fields added by the user's SQL, or not loaded after an interrupt."""
        session = self._session
        found = select_fields(session.conn, session.path)
        if len(found) > len(self._transaction.columns):
            try:
                self._transaction.add_columns(
                    read_fields(session.conn, session.path), session.limits
                )
            except (OSError, sqlite3.Error) as error:
                session.fail(error)

    def _make_folders(self, names: Iterable[str]) -> None:
        """Create the directories of new fields."""
        columns = self._transaction.columns.values()
        taken = {os.path.basename(column.folder).lower() for column in columns}
        for folder in [f"{name}_shards" for name in names]:
            if folder.lower() in taken:
                raise ValueError(f"another field has the folder {folder}")
            self._transaction.make_folder(os.path.join(self._session.home, folder))

    def add_sample(
        self,
        arrays: Mapping[str, ArrayLike],
        sample_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Add a sample, completely or not at all.

        Parameters
        ----------
        arrays : Mapping of str to array_like
            By field; fields may be missing. Any shape, and any dtype without Python
            objects; stored as `numpy.save` does.
        sample_id : str, optional
            Text of at most 64 KiB in UTF-8, not empty and without NUL. By default
            ``sample_000000000001`` and so on.
        metadata : Mapping, optional
            Values that JSON can represent, without NaN.

        Returns
        -------
        str
            The sample's id. The sample is durable after the next `flush`.

        Raises
        ------
        ValueError
            The id is taken, a field is not registered, or an array or the metadata
            cannot be stored. Nothing is written.
        TypeError
            An argument has a wrong type. Nothing is written.
        OSError
            A shard or the index cannot be written; see `flush`.
        ClosedError
            The writer is closed.
        FormatError
            The counter of generated ids is exhausted.

        Examples
        --------
        >>> with ShardedDatasetWriter("series") as writer:
        ...     writer.add_sample({"history": np.full(4, 3)}, metadata={"day": 3})
        ...     writer.add_sample({"history": [4, 4]}, sample_id="bonn")
        'sample_000000000004'
        'bonn'
        """
        session = self._session
        with session.mutex:
            if session.state or session.busy:
                session.check_idle()
            text = (
                "{}"
                if metadata is None
                else (type(metadata) is dict and encode_flat(metadata))
                or encode_metadata(metadata, sample_id, session.conn)
            )
            if sample_id is not None:
                name = name_member(sample_id) or check_sample_id(sample_id)
                if not self._rows.insert(arrays, sample_id, name, text):
                    raise ValueError(
                        f"sample {sample_id!r:.200} exists already: use update_sample()"
                    )
                return sample_id
            transaction = self._transaction
            while True:
                number = transaction.last_id + 1
                if number > MAX_COUNTER:
                    reason = (
                        f"counters.value has reached {MAX_COUNTER:,}: pass a sample_id"
                    )
                    raise FormatError(reason, session.path, 0)
                generated = f"sample_{number:012d}"
                name = b"%b.npy" % generated.encode()
                is_new = self._rows.insert(arrays, generated, name, text)
                transaction.last_id = number
                if is_new:
                    return generated

    def update_sample(
        self,
        sample_id: str,
        arrays: Mapping[str, ArrayLike],
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Replace or add arrays of a sample, completely or not at all.

        Other fields keep their arrays. The replaced bytes become dead space, which
        `compact` removes.

        Parameters
        ----------
        sample_id : str
            Id of an existing sample.
        arrays : Mapping of str to array_like
            By field; may be empty.
        metadata : Mapping, optional
            Replaces the metadata as a whole; None keeps it.

        Raises
        ------
        ValueError
            There is no such sample; or as for `add_sample`. Nothing is changed.
        TypeError, OSError, ClosedError
            As for `add_sample`.

        Examples
        --------
        >>> with ShardedDatasetWriter("series") as writer:
        ...     writer.update_sample("sample_000000000001", {"target": np.zeros(2)})
        >>> ShardedDatasetReader("series").get_sample("sample_000000000001")
        ({'history': array([0, 0, 0, 0]), 'target': array([0., 0.])}, {'day': 0})
        """
        session = self._session
        with session.mutex:
            session.check_idle()
            text = (
                None
                if metadata is None
                else encode_metadata(metadata, sample_id, session.conn)
            )
            name = check_sample_id(sample_id)
            if not self._rows.update(arrays, sample_id, name, text):
                raise ValueError(
                    f"there is no sample {sample_id!r:.200}: use add_sample()"
                )

    def delete_sample(self, sample_id: str) -> None:
        """Delete a sample.

        Its arrays become dead space, which `compact` removes. The id may be added
        again; ids that the writer generates are never used again.

        Parameters
        ----------
        sample_id : str
            Id of an existing sample.

        Raises
        ------
        ValueError, TypeError, OSError, ClosedError, WriterLockedError
            As for `delete_samples`.

        Examples
        --------
        >>> with ShardedDatasetWriter("series") as writer:
        ...     writer.delete_sample("sample_000000000002")
        >>> ShardedDatasetReader("series").query_ids()
        ['sample_000000000001', 'sample_000000000003']
        """
        self.delete_samples([sample_id])

    def delete_samples(self, sample_ids: Iterable[str]) -> None:
        """Delete samples, all or none of them.

        Durable after the next `flush`; readers see them until they are refreshed
        after that. In shards that are open in a handle, too, arrays of these samples
        are dropped. See `delete_sample`.

        Parameters
        ----------
        sample_ids : iterable of str
            Ids of existing samples; repetitions are ignored.

        Raises
        ------
        ValueError
            There is no such sample. None is deleted.
        TypeError
            `sample_ids` is a str, or an id is not a str. None is deleted.
        OSError
            The index cannot be written; see `flush`.
        ClosedError, WriterLockedError
            As for `flush`.

        Examples
        --------
        >>> with ShardedDatasetWriter("series") as writer:
        ...     writer.delete_samples(["sample_000000000001", "sample_000000000002"])
        ...     sample_id = writer.add_sample({"history": np.ones(4)})
        >>> ShardedDatasetReader("series").query_ids()
        ['sample_000000000003', 'sample_000000000004']
        """
        if isinstance(sample_ids, (str, bytes)):
            raise TypeError(f"sample_ids must be a list of ids, got {sample_ids!r:.80}")
        session = self._session
        ids = list(sample_ids)
        with session.mutex:
            session.check_idle()
            delete_rows(session, ids)

    def register_samples(
        self,
        sample_ids: Sequence[str],
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Add samples without arrays, durably. Existing ones stay as they are.

        Parameters
        ----------
        sample_ids : sequence of str
            Their ids.
        metadata : sequence of Mapping or None, optional
            One for each id.

        Raises
        ------
        ValueError
            An id or its metadata cannot be stored, their numbers differ, or an id
            occurs twice with different metadata. None is added.
        TypeError
            An argument has a wrong type. None is added.
        OSError, ClosedError, WriterLockedError
            As for `flush`.

        Examples
        --------
        >>> with ShardedDatasetWriter("series") as writer:
        ...     writer.register_samples(["bonn", "ulm"], [{"day": 9}, None])
        >>> ShardedDatasetReader("series").get_sample("bonn")
        ({}, {'day': 9})
        """
        if isinstance(sample_ids, str):
            raise TypeError(
                f"sample_ids must be a list of str, got the str {sample_ids!r:.80}"
            )
        session = self._session
        with session.mutex:
            session.check_idle()
            ids = list(sample_ids)
            if isinstance(metadata, (str, bytes, Mapping)):
                kind = type(metadata).__name__
                raise TypeError(
                    f"metadata must be a list of a mapping for each id, got {kind}"
                )
            every = [None] * len(ids) if metadata is None else list(metadata)
            if len(every) != len(ids):
                raise ValueError(
                    "sample_ids and metadata must be equally long, "
                    f"got {len(ids):,} and {len(every):,}"
                )
            for sample_id in ids:
                check_sample_id(sample_id)
            rows = [
                (sample_id, encode_metadata(one, sample_id, session.conn))
                for sample_id, one in zip(ids, every, strict=True)
            ]
            if len(set(rows)) != len(set(ids)):
                raise ValueError(
                    "an id occurs twice in sample_ids, with different metadata"
                )
            try:
                with savepoint(session.conn) as cursor:
                    register_rows(cursor, rows)
            except sqlite3.IntegrityError as error:
                raise ValueError(f"the samples cannot be added: {error}") from error
            except sqlite3.Error as error:
                session.fail(error)
            session.flush()

    def write_shard(
        self,
        field_name: str,
        shard_id: int,
        samples: Sequence[str],
        arrays: Sequence[ArrayLike],
        *,
        overwrite: bool = False,
    ) -> None:
        """Write a whole new shard of a field, durably.

        Parameters
        ----------
        field_name : str
            A field of the dataset.
        shard_id : int
            The shard's number.
        samples : sequence of str
            Ids without repetition. Missing samples are registered, without metadata.
        arrays : sequence of array_like
            One for each id.
        overwrite : bool
            Replace an existing shard. Its samples that are not among `samples` lose
            this field.

        Raises
        ------
        ValueError
            As for `open_shard`; or the numbers of ids and arrays differ, an id occurs
            twice, or an array cannot be stored. Nothing is changed.
        TypeError
            `samples` is a str, or an id is not a str. Nothing is changed.
        FileExistsError
            The shard exists, and `overwrite` is not set.
        OSError, ClosedError, WriterLockedError
            As for `flush`.

        Examples
        --------
        >>> with ShardedDatasetWriter("series") as writer:
        ...     arrays = [np.ones(2), np.zeros(2)]
        ...     writer.write_shard("target", 7, ["bonn", "ulm"], arrays)
        >>> ShardedDatasetReader("series").shard_counts("target")
        {0: 3, 7: 2}
        """
        if isinstance(samples, (str, bytes)):
            raise TypeError(f"samples must be a list of ids, got {samples!r:.80}")
        if len(samples) != len(arrays):
            raise ValueError(
                "samples and arrays must be equally long, "
                f"got {len(samples):,} and {len(arrays):,}"
            )
        if len(set(samples)) != len(samples):
            raise ValueError("an id occurs twice in samples")
        number = operator.index(shard_id)
        with self._session.mutex:
            self._session.check_idle()
            column = self._transaction.find_column(field_name)
            if not overwrite and column.has_shard(number):
                reason = "the shard exists, and overwrite is not set"
                path = column.path(number)
                raise FileExistsError(errno.EEXIST, reason, path)
        with self.open_shard(field_name, number, overwrite=overwrite) as shard:
            for sample_id, array in zip(samples, arrays, strict=True):
                shard.add_sample(sample_id, array)

    def open_shard(
        self, field_name: str, shard_id: int | None = None, *, overwrite: bool = False
    ) -> ShardHandle:
        """Return a context manager that writes one shard of a field.

        At the end of the ``with`` block the shard and all samples added so far are on
        disk; an exception inside leaves everything as it was. An existing shard is
        appended to: its samples keep their arrays, unless they are added again.

        Parameters
        ----------
        field_name : str
            A field of the dataset.
        shard_id : int, optional
            The shard's number; the next one by default.
        overwrite : bool
            Replace an existing shard. Its samples that are not added again lose this
            field.

        Returns
        -------
        ShardHandle
            It has `add_sample`, `close` and `discard`.

        Raises
        ------
        ValueError
            The field is not registered, or the number is negative.
        FileExistsError
            The shard is open in another handle; or it cannot be appended to, and
            `overwrite` is not set; or a compaction has replaced it and will remove it.
        OSError, ClosedError, WriterLockedError
            As for `flush`.

        Examples
        --------
        >>> with ShardedDatasetWriter("series") as writer:
        ...     with writer.open_shard("target", shard_id=7) as shard:
        ...         shard.add_sample("bonn", np.ones(2))
        ...         shard.add_sample("ulm", np.zeros(2))
        >>> ShardedDatasetReader("series").shard_counts("target")
        {0: 3, 7: 2}
        """
        session = self._session
        with session.mutex:
            session.check_idle()
            column = self._transaction.find_column(field_name)
            return ShardHandle(session, column, shard_id, overwrite)

    def add_metadata_column(
        self,
        name: str,
        path: str,
        type: str | type[Any] = "TEXT",  # noqa: A002
    ) -> None:
        """Add a column computed from the metadata, with an SQL index.

        Queries by the column are fast. It applies to existing and to future samples.

        Parameters
        ----------
        name : str
            ASCII letters, digits and ``_``, no digit first, at most 128 characters.
        path : str
            JSON path into the metadata, as SQLite's ``json_extract`` takes it.
        type : {"TEXT", "INTEGER", "REAL", "NUMERIC"}, or str, int, float, bool
            To which values are converted where nothing is lost by it.

        Raises
        ------
        ValueError
            The name is taken or invalid, the path or the type is invalid, or a sample's
            metadata is not JSON. Nothing is changed.
        OSError, ClosedError, WriterLockedError
            As for `flush`.

        Examples
        --------
        >>> with ShardedDatasetWriter("series") as writer:
        ...     writer.add_metadata_column("day", "$.day", "INTEGER")
        >>> ShardedDatasetReader("series").query_ids("day >= 1")
        ['sample_000000000002', 'sample_000000000003']
        """
        session = self._session
        with session.mutex:
            session.check_idle()
            try:
                with savepoint(session.conn) as cursor:
                    fields.insert_metadata_column(cursor, name, path, type)
            except sqlite3.Error as error:
                session.fail(error)
            session.flush()

    def compact(self, pack: bool | None = None) -> Compaction:
        """Rewrite the shards of fields that have dead space, durably.

        Arrays are copied into new shards, in the order of the samples; one commit for
        each field switches to them. A crash leaves either state. Old files are removed
        when no reader may open them any more: files that open readers still see stay
        until these are refreshed or closed, and go with the next `compact`, or when
        this writer is closed or another one opened.

        Parameters
        ----------
        pack : bool, optional
            True packs all fields (see the argument of the class), and False gives each
            array a member of its own, as the original has it; then this writer stays
            so. By default each field stays as it is: the packs of a shard are
            joined. New shards are as large as those that the writer fills.

        Returns
        -------
        Compaction
            Bytes and numbers of shard files, before and after.

        Raises
        ------
        ValueError
            A shard is open in a handle; or a field cannot be packed, because a column
            has the name ``<field>_row``.
        FormatError
            A shard is damaged, or a row refers to a missing member. The field is
            unchanged.
        OSError
            There is no room for the new shards. The field is unchanged.
        ClosedError, WriterLockedError
            As for `flush`.

        Examples
        --------
        >>> with ShardedDatasetWriter("series") as writer:
        ...     arrays = {"target": np.zeros(1000)}
        ...     for _ in range(9):  # each update leaves the replaced bytes behind
        ...         writer.update_sample("sample_000000000001", arrays)
        ...     result = writer.compact()
        >>> result.bytes_after < result.bytes_before / 5
        True
        """
        with self._session.mutex:
            self._session.flush()
            try:
                return compact_columns(self._session, pack)
            finally:
                self._rows.forget_statements()

    def flush(self) -> None:
        """Commit all samples so far: then they are durable and visible to readers.

        `close_tars` is the same method, under the name that it has in
        synthefy-dataset-utils.

        Raises
        ------
        OSError
            It cannot be stored. Samples added since the last flush are lost, and the
            writer is closed; samples flushed before are stored.
        WriterLockedError
            Another program writes to the index. Nothing is lost.
        ClosedError
            The writer is closed.

        Examples
        --------
        >>> with ShardedDatasetWriter("series") as writer:
        ...     sample_id = writer.add_sample({"history": np.ones(4)})
        ...     writer.flush()
        ...     reader.refresh()
        ...     len(reader)
        4
        """
        self._session.flush()

    close_tars = flush

    def close(self) -> None:
        """Flush, and close the dataset. May be called twice.

        A writer in a ``with`` block is closed at its end, also by an exception.

        Raises
        ------
        OSError, WriterLockedError
            As for `flush`.

        Examples
        --------
        >>> writer = ShardedDatasetWriter("series")
        >>> sample_id = writer.add_sample({"history": np.ones(4)})
        >>> writer.close()
        >>> len(ShardedDatasetReader("series"))
        4
        """
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"ShardedDatasetWriter({escape_line(str(self.root))}; {state})"
