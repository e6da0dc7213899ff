"""Datasets in PyTorch: batches of tensors, and iterable datasets with a state.

A dataset is a map-style dataset as it is: ``DataLoader(ds.shuffle(7), ...)``. torch is
imported with this module.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data
from torch.multiprocessing.reductions import reduce_tensor

from fastshard.adapters.slots import ALIGNED, Slot, Slots, received
from fastshard.dataset.base import BaseDataset
from fastshard.dataset.batch import Collation, Padding
from fastshard.dataset.iteration import OnError, make_error_handler
from fastshard.errors import FastshardError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["IterableDataset", "TensorCollation", "collate", "to_tensor"]


def to_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return an array as a tensor on the same memory, without a warning.

    Parameters
    ----------
    array : ndarray
        Of a dtype that torch has. Of a dataset that was opened with
        ``mode="private"`` the tensor may be written to; of others it must not be:
        torch knows no read-only memory, and an in-place operation ends the process.

    Raises
    ------
    FastshardError
        torch has no such dtype.
    """
    try:
        if array.flags.writeable:
            return torch.from_numpy(array)
        try:
            return torch.from_dlpack(array)  # type: ignore[attr-defined, no-any-return]
        except BufferError:  # before torch knew of DLPack's flag for read-only memory
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.from_numpy(array)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise FastshardError(
            f"torch takes no array of {array.dtype} {array.shape}: {error}"
        ) from error


def collate(samples: Sequence[Any], *, ragged: Padding = "list") -> Any:
    """Put samples together into a batch of tensors: a ``collate_fn``.

    As `fastshard.collate`, with tensors in the place of arrays. In a worker process
    they are in shared memory that is used again when nothing refers to it any more.
    (As for every tensor that torch moves: NumPy arrays made of one do not follow it
    when it is sent to a third process or `share_memory_()` is called; copy them.)
    """
    return TensorCollation(ragged)(samples)


class TensorCollation(Collation):
    """A ``collate_fn`` with options, for tensors; see `collate`."""

    def __call__(self, samples: Sequence[Any]) -> Any:
        in_worker = torch.utils.data.get_worker_info() is not None
        if not in_worker or self.out is not None:
            return super().__call__(samples)
        _room.wanted = 0
        if _room.largest:
            _room.slot = _slots.take(_room.largest)
        try:
            return super().__call__(samples)
        finally:
            _room.slot = None
            _room.largest = max(_room.largest, _room.wanted)

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        found = None if _room.slot is None else _room.slot.place(shape, dtype)
        memory = super().allocate(shape, dtype) if found is None else found
        _room.wanted += memory.nbytes + ALIGNED
        return memory

    def wrap_stack(self, stack: NDArray[Any]) -> torch.Tensor:
        tensor = to_tensor(stack)
        slot = _room.slot
        if slot is None or slot.offset_of(tensor.data_ptr(), stack.nbytes) is None:
            return tensor
        sent: Any = tensor.as_subclass(SlotTensor)
        sent.slot = slot
        return sent  # type: ignore[no-any-return]

    def wrap_ragged(self, arrays: list[NDArray[Any]]) -> list[Any]:
        return [to_tensor(array.copy()) for array in arrays]


class SlotTensor(torch.Tensor):
    """A tensor in a slot; what is computed from it is a plain tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    slot: Slot

    @property
    def plain(self) -> torch.Tensor:
        """The same, of torch's own type."""
        return (
            self.detach().as_subclass(torch.Tensor).requires_grad_(self.requires_grad)
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return copy.deepcopy(self.plain, memo)


def _send(tensor: SlotTensor) -> tuple[Any, ...]:
    """Pickle a tensor for another process: by its place in the slot."""
    plain = tensor.plain
    slot = getattr(tensor, "slot", None)
    offset = None
    if slot is not None and plain.is_contiguous() and not plain.requires_grad:
        offset = slot.offset_of(plain.data_ptr(), plain.nbytes)
    if slot is None or offset is None:
        return reduce_tensor(plain)  # type: ignore[no-any-return]
    kind = plain.numpy().dtype
    return _receive, (slot.message(), offset, tuple(plain.shape), kind)


def _receive(
    message: Any, offset: int, shape: tuple[int, ...], dtype: Any
) -> torch.Tensor:
    return torch.from_numpy(received(message, offset, shape, dtype))


ForkingPickler.register(SlotTensor, _send)


class _Room(threading.local):
    slot: Slot | None = None  # of the batch that is made in this thread
    wanted = 0  # bytes of the batch that is made
    largest = 0  # of those before


_room = _Room()
_slots = Slots()


class IterableDataset(torch.utils.data.IterableDataset[Any]):
    """A dataset as one of torch's iterable ones, whose workers share it out.

    With torchdata's ``StatefulDataLoader`` it goes on exactly where the loader's state
    was taken, with as many workers.

    Parameters
    ----------
    dataset : Dataset, Mix or Zip
        Shuffled, split by rank and resumed as is wanted.
    batch_size : int, optional
        Give whole batches, for ``DataLoader(..., batch_size=None)``: the same ones,
        in the same order, with any number of workers. Without it single samples are
        given, of which each worker takes every n-th.
    drop_last : bool
        Leave out a last batch of fewer samples; one in all, not one a worker.
    collate : callable, optional
        Makes a batch of a list of samples; otherwise that of this module.
    on_error : {"raise", "skip"} or callable
        As for `Dataset.iter`, and `Dataset.batches` with a `batch_size`; a function
        must pickle for workers that are spawned. Where samples are skipped, the
        length is the most that may come, and batches depend on the number of workers.
    """

    def __init__(
        self,
        dataset: BaseDataset[Any],
        batch_size: int | None = None,
        *,
        drop_last: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        on_error: OnError = "raise",
    ) -> None:
        if batch_size is None and (drop_last or collate is not None):
            raise ValueError("drop_last and collate go with a batch_size")
        self._dataset = dataset
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._collate = TensorCollation() if collate is None else collate
        make_error_handler(on_error)  # no argument that there is not
        self._on_error = on_error
        # Shared with workers that live on.
        self._epoch = torch.tensor(-1, dtype=torch.int64).share_memory_()
        self._state: Mapping[str, Any] | None = None  # that the next iteration is from
        self._iterator: Any = None

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for another epoch from the next iteration on, in workers too."""
        if self._dataset._plan.shuffling is None:
            raise FastshardError("set_epoch is for a dataset that is shuffled")
        if epoch < 0:
            raise ValueError(f"an epoch is at least 0, not {epoch}")
        self._epoch.fill_(epoch)

    def _of_epoch(self) -> BaseDataset[Any]:
        epoch = int(self._epoch)
        plan = self._dataset._plan
        if epoch < 0 or plan.shuffling is None or plan.shuffling.epoch == epoch:
            return self._dataset
        shuffling = plan.shuffling._replace(epoch=epoch)
        plan = plan._replace(shuffling=shuffling, start=0, skipped=0)
        return self._dataset._with_plan(plan)

    def __len__(self) -> int:
        """Return how many samples, or batches, all workers of this rank give."""
        count = len(self._dataset)
        if self._batch_size is None:
            return count
        return (count if self._drop_last else count + self._batch_size - 1) // (
            self._batch_size
        )

    def __iter__(self) -> Iterator[Any]:
        state, self._state = self._state, None
        dataset = self._of_epoch()
        if self._batch_size is None:
            self._iterator = dataset.iter(state, on_error=self._on_error)
        else:
            self._iterator = dataset.batches(
                self._batch_size,
                collate=self._collate,
                drop_last=self._drop_last,
                state=state,
                on_error=self._on_error,
            )
        return self._iterator  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this process's iteration."""
        if self._iterator is not None:
            state: dict[str, Any] = self._iterator.state_dict()
            return state
        return dict(self._state or self._of_epoch().state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next iteration go on from a state."""
        self._state = state
        self._iterator = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_iterator": None}
