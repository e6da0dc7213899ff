"""MDS, JSON and XSV shards as targets of a conversion.

Rows are written at once: memory does not grow with a shard.
"""

from __future__ import annotations

import json
import os
import struct
from array import array
from collections.abc import Sequence
from typing import Any, BinaryIO

from fastshard.codecs.compression import parse_compression
from fastshard.codecs.hashes import hash_file, open_hash
from fastshard.conversion.columns import FLOATS, INTEGERS
from fastshard.conversion.targets import (
    OutputColumn,
    TargetFormat,
    TargetWriter,
    ValueEncoder,
)
from fastshard.conversion.values import FORMS, ValueMismatchError, ValueReader, coerce
from fastshard.streaming.encodings.registry import is_mds_encoding, mds_encoder
from fastshard.streaming.encodings.registry import mds_size as size_of

__all__ = ["RowTarget"]

MAX_SHARD = (1 << 32) - 1  # bytes: offsets have 32 bits
MAX_COMPRESSED = 1 << 28  # bytes of a compressed shard, held in memory
BUFFER = 1 << 20  # bytes
COPIED = 1 << 22  # bytes at a time
ROW_ENCODINGS = (
    {"str": "str", "float": "float", "str_float": "float"}
    | dict.fromkeys(("int", "str_int", *INTEGERS), "int")
    | dict.fromkeys(FLOATS, "float")
)
SEPARATORS = {"csv": ",", "tsv": "\t"}
DIRECT = {"str", "json", "bytes", "jpeg", "png"}


class RowTarget(TargetFormat):
    """MDS, JSON, CSV, TSV or XSV shards and their ``index.json``."""

    name: str  # type: ignore[misc]

    def __init__(
        self,
        name: str,
        compression: str | None = None,
        hashes: Sequence[str] = (),
        size_limit: int | None = None,
        newline: str = "\n",
        separator: str | None = None,
    ) -> None:
        self.name = name
        if compression is not None:
            parse_compression(compression).compress(b"")  # raises without its library
        if len(set(hashes)) < len(hashes):
            raise ValueError(f"hashes must be unique, got {', '.join(hashes)}")
        for algo in hashes:
            open_hash(algo)
        self.compression = compression
        self.hashes = sorted(hashes)
        self.size_limit = size_limit
        self.newline = newline
        self.separator = SEPARATORS.get(name, separator or "\t")

    @property
    def is_text(self) -> bool:
        """True for CSV, TSV and XSV, whose rows are lines of separated values."""
        return self.name not in ("mds", "json")

    def adopt(self, encoding: str) -> str | None:
        if self.name != "mds":
            return ROW_ENCODINGS.get(encoding)
        changed = {"float": "float64", "npy": "ndarray"}.get(encoding, encoding)
        return changed if is_mds_encoding(changed) else None

    def accepts(self, encoding: str) -> bool:
        if self.name == "mds":
            return encoding != "pkl" and is_mds_encoding(encoding)
        return encoding in ("str", "int", "float")

    def check_name(self, output: OutputColumn) -> None:
        output.name.encode()
        if self.is_text:
            self._check_text(output.name)

    def check_columns(self, outputs: Sequence[OutputColumn]) -> None:
        pass  # names are unique

    def check_key(self, key: str) -> None:
        pass  # a key is a value of a column

    def is_copied(
        self, output: OutputColumn, reader: ValueReader, *, is_same: bool
    ) -> bool:
        if self.name != "mds":
            return False
        return reader.form == form_of(output.encoding) and (
            is_same or reader.form == "raw"
        )

    def encoder(self, output: OutputColumn, reader: ValueReader) -> ValueEncoder:
        encoding, value = output.encoding, reader.value_for(output.encoding)
        if self.name == "json":
            if reader.form == f"row:{encoding}":
                return value  # unchanged, also of another type
            convert = "str_int" if encoding == "int" else encoding
            return lambda sample: coerce(value(sample), convert)
        if self.is_text:
            return self._text_encoder(encoding, reader)
        if encoding == "bytes" or reader.form == form_of(encoding):
            return reader.stored
        encode = mds_encoder(encoding)
        if encoding in DIRECT:  # equal values in Python, from other bytes
            return lambda sample: encode(coerce(value(sample), encoding))
        return lambda sample: encode_with(encode, coerce(value(sample), encoding))

    def _text_encoder(self, encoding: str, reader: ValueReader) -> ValueEncoder:
        value = reader.value_for(encoding)
        if encoding != "str":
            convert = "str_int" if encoding == "int" else encoding
            return lambda sample: str(coerce(value(sample), convert))

        def encode(sample: Any) -> str:
            return self._check_text(coerce(value(sample), encoding))

        return encode

    def _check_text(self, text: str) -> str:
        for part, what in ((self.separator, "separator"), (self.newline, "newline")):
            if part in text:
                shown = text if len(text) <= 60 else f"{text[:57]}..."
                raise ValueMismatchError(f"{shown!r} has the {what} {part!r}")
        return text

    def config(self, outputs: Sequence[OutputColumn]) -> dict[str, Any]:
        """Return the configuration for shards and the index."""
        columns = dict(sorted(each[1:] for each in outputs))
        config: dict[str, Any] = {
            "version": 2,
            "format": self.name,
            "compression": self.compression,
            "hashes": self.hashes,
            "size_limit": self.size_limit,
        }
        if self.name == "json":
            return config | {"columns": columns, "newline": self.newline}
        config["column_names"] = list(columns)
        config["column_encodings"] = list(columns.values())
        if self.name == "mds":
            return config | {"column_sizes": list(map(size_of, columns.values()))}
        config["newline"] = self.newline
        if self.name == "xsv":
            config["separator"] = self.separator
        return config

    def open_writer(
        self,
        folder: str,
        part: str,
        outputs: Sequence[OutputColumn],
        *,
        max_size: int | None,
        count: int | None,
    ) -> TargetWriter:
        most = MAX_SHARD if self.compression is None else MAX_COMPRESSED
        limit = min(MAX_SHARD, max_size or most)
        return RowTargetWriter(self, os.path.join(folder, part), outputs, limit, count)

    def complete(
        self,
        folder: str,
        parts: Sequence[Sequence[Any]],
        outputs: Sequence[OutputColumn],
    ) -> None:
        shards = [shard for part in parts for shard in part]
        for number, shard in enumerate(shards):
            for key in ("raw_data", "raw_meta", "zip_data", "zip_meta"):
                file = shard.get(key)
                if file is None:
                    continue
                path = file["basename"]
                suffix = path[path.index(".", len(folder)) :]
                file["basename"] = f"shard.{number:05}{suffix}"
                if os.path.exists(path):  # of a zip; the raw file is removed
                    os.rename(path, os.path.join(folder, file["basename"]))
        with open(os.path.join(folder, "index.json"), "w", encoding="utf-8") as index:
            json.dump({"version": 2, "shards": shards}, index, sort_keys=True)
            index.flush()
            os.fsync(index.fileno())


def form_of(encoding: str) -> str:
    """Return the form of the bytes that MDS stores."""
    return FORMS.get(encoding, f"mds:{encoding}")


def encode_with(encode: Any, value: Any) -> bytes:
    """Encode a value; raise the encoding's errors as ValueMismatchError."""
    try:
        encoded: bytes = encode(value)
    except (AttributeError, ValueError, OverflowError) as error:
        raise ValueMismatchError(str(error)) from error
    return encoded


class RowTargetWriter(TargetWriter):
    """Writer of rows, to shards of a limited size."""

    def __init__(
        self,
        target: RowTarget,
        path: str,
        outputs: Sequence[OutputColumn],
        limit: int,
        count: int | None,
    ) -> None:
        self._target = target
        self._path = path
        self._limit = limit
        self._left = count
        self._config = target.config(outputs)
        order = sorted(range(len(outputs)), key=lambda i: outputs[i].name)
        self._names = [outputs[i].name for i in order]
        self._place = {i: at for at, i in enumerate(order)}
        if target.name == "mds":
            self._sizes = self._config["column_sizes"]
            variable = [at for at, size in enumerate(self._sizes) if not size]
            self._variable = variable
            self._head = struct.Struct(f"<{len(variable)}I")
        self._shards: list[dict[str, Any]] = []
        self._file: GrowingShard | None = None

    def write(self, key: str, values: list[tuple[int, Any]]) -> None:
        row: list[Any] = [None] * len(values)
        for i, value in values:
            row[self._place[i]] = value
        if self._target.name == "mds":
            pieces = self._join(row)
        elif self._target.name == "json":
            sample = dict(zip(self._names, row, strict=True))
            pieces = [(json.dumps(sample) + self._target.newline).encode()]
        else:
            text = self._target.separator.join(row) + self._target.newline
            pieces = [text.encode()]
        size = sum(map(len, pieces))
        file = self._file
        if file is not None and file.size_with(size) > self._limit and file.count:
            self._end()
            file = None
        if file is None:
            file = self._file = self._begin()
        if file.size_with(size) > MAX_SHARD:
            raise ValueMismatchError(f"a sample of {size:,} bytes does not fit a shard")
        file.append(pieces, size)
        if self._left is not None:
            self._left -= 1

    def _join(self, row: list[Any]) -> list[Any]:
        """Return the pieces of an MDS row."""
        for at, size in enumerate(self._sizes):
            if size and len(row[at]) != size:
                raise ValueMismatchError(
                    f"column {self._names[at]!r}: expected {size} bytes, "
                    f"got {len(row[at]):,}"
                )
        if not self._variable:
            return row
        try:
            head = self._head.pack(*(len(row[at]) for at in self._variable))
        except struct.error:
            raise ValueMismatchError(
                "a value of 4 GiB or more does not fit a row"
            ) from None
        return [head, *row]

    def _begin(self) -> GrowingShard:
        number = len(self._shards)
        path = f"{self._path}-{number:06d}.{self._target.name}"
        config = json.dumps(self._config, sort_keys=True).encode()
        if self._target.name == "mds":
            return MdsFile(path, config, self._left or 0)
        start = b""
        if self._target.is_text:
            line = self._target.separator.join(self._names) + self._target.newline
            start = line.encode()
        return TextFile(path, config, start)

    def _end(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        paths = file.finish()
        shard = dict(self._config, samples=file.count)
        for kind, path in zip(("data", "meta"), paths, strict=False):
            shard[f"raw_{kind}"] = self._describe(path)
            shard[f"zip_{kind}"] = None
            if self._target.compression is not None:
                shard[f"zip_{kind}"] = self._compress(path)
        self._shards.append(shard)

    def _compress(self, path: str) -> dict[str, Any]:
        """Replace a file by a compressed one; return its description."""
        codec = parse_compression(str(self._target.compression))
        with open(path, "rb") as file:
            data = codec.compress(file.read())
        zipped = f"{path}.{codec.extension}"
        with open(zipped, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.unlink(path)
        return self._describe(zipped)

    def _describe(self, path: str) -> dict[str, Any]:
        """Return the entry of a file in the index, with its temporary path."""
        hashes = hash_file(path, self._target.hashes) if self._target.hashes else {}
        return {"basename": path, "bytes": os.path.getsize(path), "hashes": hashes}

    def finish(self) -> list[Any]:
        self._end()
        return self._shards

    def abandon(self) -> None:
        if self._file is not None:
            self._file.close()


class GrowingShard:
    """Rows of one shard under construction.

    Attributes
    ----------
    count : int
        Rows.
    """

    def __init__(self, path: str, start: bytes) -> None:
        self._path = path
        self._rows: BinaryIO = open(path, "w+b", BUFFER)  # noqa: SIM115 - see finish
        self._rows.write(start)
        self._at = len(start)
        self._ends = array("I", [self._at])

    @property
    def count(self) -> int:
        return len(self._ends) - 1

    def size_with(self, size: int) -> int:
        """Return the size of the file with one more row, in bytes."""
        return self._at + size

    def append(self, pieces: list[Any], size: int) -> None:
        """Add a row."""
        self._rows.writelines(pieces)
        self._at += size
        self._ends.append(self._at)

    def offsets(self, shift: int) -> bytes:
        """Return the offset table, as it is stored."""
        import numpy as np

        ends = np.frombuffer(self._ends, np.uint32).astype(np.int64) + shift
        return ends.astype("<u4").tobytes()

    def finish(self) -> tuple[str, ...]:
        """Sync and close the file; return the paths of the shard's files."""
        raise NotImplementedError

    def close(self) -> None:
        self._rows.close()

    def _sync(self, file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())
        file.close()


class MdsFile(GrowingShard):
    """An MDS shard: its rows follow the header, which has room for `expected` rows."""

    def __init__(self, path: str, config: bytes, expected: int) -> None:
        self._config = config
        self._expected = expected
        super().__init__(path, b"")
        self._start = self._rows.seek(self._header_size(expected))

    def _header_size(self, count: int) -> int:
        return 4 + 4 * (count + 1) + len(self._config)

    def size_with(self, size: int) -> int:
        return self._header_size(self.count + 1) + self._at + size

    def finish(self) -> tuple[str, ...]:
        start = self._header_size(self.count)
        header = struct.pack("<I", self.count) + self.offsets(start) + self._config
        if start == self._start:
            self._rows.seek(0)
            self._rows.write(header)
            self._sync(self._rows)
            return (self._path,)
        moved = f"{self._path}.moved"  # fewer rows than expected: a shorter header
        with open(moved, "wb") as file:
            file.write(header)
            self._rows.seek(self._start)
            while chunk := self._rows.read(COPIED):
                file.write(chunk)
            self._sync(file)
        self._rows.close()
        os.replace(moved, self._path)
        return (self._path,)


class TextFile(GrowingShard):
    """A JSON or XSV shard: lines, and their offsets in a second file."""

    def __init__(self, path: str, config: bytes, start: bytes) -> None:
        super().__init__(path, start)
        self._config = config

    def finish(self) -> tuple[str, ...]:
        self._sync(self._rows)
        meta = f"{self._path}.meta"
        with open(meta, "wb") as file:
            header = struct.pack("<I", self.count)
            file.write(header + self.offsets(0) + self._config)
            self._sync(file)
        return self._path, meta
