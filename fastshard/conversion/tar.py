"""Tar shards as the target of a conversion."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fastshard.conversion.columns import SCALARS, name_fields, same_field
from fastshard.conversion.targets import (
    OutputColumn,
    TargetFormat,
    TargetWriter,
    ValueEncoder,
)
from fastshard.conversion.values import ValueReader, check_array, coerce
from fastshard.formats.encoders import encode, to_json
from fastshard.formats.names import check_field, check_key, is_reserved
from fastshard.formats.writer import ShardWriter, escape_braces

__all__ = ["TarTarget", "complete_tars"]

FORMS = {"str": "utf8", "json": "json", "npy": "npy", "int": "decimal"}
PLAIN = {"bytes", "jpeg", "png", "str", "json", "int", "str_int", "npy", *SCALARS}
CHANGED = {"float": "float64", "str_float": "float64", "ndarray": "npy"}


class TarTarget(TargetFormat):
    """Tar shards: each column is a field, with its encoding as suffix."""

    name = "tar"
    has_key_column = False
    is_open = True

    def adopt(self, encoding: str) -> str | None:
        if encoding in PLAIN:
            return encoding
        return CHANGED.get(encoding.partition(":")[0])

    def accepts(self, encoding: str) -> bool:
        return self.adopt(encoding) is not None

    def check_name(self, output: OutputColumn) -> None:
        if is_reserved(output.name):
            raise ValueError("readers ignore fields of this name")
        check_field("", output.name, lower=True)

    def check_columns(self, outputs: Sequence[OutputColumn]) -> None:
        fields = fields_of(outputs)
        for field in fields:
            if fields.count(field) > 1:
                raise ValueError(f"two are field {field!r}")

    def check_key(self, key: str) -> None:
        check_key(key)

    def is_copied(
        self, output: OutputColumn, reader: ValueReader, *, is_same: bool
    ) -> bool:
        is_plain = is_same or reader.form in ("raw", "npy")
        return is_plain and reader.form == form_of(output.encoding)

    def encoder(self, output: OutputColumn, reader: ValueReader) -> ValueEncoder:
        encoding, value = output.encoding, reader.value_for(output.encoding)
        if encoding == "bytes" or reader.form == form_of(encoding):
            return reader.stored
        if encoding == "str":
            return lambda sample: coerce(value(sample), encoding).encode()
        if encoding in ("int", "str_int"):
            return lambda sample: b"%d" % coerce(value(sample), "str_int")
        if encoding == "json":
            return lambda sample: to_json(coerce(value(sample), encoding)).encode()
        if same_field(encoding) != "npy":
            return lambda sample: coerce(value(sample), encoding)

        def store_array(sample: Any) -> Any:
            import numpy as np

            array = np.asarray(coerce(value(sample), encoding))
            check_array(array, encoding)
            return encode("npy", array)

        return store_array

    def open_writer(
        self,
        folder: str,
        part: str,
        outputs: Sequence[OutputColumn],
        *,
        max_size: int | None,
        count: int | None,
    ) -> TargetWriter:
        return TarTargetWriter(folder, part, outputs, max_size)

    def complete(
        self,
        folder: str,
        parts: Sequence[Sequence[Any]],
        outputs: Sequence[OutputColumn],
    ) -> None:
        complete_tars(folder, parts)


def complete_tars(folder: str, parts: Sequence[Sequence[str]]) -> None:
    """Name the tars of a directory in order, and write the index."""
    from fastshard.dataset.build_index import build_index

    shards = [path for part in parts for path in part]
    for number, path in enumerate(shards):
        os.rename(path, os.path.join(folder, f"shard-{number:06d}.tar"))
    if not shards:
        write_empty_shard(os.path.join(folder, "shard-000000.tar"))
    build_index(folder)


def fields_of(outputs: Sequence[OutputColumn]) -> list[str]:
    """Return the fields of columns."""
    return name_fields([(output.name, output.encoding) for output in outputs])


def form_of(encoding: str) -> str:
    return FORMS.get(encoding, "raw" if encoding in ("bytes", "jpeg", "png") else "?")


def write_empty_shard(path: str) -> None:
    """Write an archive without members, so that the directory is a dataset."""
    from fastshard.formats.tar_writer import END

    with open(path, "wb") as file:
        file.write(END)
        file.flush()
        os.fsync(file.fileno())


class TarTargetWriter(TargetWriter):
    """Writer of samples to tar shards."""

    def __init__(
        self,
        folder: str,
        part: str,
        outputs: Sequence[OutputColumn],
        max_size: int | None,
    ) -> None:
        self._fields = fields_of(outputs)
        pattern = escape_braces(os.path.join(folder, part)) + "-{:06d}.part"
        self._writer = ShardWriter(pattern, max_size=max_size, index=None)

    def write(self, key: str, values: list[tuple[int, Any]]) -> None:
        fields = self._fields
        sample: dict[str, Any] = {fields[i]: value for i, value in values}
        sample["__key__"] = key
        self._writer.write(sample)

    def finish(self) -> list[Any]:
        self._writer.close()
        return self._writer.shards

    def abandon(self) -> None:
        self._writer.__exit__(Exception, None, None)
