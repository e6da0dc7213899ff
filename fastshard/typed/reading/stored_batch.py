"""Batches of stored samples: fields are read one by one from the shards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from fastshard._core.dataset.streams import CallGuard
from fastshard.dataset.sequence.batch import Collation
from fastshard.dataset.sequence.iteration import SampleIterator
from fastshard.errors import FieldNotFoundError, FormatError
from fastshard.typed.dict_sample import DictSample
from fastshard.typed.fields import FieldPlan, field_plans, has_post_init
from fastshard.typed.reading.stages import Decoding, plan_part

if TYPE_CHECKING:
    from fastshard._core.dataset.records import SampleList
    from fastshard._core.typed.decoder import TypedDecoder

__all__ = [
    "StoredBatchIterator",
    "StoredCollation",
    "StoredReader",
    "is_readable_by_field",
]

NUMBERS = {"int": "i", "float": "f", "bool": "b"}  # kinds of dtypes, by those of fields


def is_readable_by_field(first: Decoding) -> bool:
    """Return whether a field of a type can be read alone, with the same value."""
    if first.strict:
        return False
    return issubclass(first.kind, DictSample) or not has_post_init(first.kind)


class StoredReader:
    """Reader of the fields of stored samples, for all batches of an iteration."""

    def __init__(self, first: Decoding, decoder: Callable[[Any], Any]) -> None:
        from fastshard._core.typed.columns import stack_columns
        from fastshard._core.typed.shard import decode_columns

        self.stack_columns = stack_columns
        self.decode_columns = decode_columns
        self.first = first
        self.decoder = decoder
        self.fields: dict[str, FieldPlan] = {}
        if not issubclass(first.kind, DictSample):
            self.fields = {field.name: field for field in field_plans(first.kind)}
        self.names: Collection[str] | None = self.fields or None
        self._decoders: dict[str, TypedDecoder[Any]] = {}
        self._dtypes: dict[str, Any] = {}  # of a field, the last one that fitted

    def is_declared(self, name: str, dtype: Any) -> bool:
        """Return whether a field declares arrays of a dtype."""
        if self._dtypes.get(name) is dtype:
            return True
        if not is_declared(dtype, self.fields[name].dtype):
            return False
        self._dtypes[name] = dtype
        return True

    def field_decoder(self, name: str) -> TypedDecoder[Any]:
        """Return the decoder of a single field, to an object with an attribute."""
        decoder = self._decoders.get(name)
        if decoder is None:
            from fastshard._core.typed.decoder import TypedDecoder

            plan = plan_part(self.first.kind, (name,))
            decoder = TypedDecoder(plan, self.first.copy, self.first.aligned)
            self._decoders[name] = decoder
        return decoder

    def __call__(self, samples: list[Any]) -> StoredSamples:
        """Return the field source of a batch."""
        from fastshard._core.dataset.records import SampleList

        return StoredSamples(self, SampleList(samples))


class StoredSamples:
    """Stored samples of a type: a `FieldSource` of `SampleBatch`.

    Attributes
    ----------
    names : Collection of str or None
        The fields of the type; None for samples without one.
    """

    __slots__ = ("_reader", "_samples", "names")

    def __init__(self, reader: StoredReader, samples: SampleList) -> None:
        self._reader = reader
        self._samples = samples
        self.names = reader.names

    def __len__(self) -> int:
        return len(self._samples)

    def decode(self) -> list[Any]:
        """Return the samples as objects."""
        return list(map(self._reader.decoder, self._samples))

    def column(self, name: str) -> Any:
        """Return a field as a new array or as a list of values."""
        field = self._reader.fields.get(name)
        if field is None:  # samples without types
            return NotImplemented
        found = self._read_together(field)
        if found is None:
            decoder = self._reader.field_decoder(name)
            found = [getattr(decoder(sample), name) for sample in self._samples]
            found = found if field.column is None else field.column(found)
        return found

    def _read_together(self, field: FieldPlan) -> Any:
        """Return a field if all samples store it in one form, else None."""
        read = self._reader
        name = field.name
        if field.kind == "str":
            try:
                values = read.decode_columns(self._samples, (name,))[name]
            except (FieldNotFoundError, FormatError):  # the decoder has a default,
                return None  # or raises, as for a single sample
            return values if set(map(type, values)) == {str} else None
        if field.kind != "array" and field.kind not in NUMBERS:
            return None
        stack = read.stack_columns(self._samples, (name,)).get(name)
        if stack is None:
            return None
        if field.kind != "array":
            return stack.tolist() if stack.dtype.kind == NUMBERS[field.kind] else None
        return stack if read.is_declared(name, stack.dtype) else None

    def array(self, name: str) -> Any:
        """Return a field of arrays as one array, or `NotImplemented`."""
        stack = self._reader.stack_columns(self._samples, (name,)).get(name)
        if stack is None:
            return NotImplemented
        sample = self._samples[0]
        return stack if sample.layout_of(name).kind == "array" else NotImplemented


class StoredCollation(Collation):
    """Collate stored samples as another collation does their objects."""

    def __init__(self, reader: StoredReader, options: Collation) -> None:
        vars(self).update(vars(options))
        self._reader = reader

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        source = self._reader(list(samples))
        lengths: dict[str, Any] = {}
        batch: dict[str, Any] = {}
        for name in self._reader.fields:
            batch[name] = self._collate_column(source.column(name), name, lengths)
        return self._add_lengths(batch, lengths)

    def _collate_column(self, found: Any, name: str, lengths: dict[str, Any]) -> Any:
        if type(found) is list:
            return self.collate_objects(found, name, lengths)
        if self.out is not None or self.buffers is not None:
            out = self._output(name, found.shape, found.dtype)
            out[...] = found
            found = out
        return self._wrap(found, name, lengths)

    def check(self, sample: Any) -> None:
        """Decode a stored sample, to raise its errors."""
        self._reader.decoder(sample)


def is_declared(dtype: Any, declared: Any) -> bool:
    """Return whether a dtype is a declared one, in any byte order."""
    if declared is None:
        return True
    import numpy as np

    if isinstance(declared, np.dtype):
        same: bool = dtype == declared or (
            dtype.newbyteorder("=") == declared.newbyteorder("=")
        )
        return same
    return issubclass(dtype.type, declared)


class StoredBatchIterator(Iterator[Any]):
    """Iterator over batches of stored samples.

    Same attributes as a `BatchIterator`. After the error of a sample, the next batch
    begins with the samples before it.
    """

    def __init__(
        self,
        samples: SampleIterator[Any],
        size: int,
        make: Callable[[list[Any]], Any],
    ) -> None:
        self._samples = samples
        self._size = size
        self._make = make
        self._pending: list[Any] = []
        self._guard = CallGuard()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._make(self._guard.call(self._take_samples))

    def _take_samples(self) -> list[Any]:
        """Return the stored samples of the next batch."""
        pending = self._pending
        pending.extend(islice(self._samples, self._size - len(pending)))
        if not pending:
            raise StopIteration
        self._pending = []
        return pending

    @property
    def position(self) -> int:
        """The position of the first sample after the batches so far."""
        return self._samples.position - len(self._pending)

    @property
    def skipped(self) -> int:
        """The number of skipped samples before a resumed state."""
        return self._samples.skipped

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches so far."""
        return self._samples.state_after(self.position, self.skipped)

    def close(self) -> None:
        """End the iteration and its prefetching thread."""
        self._samples.close()
