"""PyTorch adapter: batches of tensors, a loader, iterable datasets with a state.

A dataset itself is a map-style dataset: ``DataLoader(ds.shuffle(7), ...)``. Importing
this module imports torch.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
import torch.utils.data
from torch.multiprocessing.reductions import reduce_tensor

from fastshard.adapters.slots import ALIGNMENT, PeerSlot, Slot, Slots
from fastshard.adapters.wrapper import LoaderWrapper
from fastshard.dataset.order.worker import guard_queues, unsent_error
from fastshard.dataset.sequence.base import BaseDataset
from fastshard.dataset.sequence.batch import Collation, UnusableArrayError
from fastshard.dataset.sequence.iteration import OnError, make_error_handler
from fastshard.errors import FastshardError
from fastshard.formats.stacking.padding import Ragged

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard.loader.loader import Loader

__all__ = [
    "IterableDataset",
    "TensorCollation",
    "TensorLoader",
    "collate",
    "loader",
    "to_tensor",
]


def to_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return an array as a tensor on the same memory, without a warning.

    Parameters
    ----------
    array : ndarray
        Of a dtype that torch supports.

    Returns
    -------
    torch.Tensor
        It keeps the array's memory alive. It may be written to if the dataset was
        opened with ``mode="private"``. Otherwise an in-place operation ends the process
        (SIGSEGV), since torch does not check for read-only memory.

    Raises
    ------
    FastshardError
        torch does not support the dtype.

    Examples
    --------
    >>> import fastshard
    >>> from fastshard.adapters.torch import to_tensor
    >>> ds = fastshard.open("data/train-{0000..0003}.tar")
    >>> to_tensor(ds[7].array("npy"))
    tensor([7., 7., 7., 7.])
    """
    try:
        if array.flags.writeable:
            return torch.from_numpy(array)
        try:
            return torch.from_dlpack(array)  # type: ignore[attr-defined, no-any-return]
        except BufferError:  # a torch without DLPack's flag for read-only memory
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.from_numpy(array)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise UnusableArrayError.of("torch", array, error) from error


@overload
def collate(
    samples: None = None,
    *,
    ragged: Ragged = "error",
    fill: Any = None,
    lengths: bool = True,
    keys: bool = True,
) -> TensorCollation: ...
@overload
def collate(
    samples: Sequence[Any],
    *,
    ragged: Ragged = "error",
    fill: Any = None,
    lengths: bool = True,
    keys: bool = True,
) -> Any: ...
def collate(
    samples: Sequence[Any] | None = None,
    *,
    ragged: Ragged = "error",
    fill: Any = None,
    lengths: bool = True,
    keys: bool = True,
) -> Any:
    """Collate samples into a batch of tensors: a ``collate_fn``.

    As `fastshard.collate`, with tensors in place of arrays. In a worker process they
    are in shared memory, which is reused when they are no longer referenced. On Linux
    it is not limited by the size of ``/dev/shm``. (As for
    every tensor that torch moves: NumPy arrays on one do not follow it when it is sent
    to a third process or `share_memory_()` is called; copy them.)

    Parameters
    ----------
    samples : sequence, optional
        Raw samples, decoded ones (dicts), or values. Without them the result is a
        ``collate_fn`` with the other options: a `TensorCollation`.
    ragged : {"error", "list", "pad"}, default "error"
    fill : scalar, or mapping of str to scalar, optional
    lengths : bool, default True
        As for `fastshard.collate`, of arrays and of tensors.
    keys : bool
        False: batches are without ``"__key__"``, for trainers that pass all fields of
        a batch to a model, or move them to a device.

    Returns
    -------
    dict, or the collated values
        Of samples: ``"__key__"``, a list of str, and the fields: npy, cls and images
        are tensors ``[samples, *shape]``, text, JSON and other bytes are lists.

    Raises
    ------
    RaggedError
        Arrays or tensors differ in shape, or cannot be padded.
    FastshardError
        Samples have different fields, a field has a dtype that torch lacks, or a worker
        process gets no shared memory.
    ValueError
        There are no samples.

    Examples
    --------
    >>> import fastshard
    >>> from fastshard.adapters.torch import collate
    >>> from torch.utils.data import DataLoader
    >>> ds = fastshard.open("data/train-{0000..0003}.tar")
    >>> loader = DataLoader(ds.shuffle(seed=1), batch_size=32, collate_fn=collate)
    >>> batch = next(iter(loader))
    >>> batch["npy"].shape, batch["cls"].dtype
    (torch.Size([32, 4]), torch.int64)
    >>> loader = DataLoader(
    ...     ds.select_fields("npy", "cls"), 32, collate_fn=collate(keys=False)
    ... )
    >>> list(next(iter(loader)))
    ['npy', 'cls']
    """
    collation = TensorCollation(ragged, keys=keys, fill=fill, lengths=lengths)
    return collation if samples is None else collation(samples)


class TensorCollation(Collation):
    """Collate samples into tensors with options: a ``collate_fn``.

    Parameters
    ----------
    ragged : {"error", "list", "pad"}, default "error"
        As for `collate`.
    out : dict, optional
        Arrays by field that stacks are written to; as for `fastshard.collate`.
    keys, fill, lengths
        As for `collate`.

    Examples
    --------
    >>> import fastshard
    >>> from fastshard.adapters.torch import TensorCollation
    >>> ds = fastshard.open("data/train-{0000..0003}.tar")
    >>> collate = TensorCollation(ragged="error")
    >>> collate([ds[0], ds[1]])["cls"]
    tensor([0, 1])
    """

    def __call__(self, samples: Sequence[Any]) -> Any:
        if torch.utils.data.get_worker_info() is None:
            return super().__call__(samples)
        with _slots.batch():
            return super().__call__(samples)

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return memory for a stack; in a worker process, shared with the loader's.

        Returns
        -------
        ndarray
            Uninitialized.

        Examples
        --------
        >>> from fastshard.adapters.torch import TensorCollation
        >>> TensorCollation().allocate((2, 3), "f4").shape
        (2, 3)
        """
        # Arrays of `out` are overwritten while a worker sends them: copies are sent.
        shared = None if self.out is not None else _slots.allocate(shape, dtype)
        return super().allocate(shape, dtype) if shared is None else shared

    def wrap_stack(self, stack: NDArray[Any]) -> torch.Tensor:
        """Return the batch's tensor for a stack.

        Parameters
        ----------
        stack : ndarray
            Memory that `allocate` returned, or of `out`.

        Returns
        -------
        torch.Tensor
            On the same memory; a copy if it is of `out`, in a worker process.

        Raises
        ------
        FastshardError
            torch does not support the dtype, or there is no shared memory.

        Examples
        --------
        >>> from fastshard.adapters.torch import TensorCollation
        >>> TensorCollation().wrap_stack(np.zeros(2))
        tensor([0., 0.], dtype=torch.float64)
        """
        return share(to_tensor(stack))

    def wrap_ragged(self, arrays: list[NDArray[Any]]) -> list[Any]:
        """Return the batch's tensors for ragged arrays.

        Parameters
        ----------
        arrays : list of ndarray
            Of one field.

        Returns
        -------
        list of torch.Tensor
            Copies, writable.

        Raises
        ------
        FastshardError
            torch does not support a dtype, or there is no shared memory.

        Examples
        --------
        >>> from fastshard.adapters.torch import TensorCollation
        >>> TensorCollation().wrap_ragged([np.zeros(1), np.zeros(2)])
        [tensor([0.], dtype=torch.float64), tensor([0., 0.], dtype=torch.float64)]
        """
        if not _slots.is_open:
            return [to_tensor(array.copy()) for array in arrays]
        return share_list(list(map(to_tensor, arrays)))

    def wrap_tensors(self, tensors: list[Any]) -> Any:
        """Return the batch's value for tensors: a stack, or a list of ragged ones.

        Parameters
        ----------
        tensors : list of torch.Tensor
            Of one field.

        Raises
        ------
        FastshardError
            There is no shared memory.

        Examples
        --------
        >>> import torch
        >>> from fastshard.adapters.torch import TensorCollation
        >>> TensorCollation().wrap_tensors([torch.zeros(2)] * 3).shape
        torch.Size([3, 2])
        """
        found = super().wrap_tensors(tensors)
        if isinstance(found, torch.Tensor):
            return share(found)
        return share_list(found)


class SlotTensor(torch.Tensor):
    """A tensor in a slot; results of operations on it are plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    slot: Slot

    @property
    def plain(self) -> torch.Tensor:
        """The same tensor, as a `torch.Tensor`."""
        return (
            self.detach().as_subclass(torch.Tensor).requires_grad_(self.requires_grad)
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return copy.deepcopy(self.plain, memo)


def share(tensor: torch.Tensor, together: int = 0) -> torch.Tensor:
    """Return a tensor of a batch in shared memory, if a worker process collates it.

    torch would share it only in the thread that sends batches: if that fails, it drops
    the batch. `together` are the bytes of the list that the tensor is of.
    """
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    is_here = is_plain and tensor.device.type == "cpu" and not tensor.requires_grad
    if not _slots.is_open or not is_here:
        return tensor
    slot = _slots.find(tensor.data_ptr(), tensor.nbytes)
    if slot is None or not tensor.is_contiguous():
        memory = _slots.allocate((tensor.nbytes,), np.uint8, together)
        if memory is None:
            return _share_by_torch(tensor)
        copied = torch.from_numpy(memory).view(tensor.dtype).view(tensor.shape)
        tensor = copied.copy_(tensor)
        slot = _slots.find(tensor.data_ptr(), tensor.nbytes)
    sent: Any = tensor.as_subclass(SlotTensor)
    sent.slot = slot
    return sent  # type: ignore[no-any-return]


def share_list(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors of a list in shared memory, as `share` does."""
    together = sum(tensor.nbytes + ALIGNMENT for tensor in tensors)
    return [share(tensor, together) for tensor in tensors]


def _share_by_torch(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.nbytes == 0:
        return tensor
    try:
        shared: torch.Tensor = tensor.share_memory_()
    except (RuntimeError, OSError) as error:
        raise unsent_error(error) from error
    return shared


def _reduce_slot_tensor(tensor: SlotTensor) -> tuple[Any, ...]:
    """Reduce a tensor for another process, to its offset in the slot."""
    plain = tensor.plain
    slot = getattr(tensor, "slot", None)
    offset = None
    if slot is not None and plain.is_contiguous() and not plain.requires_grad:
        offset = slot.offset_of(plain.data_ptr(), plain.nbytes)
    if slot is None or offset is None:
        return reduce_tensor(plain)  # type: ignore[no-any-return]
    slot.count_sent()
    return _open_tensor, (slot, offset, plain.dtype, tuple(plain.shape))


def _open_tensor(
    slot: PeerSlot, offset: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    stored = slot.array(offset, math.prod(shape) * dtype.itemsize)
    return torch.from_numpy(stored).view(dtype).view(shape)


ForkingPickler.register(SlotTensor, _reduce_slot_tensor)
guard_queues()
_slots = Slots()


class IterableDataset(torch.utils.data.IterableDataset[Any]):
    """Divide the samples of a dataset among a DataLoader's workers.

    A `fastshard.Dataset` itself is a map-style dataset: ``DataLoader(ds.shuffle(7),
    ...)``. This class is for whole batches that do not depend on the number of workers,
    and for torchdata's ``StatefulDataLoader``, with which an iteration resumes exactly
    at the loader's state, with as many workers.

    Parameters
    ----------
    dataset : Dataset, Mix or Zip
        May be shuffled, split by rank and resumed.
    batch_size : int, optional
        Yield whole batches, for ``DataLoader(..., batch_size=None)``: the same batches,
        in the same order, for any number of workers. By default single samples are
        yielded; each of n workers yields every n-th.
    drop_last : bool
        Drop the last batch if it is smaller; one in all, not one per worker.
    collate : callable, optional
        Makes a batch from a list of samples; by default `collate` of this module.
    on_error : "raise", "skip" or callable
        As for `Dataset.iter`, and `Dataset.batches` with a `batch_size`. A function
        must be picklable for spawned workers. With skipped samples the length is an
        upper bound, and batches depend on the number of workers.

    Raises
    ------
    ValueError
        `drop_last` or `collate` are given without a `batch_size`, or `on_error` is
        invalid.

    Examples
    --------
    >>> import fastshard
    >>> from fastshard.adapters.torch import IterableDataset
    >>> from torch.utils.data import DataLoader
    >>> ds = fastshard.open("data/train-{0000..0003}.tar")
    >>> batches = IterableDataset(ds.shuffle(seed=1), batch_size=32, drop_last=True)
    >>> for batch in DataLoader(batches, batch_size=None, num_workers=2):
    ...     batch["npy"].shape
    torch.Size([32, 4])
    torch.Size([32, 4])
    torch.Size([32, 4])
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
            raise ValueError("drop_last and collate need a batch_size")
        self._dataset = dataset
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._collate = TensorCollation() if collate is None else collate
        make_error_handler(on_error)  # checks the argument
        self._on_error = on_error
        # In shared memory, for persistent workers.
        self._epoch = torch.tensor(-1, dtype=torch.int64).share_memory_()
        self._state: Mapping[str, Any] | None = None  # where the next iteration starts
        self._iterator: Any = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the shuffle from the next iteration on, in workers too.

        Parameters
        ----------
        epoch : int
            At least 0. Each epoch has an order of its own.

        Raises
        ------
        FastshardError
            The dataset is not shuffled.
        ValueError
            `epoch` is negative.

        Examples
        --------
        >>> from fastshard.adapters.torch import IterableDataset
        >>> batches = IterableDataset(ds.shuffle(seed=1), batch_size=32)
        >>> for epoch in range(2):
        ...     batches.set_epoch(epoch)
        ...     count = sum(len(batch["cls"]) for batch in batches)
        >>> count
        100
        """
        if self._dataset._plan.shuffling is None:
            raise FastshardError("set_epoch needs a shuffled dataset: ds.shuffle(seed)")
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        self._epoch.fill_(epoch)

    def _apply_epoch(self) -> BaseDataset[Any]:
        """Return the dataset, shuffled for the epoch that was set."""
        epoch = int(self._epoch)
        shuffling = self._dataset._plan.shuffling
        if epoch < 0 or shuffling is None or shuffling.epoch == epoch:
            return self._dataset
        return self._dataset._whole_epoch(epoch)

    def __len__(self) -> int:
        """Return the number of samples, or batches, of all workers of this rank.

        Returns
        -------
        int
            An upper bound if `on_error` skips samples.

        Examples
        --------
        >>> from fastshard.adapters.torch import IterableDataset
        >>> len(IterableDataset(ds, batch_size=32))
        4
        """
        count = len(self._dataset)
        if self._batch_size is None:
            return count
        return (count if self._drop_last else count + self._batch_size - 1) // (
            self._batch_size
        )

    def __iter__(self) -> Iterator[Any]:
        state, self._state = self._state, None
        dataset = self._apply_epoch()
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
        """Return the state of this process's iteration.

        torchdata's ``StatefulDataLoader`` calls it in each worker.

        Returns
        -------
        dict
            JSON below 1 KB, for `load_state_dict`.

        Examples
        --------
        >>> from fastshard.adapters.torch import IterableDataset
        >>> batches = IterableDataset(ds, batch_size=32)
        >>> first = next(iter(batches))
        >>> batches.state_dict()["position"]
        32
        """
        if self._iterator is not None:
            state: dict[str, Any] = self._iterator.state_dict()
            return state
        return dict(self._state or self._apply_epoch().state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start the next iteration at a state.

        Parameters
        ----------
        state : Mapping
            The result of `state_dict`. A state of another dataset, selection or shuffle
            is refused by the next iteration (`StateError`).

        Examples
        --------
        >>> from fastshard.adapters.torch import IterableDataset
        >>> batches = IterableDataset(ds, batch_size=32)
        >>> first = next(iter(batches))
        >>> state = batches.state_dict()
        >>> batches.load_state_dict(state)
        >>> next(iter(batches))["__key__"][0]
        '000032'
        """
        self._state = state
        self._iterator = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_iterator": None}


def loader(
    ds: BaseDataset[Any],
    batch_size: int,
    pin: bool = False,
    device: torch.device | str | int | None = None,
    **options: Any,
) -> TensorLoader:
    """Iterate over batches of tensors, made ahead by threads.

    Parameters
    ----------
    ds : Dataset, Mix or Zip
        Shuffled, split by rank, of images or tokens, as for its own ``loader``.
    batch_size : int
        Samples of a batch.
    pin : bool
        Make batches in pinned memory, for fast and asynchronous copies to a GPU. It is
        that of torch's own allocator, which uses it again after the copies from it.
    device : torch.device, str or int, optional
        Where the tensors are. By default they are in the loader's memory.
    **options
        As for `Dataset.loader`: ``threads``, ``ahead``, ``drop_last``, ``state`` and
        others.

    Returns
    -------
    TensorLoader
        Each ``for`` iterates over an epoch, as of `Dataset.loader`. Its batches are the
        loader's with tensors in place of arrays, on their memory and writable. They are
        the caller's: memory is used for a later batch once no tensor is on it. On a
        device they are copies, asynchronous if `pin` is true.
        Images are uint8 ``[B, H, W, C]``; ``x.permute(0, 3, 1, 2)`` is a view
        ``[B, C, H, W]`` in torch's ``channels_last`` format.

    Raises
    ------
    FastshardError
        `pin` or a CUDA `device`, and torch finds no CUDA; or, with a batch, a field
        has a dtype that torch lacks.
    ValueError
        An option is out of range, or `pin` is combined with ``allocate``.

    Examples
    --------
    >>> import fastshard
    >>> import fastshard.adapters.torch
    >>> ds = fastshard.open("data/train-{0000..0003}.tar").shuffle(seed=1)
    >>> with fastshard.adapters.torch.loader(ds, 32, drop_last=True) as batches:
    ...     for batch in batches:
    ...         batch["npy"].shape, batch["cls"].dtype
    (torch.Size([32, 4]), torch.int64)
    (torch.Size([32, 4]), torch.int64)
    (torch.Size([32, 4]), torch.int64)
    """
    place = None if device is None else torch.device(device)
    asks_cuda = "pin=True" if pin else f"device={device!r}"
    if (pin or (place and place.type == "cuda")) and not torch.cuda.is_available():
        raise FastshardError(f"{asks_cuda} needs CUDA, which torch does not find here")
    if pin:
        if options.get("allocate") is not None:
            raise ValueError("pin=True and allocate= exclude each other")
        options["allocate"] = _allocate_pinned
    return TensorLoader(ds.loader(batch_size, **options), place)


def _allocate_pinned(field: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an array in pinned memory: the `allocate` of a loader."""
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    memory = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    array: NDArray[Any] = memory.numpy().view(dtype).reshape(shape)
    return array


_allocate_pinned.recycles = True  # type: ignore[attr-defined]


def _tensor_on(array: NDArray[Any]) -> torch.Tensor:
    """Return an array of `_allocate_pinned` as a tensor on its storage.

    torch notes copies from a storage that its allocator knows, also from parts of it.
    """
    tensor = to_tensor(array)
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if not isinstance(owner, torch.Tensor) or owner.dtype != torch.uint8:
        return tensor  # memory of a user's function
    start = (tensor.data_ptr() - owner.data_ptr()) // tensor.element_size()
    return owner.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), start)


class TensorLoader(LoaderWrapper):
    """Batches of tensors; made by `loader`.

    Parameters
    ----------
    loader : Loader
        Closed with this.
    device : torch.device, optional
        Where the tensors are; None or a CPU: on the loader's memory.
    """

    def __init__(self, loader: Loader[Any], device: torch.device | None = None) -> None:
        super().__init__(loader)
        is_copied = device is not None and device.type != "cpu"
        self._device = device if is_copied else None
        # Batches whose copies may be running, with their arrays, to keep these alive.
        self._copies: deque[tuple[torch.cuda.Event, Any]] = deque()

    def _convert_array(self, array: NDArray[Any]) -> torch.Tensor:
        # A mapped file is copied: an in-place operation would end the process.
        tensor = _tensor_on(array if array.flags.writeable else array.copy())
        return tensor if self._device is None else self._send(tensor, self._device)

    def _send(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        return tensor.to(device, non_blocking=device.type == "cuda")

    def _convert_batch(self, batch: Any) -> Any:
        converted = super()._convert_batch(batch)
        if self._device is not None and self._device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._device))
            self._copies.append((event, batch))
        return converted

    def _await_reads(self) -> None:
        while self._copies:
            self._copies.popleft()[0].synchronize()
