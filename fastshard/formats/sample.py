"""Samples of tar shards, and the base of the samples of other formats."""

from __future__ import annotations

import collections.abc
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast, overload

from fastshard._core.dataset.shard import GroupedSamples, SampleBase, add_notes
from fastshard._core.io.source import RemoteSource
from fastshard._util.options import near_fields
from fastshard._util.terminal import join_names
from fastshard._util.viewfile import ViewFile
from fastshard.errors import FieldNotFoundError, FormatError, brief_error, key_collision
from fastshard.formats.codec import FieldCodec
from fastshard.formats.decoders import (
    Decoder,
    decode_field,
    decode_json,
    decode_text,
    own_decoder,
)
from fastshard.formats.layout import VALUE, FieldLayout

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


__all__ = ["FIELDS", "KEY", "CopiedSample", "Keys", "Sample", "Samples"]


KEY = "__key__"
MAX_COMPLETIONS = 1000  # keys that a prompt completes
FIELDS = FieldCodec()


class Sample(SampleBase):
    """Training example: named fields of stored bytes.

    - ``sample["jpg"]``: the stored bytes, a `memoryview`, no copy
    - ``sample.decode()``: all fields as values: arrays, numbers, text
    - ``sample.array("npy")``: one field as an array, no copy
    - ``sample.json(f)``, ``sample.text(f)``: one field parsed
    - ``sample.open(f)``: one field as a binary file
    - ``sample.key``, ``sample.keys()``: the sample's name, the fields' names

    ``"jpg" in sample``, ``len(sample)``, iteration over fields and ``dict(sample)``
    work as for a mapping. It is not registered as a `Mapping`, for torch's
    ``default_collate`` would treat its views as sequences of numbers.

    A pickle of a sample holds copies of its bytes, and no reference to the shard.

    Attributes
    ----------
    key : str
        The name that its members share.
    position : int
        0-based position among the shard's samples.
    shard : Shard or None
        The shard that holds it, None if several do.
    decoders : Mapping of str to callable, or None
        The ``decoders=`` of `fastshard.open`.

    Examples
    --------
    >>> import fastshard
    >>> sample = fastshard.open("data/")[7]
    >>> sample
    Sample('000007'; npy, cls, txt, json)
    >>> bytes(sample["txt"]), sample.array("npy")
    (b'text 7', array([7., 7., 7., 7.], dtype=float32))
    >>> sample.decode("cls", "json")
    {'__key__': '000007', 'cls': 7, 'json': {'size': 4}}
    """

    # The compiled base finds the fields' members; the format's codec decodes them.

    __slots__ = ()

    codec: FieldCodec = FIELDS

    def view(self, field: str) -> memoryview:
        """Return the stored bytes of a field, even where ``sample[field]`` is decoded.

        Returns
        -------
        memoryview
            As ``sample[field]``: read-only, no copy, valid as long as it is
            referenced.

        Raises
        ------
        FieldNotFoundError
            The sample has no such field.

        Examples
        --------
        >>> sample.view("txt").nbytes
        6
        """
        shard, member = self.place(field)
        return shard[member]

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
            Type of raw values. By default the field is an ``.npy`` file.
        shape : int or tuple of int, optional
            Shape of the array of `dtype`; one length may be -1. By default one
            dimension.

        Returns
        -------
        ndarray
            On the shard's memory: read-only unless ``mode="private"``, valid as long as
            it is referenced.

        Raises
        ------
        FieldNotFoundError
            The sample has no such field.
        FormatError
            The field is not an ``.npy`` file, or holds Python objects.
        ValueError
            The field's size does not fit `dtype` and `shape`.

        Examples
        --------
        >>> sample.array("npy")
        array([7., 7., 7., 7.], dtype=float32)
        >>> sample.array("txt", "u1")
        array([116, 101, 120, 116,  32,  55], dtype=uint8)
        """
        shard, member = self.place(field)
        return shard.array(member, dtype, shape)

    def text(self, field: str) -> str:
        """Return a field decoded as UTF-8.

        Raises
        ------
        FormatError
            The field is not UTF-8; the error names the byte.
        FieldNotFoundError
            The sample has no such field.

        Examples
        --------
        >>> sample.text("txt")
        'text 7'
        """
        text: str = self._decode_with(decode_text, field)
        return text

    def json(self, field: str) -> Any:
        """Return a field parsed as JSON.

        Raises
        ------
        FormatError
            The field is not JSON in UTF-8; the error names the byte.
        FieldNotFoundError
            The sample has no such field.

        Examples
        --------
        >>> sample.json("json")
        {'size': 4}
        """
        return self._decode_with(decode_json, field)

    def decode(self, *fields: str) -> dict[str, Any]:
        """Return decoded fields by name, and the key as ``"__key__"``.

        Parameters
        ----------
        *fields : str
            By default all fields.

        Returns
        -------
        dict
            Values from the decoder of each field's longest known suffix: arrays for
            npy and npz, parsed json, str for txt, int for cls, images for png, jpg and
            webp. Views for fields without a decoder. Samples of other formats have
            decoders by the stored type, whatever the fields' names.

        Raises
        ------
        FormatError
            A field's bytes are not in the format of its suffix.
        FieldNotFoundError
            The sample has no such field.
        FastshardError
            A field is named ``"__key__"``, as the key in the result is.
        MissingLibraryError
            A library that a decoder needs is not installed.

        Examples
        --------
        >>> sample.decode("cls", "txt")
        {'__key__': '000007', 'cls': 7, 'txt': 'text 7'}
        """
        names = fields or self.keys()
        if KEY in names and not self.codec.key_is_field:
            raise key_collision()
        values: dict[str, Any] = {KEY: self.key}
        for field in names:
            values[field] = self._decode_field(field)
        return values

    def decoder_of(self, field: str) -> Decoder | None:
        """Return the decoder of a field, or None.

        Parameters
        ----------
        field : str
            Present in the sample or not.

        Returns
        -------
        callable or None
            ``fn(view) -> value``, found by the longest known suffix.

        Examples
        --------
        >>> sample.decoder_of("caption.txt")(memoryview(b"a cat"))
        'a cat'
        """
        own = own_decoder(field, self.decoders)
        return self.codec.decoder(self, field) if own is None else own

    def layout_of(self, field: str) -> FieldLayout:
        """Return the memory layout of a field, by which batches stack it.

        Returns
        -------
        FieldLayout
            Of kind ``"value"`` for bytes that a decoder takes.

        Examples
        --------
        >>> sample.layout_of("npy").kind, sample.layout_of("txt").kind
        ('npy', 'value')
        """
        return self.codec.layout(self, field)

    def is_array(self, field: str) -> bool:
        """Return whether `array` reads a field without a dtype.

        Examples
        --------
        >>> sample.is_array("npy"), sample.is_array("txt")
        (True, False)
        """
        return self.layout_of(field) != VALUE

    def _is_stored(self, field: str) -> bool:
        """Return whether a field that the sample has is bytes in a shard."""
        return True

    def _decode_field(self, field: str) -> Any:
        own = own_decoder(field, self.decoders) if self.decoders else None
        if own is not None:
            return self._decode_with(own, field)
        return self._decode_stored(field)

    def _decode_stored(self, field: str) -> Any:
        return self.codec.decode(self, field)

    def _decode_with(self, decoder: Decoder, field: str) -> Any:
        shard, member = self.place(field)
        offset, _ = shard.extent_of(member)  # after its header was checked
        name = shard.name_at(member)
        try:
            return decode_field(decoder, shard[member], shard.path, offset, name)
        except FormatError:  # it names the member
            raise
        except Exception as error:
            add_notes(error, self)
            raise

    def _where(self, field: str) -> tuple[str, int, str]:
        """Return path, offset and member's name of a field, for errors."""
        shard, member = self.place(field)
        return shard.path, shard.extent_of(member)[0], shard.name_at(member)

    def infos(self) -> collections.abc.Mapping[str, dict[str, Any]]:
        """Return the index metadata of each field, parsed on access.

        Returns
        -------
        Mapping of str to dict
            By field as `TarShard.info`; empty dicts if the index has no metadata.

        Examples
        --------
        >>> sample.infos()["txt"]
        {}
        """
        return self.codec.infos(self)

    def open(self, field: str) -> BinaryIO:
        """Return a field as a seekable binary file, without a copy.

        For a remote shard, reads request ranges of the field, unless its bytes were
        prefetched with the sample.

        Returns
        -------
        BinaryIO
            With ``read``, ``readinto``, ``seek`` and ``tell``, for libraries that take
            files.

        Raises
        ------
        FieldNotFoundError
            The sample has no such field.

        Examples
        --------
        >>> with sample.open("npy") as file:
        ...     np.load(file)
        array([7., 7., 7., 7.], dtype=float32)
        """
        shard, member = self.place(field)
        source = shard.parts()[0]
        name = f"{self.key}.{field}"
        if isinstance(source, RemoteSource):
            offset, size = shard.extent_of(member)
            if not source.has_staged(offset, size):
                from fastshard.remote.member_file import open_range

                return open_range(source.file, offset, size, name)
        return cast(BinaryIO, ViewFile(shard[member], name))

    def _ipython_key_completions_(self) -> list[str]:
        """Return the fields, which IPython completes after ``sample["``."""
        return list(self.keys())

    def __repr__(self) -> str:
        try:
            fields = join_names(list(self.keys()))
            return (
                f"Sample({self.key!r}; {fields})" if fields else f"Sample({self.key!r})"
            )
        except Exception as error:
            return f"Sample(unreadable: {brief_error(error)})"

    def _repr_html_(self) -> str:
        """Return a table for notebooks: thumbnails, excerpts, summaries of arrays."""
        from fastshard.formats.display.sample_html import sample_html

        return sample_html(self)

    def __reduce__(self) -> tuple[Any, ...]:
        reduced = self.codec.reduce(self)
        if reduced is not None:
            return reduced
        return CopiedSample, (self.key, self.position, self._copy_fields())

    def _copy_fields(self) -> dict[str, bytes]:
        """Return copies of the fields' stored bytes."""
        return {field: bytes(self.view(field)) for field in self.keys()}


class CopiedSample(Sample):
    """Sample of any format with its own copy of the bytes, as pickles hold it."""

    __slots__ = ("_fields", "_key", "_position", "codec")

    def __new__(cls, *args: object) -> CopiedSample:
        return super().__new__(cls)

    def __init__(
        self,
        key: str,
        position: int,
        fields: Mapping[str, bytes | memoryview],
        codec: FieldCodec = FIELDS,
    ) -> None:
        self._key = key
        self._position = position
        self._fields = fields
        self.codec = codec

    @property
    def key(self) -> str:
        return self._key

    @property
    def position(self) -> int:
        return self._position

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the sample, in formats whose samples have it."""
        metadata: dict[str, Any] = self.codec.metadata  # type: ignore[attr-defined]
        return metadata

    def keys(self) -> list[str]:
        names = self.codec.names
        return list(self._fields if names is None else names)

    def __len__(self) -> int:
        return len(self.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, field: object) -> bool:
        return field in self.keys()

    def __getitem__(self, field: str) -> Any:
        return self.codec.copied_item(self, field)

    def view(self, field: str) -> memoryview:
        try:
            return memoryview(self._fields[field])
        except KeyError:
            where = f"sample {self.key!r}, which has {', '.join(self._fields)}"
            near = partial(near_fields, field, list(self._fields))
            raise FieldNotFoundError(field, where, near) from None

    def array(
        self,
        field: str,
        dtype: DTypeLike | None = None,
        shape: int | tuple[int, ...] | None = None,
    ) -> NDArray[Any]:
        return self.codec.copied_array(self, field, dtype, shape)

    def open(self, field: str) -> BinaryIO:
        return cast(BinaryIO, ViewFile(self.view(field), f"{self.key}.{field}"))

    def text(self, field: str) -> str:
        text: str = self._decode_with(self.codec.text_decoder, field)
        return text

    def decode(self, *fields: str) -> dict[str, Any]:
        decode_row = self.codec.decode_row
        if decode_row is None or self.decoders:
            return super().decode(*fields)
        return decode_row(self, fields)

    def _decode_with(self, decoder: Decoder, field: str) -> Any:
        return decode_field(decoder, self.view(field), *self._where(field))

    def _is_stored(self, field: str) -> bool:
        return field not in self.codec.values

    def _where(self, field: str) -> tuple[str, int, str]:
        name = f"{self.key}.{field}"
        return name, 0, name


class Samples(GroupedSamples, collections.abc.Sequence[Sample]):
    """Samples of a shard: a `Sequence` of `Sample`, also indexed by key.

    Examples
    --------
    >>> import fastshard
    >>> samples = fastshard.open_shard("data/train-0000.tar").samples
    >>> len(samples), samples[-1].key, "000007" in samples
    (25, '000024', True)
    >>> samples["000007"].text("txt")
    'text 7'
    """

    __slots__ = ()

    has_plain_members = True  # each visible field of a sample is a member

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, key: int | str, /) -> Sample: ...
        @overload
        def __getitem__(self, key: slice, /) -> list[Sample]: ...
        def __getitem__(self, key: Any, /) -> Any: ...
        def __iter__(self) -> Iterator[Sample]: ...
        def __contains__(self, key: object, /) -> bool: ...

    def _ipython_key_completions_(self) -> list[str]:
        """Return the first keys, which IPython completes after ``samples["``."""
        return [self.key_at(i) for i in range(min(MAX_COMPLETIONS, len(self)))]

    def keys(self) -> Keys:
        """Return the samples' keys as a lazy sequence.

        Returns
        -------
        Keys
            A `Sequence` of str.

        Examples
        --------
        >>> shard.samples.keys()
        <25 keys: ['000000', '000001', '000002', ...]>
        """
        return Keys(self)

    def __repr__(self) -> str:
        return f"<{len(self):,} samples of {self.shard!r}>"


class Keys(collections.abc.Sequence[str]):
    """Keys of a shard's samples, decoded on access."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        if isinstance(i, slice):
            at = self._samples.key_at
            return [at(k) for k in range(*i.indices(len(self)))]
        return self._samples.key_at(i)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._samples  # type: ignore[comparison-overlap]

    def __repr__(self) -> str:
        shown = ", ".join(repr(key) for key in self[:3])
        more = ", ..." if len(self) > 3 else ""
        return f"<{len(self):,} keys: [{shown}{more}]>"
