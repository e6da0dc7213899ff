"""Base class of datasets: shuffle, split by rank, iterate, batch, resume."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from operator import index
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from fastshard._core.dataset.shard import add_notes
from fastshard._core.table.order import Order, Stride
from fastshard._util.hints import HintingType, is_missing
from fastshard._util.options import check_option_names
from fastshard.dataset.display.text import Description
from fastshard.dataset.order.plan import (
    Plan,
    Remainder,
    Shuffling,
    Split,
    Worker,
    check_seed,
    compose,
    order_digest,
    split_sizes,
)
from fastshard.dataset.order.samplers import warn_of_samplers
from fastshard.dataset.order.selection import select_positions
from fastshard.dataset.order.state import (
    Identity,
    check_worker,
    make_state,
    resume_plan,
    resume_worker,
)
from fastshard.dataset.order.worker import current_worker, guard_queue
from fastshard.dataset.sequence.batch import Collation
from fastshard.dataset.sequence.batch import collate as collate_samples
from fastshard.dataset.sequence.iteration import (
    WINDOW,
    BatchIterator,
    ErrorHandler,
    OnError,
    SampleIterator,
    T_co,
    is_skippable,
    make_error_handler,
)
from fastshard.dataset.sequence.torch_base import Dataset as TorchDataset
from fastshard.dataset.sequence.torch_collation import guard_collation
from fastshard.errors import FastshardError, FieldNotFoundError, brief_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import TypeVar as DefaultTypeVar

    from fastshard.dataset.sequence.loading import LoadedDataset
    from fastshard.formats.layout import Allocate
    from fastshard.formats.sample import Sample
    from fastshard.formats.stacking.padding import Ragged
    from fastshard.loader.loader import Loader
    from fastshard.loader.options import LoaderOnError

__all__ = ["BaseDataset"]

T = TypeVar("T")
Batch = TypeVar("Batch")
if TYPE_CHECKING:
    LoadedBatch = DefaultTypeVar("LoadedBatch", default=Any)  # Any without `collate`
else:
    LoadedBatch = TypeVar("LoadedBatch")

SHUFFLE_NOTES = {  # arguments of webdataset, datasets and tf.data
    **dict.fromkeys(
        ("buffer_size", "bufsize", "size", "initial"),
        "the order is a permutation of all samples, without a buffer: "
        "shuffle(seed, epoch)",
    ),
    **dict.fromkeys(
        ("generator", "rng"), "an int determines the order: shuffle(seed, epoch)"
    ),
}
LOADER_NOTES = {  # arguments of torch
    "num_workers": "threads of this process decode: threads=",
    "prefetch_factor": "the number of batches ahead: ahead=",
    "collate_fn": "the function is named collate",
    "shuffle": "shuffle the dataset: ds.shuffle(seed, epoch).loader(...)",
    # Of earlier versions:
    "hold": "batches may be kept: memory is used again once nothing refers to it",
    "copy": "batches may be kept: memory is used again once nothing refers to it",
}
MAX_COUNT = 1 << 62  # ranks, or samples of a block


class BaseDataset(Sequence[T_co], TorchDataset[T_co], metaclass=HintingType):
    """Base class of datasets: a sequence ordered by a `Plan`.

    Subclasses are immutable: methods that select, reorder or map return a new object.

    Attributes
    ----------
    _plan : Plan
        Selects and orders the samples.
    _stages : tuple of callable
        The mapped functions, applied to an item in turn.
    """

    __slots__ = ()

    _plan: Plan
    _stages: tuple[Callable[[Any], Any], ...]

    @abstractmethod
    def _with_plan(self, plan: Plan) -> Self:
        """Return a copy with another plan."""

    @abstractmethod
    def _total(self) -> int:
        """Return the number of samples before selection, shuffle and split."""

    @abstractmethod
    def _identity(self) -> Identity:
        """Return the identity of the data, independent of its order."""

    @abstractmethod
    def get_many(self, positions: Iterable[int]) -> list[T_co]:
        """Return items by position, in the given order."""

    @abstractmethod
    def _iterator(
        self, window: int, on_error: ErrorHandler | None, decodes: bool = True
    ) -> SampleIterator[T_co]:
        """Return an iterator over all items."""

    @abstractmethod
    def map(self, fn: Callable[[T_co], T]) -> BaseDataset[T]:
        """Return a dataset of ``fn(item)``, called on access."""

    @abstractmethod
    def _description(self) -> Description:
        """Return the text for `repr`; reads local indexes only."""

    @abstractmethod
    def __add__(  # type: ignore[override, unused-ignore] # torch's is not a sequence
        self, other: BaseDataset[Any]
    ) -> BaseDataset[Any]:
        """Return the concatenation of two datasets; see `Concat`."""

    def __radd__(self, other: int) -> Self:
        """Return the dataset itself for ``0 + ds``, which `sum` begins with."""
        if type(other) is int and other == 0:
            return self
        return NotImplemented

    @overload
    @abstractmethod
    def __getitem__(self, key: int | np.integer[Any]) -> T_co: ...
    @overload
    @abstractmethod
    def __getitem__(self, key: slice | Sequence[int] | NDArray[Any]) -> Self: ...
    @abstractmethod
    def __getitem__(self, key: Any) -> Any:
        """Return an item by position, or a dataset of several."""

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not is_missing(type(self), name)]

    def _at_epoch(self, epoch: int) -> Self:
        """Return the dataset with random crops of images as in an epoch.

        Combined datasets call it with the epoch of their own shuffle.
        """
        return self

    def _whole_epoch(self, epoch: int) -> Self:
        """Return all samples of an epoch of the shuffle, if there is one."""
        plan = self._plan._replace(start=0, skipped=0)
        if plan.shuffling is not None:
            plan = plan._replace(shuffling=plan.shuffling._replace(epoch=epoch))
        return self if plan == self._plan else self._with_plan(plan)

    def _is_counted(self) -> bool:
        """Return whether the number of items is known without opening shards."""
        return True

    @property
    def _is_share(self) -> bool:
        """True for a rank's share of a dataset."""
        return self._plan.is_share

    def _order(self) -> Order | None:
        return self._plan.order(self._total())

    def _select(self, key: Any) -> Self:
        """Return a dataset of the items selected by a slice, positions or a mask."""
        selected = compose(self._order(), select_positions(len(self), key))
        return self._with_plan(self._plan.select(selected))

    def _require_unmapped(self, method: str) -> None:
        """Raise FastshardError if samples are mapped or decoded already."""
        if self._stages:
            raise FastshardError(f"call {method} before map and decode, not after")

    def _map_item(self, item: Any) -> Any:
        for stage in self._stages:
            item = stage(item)
        return item

    def _map_item_at(self, item: Any, i: int) -> Any:
        """Map the item at position `i`; errors get a note with sample and position."""
        try:
            return self._map_item(item)
        except Exception as error:
            failure = add_notes(error, item, f"position {i:,} of the dataset")
            try:
                if failure is error:
                    raise
                raise failure from error
            finally:
                del failure  # its traceback has this frame: no cycle

    def _map_items(self, items: list[Any], positions: Sequence[Any]) -> list[Any]:
        """Map the items at `positions`; errors get a note with sample and position."""
        map_item = self._map_item
        mapped: list[Any] = []
        try:
            for item in items:
                mapped.append(map_item(item))
        except Exception as error:
            i = len(mapped)  # the item that failed
            where = f"position {positions[i]:,} of the dataset"
            failure = add_notes(error, items[i], where)
            try:
                if failure is error:
                    raise
                raise failure from error
            finally:
                del failure  # its traceback has this frame: no cycle
        return mapped

    def __getitems__(self, positions: Iterable[int]) -> list[T_co]:
        """Alias of `get_many` for torch's DataLoader."""
        guard_collation()
        guard_queue()
        return self.get_many(positions)

    @check_option_names("shuffle", notes=SHUFFLE_NOTES)
    def shuffle(
        self, seed: int = 0, epoch: int = 0, *, block: int | None = None
    ) -> Self:
        """Return a dataset of the same samples in pseudo-random order.

        The order is a permutation of all positions, computed sample by sample. It
        takes no memory, has no buffer, and is the same on every machine.
        ``ds.shuffle()`` is epoch 0 of seed 0: the same order in each run.

        Parameters
        ----------
        seed, epoch : int, default 0
            Determine the order, together with the number of samples and `block`. The
            first number is the seed, never the size of a buffer: ``ds.shuffle(1000)``
            is the order of seed 1000.
        block : int, optional
            Number of neighbours that stay together: blocks come in random order, and
            samples in random order within each block. Speeds up disks with slow
            random reads, at the price of less randomness: similar neighbours stay
            close to each other.

        Returns
        -------
        Dataset
            Of the same type as this one.

        Raises
        ------
        ValueError
            A number is out of range.

        Notes
        -----
        The permutation is a Feistel network with cycle walking (Black and Rogaway,
        "Ciphers with Arbitrary Finite Domains", CT-RSA 2002), keyed by seed and epoch.

        Examples
        --------
        >>> [sample.key for sample in ds.shuffle(seed=7, epoch=3)[:3]]
        ['0000...', '0000...', '0000...']
        >>> ds.shuffle(seed=7).keys()[0] == ds.shuffle(seed=7).keys()[0]
        True
        """
        if block is not None and index(block) < 1:
            raise ValueError(f"block must be at least 1, got {block}")
        block = None if block is None else min(index(block), MAX_COUNT)
        shuffling = Shuffling(check_seed(seed), check_seed(epoch), block)
        plan = self._plan
        if not plan.is_plain:
            plan = plan.select(self._order())
        return self._with_plan(plan._replace(shuffling=shuffling))

    def split_by_rank(
        self, rank: int, world_size: int, *, drop_last: Remainder = "pad"
    ) -> Self:
        """Return one rank's share: every `world_size`-th sample.

        Parameters
        ----------
        rank : int
            From 0 to ``world_size - 1``.
        world_size : int
        drop_last : {"pad", True, False}, default "pad"
            Handling of the remainder if `world_size` does not divide the number of
            samples. ``"pad"``: the first samples are repeated, at most
            ``world_size - 1`` of them. True: the remainder is dropped. False: the first
            ranks get one sample more; each sample occurs once, as metrics need it.

        Returns
        -------
        Dataset
            Of the same type as this one.

        Raises
        ------
        ValueError
            A number is out of range, or `drop_last` is another value.

        Notes
        -----
        Shares are equal by default, as those of torch's `DistributedSampler`: with
        unequal ones, ranks that average gradients wait forever for the rank that has
        no batch left. Shares begin with the same samples for each `drop_last`, and a
        state resumes with any.

        Shuffle before the split, not after. Workers of a torch iterable dataset divide
        the samples of a rank among themselves.

        Examples
        --------
        >>> shuffled = ds.shuffle(seed=7)
        >>> [len(shuffled.split_by_rank(rank, 3)) for rank in range(3)]
        [34, 34, 34]
        >>> [len(shuffled.split_by_rank(r, 3, drop_last=False)) for r in range(3)]
        [34, 33, 33]
        """
        rank, world_size = index(rank), index(world_size)
        if not 1 <= world_size <= MAX_COUNT:
            raise ValueError(f"world_size must be from 1 to 2**62, got {world_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be from 0 to {world_size - 1}, got {rank}")
        if drop_last not in (False, True, "pad"):
            raise ValueError(
                f'drop_last must be False, True or "pad", got {drop_last!r}'
            )
        plan = self._plan
        if plan.split is not None or plan.worker is not None:
            plan = plan.select(self._order())
        split = Split(rank, world_size, drop_last)
        return self._with_plan(plan._replace(split=split))

    def head(self, n: int = 5) -> list[T_co]:
        """Return the first items as a list.

        Shards behind them are neither opened nor counted, unless the dataset is
        shuffled or selected. For a dataset of the first items see `take`.

        Parameters
        ----------
        n : int, default 5
            Number of items; fewer if the dataset has fewer.

        Returns
        -------
        list
            Samples, or their mapped values.

        Raises
        ------
        ValueError
            `n` is negative.
        FormatError, OSError
            A sample cannot be read.

        Examples
        --------
        >>> [sample.key for sample in ds.head(3)]
        ['000000', '000001', '000002']
        """
        n = self._check_number(n)
        return self.get_many(range(min(n, len(self))))

    def take(self, n: int) -> Self:
        """Return a dataset of the first items.

        Parameters
        ----------
        n : int
            Number of items; all if the dataset has fewer.

        Returns
        -------
        Dataset
            Of the same type as this one.

        Raises
        ------
        ValueError
            `n` is negative.

        Examples
        --------
        >>> len(ds.shuffle(seed=7).take(8)), len(ds.take(1000))
        (8, 100)
        """
        return self._select(slice(0, self._check_number(n)))

    @staticmethod
    def _check_number(n: int) -> int:
        if index(n) < 0:
            raise ValueError(f"n must not be negative, got {n}")
        return index(n)

    def split(self, sizes: Sequence[float], seed: int | None = 0) -> list[Self]:
        """Divide the dataset at random into several without common samples.

        The parts are slices of ``ds.shuffle(seed)``: exact, the same on every machine,
        and computed sample by sample without memory.

        Parameters
        ----------
        sizes : sequence of float or int
            Fractions of sum 1: each part has its fraction of the samples, rounded
            down, and samples left over go to the parts with the largest remainders,
            the first of them if equal. Or numbers of samples, all int, whose sum is
            ``len(ds)``.
        seed : int, default 0
            Seed of the shuffle. None: no shuffle; the parts follow each other.

        Returns
        -------
        list of datasets
            With as many samples together as this one has.

        Raises
        ------
        ValueError
            The sizes have another sum, one is negative, or there is none.
        TypeError
            One is not a number, or fractions and numbers of samples are mixed.

        Examples
        --------
        >>> train, val = ds.split([0.9, 0.1], seed=3)
        >>> len(train), len(val)
        (90, 10)
        >>> set(train.keys()) & set(val.keys())
        set()
        >>> [len(part) for part in ds.split([60, 30, 10])]
        [60, 30, 10]
        """
        total = len(self)
        counts = split_sizes(sizes, total)
        order = self._order()
        if seed is not None:
            shuffling = Shuffling(check_seed(seed), 0, None)
            order = compose(order, shuffling.order(total))
        return [
            self._with_plan(
                self._plan.select(compose(order, Stride(end - n, 1, n, total)))
            )
            for n, end in zip(counts, accumulate(counts), strict=True)
        ]

    def __repr__(self) -> str:
        # Independent of whether samples were counted: grain compares sources by it.
        name = type(self).__name__
        try:
            return self._description().join(name)
        except Exception as error:
            return f"{name}(unreadable: {brief_error(error)})"

    def _repr_html_(self) -> str:
        """Return a table for notebooks, with the contents of `repr`."""
        from fastshard.dataset.display.html import dataset_html

        return dataset_html(self)

    def state_dict(self, done: int = 0) -> dict[str, Any]:
        """Return the state after the first `done` samples of this dataset.

        For loaders that fetch samples by position; iterators keep count themselves.

        Parameters
        ----------
        done : int, default 0
            Finished samples of this rank; the other ranks have finished as many.

        Returns
        -------
        dict
            JSON values of less than 1 KB: the dataset's identity, seed, epoch, and the
            position in the epoch of all ranks together.

        Raises
        ------
        ValueError
            `done` is negative or above the number of samples.

        Examples
        --------
        >>> state = ds.shuffle(seed=7, epoch=3).state_dict(done=40)
        >>> state["seed"], state["epoch"], state["position"]
        (7, 3, 40)
        >>> len(ds.resume(state))
        60
        """
        if not 0 <= index(done) <= len(self):
            raise ValueError(f"done must be from 0 to {len(self):,}, got {done}")
        return self._state_after(index(done))

    def _state_after(self, done: int, skipped: int | None = None) -> dict[str, Any]:
        base = order_digest(self._plan.base)
        return make_state(self._plan, self._identity(), base, done, skipped)

    def resume(self, state: Mapping[str, Any]) -> Self:
        """Return the remaining samples of the epoch in which a state was saved.

        The shuffle is taken from the state, the split from this dataset: the number of
        ranks may have changed.

        Parameters
        ----------
        state : Mapping
            A ``state_dict()`` of an iterator or of a dataset, also after JSON.

        Returns
        -------
        Dataset
            Of the same type as this one.

        Raises
        ------
        StateError
            The value is not a state; or it is of another dataset, selection or seed, or
            to a torch worker that skipped samples, which alone can resume it.

        Examples
        --------
        >>> batches = ds.shuffle(seed=7).batches(30)
        >>> first = next(batches)
        >>> rest = ds.resume(batches.state_dict())
        >>> len(rest), rest[0].key in first["__key__"]
        (70, False)
        """
        part = self._resume(state)
        check_worker(state)
        return part

    def _resume(self, state: Mapping[str, Any]) -> Self:
        base = order_digest(self._plan.base)
        return self._with_plan(resume_plan(state, self._plan, self._identity(), base))

    @check_option_names("iter")
    def iter(
        self,
        state: Mapping[str, Any] | None = None,
        *,
        order: Any = None,
        window: int = WINDOW,
        on_error: OnError = "raise",
    ) -> SampleIterator[T_co]:
        """Iterate over samples, prefetching their bytes.

        ``iter(ds)`` is short for ``ds.iter()``.

        Parameters
        ----------
        state : Mapping, optional
            The ``state_dict()`` of an iterator, to continue after it; see `resume`.
        order : slice, sequence of int, or array, optional
            The positions, or a mask, to iterate over: the iterator is that of
            ``ds[order]``. Its state resumes with ``ds[order].iter(state)``.
        window : int, default 32
            Number of samples to prefetch, more if they are small and contiguous.
            0 disables prefetching.
        on_error : "raise", "skip" or callable, default "raise"
            Handling of samples that cannot be read: raise, and continue with the next
            sample if iteration continues; skip them; or call
            ``on_error(error, position)`` and skip them. Skipped are errors that bad
            data can cause: `FastshardError`, `OSError`, `ValueError`, `EOFError`, and
            errors that decoders raise for the bytes of a field. A closed dataset, a
            missing library, and other errors of mapped functions (`TypeError`,
            `KeyError`, ...) are raised in any case.

        Returns
        -------
        SampleIterator
            Its ``position`` is that of the next sample in ``ds``, ``ds[order]`` or
            ``ds.resume(state)``. ``skipped`` is the number of skipped samples, before
            `state` too. ``state_dict()`` is the state after the samples so far, skipped
            ones included. ``close()`` ends the iteration. A state needs the number of
            samples in all shards; leave out unreadable ones with `Dataset.exclude`.

        Raises
        ------
        ValueError
            Both `state` and `order` are given, or an argument is invalid.

        Notes
        -----
        A native thread prefetches until the iteration ends. It is not started for
        shards that are in the page cache as a whole.

        A shard that cannot be opened is an error for each of its samples, or a single
        error if they were not counted before.

        Workers of a torch iterable dataset divide the samples. A worker's state resumes
        in the same worker of as many. It resumes outside workers too, if whole batches
        came in turn and no sample was skipped.

        Examples
        --------
        >>> iterator = ds.iter(order=range(0, 100, 10), on_error="skip")
        >>> next(iterator).key, next(iterator).key
        ('000000', '000010')
        >>> iterator.position, iterator.skipped
        (2, 0)
        >>> state = ds.iter(window=8).state_dict()
        >>> next(ds.iter(state)).key
        '000000'
        """
        handler = make_error_handler(on_error, self._is_skippable)
        part = self
        if order is not None:
            if state is not None:
                raise ValueError(
                    "expected a state or an order, got both: resume the state of an "
                    "order with ds[order].iter(state)"
                )
            part = self._select(order)
        guard_collation()
        return part._worker_share(1, state)._iterator(window, handler)

    def __iter__(self) -> SampleIterator[T_co]:
        return self.iter()

    @overload
    def batches(
        self,
        batch_size: int,
        *,
        collate: Callable[[list[T_co]], Batch],
        drop_last: bool = False,
        state: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
    ) -> BatchIterator[Batch]: ...
    @overload
    def batches(
        self: BaseDataset[Sample | Mapping[str, Any]],
        batch_size: int,
        *,
        collate: None = None,
        drop_last: bool = False,
        ragged: Ragged = "error",
        fill: Any = None,
        out: dict[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
    ) -> BatchIterator[dict[str, Any]]: ...
    @overload
    def batches(
        self,
        batch_size: int,
        *,
        collate: None = None,
        drop_last: bool = False,
        ragged: Ragged = "error",
        fill: Any = None,
        out: dict[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
    ) -> BatchIterator[Any]: ...
    @check_option_names("batches", aliases={"n": "batch_size"})
    def batches(
        self,
        batch_size: int,
        *,
        collate: Callable[[list[T_co]], Any] | None = None,
        drop_last: bool = False,
        ragged: Ragged = "error",
        fill: Any = None,
        out: dict[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
    ) -> BatchIterator[Any]:
        """Iterate over batches of samples, collated in this process.

        Parameters
        ----------
        batch_size : int
            Samples of a batch. The argument's former name, `n`, works too.
        collate : callable, optional
            Function from a list of samples to a batch; by default `fastshard.collate`.
        drop_last : bool, default False
            Drop a last batch of fewer samples.
        ragged, fill, out
            Options of `fastshard.collate`. Arrays in `out` have `batch_size` rows, and
            each batch overwrites the previous one.
        state : Mapping, optional
            As for `iter`.
        on_error : "raise", "skip" or callable, default "raise"
            As for `iter`; later samples take the places of skipped ones. Samples that
            `fastshard.collate` cannot read are skipped too. Errors of another `collate`
            are raised.

        Returns
        -------
        BatchIterator
            With ``position``, ``skipped`` and ``state_dict()`` as in `iter`, after the
            batches so far. Its length is an upper limit if samples are skipped. Ranks
            that skip different numbers of samples may end with different numbers of
            batches, and each rank needs its own state.

        Raises
        ------
        ValueError
            An argument is invalid, or an option of `fastshard.collate` is given with
            another `collate`.
        StateError
            The state belongs to another dataset.

        Examples
        --------
        >>> for batch in ds.select_fields("npy", "cls").batches(64):
        ...     batch["__key__"][0], batch["npy"].shape, batch["cls"][:3]
        ('000000', (64, 4), array([0, 1, 2]))
        ('000064', (36, 4), array([4, 5, 6]))
        >>> next(ds.batches(2, collate=lambda part: [s.text("txt") for s in part]))
        ['text 0', 'text 1']
        """
        if index(batch_size) < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if collate is None or collate is collate_samples:
            collate = Collation(ragged, out, fill=fill)
        elif ragged != "error" or fill is not None or out is not None:
            raise ValueError(
                "ragged, fill and out are options of fastshard.collate, not of another "
                "collate function"
            )
        handler = make_error_handler(on_error, self._is_skippable)
        part = self._worker_share(index(batch_size), state)
        if handler is not None and isinstance(collate, Collation):
            collate = collate.requiring(part._usual_fields)
        is_counted = handler is None or part._is_counted()
        samples, make = part._batch_parts(collate, handler)
        return BatchIterator(
            samples,
            len(part) if is_counted else part.__len__,
            index(batch_size),
            make,
            drop_last,
            handler,
        )

    def _batch_parts(
        self, collate: Callable[[list[Any]], Any], on_error: ErrorHandler | None
    ) -> tuple[SampleIterator[Any], Callable[[list[Any]], Any]]:
        """Return the samples of batches, and the function that collates them."""
        decodes = not isinstance(collate, Collation)
        return self._iterator(WINDOW, on_error, decodes), collate

    @check_option_names("loader", aliases={"n": "batch_size"}, notes=LOADER_NOTES)
    def loader(
        self,
        batch_size: int,
        *,
        threads: int | None = None,
        ahead: int = 2,
        allocate: Allocate | None = None,
        collate: Callable[[list[Any]], LoadedBatch] | None = None,
        drop_last: bool = False,
        ragged: Ragged = "error",
        fill: Any = None,
        on_error: LoaderOnError = "raise",
        map: Callable[[Any], Any] | None = None,  # noqa: A002 - the method's name
        state: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Loader[LoadedBatch]:
        """Iterate over batches made ahead by threads of this process.

        The batches are those of `batches`, in the same order. Threads share the work
        on a batch, so that the first one comes soon. Images are decoded into the memory
        of the batch.

        Parameters
        ----------
        batch_size : int
            Samples of a batch.
        threads : int, optional
            Number of threads; by default that of the processors that the process's
            affinity and cgroup allow. One more fetches the bytes of remote shards.
        ahead : int, default 2
            Number of batches made before they are requested.
        allocate : callable, optional
            ``allocate(field, shape, dtype) -> ndarray`` allocates the memory of
            batches, writable and C-contiguous; for memory of a device and the like. By
            default `numpy.empty`. Keep a batch until an asynchronous copy of it ended.
        collate : callable, optional
            Function from a list of samples to a batch, called in the threads; by
            default `fastshard.collate`.
        drop_last : bool, default False
            Drop a last batch of fewer samples.
        ragged : {"error", "list", "pad"}, default "error"
        fill : scalar, or mapping of str to scalar, optional
            As for `fastshard.collate`.
        on_error : {"raise", "skip", "mask"}, default "raise"
            Handling of a batch with samples that cannot be read. ``"raise"``: raise the
            error in place of that batch; ``next`` continues after it. ``"skip"``:
            leave the samples out, the batch is shorter; ``batch["__skipped__"]`` is a
            list of (position, member, text of the error). ``"mask"``: their rows are
            zeros (None in lists), and false in ``batch["__ok__"]``, bool [samples]:
            shapes are the same on all ranks. The same errors as of `iter` are skipped
            or masked.
        map : callable, optional
            ``map(sample)``, called in the threads; as ``ds.map(fn).loader(...)``.
        state : Mapping, optional
            A ``state_dict()`` of a loader, of `batches` or of `iter`, to continue after
            it.
        timeout : float, optional
            Seconds that ``next`` waits for a batch before it raises TimeoutError. The
            loader can still be used: ``next`` waits for the same batch again.

        Returns
        -------
        Loader
            Each ``for`` iterates over an epoch: of a shuffle the next one, once the
            last was exhausted. Its ``state_dict()`` counts the batches that were
            returned, not those made ahead. Arrays of a batch are the caller's; memory
            is used for a later batch once nothing refers to it. For a loop that keeps
            no batch it is that of ``ahead + 2`` batches.

        Raises
        ------
        ValueError, TypeError
            An argument is invalid, or an option of `fastshard.collate` is given with
            another `collate`.
        StateError
            The state belongs to another dataset.

        Notes
        -----
        In a worker process of a torch DataLoader the loader takes the worker's share,
        as `batches` does.

        Examples
        --------
        >>> with ds.select_fields("npy", "cls").loader(64, threads=2) as loader:
        ...     for batch in loader:
        ...         batch["__key__"][0], batch["npy"].shape, batch["cls"][:3]
        ('000000', (64, 4), array([0, 1, 2]))
        ('000064', (36, 4), array([4, 5, 6]))
        """
        from fastshard.dataset.sequence.loading import DatasetEpoch
        from fastshard.loader.loader import Loader
        from fastshard.loader.options import LoaderOptions

        options = LoaderOptions.checked(
            batch_size, threads, ahead, allocate, drop_last, on_error, timeout
        )
        function: Callable[[list[Any]], Any]
        function = collate_samples if collate is None else collate
        if function is collate_samples:
            function = Collation(ragged, fill=fill)
        elif ragged != "error" or fill is not None:
            raise ValueError(
                "ragged and fill are options of fastshard.collate, not of another "
                "collate function"
            )
        if on_error != "raise" and map is None and isinstance(function, Collation):
            function = function.requiring(self._usual_fields)
        start = DatasetEpoch(self, options.batch_size, map, function)
        if state is not None:
            start = start.resumed(state)
        return Loader(start, options, self._is_skippable)

    def _find_absence(self, name: str) -> FieldNotFoundError | None:
        """Return the error of a field that no sample of the first shards has."""
        return None

    def _usual_fields(self) -> frozenset[str] | None:
        """Return the fields that samples need for batches; None: any.

        Without named fields, those of most samples.
        """
        return None

    def _is_skippable(self, error: Exception) -> bool:
        """Return whether bad data of one sample can cause an error.

        A field absent from all samples is the caller's error.
        """
        if isinstance(error, FieldNotFoundError):
            absence = self._find_absence(error.name)
            if absence is not None:
                error.add_note(f"{absence}: on_error does not skip it")
                return False
        return is_skippable(error)

    # -- Interface of loaders: called by several threads

    @property
    def _is_finished(self) -> bool:
        """True if samples are not mapped or decoded: `_finish` does nothing."""
        return not self._stages

    @property
    def _is_remote(self) -> bool:
        """True if bytes of samples may come from a network."""
        return False

    def _fetch(self, positions: Sequence[int]) -> list[Any]:
        """Return unmapped samples by position, with their bytes in memory.

        Pass items of a combined dataset only to its `_finish`.
        """
        return list(self.get_many(positions))

    def _finish(self, items: list[Any], positions: Sequence[int]) -> list[Any]:
        """Map and decode items that `_fetch` returned for `positions`."""
        return items

    @property
    def _has_images(self) -> bool:
        """True if items have images, which are decoded after `_finish`."""
        return False

    def _loaded_parts(
        self, collate: Callable[[list[Any]], Any]
    ) -> tuple[LoadedDataset, Callable[[list[Any]], Any]]:
        """Return the dataset that a loader reads, and its collation."""
        return self, collate

    def _name_at(self, position: int) -> str:
        """Return shard and key of a sample, for messages."""
        return f"position {position:,}"

    def _worker_share(self, chunk: int, state: Mapping[str, Any] | None) -> Self:
        """Return this process's share of the samples, in chunks, after a state."""
        if self._is_share:
            warn_of_samplers()
        guard_queue()
        found = current_worker()
        if found is None:
            return self if state is None else self.resume(state)
        part = self if state is None else self._resume(state)
        plan = part._plan._replace(worker=Worker(*found, chunk))
        if state is not None and state.get("worker") is not None:
            plan = resume_worker(state, plan, self._identity())
        return part._with_plan(plan)
