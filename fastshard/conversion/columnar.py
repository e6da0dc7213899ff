"""Columnar datasets as the target of a conversion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastshard.columnar.layout.schema import check_field_name, check_sample_id
from fastshard.conversion.columns import SCALARS
from fastshard.conversion.targets import (
    OutputColumn,
    TargetFormat,
    TargetWriter,
    ValueEncoder,
)
from fastshard.conversion.values import ValueReader, check_array, check_finite, coerce

__all__ = ["ColumnarTarget"]

METADATA = {"str", "int", "str_int", "json"}
ARRAYS = {"npy", "ndarray", "float", "str_float", *SCALARS}
PER_SHARD = 1000  # samples of a shard, by default
FLUSHED = 1 << 28  # bytes between flushes


class ColumnarTarget(TargetFormat):
    """A columnar dataset: arrays and numbers of NumPy are fields, others metadata."""

    name = "columnar"
    has_key_column = False
    is_open = True
    is_serial = True
    needs_unique_keys = True

    def __init__(self, max_count: int | None = None) -> None:
        self._per_shard = max_count or PER_SHARD

    def adopt(self, encoding: str) -> str | None:
        name = encoding.partition(":")[0]
        if name in ("float", "str_float"):
            return "float64"
        return encoding if name in METADATA | ARRAYS else None

    def accepts(self, encoding: str) -> bool:
        return self.adopt(encoding) is not None

    def check_name(self, output: OutputColumn) -> None:
        if output.encoding not in METADATA:
            check_field_name(output.name, ())

    def check_columns(self, outputs: Sequence[OutputColumn]) -> None:
        taken: set[str] = set()
        for _, name, encoding in outputs:
            if encoding not in METADATA:
                if name.lower() in taken:
                    raise ValueError(f"columns {name!r} differ in case alone")
                taken.add(name.lower())

    def check_key(self, key: str) -> None:
        check_sample_id(key)

    def is_copied(
        self, output: OutputColumn, reader: ValueReader, *, is_same: bool
    ) -> bool:
        return output.encoding == "npy" and reader.form == "npy"

    def encoder(self, output: OutputColumn, reader: ValueReader) -> ValueEncoder:
        encoding, value = output.encoding, reader.value_for(output.encoding)
        if encoding == "json":
            return lambda sample: check_finite(coerce(value(sample), encoding))
        if encoding in METADATA:
            convert = "str_int" if encoding == "int" else encoding  # of any size
            return lambda sample: coerce(value(sample), convert)

        def store_array(sample: Any) -> Any:
            import numpy as np

            array = np.asarray(coerce(value(sample), encoding))
            check_array(array, encoding)
            return array

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
        return ColumnarTargetWriter(folder, outputs, self._per_shard)

    def complete(
        self,
        folder: str,
        parts: Sequence[Sequence[Any]],
        outputs: Sequence[OutputColumn],
    ) -> None:
        pass  # the writer has finished


class ColumnarTargetWriter(TargetWriter):
    """Writer of samples to a columnar dataset."""

    def __init__(
        self, folder: str, outputs: Sequence[OutputColumn], per_shard: int
    ) -> None:
        from fastshard.columnar.write.writer import ShardedDatasetWriter

        self._names = [output.name for output in outputs]
        self._in_metadata = [output.encoding in METADATA for output in outputs]
        self._writer = ShardedDatasetWriter(folder, samples_per_shard=per_shard)
        fields = zip(self._names, self._in_metadata, strict=True)
        self._writer.add_fields([name for name, is_other in fields if not is_other])
        self._unflushed = 0

    def write(self, key: str, values: list[tuple[int, Any]]) -> None:
        arrays: dict[str, Any] = {}
        metadata: dict[str, Any] = {}
        for i, value in values:
            if self._in_metadata[i]:
                metadata[self._names[i]] = value
            else:
                arrays[self._names[i]] = value
                self._unflushed += value.nbytes
        self._writer.add_sample(arrays, sample_id=key, metadata=metadata)
        if self._unflushed > FLUSHED:
            self._writer.flush()
            self._unflushed = 0

    def finish(self) -> list[Any]:
        self._writer.close()
        return []

    def abandon(self) -> None:
        self._writer.close()
