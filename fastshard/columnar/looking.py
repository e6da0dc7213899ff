"""Looking up samples of a columnar dataset: by SQL, or among all rows once read."""

from __future__ import annotations

import json
import os
import sys
from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fastshard._core.gather import positions_of
from fastshard._core.pagering import PageRing
from fastshard._core.rowreader import RowReader
from fastshard.columnar.asking import Asking
from fastshard.columnar.connect import FAULTS, fault_of
from fastshard.columnar.known import Known
from fastshard.columnar.rows import load_image, load_samples, some_samples
from fastshard.columnar.snapshot import Snapshot, row_sql, rows_sql
from fastshard.errors import (
    ClosedError,
    FastshardError,
    FormatError,
    SampleNotFoundError,
)
from fastshard.formats.tar import Mode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard._core.columnsamples import ColumnSamples

__all__ = ["Looking", "Reading"]

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
            from fastshard.columnar.pickled import unpickled

            self._snapshot.unpickle = unpickled

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
            except FAULTS as error:
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
        assert isinstance(error, FAULTS)
        return fault_of(error, self._snapshot.path)

    def _with_objects(
        self,
        reading: Reading,
        row: tuple[Any, ...],
        sample_id: str,
        copy: bool,
        error: FormatError,
    ) -> dict[str, NDArray[Any]]:
        """Return arrays some of which are of objects, if that is allowed."""
        from fastshard.columnar.headers import is_of_objects
        from fastshard.columnar.pickled import arrays_with_objects

        if self._allow_pickle:
            return arrays_with_objects(reading.rows, row, sample_id, copy)
        if is_of_objects(error.reason):
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
            return samples, positions_of(keys, len(samples))
        keys = keys if type(keys) is list else self._ids(keys)
        looked = self._looked
        self._note_looked_up(len(keys))
        if looked.samples is None and looked.asked * WORTH_ALL < len(self):
            keys = self._ids(keys)
            rows = self._rows(self._reading(None), keys)
            order = array("q", range(len(keys)))
            return some_samples(self._snapshot, rows, keys), order
        samples = self._loaded()
        return samples, samples.find_keys(keys)


def _answers(samples: ColumnSamples) -> bool:
    """Whether samples say what SQL would; of equal ids that one counts it finds."""
    return samples.has_metadata and not samples.names.has_duplicates
