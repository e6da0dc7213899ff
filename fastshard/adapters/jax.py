"""JAX adapter: a loader of arrays on devices. Importing this module imports jax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from fastshard.adapters.wrapper import LoaderWrapper
from fastshard.dataset.sequence.batch import UnusableArrayError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard.dataset.sequence.base import BaseDataset
    from fastshard.loader.loader import Loader

__all__ = ["ArrayLoader", "loader"]

KEPT = "OSUMm"  # kinds of dtypes that JAX lacks: objects, text, times


def loader(
    ds: BaseDataset[Any], batch_size: int, *, device: Any = None, **options: Any
) -> ArrayLoader:
    """Iterate over batches of JAX arrays, made ahead by threads.

    Parameters
    ----------
    ds : Dataset, Mix or Zip
        Shuffled, split by rank, of images or tokens, as for its own ``loader``.
    batch_size : int
        Samples of a batch.
    device : jax.Device or jax.sharding.Sharding, optional
        Where the arrays are; by default JAX's default device.
    **options
        As for `Dataset.loader`: ``threads``, ``ahead``, ``drop_last``, ``state`` and
        others.

    Returns
    -------
    ArrayLoader
        Each ``for`` iterates over an epoch, as of `Dataset.loader`. Its batches are the
        loader's with ``jax.Array`` in place of arrays, and never change: memory is used
        for a later batch once no array is on it, and on the CPU JAX may use NumPy's.
        Text and times stay NumPy's. 64-bit numbers become 32-bit ones unless
        ``jax_enable_x64`` is set.

    Raises
    ------
    FastshardError
        With a batch: a field has a dtype that JAX lacks.
    ValueError
        An option is out of range.

    Examples
    --------
    >>> import fastshard
    >>> import fastshard.adapters.jax
    >>> ds = fastshard.open("data/train-{0000..0003}.tar").shuffle(seed=1)
    >>> with fastshard.adapters.jax.loader(ds, 32, drop_last=True) as batches:
    ...     for batch in batches:
    ...         batch["npy"].shape
    (32, 4)
    (32, 4)
    (32, 4)
    """
    return ArrayLoader(ds.loader(batch_size, **options), device)


class ArrayLoader(LoaderWrapper):
    """Batches of JAX arrays; made by `loader`.

    Parameters
    ----------
    loader : Loader
        Closed with this.
    device : jax.Device or jax.sharding.Sharding, optional
        Where the arrays are.
    """

    def __init__(self, loader: Loader[Any], device: Any = None) -> None:
        super().__init__(loader)
        self._device = device

    def _convert_array(self, array: NDArray[Any]) -> Any:
        if array.dtype.kind in KEPT:
            return array
        try:
            return jax.device_put(array, self._device)
        except TypeError as error:
            raise UnusableArrayError.of("JAX", array, error) from error

    def _convert_batch(self, batch: Any) -> Any:
        # Not at the next batch: before that, a step may reuse the arrays' memory for
        # its results ("donated" buffers).
        return jax.block_until_ready(super()._convert_batch(batch))
