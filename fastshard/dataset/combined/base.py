"""Datasets made of datasets: their base, their iterator, and ``a + b``."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from hashlib import blake2b
from itertools import accumulate, groupby
from operator import is_
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Self,
    TypeAlias,
    cast,
    overload,
)

from fastshard._core.dataset.streams import CallGuard
from fastshard._core.table.order import Order
from fastshard._util.options import check_choice
from fastshard.dataset.combined.chain import ChainIterator
from fastshard.dataset.combined.concat_keys import ConcatKeys
from fastshard.dataset.display.text import (
    Description,
    describe_parts,
    describe_plan,
    describe_stage,
)
from fastshard.dataset.order.plan import Plan, order_digest
from fastshard.dataset.order.samplers import warn_of_samplers
from fastshard.dataset.order.state import Identity
from fastshard.dataset.sequence.base import BaseDataset, T
from fastshard.dataset.sequence.images import decode_item
from fastshard.dataset.sequence.iteration import (
    ErrorHandler,
    SampleIterator,
    T_co,
)
from fastshard.errors import FieldNotFoundError
from fastshard.formats.field_info import FieldInfo, merge_field_infos

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard.dataset.sequence.images import ImageSample
    from fastshard.formats.sample import Sample

__all__ = [
    "CombinedDataset",
    "CombinedIterator",
    "Concat",
    "Getter",
    "UnionDataset",
    "combine_identities",
    "concatenate",
    "finish_items",
    "get_many",
    "merge_fields",
    "read_sources",
]


class FetchedItem(NamedTuple):
    """Result of a part's `_fetch`, with its position there, for its `_finish`."""

    part: BaseDataset[Any]
    item: Any
    position: int


# Reads items of a dataset by position.
Getter: TypeAlias = Callable[[BaseDataset[Any], list[int]], list[Any]]


def get_many(dataset: BaseDataset[Any], positions: list[int]) -> list[Any]:
    """Return mapped items."""
    return dataset.get_many(positions)


def fetch_items(dataset: BaseDataset[Any], positions: list[int]) -> list[Any]:
    """Return items as `FetchedItem`, for `finish_items`."""
    items = dataset._fetch(positions)
    return [
        FetchedItem(dataset, item, i) for item, i in zip(items, positions, strict=True)
    ]


def finish_items(items: Iterable[FetchedItem]) -> list[Any]:
    """Map and decode items in order; neighbours of one part together."""
    finished: list[Any] = []
    for _, group in groupby(items, key=lambda item: id(item.part)):
        run = list(group)
        positions = [item.position for item in run]
        finished += run[0].part._finish([item.item for item in run], positions)
    return finished


class CombinedDataset(BaseDataset[T_co]):
    """Base class of `Mix`, `Zip` and `Concat`: datasets over other datasets.

    A base position is that of an item before selection, shuffle and split. The source
    datasets are not closed with this one.
    """

    # The parts with the epoch of this dataset's shuffle.
    _cached_parts: Sequence[Any] | None = None

    def __init__(self, plan: Plan, stages: tuple[Callable[[Any], Any], ...]) -> None:
        self._plan = plan
        self._stages = stages
        self._cached_order: Order | None = None  # once counted; None: base positions
        self._count: int | None = None
        self._cached_identity: Identity | None = None

    @abstractmethod
    def _copy(
        self, plan: Plan, stages: tuple[Callable[[Any], Any], ...]
    ) -> CombinedDataset[Any]:
        """Return a copy with another plan and other stages."""

    @abstractmethod
    def _identify(self) -> Identity:
        """Compute the identity of the data, independent of its order."""

    def _identity(self) -> Identity:
        if self._cached_identity is None:
            self._cached_identity = self._identify()
        return self._cached_identity

    @abstractmethod
    def _parts(self) -> Sequence[BaseDataset[Any]]:
        """Return the source datasets."""

    @abstractmethod
    def _read(self, base_positions: Iterable[int], get: Getter = get_many) -> list[Any]:
        """Return unmapped items by base position; `get` reads those of a part."""

    @abstractmethod
    def _finish_parts(self, items: list[Any]) -> list[Any]:
        """Map and decode the parts' items that `_read` returned with `fetch_items`."""

    def _with_plan(self, plan: Plan) -> Self:
        return cast(Self, self._copy(plan, self._stages))

    def _at_epoch(self, epoch: int) -> Self:
        parts = self._parts_at(epoch)
        if all(map(is_, parts, self._parts())):
            return self
        copied = copy(self)
        copied._cached_parts = parts
        return copied

    def _read_parts(self) -> Sequence[BaseDataset[Any]]:
        """Return the source datasets, with images as in the epoch of this one."""
        if self._cached_parts is None:
            epoch = self._plan.epoch
            if epoch is None:
                return self._parts()
            self._cached_parts = self._parts_at(epoch)
        return self._cached_parts

    def _parts_at(self, epoch: int) -> Sequence[BaseDataset[Any]]:
        return [part._at_epoch(epoch) for part in self._parts()]

    @property
    def _is_share(self) -> bool:
        return self._plan.is_share or any(part._is_share for part in self._parts())

    def __len__(self) -> int:
        if self._is_share:
            warn_of_samplers()
        return self._size()

    def _size(self) -> int:
        """Return the number of items; sets the order."""
        if self._count is None:
            total = self._total()
            self._cached_order = order = self._plan.order(total)
            self._count = total if order is None else order.count
        return self._count

    def _order(self) -> Order | None:
        self._size()
        return self._cached_order

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> T_co: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | NDArray[Any]) -> Self: ...
    def __getitem__(self, key: Any) -> Any:
        """Return an item by position, or a dataset of several.

        Parameters
        ----------
        key : int, slice, sequence of int, or array
            As for a `Dataset`, except that there are no keys.

        Returns
        -------
        object
            A sample, a pair of samples, or their mapped value; for a slice, positions
            or a mask a dataset of the same type.

        Raises
        ------
        IndexError
            A position is out of range.
        FormatError, OSError
            A sample cannot be read.

        Examples
        --------
        >>> mixed = fastshard.mix([ds, ds])
        >>> mixed[0].text("txt"), len(mixed[10:20])
        ('text ...', 10)
        """
        if getattr(key, "ndim", 0) == 0 and hasattr(key, "__index__"):
            return self.get_many([key])[0]
        return self._select(key)

    def get_many(self, positions: Iterable[int]) -> list[T_co]:
        """Return items by position, in the given order.

        Parameters
        ----------
        positions : iterable of int, or array
            Negative ones count from the end.

        Raises
        ------
        IndexError
            A position is out of range.
        FormatError, OSError
            A sample cannot be read.

        Examples
        --------
        >>> [sample.key for sample in fastshard.mix([ds, ds]).get_many([0, -1])]
        ['0000...', '0000...']
        """
        numbers = range(self._size())
        resolved = [numbers[i] for i in positions]  # counted from the start
        items = self._read(self._base_positions(resolved))
        return self._map_items(items, resolved) if self._stages else items

    def _base_positions(self, positions: list[int]) -> list[int]:
        self._size()
        order = self._cached_order
        return positions if order is None else [order[i] for i in positions]

    @property
    def _is_finished(self) -> bool:
        return not self._stages and all(part._is_finished for part in self._parts())

    @property
    def _is_remote(self) -> bool:
        return any(part._is_remote for part in self._parts())

    def _fetch(self, positions: Sequence[int]) -> list[Any]:
        get = get_many if self._is_finished else fetch_items
        return self._read(self._base_positions(list(positions)), get)

    def _finish(self, items: list[Any], positions: Sequence[int]) -> list[Any]:
        if self._is_finished:
            return items
        items = self._finish_parts(items)
        return self._map_items(items, positions) if self._stages else items

    @property
    def _has_images(self) -> bool:
        return any(part._has_images for part in self._parts())

    def map(self, fn: Callable[[T_co], T]) -> CombinedDataset[T]:
        """Return a dataset of ``fn(item)``, called on access.

        Parameters
        ----------
        fn : callable
            Takes a sample, or a pair of samples; or the result of the previous `map`.

        Examples
        --------
        >>> pairs = fastshard.zip_by_key(ds, ds)
        >>> pairs.map(lambda pair: pair[0].key == pair[1].key)[7]
        True
        """
        return self._copy(self._plan, (*self._stages, fn))

    def __add__(  # type: ignore[override, unused-ignore]
        self, other: BaseDataset[T]
    ) -> Concat[T_co | T]:
        """Return the concatenation of two datasets.

        Parameters
        ----------
        other : dataset
            Any one.

        Returns
        -------
        Concat
            The items of this dataset, then those of the other.

        Examples
        --------
        >>> len(fastshard.mix([ds, ds]) + ds)
        300
        """
        return concatenate(self, other)

    def _find_absence(self, name: str) -> FieldNotFoundError | None:
        found = [part._find_absence(name) for part in self._parts()]
        return found[0] if found and all(found) else None

    def _iterator(
        self, window: int, on_error: ErrorHandler | None, decodes: bool = True
    ) -> SampleIterator[T_co]:
        decodes = decodes and self._has_images
        return CombinedIterator(self, max(window, 1), on_error, decodes)

    def _describe(self, samples: str) -> Description:
        """Return the description; `samples` tells where they are from."""
        stages = ", ".join(map(describe_stage, self._stages))
        return Description(samples, order=describe_plan(self._plan), stages=stages)


class Failure:
    """Stand-in for an item that cannot be read."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class CombinedIterator(Iterator[T_co]):
    """Iterator over combined datasets that reads a window at a time.

    Implements `SampleIterator`.
    """

    def __init__(
        self,
        dataset: CombinedDataset[T_co],
        window: int,
        on_error: ErrorHandler | None,
        decodes: bool,
    ) -> None:
        self._dataset = dataset
        self._window = window
        self._decodes = decodes  # images of the items
        self._on_error = on_error
        self._waiting: list[Any] = []  # items read ahead, in reverse order
        self._guard = CallGuard()
        self._closed = False
        self.position: int = 0
        self.skipped: int = dataset._plan.skipped

    def __iter__(self) -> Self:
        return self

    def __repr__(self) -> str:
        skipped = f"; {self.skipped:,} skipped" if self.skipped else ""
        return f"{type(self).__name__}(position {self.position:,}{skipped})"

    def __length_hint__(self) -> int:
        return 0 if self._closed else len(self._dataset) - self.position

    def __next__(self) -> T_co:
        return self._guard.call(self._next_item)

    def _next_item(self) -> T_co:
        while True:
            if self._closed:
                raise StopIteration
            if not self._waiting:
                self._read_window()
            item = self._waiting[-1]
            del self._waiting[-1]  # no call: a signal would come first
            self.position += 1
            if self._decodes:
                item = self._decode(item)
            if not isinstance(item, Failure):
                return cast(T_co, item)
            error = item.error.with_traceback(None)
            handler = self._on_error
            if handler is None or not handler(error, self.position - 1):
                raise error
            self.skipped += 1

    def _decode(self, item: Any) -> Any:
        """Return an item with its images decoded, or the failure to do so."""
        try:
            return decode_item(item)
        except Exception as error:
            return Failure(error)

    def _read_window(self) -> None:
        """Read the next window at once, or one by one after an error."""
        end = min(self.position + self._window, len(self._dataset))
        positions = range(self.position, end)
        if not positions:
            raise StopIteration
        try:
            items = self._dataset.get_many(positions)
        except Exception:
            items = [self._read_one(i) for i in positions]
        self._waiting = items[::-1]

    def _read_one(self, position: int) -> Any:
        try:
            return self._dataset.get_many([position])[0]
        except Exception as error:
            return Failure(error)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the samples so far, skipped ones included."""
        return self.state_after(self.position, self.skipped)

    def state_after(self, done: int, skipped: int) -> dict[str, Any]:
        """Return the state after `done` samples, with `skipped` skipped in total."""
        return self._dataset._state_after(done, skipped)

    def close(self) -> None:
        """End the iteration."""
        self._closed = True
        self._waiting = []


def combine_identities(
    separator: str, datasets: Sequence[BaseDataset[Any]], samples: int, *options: object
) -> Identity:
    """Return the identity of a combination of datasets."""
    parts = []
    for part in datasets:
        identity = part._identity()
        order = order_digest(part._order())
        parts.append((identity.samples, identity.digest, order))
    digest = blake2b(repr((options, parts)).encode(), digest_size=8).hexdigest()
    name = separator.join(part._identity().name for part in datasets)
    return Identity(name, samples, digest)


def read_sources(
    datasets: Sequence[BaseDataset[Any]],
    sources: Sequence[tuple[int, int]],
    get: Getter = get_many,
) -> list[Any]:
    """Return items of several datasets, read with one call for each dataset."""
    positions_of: list[list[int]] = [[] for _ in datasets]
    for k, position in sources:
        positions_of[k].append(position)
    items = [
        iter(get(dataset, positions) if positions else ())
        for dataset, positions in zip(datasets, positions_of, strict=True)
    ]
    return [next(items[k]) for k, _ in sources]


def merge_fields(datasets: Iterable[BaseDataset[Any]]) -> dict[str, FieldInfo]:
    """Return the fields of the datasets together, none for pairs."""
    parts: list[Any] = [one for one in datasets if hasattr(type(one), "fields")]
    # `fields` of a typed dataset are those of its type, for queries.
    stored = (getattr(part, "untyped", part) for part in parts)
    return merge_field_infos(part.fields for part in stored)


def concatenate(a: BaseDataset[Any], b: object) -> Concat[Any]:
    """Return ``a + b``; `NotImplemented` if `b` is not a dataset."""
    if not isinstance(b, BaseDataset):
        return NotImplemented  # type: ignore[no-any-return, unused-ignore]
    return Concat([*_parts_of(a), *_parts_of(b)])


def _parts_of(dataset: BaseDataset[Any]) -> Sequence[BaseDataset[Any]]:
    """Return the parts of a concatenation, flattened."""
    if type(dataset) is Concat and dataset._plan == Plan() and not dataset._stages:
        return dataset.datasets
    return [dataset]


class UnionDataset(CombinedDataset[T_co]):
    """Base class of `Concat` and `Mix`: each item is an item of one source dataset."""

    datasets: list[BaseDataset[Any]]

    @abstractmethod
    def source_of(self, base_position: int) -> tuple[int, int]:
        """Return the number of an item's dataset, and its position there."""

    @abstractmethod
    def _with_datasets(self, datasets: list[BaseDataset[Any]]) -> UnionDataset[Any]:
        """Return the combination of other datasets of the same sizes."""

    def images(
        self,
        field: str | Sequence[str] = "jpg",
        size: int | tuple[int, int] | None = None,
        **options: Any,
    ) -> UnionDataset[ImageSample]:
        """Return the dataset with the images of its parts decoded.

        Parameters
        ----------
        field, size, **options
            As for `Dataset.images`. The epoch of random crops is that of this
            dataset's shuffle, or else of each part's.

        Returns
        -------
        Mix or Concat
            As this one, of `ImageSample`.

        Raises
        ------
        FastshardError
            The samples are mapped or decoded already.
        FieldNotFoundError
            A part has no such field.
        TypeError
            A part has no images: it is a zip.
        ValueError
            An argument is invalid.

        Examples
        --------
        >>> from PIL import Image
        >>> with fastshard.ShardWriter("cats.tar") as writer:
        ...     for i in range(4):
        ...         writer.write({"__key__": f"{i}", "png": Image.new("RGB", (9, 9))})
        >>> cats = fastshard.open("cats.tar")
        >>> next((cats + cats).images("png", 4).batches(8))["png"].shape
        (8, 4, 4, 3)
        >>> mixed = fastshard.mix([cats, cats]).images("png", 4)
        >>> next(mixed.shuffle(seed=7).batches(8))["png"].shape
        (8, 4, 4, 3)
        """
        return self._combine("images", field, size, **options)

    def decode(self, *fields: str) -> UnionDataset[dict[str, Any]]:
        """Return the dataset with the samples of its parts decoded.

        Parameters
        ----------
        *fields : str
            As for `Dataset.decode`; each part has them.

        Returns
        -------
        Mix or Concat
            As this one, of dicts.

        Raises
        ------
        FastshardError
            The samples are mapped or decoded already.
        FieldNotFoundError
            A part has no such field.
        TypeError
            The samples of a part have no fields: it is a zip.

        Examples
        --------
        >>> (ds[:50] + ds[50:]).decode("cls", "txt")[7]
        {'__key__': '000007', 'cls': 7, 'txt': 'text 7'}
        >>> fastshard.mix([ds, ds], seed=5).decode("cls").shuffle(seed=7)[0]
        {'__key__': '0000...', 'cls': ...}
        """
        return self._combine("decode", *fields)

    def select_fields(
        self, *fields: str, missing: Literal["raise", "skip"] = "raise"
    ) -> UnionDataset[Sample]:
        """Return the dataset of samples with these fields only, in this order.

        Parameters
        ----------
        *fields : str
        missing : {"raise", "skip"}, default "raise"
            As for `Dataset.select_fields`. ``"skip"`` leaves samples out of the order
            that this dataset has.

        Raises
        ------
        FastshardError
            The samples are mapped or decoded already.
        FieldNotFoundError
            A part has no such field; with ``missing="skip"`` no part.
        TypeError
            The samples of a part have no fields: it is a zip.
        ValueError
            `missing` is another value.

        Examples
        --------
        >>> both = (ds[:50] + ds[50:]).select_fields("txt", "cls")
        >>> len(both), both[7].keys()
        (100, ['txt', 'cls'])
        """
        check_choice("missing", missing, ("raise", "skip"))
        narrowed = self._combine("select_fields", *fields)
        if missing == "raise":
            return narrowed
        mask = self._having(fields)
        if not mask.any():
            self._require_fields(fields)
        return narrowed._select(mask)

    def _combine(self, method: str, *args: Any, **options: Any) -> UnionDataset[Any]:
        """Combine the results of a method called on each part."""
        self._require_unmapped(method)
        parts = [self._require_method(method, part) for part in self.datasets]
        return self._with_datasets(
            [getattr(part, method)(*args, **options) for part in parts]
        )

    @staticmethod
    def _require_method(method: str, part: Any) -> Any:
        """Return a part; raise TypeError if it lacks a method."""
        if hasattr(type(part), method):
            return part
        what = "images to decode" if method == "images" else "fields"
        raise TypeError(f"the samples of a {type(part).__name__} have no {what}")

    def _having(self, fields: tuple[str, ...]) -> NDArray[np.bool_]:
        """Return a mask of the items that have the given fields."""
        import numpy as np

        parts = [self._require_method("_having", part) for part in self.datasets]
        masks = [part._having(fields) for part in parts]
        sources = map(self.source_of, self._base_positions(list(range(self._size()))))
        return np.fromiter((masks[k][i] for k, i in sources), bool, self._size())

    def _require_fields(self, fields: tuple[str, ...]) -> None:
        """Raise FieldNotFoundError if every part with samples lacks a field."""
        for field in fields:
            errors = []
            for part in self.datasets:
                try:
                    part._require_fields((field,))  # type: ignore[attr-defined]
                except FieldNotFoundError as error:
                    errors.append(error)
            if errors and len(errors) == len(self.datasets):
                raise errors[0]

    @property
    def fields(self) -> Mapping[str, FieldInfo]:
        """The fields of all parts; see `Dataset.fields`."""
        return merge_fields(self.datasets)

    def _parts(self) -> Sequence[BaseDataset[Any]]:
        return self.datasets

    def _usual_fields(self) -> frozenset[str] | None:
        found = [part._usual_fields() for part in self.datasets]
        known = [fields for fields in found if fields is not None]
        if self._stages or len(known) < len(found):
            return None
        return frozenset.intersection(*known) if known else None

    def _read(self, base_positions: Iterable[int], get: Getter = get_many) -> list[Any]:
        sources = [self.source_of(i) for i in base_positions]
        return read_sources(self._read_parts(), sources, get)

    def _finish_parts(self, items: list[Any]) -> list[Any]:
        return finish_items(items)

    def _name_at(self, position: int) -> str:
        k, i = self.source_of(self._base_positions([position])[0])
        return self.datasets[k]._name_at(i)


class Concat(UnionDataset[T_co]):
    """Concatenation of datasets: the samples of one after those of another.

    Made by ``a + b`` of any datasets, also of other formats, mapped, selected or
    shuffled. Like a dataset it can be indexed, iterated over, batched, shuffled, split
    and resumed. ``a + b + c`` is one concatenation of three, and so is
    ``sum([a, b, c])``.

    Parameters
    ----------
    datasets : sequence of datasets
    plan, stages
        The order and the mapped functions, which `shuffle`, `map` and others set.

    Attributes
    ----------
    datasets : list
        The parts.

    Examples
    --------
    >>> import numpy as np
    >>> import fastshard
    >>> for name in ("a", "b"):
    ...     with fastshard.ShardWriter(f"{name}.tar") as writer:
    ...         for i in range(10):
    ...             writer.write({"__key__": f"{name}{i}", "cls": i})
    >>> both = fastshard.open("a.tar") + fastshard.open("b.tar").decode("cls")
    >>> len(both), both[9].key, both[-1]["cls"]
    (20, 'a9', 9)
    >>> [len(part) for part in both.shuffle(seed=7).split([0.8, 0.2])]
    [16, 4]
    """

    def __init__(
        self,
        datasets: Sequence[BaseDataset[Any]],
        plan: Plan = Plan(),  # noqa: B008 - immutable
        stages: tuple[Callable[[Any], Any], ...] = (),
    ) -> None:
        super().__init__(plan, stages)
        self.datasets: list[BaseDataset[Any]] = list(datasets)
        self._starts: list[int] | None = None  # of the parts, once counted

    def _copy(
        self, plan: Plan, stages: tuple[Callable[[Any], Any], ...]
    ) -> Concat[Any]:
        copied: Concat[Any] = Concat(self.datasets, plan, stages)
        copied._starts = self._starts
        return copied

    def _with_datasets(self, datasets: list[BaseDataset[Any]]) -> Concat[Any]:
        copied: Concat[Any] = Concat(datasets, self._plan, self._stages)
        copied._starts = self._starts
        return copied

    if TYPE_CHECKING:

        def images(
            self,
            field: str | Sequence[str] = "jpg",
            size: int | tuple[int, int] | None = None,
            **options: Any,
        ) -> Concat[ImageSample]: ...
        def decode(self, *fields: str) -> Concat[dict[str, Any]]: ...
        def select_fields(
            self, *fields: str, missing: Literal["raise", "skip"] = "raise"
        ) -> Concat[Sample]: ...
        def map(self, fn: Callable[[T_co], T]) -> Concat[T]: ...

    @property
    def starts(self) -> list[int]:
        """The position of each part's first sample, then the total."""
        if self._starts is None:
            self._starts = list(accumulate(map(len, self.datasets), initial=0))
        return self._starts

    def _total(self) -> int:
        return self.starts[-1]

    def _is_counted(self) -> bool:
        return all(dataset._is_counted() for dataset in self.datasets)

    def _identify(self) -> Identity:
        return combine_identities(" + ", self.datasets, self._total(), "concat")

    def source_of(self, base_position: int) -> tuple[int, int]:
        """Return the source of an item.

        Parameters
        ----------
        base_position : int
            Before selection, shuffle and split.

        Returns
        -------
        (int, int)
            The number of the item's dataset in ``datasets``, and its position there.

        Examples
        --------
        >>> (ds + ds).source_of(130)
        (1, 30)
        """
        k = bisect_right(self.starts, base_position) - 1
        return k, base_position - self.starts[k]

    def _iterator(
        self, window: int, on_error: ErrorHandler | None, decodes: bool = True
    ) -> SampleIterator[T_co]:
        if self._plan == Plan():
            return ChainIterator(
                self, self._read_parts(), self.starts, window, on_error, decodes
            )
        return super()._iterator(window, on_error, decodes)

    @overload
    def __getitem__(self, key: int | np.integer[Any] | str) -> T_co: ...
    @overload
    def __getitem__(
        self, key: slice | Sequence[int] | NDArray[Any]
    ) -> Concat[T_co]: ...
    def __getitem__(self, key: Any) -> Any:
        """Return an item, or a dataset of several.

        Parameters
        ----------
        key : int, str, slice, sequence of int, or array
            As for a `Dataset`.

        Returns
        -------
        object
            An item of a part; for a slice, positions or a mask a `Concat`.

        Raises
        ------
        IndexError
            A position is out of range.
        SampleNotFoundError, AmbiguousKeyError
            No sample has a key, or several have.
        TypeError
            A key is given, and a part is a mix or a zip, whose samples have no keys.
        FormatError, OSError
            A sample cannot be read.

        Examples
        --------
        >>> both = ds + ds
        >>> both[107].key, len(both[50:150])
        ('000007', 100)
        """
        if isinstance(key, str):
            return self.get_many([self.keys().index(key)])[0]
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self.keys()

    def keys(self) -> ConcatKeys:
        """Return the samples' keys.

        Returns
        -------
        ConcatKeys
            A lazy sequence of str.

        Raises
        ------
        TypeError
            The samples of a part have no keys: it is a mix or a zip.

        Examples
        --------
        >>> (ds + ds).keys().find("000007")
        [7, 107]
        """
        return ConcatKeys(self)

    def head(self, n: int = 5) -> list[T_co]:
        if self._is_counted() or self._plan != Plan():
            return super().head(n)
        items: list[Any] = super().head(0) if n < 0 else []
        for dataset in self._read_parts():  # the later ones are not counted
            if len(items) < n:
                items += dataset.head(n - len(items))
        return self._map_items(items, range(len(items)))

    def _description(self) -> Description:
        return self._describe(describe_parts(self.datasets))
