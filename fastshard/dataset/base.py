"""What every dataset can do with its order: shuffle, split, go on where it was."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload
from warnings import warn

from fastshard._core.dataset.shard import add_notes
from fastshard._core.table.order import Order
from fastshard.dataset.batch import Collation, Padding
from fastshard.dataset.batch import collate as collate_samples
from fastshard.dataset.iteration import (
    BatchIterator,
    ErrorHandler,
    OnError,
    SampleIterator,
    T_co,
    handler_of,
)
from fastshard.dataset.order.plan import (
    Plan,
    Remainder,
    Shuffling,
    Split,
    Worker,
    check_seed,
    compose,
    order_digest,
)
from fastshard.dataset.order.selection import select_positions
from fastshard.dataset.order.state import (
    Identity,
    check_worker,
    make_state,
    resume_plan,
    resume_worker,
)
from fastshard.dataset.order.worker import current_worker, guard_collation
from fastshard.dataset.shardset import WINDOW
from fastshard.dataset.torch_base import Dataset as TorchDataset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard.formats.sample import Sample

__all__ = ["BaseDataset"]

T = TypeVar("T")
Batch = TypeVar("Batch")

MOST = 1 << 62  # ranks, or samples of a block


class BaseDataset(Sequence[T_co], TorchDataset[T_co]):
    """A sequence whose positions come by a `Plan`."""

    __slots__ = ()

    if TYPE_CHECKING:
        # Datasets are not added; torch's `Dataset` declares that they are.
        __add__: None  # type: ignore[assignment, unused-ignore]

    _plan: Plan
    _stages: tuple[Callable[[Any], Any], ...]

    @abstractmethod
    def _with_plan(self, plan: Plan) -> Self:
        """Return the same, but for its plan."""

    @abstractmethod
    def _total(self) -> int:
        """Return how many samples there are to plan with."""

    @abstractmethod
    def _identity(self) -> Identity:
        """Say what dataset it is, whatever its order."""

    @abstractmethod
    def get_many(self, positions: Iterable[int]) -> list[T_co]:
        """Return items by position, in the order given, as a list."""

    @abstractmethod
    def _iterator(
        self, window: int, on_error: ErrorHandler | None
    ) -> SampleIterator[T_co]:
        """Return an iterator over all items that knows its state."""

    @abstractmethod
    def map(self, fn: Callable[[T_co], T]) -> BaseDataset[T]:
        """Return a dataset of ``fn(item)``, called when an item is asked for."""

    @overload
    @abstractmethod
    def __getitem__(self, key: int | np.integer[Any]) -> T_co: ...
    @overload
    @abstractmethod
    def __getitem__(self, key: slice | Sequence[int] | NDArray[Any]) -> Self: ...
    @abstractmethod
    def __getitem__(self, key: Any) -> Any:
        """Return an item by position, or a dataset of some."""

    def _is_counted(self) -> bool:
        """Say whether the number of items is known."""
        return True

    def _order(self) -> Order | None:
        return self._plan.order(self._total())

    def _select(self, key: Any) -> Self:
        """Return a dataset of what a slice, positions or a mask choose."""
        return self._with_plan(
            Plan(compose(self._order(), select_positions(len(self), key)))
        )

    def _map_item(self, item: Any) -> Any:
        """Map an item."""
        for stage in self._stages:
            item = stage(item)
        return item

    def _map_item_at(self, item: Any, i: int) -> Any:
        """Map the item at a position; an error names it."""
        try:
            return self._map_item(item)
        except Exception as error:
            failure = add_notes(error, item, f"position {i:,} of the dataset")
            if failure is error:
                raise
            raise failure from error

    def _map_items(self, items: list[Any], positions: Sequence[Any]) -> list[Any]:
        """Map the items at some positions; an error names its item."""
        staged = self._map_item
        made: list[Any] = []
        try:
            for item in items:
                made.append(staged(item))  # an error is of the next
        except Exception as error:
            at = len(made)
            where = f"position {positions[at]:,} of the dataset"
            failure = add_notes(error, items[at], where)
            if failure is error:
                raise
            raise failure from error
        return made

    def __getitems__(self, positions: Iterable[int]) -> list[T_co]:
        """As `get_many`: how torch's DataLoader asks for a batch."""
        guard_collation()
        return self.get_many(positions)

    def shuffle(
        self, seed: int = 0, epoch: int = 0, *, block: int | None = None
    ) -> Self:
        """Return a dataset of the same samples in an order that looks random.

        A permutation of all positions is computed, sample by sample: nothing is
        stored or buffered, and it is the same on every machine.

        Parameters
        ----------
        seed, epoch : int
            What the order depends on, with the number of samples and `block`.
        block : int, optional
            Keep so many neighbours together: the blocks come in a random order,
            and the samples of each in a random order. For disks on which random
            reads are slow. The price: samples of one block, which may be alike,
            come close to each other.
        """
        if block is not None and index(block) < 1:
            raise ValueError(f"a block has at least 1 sample, not {block}")
        block = None if block is None else min(index(block), MOST)
        shuffling = Shuffling(check_seed(seed), check_seed(epoch), block)
        plan = self._plan
        if not plan.is_plain:
            plan = Plan(self._order())
        return self._with_plan(plan._replace(shuffling=shuffling))

    def split_by_rank(
        self, rank: int, world_size: int, *, drop_last: Remainder = False
    ) -> Self:
        """Return one rank's share: every `world_size`-th sample.

        Parameters
        ----------
        rank : int
            From 0 to ``world_size - 1``.
        world_size : int
        drop_last : {False, True, "pad"}
            What of samples that do not divide. False: the first ranks have one
            more. True: they are left out. ``"pad"``: the first samples come again.
            With the latter two all ranks have as many samples, so that none waits
            for another at the end of an epoch.

        Shuffle before, not after. torch's workers share a rank's samples out among
        themselves where an iterable dataset is iterated over.
        """
        rank, world_size = index(rank), index(world_size)
        if not 0 <= rank < world_size <= MOST:
            raise ValueError(f"rank {rank} of {world_size}")
        if drop_last not in (False, True, "pad"):
            raise ValueError(f'drop_last is False, True or "pad", not {drop_last!r}')
        plan = self._plan
        if plan.split is not None or plan.worker is not None:
            plan = Plan(self._order())
        split = Split(rank, world_size, drop_last)
        return self._with_plan(plan._replace(split=split))

    def state_dict(self, done: int = 0) -> dict[str, Any]:
        """Return the state after so many samples of this dataset.

        For loaders that ask for samples by position; ``iter(ds)`` counts by itself.

        Parameters
        ----------
        done : int
            Samples of this rank that are done; the other ranks have done as many.

        Returns
        -------
        dict
            Below 1 KB of JSON values: what dataset it is, seed, epoch, and the
            position in the epoch of all ranks together.
        """
        if not 0 <= index(done) <= len(self):
            raise ValueError(f"{done} samples done of {len(self):,}")
        return self._state_after(index(done))

    def _state_after(self, done: int, skipped: int | None = None) -> dict[str, Any]:
        base = order_digest(self._plan.base)
        return make_state(self._plan, self._identity(), base, done, skipped)

    def resume(self, state: Mapping[str, Any]) -> Self:
        """Return the rest of the epoch that a state was taken in.

        The shuffle is the state's own. The split is this dataset's: it may be
        another than that of the state.

        Raises
        ------
        StateError
            It is no state, or of another dataset, selection or seed; or of one of
            torch's workers that skipped samples, which is for that worker.
        """
        part = self._resume(state)
        check_worker(state)
        return part

    def _resume(self, state: Mapping[str, Any]) -> Self:
        base = order_digest(self._plan.base)
        return self._with_plan(resume_plan(state, self._plan, self._identity(), base))

    def iter(
        self,
        state: Mapping[str, Any] | None = None,
        *,
        order: Any = None,
        window: int = WINDOW,
        on_error: OnError = "raise",
    ) -> SampleIterator[T_co]:
        """Iterate over samples; their bytes are brought before they are asked for.

        ``iter(ds)`` is short for ``ds.iter()``.

        Parameters
        ----------
        state : Mapping, optional
            Go on where ``state_dict()`` of an iterator was taken; see `resume`.
        order : slice, sequence of int, or array, optional
            Positions, or a mask, to iterate over: ``ds[order]``. A state of it is for
            ``ds[order].iter(state)``.
        window : int
            How many samples are brought ahead; more of small ones that follow
            each other. 0: none.
        on_error : {"raise", "skip"} or callable
            What to do with a sample that cannot be read: raise, and go on with the
            next when that is asked for; or pass over it; or call
            ``on_error(error, position)`` and pass over it. Passed over is what the
            sample's data can cause: `FastshardError`, `OSError`, `ValueError`,
            `EOFError`, and whatever a field's decoder raises for its bytes. A closed
            dataset, a library that is missing, and other errors of a mapped function
            (`TypeError`, `KeyError`, ...) are raised in any case.

        Returns
        -------
        iterator
            With ``position``, that of the sample that comes next in ``ds``,
            ``ds[order]`` or ``ds.resume(state)``; ``skipped``, how many samples were
            passed over, those that the state counts included; ``state_dict()``, the
            state after what came so far, skipped or not; and ``close()``. For a state
            all samples are counted: leave out shards that cannot be (`exclude`).

        Raises
        ------
        ValueError
            A state and an order; or an argument is none of the above.

        Nothing is brought while all of a shard is in the page cache. A native
        thread does it otherwise; it ends with the iteration. A shard that cannot be
        opened is an error for each of its samples; for one, where they were not
        counted before. Workers of one of torch's iterable datasets share the samples
        out. The state of one of them is for the same worker of as many, or, of whole
        batches that came in turn without a sample skipped, for a process that is none.
        """
        handler = handler_of(on_error)
        part = self
        if order is not None:
            if state is not None:
                raise ValueError(
                    "a state or an order, not both: a state of ds[order] is for "
                    "ds[order].iter(state)"
                )
            part = self._select(order)
        guard_collation()
        return part._worker_share(1, state)._iterator(window, handler)

    def __iter__(self) -> SampleIterator[T_co]:
        return self.iter()

    def scan(self, order: Any = None, window: int = WINDOW) -> SampleIterator[T_co]:
        """Do what ``iter(order=order, window=window)`` does (deprecated)."""
        warn("scan is deprecated, use iter(order=)", DeprecationWarning, stacklevel=2)
        return self.iter(order=order, window=window)

    def iterate(
        self, *, on_error: OnError = "raise", order: Any = None, window: int = WINDOW
    ) -> SampleIterator[T_co]:
        """Do what `iter` does with the same arguments (deprecated)."""
        warn("iterate is deprecated, use iter", DeprecationWarning, stacklevel=2)
        return self.iter(order=order, window=window, on_error=on_error)

    @overload
    def batches(
        self,
        n: int,
        *,
        collate: Callable[[list[T_co]], Batch],
        drop_last: bool = False,
        state: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
    ) -> BatchIterator[Batch]: ...
    @overload
    def batches(
        self: BaseDataset[Sample | Mapping[str, Any]],
        n: int,
        *,
        collate: None = None,
        drop_last: bool = False,
        ragged: Padding = "list",
        out: dict[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
    ) -> BatchIterator[dict[str, Any]]: ...
    @overload
    def batches(
        self,
        n: int,
        *,
        collate: None = None,
        drop_last: bool = False,
        ragged: Padding = "list",
        out: dict[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
    ) -> BatchIterator[Any]: ...
    def batches(
        self,
        n: int,
        *,
        collate: Callable[[list[T_co]], Any] | None = None,
        drop_last: bool = False,
        ragged: Padding = "list",
        out: dict[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
    ) -> BatchIterator[Any]:
        """Iterate over batches of samples, collated in this process.

        Parameters
        ----------
        n : int
            Samples of a batch.
        collate : callable, optional
            Makes a batch of a list of samples; `fastshard.collate` without it.
        drop_last : bool
            Leave out a last batch of fewer than `n`.
        ragged, out
            As for `fastshard.collate`. Arrays in `out` are of `n` samples, and
            each batch overwrites the one before.
        state : Mapping, optional
            As for `iter`.
        on_error : {"raise", "skip"} or callable
            As for `iter`: batches are filled up from the samples that follow. Raw
            samples are passed over too where `fastshard.collate` cannot read them.
            Another `collate` reads by itself, and its errors are raised.

        Returns
        -------
        iterator
            With ``position``, ``skipped`` and ``state_dict()`` as those of `iter`,
            after the batches that it has returned so far; and a length, which is the
            most that may come where samples are passed over. Ranks that pass over
            different numbers of samples may end with different numbers of batches,
            and the state of each is for that rank.
        """
        if index(n) < 1:
            raise ValueError(f"a batch has at least 1 sample, not {n}")
        if collate is None or collate is collate_samples:
            collate = Collation(ragged, out)
        elif ragged != "list" or out is not None:
            raise ValueError("ragged and out are for fastshard.collate")
        handler = handler_of(on_error)
        part = self._worker_share(index(n), state)
        counted = handler is None or part._is_counted()
        return BatchIterator(
            part._iterator(WINDOW, handler),
            len(part) if counted else part.__len__,
            index(n),
            collate,
            drop_last,
            handler,
        )

    def _worker_share(self, chunk: int, state: Mapping[str, Any] | None) -> Self:
        """Return what of this falls to this process, from a state on."""
        found = current_worker()
        if found is None:
            return self if state is None else self.resume(state)
        part = self if state is None else self._resume(state)
        plan = part._plan._replace(worker=Worker(*found, chunk))
        if state is not None and state.get("worker") is not None:
            plan = resume_worker(state, plan, self._identity())
        return part._with_plan(plan)
