"""Handle of one shard that is written on its own, new or in place of another."""

from __future__ import annotations

import errno
import operator
import os
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from fastshard._util.writing.unclosed import Loss, report_dropped, report_ended, watch
from fastshard.columnar.layout.schema import MAX_SHARD, check_sample_id
from fastshard.columnar.write.append_file import WRITE_BYTES, new_buffer
from fastshard.columnar.write.column import Column, ShardLength
from fastshard.columnar.write.connection import savepoint
from fastshard.columnar.write.replace import ShardReplacement, temporary_name
from fastshard.columnar.write.rows import move_rows
from fastshard.columnar.write.session import WriterSession
from fastshard.errors import ClosedError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from fastshard.columnar.write.append_file import AppendFile

__all__ = ["ShardHandle"]


class ShardHandle:
    """Write one shard of a field; made by `ShardedDatasetWriter.open_shard`.

    Rows refer to the shard's members when it is closed, which the end of a ``with``
    block does. An exception in the block discards the shard. So does dropping it
    without `close`: an `UnclosedWriterWarning` says how many samples are not stored.

    Attributes
    ----------
    field_name : str
        The field.
    shard_id : int
        The shard's number.

    Examples
    --------
    >>> import numpy as np
    >>> from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
    >>> with ShardedDatasetWriter("weather") as writer:
    ...     writer.add_field("history")
    ...     with writer.open_shard("history") as shard:
    ...         shard.add_sample("bonn", np.arange(4))
    ...         shard.add_sample("ulm", np.arange(4))
    >>> shard.shard_id, len(ShardedDatasetReader("weather"))
    (0, 2)
    """

    def __init__(
        self,
        session: WriterSession,
        column: Column,
        shard_id: int | None,
        overwrite: bool,
    ) -> None:
        self._closed = True  # until the file is open
        self._cut_off = False  # whether the session has ended before it was closed
        number = column.next_number() if shard_id is None else operator.index(shard_id)
        if not 0 <= number <= MAX_SHARD:
            raise ValueError(f"shard_id must be 0 to {MAX_SHARD:,}, got {number}")
        self.field_name = column.name
        self.shard_id = number
        self._session = session
        self._column = column
        # Offset, and row in a pack, of each sample's last array:
        self._places: dict[str, tuple[int, int | None]] = {}
        self._members = 0
        if number in column.in_handles:
            reason = "the shard is being written"
            raise FileExistsError(errno.EEXIST, reason, column.path(number))
        exists = column.has_shard(number)
        self._replaces = exists and overwrite
        self._new_path: str | None = None  # of a file that replaces the shard's
        self._file = self._open_file(exists=exists)
        column.in_handles.add(number)
        self._closed = False
        session.handles.add(self)
        watch(self)

    def _open_file(self, *, exists: bool) -> AppendFile:
        """Open the file that takes the members.

        An existing shard is appended to, so that its rows stay valid until the
        commit. Only one that must not be appended to is replaced by a new file.
        """
        column, number = self._column, self.shard_id
        buffer = new_buffer(
            allow_pickle=self._session.allow_pickle, packs=column.buffer.packs
        )
        path = column.path(number)
        if column.file is not None and column.file.number == number:
            self._session.flush()
            column.finish()
        if number in column.foreign:
            column.adopt(number)
            self._session.flush()
        end: ShardLength | None = ShardLength(0, 0)
        if exists:
            end = None if number in column.foreign else column.find_end(number)
        if end is None:
            if not self._replaces or column.is_condemned(number):
                reason = "the shard exists, and nothing may be appended to it"
                raise FileExistsError(errno.EEXIST, reason, path)
            end = ShardLength(0, 0)
            path = self._new_path = os.path.join(column.folder, temporary_name(number))
        self._before = end
        column.folder_changed = True
        return column.open_file(path, number, buffer, end.nbytes)

    def add_sample(self, sample_id: str, array: ArrayLike) -> None:
        """Add a sample's array. If it is added twice the last one counts.

        A sample that does not exist is registered when the shard is closed.

        Parameters
        ----------
        sample_id : str
            As for `ShardedDatasetWriter.add_sample`.
        array : array_like
            As for `ShardedDatasetWriter.add_sample`.

        Raises
        ------
        ValueError
            The array cannot be stored, or the id is invalid. Nothing is added.
        TypeError
            The id is not a str.
        OSError
            The shard cannot be written. It is discarded.
        ClosedError
            The shard or its writer is closed.

        Examples
        --------
        >>> with ShardedDatasetWriter("series") as writer:
        ...     with writer.open_shard("history") as shard:
        ...         shard.add_sample("bonn", np.arange(4))
        >>> ShardedDatasetReader("series").shard_counts("history")
        {0: 3, 1: 1}
        """
        session = self._session
        with session.mutex:
            self._check_open()
            name = check_sample_id(sample_id)
            session.busy = True  # an array's own code may call the writer
            try:
                offset = self._file.buffer.append(name, array)
            except ValueError as error:
                where = f"sample {sample_id!r:.200}, field {self.field_name!r}"
                raise ValueError(f"{where}: {error}") from error
            finally:
                session.busy = False
            row = self._file.buffer.row
            self._places[sample_id] = offset, row if row >= 0 else None
            self._members += 1
            if len(self._file.buffer) >= WRITE_BYTES:
                try:
                    self._file.write()
                except BaseException:
                    self.discard()
                    raise

    def close(self) -> None:
        """Commit the shard and all samples added to the writer, durably.

        May be called twice.

        Raises
        ------
        ValueError
            A constraint that was added to the index refuses a new sample's row.
        OSError
            The shard cannot be stored. If its file could not be written nothing has
            changed; otherwise the writer is closed, as after its own `flush`.
        ClosedError
            The writer was closed before the shard.

        Examples
        --------
        >>> with ShardedDatasetWriter("series") as writer:
        ...     shard = writer.open_shard("history")
        ...     shard.add_sample("bonn", np.arange(4))
        ...     shard.close()
        >>> ShardedDatasetReader("series").shard_counts("history")
        {0: 3, 1: 1}
        """
        with self._session.mutex:
            if self._closed and not self._cut_off:
                return
            if self._cut_off:
                self._places.clear()  # the error below reports their loss
            self._check_open()
            try:
                self._file.complete()
                self._file.sync()
            except BaseException:
                self.discard()
                raise
            members = self._before.members + self._members
            record = ShardLength(self._file.buffer.end, members)
            self._file.close()
            self._closed = True
            try:
                self._commit(record)
            finally:
                self._column.in_handles.discard(self.shard_id)
                if self._new_path is not None:
                    with suppress(OSError):
                        os.unlink(self._new_path)  # if the commit was not reached

    def _commit(self, record: ShardLength) -> None:
        """Let rows refer to the shard, whose file is synced, and flush."""
        session, column, number = self._session, self._column, self.shard_id
        transaction = session.transaction
        session.flush()
        with transaction.revert_on_error(column):
            try:
                transaction.replacements.remove_old()
                column.finish()
                with savepoint(session.conn) as cursor:
                    if self._new_path is not None:
                        replacement = ShardReplacement(column, number, self._new_path)
                        transaction.replacements.install(replacement, cursor)
                    move_rows(
                        cursor, column, number, self._places, clear=self._replaces
                    )
                    column.pending[number] = record
                    column.highest = max(column.highest, number)
            except (OSError, sqlite3.Error) as error:
                session.fail(error)
            session.flush()
        column.unsound.discard(number)

    def discard(self) -> None:
        """Restore the state before the handle was opened, unless it is closed.

        Raises
        ------
        RuntimeError
            It is called by an array that is being added.

        Examples
        --------
        >>> with ShardedDatasetWriter("series") as writer:
        ...     shard = writer.open_shard("history")
        ...     shard.add_sample("bonn", np.arange(4))
        ...     shard.discard()
        >>> ShardedDatasetReader("series").shard_counts("history")
        {0: 3}
        """
        with self._session.mutex:
            if self._closed:
                self._places.clear()
                return
            self._session.check_idle()
            self._release(cut=True)

    def end(self, *, cut: bool) -> None:
        """Discard the shard because its session ends; with `cut`, restore the file.

        Without `cut` the file is left alone: it may be another process's by now.
        """
        if not self._closed:
            self._cut_off = True
            self._release(cut=cut)

    def forget(self, sample_ids: Iterable[str]) -> None:
        """Drop the arrays of deleted samples; their bytes stay as dead space."""
        for sample_id in sample_ids:
            self._places.pop(sample_id, None)

    def _release(self, *, cut: bool) -> None:
        """Close the file; with `cut`, restore its length."""
        if not self._closed:
            self._closed = True
            self._column.in_handles.discard(self.shard_id)
            if cut:
                self._file.discard(self._before.nbytes)
            else:
                self._file.close_as_is()

    def _find_loss(self) -> Loss:
        """Return the samples added, unless the shard was closed or discarded."""
        is_open = self._cut_off or not self._closed
        path = self._column.path(self.shard_id)
        return Loss(type(self).__name__, path, len(self._places) if is_open else 0)

    def __del__(self) -> None:
        report_dropped(self)
        if not getattr(self, "_closed", True):
            with self._session.mutex:
                self._release(cut=not self._session.closed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is None:
            self.close()
            return
        try:
            report_ended(self, exc_type)
        finally:
            self.discard()

    def _check_open(self) -> None:
        self._session.check_idle()
        if self._closed:
            raise ClosedError(f"the shard {self._column.path(self.shard_id)} is closed")
