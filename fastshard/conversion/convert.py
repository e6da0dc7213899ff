"""Function `convert`: from a dataset of one format to one of another."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, Unpack

from fastshard._util.options import check_choice, check_names
from fastshard._util.sizes import parse_size
from fastshard.conversion.columns import KEY, parse_columns
from fastshard.conversion.profile import (
    ColumnProfile,
    Problem,
    merge_profiles,
    resolve_encoding,
)
from fastshard.conversion.publish import check_out, new_directory
from fastshard.conversion.ranges import Conversion, Task, check, scan, write
from fastshard.conversion.source import RowSource
from fastshard.conversion.targets import OutputColumn, TargetFormat
from fastshard.conversion.workers import Workers
from fastshard.dataset.open import OpenOptions
from fastshard.dataset.paths.listing import Source
from fastshard.errors import ConversionError
from fastshard.formats.tar import KeyRule, Mode

__all__ = ["FORMATS", "Converted", "FormatName", "convert"]

FormatName = Literal["tar", "packed", "mds", "json", "csv", "tsv", "xsv", "columnar"]
FORMATS: tuple[FormatName, ...] = (
    *("tar", "packed", "mds", "json", "csv", "tsv", "xsv", "columnar"),
)
MOST_REASONS = 8  # in one error
PER_TASK = 20_000  # samples that are scanned at a time
PER_SHARD = 1000  # samples of a shard, of a source without shards of samples


class Converted(NamedTuple):
    """Dataset that `convert` wrote.

    Attributes
    ----------
    path : str
        The directory.
    format : str
    samples : int
    columns : dict of str to str
        Encodings by name, as the target stores them.
    """

    path: str
    format: str
    samples: int
    columns: dict[str, str]


def convert(
    source: Source,
    out: str | os.PathLike[str],
    to: FormatName,
    *,
    columns: str | Mapping[str, str | None] | None = None,
    compression: str | None = None,
    hashes: Sequence[str] = (),
    max_size: int | str | None = None,
    max_count: int | None = None,
    newline: str | None = None,
    separator: str | None = None,
    workers: int | None = None,
    packed: bool = False,
    index: str | os.PathLike[str] = "auto",
    key: KeyRule = "first",
    lower: bool = True,
    mode: Mode = "mmap",
    **remote: Unpack[OpenOptions],
) -> Converted:
    """Write a dataset in another format, with the same samples in the same order.

    The values are checked first: a value that the format cannot hold is an error
    before a shard is written. Then shards are written to a temporary directory beside
    `out`, which is renamed when it is complete; one that a killed process left there
    is removed. Worker processes end with this one, however it ends. Memory does not
    grow with the sizes of shards or samples; of shards that are compressed, each worker
    holds one.

    Images, text, JSON and other bytes are copied as they are stored; nothing is
    unpickled. A tar's field is a column without its suffix: ``image.jpg`` is
    ``image`` of encoding ``jpeg``, ``jpg`` stays ``jpg``. Keys are the column
    ``__key__`` in mds, json, csv, tsv and xsv. Of a columnar dataset fields are
    arrays, and each name in its metadata is a column, too.

    Parameters
    ----------
    source : str, path-like or sequence of them
        As for `fastshard.open`.
    out : str or path-like
        Directory to make; an empty one is replaced.
    to : {"tar", "packed", "mds", "json", "csv", "tsv", "xsv", "columnar"}
        Format of the shards.
    columns : str or Mapping of str to (str or None), optional
        Columns to write, in this order; by default all. Encodings by name, or as a text
        ``"image:jpeg,label:int"``. Without an encoding, or with None, a column keeps
        the one that it has. Without ``__key__`` keys are left out.
    compression : str, optional
        Of mds, json, csv, tsv, xsv: ``"zstd"``, ``"zstd:7"``, ``"br"``, ``"bz2"``,
        ``"gz"`` or ``"snappy"``.
    hashes : sequence of str
        Of mds, json, csv, tsv, xsv: checksums to record, such as ``["xxh64"]``.
    max_size : int or str, optional
        Size of a shard, at most: bytes or ``"64MiB"``. A sample that exceeds it gets a
        shard of its own. Not of columnar.
    max_count : int, optional
        Samples of a shard, at most. By default a shard of the source is one of the
        target; mds, json, csv, tsv and xsv cut it at 4 GiB, compressed at 256 MiB.
    newline : str, optional
        Of json, csv, tsv, xsv: end of a row; ``"\\n"``.
    separator : str, optional
        Of xsv: text between values; a tab.
    workers : int, optional
        Processes; by default one for each processor.
    packed : bool
        The source is packed tars, see `fastshard.open`: columns are the fields of the
        msgpack maps, not the members. A nil is null in a column of encoding ``json``;
        else the sample lacks the column.
    index, key, lower, mode
        How the source is read, as for `fastshard.open`.
    **remote
        How URLs are read, see `RemoteOptions`. With ``cache_dir=`` they are fetched
        once. And options of formats, as for `fastshard.open`: ``split=``.

    Returns
    -------
    Converted
        ``path``, ``format``, ``samples`` and ``columns``.

    Raises
    ------
    ConversionError
        The format cannot hold a column or a sample, which the error names.
    FileExistsError
        `out` exists, and is not an empty directory, also if another process has made
        it meanwhile; or it is a mount point.
    ValueError
        An option has an unknown value, or the source has no such column.
    FormatError
        The source is damaged.
    OSError
        The source cannot be read, or shards cannot be written.

    Examples
    --------
    >>> import fastshard
    >>> fastshard.convert("data/", "data-mds", to="mds", hashes=["sha1"]).columns
    {'__key__': 'str', 'npy': 'ndarray', 'cls': 'int', 'txt': 'str', 'json': 'json'}
    >>> fastshard.convert("data/", "labels", to="csv", columns="cls,txt").samples
    100
    """
    known = ("to", *(convert.__kwdefaults__ or ()), *OpenOptions.__optional_keys__)
    check_names("convert", remote, known)
    size = None if max_size is None else parse_size(max_size)
    if max_count is not None and max_count < 1:
        raise ValueError(f"max_count must be positive, got {max_count}")
    if size is not None and size < 1:
        raise ValueError(f"max_size must be positive, got {max_size}")
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be positive, got {workers}")
    target = make_target(to, compression, hashes, size, max_count, newline, separator)
    wanted = parse_columns(columns) if isinstance(columns, str) else columns
    path = check_out(os.fspath(out))
    count = workers or os.cpu_count() or 1
    with new_directory(path) as new, Workers(count) as pool:
        reading = {"index": index, "key": key, "lower": lower, "mode": mode}
        options = {"packed": packed, **reading, **remote}
        work = Conversion(source, options, target, new.path, max_size=size)
        try:
            opened = work.open()
            if index == "rebuild":  # once, not in each process
                work = work.with_outputs(options={**options, "index": "auto"})
            profiles = merge_profiles(find_profiles(work, opened, pool))
            outputs = plan_columns(opened, target, profiles, wanted)
            selected = select_fields(opened, profiles, outputs)
            work = work.with_outputs(
                outputs=outputs, selected=selected, keyed=opened.has_keys()
            )
            tasks = plan_tasks(opened, target, size, max_count)
            check_samples(work, opened, pool, tasks)
            parts = []
            for part in pool.map(write, work, tasks, "converting"):
                if isinstance(part, Problem):
                    raise error_of(work, opened, part)
                parts.append(part)
            target.complete(new.path, parts, outputs)
            new.commit()
            return Converted(
                os.fspath(out),
                to,
                len(opened),
                {output.name: output.encoding for output in outputs},
            )
        finally:
            work.close()


def make_target(
    to: str,
    compression: str | None,
    hashes: Sequence[str],
    max_size: int | None,
    max_count: int | None,
    newline: str | None,
    separator: str | None,
) -> TargetFormat:
    """Return the target format with its options."""
    check_choice("to", to, FORMATS)
    options = {
        "compression": compression is not None,
        "hashes": bool(hashes),
        "newline": newline is not None,
        "separator": separator is not None,
        "max_size": max_size is not None,
    }
    lacking = {
        "tar": {"compression", "hashes", "newline", "separator"},
        "packed": {"compression", "hashes", "newline", "separator"},
        "columnar": {"compression", "hashes", "newline", "separator", "max_size"},
        "mds": {"newline", "separator"},
        "xsv": set(),
    }.get(to, {"separator"})
    for name, is_given in options.items():
        if is_given and name in lacking:
            raise ValueError(f"{name}= is not an option of {to}: leave it out")
    if to == "tar":
        from fastshard.conversion.tar import TarTarget

        return TarTarget()
    if to == "packed":
        from fastshard.conversion.packed import PackedTarget

        return PackedTarget()
    if to == "columnar":
        from fastshard.conversion.columnar import ColumnarTarget

        return ColumnarTarget(max_count)
    from fastshard.conversion.rows import RowTarget

    if "" in (newline, separator):
        raise ValueError("newline and separator must not be empty")
    return RowTarget(
        to, compression, hashes, max_size, newline or "\n", separator=separator
    )


def find_profiles(
    work: Conversion, source: RowSource, pool: Workers
) -> Iterable[dict[str, ColumnProfile]]:
    """Return the profiles of the columns, in parts, from schemas or samples."""
    if source.is_open or (work.target.name == "mds" and source.has_text_ints()):
        tasks = split_tasks(cut_ranges(source.starts), PER_TASK)
        return pool.map(scan, work, tasks, "scanning")
    found = []
    for columns in source.all_columns():
        part = {}
        for column, _ in columns.values():
            part[column.field] = ColumnProfile(0, {column.encoding})
        found.append(part)
    counts = {name for part in found for name in part}
    total = len(source)
    for name in counts:
        has = all(name in part for part in found)
        for part in found[:1]:
            part.setdefault(name, ColumnProfile()).count = total if has else 0
    return found


def plan_columns(
    source: RowSource,
    target: TargetFormat,
    profiles: Mapping[str, ColumnProfile],
    wanted: Mapping[str, str | None] | None,
) -> tuple[OutputColumn, ...]:
    """Return the columns to write."""
    keyed = source.has_keys()
    if source.is_open and KEY in profiles:
        raise ConversionError(f"a column {KEY!r} would replace the samples' keys")
    named = source.name_columns(profiles)
    if keyed:
        named = {KEY: KEY} | named
    fields = find_fields(named, wanted)
    if keyed and not target.has_key_column:
        fields.pop(KEY, None)
    outputs = []
    reasons: list[str] = []
    for field, encoding in fields.items():
        name = named[field]
        is_key = field == KEY and keyed
        one = ColumnProfile(len(source), {"str"}) if is_key else profiles[field]
        try:
            output = plan_column(target, field, name, one, encoding)
        except ConversionError as error:
            reasons.append(str(error))
            continue
        is_json = output.encoding == "json"  # the one with null
        found = one.count - one.nils * (not is_json)
        if not target.is_open and found < len(source):
            lacking = len(source) - found
            reasons.append(f"{lacking:,} of {len(source):,} samples lack {name!r}")
        outputs.append(output)
    if reasons:
        more = f"; and {len(reasons) - MOST_REASONS} more" * (
            len(reasons) > MOST_REASONS
        )
        raise ConversionError(
            f"{target.name} cannot hold {'; '.join(reasons[:MOST_REASONS])}{more}: "
            "leave columns out, or choose encodings, by --columns NAME:ENCODING,..."
        )
    if not outputs and len(source) and target.name != "columnar":
        raise ConversionError(f"{target.name} has no samples without columns")
    try:
        target.check_columns(outputs)
    except ValueError as error:
        raise ConversionError(f"{target.name} cannot hold the columns: {error}") from (
            error
        )
    return tuple(outputs)


def find_fields(
    named: Mapping[str, str], wanted: Mapping[str, str | None] | None
) -> dict[str, str | None]:
    """Return the requested encodings by field, from fields or columns."""
    by_name: dict[str, str] = {}
    for field, name in named.items():
        if name in by_name:
            raise ConversionError(f"two fields of the source are column {name!r}")
        by_name[name] = field
    if wanted is None:
        return dict.fromkeys(named)
    fields: dict[str, str | None] = {}
    for name, encoding in wanted.items():
        found = by_name.get(name, name)
        if found not in named:
            known = ", ".join(by_name) or "none"
            raise ValueError(f"the source has no column {name!r}; it has {known}")
        if found in fields:
            raise ValueError(f"column {name!r} is given twice")
        fields[found] = encoding
    return fields


def plan_column(
    target: TargetFormat,
    field: str,
    name: str,
    profile: ColumnProfile,
    wanted: str | None,
) -> OutputColumn:
    """Return a column of the target."""
    encoding = resolve_encoding(profile, name)
    if wanted is not None:
        if wanted != encoding and not target.accepts(wanted):
            raise ValueError(f"{target.name} has no encoding {wanted!r} to convert to")
        adopted = target.adopt(wanted)
    elif encoding is None:
        several = " and ".join(sorted(profile.encodings))
        raise ConversionError(f"column {name!r} of encodings {several}")
    else:
        adopted = target.adopt(encoding)
    if adopted is None:
        raise ConversionError(f"column {name!r} of encoding {encoding}")
    output = OutputColumn(field, name, adopted)
    try:
        target.check_name(output)
    except ValueError as error:
        reason = str(error).rpartition("sample '': ")[2]
        raise ConversionError(f"column {name!r} ({reason})") from error
    return output


def select_fields(
    source: RowSource,
    profiles: Mapping[str, ColumnProfile],
    outputs: Sequence[OutputColumn],
) -> tuple[str, ...] | None:
    """Return the fields to prefetch; None for all."""
    fields = {output.field for output in outputs}
    chosen = tuple(field for field in profiles if field in fields)
    is_partial = any(profiles[field].count < len(source) for field in chosen)
    has_other = any(profiles[field].encodings == {"metadata"} for field in chosen)
    if not chosen or is_partial or has_other or len(chosen) == len(profiles):
        return None
    return chosen


def cut_ranges(starts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of shards that have samples."""
    for start, stop in pairwise(starts):
        if start < stop:
            yield start, stop


def plan_tasks(
    source: RowSource,
    target: TargetFormat,
    max_size: int | None,
    max_count: int | None,
) -> list[Task]:
    """Return the ranges of samples to write independently."""
    total = len(source)
    if target.is_serial:
        return [Task(0, 0, total)]
    if max_count is not None:
        return split_tasks([(0, total)], max_count)
    if source.format == "columnar":
        return split_tasks([(0, total)], PER_SHARD)
    if max_size is None:
        return split_tasks(cut_ranges(source.starts), total or 1)
    ranges: list[tuple[int, int]] = []
    nbytes = 0
    for k, (start, stop) in enumerate(
        zip(source.starts, source.starts[1:], strict=False)
    ):
        size = source.shard_bytes(k)
        if ranges and nbytes + size <= max_size:  # joins the shard before it
            ranges[-1] = ranges[-1][0], stop
            nbytes += size
        elif start < stop:
            ranges.append((start, stop))
            nbytes = size
    return split_tasks(ranges, total or 1)


def split_tasks(ranges: Iterable[tuple[int, int]], most: int) -> list[Task]:
    """Split tasks into tasks of a maximum number of samples."""
    tasks: list[Task] = []
    for start, stop in ranges:
        for at in range(start, stop, most):
            tasks.append(Task(len(tasks), at, min(stop, at + most)))
    return tasks


def check_samples(
    work: Conversion, source: RowSource, pool: Workers, tasks: Sequence[Task]
) -> None:
    """Raise ConversionError for the first sample that the target cannot hold."""
    import numpy as np

    digests = []
    ranges = [(task.start, task.stop) for task in tasks]
    for checked in pool.map(check, work, split_tasks(ranges, PER_TASK), "checking"):
        if checked.problem is not None:
            raise error_of(work, source, checked.problem)
        digests.append(np.frombuffer(checked.keys, np.uint64))
    if digests and work.target.needs_unique_keys:
        every = np.concatenate(digests)
        order = np.argsort(every, kind="stable")
        again = order[1:][every[order][1:] == every[order][:-1]]
        if len(again):
            reason = "another sample has its key"
            raise error_of(work, source, Problem(int(again.min()), None, reason))


def error_of(work: Conversion, source: RowSource, problem: Problem) -> ConversionError:
    """Return the error for a sample that the target cannot hold."""
    key = f" ({source.dataset[problem.position].key!r:.200})" if work.keyed else ""
    column = "" if problem.column is None else f", column {problem.column!r}"
    return ConversionError(
        f"{work.target.name} cannot hold sample {problem.position:,}{key}{column}: "
        f"{problem.reason}"
    )
