"""Samples of streaming shards: fields are columns, and encodings decode them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from fastshard._core.dataset.shard import describe_item
from fastshard._core.streaming.shard import decode_fields, decode_member
from fastshard.errors import FormatError
from fastshard.formats.codec import FieldCodec, Infos
from fastshard.formats.decoders import (
    ValueDecoder,
    decode_json,
    decode_text,
    own_decoder,
)
from fastshard.formats.layout import ARRAY, VALUE, Allocate, FieldLayout
from fastshard.formats.sample import KEY, CopiedSample, Sample

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from fastshard.streaming.index import ShardConfig

__all__ = ["KEY", "CopiedRow", "RowCodec", "StreamSample"]

NUMBERS = {  # dtypes of encodings
    "int": "<i8",
    **{
        f"{sign}int{8 * size}": f"<{sign or 'i'}{size}"
        for sign in ("", "u")
        for size in (1, 2, 4, 8)
    },
    **{f"float{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}
KINDS = {
    "bytes": "bytes",
    "str": "text",
    "str_int": "int",
    "str_float": "float",
    "float": "float",
    "json": "json",
    "ndarray": "array",
    "pil": "image",
    "jpeg": "image",
    "png": "image",
}


def kind_of_encoding(encoding: str) -> str:
    """Return the kind of a column by its encoding; see `FieldInfo`."""
    if encoding in NUMBERS:
        return "float" if encoding.startswith("float") else "int"
    return KINDS.get(encoding.partition(":")[0], "object")


def column_decoder(row_format: str, encoding: str, unsafe: bool) -> ValueDecoder:
    """Return the decoder of the stored bytes of a column."""
    kind = kind_of_encoding(encoding)
    if row_format in ("mds", "json"):
        from fastshard.streaming.encodings import mds_decoder

        if row_format == "json":
            return ValueDecoder(mds_decoder("json"), kind)
        return ValueDecoder(mds_decoder(encoding, unsafe), kind)
    return ValueDecoder(partial(decode_xsv, encoding), kind)


def decode_xsv(encoding: str, view: memoryview) -> Any:
    """Decode a field of an XSV shard."""
    from fastshard.streaming.encodings.rows import xsv_decode

    try:
        return xsv_decode(encoding, decode_text(view))
    except FormatError:
        raise
    except ValueError as error:
        raise FormatError(str(error), "<view>", 0) from error


def decode_json_text(view: memoryview) -> str:
    """Return a string of a JSON shard, and the bytes of another value, as text."""
    text: str = decode_text(view) if bytes(view[:1]) != b'"' else decode_json(view)
    return text


class RowCodec(FieldCodec):
    """Codec of a schema of rows: encodings decode, whatever the fields' names.

    Attributes
    ----------
    array_columns : frozenset of int
        Columns of arrays.
    field_names : list of str
        The columns without that of the keys.
    key_column : int
        The column of the samples' keys; -1: there is none.
    """

    def __init__(self, config: ShardConfig, unsafe: bool) -> None:
        self.config = config
        self.unsafe = unsafe
        self.encodings = dict(zip(config.names, config.encodings, strict=True))
        self.array_columns: frozenset[int] = frozenset()
        if config.format == "mds":
            self.array_columns = frozenset(
                k
                for k, encoding in enumerate(config.encodings)
                if encoding.partition(":")[0] == "ndarray"
            )
        self.key_column = -1
        if self.encodings.get(KEY) == "str":
            self.key_column = config.names.index(KEY)
        if config.format == "json":
            self.text_decoder = ValueDecoder(decode_json_text, "text", names_bytes=True)
        self.key_is_field = self.key_column >= 0
        names = enumerate(config.names)
        self.field_names = [name for k, name in names if k != self.key_column]
        self._decoders: dict[str, ValueDecoder] = {}
        self._layouts: dict[str, FieldLayout] = {}

    def kind(self, field: str) -> str:
        return kind_of_encoding(self.encodings.get(field, ""))

    def decoder(self, sample: Any, field: str) -> ValueDecoder | None:
        """Return the decoder of a column, or None for an unknown one."""
        found = self._decoders.get(field)
        if found is None and field in self.encodings:
            found = column_decoder(
                self.config.format, self.encodings[field], self.unsafe
            )
            self._decoders[field] = found
        return found

    def layout(self, sample: Any, field: str) -> FieldLayout:
        is_own = sample.decoders and own_decoder(field, sample.decoders) is not None
        return VALUE if is_own else self.stored_layout(field)

    def stored_layout(self, field: str) -> FieldLayout:
        """Return the memory layout of a column."""
        found = self._layouts.get(field)
        if found is None:
            found = self._layouts[field] = self._find_layout(field)
        return found

    def _find_layout(self, field: str) -> FieldLayout:
        encoding = self.encodings.get(field, "")
        if self.config.format != "mds" or not encoding:
            return VALUE
        size = self.config.sizes[self.config.names.index(field)]
        if encoding in NUMBERS:
            dtype = NUMBERS[encoding]
            return FieldLayout("raw", dtype, ()) if size == int(dtype[2:]) else VALUE
        name, _, rest = encoding.partition(":")
        if name != "ndarray":
            return VALUE
        dtype, colon, dimensions = rest.partition(":")
        if not colon or dtype not in NUMBERS:
            return ARRAY
        try:
            shape = tuple(int(each) for each in dimensions.split(","))
        except ValueError:
            return VALUE
        if min(shape) < 1:
            return VALUE  # no encoding: an error when it is decoded
        if size != int(NUMBERS[dtype][2:]) * prod(shape):
            return ARRAY
        return FieldLayout("raw", NUMBERS[dtype], shape)

    def infos(self, sample: Any) -> Mapping[str, dict[str, Any]]:
        """Return an empty mapping: these shards have no metadata of fields."""
        return Infos(
            describe_item(sample)[0],
            {},
            "index.json",
            "streaming shards have no metadata of samples",
        )

    def stack_fields(
        self, samples: list[Any], fields: tuple[str, ...], allocate: Allocate
    ) -> dict[str, NDArray[Any]]:
        from fastshard._core.streaming.columns import stack_columns

        return stack_columns(samples, fields, allocate)

    def decode_columns(
        self, samples: list[Any], fields: tuple[str, ...]
    ) -> dict[str, list[Any]]:
        if not fields or any(sample.decoders for sample in samples):
            return {}
        rows = [decode_fields(sample, fields) for sample in samples]
        return {field: [row[field] for row in rows] for field in fields}

    def reduce(self, sample: Any) -> tuple[Any, ...]:
        fields = sample._copy_fields()
        state = (sample.key, sample.position, fields, self.config, self.unsafe)
        return CopiedRow, state

    def copied_array(
        self,
        sample: Any,
        field: str,
        dtype: DTypeLike | None,
        shape: int | tuple[int, ...] | None,
    ) -> NDArray[Any]:
        if dtype is None:
            layout = self.stored_layout(field)
            if layout.kind == "array":
                return sample._decode_stored(field)  # type: ignore[no-any-return]
            if layout.kind == "raw":
                dtype, shape = layout.dtype, layout.shape
        return super().copied_array(sample, field, dtype, shape)


class StreamSample(Sample):
    """Sample of a streaming dataset: a row, whose fields are columns.

    ``sample["image"]`` is the stored bytes, of a JSON shard the value's own text in its
    line; `decode` returns values of the types that mosaicml-streaming returns. The
    column's encoding decodes, whatever the field's name, unless the ``decoders=`` of
    `fastshard.open` have a suffix of it. `key` is the column ``__key__`` if it is a
    str, and else the position in the dataset, in decimal. Otherwise it is a
    `fastshard.Sample`.

    Examples
    --------
    >>> import fastshard
    >>> sample = fastshard.open("dataset")[7]
    >>> sample.key, bytes(sample["text"]), sample.decode("id")
    ('7', b'text 7', {'__key__': '7', 'id': 7})
    """

    __slots__ = ()

    codec: RowCodec = property(  # type: ignore[assignment]
        attrgetter("shard.facts"), doc="Codec of the shard's columns."
    )
    _decode_stored = decode_member

    def decode(self, *fields: str) -> dict[str, Any]:
        """Return decoded fields by name, and the key as ``"__key__"``.

        Parameters
        ----------
        *fields : str
            By default all fields.

        Returns
        -------
        dict
            Values of the types that mosaicml-streaming returns.

        Raises
        ------
        FormatError
            A field's bytes are not of its encoding.
        FieldNotFoundError
            The sample has no such field.
        FastshardError
            A field is named ``"__key__"``, as the key in the result is: a column of
            another encoding than str.
        ValueError
            An encoding is unknown, or needs ``allow_unsafe_types=True``.

        Examples
        --------
        >>> import fastshard
        >>> sample = fastshard.open("dataset")[7]
        >>> sample.decode()
        {'__key__': '7', 'id': 7, 'text': 'text 7'}
        >>> sample.decode("text")
        {'__key__': '7', 'text': 'text 7'}
        """
        return super().decode(*fields) if self.decoders else decode_fields(self, fields)

    def text(self, field: str) -> str:
        """Return a field as text: of a JSON shard its string, else the stored bytes.

        Raises
        ------
        FormatError
            The field is not UTF-8.
        FieldNotFoundError
            The sample has no such field.

        Examples
        --------
        >>> import fastshard
        >>> sample = fastshard.open("dataset")[7]
        >>> sample.text("text")
        'text 7'
        """
        text: str = self._decode_with(self.codec.text_decoder, field)
        return text

    def array(
        self,
        field: str,
        dtype: DTypeLike | None = None,
        shape: int | tuple[int, ...] | None = None,
    ) -> NDArray[Any]:
        """Return a field as an array, without a copy.

        Parameters
        ----------
        field : str
        dtype : dtype-like, optional
            Type of raw values. By default that of the column, of numbers or arrays.
        shape : int or tuple of int, optional
            Shape of the array of `dtype`; one length may be -1. By default one
            dimension.

        Returns
        -------
        ndarray
            As of `fastshard.Sample.array`.

        Raises
        ------
        FieldNotFoundError
            The sample has no such field.
        FormatError
            The field is not an array of the column's encoding.
        ValueError
            The field's size does not fit `dtype` and `shape`.

        Examples
        --------
        >>> import fastshard
        >>> sample = fastshard.open("dataset")[7]
        >>> sample.array("id"), sample.array("text", "u1")[:2]
        (array(7), array([116, 101], dtype=uint8))
        """
        if dtype is None:
            layout = self.codec.stored_layout(field)
            if layout.kind == "raw":
                dtype, shape = layout.dtype, layout.shape
        return Sample.array(self, field, dtype, shape)


def CopiedRow(  # noqa: N802
    key: str, position: int, fields: dict[str, bytes], config: ShardConfig, unsafe: bool
) -> CopiedSample:
    """Return a copied sample from its pickle, which has this name."""
    return CopiedSample(key, position, fields, RowCodec(config, unsafe))
