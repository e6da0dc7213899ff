"""What can be asked of a columnar dataset's index."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from fastshard._core.pagering import PageRing
from fastshard.columnar.connect import FAULTS, ReaderConnection, fault_of
from fastshard.columnar.query import Params, query, query_ids
from fastshard.columnar.schema import quoted
from fastshard.columnar.snapshot import Snapshot
from fastshard.errors import ClosedError, FieldNotFoundError
from fastshard.formats.tar import Mode

if TYPE_CHECKING:
    from fastshard.dataset.verify import Fault

__all__ = ["TIMEOUT", "Asking"]

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
        column = quoted(f"{field_name}_shard")
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
        from fastshard.columnar.figures import stat

        self._check_open()
        return stat(self._home, deep=deep)

    def verify(self) -> list[Fault]:
        """Look for faults in the dataset as it is now; see `columnar.verify`."""
        from fastshard.columnar.verifying import verify

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
        except FAULTS as error:
            if self._closed:  # by another thread, meanwhile
                raise ClosedError(
                    f"the reader of {self.root} is closed: open another"
                ) from error
            raise fault_of(error, self._snapshot.path) from error
        return rows
