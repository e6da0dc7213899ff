"""Sequence of the samples in many shards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, overload
from weakref import ref

from fastshard._core.dataset.gather import prefetch_samples
from fastshard._core.dataset.iterate import PrefetchIterator
from fastshard._core.dataset.remote_prefetch import (
    RemotePrefetchIterator,
    fetch_samples,
)
from fastshard._core.dataset.shard import SampleDecoder, add_notes
from fastshard._core.dataset.streams import (
    ItemStream,
    LookaheadRing,
    PositionStream,
    SampleLocator,
    ShardStream,
)
from fastshard._util.aio import run_in_thread
from fastshard._util.options import check_option_names
from fastshard.dataset.combined.base import Concat, concatenate
from fastshard.dataset.display.text import (
    Description,
    describe_count,
    describe_plan,
    describe_stage,
)
from fastshard.dataset.field_names import FieldNames
from fastshard.dataset.fields.alternatives import (
    ChosenSample,
    FieldPicker,
    PickedMaker,
    parse_names,
    stored_names,
    visible_names,
)
from fastshard.dataset.fields.stages import ChosenDecodeStage, DecodeStage
from fastshard.dataset.order.plan import Plan, check_seed
from fastshard.dataset.order.samplers import warn_of_samplers
from fastshard.dataset.order.selection import (
    RAISE,
    apply_mask,
    check_filter,
    info_column,
)
from fastshard.dataset.order.state import Identity
from fastshard.dataset.sequence.base import BaseDataset, T
from fastshard.dataset.sequence.batch import (
    STACKING,
    Collation,
    gather_samples,
    parse_field_types,
    read_column,
)
from fastshard.dataset.sequence.images import (
    ImageFields,
    ImageMaker,
    ImageSample,
    base_position,
    check_rows,
    image_fields,
    image_names,
    read_pictures,
)
from fastshard.dataset.sequence.iteration import WINDOW, ErrorHandler, T_co
from fastshard.dataset.shardset import ShardSet, memory_info
from fastshard.dataset.tarset import require_tars
from fastshard.dataset.views import DatasetKeys, Members, Shards
from fastshard.errors import (
    ClosedError,
    FastshardError,
    FieldNotFoundError,
    FormatError,
)
from fastshard.formats.decoders import Decoder
from fastshard.formats.field_info import FieldInfo, collect_field_infos
from fastshard.formats.sample import Sample
from fastshard.formats.stacking.padding import Ragged
from fastshard.loader.times import current_times

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike, NDArray

    from fastshard._core.table.order import Order
    from fastshard.dataset.sequence.images import (
        Crop,
        ImageDecoder,
        ImageMode,
        Truncated,
    )
    from fastshard.dataset.tokens import TokenDataset
    from fastshard.dataset.verify import Fault
    from fastshard.loader.tokens import Packing

__all__ = [
    "Dataset",
]


MAP_NOTES = {  # arguments of datasets
    **dict.fromkeys(
        ("batched", "batch_size"),
        "the function takes one sample; see batches(collate=)",
    ),
    **dict.fromkeys(
        ("num_proc", "desc", "load_from_cache_file", "remove_columns"),
        "the function is called on access, in the process that reads the sample",
    ),
}
MAX_COMPLETIONS = 1000  # keys that a prompt completes
NO_LIMIT = 1 << 62  # bytes of a remote batch without max_memory
SHARDS_AHEAD = 8  # remote shards opened behind the one that is read


Missing = Literal["raise", "skip"]


class Dataset(BaseDataset[T_co]):
    """Sequence of the samples in a dataset's shards; see `fastshard.open`.

    - Samples: ``ds[7]``, ``ds[-1]``, ``ds["key"]``, ``len(ds)``, ``"key" in ds``,
      `head`, `keys`, `get_many`, `get_many_async`; `shards`, `members`.
    - Other datasets on the same shards: ``ds[10:20]``, ``ds[positions]``, ``ds[mask]``,
      `take`, `split`, `select_fields`, `filter`, `exclude`, `shuffle`, `split_by_rank`,
      `decode`, `images`, `map`; of several: ``a + b``, `fastshard.mix`,
      `fastshard.zip_by_key`.
    - Iteration: ``for sample in ds``, `iter`, `batches`, and to resume
      `state_dict` and `resume`.
    - Many samples as arrays: `batches`, `columns`, `read_into`.
    - The data themselves: `fields`, `info`, `stats`, `verify`, `memory_info`, `close`.

    Methods that select, reorder or map samples return a new dataset. Nothing is read
    until a sample is accessed or samples are counted. Call `select_fields` and
    `decode` before `map`.

    A dataset is a `Sequence` and a torch dataset, and survives fork. A pickled one
    consists of the paths, the sample counts and its own order; unpickled, it opens the
    shards again. Threads may share one.

    Examples
    --------
    >>> import fastshard
    >>> ds = fastshard.open("data/")
    >>> ds[7].text("txt"), ds["000007"].position
    ('text 7', 7)
    >>> part = ds.shuffle(seed=1, epoch=0).split_by_rank(0, 2).decode("npy", "cls")
    >>> len(part), part[0].keys()
    (50, dict_keys(['__key__', 'npy', 'cls']))
    >>> [len(batch["cls"]) for batch in part.batches(20)]
    [20, 20, 10]
    """

    __slots__ = (
        "_choices",
        "_count",
        "_decoders",
        "_direct_locator",
        "_field_infos",
        "_fields",
        "_images",
        "_is_changed",
        "_is_narrowed",
        "_keys",
        "_locator",
        "_narrow_checks",
        "_own_order",
        "_picker",
        "_plan",
        "_required",
        "_set",
        "_stages",
        "_stored_fields",
    )

    def __init__(
        self,
        shards: ShardSet,
        *,
        plan: Plan = Plan(),  # noqa: B008 - immutable
        fields: tuple[str, ...] | None = None,
        required: bool = True,
        decoders: Mapping[str, Decoder] | None = None,
        stages: tuple[Callable[[Any], Any], ...] = (),
        images: ImageFields | None = None,
        choices: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        if not isinstance(shards, ShardSet):
            raise TypeError(
                "a Dataset is made by fastshard.open(source), got "
                f"{type(shards).__name__}"
            )
        self._set = shards
        self._plan = plan
        self._fields = fields
        self._required = required
        self._decoders = decoders
        self._is_narrowed = fields is not None or decoders is not None
        self._stages = stages
        self._images = images
        self._choices = choices
        # `SampleBase.narrow` checks names without alternatives, `FieldPicker` others.
        self._stored_fields = None if fields is None else stored_names(fields, choices)
        self._narrow_checks = required and not choices
        self._picker = self._make_picker()
        self._is_changed = self._is_narrowed or bool(stages) or self._picker is not None
        self._keys: DatasetKeys | None = None
        self._field_infos: Mapping[str, FieldInfo] | None = None  # once read
        self._locator: SampleLocator | None = None  # once samples are counted
        self._own_order: Order | None = None  # None: in order
        # The fast path of ds[i]: samples as they are, or as one decoder makes them.
        self._direct_locator: SampleLocator | None = None
        self._count = 0

    def _replace(self, **changes: Any) -> Dataset[Any]:
        """Return a copy with other shards or options of `__init__`."""
        options = {
            "plan": self._plan,
            "fields": self._fields,
            "required": self._required,
            "decoders": self._decoders,
            "stages": self._stages,
            "images": self._images,
            "choices": self._choices,
        }
        shards = changes.pop("shards", self._set)
        return Dataset(shards, **(options | changes))

    def _make_picker(self) -> FieldPicker | None:
        """Return the `FieldPicker`; None if fields are neither checked nor renamed.

        Where no name has alternatives, compiled code checks the selected fields.
        """
        names = () if self._images is None else tuple(self._images)
        choices = self._choices
        if self._fields is not None and self._required:
            names = (*self._fields, *names) if choices else ()
        if not choices and self._images is None:
            return None
        needed = (stored_names((name,), choices) for name in dict.fromkeys(names))
        return FieldPicker(tuple(needed), choices, self._fields)

    def _prepare(self) -> SampleLocator:
        """Count the samples on first use and return their locator."""
        if self._locator is None or self._set.closed:
            self._set.drop_complete()
            locator = self._set.locator()
            self._own_order = order = self._plan.order(locator.total)
            self._locator = locator if order is None else locator.ordered(order)
            self._count = self._locator.count
            if not self._is_changed:
                self._direct_locator = self._locator
            elif not self._is_narrowed and self._picker is None:
                make = self._item_maker()
                if isinstance(make, SampleDecoder):
                    self._direct_locator = self._locator.decoding(make)
        return self._locator

    def __len__(self) -> int:
        """Return the number of samples, by a scan of shards without an index.

        Raises
        ------
        FormatError, OSError, RemoteError
            A shard or an index cannot be read.

        Examples
        --------
        >>> len(ds), len(ds[10:20])
        (100, 10)
        """
        if self._is_share:
            warn_of_samplers()
        self._prepare()
        return self._count

    @overload
    def __getitem__(self, key: int | np.integer[Any] | str) -> T_co: ...
    @overload
    def __getitem__(
        self, key: slice | Sequence[int] | NDArray[Any]
    ) -> Dataset[T_co]: ...
    def __getitem__(self, key: Any) -> Any:
        """Return a sample, or a dataset of several.

        Parameters
        ----------
        key : int, str, slice, sequence of int, or array
            A position (negative: from the end) or a key, for one sample. A slice,
            positions in any order, or a mask of bool [samples], for a dataset.

        Returns
        -------
        Sample, its mapped value, or Dataset

        Raises
        ------
        IndexError
            A position is out of range.
        SampleNotFoundError
            No sample has this key.
        AmbiguousKeyError
            Several samples have this key.
        FormatError, OSError, ClosedError
            As for `open_shard` and for the samples of a shard.

        Examples
        --------
        >>> ds[7].key, ds[-1].key, ds["000042"].key
        ('000007', '000099', '000042')
        >>> len(ds[10:20]), [sample.key for sample in ds[[5, 90, 17]]]
        (10, ['000005', '000090', '000017'])
        >>> mask = ds.columns(range(100), "cls")["cls"] == 3
        >>> ds[mask].keys()
        <10 keys: ['000003', '000013', '000023', ...]>
        """
        if type(key) is int:
            locator = self._direct_locator
            return self._get(key) if locator is None else locator.at(key)
        if isinstance(key, str):
            return self._get(self.keys().index(key))
        if getattr(key, "ndim", 0) == 0 and hasattr(key, "__index__"):
            return self._get(key.__index__())
        return self._select(key)

    def _get(self, i: int) -> Any:
        locator = self._locator
        if locator is None:
            locator = self._prepare()
        item = locator.at(i)
        if self._is_narrowed:
            item.narrow(self._stored_fields, self._narrow_checks, self._decoders)
        if self._picker is not None:
            self._picker.check(item)
            (item,) = self._wrap([item], [i])
        return self._map_item_at(item, i) if self._stages else item

    def _wrap(self, samples: list[Any], positions: Iterable[int]) -> list[Any]:
        """Apply alternatives of fields and image decoding to samples."""
        if self._choices:
            samples = self._choose(samples)
        if self._images is None:
            return samples
        numbers, order = range(self._count), self._own_order
        found = [base_position(order, numbers[i]) for i in positions]
        return self._images.wrap(samples, found, self._plan.epoch)

    def _get_samples(self, positions: Iterable[int]) -> list[Any]:
        """Return stored samples by position, with selected fields."""
        if hasattr(positions, "tolist"):
            positions = positions.tolist()
        return self._narrow(LookaheadRing(self._prepare(), tuple(positions)).every())

    def _narrow(self, items: list[Any]) -> list[Any]:
        """Apply the selected fields and the decoders to samples, in place."""
        if self._is_narrowed:
            for item in items:
                item.narrow(self._stored_fields, self._narrow_checks, self._decoders)
        if self._picker is not None:
            for item in items:
                self._picker.check(item)
        return items

    def _choose(self, samples: list[Any]) -> list[Any]:
        """Apply alternatives of fields to stored samples."""
        if not self._choices:
            return samples
        assert self._picker is not None
        return list(map(self._picker.choose, samples))

    def _load_samples(
        self, positions: Iterable[int], only: tuple[str, ...] | None = None
    ) -> list[Any]:
        """Return samples by position, with the bytes of all or `only` some fields read.

        Bytes of local shards are brought into the page cache, those of remote shards
        into the samples.
        """
        if self._picker is None:
            return self._load(self._get_samples(positions), only)
        only = None if only is None else stored_names(only, self._choices)
        positions = list(positions)
        return self._wrap(self._load(self._get_samples(positions), only), positions)

    def _load(
        self, samples: list[Any], only: tuple[str, ...] | None = None
    ) -> list[Any]:
        """Read the bytes of samples; see `_load_samples`."""
        reading = self._set.reading
        times = current_times()
        step = None if times is None else times.enter("fetch")
        try:
            if not self._set.is_local:
                fetch_samples(samples, reading.max_memory or NO_LIMIT, only)
            elif reading.prefetch:
                prefetch_samples(samples, reading.window_bytes)
            if times is not None:
                times.count(samples)
        finally:
            if times is not None:
                times.enter(step)
        return samples

    def get_many(self, positions: Iterable[int]) -> list[T_co]:
        """Return samples by position, in the given order.

        Their bytes are brought into memory together, without the GIL; those of remote
        shards by coalesced ranges.

        Parameters
        ----------
        positions : iterable of int, or array
            Negative ones count from the end.

        Returns
        -------
        list of Sample, or of their mapped values

        Raises
        ------
        IndexError
            A position is out of range.
        FormatError, OSError
            A sample cannot be read.

        Examples
        --------
        >>> [sample.text("txt") for sample in ds.get_many([5, 90, 17])]
        ['text 5', 'text 90', 'text 17']
        """
        if not self._stages:
            return self._load_samples(positions)
        positions = list(positions)
        return self._map_items(self._load_samples(positions), positions)

    @property
    def _is_remote(self) -> bool:
        return not self._set.is_local

    def _fetch(self, positions: Sequence[int]) -> list[Any]:
        return self._load_samples(positions)

    def _finish(self, items: list[Any], positions: Sequence[int]) -> list[Any]:
        return self._map_items(items, positions) if self._stages else items

    @property
    def _is_finished(self) -> bool:
        return not self._stages and self._images is None

    @property
    def _names(self) -> FieldNames:
        return FieldNames(self._set, self._fields, self._choices)

    def _find_absence(self, name: str) -> FieldNotFoundError | None:
        return self._names.find_absence(name, self._picker)

    def _usual_fields(self) -> frozenset[str] | None:
        is_whole = all(
            isinstance(stage, DecodeStage) and not stage.fields
            for stage in self._stages
        )
        if self._fields is not None or not is_whole:
            return None
        return self._names.usual(self._picker)

    @property
    def _has_images(self) -> bool:
        return self._images is not None

    def _name_at(self, position: int) -> str:
        (sample,) = LookaheadRing(self._prepare(), (position,)).every()
        return f"sample {sample.key!r} of {sample._where(sample.keys()[0])[0]}"

    async def get_many_async(self, positions: Iterable[int]) -> list[T_co]:
        """Call `get_many` in a thread, under asyncio or trio.

        Calls awaited together read their remote ranges together.

        Returns
        -------
        list of Sample, or of their mapped values

        Raises
        ------
        IndexError, FormatError, OSError
            As for `get_many`.

        Examples
        --------
        >>> import asyncio
        >>> samples = asyncio.run(ds.get_many_async([5, 90]))
        >>> [sample.text("txt") for sample in samples]
        ['text 5', 'text 90']
        """
        positions = list(positions)
        background = self._set.background  # a cancelled call continues until `close`
        return await run_in_thread(
            lambda: background.run(lambda: self.get_many(positions))
        )

    def read_into(
        self,
        positions: Iterable[int],
        out: Any,
        *,
        fields: str | Sequence[str] | None = None,
        threads: int | None = None,
    ) -> NDArray[np.int64]:
        """Copy the stored bytes of many samples into one buffer, without the GIL.

        Images of a dataset with `images` are decoded into the buffer, in this thread.

        Parameters
        ----------
        positions : sequence of int, or array
        out : buffer
            As for `Shard.read_into`. Of pictures: uint8 ``[at least positions, height,
            width, channels]``, writable and C-contiguous.
        fields : str or sequence of str, optional
            The fields of each sample to copy, in this order; by default all, or the
            pictures. Pictures are read one field at a time.
        threads : int, optional
            As for `Shard.read_into`.

        Returns
        -------
        ndarray of int64 [fields of all samples + 1]
            The offset in `out` of each field, in bytes, and the end of the last.

        Raises
        ------
        FieldNotFoundError
            A sample lacks a field.
        ValueError
            As for `Shard.read_into`. Of pictures, before one is decoded: `out` is
            read-only or strided, or has another dtype, or rows of another size.
        IndexError, FormatError, OSError
            As for `Shard.read_into`.

        Examples
        --------
        >>> out = bytearray(100)
        >>> ends = ds.read_into([5, 90], out, fields="txt")
        >>> ends, bytes(out[ends[1] : ends[2]])
        (array([ 0,  6, 13]), b'text 90')
        """
        names = (fields,) if isinstance(fields, str) else fields
        if self._images is not None:
            images = self._images.only(self._images if names is None else names)
            if images is not None:
                return self._read_images(positions, out, images, names)
        samples = self._choose(self._get_samples(positions))
        return gather_samples(samples, out, names, threads)

    def _read_images(
        self,
        positions: Iterable[int],
        out: Any,
        images: ImageFields,
        fields: Sequence[str] | None,
    ) -> NDArray[np.int64]:
        """Decode the pictures of one field into a buffer; see `read_into`."""
        import numpy as np

        names = list(images)
        if len(names) != 1 or (fields is not None and len(fields) != 1):
            raise ValueError(
                "pictures are read one field at a time: "
                f"read_into(positions, out, fields={names[0]!r})"
            )
        positions = list(positions)
        rows = check_rows(out, len(positions), images[names[0]].reader.row_shape)
        samples: list[ImageSample] = self._load_samples(positions, tuple(names))
        read_pictures(samples, names[0], rows)
        return np.arange(len(positions) + 1) * (rows.nbytes // max(1, len(rows)))

    def columns(
        self,
        positions: Iterable[int],
        fields: str | Sequence[str] | Mapping[str, Any],
        *,
        ragged: Ragged = "error",
        fill: Any = None,
        lengths: bool = True,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Return fields of many samples, each as one array.

        Parameters
        ----------
        positions : sequence of int, or array
        fields : str, sequence of str, or mapping of str
            The names. Values are decoded as in a batch: ``npy`` fields keep their
            dtype and shape, ``cls`` fields are integers, values of custom decoders are
            stacked, or listed if they cannot be. Fields without a decoder are raw
            bytes. A mapping gives the dtype of raw values, or dtype and shape:
            ``{"vec": "float32", "grid": ("u1", (8, 8)), "cls": "u1"}``.
        ragged : {"error", "list", "pad"}, default "error"
        fill : scalar, or mapping of str to scalar, optional
        lengths : bool, default True
            As for `fastshard.collate`. A list has arrays without a copy.
        threads : int, optional
            As for `Shard.read_into`.

        Returns
        -------
        dict of str to ndarray [positions, *shape]
            Copies, owned by the caller. With ``ragged="pad"`` also ``"__lengths__"``.

        Raises
        ------
        RaggedError
            A field is ragged; the error names the sample.
        FieldNotFoundError, FormatError, ValueError, IndexError, OSError
            As for `Sample.array`.

        Examples
        --------
        >>> columns = ds.columns([5, 90], ["npy", "cls"])
        >>> columns["npy"]
        array([[ 5.,  5.,  5.,  5.],
               [90., 90., 90., 90.]], dtype=float32)
        >>> columns["cls"]
        array([5, 0])
        """
        collation = STACKING
        if ragged != "error" or fill is not None:
            collation = Collation(ragged, fill=fill, lengths=lengths)
        types = parse_field_types(fields)
        if not hasattr(positions, "__len__"):
            positions = list(positions)
        stacks = self._stack_columns(positions, types)
        if len(stacks) == len(types) and ragged != "pad":
            return stacks
        rest = tuple(field for field in types if field not in stacks)
        samples = self._load_samples(positions, rest)
        shapes: dict[str, Any] = {}
        found = {
            field: collation._wrap(stacks[field], field, shapes)
            if field in stacks
            else read_column(
                samples, field, given, collation, shapes, threads, self._decoders
            )
            for field, given in types.items()
        }
        return collation._add_lengths(found, shapes)

    def _stack_columns(
        self, positions: Any, types: Mapping[str, tuple[Any, Any]]
    ) -> dict[str, NDArray[Any]]:
        """Return the fields that the format reads together from rows."""
        if self._decoders:
            return {}
        fields = list(types)
        if list(types.values()).count((None, None)) != len(fields):
            fields = [name for name, given in types.items() if given == (None, None)]
        if self._fields is not None:
            fields = [field for field in fields if field in self._fields]
        if self._images is not None:
            fields = [field for field in fields if field not in self._images]
        if self._choices:
            chosen = {*self._choices, *stored_names(self._choices, self._choices)}
            fields = [field for field in fields if field not in chosen]
        return self._set.stack_columns(self._prepare(), positions, tuple(fields))

    def _iterator(
        self, window: int, on_error: ErrorHandler | None, decodes: bool = True
    ) -> PrefetchIterator | RemotePrefetchIterator:
        if self._set.closed:
            raise ClosedError("the dataset is closed")
        self._set.drop_complete()
        narrowing = (self._stored_fields, self._narrow_checks, self._decoders)
        stream: ItemStream
        failed: set[int] = set()
        if self._plan == Plan():  # begins before all shards are counted
            sizes = self._set.sizes()
            streamed = self._set.stream(sizes)
            window = window if streamed is None else 0
            opener = streamed or ShardOpener(self._set, sizes, failed)
            stream = ShardStream(sizes, opener, *narrowing)
        else:
            stream = PositionStream(self._prepare(), *narrowing)
        make = self._item_maker()
        stream.decoder = make if isinstance(make, SampleDecoder) else None
        describe = StateMaker(self, failed)
        images = None
        if self._images is not None:
            place = describe.base_position
            epoch = self._plan.epoch
            make = images = ImageMaker(self._images, epoch, place, make, decodes)
        if self._picker is not None:
            make = PickedMaker(self._picker, make)
        iterator = self._set.iterate(
            stream,
            window,
            make,
            describe,
            on_error=on_error,
            skipped=self._plan.skipped,
        )
        if images is not None:
            images.iterator = ref(iterator)
        return iterator

    def _shard_iterator(self, k: int) -> PrefetchIterator | RemotePrefetchIterator:
        """Return an iterator over the samples of a shard, in its order, mapped."""
        narrowing = (self._stored_fields, self._narrow_checks, self._decoders)
        stream = ShardStream([None], lambda _: self._set.samples(k), *narrowing)
        make = self._item_maker()
        stream.decoder = make if isinstance(make, SampleDecoder) else None
        return self._set.iterate(stream, WINDOW, make)

    def _item_maker(self) -> Callable[[Any], Any] | None:
        """Return the function from sample to item; None: items are samples."""
        match self._stages:
            case ():
                return None
            case (DecodeStage(fields=()) as stage,) if self._picker is None:
                return self._set.sample_decoder() or stage
            case (stage,):
                return stage
            case _:
                return self._map_item

    def _is_counted(self) -> bool:
        return self._plan != Plan() or self._set.is_counted()

    def _with_plan(self, plan: Plan) -> Dataset[T_co]:
        return self._replace(plan=plan)

    def _total(self) -> int:
        return self._set.starts()[-1]

    def _identity(self) -> Identity:
        if self._set.identity is None:
            self._set.identity = self._set.identify()
        identity: Identity = self._set.identity
        return identity

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self.keys()

    def keys(self) -> DatasetKeys:
        """Return the samples' keys: a lazy sequence of str.

        Returns
        -------
        DatasetKeys
            With ``keys.index(key)``, ``keys.find(key)`` and ``key in keys``, by the key
            table of ``dataset.fsi`` or one built on first use: 8 bytes a sample.

        Raises
        ------
        FormatError, OSError, RemoteError
            A shard or an index cannot be read.

        Examples
        --------
        >>> keys = ds.keys()
        >>> keys[7], keys.index("000042"), "x" in keys
        ('000007', 42, False)
        """
        if self._keys is None:
            self._prepare()
            self._keys = DatasetKeys(self._set, self._order())
        return self._keys

    @property
    def members(self) -> Members:
        """All members of the shards, independent of the selected samples.

        A sequence of views by position or name.

        Examples
        --------
        >>> bytes(ds.members["000042.txt"])
        b'text 42'
        """
        return Members(self._set)

    @property
    def shards(self) -> Shards:
        """The shards, opened on access.

        Examples
        --------
        >>> ds.shards.paths[0], ds.shards[0].names[2]
        ('data/train-0000.tar', '000000.txt')
        """
        return Shards(self._set)

    @property
    def raw(self) -> Dataset[Sample]:
        """The same samples in the same order, as the members of their tar shards.

        For a dataset opened with ``packed=True``; the samples of others are raw
        already. Selected fields and mapped functions are left out.

        Examples
        --------
        >>> ds.raw[7].keys()
        ['npy', 'cls', 'txt', 'json']
        """
        return Dataset(self._set.raw(), plan=self._plan, decoders=self._decoders)

    def select_fields(
        self: Dataset[Sample], *fields: str, missing: Missing = "raise"
    ) -> Dataset[Sample]:
        """Return a dataset of samples with these fields only, in this order.

        Parameters
        ----------
        *fields : str
            Also metadata columns of a columnar dataset, which other batches lack.
            ``"jpg;png"`` is one field, ``jpg``: the first of these that a sample has.
        missing : {"raise", "skip"}, default "raise"
            Handling of samples that lack a field: raise `FieldNotFoundError` on
            access; or leave them out, which searches the names in all shards now.

        Returns
        -------
        Dataset of Sample
            Other fields are neither prefetched nor in batches.

        Raises
        ------
        FastshardError
            The samples are mapped or decoded already.
        FieldNotFoundError
            No sample has a field: of formats that list their columns, which tars do
            not, and with ``missing="skip"``. Of tars on access.
        ValueError
            `missing` is another value.

        Examples
        --------
        >>> ds.select_fields("txt", "cls")[7].keys()
        ['txt', 'cls']
        >>> len(ds.select_fields("npy", missing="skip"))
        100
        >>> bytes(ds.select_fields("caption;txt")[7]["caption"])
        b'text 7'
        """
        if missing not in ("raise", "skip"):
            raise ValueError(f'missing must be "raise" or "skip", got {missing!r}')
        self._require_unmapped("select_fields")
        _check_fields("select_fields", fields)
        names, choices = self._names.parse(fields)
        images = None if self._images is None else self._images.only(names)
        narrowed = self._replace(fields=names, images=images, choices=choices)
        if missing == "raise":
            return narrowed
        mask = self._names.mask(fields)
        if not mask.any():
            self._require_fields(fields)
        selected = self._plan.select(apply_mask(mask, self._order()))
        return narrowed._replace(plan=selected)

    def _having(self, fields: tuple[str, ...]) -> NDArray[np.bool_]:
        """Return a mask of the samples that have the given fields."""
        mask, order = self._names.mask(fields), self._order()
        return mask if order is None else mask[order.positions(0, len(order))]

    def _require_fields(self, fields: tuple[str, ...]) -> None:
        """Raise FieldNotFoundError if shards have samples, and all lack a field."""
        self._names.require(fields)

    def filter(
        self,
        fn: Callable[[str, Mapping[str, int], Mapping[str, Any]], object],
    ) -> Dataset[T_co]:
        """Return a dataset of the samples that a function selects; reads no data.

        Parameters
        ----------
        fn : callable
            ``fn(key, sizes, info) -> bool``. `sizes` are the bytes of each field.
            `info` maps fields to dicts of index metadata, parsed on access; samples of
            a columnar dataset have ``{"metadata": dict}``.

        Returns
        -------
        Dataset
            The selected samples in the same order. The function is called now.

        Raises
        ------
        TypeError
            The function takes another number of arguments.
        InfoNotFoundError
            The function reads a column that the index lacks.
        Exception
            An error of the function, with a note that names the sample.

        Examples
        --------
        >>> long = ds.filter(lambda key, sizes, info: sizes["txt"] > 6)
        >>> len(long), long[0].text("txt")
        (90, 'text 10')
        """
        import numpy as np

        check_filter(fn)
        unmapped = self._unmapped()

        def is_selected(i: int) -> bool:
            description = unmapped._describe(i)
            try:
                return bool(fn(*description))
            except Exception as error:
                sample = unmapped[i]
                failure = add_notes(error, sample, f"position {i:,} of the dataset")
                if failure is error:
                    raise
                raise failure from error

        selected = [i for i in range(len(self)) if is_selected(i)]
        part = unmapped[np.array(selected, np.int64)]
        return part._replace(stages=self._stages, images=self._images)

    def _unmapped(self) -> Dataset[Sample]:
        """Return the dataset without mapped functions and without images."""
        plain: Dataset[Any] = self._replace(stages=(), images=None)
        return plain

    def _describe(self, i: int) -> tuple[str, dict[str, int], Mapping[str, Any]]:
        """Return the key, the field sizes and the index metadata of a sample."""
        sample: Sample = self._get(i)
        sizes = {}
        for field in filter(sample._is_stored, sample):
            shard, member = sample.place(field)
            sizes[field] = shard.extent_of(member)[1]
        return sample.key, sizes, sample.infos()

    def info(self, name: str, default: Any = RAISE) -> NDArray[Any]:
        """Return a column of the index: one value of each sample.

        Parameters
        ----------
        name : str
            As in ``shard.info(i)``: ``"width"``, ``"captions"``, ``"sha256"``.
        default : object, optional
            The value for samples without it.

        Returns
        -------
        ndarray [samples]
            Numbers if all values are numbers, otherwise objects. The first member of
            a sample that has the value provides it.

        Raises
        ------
        InfoNotFoundError
            A sample lacks the value, and there is no default.

        Examples
        --------
        >>> ds.info("width", default=0).sum()
        np.int64(0)
        """
        describe = self._unmapped()._describe
        return info_column(map(describe, range(len(self))), name, default)

    @check_option_names("map", notes=MAP_NOTES)
    def map(self, fn: Callable[[T_co], T]) -> Dataset[T]:
        """Return a dataset of ``fn(item)``, called on access.

        Parameters
        ----------
        fn : callable
            Takes a sample, or the result of the previous `map` or `decode`. A function
            of a module, not a lambda, where the dataset goes to worker processes.

        Examples
        --------
        >>> lengths = ds.map(lambda sample: len(sample["txt"]))
        >>> lengths[7], lengths[90]
        (6, 7)
        """
        return self._replace(stages=(*self._stages, fn))

    def decode(self: Dataset[Sample], *fields: str) -> Dataset[dict[str, Any]]:
        """Return a dataset of dicts of values, decoded on access.

        Parameters
        ----------
        *fields : str
            The fields to decode; by default all. ``"jpg;png"`` is the first of these
            that a sample has, under the name ``jpg``.

        Returns
        -------
        Dataset
            Dicts from field to value, with the key as ``"__key__"``; see
            `Sample.decode`.

        Raises
        ------
        FastshardError
            The samples are mapped or decoded already.
        FieldNotFoundError
            No sample has a field: of formats that list their columns. Of tars on
            access.

        Examples
        --------
        >>> ds.decode("cls", "txt")[7]
        {'__key__': '000007', 'cls': 7, 'txt': 'text 7'}
        """
        self._require_unmapped("decode")
        _check_fields("decode", fields)
        self._names.parse(fields)
        names, choices = parse_names(fields, {})
        if choices:
            return self.map(ChosenDecodeStage(names, choices))
        return self.map(DecodeStage(fields))

    def tokens(
        self,
        field: str,
        length: int,
        *,
        dtype: DTypeLike | None = None,
        stride: int | None = None,
        eos: int | None = None,
        pack: Packing = "stream",
        documents: bool = False,
        drop_last: bool = True,
    ) -> TokenDataset[Any]:
        """Return a dataset of windows over the tokens of all samples.

        A sample is a document: one field has its tokens. Documents follow each other
        in the order of this dataset; ``shuffle`` and ``split_by_rank`` of the result
        act on windows.

        Parameters
        ----------
        field : str
            One-dimensional arrays of one dtype (``npy``), or raw tokens (``bin``).
        length : int
            Tokens of a window.
        dtype : dtype-like, optional
            Type of raw tokens, whose number is known from the index. Arrays have
            their own, which must be this one if it is given; their headers are read
            once.
        stride : int, optional
            Tokens from the start of a window to that of the next, for
            ``pack="stream"``; by default ``length - 1``: the next window begins with
            the last token.
        eos : int, optional
            Token put between documents.
        pack : {"stream", "best-fit"}, default "stream"
            ``"stream"``: windows of all documents after each other. ``"best-fit"``:
            rows of whole documents, packed in blocks of 10,000 documents by best fit
            in decreasing order of length, with zeros behind; longer documents are cut
            into rows, and the remainder is packed.
        documents : bool, default False
            Windows are dicts: ``tokens``; ``document``, int32 [length], the number of
            each token's document, from 0 in a window; and ``position``, int32 [length],
            of the token in its document, or in its part in the window. `eos` belongs to
            the document before it. Padding has document -1 and position 0.
        drop_last : bool, default True
            Drop the tokens behind the last whole window of a stream. False: they are a
            window of their own, filled with `eos`, or with zeros without one.

        Returns
        -------
        TokenDataset
            ``tokens[i]`` is an array [length], ``tokens.batches(n)`` gives arrays
            [n, length], of the documents' dtype: copies, owned by the caller. With
            ``documents=True``, dicts of them.

        Raises
        ------
        ValueError
            An option is out of range, `eos` is outside of the dtype, or there is no
            document. The last two when tokens are counted, on first use.
        FormatError
            On first use: a document has another dtype, several axes, or a size that
            is not a multiple of a token's.
        FieldNotFoundError
            On first use: a sample lacks the field.
        FastshardError
            The samples are mapped or decoded already.

        Examples
        --------
        >>> windows = ds.tokens("npy", 5)
        >>> len(windows), windows[0]
        (99, array([0., 0., 0., 0., 1.], dtype=float32))
        >>> next(windows.shuffle(seed=7).batches(32)).shape
        (32, 5)
        >>> ds.tokens("txt", 8, dtype="u1", eos=10)[0].tobytes()
        b'text 0\\nt'
        """
        import numpy as np

        from fastshard.dataset.tokens import TokenDataset, TokenDocuments
        from fastshard.loader.tokens import TokenOptions

        self._require_unmapped("tokens")
        if not isinstance(field, str):
            raise TypeError(f"field must be str, got {type(field).__name__}")
        self._names.parse([field])
        options = TokenOptions.checked(length, stride, eos, pack, documents, drop_last)
        kind = None if dtype is None else np.dtype(dtype)
        if kind is not None and kind.kind not in "biufc":
            raise ValueError(f"tokens must be numbers, got dtype {kind}")
        found = TokenDocuments(self._set, self._plan, field, kind, options)
        return TokenDataset(found)

    def images(
        self: Dataset[Sample],
        field: str | Sequence[str] = "jpg",
        size: int | tuple[int, int] | None = None,
        *,
        crop: Crop = None,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: bool = False,
        mode: ImageMode = "RGB",
        orient: bool = True,
        max_pixels: int = 1 << 26,
        truncated: Truncated = "error",
        decoder: ImageDecoder = None,
        seed: int = 0,
        epoch: int = 0,
    ) -> Dataset[ImageSample]:
        """Return a dataset of samples whose images are decoded to arrays.

        Parameters
        ----------
        field : str or sequence of str, default "jpg"
            The images, decoded by their first bytes, whatever the field's name. A
            further call adds fields with other options. Each sample must have all
            fields of a sequence. ``"jpg;png;webp"`` is one field, ``jpg``: the first
            of these that a sample has; the others are left out.
        size : int or (int, int), optional
            Height and width of the arrays; an int is both. By default each picture's
            own.
        crop : {"center", "random"}, optional
            Part of a picture that is resized to `size`: the largest centred box of the
            same aspect ratio, or a random box as of torchvision's RandomResizedCrop. By
            default the whole picture, whatever its aspect ratio.
        scale, ratio : (float, float)
            Bounds of a random box: its share of the picture's area, and its width
            divided by its height.
        flip : bool, default False
            Mirror half of the pictures, at random.
        mode : {"RGB", "L"}, default "RGB"
            3 channels, colour; or 1, grey.
        orient : bool, default True
            Apply the EXIF orientation, before `crop`.
        max_pixels : int, default 67108864
            Largest width times height; checked before memory is allocated.
        truncated : {"error", "fill"}, default "error"
            Handling of truncated JPEG files: an error, or grey for missing rows.
        decoder : str or callable, optional
            ``"simplejpeg"``, ``"imagecodecs"`` or ``"pillow"`` for JPEG; Pillow decodes
            other kinds, and files that the first two refuse. Or a function of the
            stored bytes that returns the picture as stored, uint8
            ``[H, W]`` or ``[H, W, C]`` with 1 (grey), 3 (RGB) or 4 channels. By default
            the fastest installed one.
        seed : int, default 0
            Seed of random boxes and mirroring.
        epoch : int, default 0
            Epoch of random boxes and mirroring of a dataset without `shuffle`, whose
            epoch is used otherwise.

        Returns
        -------
        Dataset of ImageSample
            ``sample[field]`` is uint8 ``[height, width, channels]``. Iteration decodes,
            ``ds[i]`` at the first access; `batches` decodes into the rows of a stack
            ``[samples, height, width, channels]``. Sizes that differ are treated as
            ``ragged=`` says. Other fields are as they were.

        Raises
        ------
        FastshardError
            The samples are mapped or decoded already.
        FieldNotFoundError
            No sample has a field: of formats that list their columns. Of tars on
            access.
        ValueError, TypeError
            An argument is invalid.

        Notes
        -----
        Random boxes and mirroring are a function of the seed, the epoch, and the
        sample's position before selection and shuffle: the same in every way of
        reading, on any rank, and after a resume. Later selections and splits keep the
        epoch of a shuffle; a shuffled mix, zip or concatenation passes its own to its
        parts. `exclude` of an unshuffled dataset changes positions. States do not hold
        these options: those of the dataset without images are the same.

        Access to a damaged picture raises `FormatError`, which names shard, member and
        byte; without the library that decodes it, `MissingLibraryError`: ``pip install
        'fastshard[images]'``.

        Examples
        --------
        >>> from PIL import Image
        >>> with fastshard.ShardWriter("cats.tar") as writer:
        ...     for i in range(4):
        ...         picture = Image.new("RGB", (40 + i, 30), (10 * i, 0, 0))
        ...         writer.write({"__key__": f"{i}", "png": picture, "cls": i})
        >>> cats = fastshard.open("cats.tar").images("png", 16, crop="center")
        >>> cats[3]["png"].shape, cats[3]["png"][0, 0]
        ((16, 16, 3), array([30,  0,  0], dtype=uint8))
        >>> batch = next(cats.shuffle(seed=7).batches(4))
        >>> batch["png"].shape, sorted(batch["cls"].tolist())
        ((4, 16, 16, 3), [0, 1, 2, 3])
        """
        self._require_unmapped("images")
        options = {
            "size": size,
            "crop": crop,
            "scale": scale,
            "ratio": ratio,
            "flip": flip,
            "mode": mode,
            "orient": orient,
            "max_pixels": max_pixels,
            "truncated": truncated,
            "decoder": decoder,
            "seed": check_seed(seed),
        }
        names, choices = self._names.parse(image_names(field))
        images = image_fields(names, check_seed(epoch), options)
        return self._replace(
            images=images if self._images is None else self._images | images,
            choices={**self._choices, **choices},
        )

    def _at_epoch(self, epoch: int) -> Dataset[T_co]:
        if self._images is None:
            return self
        return self._replace(images=self._images.at_epoch(epoch))

    def exclude(self, shards: Iterable[str | int]) -> Dataset[T_co]:
        """Return the dataset without some shards.

        Parameters
        ----------
        shards : iterable of str or int
            Paths as in ``ds.shards.paths``, last parts of paths, or positions.

        Raises
        ------
        ValueError
            A shard is not in the dataset, or its name is ambiguous.

        Examples
        --------
        >>> len(ds.exclude(["train-0002.tar"])), len(ds.exclude([0, -1]))
        (75, 50)
        """
        excluded = {self.shards.index(shard) for shard in shards}
        if self._plan == Plan():  # without opening a shard: it may be unreadable
            return self._replace(shards=self._set.without(excluded))
        import numpy as np

        starts = self._set.starts()
        kept = np.ones(starts[-1], bool)
        for k in excluded:
            kept[starts[k] : starts[k + 1]] = False
        return self._with_plan(self._plan.select(apply_mask(kept, self._order())))

    @property
    def fields(self) -> Mapping[str, FieldInfo]:
        """The samples' fields: a mapping from name to `FieldInfo`.

        They are those of the first shard that has samples (of its first 100,000
        members), which is opened; and the dtypes and shapes, of ``npy`` fields, those
        of its first 8 samples: sizes that differ among them are None. Of remote shards
        only headers are fetched. Computed at the first access. With `select_fields`,
        the selected fields; they are stored fields, before `map` and `decode`.

        Raises
        ------
        FormatError, OSError, ClosedError
            The shard cannot be read.

        Examples
        --------
        >>> ds.fields["npy"]
        FieldInfo(kind='array', dtype='float32', shape=(4,))
        >>> {name: info.kind for name, info in ds.fields.items()}
        {'npy': 'array', 'cls': 'int', 'txt': 'text', 'json': 'json'}
        """
        if self._field_infos is None:
            infos = collect_field_infos(
                self._first_samples(),
                self._names.all() if self._fields is None else self._fields,
                lambda name: self._set.kind_of(name, self._decoders),
                remote=self._set.remote is not None,
            )
            if self._images is not None:
                infos |= self._images.infos(infos)
            self._field_infos = MappingProxyType(infos)
        return self._field_infos

    def _first_samples(self) -> list[Sample]:
        """Return some samples for `fields`, with the decoders but all fields."""
        samples = self._set.first_samples()
        if self._decoders is not None:
            for sample in samples:
                sample.narrow(None, self._required, self._decoders)
        if self._choices:
            return [ChosenSample(one, self._choices, None) for one in samples]
        return samples

    def _ipython_key_completions_(self) -> list[str]:
        """Return keys of open shards, which IPython completes after ``ds["``."""
        keys: list[str] = []
        if self._plan == Plan() and self._set.remote is None:
            for samples in self._set.open_samples:
                if samples is not None and len(keys) < MAX_COMPLETIONS:
                    count = min(len(samples), MAX_COMPLETIONS - len(keys))
                    keys += [samples.key_at(i) for i in range(count)]
        return keys

    def head(self, n: int = 5) -> list[T_co]:
        n = self._check_number(n)
        if self._is_counted():
            return super().head(n)
        items: list[Any] = []
        for k in range(len(self._set)):  # one after the other: most are not opened
            if len(items) == n:
                break
            samples = self._set.samples(k)
            items += [samples[i] for i in range(min(len(samples), n - len(items)))]
        items = self._load(self._narrow(items))
        if self._images is not None:  # counted from the first shard on
            items = self._images.wrap(items, range(len(items)), None)
        return self._map_items(items, range(len(items))) if self._stages else items

    def __add__(  # type: ignore[override, unused-ignore]
        self, other: BaseDataset[T]
    ) -> Concat[T_co | T]:
        """Return the concatenation of two datasets.

        Parameters
        ----------
        other : dataset
            Any one, also of another format, mapped or combined.

        Returns
        -------
        Concat
            The samples of this dataset, then those of the other. ``sum([a, b, c])``
            is one `Concat` of three.

        Examples
        --------
        >>> both = ds + ds.shuffle(seed=7)[:20]
        >>> len(both), both[0].key
        (120, '000000')
        """
        return concatenate(self, other)

    def stats(self) -> dict[str, Any]:
        """Return numbers of shards, samples, members and bytes, and the fields.

        Returns
        -------
        dict
            JSON values: ``shards``, ``samples``, ``members``, ``bytes`` (of members),
            and ``fields``, a dict from name to ``kind``, ``dtype`` and ``shape``; see
            `fields`. If the first shard cannot be read, the fields are those that a
            local index names.

        Raises
        ------
        FormatError, OSError
            A shard without an index cannot be counted.

        Examples
        --------
        >>> stats = ds.stats()
        >>> stats["samples"], stats["members"], stats["fields"]["npy"]["shape"]
        (100, 400, [4])
        """
        self._prepare()
        shards = self._set
        fields: Mapping[str, FieldInfo]
        try:
            fields = self.fields
        except (FormatError, OSError):
            kinds = self._description().fields
            fields = {name: FieldInfo(kind) for name, kind in kinds.items()}
        return {
            "shards": shards.file_count(),
            "samples": self._count,
            "members": shards.member_starts()[-1],
            "bytes": shards.data_bytes(),
            "fields": {name: info.to_json() for name, info in fields.items()},
        }

    def memory_info(self) -> dict[str, int | None]:
        """Return the memory in use for reading, in bytes.

        Returns
        -------
        dict
            ``mapped``: address space of the mapped shards. ``resident``: their part in
            this process's memory; None if the system does not tell. ``buffered``:
            bytes prefetched by iterations.

        Examples
        --------
        >>> _ = ds[7]
        >>> ds.memory_info()
        {'mapped': ..., 'resident': ..., 'buffered': 0}
        """
        return memory_info(self._set)

    def verify(self, *, hashes: bool = False) -> list[Fault]:
        """Check every shard and index and return the faults.

        Headers are scanned anew, and compared with the indexes; all members' extents
        are checked.

        Parameters
        ----------
        hashes : bool, default False
            Compare the bytes of members with the checksums that indexes record; reads
            all data.

        Returns
        -------
        list of Fault
            Empty if the dataset is whole. A fault has ``path``, ``offset``, ``reason``.

        Examples
        --------
        >>> ds.verify()
        []
        """
        faults = self._set.verify(hashes=hashes)
        if faults is None:
            from fastshard.dataset.verify import verify_dataset

            faults = verify_dataset(require_tars(self._set), hashes=hashes)
        return faults

    def close(self) -> None:
        """Close the shards, for all datasets derived from this one.

        Existing views stay valid. The ``with`` statement calls it.

        Examples
        --------
        >>> with fastshard.open("data/") as ds:
        ...     view = ds[7]["txt"]
        >>> bytes(view)
        b'text 7'
        """
        self._set.close()

    def __enter__(self) -> Dataset[T_co]:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _description(self) -> Description:
        summary = self._set.summary()
        fields: Iterable[str] | None = self._fields
        if fields is None:
            fields = visible_names(summary.fields, self._choices)
        images = [] if self._images is None else [self._images.describe()]
        return Description(
            describe_count(summary, self._plan),
            {name: self._set.kind_of(name, self._decoders) for name in fields},
            describe_plan(self._plan),
            ", ".join([*images, *map(describe_stage, self._stages)]),
            summary.where + (", closed" if self._set.closed else ""),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        self._prepare()  # spares workers the count
        options: dict[str, Any] = {
            "plan": self._plan,
            "fields": self._fields,
            "required": self._required,
            "decoders": self._decoders,
            "stages": self._stages,
        }
        if self._images is not None:
            options["images"] = self._images
        if self._choices:
            options["choices"] = dict(self._choices)
        return _rebuild, (self._set, options)


def _check_fields(method: str, fields: tuple[object, ...]) -> None:
    """Raise TypeError if a field is not a str, such as a list of fields."""
    for field in fields:
        if not isinstance(field, str):
            raise TypeError(
                f'{method}() takes names of fields, {method}("jpg", "cls"), got a '
                f"{type(field).__name__}"
            )


def _rebuild(shards: ShardSet, options: dict[str, Any]) -> Dataset[Any]:
    return Dataset(shards, **options)


class ShardOpener:
    """Opens the shards of one iteration and records failures.

    From the second remote shard on, those behind it are opened ahead in threads. Their
    errors are raised when the shard is reached.
    """

    def __init__(
        self, shards: ShardSet, sizes: list[int | None], failed: set[int]
    ) -> None:
        self._set = shards
        self._sizes = sizes
        self._failed = failed
        self._ahead: dict[int, threading.Thread] = {}

    def __call__(self, k: int) -> Any:
        thread = self._ahead.pop(k, None)
        if self._set.opens_ahead:
            self._open_ahead(k)
        if thread is not None:
            thread.join()
        try:
            return self._set.samples(k)
        except (FastshardError, OSError):
            if self._sizes[k] is None:
                self._failed.add(k)
            raise

    def _open_ahead(self, k: int) -> None:
        """Open shards after `k` ahead, more of them as the iteration continues."""
        stop = min(k + 1 + min(2 * k, SHARDS_AHEAD), len(self._set))
        for i in range(k + 1, stop):
            if i not in self._ahead and self._set.open_samples[i] is None:
                thread = self._set.background.start(self._set.samples, i)
                if thread is None:
                    return
                self._ahead[i] = thread


class StateMaker:
    """Makes the states of an iteration over a dataset.

    Keeps the shards alive until `release`, and refers to them weakly afterwards.
    """

    def __init__(self, dataset: Dataset[Any], failed: set[int]) -> None:
        self._set: ShardSet | None = dataset._set
        self._set_ref = ref(dataset._set)
        self._plan = dataset._plan
        self._order = None if self._plan == Plan() else dataset._order()
        self._failed = failed

    def __call__(self, done: int, skipped: int) -> dict[str, Any]:
        """Return the state after `done` items, with `skipped` skipped in total."""
        shards = self._set_ref()
        if shards is None:
            raise ClosedError("the iteration is closed, and its dataset was deleted")
        if self._failed:
            done = self._count_samples(done, shards.starts())
        return Dataset(shards, plan=self._plan)._state_after(done, skipped)

    def base_position(self, i: int) -> int:
        """Return the position of an item's sample before selection and shuffle.

        After a shard that could not be opened it is the item's own: no resumed
        iteration skips such a shard.
        """
        shards = self._set_ref()
        if self._failed and shards is not None:
            with suppress(FastshardError, OSError):
                return self._count_samples(i, shards.starts())
        return base_position(self._order, i)

    def _count_samples(self, done: int, starts: list[int]) -> int:
        """Return the number of samples in the first `done` items."""
        for k, (start, end) in enumerate(pairwise(starts)):
            items = 1 if k in self._failed else end - start
            if done < items:
                return start + done
            done -= items
        return starts[-1]

    def release(self) -> None:
        """Drop the reference that keeps the shards alive."""
        self._set = None
