"""Sources of a loader's batches: epochs of a dataset, its samples, their collation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fastshard.dataset.sequence.batch import Collation
from fastshard.dataset.sequence.images import decode_rows
from fastshard.loader.epochs import FINISHED

if TYPE_CHECKING:
    from fastshard.dataset.order.plan import Plan
    from fastshard.loader.buffers import BufferSet

__all__ = ["DatasetEpoch", "DatasetSource"]


class LoadedDataset(Protocol):
    """The parts of `BaseDataset` that a loader uses."""

    @property
    def _plan(self) -> Plan: ...
    def __len__(self) -> int: ...
    @property
    def _is_finished(self) -> bool: ...
    @property
    def _is_remote(self) -> bool: ...
    def _fetch(self, positions: Sequence[int]) -> list[Any]: ...
    def _finish(self, items: list[Any], positions: Sequence[int]) -> list[Any]: ...
    @property
    def _has_images(self) -> bool: ...
    def _name_at(self, position: int) -> str: ...
    def _state_after(
        self, done: int, skipped: int | None = None
    ) -> Mapping[str, Any]: ...


class OrderedDataset(Protocol):
    """The parts of `BaseDataset` that epochs are made of."""

    @property
    def _plan(self) -> Plan: ...
    def _with_plan(self, plan: Plan) -> OrderedDataset: ...
    def _whole_epoch(self, epoch: int) -> OrderedDataset: ...
    def _worker_share(self, chunk: int, state: Mapping[str, Any] | None) -> Any: ...


class DatasetSource:
    """Samples of a dataset for a `Loader`; implements `BatchSource`."""

    def __init__(
        self,
        dataset: LoadedDataset,
        collate: Callable[[list[Any]], Any],
        states: LoadedDataset | None = None,
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._states = dataset if states is None else states
        self._count: int | None = None
        self.is_prepared = dataset._is_finished
        self.is_remote = dataset._is_remote
        self._has_images = dataset._has_images

    def __len__(self) -> int:
        if self._count is None:
            self._count = len(self._dataset)
        return self._count

    def fetch(self, start: int, stop: int) -> list[Any]:
        """Return samples with their bytes in memory; see `BatchSource`."""
        return self._dataset._fetch(range(start, stop))

    def prepare(
        self, items: list[Any], position: int, row: int, rows: int, buffers: BufferSet
    ) -> list[Any]:
        """Map and decode samples; see `BatchSource`."""
        positions = range(position, position + len(items))
        items = self._dataset._finish(items, positions)
        if not self._has_images:
            return items
        shared = buffers if isinstance(self._collate, Collation) else None
        return decode_rows(items, row, rows, shared)

    def collate(self, items: list[Any], buffers: BufferSet | None) -> Any:
        """Return the batch of prepared samples; see `BatchSource`."""
        collate = self._collate
        if buffers is not None and isinstance(collate, Collation):
            collate = collate.on_buffers(buffers)
        return collate(items)

    def check(self, item: Any) -> None:
        """Raise the error of a sample that only collation finds; see `BatchSource`."""
        if isinstance(self._collate, Collation):
            self._collate.check(item)

    def name_of(self, position: int) -> str:
        """Return shard and key of a sample; see `BatchSource`."""
        try:
            return self._dataset._name_at(position)
        except Exception:
            return f"position {position:,}"

    def state_after(self, done: int, skipped: int) -> dict[str, Any]:
        """Return the state after the first `done` positions; see `BatchSource`."""
        before = self._states._plan.skipped
        return dict(self._states._state_after(done, before + skipped))


class DatasetEpoch:
    """An epoch of a dataset for a `Loader`; implements `EpochSource`."""

    def __init__(
        self,
        dataset: OrderedDataset,
        chunk: int,
        map: Callable[[Any], Any] | None,  # noqa: A002 - the method's name
        collate: Callable[[list[Any]], Any],
    ) -> None:
        self._dataset = dataset
        self._chunk = chunk
        self._map = map
        self._collate = collate
        self._state: Mapping[str, Any] | None = None
        shuffling = dataset._plan.shuffling
        self.number = 0 if shuffling is None else shuffling.epoch

    def source(self) -> DatasetSource:
        """Return this process's samples from the position on; see `EpochSource`."""
        part = self._dataset._worker_share(self._chunk, self._state)
        mapped = part if self._map is None else part.map(self._map)
        loaded, collate = mapped._loaded_parts(self._collate)
        return DatasetSource(loaded, collate, part)

    def count(self) -> int:
        """Return the number of samples in the whole epoch; see `EpochSource`."""
        whole = self._dataset._whole_epoch(self.number)
        return len(whole._worker_share(self._chunk, None))

    def at(self, number: int) -> DatasetEpoch:
        """Return another epoch; see `EpochSource`."""
        return self._replaced(self._dataset._whole_epoch(number), number)

    def resumed(self, state: Mapping[str, Any]) -> DatasetEpoch:
        """Return the epoch and position of a state; see `EpochSource`."""
        part = self._dataset._worker_share(self._chunk, state)  # checks it
        dataset, shuffling = self._dataset, part._plan.shuffling
        if dataset._plan.shuffling is None:  # that of the state, in later epochs too
            dataset = dataset._with_plan(dataset._plan._replace(shuffling=shuffling))
        number = self.number if shuffling is None else shuffling.epoch
        found = self._replaced(dataset, number)
        if state.get(FINISHED) is True:
            return found.at(number + 1)
        found._state = state
        return found

    def _replaced(self, dataset: OrderedDataset, number: int) -> DatasetEpoch:
        """Return an epoch with the same options."""
        found = DatasetEpoch(dataset, self._chunk, self._map, self._collate)
        found.number = number
        return found
