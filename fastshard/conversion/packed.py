"""Packed tars, with msgpack maps as members: source and target of conversions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fastshard.conversion.columns import FLOATS, INTEGERS
from fastshard.conversion.tar import complete_tars
from fastshard.conversion.targets import (
    OutputColumn,
    TargetFormat,
    TargetWriter,
    ValueEncoder,
)
from fastshard.conversion.values import ValueMismatchError, ValueReader, coerce
from fastshard.formats.names import check_key, is_reserved
from fastshard.formats.writer import ShardWriter, escape_braces
from fastshard.typed.kinds.values import pack

__all__ = ["PackedTarget"]

MEMBER = "msgpack"  # the field of the tar
CHOSEN = ("str", "int", "float", "bytes", "json", "npy")  # encodings that users name
ADOPTED = (
    {name: name for name in CHOSEN}
    | {"str_int": "int", "str_float": "float", "ndarray": "npy"}
    | dict.fromkeys(INTEGERS, "int")
    | dict.fromkeys(FLOATS, "float")
    | dict.fromkeys(("jpeg", "png"), "bytes")
)
MIN_INT, MAX_INT = -(2**63), 2**64 - 1
MAX_BYTES = 2**32 - 2**17  # of a value, with room for the header of an array


class PackedTarget(TargetFormat):
    """Tar shards of one msgpack map a sample, with a field for each column."""

    name = "packed"
    has_key_column = False
    is_open = True

    def adopt(self, encoding: str) -> str | None:
        return ADOPTED.get(encoding.partition(":")[0])

    def accepts(self, encoding: str) -> bool:
        return encoding in CHOSEN

    def check_name(self, output: OutputColumn) -> None:
        if is_reserved(output.name):
            raise ValueError("readers ignore fields of this name")
        output.name.encode()

    def check_columns(self, outputs: Sequence[OutputColumn]) -> None:
        pass  # names are unique

    def check_key(self, key: str) -> None:
        check_key(key)

    def is_copied(
        self, output: OutputColumn, reader: ValueReader, *, is_same: bool
    ) -> bool:
        return False

    def encoder(self, output: OutputColumn, reader: ValueReader) -> ValueEncoder:
        encoding, value = output.encoding, reader.value_for(output.encoding)
        if encoding == "bytes":
            return lambda sample: check_size(reader.stored(sample))
        if encoding == "npy":
            return lambda sample: check_stored(coerce(value(sample), encoding))
        if encoding == "int":
            return lambda sample: check_int(coerce(value(sample), "str_int"))
        if encoding != "json":
            return lambda sample: check_stored(coerce(value(sample), encoding))
        if reader.form == "packed":
            return lambda sample: check_stored(value(sample))  # any value of msgpack
        return lambda sample: check_stored(coerce(value(sample), encoding))

    def open_writer(
        self,
        folder: str,
        part: str,
        outputs: Sequence[OutputColumn],
        *,
        max_size: int | None,
        count: int | None,
    ) -> TargetWriter:
        return PackedTargetWriter(folder, part, outputs, max_size)

    def complete(
        self,
        folder: str,
        parts: Sequence[Sequence[Any]],
        outputs: Sequence[OutputColumn],
    ) -> None:
        complete_tars(folder, parts)


def check_size(data: Any) -> Any:
    """Return bytes that fit a msgpack value."""
    nbytes = memoryview(data).nbytes
    if nbytes > MAX_BYTES:
        raise ValueMismatchError(f"a value of {nbytes:,} bytes does not fit msgpack")
    return data


def check_int(number: int) -> int:
    """Return an int of msgpack's range."""
    if not MIN_INT <= number <= MAX_INT:
        raise ValueMismatchError(f"{number} is beyond the ints of msgpack")
    return number


def check_stored(value: Any) -> Any:
    """Return a value that a payload can store."""
    nbytes = getattr(value, "nbytes", 0)
    if nbytes > MAX_BYTES:
        raise ValueMismatchError(f"a value of {nbytes:,} bytes does not fit msgpack")
    try:
        # An empty array takes the dtype of a large one.
        pack({"": value[:0] if getattr(value, "shape", None) else value})
    except (TypeError, ValueError, OverflowError) as error:
        reason = str(error).removeprefix("field '': ")
        raise ValueMismatchError(reason) from error
    return value


class PackedTargetWriter(TargetWriter):
    """Writer of samples to packed tars."""

    def __init__(
        self,
        folder: str,
        part: str,
        outputs: Sequence[OutputColumn],
        max_size: int | None,
    ) -> None:
        self._names = [output.name for output in outputs]
        pattern = escape_braces(os.path.join(folder, part)) + "-{:06d}.part"
        self._writer = ShardWriter(pattern, max_size=max_size, index=None)

    def write(self, key: str, values: list[tuple[int, Any]]) -> None:
        names = self._names
        payload = pack({names[i]: value for i, value in values})
        self._writer.write({"__key__": key, MEMBER: payload})

    def finish(self) -> list[Any]:
        self._writer.close()
        return self._writer.shards

    def abandon(self) -> None:
        self._writer.__exit__(Exception, None, None)
