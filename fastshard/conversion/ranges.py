"""Conversion of a range of samples: scan, check, write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fastshard.conversion.columns import KEY, SourceColumn
from fastshard.conversion.profile import ColumnProfile, Problem
from fastshard.conversion.source import Columns, RowSource
from fastshard.conversion.targets import (
    OutputColumn,
    TargetFormat,
    TargetWriter,
    ValueEncoder,
)
from fastshard.conversion.values import ABSENT, ValueReader, key_reader
from fastshard.errors import FastshardError

__all__ = ["Checked", "Conversion", "StoppedError", "Task", "check", "scan", "write"]

POLL_SAMPLES = 64  # seconds between checks of the stop file
KEY_BYTES = 8  # bytes of the digest of a key
MAX_MEMORY = 1 << 29  # bytes of mapped pages in a process


class StoppedError(Exception):
    """The conversion ends: another part failed, or the user interrupted."""


_sources: dict[str, RowSource] = {}  # by folder, one for each conversion


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
        """Open the source; forked processes share its state."""
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
        """Yield samples until the conversion stops."""
        for i, sample in enumerate(samples):
            if not i % POLL_SAMPLES and os.path.exists(self.stop_path):
                raise StoppedError
            yield sample

    def with_outputs(self, **changes: Any) -> Conversion:
        """Return the conversion with changed attributes."""
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


def scan(conversion: Conversion, task: Task) -> dict[str, ColumnProfile]:
    """Gather the profiles of all columns of a range."""
    source = conversion.open()
    found: dict[str, ColumnProfile] = {}
    plans: dict[int, list[tuple[ColumnProfile, Callable[[Any], None] | None]]] = {}
    for k, start, stop in source.segments(task.start, task.stop):
        for sample in conversion.watch(source.each(start, stop)):
            columns = source.columns_in(sample, k)
            plan = plans.get(id(columns))
            if plan is None:
                plan = plans[id(columns)] = [
                    (profile, examiner(profile, column, reader, conversion.target))
                    for column, reader in columns.values()
                    for profile in [found.setdefault(column.field, ColumnProfile())]
                ]
                for column, _ in columns.values():
                    found[column.field].encodings.add(column.encoding)
            for profile, examine in plan:
                profile.count += 1
                if examine is not None:
                    examine(sample)
    return found


def examiner(
    profile: ColumnProfile,
    column: SourceColumn,
    reader: ValueReader,
    target: TargetFormat,
) -> Callable[[Any], None] | None:
    """Return the function that adds a sample's value to the profile, or None."""
    value, encoding = reader.value, column.encoding
    if encoding == "metadata":
        return lambda sample: profile.add_json(value(sample))
    keeps_arrays = target.name in ("tar", "packed", "columnar")
    if encoding == "packed":
        return lambda sample: profile.add_packed(
            value(sample), keeps_arrays=keeps_arrays
        )
    if encoding == "npy" and not keeps_arrays:
        return lambda sample: profile.add_array(value(sample))
    if encoding == "int" and target.name == "mds" and not reader.form.startswith("mds"):
        return lambda sample: profile.add_int(value(sample))
    return None


class StoredRow(NamedTuple):
    """The stored columns of samples with one schema."""

    numbers: list[int]
    encoders: list[ValueEncoder]
    checks: list[tuple[str, ValueEncoder, Callable[[Any], Any] | None]]


class RowMaker:
    """Maker of the target's rows."""

    def __init__(self, conversion: Conversion, source: RowSource) -> None:
        self._conversion = conversion
        self._source = source
        self._rows: dict[int, StoredRow] = {}
        self._seen: list[Columns] = []  # keeps the objects whose ids are keys

    def row_of(self, columns: Columns) -> StoredRow:
        """Return the stored columns of samples with these columns."""
        row = self._rows.get(id(columns))
        if row is None:
            row = self._rows[id(columns)] = self._make(columns)
            self._seen.append(columns)
        return row

    def _make(self, columns: Columns) -> StoredRow:
        target = self._conversion.target
        is_same = target.name == self._source.format
        row = StoredRow([], [], [])
        for number, output in enumerate(self._conversion.outputs):
            if output.name == KEY and self._source.is_open:
                reader = key_reader()
            elif output.field in columns:
                reader = columns[output.field][1]
            else:
                continue
            encode = target.encoder(output, reader)
            if reader.form == "packed" and output.encoding != "json":
                encode = without_nil(encode, reader)
            row.numbers.append(number)
            row.encoders.append(encode)
            if not target.is_copied(output, reader, is_same=is_same):
                is_checked = reader.form in ("utf8", "json", "decimal")
                validate = reader.value if is_checked else None
                row.checks.append((output.name, encode, validate))
        return row


def without_nil(encode: ValueEncoder, reader: ValueReader) -> ValueEncoder:
    """Wrap an encoder: a sample with nil lacks the column."""

    def store_value(sample: Any) -> Any:
        return ABSENT if reader.value(sample) is None else encode(sample)

    return store_value


def check(conversion: Conversion, task: Task) -> Checked:
    """Convert the fallible values of a range, and drop the results."""
    source = conversion.open()
    maker = RowMaker(conversion, source)
    target = conversion.target
    checks_keys = not target.has_key_column and source.format != target.name
    digests: list[bytes] = []
    position = task.start
    for k, start, stop in source.segments(task.start, task.stop):
        if not source.is_open and not checks_keys:
            row = maker.row_of(source.columns_of(k))
            if not row.checks:
                position = stop
                continue
        for sample in conversion.watch(source.each(start, stop)):
            row = maker.row_of(source.columns_in(sample, k))
            if not row.numbers and target.name == "tar":
                reason = "it has no field; a sample needs at least one"
                return Checked(Problem(position, None, reason), b"")
            for name, encode, validate in row.checks:
                try:
                    encode(sample)
                    if validate is not None:
                        validate(sample)
                except FastshardError:
                    raise
                except (ValueError, TypeError) as error:
                    return Checked(Problem(position, name, str(error)), b"")
            if checks_keys:
                key = sample.key if conversion.keyed else str(position)
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


def write(conversion: Conversion, task: Task) -> list[Any] | Problem:
    """Write a range; return its shards, or the first problem."""
    source = conversion.open()
    maker = RowMaker(conversion, source)
    writer = conversion.target.open_writer(
        conversion.folder,
        f"part-{task.number:06d}",
        conversion.outputs,
        max_size=conversion.max_size,
        count=task.stop - task.start,
    )
    try:
        problem = write_samples(conversion, task, source, maker, writer)
        if problem is None:
            return writer.finish()
    except BaseException:
        writer.abandon()
        raise
    writer.abandon()
    return problem


def write_samples(
    conversion: Conversion,
    task: Task,
    source: RowSource,
    maker: RowMaker,
    writer: TargetWriter,
) -> Problem | None:
    position = task.start
    for k, start, stop in source.segments(task.start, task.stop):
        for sample in conversion.watch(
            source.samples(start, stop, conversion.selected)
        ):
            row = maker.row_of(source.columns_in(sample, k))
            key = sample.key if conversion.keyed else str(position)
            try:
                values = [encode(sample) for encode in row.encoders]
                pairs = zip(row.numbers, values, strict=True)
                writer.write(key, [pair for pair in pairs if pair[1] is not ABSENT])
            except FastshardError:
                raise
            except (ValueError, TypeError) as error:
                return Problem(position, None, str(error))
            position += 1
    return None
