"""Samples of packed shards: the fields of msgpack payloads."""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from fastshard._core.dataset.shard import describe_item
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
from fastshard.formats.decoders import Decoder, decode_text, own_decoder
from fastshard.formats.info import Infos
from fastshard.formats.layout import ARRAY, VALUE, Allocate, FieldLayout
from fastshard.formats.sample import CopiedSample, DecodedByFormat, Sample, Samples

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from fastshard.formats.tar import TarShard

__all__ = ["CopiedPacked", "PackedSample", "PackedSequence", "ValueDecoder"]

KINDS = {  # of `FieldInfo`, by the type of a value
    "str": "text",
    "int": "int",
    "float": "float",
    "list": "msgpack",
    "dict": "msgpack",
}


class ValueDecoder:
    """Decoder of the stored bytes of a field that has a value of one type.

    Attributes
    ----------
    kind : str
        As of `FieldInfo`.
    """

    __slots__ = ("_decode", "kind")

    def __init__(self, decode: Callable[[memoryview], Any], kind: str) -> None:
        self._decode = decode
        self.kind = kind

    def __call__(self, view: memoryview) -> Any:
        return self._decode(view)


ARRAYS = ValueDecoder(unpack_array, "array")
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


class PackedFields(DecodedByFormat):
    """Mixin of samples whose fields are those of a payload."""

    __slots__ = ()

    keys: Any

    def stored_kind(self, field: str) -> tuple[str, bool]:
        """Return the type of a field's value, and whether it is an array.

        The types are ``"None"``, ``"bool"``, ``"int"``, ``"float"``, ``"str"``,
        ``"bytes"``, ``"list"``, ``"dict"``, ``"an extension type"``.
        """
        raise NotImplementedError

    def _decode_values(self, fields: tuple[str, ...]) -> dict[str, Any]:
        """Return the key and the values of fields; of all if there are none."""
        raise NotImplementedError

    def decode(self, *fields: str) -> dict[str, Any]:
        """Return decoded fields by name, and the key as ``"__key__"``.

        Parameters
        ----------
        *fields : str
            By default all fields.

        Returns
        -------
        dict
            Values as msgpack has them. Bytes that are wholly an array are an array on
            the shard's memory.

        Raises
        ------
        FormatError
            The payload is not a msgpack map; the error names the field.
        FieldNotFoundError
            The sample has no such field.
        FastshardError
            A field is named ``"__key__"``, as the key in the result is.
        MissingLibraryError
            A list or a dict is decoded, and msgspec is not installed.

        Examples
        --------
        >>> packed[7].decode("label", "vec")
        {'__key__': '000000000007', 'label': 'no. 7', 'vec': array([7., 7.], ...)}
        """
        if not self.decoders:
            return self._decode_values(fields)
        names = fields or tuple(self.keys())
        if "__key__" in names:
            raise key_collision()
        values: dict[str, Any] = {"__key__": self.key}  # type: ignore[attr-defined]
        for field in names:
            values[field] = self._decode_field(field)
        return values

    def decoder_of(self, field: str) -> Decoder | None:
        """Return the user's decoder of a field, or else that of its value's type.

        Parameters
        ----------
        field : str

        Returns
        -------
        callable or None
            It takes the stored bytes as a memoryview. None: they are the value, or
            there is no such field.

        Examples
        --------
        >>> packed[7].decoder_of("label")(packed[7]["label"])
        'no. 7'
        """
        own = own_decoder(field, self.decoders)
        if own is not None or field not in self:  # type: ignore[operator]
            return own
        return decoder_of_kind(*self.stored_kind(field))

    def layout_of(self, field: str) -> FieldLayout:
        """Return the memory layout of a field, by which batches stack it.

        Parameters
        ----------
        field : str

        Returns
        -------
        FieldLayout

        Examples
        --------
        >>> packed[7].layout_of("vec").kind, packed[7].layout_of("label").kind
        ('array', 'value')
        """
        if self.decoders and own_decoder(field, self.decoders) is not None:
            return VALUE
        if field not in self:  # type: ignore[operator]
            return VALUE
        return ARRAY if self.stored_kind(field)[1] else VALUE

    def _decode_encoded(self, field: str) -> Any:
        return self._decode_values((field,))[field]


class PackedSample(PackedFields, Sample):
    """Sample of a packed dataset: the fields of a msgpack payload.

    ``sample["image"]`` is the contents of a str or of bytes, and the encoded value of
    other types; `array` reads arrays, in either of their forms, without a copy.
    Otherwise it is a `fastshard.Sample`.

    Examples
    --------
    >>> sample = packed[7]
    >>> sample
    Sample('000000000007'; vec, label)
    >>> bytes(sample["label"]), sample.array("vec")
    (b'no. 7', array([7., 7.], dtype=float32))
    """

    __slots__ = ()

    _lists_unstacked = True

    def stored_kind(self, field: str) -> tuple[str, bool]:
        return kind_of_field(self, field)

    def _decode_values(self, fields: tuple[str, ...]) -> dict[str, Any]:
        return decode_fields(self, fields)

    def _decode_encoded(self, field: str) -> Any:
        return decode_member(self, field)

    @staticmethod
    def _stack_fields(
        samples: list[Any],
        fields: tuple[str, ...],
        allocate: Allocate,
    ) -> dict[str, NDArray[Any]]:
        from fastshard._core.typed.columns import stack_columns

        return stack_columns(samples, fields, allocate)

    @staticmethod
    def _decode_columns(
        samples: list[Any], fields: tuple[str, ...]
    ) -> dict[str, list[Any]]:
        if not fields or any(sample.decoders for sample in samples):
            return {}
        return decode_columns(samples, fields)

    def infos(self) -> Mapping[str, dict[str, Any]]:
        """Return the index metadata of the payload's member, for each field.

        Returns
        -------
        Mapping of str to dict
            As `fastshard.Sample.infos`.

        Examples
        --------
        >>> packed[7].infos()["label"]
        {}
        """
        samples = self.samples
        tar: TarShard = samples.shard.tar
        member = samples.payload_member(self.position)
        return Infos(
            describe_item(self)[0],
            {field: partial(tar.info, member) for field in self},
            f"the index of {tar.path}",
            "it has the columns of the .json index it was made from, and checksums "
            "after `fastshard index --hash`",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return CopiedPacked, (self.key, self.position, copy_payload(self))


class CopiedPacked(PackedFields, CopiedSample):
    """Sample with a payload of its own: the unpickled form of `PackedSample`."""

    __slots__ = ("_payload",)

    def __init__(self, key: str, position: int, payload: bytes) -> None:
        fields: Any = fields_of_payload(payload)
        super().__init__(key, position, fields)
        self._payload = payload

    def stored_kind(self, field: str) -> tuple[str, bool]:
        self.view(field)  # raises
        found = kind_of_value(self._payload, field)
        assert found is not None
        return found

    def _decode_values(self, fields: tuple[str, ...]) -> dict[str, Any]:
        for field in fields:
            self.view(field)  # raises
        values = decode_payload(self._payload, fields or None)
        if "__key__" in values:
            raise key_collision()
        return {"__key__": self.key} | values

    def array(
        self,
        field: str,
        dtype: DTypeLike | None = None,
        shape: int | tuple[int, ...] | None = None,
    ) -> NDArray[Any]:
        if dtype is None and shape is None:
            return unpack_array(self.view(field))
        from fastshard._core.dataset.npy import array_from_buffer

        return array_from_buffer(self.view(field), dtype, shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return CopiedPacked, (self.key, self.position, self._payload)


class PackedSequence(PackedSamples, collections.abc.Sequence[PackedSample]):
    """Samples of a packed shard: a `Sequence` of `PackedSample`, also by key."""

    __slots__ = ()

    @property
    def raw(self) -> Samples:
        """The same samples as those of a tar shard."""
        shard = self.shard
        assert isinstance(shard, PackedShard)
        return Samples(shard.tar, self.grouping, Sample)
