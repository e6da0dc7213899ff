"""Samples of packed shards: the fields of msgpack payloads."""

from __future__ import annotations

import collections.abc
from typing import TYPE_CHECKING, Any

from fastshard._core.typed.arrays import unpack_array
from fastshard._core.typed.shard import (
    PackedSamples,
    PackedShard,
    copy_payload,
    decode_columns,
    decode_fields,
    decode_member,
    decode_payload,
    fields_of_payload,
    kind_of_field,
    kind_of_value,
    unpack_value,
)
from fastshard.errors import key_collision
from fastshard.formats.codec import FieldCodec
from fastshard.formats.decoders import Decoder, ValueDecoder, decode_text
from fastshard.formats.layout import ARRAY, VALUE, Allocate, FieldLayout
from fastshard.formats.sample import KEY, CopiedSample, Sample, Samples

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

__all__ = ["FIELDS", "PackedSample", "PackedSequence"]

KINDS = {  # of `FieldInfo`, by the type of a value
    "str": "text",
    "int": "int",
    "float": "float",
    "list": "msgpack",
    "dict": "msgpack",
}
ARRAYS = ValueDecoder(unpack_array, "array", names_bytes=True)
TEXT = ValueDecoder(decode_text, "text")
VALUES = {
    name: ValueDecoder(unpack_value, KINDS.get(name, "object"))
    for name in ("None", "bool", "int", "float", "list", "dict", "an extension type")
}


def decoder_of_kind(kind: str, is_array: bool) -> Decoder | None:
    """Return the decoder of a value's stored bytes; None for bytes."""
    if kind == "bytes":
        return ARRAYS if is_array else None
    return TEXT if kind == "str" else VALUES[kind]


class PackedCodec(FieldCodec):
    """Codec of packed shards: msgpack types give the kinds of fields."""

    __slots__ = ("payload",)

    lists_unstacked = True

    def __init__(self, payload: bytes = b"") -> None:
        self.payload = payload

    def kind(self, field: str) -> str:
        return "bytes"  # a value's type is its own

    def stored_kind(self, sample: Any, field: str) -> tuple[str, bool]:
        """Return the type of a field's value, and whether it is an array.

        The types are ``"None"``, ``"bool"``, ``"int"``, ``"float"``, ``"str"``,
        ``"bytes"``, ``"list"``, ``"dict"``, ``"an extension type"``.
        """
        if not self.payload:
            return kind_of_field(sample, field)
        sample.view(field)  # raises
        found = kind_of_value(self.payload, field)
        assert found is not None
        return found

    def decoder(self, sample: Any, field: str) -> Decoder | None:
        if field not in sample:
            return None
        return decoder_of_kind(*self.stored_kind(sample, field))

    def decode(self, sample: Any, field: str) -> Any:
        return self.decode_row(sample, (field,))[field]

    def decode_row(self, sample: Any, fields: tuple[str, ...]) -> dict[str, Any]:
        for field in fields:
            sample.view(field)  # raises
        values = decode_payload(self.payload, fields or None)
        if KEY in values:
            raise key_collision()
        return {KEY: sample.key} | values

    def layout(self, sample: Any, field: str) -> FieldLayout:
        return ARRAY if sample.decoder_of(field) is ARRAYS else VALUE

    def info_members(self, sample: Any) -> tuple[Any, dict[str, int]]:
        member = sample.samples.payload_member(sample.position)
        return sample.shard.tar, dict.fromkeys(sample, member)

    def stack_fields(
        self, samples: list[Any], fields: tuple[str, ...], allocate: Allocate
    ) -> dict[str, NDArray[Any]]:
        from fastshard._core.typed.columns import stack_columns

        return stack_columns(samples, fields, allocate)

    def decode_columns(
        self, samples: list[Any], fields: tuple[str, ...]
    ) -> dict[str, list[Any]]:
        if not fields or any(sample.decoders for sample in samples):
            return {}
        return decode_columns(samples, fields)

    def reduce(self, sample: Any) -> tuple[Any, ...]:
        payload = self.payload or copy_payload(sample)
        return CopiedPacked, (sample.key, sample.position, payload)

    def copied_array(
        self,
        sample: Any,
        field: str,
        dtype: DTypeLike | None,
        shape: int | tuple[int, ...] | None,
    ) -> NDArray[Any]:
        if dtype is None and shape is None:
            return sample._decode_with(ARRAYS, field)  # type: ignore[no-any-return]
        from fastshard._core.dataset.npy import array_from_buffer

        return array_from_buffer(sample.view(field), dtype, shape)


FIELDS = PackedCodec()


class PackedSample(Sample):
    """Sample of a packed dataset: the fields of a msgpack payload.

    ``sample["image"]`` is the contents of a str or of bytes, and the encoded value of
    other types; `array` reads arrays, in either of their forms, without a copy.
    Otherwise it is a `fastshard.Sample`.
    """

    __slots__ = ()

    codec: PackedCodec = FIELDS
    _decode_stored = decode_member

    def decode(self, *fields: str) -> dict[str, Any]:
        return super().decode(*fields) if self.decoders else decode_fields(self, fields)


def CopiedPacked(key: str, position: int, payload: bytes) -> CopiedSample:  # noqa: N802
    """Return a copied sample from its pickle, which has this name."""
    fields = fields_of_payload(payload)
    return CopiedSample(key, position, fields, PackedCodec(payload))


class PackedSequence(PackedSamples, collections.abc.Sequence[PackedSample]):
    """Samples of a packed shard: a `Sequence` of `PackedSample`, also by key."""

    __slots__ = ()

    @property
    def raw(self) -> Samples:
        """The same samples as those of a tar shard."""
        shard = self.shard
        assert isinstance(shard, PackedShard)
        return Samples(shard.tar, self.grouping, Sample)
