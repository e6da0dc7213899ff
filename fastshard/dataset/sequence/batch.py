"""Batches: fields of samples gathered into arrays, and collated into dicts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, cast, overload

from fastshard._core.dataset.gather import gather, resolve_positions
from fastshard._core.dataset.shard import add_notes, find_members, find_odd_width
from fastshard._util.writing.dtypes import suggest_plain
from fastshard.dataset.fields.alternatives import lacking
from fastshard.dataset.fields.wrapped import WrappedSample
from fastshard.dataset.sequence.images import ImageSample, common_shape
from fastshard.errors import FastshardError, FormatError
from fastshard.formats.decoders import (
    DECODERS,
    Decoder,
    NpzDecoder,
    decode_integer,
    decoder_for,
)
from fastshard.formats.layout import NPY, VALUE, FieldLayout
from fastshard.formats.sample import CopiedSample, Sample
from fastshard.formats.stacking.fill_values import refuse_fill
from fastshard.formats.stacking.padding import LENGTHS, Padding, Ragged

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike, NDArray

    from fastshard._core.dataset.shard import Shard
    from fastshard.loader.buffers import BufferSet

__all__ = [
    "KEYS",
    "STACKING",
    "Collation",
    "UnusableArrayError",
    "collate",
    "gather_samples",
    "image_array",
    "is_image",
    "parse_field_types",
    "read_column",
    "stack_field",
    "wrap_field",
]

FieldTypes = dict[str, tuple[Any, Any]]  # field: dtype and shape
Lengths = dict[str, Any]  # field: true shapes, int64 [samples, axes]
Allocator = Callable[[tuple[int, ...], Any], "NDArray[Any]"]

RAW = FieldLayout("raw", "u1")
KEYS = "__key__"
DECODED = {DECODERS[name] for name in ("txt", "json", "cls", "npy", "npz")}
MAX_POSITION = 1 << 62  # no limit here: `gather` checks positions against each shard
HAVE_FIELDS = Sample, Mapping
NOT_COMPILED = CopiedSample, WrappedSample  # samples without members of their own


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
    return gather(
        shards, resolve_positions(members, MAX_POSITION), out, threads=threads
    )


def parse_field_types(
    fields: str | Iterable[str] | Mapping[str, DTypeLike | tuple[DTypeLike, Any]],
) -> FieldTypes:
    """Return the dtype and shape of raw values by field, each None if not given."""
    if isinstance(fields, str):
        fields = (fields,)
    if not isinstance(fields, Mapping):
        return dict.fromkeys(fields, (None, None))
    types: FieldTypes = {}
    for field, given in fields.items():
        is_pair = isinstance(given, tuple) and len(given) == 2
        types[field] = given if is_pair else (given, None)  # type: ignore[assignment]
    return types


class UnusableArrayError(FastshardError):
    """A library has no dtype for the arrays of a field."""

    @classmethod
    def of(cls, library: str, array: NDArray[Any], error: Exception) -> Self:
        """Return the error of an array, with a dtype that the library supports."""
        dtype = array.dtype
        is_plain = dtype.isbuiltin == 1 and dtype.kind in "biufc"
        convert = f"convert it in map(), to {suggest_plain(dtype)}"
        way = str(error) if is_plain else convert
        return cls(f"{library} cannot use an array of {dtype} {array.shape}: {way}")


def wrap_field(wrap: Callable[[Any], Any], value: Any, field: str) -> Any:
    """Return a field's value for another library; an error names the field."""
    try:
        return wrap(value)
    except UnusableArrayError as error:
        error.add_note(f"field {field!r}")
        raise


def stack_field(
    samples: list[Sample],
    field: str,
    layout: FieldLayout,
    allocate: Allocator | None = None,
    threads: int | None = None,
) -> NDArray[Any] | None:
    """Return one field of samples as one array; None: their arrays differ."""
    import numpy as np

    from fastshard._core.dataset.npy import read_layouts

    shards, members = _find_members(samples, field)
    if not shards:
        return np.empty((0,), layout.dtype)
    dtype, shape, fortran, skips, odd = read_layouts(
        shards, members, layout.dtype, layout.shape, layout.kind == "array"
    )
    if odd is not None:
        return None
    out = None if allocate is None else allocate((len(members), *shape), dtype)
    is_direct = out is not None and out.flags.c_contiguous and not fortran
    stored = shape[::-1] if fortran else shape  # the axes in the order of the bytes
    stack = out if is_direct else np.empty((len(members), *stored), dtype)
    assert stack is not None
    if stack.nbytes:
        rows = stack.reshape(len(members), -1).view("u1")
        gather(shards, members, rows, skips=skips, threads=threads)
    if fortran:
        stack = stack.transpose(0, *range(stack.ndim - 1, 0, -1))
    if out is None or is_direct:
        return stack
    out[...] = stack
    return out


def _find_members(samples: list[Any], field: str) -> tuple[list[Shard], Any]:
    """Return the members that hold a field of samples, as `find_members`."""
    if not isinstance(next(iter(samples), None), WrappedSample):
        return find_members(samples, field)
    import numpy as np

    places = [sample.place(field) for sample in samples]
    members = np.array([member for _, member in places], np.int64)
    return [shard for shard, _ in places], members


@overload
def collate(
    samples: None = None,
    *,
    ragged: Ragged = "error",
    fill: Any = None,
    lengths: bool = True,
    out: dict[str, Any] | None = None,
    keys: bool = True,
) -> Collation: ...
@overload
def collate(
    samples: Sequence[Sample | Mapping[str, Any]],
    *,
    ragged: Ragged = "error",
    fill: Any = None,
    lengths: bool = True,
    out: dict[str, Any] | None = None,
    keys: bool = True,
) -> dict[str, Any]: ...
@overload
def collate(
    samples: Sequence[Any],
    *,
    ragged: Ragged = "error",
    fill: Any = None,
    lengths: bool = True,
    out: dict[str, Any] | None = None,
    keys: bool = True,
) -> Any: ...
def collate(
    samples: Sequence[Any] | None = None,
    *,
    ragged: Ragged = "error",
    fill: Any = None,
    lengths: bool = True,
    out: dict[str, Any] | None = None,
    keys: bool = True,
) -> Any:
    """Collate samples into a batch; also a ``collate_fn`` for torch.

    Parameters
    ----------
    samples : sequence, optional
        Raw samples, decoded ones (dicts), typed ones, or values. Without them the
        result is a function of samples, with the other options.
    ragged : {"error", "list", "pad"}, default "error"
        For a field whose arrays differ in shape: raise `RaggedError`; return a list of
        them; or pad them, at the end of each axis, to the largest length among the
        samples. Padding needs equal dtypes and numbers of axes.
    fill : scalar, or mapping of str to scalar, optional
        Value of the padding, for all fields or by field. The field's dtype must be able
        to hold it: an integer cannot be NaN. By default 0, False and empty text, and
        NaT for dates and times.
    lengths : bool, default True
        With ``"pad"``: add ``"__lengths__"`` to a dict, by field of arrays their true
        shapes, int64 [samples, axes], to mask the padding.
    out : dict, optional
        Arrays by field, ``[at least samples, *shape]``, that stacks are written to
        and are views of. A missing array is allocated and added, for the next batch
        to reuse. An array too small for padding is replaced, and one that was added
        for batches of another shape.
    keys : bool, default True
        False: batches are without ``"__key__"``, for trainers that pass all fields of
        a batch to a model.

    Returns
    -------
    dict, or the collated values
        Of samples: ``"__key__"``, a list of str, and the fields. Arrays of npy fields
        (straight from the shards) and numbers (cls) are stacked to ``[samples,
        *shape]``; txt, parsed json and the bytes of all other fields become lists.
        npz gives a dict of stacks. Of typed samples: the fields, arrays stacked, all
        other values in lists. Dicts give a dict, tuples a tuple, values that
        cannot be stacked a list. Pillow images, as of ``ds.decode("jpg")``, become
        uint8 arrays, ``[height, width, channels]``, palettes in RGB or RGBA.

    Raises
    ------
    RaggedError
        Arrays differ in shape, or cannot be padded (a `ValueError`).
    FieldNotFoundError
        `fill` names a field that the samples lack.
    FastshardError
        Samples have different fields, or a field named ``"__key__"``.
    ValueError
        There are no samples, an array in `out` does not fit, or a dtype cannot hold
        `fill`.

    Examples
    --------
    >>> import fastshard
    >>> ds = fastshard.open("data/")
    >>> batch = fastshard.collate([ds[7], ds[90]])
    >>> batch["__key__"], batch["cls"], batch["txt"]
    (['000007', '000090'], array([7, 0]), ['text 7', 'text 90'])
    >>> batch["npy"].shape, batch["json"]
    ((2, 4), [{'size': 4}, {'size': 4}])
    >>> fastshard.collate([(7, 0.5), (90, 1.5)])
    (array([ 7, 90]), array([0.5, 1.5]))
    >>> plain = fastshard.collate(keys=False)
    >>> list(next(ds.select_fields("npy", "cls").batches(8, collate=plain)))
    ['npy', 'cls']

    Arrays of different lengths:

    >>> import numpy as np
    >>> words = [{"word": np.arange(n)} for n in (2, 3)]
    >>> batch = fastshard.collate(words, ragged="pad", fill=-1)
    >>> batch["word"], batch["__lengths__"]["word"].tolist()
    (array([[ 0,  1, -1],
           [ 0,  1,  2]]), [[2], [3]])
    """
    collation = Collation(ragged, out, keys=keys, fill=fill, lengths=lengths)
    return collation if samples is None else collation(samples)


class Collation:
    """A ``collate_fn`` with options; see `collate`.

    Subclasses choose the memory and the type of stacks: `allocate`, `wrap_stack`,
    `wrap_ragged` and `wrap_tensors`.
    """

    buffers: BufferSet | None = None  # memory of stacks, in a loader
    # The fields that each sample needs, if `on_error` skips those that lack one.
    _required: Callable[[], frozenset[str] | None] | None = None
    _taken: set[str]  # fields of one batch that have memory of `buffers`

    def __init__(
        self,
        ragged: Ragged = "error",
        out: dict[str, Any] | None = None,
        *,
        keys: bool = True,
        fill: Any = None,
        lengths: bool = True,
    ) -> None:
        self.padding = Padding(ragged, fill, lengths).checked()
        self.out = out
        self.keys = keys
        self._added: dict[str, Any] = {}  # arrays in `out` that are not the caller's

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "padding" not in state:  # of a pickle from before `fill=`
            self.padding = Padding(self.__dict__.pop("ragged"))

    def on_buffers(self, buffers: BufferSet) -> Self:
        """Return a copy that takes the memory of stacks from a loader's buffers.

        Parameters
        ----------
        buffers : BufferSet
            Of one batch.

        Returns
        -------
        Collation
            Of the same type, without `out`.

        Examples
        --------
        >>> from fastshard.dataset.sequence.batch import Collation
        >>> from fastshard.loader.buffers import BufferPool, BufferSet
        >>> buffers = BufferSet(BufferPool(spare=2))
        >>> batch = Collation().on_buffers(buffers)([ds[7], ds[90]])
        >>> batch["npy"].base is buffers.take("npy", (2, 4), "f4").base
        True
        """
        copied = self._copy()
        copied.out = None
        copied.buffers = buffers
        copied._taken = set()
        return copied

    def _copy(self) -> Self:
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    def requiring(self, fields: Callable[[], frozenset[str] | None]) -> Self:
        """Return a copy that refuses samples without some fields.

        Parameters
        ----------
        fields : callable
            Returns their names, or None; called with the first batch.

        Returns
        -------
        Collation
            Of the same type.

        Examples
        --------
        >>> from fastshard.dataset.sequence.batch import Collation
        >>> collate = Collation().requiring(lambda: frozenset({"mp3"}))
        >>> try:
        ...     collate([ds[7]])
        ... except fastshard.FieldNotFoundError as error:
        ...     print(error.name)
        mp3
        """
        copied = self._copy()
        copied._required = fields
        return copied

    def _check_fields(self, sample: Any) -> None:
        """Raise FieldNotFoundError if a sample, or a decoded one, lacks a field."""
        required = None if self._required is None else self._required()
        if not required or not (is_typed(sample) or isinstance(sample, HAVE_FIELDS)):
            return
        fields = typed_fields(sample) if is_typed(sample) else list(sample)
        for field in sorted(required):
            if field not in fields:
                raise lacking(sample, (field,), fields)

    def __call__(self, samples: Sequence[Any]) -> Any:
        samples = list(samples)
        if not samples:
            raise ValueError("expected at least one sample, got none")
        self._check_fields(samples[0])  # the others have the same ones, or differ
        try:
            return self._collate(samples, "")
        except UnusableArrayError as error:
            add_notes(error, samples[0])
            raise

    def check(self, sample: Any) -> None:
        """Read and decode a sample as a batch would, to raise its errors.

        Parameters
        ----------
        sample : Sample, or tuple of them
            Other values are not checked.

        Raises
        ------
        FormatError, FieldNotFoundError, OSError
            The sample cannot be read or decoded.

        Examples
        --------
        >>> from fastshard.dataset.sequence.batch import Collation
        >>> Collation().check(sample)
        """
        if isinstance(sample, tuple):
            for part in sample:
                self.check(part)
        self._check_fields(sample)
        if not isinstance(sample, Sample):
            return
        for field in sample:
            if sample.layout_of(field) == VALUE:
                _list_item(sample, field)
            else:
                sample.array(field)
        if isinstance(sample, ImageSample):
            for field in sample.images:  # also of fields that it lacks
                sample.array(field)

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return memory for a stack."""
        import numpy as np

        return np.empty(shape, dtype)

    def wrap_stack(self, stack: NDArray[Any]) -> Any:
        """Return the batch's value for a stack."""
        return stack

    def wrap_ragged(self, arrays: list[NDArray[Any]]) -> list[Any]:
        """Return the batch's value for ragged arrays."""
        return arrays

    def wrap_tensors(self, tensors: list[Any]) -> Any:
        """Return the batch's value for tensors of torch: a stack, or the list."""
        import torch  # type: ignore[import-not-found, unused-ignore]

        is_ragged = len({tuple(tensor.shape) for tensor in tensors}) > 1
        return tensors if is_ragged else torch.stack(tensors)

    def _collate(self, samples: list[Any], prefix: str) -> Any:
        """Collate samples or values; `prefix` precedes the fields' names in `out`."""
        lengths: Lengths = {}
        kinds = set(map(type, samples))
        if kinds == {ImageSample}:
            batch = self._collate_images(samples, prefix, lengths)
        elif all(issubclass(kind, Sample) for kind in kinds):
            batch = self._collate_stored(samples, prefix, lengths)
        elif len(kinds) == 1 and is_typed(samples[0]):
            batch = self._collate_objects(samples, prefix, lengths)
        elif all(isinstance(sample, Mapping) for sample in samples):
            batch = self._collate_mappings(samples, prefix, lengths)
        else:
            return self.collate_values(samples, prefix, None)
        if not self.keys and not prefix.endswith("/"):  # not of the arrays of an npz
            batch.pop(KEYS, None)
        return self._add_lengths(batch, lengths, is_whole=not prefix)

    def _add_lengths(
        self, batch: dict[str, Any], lengths: Lengths, *, is_whole: bool = True
    ) -> dict[str, Any]:
        """Add the true shapes to a batch, or to a part of one."""
        if self.padding.ragged == "pad":
            if is_whole:
                parts = [value for value in batch.values() if isinstance(value, dict)]
                inner = set(chain.from_iterable(parts)) - {LENGTHS}
                self.padding.check_fields([*batch, *sorted(inner)])
            if self.padding.has_lengths:
                batch[LENGTHS] = lengths
        return batch

    def _collate_images(
        self, samples: list[ImageSample], prefix: str, lengths: Lengths
    ) -> dict[str, Any]:
        """Collate samples with images, which are decoded into the rows of a stack."""
        first = samples[0]
        images = tuple(first.images)
        for sample in samples:
            if tuple(sample.images) != images:
                raise _unequal_fields(first.key, images, sample.key, sample.images)
            for field in images:
                if field not in sample:
                    sample.view(field)  # raises
        stored = [sample.stored for sample in samples]
        batch = self._collate_stored(stored, prefix, lengths, frozenset(images))
        for field in images:
            batch[field] = self._stack_images(samples, field, prefix, lengths)
        return {name: batch[name] for name in (KEYS, *first.keys())}

    def _stack_images(
        self, samples: list[ImageSample], field: str, prefix: str, lengths: Lengths
    ) -> Any:
        """Decode a field into one stack; collate decoded images of several sizes."""
        shape = common_shape(samples, field)
        if shape is None:
            pictures = [sample[field] for sample in samples]
            if self.buffers is not None:  # some may be on memory of the field
                self.buffers.renew(prefix + field)
            return self.collate_values(
                pictures, prefix + field, lengths, _keys_of(samples)
            )
        stack = self._output(prefix + field, (len(samples), *shape), "u1")
        for sample, row in zip(samples, stack, strict=True):
            sample.read_into(field, row)
        return self._wrap(stack, prefix + field, lengths)

    def _collate_stored(
        self,
        samples: list[Any],
        prefix: str,
        lengths: Lengths,
        left_out: frozenset[str] = frozenset(),
    ) -> dict[str, Any]:
        """Collate raw samples without the fields that are left out."""
        kinds = set(map(type, samples))
        if len(kinds) == 1 and not isinstance(samples[0], NOT_COMPILED):
            return self._collate_samples(samples, prefix, lengths, left_out)
        dicts = [_decode_cheaply(sample, left_out) for sample in samples]
        return self._collate_mappings(dicts, prefix, lengths)

    def _collate_samples(
        self,
        samples: list[Sample],
        prefix: str,
        lengths: Lengths,
        left_out: frozenset[str],
    ) -> dict[str, Any]:
        """Collate raw samples of one type, straight from the shards."""
        first = samples[0]
        fields = first.keys()
        odd = find_odd_width(samples)
        if odd >= 0:
            raise _unequal_fields(first.key, fields, samples[odd].key, samples[odd])
        if KEYS in fields:
            raise FastshardError(
                f"a field is named {KEYS!r}, as the keys of a batch are: "
                "select the other fields, ds.select_fields(...)"
            )
        batch: dict[str, Any] = {KEYS: [sample.key for sample in samples]}
        if left_out:
            fields = [field for field in fields if field not in left_out]
        layouts = {field: first.layout_of(field) for field in fields}
        key_at = _keys_of(samples)
        arrays = tuple(field for field in fields if layouts[field] != VALUE)
        stacks = first.codec.stack_fields(
            samples, arrays, lambda field, *given: self._output(prefix + field, *given)
        )
        rest = tuple(
            field
            for field in fields
            if layouts[field] == VALUE
            or (first.codec.lists_unstacked and field not in stacks)
        )
        lists = first.codec.decode_columns(samples, rest)
        for field in fields:
            layout = layouts[field]
            if field in lists:
                values = load_images(lists[field], samples, field)
                batch[field] = self.collate_values(
                    values, prefix + field, lengths, key_at
                )
                continue
            if field in stacks:
                batch[field] = self._wrap(stacks[field], prefix + field, lengths)
                continue
            if layout != VALUE:
                batch[field] = self._collate_arrays(
                    samples, field, layout, prefix, lengths
                )
                continue
            values = [_list_item(sample, field) for sample in samples]
            if isinstance(first.decoder_of(field), NpzDecoder):
                batch[field] = self._collate(values, f"{prefix}{field}/")
            else:
                values = load_images(values, samples, field)
                batch[field] = self.collate_values(
                    values, prefix + field, lengths, key_at
                )
        return batch

    def _collate_arrays(
        self,
        samples: list[Sample],
        field: str,
        layout: FieldLayout,
        prefix: str,
        lengths: Lengths,
        threads: int | None = None,
    ) -> Any:
        """Collate a field of arrays, straight from the shards if they are equal."""
        allocate = partial(self._output, prefix + field)
        stack = stack_field(samples, field, layout, allocate, threads)
        if stack is not None:
            return self._wrap(stack, prefix + field, lengths)
        arrays = [sample.array(field, layout.dtype, layout.shape) for sample in samples]
        return self._join(arrays, prefix + field, lengths, _keys_of(samples))

    def _wrap(self, stack: NDArray[Any], field: str, lengths: Lengths) -> Any:
        """Return the batch's value for a stack; record the shapes of its arrays."""
        if self.padding.has_lengths:
            shapes = [stack.shape[1:]] * len(stack)
            self.padding.record(lengths, _name_of(field), shapes)
        return wrap_field(self.wrap_stack, stack, field)

    def _collate_mappings(
        self,
        samples: Sequence[Mapping[str, Any]],
        prefix: str,
        lengths: Lengths,
    ) -> dict[str, Any]:
        """Collate dicts of the same keys."""
        first = samples[0]
        for sample in samples:
            if sample.keys() != first.keys():
                names = [s.get(KEYS, "?") for s in (first, sample)]
                raise _unequal_fields(names[0], first, names[1], sample)
        return {
            name: self.collate_values(
                load_images([sample[name] for sample in samples], samples, name),
                prefix + name,
                lengths,
            )
            for name in first
        }

    def _collate_objects(
        self, samples: list[Any], prefix: str, lengths: Lengths
    ) -> dict[str, Any]:
        """Collate typed samples: arrays are stacked, other values are lists."""
        names = typed_fields(samples[0])
        batch: dict[str, Any] = {}
        for sample in samples[1:]:
            if (others := typed_fields(sample)) != names:
                raise _unequal_fields("?", names, "?", others)
        for name in names:
            values = [typed_value(sample, name) for sample in samples]
            batch[name] = self.collate_objects(values, prefix + name, lengths)
        return batch

    def collate_objects(self, values: list[Any], field: str, lengths: Lengths) -> Any:
        """Collate the values of a field of typed samples.

        Parameters
        ----------
        values : list
            One for each sample.
        field : str
            The field's name, for `out` and errors.
        lengths : dict
            Receives the true shapes of padded arrays.

        Returns
        -------
        object
            A stack, where all values are arrays; else the list.

        Raises
        ------
        RaggedError
            Arrays are ragged, with ``ragged="error"``.

        Examples
        --------
        >>> from fastshard.dataset.sequence.batch import Collation
        >>> Collation().collate_objects([3, 5], "number", {})
        [3, 5]
        """
        import numpy as np

        if all(isinstance(value, np.ndarray) for value in values):
            return self._join(values, field, lengths)
        return values

    def collate_values(
        self,
        values: list[Any],
        field: str,
        lengths: Lengths | None,
        key_at: Callable[[int], str] | None = None,
    ) -> Any:
        """Collate the values of one field, or the results of a mapped dataset.

        Parameters
        ----------
        values : list
            One for each sample.
        field : str
            The field's name, for `out` and errors.
        lengths : dict or None
            Receives the true shapes of padded arrays; None if the batch cannot hold
            them, so that padding is an error.
        key_at : callable, optional
            ``key_at(k)`` is the key of the sample of value `k`, for errors.

        Returns
        -------
        object
            A stack of arrays or numbers, a dict of dicts' values, a tuple of tuples';
            else a list.

        Raises
        ------
        RaggedError
            Arrays are ragged, with ``ragged="error"``.

        Examples
        --------
        >>> from fastshard.dataset.sequence.batch import Collation
        >>> Collation().collate_values([3, 5], "cls", None)
        array([3, 5])
        """
        import numpy as np

        kinds = set(map(type, values))
        if any(map(_is_image_type, kinds)):
            values = [
                image_array(value) if is_image(value) else value for value in values
            ]
            kinds = set(map(type, values))
        first = values[0]
        if all(issubclass(kind, np.ndarray | np.generic) for kind in kinds):
            arrays = [np.asarray(value) for value in values]
            return self._join(arrays, field, lengths, key_at)
        if kinds <= {int, float} or kinds == {bool}:
            numbers = np.array(values)
            if _is_exact(numbers, values):
                stack = self._output(field, numbers.shape, numbers.dtype)
                stack[...] = numbers
                return self.wrap_stack(stack)
        elif kinds == {memoryview}:
            return [bytes(value) for value in values]
        elif issubclass(type(first), tuple) and len(kinds) == 1:
            if len({len(value) for value in values}) == 1:
                columns = zip(*values, strict=True)
                parts = [
                    self._collate(list(column), f"{field}[{k}]")
                    for k, column in enumerate(columns)
                ]
                is_named = hasattr(first, "_fields")
                return type(first)(*parts) if is_named else tuple(parts)
        elif hasattr(first, "__torch_function__") and len(kinds) == 1:
            return self._join_tensors(values, field, lengths, key_at)
        return values

    def _join(
        self,
        arrays: list[Any],
        field: str,
        lengths: Lengths | None,
        key_at: Callable[[int], str] | None = None,
    ) -> Any:
        """Stack arrays; list, pad or refuse ragged ones, by `self.padding`."""
        name = _name_of(field)
        found = self.padding.stack(
            arrays, field, partial(self._output, field), key_at, name
        )
        if found is arrays:
            return wrap_field(self.wrap_ragged, arrays, field)
        self._record(name, [array.shape for array in arrays], lengths)
        return wrap_field(self.wrap_stack, found, field)

    def _join_tensors(
        self,
        tensors: list[Any],
        field: str,
        lengths: Lengths | None,
        key_at: Callable[[int], str] | None,
    ) -> Any:
        """Stack tensors of torch as `_join` stacks arrays."""
        padding, name = self.padding, _name_of(field)
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if len(set(shapes)) > 1 and padding.ragged != "list":
            shape = padding.padded_shape(tensors, field, key_at)
            stack = tensors[0].new_zeros((len(tensors), *shape))
            if (value := padding.value_of(name)) is not None:
                stack[...] = _tensor_fill(value, tensors[0], name)
            for row, tensor in zip(stack, tensors, strict=True):
                row[tuple(map(slice, tensor.shape))] = tensor
            tensors = list(stack)
        self._record(name, shapes, lengths)
        return self.wrap_tensors(tensors)

    def _record(
        self, name: str, shapes: list[tuple[int, ...]], lengths: Lengths | None
    ) -> None:
        """Record the true shapes of a field's arrays."""
        if lengths is not None:
            self.padding.record(lengths, name, shapes)
        elif self.padding.has_lengths and len(set(shapes)) > 1:
            raise FastshardError(
                "padding needs named fields, for their lengths: map samples to dicts, "
                "or pass lengths=False"
            )

    def _output(self, field: str, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """Return memory for a stack, from `buffers` or `out` if given."""
        if self.buffers is not None:
            if field in self._taken:  # a name that another, nested field has, too
                return self.allocate(shape, dtype)
            self._taken.add(field)
            return self.buffers.take(field, shape, dtype)
        if self.out is None:
            return self.allocate(shape, dtype)
        found = self.out.get(field)
        if found is None:
            found = self._add(field, shape, dtype)
        if self.padding.ragged == "pad" and found.ndim == len(shape):
            if found.dtype != dtype or any(map(int.__gt__, shape, found.shape)):
                found = self._add(field, tuple(map(max, shape, found.shape)), dtype)
            return found[tuple(map(slice, shape))]
        if (
            found.dtype != dtype
            or found.shape[1:] != shape[1:]
            or len(found) < shape[0]
        ):
            if found is self._added.get(field):
                return self._add(field, shape, dtype)
            raise ValueError(
                f"out[{field!r}] must have room for {dtype} {shape}, "
                f"got {found.dtype} {found.shape}"
            )
        return found[: shape[0]]

    def _add(self, field: str, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """Put a new array into `out`, for later batches too."""
        assert self.out is not None
        found = self.out[field] = self._added[field] = self.allocate(shape, dtype)
        return found


STACKING = Collation()  # of columns, by default


def _tensor_fill(value: Any, like: Any, name: str) -> Any:
    """Return a fill as a tensor without axes; an error if its dtype cannot hold it."""
    try:
        fill = like.new_full((), value)
        if bool(fill == value) or bool(fill != fill and value != value):  # NaN
            return fill
    except (RuntimeError, TypeError):
        pass
    raise refuse_fill(value, like.dtype, name, "fill")


def _name_of(field: str) -> str:
    """Return the name of a field, of an array in an npz too, in its batch."""
    return field.rpartition("/")[2]


def _keys_of(samples: Sequence[Any]) -> Callable[[int], str]:
    """Return the function from a place in a batch to its sample's key, for errors."""

    def key_at(k: int) -> str:
        key: str = samples[k].key
        return key

    return key_at


def read_column(
    samples: list[Sample],
    field: str,
    given: tuple[Any, Any],
    collation: Collation,
    lengths: Lengths,
    threads: int | None,
    decoders: Mapping[str, Decoder] | None = None,
) -> Any:
    """Return one field of samples as one array; see `Dataset.columns`.

    The field's decoder decides, as in a batch: npy fields are stacked, cls and similar
    fields parsed to numbers, and fields with a decoder of the caller's decoded. Other
    fields, and fields with a given dtype, are raw bytes.
    """
    dtype, shape = given
    if samples and isinstance(samples[0], ImageSample):
        if field in samples[0].images and dtype is None:
            images = cast("list[ImageSample]", samples)
            return collation._stack_images(images, field, "", lengths)
        samples = [getattr(sample, "stored", sample) for sample in samples]
    layout = samples[0].layout_of(field) if samples else VALUE
    if dtype is not None:
        layout = FieldLayout("raw", dtype, shape)
    elif layout == VALUE:
        decoder = samples[0].decoder_of(field) if samples else None
        if decoder is None:
            decoder = decoder_for(field, decoders)
        is_custom = not _is_built_in(decoder)
        if decoder is decode_integer or is_custom:
            return _read_decoded(samples, field, collation, lengths, is_custom)
        layout = NPY if decoder is DECODERS["npy"] else RAW
    return collation._collate_arrays(samples, field, layout, "", lengths, threads)


def _read_decoded(
    samples: list[Sample],
    field: str,
    collation: Collation,
    lengths: Lengths,
    is_custom: bool,
) -> Any:
    """Decode one field of samples; stack the values if possible, as a batch does."""
    import numpy as np

    if not samples:
        return np.empty(0, object if is_custom else np.int64)
    values = [sample._decode_field(field) for sample in samples]
    values = load_images(values, samples, field)
    return collation.collate_values(values, field, lengths, _keys_of(samples))


def is_typed(sample: object) -> bool:
    """Return whether a value is a sample of `fastshard.typed`, without importing it."""
    kind = type(sample)
    return hasattr(kind, "as_wds") and hasattr(kind, "from_bytes")


def typed_fields(sample: Any) -> list[str]:
    """Return the names of a typed sample's fields."""
    from dataclasses import fields, is_dataclass

    if is_dataclass(sample):
        return [field.name for field in fields(sample)]
    return list(sample.keys())


def typed_value(sample: Any, name: str) -> Any:
    """Return a field of a typed sample."""
    is_declared = hasattr(type(sample), "__dataclass_fields__")
    return getattr(sample, name) if is_declared else sample[name]


def is_image(value: object) -> bool:
    """Return whether a value is a Pillow image, without importing Pillow."""
    return _is_image_type(type(value))


def _is_image_type(kind: type) -> bool:
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and issubclass(kind, pillow.Image)


def image_array(image: Any) -> NDArray[Any]:
    """Return a copy of an image as an array ``[height, width, channels]``.

    Grey images have two axes; palettes are expanded to RGB or RGBA.
    """
    import numpy as np

    if image.mode in ("P", "PA"):
        has_alpha = image.mode == "PA" or "transparency" in image.info
        image = image.convert("RGBA" if has_alpha else "RGB")
    return np.array(image)


def load_images(values: list[Any], samples: Sequence[Any], field: str) -> list[Any]:
    """Return values with images as arrays: their pixels may be decoded only now."""
    if not any(map(_is_image_type, set(map(type, values)))):
        return values
    loaded = []
    for value, sample in zip(values, samples, strict=True):
        try:
            loaded.append(image_array(value) if is_image(value) else value)
        except MemoryError:
            raise
        except Exception as error:
            if not isinstance(sample, Sample):
                error.add_note(f"field {field!r}")
                raise add_notes(error, sample) from error.__cause__
            path, offset, name = sample._where(field)
            reason = f"the image cannot be decoded: {error}"
            raise FormatError(reason, path, offset, name) from error
    return loaded


def _is_exact(numbers: NDArray[Any], values: list[Any]) -> bool:
    """Return whether an array holds exactly the numbers that it was made from."""
    if numbers.dtype.kind in "iub":
        return True
    return numbers.dtype.kind == "f" and all(
        isinstance(value, float) or int(number) == value
        for number, value in zip(numbers, values, strict=True)
    )


def _is_built_in(decoder: Decoder | None) -> bool:
    """Return whether a decoder is absent or one of this package's."""
    return decoder is None or any(decoder is known for known in DECODERS.values())


def _list_item(sample: Sample, field: str) -> Any:
    """Return a field's value in a list: decoded if that is cheap, or its bytes."""
    decoder = sample.decoder_of(field)
    if _is_built_in(decoder) and decoder not in DECODED:
        return bytes(sample[field])
    return sample._decode_field(field)


def _decode_cheaply(
    sample: Sample, left_out: frozenset[str] = frozenset()
) -> dict[str, Any]:
    fields = (field for field in sample if field not in left_out)
    return {KEYS: sample.key} | {field: _list_item(sample, field) for field in fields}


def _unequal_fields(
    first: object, fields: Iterable[str], other: object, others: Iterable[str]
) -> FastshardError:
    return FastshardError(
        f"expected the fields {', '.join(fields)}, as in sample {first!r}, got "
        f"{', '.join(others)} in sample {other!r}: select fields that all samples "
        'have, ds.select_fields(..., missing="skip")'
    )
