"""Work of a conversion on a range of samples: scan, check, write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fastshard.conversion.columns import KEY, SourceColumn
from fastshard.conversion.facts import Facts, Problem
from fastshard.conversion.source import Columns, RowSource
from fastshard.conversion.targets import OutputColumn, Store, TargetFormat, TargetWriter
from fastshard.conversion.values import ABSENT, Cell, key_cell
from fastshard.errors import FastshardError

__all__ = ["Checked", "Conversion", "StoppedError", "Task", "check", "scan", "write"]

POLL_SAMPLES = 64  # between looks for the file that stops the work
KEY_BYTES = 8  # of the digest of a key
MAX_MEMORY = 1 << 29  # bytes of mapped pages in a process


class StoppedError(Exception):
    """The conversion ends: another part failed, or the user interrupted."""


_sources: dict[str, RowSource] = {}  # by folder, which is of one conversion


@dataclass(frozen=True)
class Conversion:
    """A conversion; it pickles.

    Attributes
    ----------
    source : str or list of str
    options : Mapping
        Options of `fastshard.open`.
    target : TargetFormat
    folder : str
        Where shards are written. Its file ``stop`` ends the work.
    outputs : tuple of OutputColumn
    selected : tuple of str or None
        Fields to read; None for all.
    max_size : int or None
        Bytes of a shard.
    keyed : bool
        Whether samples have keys; else positions are their keys.
    """

    source: Any
    options: Mapping[str, Any]
    target: TargetFormat
    folder: str
    outputs: tuple[OutputColumn, ...] = ()
    selected: tuple[str, ...] | None = None
    max_size: int | None = None
    keyed: bool = True

    def open(self) -> RowSource:
        """Return the source; forked processes share what it knows of its shards."""
        source = _sources.get(self.folder)
        if source is None:
            from fastshard.dataset.open import open as open_dataset

            options = {"max_memory": MAX_MEMORY} | dict(self.options)
            source = RowSource(open_dataset(self.source, **options))
            _sources[self.folder] = source
        return source

    def close(self) -> None:
        """Close the source."""
        source = _sources.pop(self.folder, None)
        if source is not None:
            source.dataset.close()

    @property
    def stop_path(self) -> str:
        return os.path.join(self.folder, "stop")

    def watch(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Yield samples until the conversion is stopped."""
        for i, sample in enumerate(samples):
            if not i % POLL_SAMPLES and os.path.exists(self.stop_path):
                raise StoppedError
            yield sample

    def with_outputs(self, **changes: Any) -> Conversion:
        """Return the conversion with more known about it."""
        return replace(self, **changes)


class Task(NamedTuple):
    """A range of samples, and its number."""

    number: int
    start: int
    stop: int


class Checked(NamedTuple):
    """Result of `check`.

    Attributes
    ----------
    problem : Problem or None
    keys : bytes
        Digests of the keys, if the target needs unique ones.
    """

    problem: Problem | None
    keys: bytes


def scan(job: Conversion, task: Task) -> dict[str, Facts]:
    """Gather the facts of all columns of a range."""
    source = job.open()
    found: dict[str, Facts] = {}
    plans: dict[int, list[tuple[Facts, Callable[[Any], None] | None]]] = {}
    for k, start, stop in source.segments(task.start, task.stop):
        for sample in job.watch(source.each(start, stop)):
            columns = source.columns_in(sample, k)
            plan = plans.get(id(columns))
            if plan is None:
                plan = plans[id(columns)] = [
                    (facts, examiner(facts, column, cell, job.target))
                    for column, cell in columns.values()
                    for facts in [found.setdefault(column.field, Facts())]
                ]
                for column, _ in columns.values():
                    found[column.field].encodings.add(column.encoding)
            for facts, examine in plan:
                facts.count += 1
                if examine is not None:
                    examine(sample)
    return found


def examiner(
    facts: Facts, column: SourceColumn, cell: Cell, target: TargetFormat
) -> Callable[[Any], None] | None:
    """Return the function that adds a sample's value to the facts, if any is needed."""
    value, encoding = cell.value, column.encoding
    if encoding == "metadata":
        return lambda sample: facts.add_json(value(sample))
    keeps_arrays = target.name in ("tar", "packed", "columnar")
    if encoding == "packed":
        return lambda sample: facts.add_packed(value(sample), keeps_arrays=keeps_arrays)
    if encoding == "npy" and not keeps_arrays:
        return lambda sample: facts.add_array(value(sample))
    if encoding == "int" and target.name == "mds" and not cell.form.startswith("mds"):
        return lambda sample: facts.add_int(value(sample))
    return None


class StoredRow(NamedTuple):
    """The columns that are stored of samples of one schema."""

    numbers: list[int]
    stores: list[Store]
    checks: list[tuple[str, Store, Callable[[Any], Any] | None]]


class RowMaker:
    """Maker of the target's rows."""

    def __init__(self, job: Conversion, source: RowSource) -> None:
        self._job = job
        self._source = source
        self._rows: dict[int, StoredRow] = {}
        self._seen: list[Columns] = []  # keeps the ids above theirs

    def row_of(self, columns: Columns) -> StoredRow:
        """Return what is stored of samples with these columns."""
        row = self._rows.get(id(columns))
        if row is None:
            row = self._rows[id(columns)] = self._make(columns)
            self._seen.append(columns)
        return row

    def _make(self, columns: Columns) -> StoredRow:
        target = self._job.target
        is_same = target.name == self._source.format
        row = StoredRow([], [], [])
        for number, output in enumerate(self._job.outputs):
            if output.name == KEY and self._source.is_open:
                cell = key_cell()
            elif output.field in columns:
                cell = columns[output.field][1]
            else:
                continue
            store = target.store(output, cell)
            if cell.form == "packed" and output.encoding != "json":
                store = without_nil(store, cell)
            row.numbers.append(number)
            row.stores.append(store)
            if not target.is_copied(output, cell, is_same=is_same):
                is_checked = cell.form in ("utf8", "json", "decimal")
                validate = cell.value if is_checked else None
                row.checks.append((output.name, store, validate))
        return row


def without_nil(store: Store, cell: Cell) -> Store:
    """Return a store for which a sample with nil lacks the column."""

    def store_value(sample: Any) -> Any:
        return ABSENT if cell.value(sample) is None else store(sample)

    return store_value


def check(job: Conversion, task: Task) -> Checked:
    """Convert the values of a range that may fail, and drop the results."""
    source = job.open()
    maker = RowMaker(job, source)
    target = job.target
    checks_keys = not target.has_key_column and source.format != target.name
    digests: list[bytes] = []
    position = task.start
    for k, start, stop in source.segments(task.start, task.stop):
        if not source.is_open and not checks_keys:
            row = maker.row_of(source.columns_of(k))
            if not row.checks:
                position = stop
                continue
        for sample in job.watch(source.each(start, stop)):
            row = maker.row_of(source.columns_in(sample, k))
            if not row.numbers and target.name == "tar":
                reason = "it has no field; a sample needs at least one"
                return Checked(Problem(position, None, reason), b"")
            for name, store, validate in row.checks:
                try:
                    store(sample)
                    if validate is not None:
                        validate(sample)
                except FastshardError:
                    raise
                except (ValueError, TypeError) as error:
                    return Checked(Problem(position, name, str(error)), b"")
            if checks_keys:
                key = sample.key if job.keyed else str(position)
                try:
                    target.check_key(key)
                except ValueError as error:
                    return Checked(Problem(position, None, str(error)), b"")
                if target.needs_unique_keys:
                    digests.append(digest_of(key))
            position += 1
    return Checked(None, b"".join(digests))


def digest_of(key: str) -> bytes:
    from hashlib import blake2b

    data = key.encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=KEY_BYTES).digest()


def write(job: Conversion, task: Task) -> list[Any] | Problem:
    """Write a range; return what its shards are, or the first problem."""
    source = job.open()
    maker = RowMaker(job, source)
    writer = job.target.open_writer(
        job.folder,
        f"part-{task.number:06d}",
        job.outputs,
        max_size=job.max_size,
        count=task.stop - task.start,
    )
    try:
        problem = write_samples(job, task, source, maker, writer)
        if problem is None:
            return writer.finish()
    except BaseException:
        writer.abandon()
        raise
    writer.abandon()
    return problem


def write_samples(
    job: Conversion,
    task: Task,
    source: RowSource,
    maker: RowMaker,
    writer: TargetWriter,
) -> Problem | None:
    position = task.start
    for k, start, stop in source.segments(task.start, task.stop):
        for sample in job.watch(source.samples(start, stop, job.selected)):
            row = maker.row_of(source.columns_in(sample, k))
            key = sample.key if job.keyed else str(position)
            try:
                values = [store(sample) for store in row.stores]
                pairs = zip(row.numbers, values, strict=True)
                writer.write(key, [pair for pair in pairs if pair[1] is not ABSENT])
            except FastshardError:
                raise
            except (ValueError, TypeError) as error:
                return Problem(position, None, str(error))
            position += 1
    return None
