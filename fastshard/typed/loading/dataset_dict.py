"""Datasets by split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fastshard.typed.dataset import Dataset

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    from fastshard.typed.dict_sample import DictSample

    # `DatasetDict` alone is ``DatasetDict[DictSample]``.
    T = DefaultTypeVar("T", default=DictSample)
else:
    T = TypeVar("T")

__all__ = ["DatasetDict"]

# Methods of the only dataset, where there is one split.
METHODS = ("ordered", "shuffled", "as_type", "list_shards", "head")


class DatasetDict(dict[str, Dataset[T]], Generic[T]):
    """Datasets by the names of their splits; see `load_dataset`.

    A dict. With one split it has the methods `ordered`, `shuffled`, `as_type`,
    `list_shards` and `head` of that dataset.

    Parameters
    ----------
    splits : Mapping of str to Dataset, optional
    sample_type : type, optional
        By default that of the first dataset.
    streaming : bool, default False
        Kept as `DatasetDict.streaming`; datasets are read on access in any case.

    Examples
    --------
    >>> from fastshard import typed
    >>> splits = typed.load_dataset("splits/")
    >>> splits.keys(), splits.num_shards
    (dict_keys(['test', 'train']), {'test': 1, 'train': 2})
    >>> len(splits["train"]), splits.sample_type
    (20, <class 'fastshard.typed.dict_sample.DictSample'>)
    """

    def __init__(
        self,
        splits: Mapping[str, Dataset[T]] | None = None,
        sample_type: type[T] | None = None,
        streaming: bool = False,
    ) -> None:
        super().__init__(splits or {})
        self._sample_type = sample_type
        self._streaming = streaming

    @property
    def sample_type(self) -> type[T] | None:
        """The type of the samples; None if it was not given and there is no split."""
        if self._sample_type is None and self:
            return next(iter(self.values())).sample_type
        return self._sample_type

    @property
    def streaming(self) -> bool:
        """The argument ``streaming=`` of `load_dataset`."""
        return self._streaming

    @property
    def num_shards(self) -> dict[str, int]:
        """The number of shards of each split."""
        return {split: len(ds.list_shards()) for split, ds in self.items()}

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            )
        if len(self) == 1:
            return getattr(next(iter(self.values())), name)
        if not self:
            raise AttributeError(f"{type(self).__name__!r} has no split")
        splits = ", ".join(map(repr, self))
        raise AttributeError(
            f"{type(self).__name__!r} has {len(self)} splits ({splits}). Select one "
            f"first, e.g. ds_dict[{next(iter(self))!r}].{name}()"
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(METHODS if len(self) == 1 else ())]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({super().__repr__()})"
