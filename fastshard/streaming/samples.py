"""Samples of streaming shards: fields are columns, and encodings decode them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from fastshard._core.dataset.shard import describe_item
from fastshard._core.streaming.shard import RowShard, decode_fields, decode_member
from fastshard.errors import FormatError, key_collision
from fastshard.formats.decoders import Decoder, decode_text, own_decoder
from fastshard.formats.info import Infos
from fastshard.formats.layout import ARRAY, VALUE, Allocate, FieldLayout
from fastshard.formats.sample import CopiedSample, DecodedByFormat, Sample

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from fastshard.streaming.index import ShardConfig

__all__ = ["KEY", "CopiedRow", "FieldDecoder", "RowFacts", "StreamSample"]

KEY = "__key__"  # the column of the samples' keys
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


class FieldDecoder:
    """Decoder of the stored bytes of a column.

    Attributes
    ----------
    kind : str
        As of `FieldInfo`.
    """

    __slots__ = ("_decode", "_text", "kind")

    def __init__(self, row_format: str, encoding: str, unsafe: bool) -> None:
        self.kind = kind_of_encoding(encoding)
        self._text = row_format not in ("mds", "json")
        if row_format == "mds":
            from fastshard.streaming.encodings import mds_decoder

            self._decode: Any = mds_decoder(encoding, unsafe)
        elif row_format == "json":
            from fastshard.streaming.encodings import mds_decoder

            self._decode = mds_decoder("json")
        else:
            from fastshard.streaming.encodings.rows import xsv_decode

            self._decode = lambda text: xsv_decode(encoding, text)

    def __call__(self, view: memoryview) -> Any:
        if not self._text:
            return self._decode(view)
        try:
            return self._decode(decode_text(view))
        except FormatError:
            raise
        except ValueError as error:
            raise FormatError(str(error), "<view>", 0) from error


class RowFacts:
    """Encodings, decoders and layouts shared by the shards of one schema.

    Parameters
    ----------
    config : ShardConfig
    unsafe : bool
        Decode pickles.

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
        names = enumerate(config.names)
        self.field_names = [name for k, name in names if k != self.key_column]
        self._decoders: dict[str, FieldDecoder] = {}
        self._layouts: dict[str, FieldLayout] = {}

    def decoder(self, field: str) -> FieldDecoder | None:
        """Return the decoder of a column, or None for an unknown one."""
        found = self._decoders.get(field)
        if found is None and field in self.encodings:
            found = FieldDecoder(self.config.format, self.encodings[field], self.unsafe)
            self._decoders[field] = found
        return found

    def layout(self, field: str) -> FieldLayout:
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


class EncodedFields(DecodedByFormat):
    """Mixin of samples whose fields have encodings, whatever the fields' names."""

    __slots__ = ()

    keys: Any
    key: Any
    view: Any

    def _row_facts(self) -> RowFacts:
        """Return the encodings of the fields."""
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
        if self._row_facts().key_column < 0 and KEY in (fields or self.keys()):
            raise key_collision()
        values = {KEY: self.key}
        for field in fields or self.keys():
            values[field] = self._decode_field(field)
        return values

    def decoder_of(self, field: str) -> Decoder | None:
        """Return the user's decoder of a field, or else that of its encoding.

        Parameters
        ----------
        field : str

        Returns
        -------
        callable or None
            It takes the stored bytes as a memoryview. None: there is no such column.

        Raises
        ------
        ValueError
            The encoding is unknown, or needs ``allow_unsafe_types=True``.

        Examples
        --------
        >>> import fastshard
        >>> sample = fastshard.open("dataset")[7]
        >>> sample.decoder_of("id")(sample["id"])
        7
        """
        return own_decoder(field, self.decoders) or self._row_facts().decoder(field)

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
        >>> import fastshard
        >>> sample = fastshard.open("dataset")[7]
        >>> sample.layout_of("id").dtype, sample.layout_of("text").kind
        ('<i8', 'value')
        """
        if self.decoders and own_decoder(field, self.decoders) is not None:
            return VALUE
        return self._row_facts().layout(field)

    def text(self, field: str) -> str:
        """Return a field as text: of a JSON shard its string, else the stored bytes.

        Parameters
        ----------
        field : str

        Returns
        -------
        str

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
        if self._row_facts().config.format == "json":
            view = self.view(field)
            if view[:1] == b'"':
                value = self._decode_encoded(field)
                if isinstance(value, str):
                    return value
        text: str = super().text(field)  # type: ignore[misc]
        return text

    def infos(self) -> Mapping[str, dict[str, Any]]:
        """Return an empty mapping: these shards have no metadata of fields.

        Returns
        -------
        Mapping of str to dict

        Examples
        --------
        >>> import fastshard
        >>> sample = fastshard.open("dataset")[7]
        >>> len(sample.infos())
        0
        """
        return Infos(
            describe_item(self)[0],
            {},
            "index.json",
            "streaming shards have no metadata of samples",
        )


class StreamSample(EncodedFields, Sample):
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

    def _row_facts(self) -> RowFacts:
        shard = self.shard
        assert isinstance(shard, RowShard)
        facts: RowFacts = shard.facts
        return facts

    def decode(self, *fields: str) -> dict[str, Any]:
        if self.decoders:
            return EncodedFields.decode(self, *fields)
        return decode_fields(self, fields)

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
            layout = self._row_facts().layout(field)
            if layout.kind == "raw":
                dtype, shape = layout.dtype, layout.shape
        return Sample.array(self, field, dtype, shape)

    @staticmethod
    def _stack_fields(
        samples: list[Any],
        fields: tuple[str, ...],
        allocate: Allocate,
    ) -> dict[str, NDArray[Any]]:
        from fastshard._core.streaming.columns import stack_columns

        return stack_columns(samples, fields, allocate)

    @staticmethod
    def _decode_columns(
        samples: list[Any], fields: tuple[str, ...]
    ) -> dict[str, list[Any]]:
        if not fields or any(sample.decoders for sample in samples):
            return {}
        rows = [decode_fields(sample, fields) for sample in samples]
        return {field: [row[field] for row in rows] for field in fields}

    def _decode_encoded(self, field: str) -> Any:
        return decode_member(self, field)

    def __reduce__(self) -> tuple[Any, ...]:
        facts = self._row_facts()
        return CopiedRow, (
            self.key,
            self.position,
            self._copy_fields(),
            facts.config,
            facts.unsafe,
        )


class CopiedRow(EncodedFields, CopiedSample):
    """Sample of columns with bytes of its own: the unpickled form of `StreamSample`."""

    __slots__ = ("_facts",)

    def __init__(
        self,
        key: str,
        position: int,
        fields: dict[str, bytes],
        config: ShardConfig,
        unsafe: bool,
    ) -> None:
        super().__init__(key, position, fields)
        self._facts = RowFacts(config, unsafe)

    def _row_facts(self) -> RowFacts:
        return self._facts

    def array(
        self,
        field: str,
        dtype: DTypeLike | None = None,
        shape: int | tuple[int, ...] | None = None,
    ) -> NDArray[Any]:
        layout = self._facts.layout(field)
        if dtype is None and layout.kind == "array":
            return self._decode_encoded(field)  # type: ignore[no-any-return]
        if dtype is None and layout.kind == "raw":
            dtype, shape = layout.dtype, layout.shape
        return CopiedSample.array(self, field, dtype, shape)

    def _decode_encoded(self, field: str) -> Any:
        decoder = self._facts.decoder(field)
        if decoder is None:
            return self.view(field)
        return self._decode_with(decoder, field)

    def __reduce__(self) -> tuple[Any, ...]:
        return CopiedRow, (
            self.key,
            self.position,
            self._copy_fields(),
            self._facts.config,
            self._facts.unsafe,
        )
