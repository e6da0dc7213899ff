"""Untyped samples: fields by name, decoded at first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fastshard._core.typed.plan import FieldMap
from fastshard.errors import FormatError, SchemaError
from fastshard.typed.kinds.equality import equal_values
from fastshard.typed.sample_type import new_key

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray
    from typing_extensions import Buffer

__all__ = ["DictSample"]


class DictSample(FieldMap):
    """Untyped sample: its fields as attributes and as items.

    Values are those of msgpack. Arrays are bytes, as `bytes` fields are: `array` makes
    them. A sample of a payload decodes a field when it is requested, and keeps the
    value. Samples are read-only. They are equal if their fields are, as those of a
    `PackableSample`.

    Parameters
    ----------
    _data : mapping of str to object, optional
    **values : object
        The fields, instead of `_data`.

    Raises
    ------
    TypeError
        `_data` is not a mapping, or given together with `values`.

    Examples
    --------
    >>> from fastshard.typed import DictSample
    >>> sample = DictSample(text="a cat", label=1)
    >>> sample.keys(), sample["text"], sample.label
    (['text', 'label'], 'a cat', 1)
    >>> DictSample.from_bytes(sample.packed) == sample
    True
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Make a sample of its fields' values.

        Raises
        ------
        TypeError
            `data` is not a mapping.

        Examples
        --------
        >>> typed.DictSample.from_data({"text": "a cat"}).text
        'a cat'
        """
        if data is None:
            raise TypeError("expected a mapping, got None")
        return cls(data)

    @classmethod
    def from_bytes(cls, data: Buffer) -> Self:
        """Make a sample of its msgpack payload.

        Parameters
        ----------
        data : buffer
            Kept by the sample; no value is decoded yet.

        Raises
        ------
        SchemaError
            The payload is not a msgpack map with str keys.

        Examples
        --------
        >>> payload = Caption(text="a cat", score=1.5).packed
        >>> typed.DictSample.from_bytes(payload).score
        1.5
        """
        try:
            return cls._from_buffer(data)
        except FormatError as error:
            raise SchemaError(error.reason, "", error.offset) from None

    def values(self) -> list[Any]:
        """Return the fields' values, in their order.

        Examples
        --------
        >>> typed.DictSample(text="a cat", label=1).values()
        ['a cat', 1]
        """
        return list(self.to_dict().values())

    def items(self) -> list[tuple[str, Any]]:
        """Return the fields' names and values, in their order.

        Examples
        --------
        >>> typed.DictSample(text="a cat", label=1).items()
        [('text', 'a cat'), ('label', 1)]
        """
        return list(self.to_dict().items())

    def view(self, name: str) -> memoryview:
        """Return a field's bytes without a copy.

        Returns
        -------
        memoryview
            The contents of a str or a bytes field, the encoded value of others.
            Valid for as long as it is referenced.

        Raises
        ------
        FieldNotFoundError
            There is no such field.
        TypeError
            The sample was made of values, and this one has no bytes.

        Examples
        --------
        >>> payload = Caption(text="a cat", score=1.5).packed
        >>> bytes(typed.DictSample.from_bytes(payload).view("text"))
        b'a cat'
        """
        view = self._extent(name)
        if view is not None:
            return view
        value = self[name]
        if isinstance(value, str):
            return memoryview(value.encode())
        if isinstance(value, (bytes, bytearray, memoryview)):
            return memoryview(value)
        raise TypeError(f"field {name!r} is {type(value).__name__}, which has no bytes")

    def array(
        self, name: str, *, copy: bool = False, aligned: bool = False
    ) -> NDArray[Any]:
        """Return the array of a field without a copy.

        Parameters
        ----------
        name : str
        copy : bool, default False
            Return a copy: writable and C-contiguous.
        aligned : bool, default False
            Copy an array whose data are not aligned for its type.

        Returns
        -------
        numpy.ndarray
            On the bytes of the payload, read-only if they are.

        Raises
        ------
        FieldNotFoundError
            There is no such field.
        FormatError
            The field's bytes are not an array.
        TypeError
            The sample was made of values, and this one has no bytes.

        Examples
        --------
        >>> payload = ImageSample(image=np.arange(3, dtype="f4"), label="cat").packed
        >>> typed.DictSample.from_bytes(payload).array("image")
        array([0., 1., 2.], dtype=float32)
        """
        from fastshard._core.typed.arrays import unpack_array

        view = self._extent(name)
        if view is None:
            value = self[name]
            if type(value).__name__ == "ndarray":
                return value.copy() if copy else value  # type: ignore[no-any-return]
            view = self.view(name)
        try:
            return unpack_array(view, copy=copy, aligned=aligned)
        except FormatError as error:
            raise FormatError(
                error.reason, error.path, error.offset, f"field {name!r}"
            ) from error.__cause__

    @property
    def packed(self) -> bytes:
        """The sample's msgpack payload, the original one if made of bytes.

        Raises
        ------
        TypeError, ValueError, OverflowError
            A value cannot be stored; the message begins with the field.

        Examples
        --------
        >>> typed.DictSample(text="a cat").packed
        b'\\x81\\xa4text\\xa5a cat'
        """
        payload = self._payload_bytes()
        if payload is not None:
            return payload
        from fastshard.typed.kinds.values import pack

        return pack(self.to_dict())

    @property
    def as_wds(self) -> dict[str, Any]:
        """The sample as WebDataset's writers take it, under a new key.

        Examples
        --------
        >>> typed.DictSample(text="a cat").as_wds["msgpack"]
        b'\\x81\\xa4text\\xa5a cat'
        """
        return {"__key__": new_key(), "msgpack": self.packed}

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DictSample):
            return NotImplemented
        return equal_values(self.to_dict(), other.to_dict(), as_msgpack=True)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}=..." for name in self.keys())
        return f"{type(self).__name__}({fields})"

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self.keys()})

    def __reduce__(self) -> tuple[Any, ...]:
        payload = self._payload_bytes()
        if payload is not None:
            return from_payload, (type(self), payload)
        return from_values, (type(self), self.to_dict())


def from_payload(cls: type[DictSample], payload: bytes) -> DictSample:
    """Unpickle a sample made of a payload."""
    return cls._from_buffer(payload)


def from_values(cls: type[DictSample], values: dict[str, Any]) -> DictSample:
    """Unpickle a sample made of values."""
    return cls(values)
