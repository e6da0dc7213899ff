"""Batches of typed samples: fields by attribute, arrays stacked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, get_args

from fastshard.errors import FieldNotFoundError
from fastshard.formats.stacking.padding import Padding, Ragged
from fastshard.typed.fields import column_of
from fastshard.typed.reading.sample_fields import array_of, field_names, value_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["SampleBatch"]

T = TypeVar("T")


class FieldSource(Protocol):
    """The stored samples of a batch, read field by field."""

    @property
    def names(self) -> Collection[str] | None:
        """The fields; None if only the samples know them."""
        ...

    def __len__(self) -> int: ...
    def decode(self) -> list[Any]:
        """Return the samples as objects."""
        ...

    def column(self, name: str) -> Any:
        """Return a field: a new array, a list, or `NotImplemented` for `decode`."""
        ...

    def array(self, name: str) -> Any:
        """Return a field of arrays as one array, or `NotImplemented` for `decode`."""
        ...


class SampleBatch(Generic[T]):
    """Samples of one type, with their fields as attributes.

    ``batch.image`` is one array ``[samples, *shape]`` where all values are arrays of
    one shape, else a list with a value for each sample. A field is read when it is
    first requested: straight from the shards, without the other fields. A field with
    the name of an attribute is ``batch["samples"]``.

    Parameters
    ----------
    samples : sequence
        Of one type.
    ragged : {"error", "list", "pad"}, default "error"
    fill : scalar, or mapping of str to scalar, optional
        As for `fastshard.collate`; `lengths` has the true shapes.

    Raises
    ------
    ValueError
        `ragged` is another value, or does not use `fill`.

    Examples
    --------
    >>> batch = next(ds.ordered(batch_size=32))
    >>> batch.image.shape, batch.label[:2]
    ((32, 4), ['label 0', 'label 1'])
    >>> len(batch), batch.samples[7].label
    (32, 'label 7')
    """

    def __init__(
        self, samples: Sequence[T], *, ragged: Ragged = "error", fill: Any = None
    ) -> None:
        self._samples: list[T] | None = list(samples)
        self._source: FieldSource | None = None
        self._type: Any = None
        self._padding = Padding(ragged, fill).checked()
        self._columns: dict[str, Any] = {}
        self._lengths: dict[str, Any] = {}

    @classmethod
    def _of(
        cls, kind: Any, padding: Padding, samples: Sequence[Any]
    ) -> SampleBatch[Any]:
        """Return a batch of objects; `kind` is `object` if it is not known."""
        batch: SampleBatch[Any] = cls(samples, ragged=padding.ragged, fill=padding.fill)
        batch._type = None if kind is object else kind
        return batch

    @classmethod
    def _read(
        cls, source: FieldSource, kind: Any, padding: Padding
    ) -> SampleBatch[Any]:
        """Return a batch of stored samples, decoded on access."""
        batch: SampleBatch[Any] = object.__new__(cls)
        batch._samples = None
        batch._source = source
        batch._type = kind
        batch._padding = padding
        batch._columns = {}
        batch._lengths = {}
        return batch

    @property
    def __orig_class__(self) -> Any:
        """The subscripted class that made this batch: ``SampleBatch[T]``."""
        return SampleBatch[self.sample_type]  # type: ignore[name-defined]

    @__orig_class__.setter
    def __orig_class__(self, alias: Any) -> None:
        (kind,) = get_args(alias)
        if not isinstance(kind, TypeVar):
            self._type = kind

    @property
    def samples(self) -> list[T]:
        """The samples, as objects."""
        if self._samples is None:
            assert self._source is not None
            self._samples = self._source.decode()
        return self._samples

    @property
    def sample_type(self) -> type[T]:
        """The type of the samples."""
        if self._type is None:
            self._type = type(self.samples[0]) if self.samples else object
        kind: type[T] = self._type
        return kind

    def __len__(self) -> int:
        return len(self.samples if self._source is None else self._source)

    def __iter__(self) -> Iterator[T]:
        return iter(self.samples)

    def __getattr__(self, name: str) -> Any:
        if not self._has(name) or name.startswith("__"):
            raise AttributeError(
                f"No sample attribute named {name!r}: samples of {self._type_name()} "
                f"have {', '.join(self._names()) or 'no fields'}"
            )
        return self._column(name)

    def __getitem__(self, name: str) -> Any:
        """Return a field of all samples.

        Returns
        -------
        ndarray [samples, *shape], or list

        Raises
        ------
        KeyError
            The samples have no such field.
        RaggedError
            Arrays differ in dtype or shape, with ``ragged="error"``.
        FormatError
            A sample cannot be decoded; a `SchemaError` if its type declares another.

        Examples
        --------
        >>> next(ds.ordered(batch_size=32))["label"][0]
        'label 0'
        """
        if not self._has(name):
            raise KeyError(name)
        return self._column(name)

    def _column(self, name: str) -> Any:
        """Return a field that the samples have."""
        if name in self._columns:
            return self._columns[name]
        padding = self._padding
        for field in padding.filled_fields if padding.fill is not None else ():
            if not self._has(field):
                raise FieldNotFoundError(field, f"fill=: {', '.join(self._names())}")
        found: Any = NotImplemented
        if self._source is not None and self._samples is None:
            found = self._source.column(name)
        if found is NotImplemented:
            found = self._values(name)
        if type(found) is list and _are_arrays(found):
            shapes = [value.shape for value in found]
            found = padding.stack(found, name)
            padding.record(self._lengths, name, shapes)
        elif type(found) is not list and padding.has_lengths:
            padding.record(self._lengths, name, [found.shape[1:]] * len(found))
        self._columns[name] = found
        return found

    def array(self, name: str) -> NDArray[Any]:
        """Return a field of arrays as one array; also for untyped samples.

        Parameters
        ----------
        name : str
            A field of arrays; of a `DictSample`, whose arrays are bytes, of such bytes.

        Returns
        -------
        ndarray [samples, *shape]

        Raises
        ------
        KeyError
            The samples have no such field.
        RaggedError
            The arrays differ in dtype or shape.
        FormatError
            A value is not an array.

        Examples
        --------
        >>> batch = next(fastshard.typed.Dataset("data.tar").ordered(batch_size=32))
        >>> type(batch.image[0]), batch.array("image").shape
        (<class 'bytes'>, (32, 4))
        """
        if not self._has(name):
            raise KeyError(name)
        found: Any = NotImplemented
        if self._source is not None and self._samples is None:
            found = self._source.array(name)
        if found is NotImplemented:
            values = [array_of(sample, name) for sample in self.samples]
            found = Padding().stack(values, name) if values else values
        stack: NDArray[Any] = found
        return stack

    def lengths(self, name: str) -> NDArray[np.int64]:
        """Return the shapes of a field's arrays before padding.

        Returns
        -------
        ndarray of int64 [samples, axes]

        Raises
        ------
        KeyError
            The field is not an array, or the batch was not made with ``ragged="pad"``.

        Examples
        --------
        >>> batch = next(ds.ordered(batch_size=2, ragged="pad"))
        >>> batch.lengths("image").tolist()
        [[4], [4]]
        """
        self[name]
        found: NDArray[np.int64] = self._lengths[name]
        return found

    def _values(self, name: str) -> Any:
        values = [value_of(sample, name) for sample in self.samples]
        return column_of(self._type, name, values)

    def _names(self) -> list[str]:
        kind = self.sample_type
        return field_names(kind if not self.samples else self.samples[0]) or []

    def _has(self, name: str) -> bool:
        if self._source is not None and self._source.names is not None:
            return name in self._source.names
        names = field_names(self._type) if self._type is not None else None
        return name in (self._names() if names is None else names)

    def _type_name(self) -> str:
        return getattr(self.sample_type, "__name__", str(self.sample_type))

    def __repr__(self) -> str:
        return f"SampleBatch[{self._type_name()}]({len(self):,} samples)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._type, self.samples, *self._padding[:2])


def _rebuild(
    kind: Any, samples: list[Any], ragged: Ragged, fill: Any = None
) -> SampleBatch[Any]:
    batch: SampleBatch[Any] = SampleBatch(samples, ragged=ragged, fill=fill)
    batch._type = kind
    return batch


def _are_arrays(values: list[Any]) -> bool:
    import numpy as np

    kinds = set(map(type, values))
    return bool(kinds) and all(issubclass(kind, np.ndarray) for kind in kinds)
