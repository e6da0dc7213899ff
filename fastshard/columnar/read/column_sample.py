"""Samples of a columnar dataset: rows of the index, fields are arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastshard._core.dataset.shard import describe_item
from fastshard.columnar.layout.headers import needs_pickle
from fastshard.errors import FastshardError, FormatError
from fastshard.formats.codec import FieldCodec, Infos
from fastshard.formats.decoders import DECODERS, Decoder, ValueDecoder
from fastshard.formats.sample import CopiedSample, Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard.formats.layout import Allocate

__all__ = ["ARRAYS", "ArrayCodec", "ColumnSample", "CopiedArrays"]


def refuse_bytes(view: memoryview) -> Any:
    """Raise: the decoder of a metadata column, whose values have no stored bytes."""
    raise FastshardError("the values of a metadata column have no stored bytes")


class ArrayCodec(FieldCodec):
    """Codec of columnar datasets: fields are arrays, whatever their names."""

    __slots__ = ("metadata", "names", "values")

    def __init__(
        self,
        metadata: dict[str, Any] | None = None,
        values: dict[str, Any] | None = None,
        names: list[str] | None = None,
    ) -> None:
        self.metadata = metadata or {}
        self.values = values or {}
        self.names = names

    def kind(self, field: str) -> str:
        return "array"

    def decoder(self, sample: Any, field: str) -> Decoder:
        if sample._is_stored(field):
            return DECODERS["npy"]
        if sample.samples is None:  # a copy
            return ValueDecoder(refuse_bytes, "object")
        return ValueDecoder(refuse_bytes, sample.samples.metadata.kind(field))

    def decode(self, sample: Any, field: str) -> Any:
        if not sample._is_stored(field):
            return sample[field]
        return super().decode(sample, field)

    def infos(self, sample: Any) -> Mapping[str, dict[str, Any]]:
        return Infos(
            describe_item(sample)[0],
            {"metadata": lambda: sample.metadata},
            "the metadata",
            "a writer stores it by add_sample(arrays, metadata={...})",
        )

    def stack_fields(
        self, samples: list[Any], fields: tuple[str, ...], allocate: Allocate
    ) -> dict[str, NDArray[Any]]:
        from fastshard._core.columnar.batch import stack_samples
        from fastshard.columnar.read.batch import stack_equal

        return stack_samples(samples, fields, allocate, stack_equal)

    def decode_columns(
        self, samples: list[Any], fields: tuple[str, ...]
    ) -> dict[str, list[Any]]:
        """Return the values of metadata columns."""
        found: dict[str, list[Any]] = {}
        for name in fields:
            if samples[0].samples.values_of(name) is None:
                continue
            values: list[Any] = []
            for each in samples:
                column = each.samples.values_of(name)
                values.append(each[name] if column is None else column[each.position])
            found[name] = values
        return found

    def reduce(self, sample: Any) -> tuple[Any, ...]:
        names = sample.keys()
        stored = {
            name: bytes(sample.view(name)) for name in names if sample._is_stored(name)
        }
        state = (sample.key, sample.position, stored, sample.metadata)
        if len(stored) == len(names):
            return CopiedArrays, state
        values = {name: sample[name] for name in names if name not in stored}
        return CopiedArrays, (*state, values, names)

    def copied_item(self, sample: Any, field: str) -> Any:
        return self.values[field] if field in self.values else sample.array(field)


ARRAYS = ArrayCodec()


class ColumnSample(Sample):
    """Sample of a columnar dataset, whose fields are arrays.

    ``sample["history"]`` is an array on the shard's memory, read-only unless the
    dataset has ``mode="private"``; `view` returns the stored bytes, an ``.npy`` file.
    Otherwise it is a `fastshard.Sample`.

    Metadata columns, those of `ShardedDatasetWriter.add_metadata_column`, have their
    values by name: ``sample["length"]``. `keys`, iteration and batches contain those
    only that ``ds.select_fields("history", "length")`` names. A sample whose column is
    NULL lacks it.

    Examples
    --------
    >>> import fastshard
    >>> sample = fastshard.open("series")[2]
    >>> sample.key, sample["history"], sample.metadata
    ('sample_000000000003', array([2, 2, 2, 2]), {'day': 2})
    """

    __slots__ = ()

    codec = ARRAYS

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the sample, parsed anew at each access.

        Returns
        -------
        dict
            As the writer stored it; ``{}`` if there is none.

        Raises
        ------
        FormatError
            The metadata is not JSON.
        ClosedError
            The dataset is closed.

        Examples
        --------
        >>> ds[1].metadata
        {'day': 1}
        """
        samples: Any = self.samples
        text = None
        if samples.has_metadata:
            text = samples.metadata_text(self.position)
        found: dict[str, Any] = samples.owner.metadata(self.key, text)
        return found

    def __getitem__(self, field: str) -> Any:
        """Return a field as an array.

        Returns
        -------
        ndarray
            On the shard's memory, valid for as long as it is referenced.

        Raises
        ------
        FieldNotFoundError
            The sample has no such field.
        FormatError, OSError, ClosedError
            The array cannot be read.

        Examples
        --------
        >>> ds[1]["history"]
        array([1, 1, 1, 1])
        """
        try:
            return self.array(field)
        except FormatError as error:
            samples: Any = self.samples
            if samples.owner.unpickle is None or not needs_pickle(error.reason):
                raise
            column = samples.columns_of([field])
            return samples.arrays(self.position, column)[field]  # unpickles it
        except FastshardError:
            samples = self.samples
            values = samples.values_of(field)
            if values is None or field not in self:
                raise
            return values[self.position]

    def _is_stored(self, field: str) -> bool:
        samples: Any = self.samples
        return samples.values_of(field) is None

    def _where(self, field: str) -> tuple[str, int, str]:
        if self._is_stored(field):
            return super()._where(field)
        samples: Any = self.samples
        return samples.owner.path, 0, f"{self.key}.{field}"


def CopiedArrays(  # noqa: N802
    key: str, position: int, fields: dict[str, bytes], *state: Any
) -> CopiedSample:
    """Return a copied sample from its pickle, which has this name."""
    return CopiedSample(key, position, fields, ArrayCodec(*state))
