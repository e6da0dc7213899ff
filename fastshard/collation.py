"""Samples put together into batches: arrays stacked, text and bytes in lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fastshard._core.samples import first_of_other_width
from fastshard.decoders import DECODERS, decoder_for
from fastshard.errors import FastshardError
from fastshard.formats.base import Sample
from fastshard.gathering import UnequalError, stacked

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

__all__ = ["Collation", "Padding", "collate"]

Padding = Literal["list", "pad", "error"]

KEYS, LENGTHS = "__key__", "__lengths__"
DECODED = {decoder for name, decoder in DECODERS.items() if name in ("txt", "json")}
DECODED |= {DECODERS["cls"], DECODERS["npz"]}


def collate(
    samples: Sequence[Any],
    *,
    ragged: Padding = "list",
    out: dict[str, Any] | None = None,
) -> Any:
    """Put samples together into a batch; serves as torch's ``collate_fn`` too.

    Parameters
    ----------
    samples : sequence
        Raw samples, decoded ones (dicts), or values.
    ragged : {"list", "pad", "error"}
        What of arrays of different shapes: a list of them; one array, of the
        largest length along each axis, filled up with zeros; or an error.
    out : dict, optional
        Arrays by field, ``[at least samples, *shape]``: stacks are put into them
        and are views of them. One that is missing is made and put in here, so that
        the next batch reuses it.

    Returns
    -------
    dict, or what stands for the values
        Of samples: ``"__key__"``, a list of str, and the fields. Stacked are the
        arrays of npy fields (straight from the shards) and numbers (cls), to
        ``[samples, *shape]``; lists are made of txt, of parsed json and of the bytes
        of all other fields. npz gives a dict of what is stacked. Of dicts: a dict;
        of tuples: a tuple; of what cannot be stacked: a list. With ``"pad"`` there
        is ``"__lengths__"``: by padded field the true shapes, int64 [samples, axes].

    Raises
    ------
    FastshardError
        Samples with different fields, or ragged ones with ``"error"``.
    ValueError
        No samples, or an array in `out` that does not fit.
    """
    return Collation(ragged, out)(samples)


class Collation:
    """A ``collate_fn`` with options; see `collate`."""

    def __init__(
        self, ragged: Padding = "list", out: dict[str, Any] | None = None
    ) -> None:
        if ragged not in ("list", "pad", "error"):
            raise ValueError(f'ragged is "list", "pad" or "error", not {ragged!r}')
        self.ragged = ragged
        self.out = out

    def __call__(self, samples: Sequence[Any]) -> Any:
        samples = list(samples)
        if not samples:
            raise ValueError("a batch of no samples")
        lengths: dict[str, NDArray[Any]] = {}
        if set(map(type, samples)) == {Sample}:
            batch: Any = self._raw(samples, lengths)
        elif all(isinstance(sample, Sample) for sample in samples):  # some were copied
            decoded = [_decoded(sample) for sample in samples]
            batch = self._mapped(decoded, lengths)
        elif all(isinstance(sample, Mapping) for sample in samples):
            batch = self._mapped(samples, lengths)
        else:
            return self._values(samples, "", lengths)
        if lengths:
            batch[LENGTHS] = lengths
        return batch

    def empty(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return memory for a stack."""
        import numpy as np

        return np.empty(shape, dtype)

    def finished(self, field: str, stack: NDArray[Any]) -> Any:
        """Return what stands for a stack in the batch."""
        return stack

    def listed(self, arrays: list[NDArray[Any]]) -> list[Any]:
        """Return what stands for ragged arrays in the batch."""
        return arrays

    def _raw(
        self, samples: list[Sample], lengths: dict[str, NDArray[Any]]
    ) -> dict[str, Any]:
        """Collate samples of shards."""
        first = samples[0]
        fields = first.keys()
        odd = first_of_other_width(samples)
        if odd >= 0:
            raise _of_other_fields(first.key, fields, samples[odd].key, samples[odd])
        batch: dict[str, Any] = {KEYS: [sample.key for sample in samples]}
        for field in fields:
            decoder = decoder_for(field, first.decoders)
            if decoder is DECODERS["npy"]:
                batch[field] = self._arrays(samples, field, lengths)
            else:
                values = [_value(sample, field) for sample in samples]
                nested = decoder is DECODERS["npz"]
                batch[field] = (
                    self._mapped(values, lengths, f"{field}/")
                    if nested
                    else self._values(values, field, lengths)
                )
        return batch

    def _arrays(
        self, samples: list[Sample], field: str, lengths: dict[str, NDArray[Any]]
    ) -> Any:
        """Stack a field straight from the shards."""

        def place(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
            memory: NDArray[Any] = self._place(field, shape, dtype)
            return memory

        try:
            return self.finished(field, stacked(samples, field, place))
        except UnequalError:
            arrays = [sample.array(field) for sample in samples]
            return self._values(arrays, field, lengths)

    def _mapped(
        self,
        samples: Sequence[Mapping[str, Any]],
        lengths: dict[str, NDArray[Any]],
        where: str = "",
    ) -> dict[str, Any]:
        """Collate dicts, which have to have the same keys."""
        first = samples[0]
        for sample in samples:
            if sample.keys() != first.keys():
                names = [s.get(KEYS, "?") for s in (first, sample)]
                raise _of_other_fields(names[0], first, names[1], sample)
        return {
            name: self._values(
                [sample[name] for sample in samples], where + name, lengths
            )
            for name in first
        }

    def _values(
        self, values: list[Any], field: str, lengths: dict[str, NDArray[Any]]
    ) -> Any:
        """Collate one field's values, or whatever a dataset was mapped to."""
        import numpy as np

        first = values[0]
        kinds = set(map(type, values))
        if all(isinstance(value, np.ndarray | np.generic) for value in values):
            return self._stack([np.asarray(value) for value in values], field, lengths)
        if kinds <= {bool, int, float}:
            numbers = np.array(values)
            if numbers.dtype.kind != "O":  # whole numbers beyond 64 bits
                return self._stack([*numbers], field, lengths)
        elif kinds == {memoryview}:
            return [bytes(value) for value in values]
        elif issubclass(type(first), tuple) and len(kinds) == 1:
            if len({len(value) for value in values}) == 1:
                columns = zip(*values, strict=True)
                parts = [
                    self._values(list(column), f"{field}[{k}]", lengths)
                    for k, column in enumerate(columns)
                ]
                return (
                    type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
                )
        elif hasattr(first, "__torch_function__") and len(kinds) == 1:
            import torch

            if len({tuple(value.shape) for value in values}) == 1:
                return torch.stack(values)
        return values

    def _stack(
        self, arrays: list[Any], field: str, lengths: dict[str, NDArray[Any]]
    ) -> Any:
        """Stack arrays, or do with ragged ones what is wanted."""
        import numpy as np

        first = arrays[0]
        shapes = {array.shape for array in arrays}
        alike = len({array.dtype for array in arrays}) == 1
        if alike and len(shapes) == 1:
            stack = self._place(field, (len(arrays), *first.shape), first.dtype)
            np.stack(arrays, out=stack)
            return self.finished(field, stack)
        if self.ragged == "list":
            return self.listed(arrays)
        fillable = alike and len({len(shape) for shape in shapes}) == 1
        if self.ragged == "error" or not fillable:
            found = sorted({f"{array.dtype} {array.shape}" for array in arrays})
            raise FastshardError(
                f"field {field!r} is not the same in all samples: "
                f"{', '.join(found[:4])}"
            )
        true = np.array([array.shape for array in arrays], np.int64)
        stack = self._place(field, (len(arrays), *true.max(0).tolist()), first.dtype)
        stack[...] = np.zeros((), first.dtype)
        for row, array in zip(stack, arrays, strict=True):
            row[tuple(map(slice, array.shape))] = array
        lengths[field] = true
        return self.finished(field, stack)

    def _place(self, field: str, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """Return memory for a stack, the caller's where there is some."""
        if self.out is None:
            return self.empty(shape, dtype)
        found = self.out.get(field)
        if found is None:
            found = self.out[field] = self.empty(shape, dtype)
        if (
            found.dtype != dtype
            or found.shape[1:] != shape[1:]
            or len(found) < shape[0]
        ):
            raise ValueError(
                f"out[{field!r}] is {found.dtype} {found.shape}, and the stack "
                f"{dtype} {shape}"
            )
        return found[: shape[0]]


def _value(sample: Sample, field: str) -> Any:
    """Return what stands for a field in a list: decoded where that is cheap."""
    decoder = decoder_for(field, sample.decoders)
    built_in = decoder is None or any(decoder is one for one in DECODERS.values())
    if built_in and decoder not in DECODED and decoder is not DECODERS["npy"]:
        return bytes(sample[field])
    return sample._value(field)


def _decoded(sample: Sample) -> dict[str, Any]:
    return {KEYS: sample.key} | {field: _value(sample, field) for field in sample}


def _of_other_fields(
    first: object, fields: Iterable[str], other: object, others: Iterable[str]
) -> FastshardError:
    return FastshardError(
        f"sample {other!r} has the fields {', '.join(others)}, and sample {first!r} "
        f"{', '.join(fields)}: select those that all have, "
        f'ds.select_fields(..., missing="skip")'
    )
