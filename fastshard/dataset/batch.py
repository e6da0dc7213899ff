"""Batches: gathering and collation of samples' fields."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from fastshard._core.dataset.gather import gather, resolve_positions
from fastshard._core.dataset.shard import find_members, find_odd_width
from fastshard.errors import FastshardError, RaggedError
from fastshard.formats.decoders import (
    DECODERS,
    Decoder,
    NpzDecoder,
    decode_integer,
    decoder_for,
)
from fastshard.formats.layout import NPY, VALUE, FieldLayout
from fastshard.formats.sample import CopiedSample, Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike, NDArray

    from fastshard._core.dataset.shard import Shard
    from fastshard.formats.sample import Sample

__all__ = [
    "Collation",
    "Padding",
    "Ragged",
    "UnequalError",
    "as_array",
    "collate",
    "gather_samples",
    "is_image",
    "parse_field_types",
    "read_column",
    "stacked",
]


Ragged = Literal["error", "list"]
FieldTypes = dict[str, tuple[Any, Any]]
Place = Callable[[tuple[int, ...], Any], "NDArray[Any]"]
RAW = FieldLayout("raw", "u1")


def gather_samples(
    samples: Sequence[Sample],
    out: Any,
    fields: Sequence[str] | None,
    threads: int | None,
) -> NDArray[np.int64]:
    """Copy fields of samples into a buffer; see `Dataset.read_into`."""
    shards: list[Shard] = []
    members: list[int] = []
    for sample in samples:
        for field in sample.keys() if fields is None else fields:
            shard, member = sample.place(field)
            shards.append(shard)
            members.append(member)
    most = 1 << 62  # whatever a shard has, `gather` says
    return gather(shards, resolve_positions(members, most), out, threads=threads)


def parse_field_types(
    fields: str | Iterable[str] | Mapping[str, DTypeLike | tuple[DTypeLike, Any]],
) -> FieldTypes:
    """Return the dtype and shape of raw values by field; None and None: not told."""
    if isinstance(fields, str):
        fields = (fields,)
    if not isinstance(fields, Mapping):
        return dict.fromkeys(fields, (None, None))
    types: FieldTypes = {}
    for field, told in fields.items():
        if isinstance(told, tuple) and len(told) == 2:
            types[field] = told
        else:
            types[field] = (told, None)
    return types


class UnequalError(Exception):
    """A field has not the same dtype and shape in all samples."""

    def __init__(self, place: int, first: str, found: str) -> None:
        super().__init__(place, first, found)
        self.place = place
        self.first = first
        self.found = found


def stacked(
    samples: list[Sample],
    field: str,
    layout: FieldLayout,
    place: Place | None = None,
    threads: int | None = None,
) -> NDArray[Any]:
    """Return one field of samples as one array.

    Parameters
    ----------
    layout : FieldLayout
        Of the field; no ``"value"``.
    place : callable, optional
        ``place(shape, dtype)`` returns the array to put it into.
    threads : int, optional
        As for `Shard.read_into`.

    Raises
    ------
    UnequalError
        It has not the same dtype and shape in all samples.
    """
    import numpy as np

    from fastshard._core.dataset.npy import read_layouts

    if layout.kind == "array":
        return _stacked_arrays([sample.array(field) for sample in samples], place)
    shards, members = find_members(samples, field)
    if not shards:
        return np.empty((0,), layout.dtype)
    kind, lengths, fortran, skips, odd = read_layouts(
        shards, members, layout.dtype, layout.shape
    )
    if odd is not None:
        raise UnequalError(odd[0], f"{kind} {lengths}", odd[1])
    given = None if place is None else place((len(members), *lengths), kind)
    direct = given is not None and given.flags.c_contiguous and not fortran
    order = lengths[::-1] if fortran else lengths
    stack = given if direct else np.empty((len(members), *order), kind)
    assert stack is not None
    if stack.nbytes:
        rows = stack.reshape(len(members), -1).view("u1")
        gather(shards, members, rows, skips=skips, threads=threads)
    if fortran:
        stack = stack.transpose(0, *range(stack.ndim - 1, 0, -1))
    if given is None or direct:
        return stack
    given[...] = stack
    return given


def _stacked_arrays(arrays: list[NDArray[Any]], place: Place | None) -> NDArray[Any]:
    """Stack arrays that a format made one by one."""
    import numpy as np

    first = f"{arrays[0].dtype} {arrays[0].shape}" if arrays else ""
    for i, array in enumerate(arrays):
        found = f"{array.dtype} {array.shape}"
        if found != first:
            raise UnequalError(i, first, found)
    if place is None or not arrays:
        return np.stack(arrays) if arrays else np.empty((0,))
    given = place((len(arrays), *arrays[0].shape), arrays[0].dtype)
    return np.stack(arrays, out=given)


Padding = Literal["list", "pad", "error"]

Lengths = dict[str, Any]  # by field int64 [samples, axes]
KEYS, LENGTHS = "__key__", "__lengths__"
DECODED = {DECODERS[name] for name in ("txt", "json", "cls", "npy", "npz")}


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
        the next batch reuses it. One that is too small for what is padded is
        replaced.

    Returns
    -------
    dict, or what stands for the values
        Of samples: ``"__key__"``, a list of str, and the fields. Stacked are the
        arrays of npy fields (straight from the shards) and numbers (cls), to
        ``[samples, *shape]``; lists are made of txt, of parsed json and of the bytes
        of all other fields. npz gives a dict of what is stacked. Of dicts: a dict;
        of tuples: a tuple; of what cannot be stacked: a list. Pillow images, as
        ``ds.decode("jpg")`` gives them, are arrays of uint8, ``[height, width,
        channels]``, those of palettes in RGB or RGBA. With ``"pad"`` a dict
        has ``"__lengths__"``: by field of arrays their true shapes, int64 [samples,
        axes].

    Raises
    ------
    RaggedError
        Ragged samples with ``"error"``.
    FastshardError
        Samples with different fields, or with one that is called ``"__key__"``.
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
        return self._batch(samples, "")

    def check(self, sample: Any) -> None:
        """Read what a batch would have of a sample; raise what is wrong with it."""
        if isinstance(sample, tuple):
            for part in sample:
                self.check(part)
        if not isinstance(sample, Sample):
            return
        for field in sample:
            if sample.layout_of(field) == VALUE:
                _value(sample, field)
            else:
                sample.array(field)

    def _batch(self, samples: list[Any], where: str) -> Any:
        """Collate samples, or values; `where` tells them from others of the batch."""
        lengths: Lengths = {}
        kinds = set(map(type, samples))
        if (
            len(kinds) == 1
            and issubclass(type(samples[0]), Sample)
            and (not issubclass(type(samples[0]), CopiedSample))
        ):
            batch = self._raw(samples, where, lengths)
        elif all(isinstance(sample, Sample) for sample in samples):  # some were copied
            decoded = [_decoded(sample) for sample in samples]
            batch = self._mapped(decoded, where, lengths)
        elif all(isinstance(sample, Mapping) for sample in samples):
            batch = self._mapped(samples, where, lengths)
        else:
            return self._values(samples, where, None)
        if self.ragged == "pad":
            batch[LENGTHS] = lengths
        return batch

    def empty(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return memory for a stack."""
        import numpy as np

        return np.empty(shape, dtype)

    def finished(self, stack: NDArray[Any]) -> Any:
        """Return what stands for a stack in the batch."""
        return stack

    def listed(self, arrays: list[NDArray[Any]]) -> list[Any]:
        """Return what stands for ragged arrays in the batch."""
        return arrays

    def _raw(
        self, samples: list[Sample], where: str, lengths: Lengths
    ) -> dict[str, Any]:
        """Collate samples of shards."""
        first = samples[0]
        fields = first.keys()
        odd = find_odd_width(samples)
        if odd >= 0:
            raise _of_other_fields(first.key, fields, samples[odd].key, samples[odd])
        if KEYS in fields:
            raise FastshardError(f"a field is called {KEYS!r}, as the keys are")
        batch: dict[str, Any] = {KEYS: [sample.key for sample in samples]}
        for field in fields:
            layout = first.layout_of(field)
            if layout != VALUE:
                batch[field] = self._arrays(samples, field, layout, where, lengths)
                continue
            values = [_value(sample, field) for sample in samples]
            if isinstance(first.decoder_of(field), NpzDecoder):
                batch[field] = self._batch(values, f"{where}{field}/")
            else:
                batch[field] = self._values(values, where + field, lengths)
        return batch

    def _arrays(
        self,
        samples: list[Sample],
        field: str,
        layout: FieldLayout,
        where: str,
        lengths: Lengths,
    ) -> Any:
        """Stack a field straight from the shards."""
        place = partial(self._place, where + field)
        try:
            stack = stacked(samples, field, layout, place)
        except UnequalError:
            arrays = [sample.array(field) for sample in samples]
            return self._values(arrays, where + field, lengths)
        if self.ragged == "pad":
            self._note(where + field, [stack.shape[1:]] * len(stack), lengths)
        return self.finished(stack)

    def _mapped(
        self,
        samples: Sequence[Mapping[str, Any]],
        where: str,
        lengths: Lengths,
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

    def _values(self, values: list[Any], field: str, lengths: Lengths | None) -> Any:
        """Collate one field's values, or whatever a dataset was mapped to.

        Parameters
        ----------
        lengths : dict or None
            Gets the true shapes of what is padded; None: they cannot be told.
        """
        import numpy as np

        if any(map(is_image, values)):
            values = [as_array(value) if is_image(value) else value for value in values]
        first = values[0]
        kinds = set(map(type, values))
        if all(isinstance(value, np.ndarray | np.generic) for value in values):
            return self._stack([np.asarray(value) for value in values], field, lengths)
        if kinds <= {int, float} or kinds == {bool}:
            numbers = np.array(values)
            if _are_exact(numbers, values):
                stack = self._place(field, numbers.shape, numbers.dtype)
                stack[...] = numbers
                return self.finished(stack)
        elif kinds == {memoryview}:
            return [bytes(value) for value in values]
        elif issubclass(type(first), tuple) and len(kinds) == 1:
            if len({len(value) for value in values}) == 1:
                columns = zip(*values, strict=True)
                parts = [
                    self._batch(list(column), f"{field}[{k}]")
                    for k, column in enumerate(columns)
                ]
                named = hasattr(first, "_fields")
                return type(first)(*parts) if named else tuple(parts)
        elif hasattr(first, "__torch_function__") and len(kinds) == 1:
            import torch  # type: ignore[import-not-found, unused-ignore]

            if len({tuple(value.shape) for value in values}) == 1:
                return torch.stack(values)
        return values

    def _stack(self, arrays: list[Any], field: str, lengths: Lengths | None) -> Any:
        """Stack arrays, or do with ragged ones what is wanted."""
        import numpy as np

        first = arrays[0]
        shapes = {array.shape for array in arrays}
        alike = len({array.dtype for array in arrays}) == 1
        if alike and len(shapes) == 1:
            stack = self._place(field, (len(arrays), *first.shape), first.dtype)
            np.stack(arrays, out=stack)
            if self.ragged == "pad" and lengths is not None:
                self._note(field, [first.shape] * len(arrays), lengths)
            return self.finished(stack)
        if self.ragged == "list":
            return self.listed(arrays)
        fillable = alike and len({len(shape) for shape in shapes}) == 1
        if self.ragged == "error" or not fillable:
            found = sorted({f"{array.dtype} {array.shape}" for array in arrays})
            raise RaggedError(
                f"field {field!r} is not the same in all samples: "
                f"{', '.join(found[:4])}; make them alike in map (resize images)"
            )
        if lengths is None:
            raise FastshardError("only named fields are padded: map samples to dicts")
        true = self._note(field, [array.shape for array in arrays], lengths)
        stack = self._place(field, (len(arrays), *true.max(0).tolist()), first.dtype)
        stack[...] = np.zeros((), first.dtype)
        for row, array in zip(stack, arrays, strict=True):
            row[tuple(map(slice, array.shape))] = array
        return self.finished(stack)

    def _note(
        self, field: str, shapes: list[tuple[int, ...]], lengths: Lengths
    ) -> NDArray[Any]:
        """Note the true shapes of a field; returns them."""
        import numpy as np

        true = np.array(shapes, np.int64).reshape(len(shapes), -1)
        if true.shape[1]:  # numbers have no axes
            lengths[field.rpartition("/")[2]] = true
        return true

    def _place(self, field: str, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """Return memory for a stack, the caller's where there is some."""
        if self.out is None:
            return self.empty(shape, dtype)
        found = self.out.get(field)
        if found is None:
            found = self.out[field] = self.empty(shape, dtype)
        if self.ragged == "pad" and found.ndim == len(shape):
            return self._widened(field, found, shape, dtype)
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

    def _widened(
        self, field: str, found: NDArray[Any], shape: tuple[int, ...], dtype: Any
    ) -> Any:
        """Return a part of an array for what is padded; of a larger one if need be."""
        if found.dtype != dtype or any(map(int.__gt__, shape, found.shape)):
            room = tuple(map(max, shape, found.shape))
            assert self.out is not None
            found = self.out[field] = self.empty(room, dtype)
        return found[tuple(map(slice, shape))]


def read_column(
    samples: list[Sample],
    field: str,
    told: tuple[Any, Any],
    ragged: Ragged,
    threads: int | None,
    decoders: Mapping[str, Decoder] | None = None,
) -> Any:
    """Return one field of samples as one array; see `Dataset.columns`.

    By the field's decoder, as in a batch: what npy fields hold, and the numbers of cls
    and the like; what decoders of the caller's own give. Raw bytes otherwise, and
    where a dtype was told.
    """
    dtype, shape = told
    if dtype is None:
        decoder = samples[0].decoder_of(field) if samples else None
        if decoder is None:
            decoder = decoder_for(field, decoders)
        own = decoder is not None and all(decoder is not d for d in DECODERS.values())
        if decoder is decode_integer or own:
            return _decoded_column(samples, field, ragged, own)
        layout = NPY if decoder is DECODERS["npy"] else RAW
        if samples and samples[0].layout_of(field) != VALUE:
            layout = samples[0].layout_of(field)
    else:
        layout = FieldLayout("raw", dtype, shape)
    try:
        return stacked(samples, field, layout, None, threads)
    except UnequalError as error:
        if ragged == "list":
            return [
                sample.array(field, layout.dtype, layout.shape) for sample in samples
            ]
        raise RaggedError(
            f"field {field!r} of sample {samples[error.place].key!r} is "
            f"{error.found}, and of sample {samples[0].key!r} {error.first}; "
            'ragged="list" gives a list of arrays'
        ) from None


def _decoded_column(
    samples: list[Sample], field: str, ragged: Ragged, own: bool
) -> Any:
    """Decode one field of samples; stack what can be stacked, as a batch does."""
    import numpy as np

    if not samples:
        return np.empty(0, object if own else np.int64)
    values = [sample._value(field) for sample in samples]
    values = [as_array(value) if is_image(value) else value for value in values]
    if ragged == "error" and isinstance(values[0], np.ndarray):
        first = f"{values[0].dtype} {values[0].shape}"
        for sample, value in zip(samples, values, strict=True):
            array = np.asarray(value)
            if f"{array.dtype} {array.shape}" != first:
                raise RaggedError(
                    f"field {field!r} of sample {sample.key!r} is {array.dtype} "
                    f"{array.shape}, and of sample {samples[0].key!r} {first}; "
                    'ragged="list" gives a list of arrays'
                )
    return Collation("list")._values(values, field, None)


def is_image(value: object) -> bool:
    """Say whether a value is one of Pillow's images, without importing Pillow."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def as_array(image: Any) -> NDArray[Any]:
    """Return an image as an array ``[height, width, channels]`` of its own.

    Grey ones have two axes; the colours of a palette are looked up.
    """
    import numpy as np

    if image.mode in ("P", "PA"):
        clear = image.mode == "PA" or "transparency" in image.info
        image = image.convert("RGBA" if clear else "RGB")
    return np.array(image)


def _are_exact(numbers: NDArray[Any], values: list[Any]) -> bool:
    """Say whether an array has the very numbers that it was made of."""
    if numbers.dtype.kind in "iub":
        return True
    return numbers.dtype.kind == "f" and all(
        isinstance(value, float) or int(number) == value
        for number, value in zip(numbers, values, strict=True)
    )


def _value(sample: Sample, field: str) -> Any:
    """Return what stands for a field in a list: decoded where that is cheap."""
    decoder = sample.decoder_of(field)
    built_in = decoder is None or any(decoder is one for one in DECODERS.values())
    if built_in and decoder not in DECODED:
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
