"""One shard that is written as a whole, also in the place of another."""

from __future__ import annotations

import errno
import operator
import os
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from fastshard.columnar.schema import MAX_SHARD, check_sample_id
from fastshard.columnar.write.column import (
    WRITE_BYTES,
    Column,
    Growing,
    Record,
    new_buffer,
    sync_file,
)
from fastshard.columnar.write.replace import Swap, new_name
from fastshard.columnar.write.session import Session
from fastshard.errors import ClosedError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["ShardHandle"]


class ShardHandle:
    """A shard of a field that is written as a whole.

    Made by `ShardedDatasetWriter.open_shard`. The rows change when it is closed.

    Attributes
    ----------
    field_name : str
    shard_id : int
    """

    def __init__(
        self, writer: Session, column: Column, shard_id: int | None, overwrite: bool
    ) -> None:
        self._closed = True  # until all is well
        self._cut_off = False  # its writer has ended
        number = column.next_number() if shard_id is None else operator.index(shard_id)
        if not 0 <= number <= MAX_SHARD:
            raise ValueError(f"no number of a shard, 0 to {MAX_SHARD:,}: {number}")
        self.field_name = column.name
        self.shard_id = number
        self._writer = writer
        self._column = column
        self._rows: dict[str, int] = {}  # ids, and offsets of the last array of each
        self._members = 0
        path = column.path(number)
        if number in column.opened:
            reason = "the shard is being written"
            raise FileExistsError(errno.EEXIST, reason, path)
        self._existed = column.has_shard(number)
        self._replaces = self._existed and overwrite
        self._growing = self._begin()
        column.opened.add(number)
        self._closed = False
        writer._handles.add(self)

    def _begin(self) -> Growing:
        """Open the file that takes the members.

        What exists is appended to, so that its rows stay true until the commit. Only
        what must not grow is replaced.

        Raises
        ------
        FileExistsError
            It must not grow, and is not to be replaced.
        """
        column, number = self._column, self.shard_id
        buffer = new_buffer(allow_pickle=self._writer._allow_pickle)
        path = column.path(number)
        if column.growing is not None and column.growing.number == number:
            self._writer.flush()
            column.finish()
        if number in column.foreign:
            column.take_over(number)
            self._writer.flush()
        at: Record | None = Record(0, 0)
        if self._existed:
            at = None if number in column.foreign else column.end_of(number)
        self._new = None
        if at is None and (not self._replaces or column.is_condemned(number)):
            reason = "the shard exists, and nothing may be appended to it"
            raise FileExistsError(errno.EEXIST, reason, path)
        if at is None:
            at = Record(0, 0)
            path = self._new = os.path.join(column.folder, new_name(number))
        self._before = at
        column.new_files = True
        return column.open(path, number, buffer, at.nbytes)

    def add_sample(self, sample_id: str, array: ArrayLike) -> None:
        """Add a sample's array. Of several for one sample the last one counts.

        A sample that there is not is registered when the shard is closed.

        Raises
        ------
        ValueError
            The array cannot be stored, or the id is none. Nothing is added.
        TypeError
            The id is no str.
        OSError
            It cannot be written. The shard is discarded.
        ClosedError
            The shard, or its writer, is closed.
        """
        writer = self._writer
        with writer._mutex:
            self._check()
            name = check_sample_id(sample_id)
            writer._busy = True  # an array's own code may call the writer
            try:
                offset = self._growing.buffer.append(name, array)
            except ValueError as error:
                raise ValueError(f"field {self.field_name!r}: {error}") from error
            finally:
                writer._busy = False
            self._rows[sample_id] = offset
            self._members += 1
            if len(self._growing.buffer) >= WRITE_BYTES:
                try:
                    self._growing.write()
                except BaseException:
                    self.discard()
                    raise

    def close(self) -> None:
        """Let the shard count, durably, with all else that the writer was given.

        Closing twice is no error.

        Raises
        ------
        ValueError
            A constraint that a user gave the index refuses a new sample's row.
        OSError
            It cannot be stored. If the shard itself could not be written, nothing
            has changed; else the writer is closed, as after its own `flush`.
        """
        with self._writer._mutex:
            if self._closed and not self._cut_off:
                return
            self._check()
            try:
                self._growing.complete()
                sync_file(self._growing.fd)
            except BaseException:
                self.discard()
                raise
            members = self._before.members + self._members
            record = Record(self._growing.buffer.end, members)
            self._growing.close()
            self._closed = True
            column, number = self._column, self.shard_id
            swap = None if self._new is None else Swap(column, number, self._new)
            try:
                self._writer.adopt(
                    column, number, record, self._rows, swap, existed=self._replaces
                )
            finally:
                column.opened.discard(number)
                if self._new is not None:
                    with suppress(OSError):
                        os.unlink(self._new)  # if it has not got its name

    def discard(self) -> None:
        """Leave everything as it was before. Of a shard that is closed it is no error.

        Raises
        ------
        RuntimeError
            It is called by an array that is being added.
        """
        with self._writer._mutex:
            if self._closed:
                return
            self._writer.check_idle()
            self._let_go(cut=True)

    def end(self, *, cut: bool) -> None:
        """Discard it, as its writer ends: from then on the file is another's."""
        if not self._closed:
            self._cut_off = True
            self._let_go(cut=cut)

    def _let_go(self, *, cut: bool) -> None:
        """Close the file; with `cut` it is as it was."""
        if not self._closed:
            self._closed = True
            self._column.opened.discard(self.shard_id)
            if cut:
                self._growing.discard(self._before.nbytes)
            else:
                self._growing.let_go()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            with self._writer._mutex:
                self._let_go(cut=not self._writer.closed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            self.close()
        else:
            self.discard()

    def _check(self) -> None:
        self._writer.check_idle()
        if self._closed:
            raise ClosedError(f"the shard {self._column.path(self.shard_id)} is closed")
