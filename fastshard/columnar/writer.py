"""Writing columnar datasets: arrays by field in tar shards, under one SQLite index."""

from __future__ import annotations

import errno
import operator
import os
import sqlite3
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastshard._util.options import named_options
from fastshard.columnar import fields
from fastshard.columnar.adding import Adding, register_rows
from fastshard.columnar.compacting import Compaction, compact_columns
from fastshard.columnar.encoding import metadata_text
from fastshard.columnar.handle import ShardHandle
from fastshard.columnar.names import LARGEST_ID, check_sample_id
from fastshard.columnar.schema import named_fields, read_fields
from fastshard.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["ShardedDatasetWriter"]


class ShardedDatasetWriter(Adding):
    """Write arrays by field, a sample at a time, durably.

    >>> with ShardedDatasetWriter("data") as writer:
    ...     writer.add_fields(["history", "target"])
    ...     writer.add_sample({"history": x, "target": y}, metadata={"length": 100})

    Each field has tar shards of its own; ``index.sqlite`` says where each sample's
    arrays are. `flush` and `close` return when all of it is on the disk, and what
    they have acknowledged survives a killed process and a power loss. Samples
    since then are whole or not there. A shard that is full is a reason to flush
    too, once a minute.

    There is one writer of a dataset at a time, and any number of readers. In one
    process a new writer closes the one before it. It may be used by several
    threads, not by forked processes. One that is dropped is closed, with a
    `ResourceWarning`.

    Parameters
    ----------
    root : str or path-like
        The dataset's directory; it is made if need be. One that is there goes on
        where it stands.
    samples_per_shard : int
        Members of a shard at most.
    allow_pickle : bool
        Whether arrays of Python objects are stored, pickled.

    Attributes
    ----------
    root : Path
    samples_per_shard : int
    conn : sqlite3.Connection
        The index's, to add columns and SQL indexes. Its `commit` flushes.
    closed : bool

    Raises
    ------
    WriterLockedError
        Another process writes to the dataset.
    FormatError
        The index is damaged, or none of such a dataset; or it is gone, and its
        shards are there.
    OSError
        It cannot be opened.
    """

    @named_options("ShardedDatasetWriter")
    def __init__(
        self,
        root: str | os.PathLike[str],
        samples_per_shard: int = 1000,
        *,
        allow_pickle: bool = False,
    ) -> None:
        super().__init__(root, samples_per_shard, allow_pickle=allow_pickle)

    def add_field(self, name: str) -> None:
        """Add a field; see `add_fields`."""
        self.add_fields([name])

    def add_fields(self, names: Sequence[str]) -> None:
        """Add fields, durably. Those that are there already are passed over.

        Raises
        ------
        ValueError
            A name is no identifier, or a column of it is taken. None is added.
        OSError
            A directory cannot be made, or a file is in its place. None is added.
        """
        if isinstance(names, str):
            raise TypeError(f"names of fields are a list, not the str {names!r:.80}")
        with self._mutex:
            self.check_idle()
            self._learn_missed()
            columns = fields.columns_of(self._conn)
            new = fields.check_new_fields(list(names), dict(self._columns), columns)
            self._make_folders(new)
            try:
                with fields.savepoint(self._conn) as cursor:
                    for name in new:
                        base = os.path.join(self._home, f"{name}_shards")
                        fields.new_field(cursor, name, base)
                self._learn(named_fields(self._conn, self._path))
            except (OSError, sqlite3.Error) as error:
                self._failed(error)
            self.flush()

    def _learn_missed(self) -> None:
        """Learn of fields that an interrupt kept back, or the user's own SQL added."""
        if len(named_fields(self._conn, self._path)) > len(self._columns):
            try:
                self._learn(read_fields(self._conn, self._path))
            except (OSError, sqlite3.Error) as error:
                self._failed(error)

    def add_sample(
        self,
        arrays: Mapping[str, ArrayLike],
        sample_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Add a sample, whole or not at all.

        Parameters
        ----------
        arrays : Mapping of str to array_like
            By field; a field may be missing. Any shape, and any dtype without
            Python objects; stored as `np.save` does.
        sample_id : str, optional
            Any text but the empty one. By default ``sample_000000000001`` and so on.
        metadata : Mapping, optional
            What JSON can say.

        Returns
        -------
        str
            The sample's id.

        Raises
        ------
        ValueError
            The id is taken, the field is not registered, an array or the metadata
            cannot be stored. Nothing is written.
        TypeError
            An argument is of a wrong type. Nothing is written.
        OSError
            A shard or the index cannot be written; see `flush`.
        ClosedError
            The writer is closed.
        FormatError
            The index has counted as many ids as it can.
        """
        with self._mutex:
            if self._state or self._busy:
                self.check_idle()
            text = (
                "{}"
                if metadata is None
                else metadata_text(metadata, sample_id, self._conn)
            )
            if sample_id is not None:
                if not self._insert(
                    arrays, sample_id, check_sample_id(sample_id), text
                ):
                    raise ValueError(
                        f"there is a sample {sample_id!r:.200} already: "
                        "use update_sample()"
                    )
                return sample_id
            while True:
                number = self._last_id + 1
                if number > LARGEST_ID:
                    reason = f"counters.value has reached {LARGEST_ID:,}: name the ids"
                    raise FormatError(reason, self._path, 0)
                generated = f"sample_{number:012d}"
                name = b"%b.npy" % generated.encode()
                is_new = self._insert(arrays, generated, name, text)
                self._last_id = number
                if is_new:
                    return generated

    def update_sample(
        self,
        sample_id: str,
        arrays: Mapping[str, ArrayLike],
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Replace arrays of a sample, or add them, whole or not at all.

        Fields that are not named keep theirs. The bytes that are replaced become
        dead space, which `compact` removes.

        Parameters
        ----------
        sample_id : str
        arrays : Mapping of str to array_like
            By field.
        metadata : Mapping, optional
            Takes the place of what there is, as a whole; None: it stays.

        Raises
        ------
        ValueError
            There is no such sample; or as for `add_sample`. Nothing is changed.
        TypeError, OSError, ClosedError
            As for `add_sample`.
        """
        with self._mutex:
            self.check_idle()
            text = (
                None
                if metadata is None
                else metadata_text(metadata, sample_id, self._conn)
            )
            name = check_sample_id(sample_id)
            if not self._update(arrays, sample_id, name, text):
                raise ValueError(
                    f"there is no sample {sample_id!r:.200}: use add_sample()"
                )

    def register_samples(
        self,
        sample_ids: Sequence[str],
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Add samples without arrays, durably. Those that exist stay as they are.

        Parameters
        ----------
        sample_ids : sequence of str
        metadata : sequence of Mapping, optional
            One for each id.

        Raises
        ------
        ValueError
            An id or its metadata cannot be stored; or their numbers differ, or an id
            is there twice with other metadata. None is added.
        """
        if isinstance(sample_ids, str):
            raise TypeError(f"ids are a list, not the str {sample_ids!r:.80}")
        with self._mutex:
            self.check_idle()
            ids = list(sample_ids)
            if isinstance(metadata, (str, bytes, Mapping)):
                kind = type(metadata).__name__
                raise TypeError(
                    f"metadata is a list, a mapping for each id, not {kind}"
                )
            every = [None] * len(ids) if metadata is None else list(metadata)
            if len(every) != len(ids):
                raise ValueError(f"{len(ids):,} ids, and metadata of {len(every):,}")
            for sample_id in ids:
                check_sample_id(sample_id)
            rows = [
                (sample_id, metadata_text(one, sample_id, self._conn))
                for sample_id, one in zip(ids, every, strict=True)
            ]
            if len(set(rows)) != len(set(ids)):
                raise ValueError("an id is there twice, with other metadata")
            try:
                with fields.savepoint(self._conn) as cursor:
                    register_rows(cursor, rows)
            except sqlite3.IntegrityError as error:
                raise ValueError(f"the samples cannot be added: {error}") from error
            except sqlite3.Error as error:
                self._failed(error)
            self.flush()

    def write_shard(
        self,
        field_name: str,
        shard_id: int,
        samples: Sequence[str],
        arrays: Sequence[ArrayLike],
        *,
        overwrite: bool = False,
    ) -> None:
        """Write a whole new shard of a field, durably; see `open_shard`.

        Parameters
        ----------
        field_name : str
        shard_id : int
            The shard's number.
        samples : sequence of str
            Ids, each once. Those of no sample are registered, without metadata.
        arrays : sequence of array_like
            One for each.
        overwrite : bool
            Whether a shard that exists is replaced.

        Raises
        ------
        ValueError
            As for `open_shard`; or the numbers of ids and arrays differ, or an id
            is there twice.
        FileExistsError
            There is such a shard, and `overwrite` is not set.
        """
        if isinstance(samples, (str, bytes)):
            raise TypeError(f"samples are a list of ids, not {samples!r:.80}")
        if len(samples) != len(arrays):
            raise ValueError(f"{len(samples):,} samples, and {len(arrays):,} arrays")
        if len(set(samples)) != len(samples):
            raise ValueError("a sample is there twice")
        number = operator.index(shard_id)
        with self._mutex:
            self.check_idle()
            column = self._column(field_name)
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
        """Return a context manager that writes a shard of a field.

        >>> with writer.open_shard("history", shard_id=7) as shard:
        ...     shard.add_sample("sample_000000000001", array)

        When it is left the shard and all else that was added is on the disk; an
        exception inside leaves everything as it was. A shard that exists is gone on
        with: the samples in it keep their arrays, but for those that are written again.

        Parameters
        ----------
        field_name : str
        shard_id : int, optional
            The shard's number; the next one by default.
        overwrite : bool
            Replace a shard that exists. Samples whose arrays were there and are not
            written again have no such field afterwards.

        Returns
        -------
        ShardHandle

        Raises
        ------
        ValueError
            The field is not registered, or the number is negative.
        FileExistsError
            Nothing may be appended to the shard that is there, and `overwrite` is not
            set; or a compaction has replaced it, and it is about to be removed.
        """
        with self._mutex:
            self.check_idle()
            return ShardHandle(self, self._column(field_name), shard_id, overwrite)

    def add_metadata_column(
        self,
        name: str,
        path: str,
        type: str | type[Any] = "TEXT",  # noqa: A002
    ) -> None:
        """Add a column that is computed from the metadata, with an SQL index.

        >>> writer.add_metadata_column("length", "$.length", "INTEGER")
        >>> reader.query_ids("length > 128")

        It is there for the samples that exist and for those to come.

        Parameters
        ----------
        name : str
            Letters, digits and ``_``.
        path : str
            Where in the metadata, as SQLite's ``json_extract`` takes it.
        type : {"TEXT", "INTEGER", "REAL", "NUMERIC"}, or str, int, float, bool
            What values are turned into where that loses nothing.

        Raises
        ------
        ValueError
            The name is taken or none, the path or the type is none, or a sample's
            metadata is no JSON. Nothing is changed.
        """
        with self._mutex:
            self.check_idle()
            try:
                with fields.savepoint(self._conn) as cursor:
                    fields.new_metadata_column(cursor, name, path, type)
            except sqlite3.Error as error:
                self._failed(error)
            self.flush()

    def compact(self) -> Compaction:
        """Rewrite the shards of fields that have dead space, durably.

        Stored bytes are copied into new shards, in the order of the samples; one
        commit lets them count. A crash leaves either state. The old files are removed
        when no reader may open them any more: those that open readers still see stay
        until they are refreshed, closed or gone, and go with the next `compact`, when
        this writer is closed or when another is opened.

        Returns
        -------
        Compaction
            Bytes and numbers of shard files, before and after.

        Raises
        ------
        FormatError
            A shard is damaged, or lacks what a row refers to. Nothing is changed.
        OSError
            There is no room for the new shards. Nothing is changed.
        """
        with self._mutex:
            self.flush()
            return compact_columns(self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<ShardedDatasetWriter of {self.root}, {state}>"
