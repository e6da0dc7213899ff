"""Codecs of formats: decoders, layouts and copies of the fields of their samples."""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from fastshard._core.dataset.shard import describe_item
from fastshard.errors import InfoNotFoundError
from fastshard.formats.decoders import (
    DECODERS,
    Decoder,
    decode_text,
    decoder_for,
    kind_of,
)
from fastshard.formats.layout import NPY, VALUE, Allocate, FieldLayout

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

__all__ = ["FieldCodec", "Info", "Infos"]

MAX_LISTED = 8  # columns that an error lists


class FieldCodec:
    """Kinds, decoders, layouts and copies of a format's fields; base: those of tars.

    A format has one codec, or one a schema; a copied sample may have one of its own.
    The user's decoders go first: `Sample.decoder_of`.

    Attributes
    ----------
    lists_unstacked : bool
        Whether `decode_columns` reads the arrays that `stack_fields` has not stacked.
    text_decoder : callable
        Decoder of the text of fields.
    decode_row : callable or None
        ``decode_row(sample, fields)`` is the result of `decode` of a copied sample;
        None: the fields are decoded one by one.
    key_is_field : bool
        Whether the field ``"__key__"`` is the sample's key.
    names : list of str or None
        Fields of a copied sample; None: those that have stored bytes.
    values : Mapping of str to object
        Values of the fields of a copied sample that have no stored bytes.
    """

    __slots__ = ()

    lists_unstacked = False
    text_decoder: Decoder = staticmethod(decode_text)
    decode_row: Callable[[Any, tuple[str, ...]], dict[str, Any]] | None = None
    key_is_field = False
    names: list[str] | None = None
    values: Mapping[str, Any] = {}

    def kind(self, field: str) -> str:
        """Return the kind of a field, see `FieldInfo`, without a sample that has it."""
        return kind_of(field)

    def decoder(self, sample: Any, field: str) -> Decoder | None:
        """Return the format's decoder of a field, with its ``kind``; None: bytes."""
        return decoder_for(field)

    def decode(self, sample: Any, field: str) -> Any:
        """Return the value of a field by the format's decoder."""
        decoder = self.decoder(sample, field)
        if decoder is None:
            return sample[field]
        return sample._decode_with(decoder, field)

    def layout(self, sample: Any, field: str) -> FieldLayout:
        """Return the memory layout of a field, without decoding it."""
        return NPY if sample.decoder_of(field) is DECODERS["npy"] else VALUE

    def infos(self, sample: Any) -> Mapping[str, dict[str, Any]]:
        """Return the index metadata of each field, parsed on access."""
        name = describe_item(sample)[0]
        if sample.samples is None:
            return Infos(name, {}, "the copy", "samples of the dataset have them")
        shard, members = self.info_members(sample)
        return Infos(
            name,
            {field: partial(shard.info, member) for field, member in members.items()},
            f"the index of {shard.path}",
            "it has the columns of the .json index it was made from, and checksums "
            "after `fastshard index --hash`",
        )

    def info_members(self, sample: Any) -> tuple[Any, dict[str, int]]:
        """Return the tar shard of a sample, and the fields' members in its index."""
        return sample.shard, {field: sample.member(field) for field in sample}

    def stack_fields(
        self, samples: list[Any], fields: tuple[str, ...], allocate: Allocate
    ) -> dict[str, NDArray[Any]]:
        """Return fields of samples of one type that the format reads together.

        As `fastshard.dataset.shardset.ShardSet.stack_columns`, from samples.
        """
        return {}

    def decode_columns(
        self, samples: list[Any], fields: tuple[str, ...]
    ) -> dict[str, list[Any]]:
        """Return values of fields that the format decodes by rows, by name."""
        return {}

    def reduce(self, sample: Any) -> tuple[Any, ...] | None:
        """Return function and arguments of a pickle; None: a plain `CopiedSample`."""
        return None

    def copied_item(self, sample: Any, field: str) -> Any:
        """Return ``sample[field]`` of a copied sample."""
        return sample.view(field)

    def copied_array(
        self,
        sample: Any,
        field: str,
        dtype: DTypeLike | None,
        shape: int | tuple[int, ...] | None,
    ) -> NDArray[Any]:
        """Return ``sample.array(field, dtype, shape)`` of a copied sample."""
        from fastshard._core.dataset.npy import array_from_bytes

        name = f"{sample.key}.{field}"
        return array_from_bytes(sample.view(field).obj, dtype, shape, name)


class Infos(collections.abc.Mapping[str, "Info"]):
    """Index metadata of a sample's fields, parsed on access."""

    def __init__(
        self,
        sample: str,
        readers: dict[str, Callable[[], dict[str, Any]]],
        where: str,
        how: str,
    ) -> None:
        self._sample = sample
        self._readers = readers
        self._where = where
        self._how = how

    def __getitem__(self, field: str) -> Info:
        read = self._readers.get(field)
        if read is None:
            raise self.missing_error(field)
        return Info(read(), lambda name: self.missing_error(name, field))

    def __contains__(self, field: object) -> bool:
        return field in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def missing_error(self, name: str, field: str | None = None) -> InfoNotFoundError:
        """Return the error for a missing column or field."""
        columns_of = {each: list(read()) for each, read in self._readers.items()}
        holder = next((each for each in columns_of if name in columns_of[each]), None)
        if holder is not None:
            hint = f"field {holder!r} has it: info[{holder!r}][{name!r}]"
            return InfoNotFoundError(name, f"the infos of {self._sample}; {hint}")
        columns = columns_of.get(field or "") or [
            column for columns in columns_of.values() for column in columns
        ]
        known = f"which has {_join(columns)}" if columns else "which has no columns"
        hint = f"{self._where} for {self._sample}, {known}; {self._how}"
        return InfoNotFoundError(name, hint)


class Info(dict[str, Any]):
    """Index metadata of one field; the error for a missing column lists the others."""

    def __init__(
        self, found: dict[str, Any], missing: Callable[[str], InfoNotFoundError]
    ) -> None:
        super().__init__(found)
        self._missing = missing

    def __missing__(self, name: str) -> Any:
        raise self._missing(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _join(names: Iterable[str]) -> str:
    """Return the first few names, for an error."""
    unique = list(dict.fromkeys(names))
    shown = ", ".join(map(repr, unique[:MAX_LISTED]))
    return shown + (", ..." if len(unique) > MAX_LISTED else "")
