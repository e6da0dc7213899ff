"""Rows of a manifest, one for each sample, by column."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastshard._util.json import parse_value
from fastshard.codecs.libraries import import_library
from fastshard.errors import FormatError
from fastshard.where.columns import FrameColumns

if TYPE_CHECKING:
    import pandas
    import pyarrow

__all__ = [
    "KEY",
    "OFFSET",
    "SIZE",
    "ManifestRows",
    "load_rows",
    "rows_of_frame",
    "save_rows",
]

KEY, OFFSET, SIZE = "__key__", "__offset__", "__size__"
PLACES = (KEY, OFFSET, SIZE)
EXACT = 1 << 53  # floats above are rounded
INT64 = range(-(2**63), 2**63)
MAX_ROWS = 1 << 28  # of one shard


class ManifestRows:
    """Columns of a manifest, each loaded at first use."""

    def __init__(
        self,
        count: int,
        names: Sequence[str],
        load: Callable[[str], Sequence[Any]],
        text: Callable[[str], tuple[bytes, bytes] | None] | None = None,
    ) -> None:
        self._text = text
        self._count = count
        self.names = tuple(names)
        self._load = load
        self._columns: dict[str, Sequence[Any]] = {}

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Any]], count: int = 0) -> ManifestRows:
        """Return rows of values in memory."""
        count = len(next(iter(columns.values()))) if columns else count
        return cls(count, tuple(columns), columns.__getitem__)

    def __len__(self) -> int:
        return self._count

    def column(self, name: str) -> Sequence[Any]:
        """Return the values of a column; missing values are None."""
        values = self._columns.get(name)
        if values is None:
            if name not in self.names:
                raise KeyError(name)
            values = self._columns[name] = self._load(name)
        return values

    def text(self, name: str) -> tuple[bytes, bytes] | None:
        """Return a column of text in one piece, or None."""
        return None if self._text is None else self._text(name)

    def frame(self) -> pandas.DataFrame:
        """Return all columns as a DataFrame of pandas."""
        pandas = import_pandas()
        frame = pandas.DataFrame({name: self.column(name) for name in self.names})
        return frame if self.names else pandas.DataFrame()


def rows_of_frame(frame: pandas.DataFrame) -> ManifestRows:
    """Return the rows of a DataFrame; NaN of columns without a dtype is None."""
    names = [str(name) for name in frame.columns]
    return ManifestRows(len(frame), names, FrameColumns(frame).column)


def load_rows(path: str, data: bytes | None = None) -> ManifestRows:
    """Return the rows of a Parquet file; columns are read at first use."""
    parquet, arrow = import_parquet()
    if data is None:
        with open(path, "rb") as stream:
            data = stream.read()
    try:
        source = arrow.BufferReader(data)
        file = parquet.ParquetFile(
            source, pre_buffer=False, page_checksum_verification=True
        )
        names = file.schema_arrow.names
        count = file.metadata.num_rows
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise FormatError(f"not a Parquet file: {first_line(error)}", path, 0) from None
    if not 0 <= count <= MAX_ROWS:
        raise FormatError(f"a manifest has too many rows, {count:,}", path, 0)
    if len(set(names)) != len(names):
        raise FormatError("a manifest has a column twice", path, 0)
    table = ParquetTable(path, file, count)
    return ManifestRows(count, names, table.values, table.text)


class ParquetTable:
    """Columns of a Parquet file."""

    def __init__(self, path: str, file: Any, count: int) -> None:
        self._count = count
        self._path = path
        self._file = file
        self._read_last: tuple[str, Any] = ("", None)

    def text(self, name: str) -> tuple[bytes, bytes] | None:
        """Return a column of text joined, and the end of each value, as int32.

        None for columns in another form.
        """
        column = self._read(name)
        if column.num_chunks != 1 or str(column.type) != "string" or column.null_count:
            return None
        chunk = column.chunk(0)
        if chunk.offset or not len(chunk):
            return None
        _, ends, data = chunk.buffers()
        return data.to_pybytes(), ends.to_pybytes()

    def _read(self, name: str) -> Any:
        """Return a column of Arrow."""
        if self._read_last[0] == name:
            return self._read_last[1]
        _, arrow = import_parquet()
        try:
            table = self._file.read(columns=[name], use_threads=False)
            column = table.column(0) if table.num_columns == 1 else None
        except (arrow.ArrowException, OSError, ValueError, OverflowError) as error:
            reason = f"column {name!r} cannot be read: {first_line(error)}"
            raise FormatError(reason, self._path, 0) from None
        if column is None or len(column) != self._count:
            reason = f"column {name!r} is not one of {self._count:,} rows"
            raise FormatError(reason, self._path, 0)
        self._read_last = name, column
        return column

    def values(self, name: str) -> list[Any]:
        column = self._read(name)
        try:
            values: list[Any] = column.to_pylist()
        except (ValueError, OverflowError) as error:
            reason = f"column {name!r} cannot be read: {first_line(error)}"
            raise FormatError(reason, self._path, 0) from None
        if str(column.type) == "extension<arrow.json>":
            return [parse_list(value) for value in values]
        if str(column.type).startswith("decimal"):  # integers of more than 64 bits
            return [None if value is None else whole(value) for value in values]
        return values


def whole(value: Any) -> Any:
    """Return an integer stored as a decimal; a fraction as a float."""
    return int(value) if value == value.to_integral_value() else float(value)


def parse_list(text: Any) -> Any:
    """Return the value of a column of lists, stored as JSON text."""
    if not isinstance(text, str):
        return text
    try:
        return parse_value(text, "<column>")
    except FormatError:
        return text


def save_rows(rows: ManifestRows, stream: Any) -> None:
    """Write rows as Parquet; lists as JSON text."""
    parquet, arrow = import_parquet()
    arrays = {}
    for name in rows.names:
        try:
            arrays[name] = make_column(arrow, name, rows.column(name))
        except (arrow.ArrowException, TypeError, ValueError) as error:
            raise TypeError(f"column {name!r}: {first_line(error)}") from None
    table = arrow.table(arrays)
    parquet.write_table(table, stream, compression="snappy", write_page_checksum=True)


def make_column(arrow: Any, name: str, values: Sequence[Any]) -> pyarrow.Array:
    """Return a column of Arrow; values of several types are JSON text, as lists."""
    kinds = {type(value) for value in values} - {type(None)}
    if name == KEY:
        return arrow.array(values, arrow.string())
    if name in PLACES:
        return arrow.array(values, arrow.int64())
    is_number = kinds == {int, float} and all(is_exact(value) for value in values)
    if kinds & {list, tuple, dict, set} or (len(kinds) > 1 and not is_number):
        text = [None if value is None else to_json(value) for value in values]
        if hasattr(arrow, "json_"):  # 19.0
            return arrow.array(text, arrow.string()).cast(arrow.json_())
        return arrow.array(text, arrow.string())
    if is_number:
        return arrow.array(values, arrow.float64())
    if kinds == {int}:
        return arrow.array(values, integer_type(arrow, values))
    return arrow.array(values)


def is_exact(value: Any) -> bool:
    """Return whether a float is equal to a number."""
    return not isinstance(value, int) or abs(value) <= EXACT


def integer_type(arrow: Any, values: Iterable[Any]) -> Any:
    """Return the least exact type of Arrow for integers of msgpack."""
    found = [value for value in values if value is not None]
    if min(found) in INT64 and max(found) in INT64:
        return arrow.int64()
    return arrow.uint64() if min(found) >= 0 else arrow.decimal128(20, 0)


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=list)


def first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def import_parquet() -> tuple[Any, Any]:
    need, pip = "pyarrow is needed for manifests", "'fastshard[manifest]'"
    pyarrow = import_library("pyarrow", need, pip)
    return import_library("pyarrow.parquet", need, pip), pyarrow


def import_pandas() -> Any:
    return import_library("pandas", "pandas is needed for DataFrames", "pandas")
