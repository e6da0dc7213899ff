"""Typed samples as tables: columns, data frames, Parquet files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from fastshard._util.files import AtomicFile, name_full_disk
from fastshard.codecs.libraries import import_library
from fastshard.typed.reading.sample_fields import row_of

__all__ = ["plain_row", "to_columns", "to_frame", "write_parquet"]


def to_columns(samples: Iterable[Any]) -> dict[str, list[Any]]:
    """Return the fields of samples as lists; None where a sample lacks a field."""
    rows = list(map(row_of, samples))
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def to_frame(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Return rows as a pandas data frame; arrays are objects in it."""
    need = "pandas is needed for tables of samples"
    pandas = import_library("pandas", need, "pandas")
    return pandas.DataFrame(list(rows))


def plain_row(sample: Any) -> dict[str, Any]:
    """Return the fields of a sample, with dataclasses in them as dicts."""
    return {
        name: dataclasses.asdict(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type)
        else value
        for name, value in row_of(sample).items()
    }


def write_parquet(
    samples: Iterator[Any],
    path: str | os.PathLike[str],
    sample_map: Callable[[Any], Mapping[str, Any]] | None,
    maxcount: int | None,
    options: dict[str, Any],
) -> None:
    """Write samples to Parquet files; see `Dataset.to_parquet`."""
    row = plain_row if sample_map is None else sample_map
    name = os.fspath(path)
    if maxcount is None:
        _write_rows(map(row, samples), name, options)
        return
    stem, suffix = os.path.splitext(name)
    number = 0
    while part := list(islice(samples, maxcount)):
        _write_rows(map(row, part), f"{stem}-{number:06d}{suffix}", options)
        number += 1


def _write_rows(
    rows: Iterable[Mapping[str, Any]], path: str, options: dict[str, Any]
) -> None:
    frame = to_frame(rows)
    if "partition_cols" in options or "://" in path:  # a directory, or a file system
        frame.to_parquet(path, **options)
        return
    new = AtomicFile(path)
    try:
        frame.to_parquet(new.temporary, **options)
        new.commit()
    except OSError as error:
        name_full_disk(error, path)
        raise
    finally:
        new.discard()
