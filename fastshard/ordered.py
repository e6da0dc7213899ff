"""What every dataset can do with its order: shuffle, split, go on where it was."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import index
from typing import Any, Self

from fastshard._core.orders import Order
from fastshard.batches import Batches, Describe, Stateful
from fastshard.collation import Collation, Padding
from fastshard.collation import collate as collate_samples
from fastshard.iteration import Iteration, OnError
from fastshard.plan import (
    Plan,
    Rest,
    Shuffling,
    Split,
    Worker,
    chained,
    checked_seed,
    describe,
)
from fastshard.reading import WINDOW
from fastshard.selection import chosen
from fastshard.state import Identity, plan_from, state_of, worker_from
from fastshard.workers import guard_collation, here

__all__ = ["Ordered"]

MOST = 1 << 62  # ranks, or samples of a block


class Ordered(Sequence[Any]):
    """A sequence whose positions come by a `Plan`."""

    __slots__ = ()

    _plan: Plan
    _stages: tuple[Callable[[Any], Any], ...]

    @abstractmethod
    def _planned(self, plan: Plan) -> Self:
        """Return the same, but for its plan."""

    @abstractmethod
    def _total(self) -> int:
        """Return how many samples there are to plan with."""

    @abstractmethod
    def _identity(self) -> Identity:
        """Say what dataset it is, whatever its order."""

    @abstractmethod
    def get_many(self, positions: Iterable[int]) -> list[Any]:
        """Return items by position, in the order given, as a list."""

    @abstractmethod
    def _steps(self, window: int, describe: Describe) -> Stateful:
        """Return an iterator over all items that knows its state."""

    def _order(self) -> Order | None:
        return self._plan.order(self._total())

    def _some(self, key: Any) -> Self:
        """Return a dataset of what a slice, positions or a mask choose."""
        return self._planned(Plan(chained(self._order(), chosen(len(self), key))))

    def _staged(self, item: Any) -> Any:
        """Map an item."""
        for stage in self._stages:
            item = stage(item)
        return item

    def __getitems__(self, positions: Iterable[int]) -> list[Any]:
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
        shuffling = Shuffling(checked_seed(seed), checked_seed(epoch), block)
        plan = self._plan
        if not plan.is_plain:
            plan = Plan(self._order())
        return self._planned(plan._replace(shuffling=shuffling))

    def split_by_rank(
        self, rank: int, world_size: int, *, drop_last: Rest = False
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
        return self._planned(plan._replace(split=split))

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

    def _state_after(self, done: int) -> dict[str, Any]:
        base = describe(self._plan.base)
        return state_of(self._plan, self._identity(), base, done)

    def resume(self, state: Mapping[str, Any]) -> Self:
        """Return the rest of the epoch that a state was taken in.

        The shuffle is the state's own. The split is this dataset's: it may be
        another than that of the state.

        Raises
        ------
        StateError
            It is no state, or of another dataset, selection or seed.
        """
        base = describe(self._plan.base)
        return self._planned(plan_from(state, self._plan, self._identity(), base))

    def iter(
        self,
        state: Mapping[str, Any] | None = None,
        *,
        on_error: OnError = "raise",
        window: int = WINDOW,
    ) -> Iterator[Any]:
        """Iterate over this process's share of the samples, from a state on.

        Parameters
        ----------
        state : Mapping, optional
            What ``state_dict()`` of an iterator returned; see `resume`.
        on_error, window
            As for `iterate` and `scan`.

        Returns
        -------
        iterator
            With ``state_dict()``: the state after what it has returned so far. For
            that all samples are counted: leave out shards that cannot be (`exclude`).
            The state of one of torch's workers is for the same worker of as many,
            or, of whole batches that came in turn, for a process that is none.
        """
        part = self._here(1, state)
        items = part._steps(window, part._state_after)
        return items if on_error == "raise" else Iteration(items, None, on_error)

    def __iter__(self) -> Iterator[Any]:
        return self.iter()

    def batches(
        self,
        n: int,
        *,
        collate: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        ragged: Padding = "list",
        out: dict[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> Batches:
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

        Returns
        -------
        iterator
            With a length, and ``state_dict()``: the state after the batches that it
            has returned so far.
        """
        if index(n) < 1:
            raise ValueError(f"a batch has at least 1 sample, not {n}")
        part = self._here(index(n), state)
        samples = part._steps(WINDOW, part._state_after)
        if collate is None or collate is collate_samples:
            collate = Collation(ragged, out)
        elif ragged != "list" or out is not None:
            raise ValueError("ragged and out are for fastshard.collate")
        return Batches(
            samples, len(part), index(n), collate, drop_last, part._state_after
        )

    def _here(self, chunk: int, state: Mapping[str, Any] | None) -> Self:
        """Return what of this falls to this process, from a state on."""
        part = self if state is None else self.resume(state)
        found = here()
        if found is None:
            return part
        plan = part._plan._replace(worker=Worker(*found, chunk))
        if state is not None and state.get("worker") is not None:
            plan = worker_from(state, plan, self._identity())
        return part._planned(plan)
