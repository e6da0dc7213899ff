"""Datasets of typed samples."""

from __future__ import annotations

import dataclasses
import operator
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import islice
from secrets import randbits
from typing import (
    TYPE_CHECKING,
    Any,
    Self,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from fastshard._util.options import check_names
from fastshard.dataset.combined.base import Concat, concatenate
from fastshard.dataset.dataset import Dataset as FieldDataset
from fastshard.dataset.display.text import Description, describe_plan, describe_stage
from fastshard.dataset.fields.alternatives import missing_from
from fastshard.dataset.order.plan import Plan, check_seed, compose, order_digest
from fastshard.dataset.order.state import Identity
from fastshard.dataset.order.worker import current_worker
from fastshard.dataset.sequence.base import BaseDataset
from fastshard.dataset.sequence.batch import Collation
from fastshard.dataset.sequence.iteration import (
    WINDOW,
    BatchIterator,
    ErrorHandler,
    SampleIterator,
)
from fastshard.dataset.views import DatasetKeys
from fastshard.errors import (
    FastshardError,
    FieldNotFoundError,
    SampleKeyError,
    SampleNotFoundError,
)
from fastshard.formats.stacking.padding import Padding, Ragged
from fastshard.typed.batch import SampleBatch
from fastshard.typed.dict_sample import DictSample
from fastshard.typed.lenses.dict_lens import is_dict_lens
from fastshard.typed.lenses.network import LensNetwork
from fastshard.typed.reading.export import (
    plain_row,
    to_columns,
    to_frame,
    write_parquet,
)
from fastshard.typed.reading.iteration import FilteredIterator, Iteration
from fastshard.typed.reading.metadata import read_metadata
from fastshard.typed.reading.origin import (
    FilteredOrigin,
    SampleOrigin,
    ShardOrigin,
    option_names,
)
from fastshard.typed.reading.sample_fields import field_names
from fastshard.typed.reading.shard_processing import (
    Checkpoint,
    process_shards,
    shard_samples,
)
from fastshard.typed.reading.stages import (
    Decoding,
    FieldSelection,
    KeyedDecoder,
    LensStage,
    StructuralView,
)
from fastshard.typed.reading.stored_batch import (
    StoredBatchIterator,
    StoredCollation,
    StoredReader,
    is_readable_by_field,
)

if TYPE_CHECKING:
    import numpy as np
    import pandas  # type: ignore[import-untyped, unused-ignore]
    from numpy.typing import NDArray
    from typing_extensions import TypeVar as DefaultTypeVar

    from fastshard.dataset.sequence.loading import LoadedDataset
    from fastshard.dataset.verify import Fault
    from fastshard.typed.manifest.executor import SampleLocation
    from fastshard.where.predicate import FieldProxy, Fields, Predicate

    # `Dataset` alone is ``Dataset[DictSample]``.
    T = DefaultTypeVar("T", covariant=True, default=DictSample)
else:
    T = TypeVar("T", covariant=True)

__all__ = ["Dataset"]

U = TypeVar("U")
MAX_SHOWN = 8  # positions in an error


class Dataset(BaseDataset[T]):
    """Sequence of typed samples in tar shards of msgpack members.

    - Samples: ``ds[7]``, ``ds[-1]``, ``len(ds)``, `head`, `get`, `select`, `get_many`,
      `keys`.
    - Iteration: ``for sample in ds``, `ordered`, `shuffled`, both with ``batch_size=``;
      `iter`, `batches`, and to resume `state_dict` and `resume`.
    - Other datasets on the same shards: `as_type`, `filter`, `map`, ``ds[10:20]``,
      `shuffle`, `split_by_rank`, `take`, `split`, `select_fields`, `decode`, `copied`.
    - By shard: `process_shards`, `list_shards`. As tables: `to_dict`, `to_pandas`,
      `to_parquet`. About the data: `schema`, `describe`, `metadata`.

    Methods that select, reorder or map samples return a new dataset; mapped functions,
    lenses and filters apply in the order in which they were added, to everything that
    gives samples. Nothing is read until a sample is accessed or samples are counted.

    Arrays of samples are read-only views of the shards, which stay mapped as long as
    one is referenced.

    Parameters
    ----------
    source : str, path-like, sequence of them, or DataSource
        As for `fastshard.open`; or an object with shards, as `S3Source`.
    sample_type : type, optional
        The class of the samples; ``Dataset[ImageSample](source)`` gives it too. By
        default `DictSample`.
    metadata_url : str, optional
        Where the dataset's `metadata` are. May be the second argument.
    url : str, optional
        The source, by its former name.
    copy : bool, default False
        Give arrays of their own memory: writable, C-contiguous, aligned.
    aligned : bool, default False
        Copy arrays that are not aligned in the shard.
    strict : bool, default False
        Raise `SchemaError` for fields that the class does not declare.
    **options
        Options of `fastshard.open`: ``mode=``, ``max_memory=``, ``token=``, ...

    Raises
    ------
    TypeError
        There is no source, `sample_type` is not a class, or an option is unknown.
    FastshardError
        The source is a command, ``pipe:...``: commands are never run.

    Examples
    --------
    >>> ds = fastshard.typed.Dataset[ImageSample]("data.tar")
    >>> ds[7].label, ds[7].image
    ('label 7', array([7., 7., 7., 7.], dtype=float32))
    >>> next(ds.ordered(batch_size=32)).image.shape
    (32, 4)
    >>> len(ds.filter(lambda sample: sample.image[0] > 89))
    10
    """

    metadata_url: str | None

    @overload
    def __init__(
        self,
        source: Any = None,
        sample_type: None = None,
        metadata_url: str | None = None,
        *,
        url: str | None = None,
        copy: bool = False,
        aligned: bool = False,
        strict: bool = False,
        **options: Any,
    ) -> None: ...
    @overload
    def __init__(
        self,
        source: Any,
        sample_type: str,
        *,
        url: str | None = None,
        copy: bool = False,
        aligned: bool = False,
        strict: bool = False,
        **options: Any,
    ) -> None: ...
    @overload
    def __init__(
        self,
        source: Any,
        sample_type: type[T],
        metadata_url: str | None = None,
        *,
        url: str | None = None,
        copy: bool = False,
        aligned: bool = False,
        strict: bool = False,
        **options: Any,
    ) -> None: ...
    def __init__(
        self,
        source: Any = None,
        sample_type: Any = None,
        metadata_url: str | None = None,
        *,
        url: str | None = None,
        copy: bool = False,
        aligned: bool = False,
        strict: bool = False,
        **options: Any,
    ) -> None:
        if isinstance(sample_type, str):
            metadata_url, sample_type = sample_type, None
        if sample_type is not None and not isinstance(sample_type, type):
            name = type(sample_type).__name__
            raise TypeError(f"sample_type must be a class, got an object of {name}")
        source = url if source is None else source
        if source is None:
            raise TypeError("Dataset() missing required argument: 'source'")
        check_names("Dataset", options, option_names())
        self._shards = ShardOrigin(source, options)
        self._origin: SampleOrigin = self._shards
        self._plan = Plan()
        self._is_typed = sample_type is not None
        kind = sample_type or _declared_type(type(self)) or DictSample
        # The first stage: from a stored sample to an object.
        self._first: Decoding | KeyedDecoder = Decoding(kind, copy, aligned, strict)
        self._later: tuple[Callable[[Any], Any], ...] = ()  # lenses, mapped functions
        self._kind: Any = kind  # the type after them
        self._mismatch = ""  # the error of two sample types
        self.metadata_url = metadata_url
        self._metadata: dict[str, Any] | None = None  # once read
        self._content_metadata: Any = None
        self._forget()

    def _forget(self) -> None:
        """Drop derived attributes."""
        self._all_stages: tuple[Callable[[Any], Any], ...] | None = None
        self._packed_view: FieldDataset[Any] | None = None
        self._mapped_view: FieldDataset[T] | None = None

    def _replace(self, **changes: Any) -> Dataset[Any]:
        """Return a copy with other attributes."""
        other: Dataset[Any] = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.__dict__.update(changes)
        other._forget()
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        self._origin.packed()  # spares workers the count and the filter
        state = {name: self.__dict__[name] for name in STATE}
        return _rebuild, (type(self), state)

    @property
    def __orig_class__(self) -> Any:
        """The class with its sample type, ``Dataset[ImageSample]``."""
        return Dataset[self.sample_type]  # type: ignore[name-defined]

    @__orig_class__.setter
    def __orig_class__(self, alias: Any) -> None:
        # `typing` sets it after ``Dataset[ImageSample](...)`` is made; an exception
        # would be dropped.
        kind = _type_argument(alias)
        if kind is None or kind is self._kind:
            return
        if not isinstance(kind, type):
            self._mismatch = f"the type of samples must be a class, got {kind!r}"
            return
        if self._is_typed:
            names = f"{_name_of(self._kind)} and {_name_of(kind)}"
            self._mismatch = f"expected one sample type, got two: {names}"
            return
        assert isinstance(self._first, Decoding)
        self._is_typed = True
        self._kind = kind
        self._first = self._first._replace(kind=kind)

    # -- The stages, and the dataset of fields below them

    @property
    def _stages(self) -> tuple[Callable[[Any], Any], ...]:  # type: ignore[override]
        if self._all_stages is None:
            if self._mismatch:
                raise TypeError(self._mismatch)
            first = self._first
            make = first.decoder() if isinstance(first, Decoding) else first
            self._all_stages = (make, *self._later)
        return self._all_stages

    @property
    def _packed(self) -> FieldDataset[Any]:
        """The selected samples in order, as a dataset of fields without stages."""
        if self._packed_view is None:
            view = self._origin.packed()
            if self._plan != Plan():
                base = compose(view._plan.base, self._plan.base)
                view = view._with_plan(self._plan._replace(base=base))
            self._packed_view = view
        return self._packed_view

    def _mapped(self) -> FieldDataset[T]:
        """Return the dataset of fields with all stages, which gives the samples."""
        if self._mapped_view is None:
            self._mapped_view = self._packed._replace(stages=self._stages)
        return self._mapped_view

    def _pending_filter(self) -> FilteredOrigin | None:
        """Return the filter that is not evaluated, if an iteration can apply it."""
        origin = self._origin
        if (
            isinstance(origin, FilteredOrigin)
            and not origin.is_counted()
            and self._plan == Plan()
            and self._first == origin.dataset._first
        ):
            return origin
        return None

    def _with_plan(self, plan: Plan) -> Self:
        return cast(Self, self._replace(_plan=plan))

    def _total(self) -> int:
        base = self._origin.packed()
        return base._plan.size(base._total())

    def _is_counted(self) -> bool:
        return self._origin.is_counted()

    def _find_absence(self, name: str) -> FieldNotFoundError | None:
        stages = (*getattr(self._first, "stages", ()), *self._later)
        if any(isinstance(stage, LensStage | StructuralView) for stage in stages):
            return None  # a view has its own names
        return self._packed._find_absence(name)

    def _usual_fields(self) -> frozenset[str] | None:
        first = self._first
        is_whole = not (getattr(first, "fields", ()) or getattr(first, "stages", ()))
        if self._later or not is_whole or field_names(self.sample_type) is not None:
            return None
        return self._packed._usual_fields()

    def _identity(self) -> Identity:
        base = self._origin.packed()
        found = base._identity()
        if base._plan.base is None:
            return found
        digest = f"{found.digest} {order_digest(base._plan.base)}".encode()
        name = blake2b(digest, digest_size=8).hexdigest()
        return Identity(found.name, self._total(), name)

    # States count samples of the shards, like those of `_packed`, whose iterators
    # make them.

    def _state_after(self, done: int, skipped: int | None = None) -> dict[str, Any]:
        return self._packed._state_after(done, skipped)

    def _resume(self, state: Mapping[str, Any]) -> Self:
        plan = self._packed._resume(state)._plan
        return self._with_plan(plan._replace(base=self._plan.base))

    def _worker_share(self, chunk: int, state: Mapping[str, Any] | None) -> Self:
        if state is None and current_worker() is None:
            return self
        plan = self._packed._worker_share(chunk, state)._plan
        return self._with_plan(plan._replace(base=self._plan.base))

    def _iterator(
        self, window: int, on_error: ErrorHandler | None, decodes: bool = True
    ) -> SampleIterator[T]:
        pending = self._pending_filter()
        if pending is None:
            return self._mapped()._iterator(window, on_error)
        samples = pending.dataset._iterator(window, on_error)
        after = self._later[len(pending.dataset._later) :]
        return FilteredIterator(pending, after, samples, self._state_after, on_error)

    # -- Samples

    def __len__(self) -> int:
        """Return the number of samples; evaluates filters, once.

        Raises
        ------
        FormatError, OSError, RemoteError
            A shard or an index cannot be read.

        Examples
        --------
        >>> len(ds), len(ds[10:20])
        (100, 10)
        """
        return len(self._packed)

    @overload
    def __getitem__(self, key: int | np.integer[Any] | str) -> T: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | NDArray[Any]) -> Self: ...
    def __getitem__(self, key: Any) -> Any:
        """Return a sample, or a dataset of several.

        Parameters
        ----------
        key : int, str, slice, sequence of int, or array
            A position (negative: from the end) or a key, for one sample. A slice,
            positions in any order, or a mask of bool [samples], for a dataset.

        Returns
        -------
        object or Dataset
            An object of `sample_type`, or the result of a mapped function.

        Raises
        ------
        IndexError
            A position is out of range.
        SampleKeyError
            No sample has this key.
        AmbiguousKeyError
            Several samples have this key.
        SchemaError
            The stored sample is not of `sample_type`.
        FormatError, OSError, ClosedError
            The sample cannot be read.

        Examples
        --------
        >>> ds[7].label, ds[-1].label, ds["000000000042"].label
        ('label 7', 'label 99', 'label 42')
        >>> len(ds[10:20]), [sample.label for sample in ds[[5, 90]]]
        (10, ['label 5', 'label 90'])
        """
        mapped = self._mapped_view
        if mapped is None:
            mapped = self._mapped()
        if type(key) is int:
            return mapped[key]
        if isinstance(key, str):
            return self.get(key)
        if getattr(key, "ndim", 0) == 0 and hasattr(key, "__index__"):
            return mapped[key.__index__()]
        return self._select(key)

    def get(self, key: str) -> T:
        """Return the sample of a key.

        Returns
        -------
        object
            As ``ds[i]``.

        Raises
        ------
        SampleKeyError
            No sample has this key; also a `KeyError`.
        AmbiguousKeyError
            Several samples have this key.
        FormatError, OSError
            The sample cannot be read.

        Examples
        --------
        >>> ds.get("000000000007").label
        'label 7'
        """
        mapped = self._mapped()
        try:
            return mapped[mapped.keys().index(key)]
        except SampleNotFoundError as error:
            near = error._near
            raise SampleKeyError(error.name, error.where, near) from None

    def select(self, indices: Iterable[int]) -> list[T]:
        """Return samples by position, in the given order.

        Parameters
        ----------
        indices : iterable of int
            Negative ones count from the end.

        Raises
        ------
        IndexError
            Positions are out of range.
        FormatError, OSError
            A sample cannot be read.

        Examples
        --------
        >>> [sample.label for sample in ds.select([5, 90])]
        ['label 5', 'label 90']
        """
        wanted = [operator.index(i) for i in indices]
        if not wanted:
            return []
        count = len(self)
        outside = [i for i in wanted if not -count <= i < count]
        if outside:
            shown = ", ".join(map(str, outside[:MAX_SHOWN]))
            raise IndexError(f"positions {shown} not found in dataset of {count:,}")
        return self.get_many(wanted)

    def get_many(self, positions: Iterable[int]) -> list[T]:
        """Return samples by position, in the given order.

        Their bytes are brought into memory together, without the GIL; those of remote
        shards by coalesced ranges.

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
        >>> [sample.label for sample in ds.get_many([5, 90])]
        ['label 5', 'label 90']
        """
        return self._mapped().get_many(positions)

    @property
    def _is_remote(self) -> bool:
        return self._packed._is_remote

    @property
    def _is_finished(self) -> bool:
        return False

    def _fetch(self, positions: Sequence[int]) -> list[Any]:
        return self._packed._fetch(positions)

    def _finish(self, items: list[Any], positions: Sequence[int]) -> list[Any]:
        return self._mapped()._finish(items, positions)

    def _name_at(self, position: int) -> str:
        return self._packed._name_at(position)

    async def get_many_async(self, positions: Iterable[int]) -> list[T]:
        """Call `get_many` in a thread, under asyncio or trio.

        Raises
        ------
        IndexError, FormatError, OSError
            As for `get_many`.

        Examples
        --------
        >>> import asyncio
        >>> [sample.label for sample in asyncio.run(ds.get_many_async([5, 90]))]
        ['label 5', 'label 90']
        """
        return await self._mapped().get_many_async(positions)

    def head(self, n: int = 5) -> list[T]:
        """Return the first samples as a list.

        Shards behind them are neither opened nor counted, unless the dataset is
        shuffled or selected; a filter is applied until there are enough.

        Parameters
        ----------
        n : int, default 5
            Number of samples; fewer if the dataset has fewer.

        Raises
        ------
        ValueError
            `n` is negative.
        FormatError, OSError
            A sample cannot be read.

        Examples
        --------
        >>> [sample.label for sample in ds.head(3)]
        ['label 0', 'label 1', 'label 2']
        """
        n = self._check_number(n)
        if self._pending_filter() is None:
            return self._mapped().head(n)
        samples = self._iterator(min(n, WINDOW), None)
        try:
            return list(islice(samples, n))
        finally:
            samples.close()

    def keys(self) -> DatasetKeys:
        """Return the samples' keys: a lazy sequence of str.

        Returns
        -------
        DatasetKeys
            With ``keys.index(key)``, ``keys.find(key)`` and ``key in keys``.

        Raises
        ------
        FormatError, OSError, RemoteError
            A shard or an index cannot be read.

        Examples
        --------
        >>> ds.keys()[7], ds.keys().index("000000000042")
        ('000000000007', 42)
        """
        return self._mapped().keys()

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self.keys()

    # -- Iteration

    @overload
    def ordered(
        self, batch_size: None = None, *, ragged: Ragged = "error", fill: Any = None
    ) -> Iteration[T]: ...
    @overload
    def ordered(
        self, batch_size: int, *, ragged: Ragged = "error", fill: Any = None
    ) -> Iteration[SampleBatch[T]]: ...
    def ordered(
        self,
        batch_size: int | None = None,
        *,
        ragged: Ragged = "error",
        fill: Any = None,
    ) -> Iteration[Any]:
        """Iterate over samples or batches in order.

        Parameters
        ----------
        batch_size : int, optional
            Samples of a batch; the last one may have fewer. By default single samples.
        ragged : {"error", "list", "pad"}, default "error"
        fill : scalar, or mapping of str to scalar, optional
            As for `SampleBatch`.

        Returns
        -------
        Iteration
            Of samples, or of `SampleBatch`. Each ``for`` loop over it begins anew.

        Raises
        ------
        ValueError
            `batch_size` is below 1, or `ragged` another value.

        Examples
        --------
        >>> [sample.label for sample in ds.ordered()][:2]
        ['label 0', 'label 1']
        >>> [len(batch) for batch in ds.ordered(batch_size=40)]
        [40, 40, 20]
        """
        return _iterate(lambda: self, batch_size, Padding(ragged, fill))

    @overload
    def shuffled(
        self,
        buffer_shards: int = 100,
        buffer_samples: int = 10_000,
        batch_size: None = None,
        *,
        seed: int | None = None,
        epoch: int = 0,
        ragged: Ragged = "error",
        fill: Any = None,
    ) -> Iteration[T]: ...
    @overload
    def shuffled(
        self,
        buffer_shards: int = 100,
        buffer_samples: int = 10_000,
        *,
        batch_size: int,
        seed: int | None = None,
        epoch: int = 0,
        ragged: Ragged = "error",
        fill: Any = None,
    ) -> Iteration[SampleBatch[T]]: ...
    @overload
    def shuffled(
        self,
        buffer_shards: int,
        buffer_samples: int,
        batch_size: int,
        *,
        seed: int | None = None,
        epoch: int = 0,
        ragged: Ragged = "error",
        fill: Any = None,
    ) -> Iteration[SampleBatch[T]]: ...
    def shuffled(
        self,
        buffer_shards: int = 100,
        buffer_samples: int = 10_000,
        batch_size: int | None = None,
        *,
        seed: int | None = None,
        epoch: int = 0,
        ragged: Ragged = "error",
        fill: Any = None,
    ) -> Iteration[Any]:
        """Iterate over samples or batches in random order.

        The order is a permutation of all samples, computed sample by sample.

        Parameters
        ----------
        buffer_shards, buffer_samples : int
            Without effect: there are no buffers.
        batch_size : int, optional
            As for `ordered`.
        seed : int, optional
            Determines the order, together with `epoch`; see `shuffle`. By default
            each iteration has another order.
        epoch : int, default 0
        ragged : {"error", "list", "pad"}, default "error"
        fill : scalar, or mapping of str to scalar, optional
            As for `SampleBatch`.

        Returns
        -------
        Iteration
            As of `ordered`.

        Raises
        ------
        ValueError
            `batch_size` is below 1, or a number or `ragged` is out of range.

        Examples
        --------
        >>> [sample.label for sample in ds.shuffled(seed=7)][:2]
        ['label ...', 'label ...']
        >>> batch = next(ds.shuffled(batch_size=32))
        >>> batch.image.shape
        (32, 4)
        """
        check_seed(epoch)
        if seed is not None:
            check_seed(seed)

        def shuffled() -> Dataset[T]:
            return self.shuffle(randbits(64) if seed is None else seed, epoch)

        return _iterate(shuffled, batch_size, Padding(ragged, fill))

    def _stored_reader(self) -> StoredReader | None:
        """Return how batches read fields from the shards; None: from the samples."""
        first = self._first
        if (
            isinstance(first, Decoding)
            and not self._later
            and self._pending_filter() is None
            and is_readable_by_field(first)
        ):
            return StoredReader(first, self._stages[0])
        return None

    def _batch_parts(
        self, collate: Callable[[list[Any]], Any], on_error: ErrorHandler | None
    ) -> tuple[SampleIterator[Any], Callable[[list[Any]], Any]]:
        if type(collate) is Collation:
            reader = self._stored_reader()
            if reader is not None and reader.fields:
                samples = self._packed._iterator(WINDOW, on_error)
                return samples, StoredCollation(reader, collate)
        return super()._batch_parts(collate, on_error)

    def _loaded_parts(
        self, collate: Callable[[list[Any]], Any]
    ) -> tuple[LoadedDataset, Callable[[list[Any]], Any]]:
        if type(collate) is Collation:
            reader = self._stored_reader()
            if reader is not None and reader.fields:
                return self._packed, StoredCollation(reader, collate)
        return super()._loaded_parts(collate)

    def _sample_batches(
        self, size: int, padding: Padding
    ) -> BatchIterator[SampleBatch[T]] | StoredBatchIterator:
        """Return the iterator over batches of this process's share."""
        part = self._worker_share(size, None)
        read = part._stored_reader()
        if read is not None:
            return StoredBatchIterator(
                part._packed._iterator(WINDOW, None),
                size,
                lambda samples: SampleBatch._read(read(samples), self._kind, padding),
            )
        samples = part._iterator(WINDOW, None)
        make = partial(SampleBatch._of, self._kind, padding)
        count = len(part) if part._is_counted() else part.__len__
        return BatchIterator(samples, count, size, make, False, None)

    # -- Other datasets

    def as_type(self, other: type[U]) -> Dataset[U]:
        """Return the dataset with samples of another type.

        Parameters
        ----------
        other : type
            A packable class.

        Returns
        -------
        Dataset
            Its samples are made by the lens that `LensNetwork.transform` returns; if
            there is none, by structure: the fields of `other` without default are
            among those of `sample_type`.

        Raises
        ------
        LensNotFoundError
            There is no lens and the fields differ, or there are several chains of
            lenses.
        TypeError
            `other` is not a class.

        Examples
        --------
        >>> fastshard.typed.Dataset("data.tar").as_type(ImageSample)[7].label
        'label 7'
        """
        kind: Any = self._kind
        if kind is other:
            return cast(Dataset[U], self)
        if not isinstance(other, type):
            raise TypeError(f"as_type needs a class, got {other!r}")
        network = LensNetwork()
        lens = network.find(kind, other)
        view = StructuralView.between(kind, other) if lens is None else None
        if lens is None and view is None:
            lens = network.transform(kind, other)  # raises and lists lenses
        first = self._first
        is_stored = isinstance(self._origin, ShardOrigin) and not self._later
        if lens is not None:
            is_direct = is_dict_lens(lens)
        else:
            assert view is not None
            is_direct = is_stored and view.is_part(kind)
        if is_direct and is_stored and isinstance(first, Decoding):
            # No object of the first type is made.
            return self._replace(_first=first._replace(kind=other), _kind=other)
        stage = view if lens is None else LensStage(lens)
        return self._replace(_later=(*self._later, stage), _kind=other)

    def filter(self, fn: Callable[[T], object]) -> Dataset[T]:
        """Return a dataset of the samples that a function selects.

        Parameters
        ----------
        fn : callable
            ``fn(sample)`` returns whether to select it; called with the results of the
            lenses and mapped functions before it.

        Returns
        -------
        Dataset
            The selected samples, in order; their positions are counted anew. An
            iteration in order calls the function as it goes. Everything else, as
            ``len``, ``ds[i]``, `shuffle`, a pickle or a state, calls it for all
            samples first, once.

        Raises
        ------
        TypeError
            `fn` is not callable.

        Examples
        --------
        >>> bright = ds.filter(lambda sample: sample.image[0] > 89)
        >>> len(bright), bright[0].label
        (10, 'label 90')
        """
        if not callable(fn):
            raise TypeError(f"filter needs a function, got {type(fn).__name__}")
        return self._replace(_origin=FilteredOrigin(self, fn), _plan=Plan())

    @property
    def fields(self) -> Fields:
        """The fields that conditions of `query` and `where` compare.

        Without a sample type, any name.

        Examples
        --------
        >>> ds.fields
        ImageSampleFields(label)
        >>> ds.fields.label == "label 7"
        Predicate('label' eq 'label 7')
        """
        from fastshard.typed.manifest.fields import query_fields
        from fastshard.where.predicate import F

        is_typed = dataclasses.is_dataclass(self.sample_type)
        return query_fields(self.sample_type) if is_typed else F

    def query(
        self, where: Predicate | FieldProxy | Callable[[pandas.DataFrame], Any]
    ) -> list[SampleLocation]:
        """Return the locations of the samples that meet a condition.

        Shards with a manifest are passed over if its aggregates rule the condition
        out, and read by its table otherwise; of shards without one, or with one that
        is not true, the samples are read.

        Parameters
        ----------
        where : Predicate or callable
            A condition on `fields`; or a function of a DataFrame of pandas, with a row
            for each sample of a shard, that returns which rows are wanted.

        Returns
        -------
        list of SampleLocation
            In the order of the dataset.

        Raises
        ------
        KeyError, AttributeError
            There is no such field.
        TypeError
            A field's values are not comparable, or `where` is not a condition.
        ValueError
            The function returns something else than a bool for each row.
        FormatError
            A sample that has to be read is broken.
        MissingLibraryError
            There are manifests and pyarrow is not installed, or pandas for a function.

        Examples
        --------
        >>> ds.query(ds.fields.label == "label 7")
        [SampleLocation(shard='data', key='000000000007', offset=...)]
        >>> len(ds.query(lambda df: df["label"] != "label 7"))
        99
        """
        from fastshard.typed.manifest.query import find_positions, locate

        return locate(self, find_positions(self, where))

    def where(
        self, where: Predicate | FieldProxy | Callable[[pandas.DataFrame], Any]
    ) -> Self:
        """Return a dataset of the samples that meet a condition.

        The condition is evaluated now, by manifests where there are any.

        Parameters
        ----------
        where : Predicate or callable
            As for `query`, with the same errors.

        Raises
        ------
        KeyError, AttributeError
            There is no such field.
        TypeError
            A field's values are not comparable, or `where` is not a condition.
        ValueError
            The function returns something else than a bool for each row.
        FormatError
            A sample that has to be read is broken.
        MissingLibraryError
            There are manifests and pyarrow is not installed, or pandas for a function.

        Examples
        --------
        >>> chosen = ds.where(ds.fields.label.isin(["label 7", "label 8"]))
        >>> [sample.label for sample in chosen]
        ['label 7', 'label 8']
        """
        from fastshard.typed.manifest.query import find_positions

        return self[find_positions(self, where)]

    def map(self, fn: Callable[[T], U]) -> Dataset[U]:
        """Return a dataset of ``fn(sample)``, called on access.

        Parameters
        ----------
        fn : callable
            Takes a sample, or the result of the previous `map`. A function of a
            module, not a lambda, where the dataset goes to worker processes.

        Returns
        -------
        Dataset
            Its `sample_type` is the class that `fn` is annotated to return, else
            `object`.

        Raises
        ------
        TypeError
            `fn` is not callable.

        Examples
        --------
        >>> ds.map(lambda sample: sample.label.upper())[7]
        'LABEL 7'
        """
        if not callable(fn):
            raise TypeError(f"map needs a function, got {type(fn).__name__}")
        return self._replace(_later=(*self._later, fn), _kind=_returned_type(fn))

    def copied(self) -> Dataset[T]:
        """Return the dataset with arrays copied to their own memory.

        Returns
        -------
        Dataset
            Arrays are writable, C-contiguous and aligned.

        Raises
        ------
        FastshardError
            The samples are decoded to dicts already.

        Examples
        --------
        >>> sample = ds.copied()[7]
        >>> sample.image += 1
        >>> sample.image
        array([8., 8., 8., 8.], dtype=float32)
        """
        first = self._require_objects("copied")
        return self._replace(_first=first._replace(copy=True))

    def decode(self, *fields: str) -> Dataset[dict[str, Any]]:
        """Return a dataset of dicts of the samples' values.

        Parameters
        ----------
        *fields : str
            By default all.

        Returns
        -------
        Dataset
            Dicts from field to value, with the key as ``"__key__"``.

        Raises
        ------
        FastshardError
            The samples are mapped or decoded already.
        FieldNotFoundError
            `sample_type` has no such field; of other samples on access.
        TypeError
            A field is not a str.

        Examples
        --------
        >>> ds.decode("label")[7]
        {'__key__': '000000000007', 'label': 'label 7'}
        """
        first = self._require_objects("decode")
        self._check_fields("decode", fields)
        decoder = KeyedDecoder(first, self._later, fields)
        return self._replace(_first=decoder, _later=(), _kind=dict)

    def select_fields(self, *fields: str) -> Dataset[DictSample]:
        """Return a dataset of samples with these fields only, in this order.

        Returns
        -------
        Dataset of DictSample
            Values are those of `sample_type`: arrays where it declares them. No bytes
            of other fields are read, unless the samples are views through lenses or
            have a ``__post_init__``.

        Raises
        ------
        FieldNotFoundError
            `sample_type` has no such field; of other samples on access.
        TypeError
            A field is not a str.
        FastshardError
            The samples are decoded to dicts already.

        Examples
        --------
        >>> sample = ds.select_fields("label")[7]
        >>> sample.keys(), sample.label
        (['label'], 'label 7')
        """
        first = self._require_objects("select_fields")
        names = self._check_fields("select_fields", fields)
        is_direct = isinstance(self._origin, ShardOrigin) and not self._later
        if is_direct and names is not None and is_readable_by_field(first):
            first = first._replace(fields=fields)
        later = (*self._later, FieldSelection(fields))
        return self._replace(_first=first, _later=later, _kind=DictSample)

    def _check_fields(self, method: str, fields: tuple[str, ...]) -> list[str] | None:
        """Return the fields of the samples' type, which must have some; None: any."""
        names = field_names(self.sample_type)
        for field in fields:
            if not isinstance(field, str):
                kind = type(field).__name__
                raise TypeError(f"{method}() takes names of fields, got a {kind}")
            if names is not None and field not in names:
                where = f"{_name_of(self._kind)} samples, which have"
                raise missing_from(where, (field,), names)
        return names

    @property
    def untyped(self) -> FieldDataset[Any]:
        """The same stored samples without their type: named fields, unmapped.

        A `fastshard.Dataset`, as ``fastshard.open(source, packed=True)`` gives it.

        Examples
        --------
        >>> ds.untyped.columns([5, 90], "image")["image"][:, 0]
        array([ 5., 90.], dtype=float32)
        """
        return self._packed

    @property
    def raw(self) -> FieldDataset[Any]:
        """The same stored samples as members of tar shards, with other members.

        Examples
        --------
        >>> ds.raw[7].keys()
        ['msgpack']
        """
        return self._packed.raw

    def exclude(self, shards: Iterable[str | int]) -> Dataset[T]:
        """Return the dataset without some shards.

        Parameters
        ----------
        shards : iterable of str or int
            Paths as `list_shards` names them, last parts of paths, or positions.

        Raises
        ------
        ValueError
            A shard is not in the dataset, or its name is ambiguous.

        Examples
        --------
        >>> len(ds.exclude(["data.tar"]))
        0
        """
        kept = ShardOrigin(self._packed.exclude(shards), {})
        return self._replace(_origin=kept, _shards=kept, _plan=Plan())

    def _require_objects(self, method: str) -> Decoding:
        if isinstance(self._first, Decoding):
            return self._first
        raise FastshardError(f"call {method} before decode, not after")

    def __add__(  # type: ignore[override, unused-ignore]
        self, other: BaseDataset[U]
    ) -> Concat[T | U]:
        """Return the concatenation of two datasets.

        Parameters
        ----------
        other : dataset
            Any one.

        Returns
        -------
        Concat
            The samples of this dataset, then those of the other.

        Examples
        --------
        >>> len(ds + ds)
        200
        """
        return concatenate(self, other)

    def wrap(self, sample: Mapping[str, Any]) -> T:
        """Decode a sample of another reader, as WebDataset's.

        Parameters
        ----------
        sample : Mapping
            With the payload as ``"msgpack"``.

        Returns
        -------
        object
            As ``ds[i]``, also through lenses and mapped functions.

        Raises
        ------
        ValueError
            The sample has no payload.
        SchemaError, FormatError
            The payload is not of `sample_type`.

        Examples
        --------
        >>> ds.wrap(ds[7].as_wds).label
        'label 7'
        """
        if "msgpack" not in sample:
            raise ValueError(
                f"expected a sample with a payload, got one missing 'msgpack' key: "
                f"it has {', '.join(map(str, sample)) or 'none'}"
            )
        return self._unpack(sample["msgpack"])

    def wrap_batch(self, batch: Mapping[str, Sequence[Any]]) -> SampleBatch[T]:
        """Decode a batch of another reader, as WebDataset's.

        Parameters
        ----------
        batch : Mapping
            With the payloads as ``"msgpack"``.

        Raises
        ------
        ValueError
            The batch has no payloads.
        SchemaError, FormatError
            A payload is not of `sample_type`.

        Examples
        --------
        >>> payloads = [sample.packed for sample in ds.head(3)]
        >>> ds.wrap_batch({"msgpack": payloads}).label
        ['label 0', 'label 1', 'label 2']
        """
        if "msgpack" not in batch:
            raise ValueError(
                f"expected a batch of payloads, got one missing 'msgpack' key: "
                f"it has {', '.join(map(str, batch)) or 'none'}"
            )
        items = list(map(self._unpack, batch["msgpack"]))
        return SampleBatch._of(self._kind, Padding(), items)

    def _unpack(self, payload: Any) -> T:
        first = self._require_objects("wrap")
        if not isinstance(payload, bytes | bytearray | memoryview):
            kind = type(payload).__name__
            raise ValueError(f"expected the payload to be bytes, got {kind}")
        item: Any = first.unpack(payload)
        for stage in self._stages[1:]:
            item = stage(item)
        found: T = item
        return found

    # -- By shard, and as tables

    def process_shards(
        self,
        fn: Callable[[list[T]], U],
        *,
        shards: Iterable[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        on_shard_error: Callable[[str, Exception], object] | None = None,
    ) -> dict[str, U]:
        """Call a function with the samples of each shard.

        Parameters
        ----------
        fn : callable
            ``fn(samples)`` takes a list of the dataset's samples in one shard.
        shards : iterable of str, optional
            Those to process, as `list_shards` names them; by default all.
        checkpoint : str or path-like, optional
            A JSON file of the results so far: a later call with it continues where this
            one stopped. It is removed when all shards are done. Results that are not
            JSON values are not kept: their shards are processed again.
        on_shard_error : callable, optional
            ``on_shard_error(shard, error)`` is called for each shard that fails.

        Returns
        -------
        dict
            The result of `fn`, by shard.

        Raises
        ------
        PartialFailureError
            A shard cannot be read or `fn` raised, after all shards were tried; it has
            ``succeeded_shards``, ``failed_shards``, ``errors`` and ``results``.
        ValueError
            A shard is not one of the dataset.
        FormatError
            The file is not a checkpoint.

        Examples
        --------
        >>> ds.process_shards(lambda samples: len(samples))
        {'data.tar': 100}
        """
        names = self.list_shards()
        numbers = {name: k for k, name in enumerate(names)}
        wanted = names if shards is None else list(shards)
        unknown = [name for name in wanted if name not in numbers]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not a shard of {self!r}")
        return process_shards(
            fn,
            partial(shard_samples, self),
            [(name, numbers[name]) for name in wanted],
            None if checkpoint is None else Checkpoint(checkpoint),
            on_shard_error,
        )

    def _limited(self, limit: int | None) -> Iterable[T]:
        return self.iter() if limit is None else self.head(limit)

    def to_dict(self, limit: int | None = None) -> dict[str, list[Any]]:
        """Return the samples as columns.

        Parameters
        ----------
        limit : int, optional
            Number of samples; by default all, in memory.

        Returns
        -------
        dict of str to list
            A value for each sample; None where a sample lacks the field. Empty if
            there are no samples.

        Raises
        ------
        TypeError
            The samples have no named fields: a mapped function made them.
        FormatError, OSError
            A sample cannot be read.

        Examples
        --------
        >>> ds.to_dict(limit=2)["label"]
        ['label 0', 'label 1']
        """
        return to_columns(self._limited(limit))

    def to_pandas(self, limit: int | None = None) -> pandas.DataFrame:
        """Return the samples as a data frame, a row each.

        Parameters
        ----------
        limit : int, optional
            Number of samples; by default all, in memory.

        Returns
        -------
        pandas.DataFrame
            Arrays are objects in it, on the shards' memory.

        Raises
        ------
        MissingLibraryError
            pandas is not installed.
        TypeError
            The samples have no named fields: a mapped function made them.
        FormatError, OSError
            A sample cannot be read.

        Examples
        --------
        >>> ds.to_pandas(limit=2)["label"].tolist()
        ['label 0', 'label 1']
        """
        return to_frame(map(plain_row, self._limited(limit)))

    def to_parquet(
        self,
        path: str | os.PathLike[str],
        sample_map: Callable[[T], Mapping[str, Any]] | None = None,
        maxcount: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Write the samples to Parquet files, by pandas.

        Parameters
        ----------
        path : str or path-like
            The file; it appears when it is whole.
        sample_map : callable, optional
            Makes a dict of a sample; by default of all its fields. Parquet holds
            arrays of one dimension.
        maxcount : int, optional
            Samples of a file: files are named ``stem-000000.suffix`` and so on, and
            at most that many samples are in memory. By default one file.
        **kwargs
            Options of ``pandas.DataFrame.to_parquet``.

        Raises
        ------
        ValueError
            `maxcount` is below 1.
        MissingLibraryError
            pandas is not installed.
        TypeError
            The samples have no named fields: a mapped function made them.
        FormatError, OSError
            A sample cannot be read, or a file not be written.

        Examples
        --------
        >>> ds.to_parquet("labels.parquet", lambda sample: {"label": sample.label})
        """
        if maxcount is not None and operator.index(maxcount) < 1:
            raise ValueError(f"maxcount must be at least 1, got {maxcount}")
        samples = self.iter()
        try:
            write_parquet(samples, path, sample_map, maxcount, kwargs)
        finally:
            samples.close()

    # -- The data

    @property
    def sample_type(self) -> type[T]:
        """The type of the samples, after lenses.

        Raises
        ------
        TypeError
            Two types were given.

        Examples
        --------
        >>> ds.sample_type
        <class '...ImageSample'>
        """
        if self._mismatch:
            raise TypeError(self._mismatch)
        kind: type[T] = self._kind
        return kind

    @property
    def batch_type(self) -> Any:
        """The type of batches: ``SampleBatch[sample_type]``."""
        return SampleBatch[self.sample_type]  # type: ignore[name-defined]

    @property
    def schema(self) -> dict[str, Any]:
        """The fields of `sample_type`: their types by name.

        Of a `DictSample`, whose fields are those of each sample, ``{"_data": dict}``;
        empty for the results of mapped functions.

        Examples
        --------
        >>> ds.schema["label"]
        <class 'str'>
        """
        kind = self.sample_type
        if kind is DictSample:
            return {"_data": dict}
        if not dataclasses.is_dataclass(kind):
            return {}
        try:
            hints = get_type_hints(kind, include_extras=True)
        except Exception:  # names that cannot be resolved stay as they are written
            hints = {}
        fields = dataclasses.fields(kind)
        return {field.name: hints.get(field.name, field.type) for field in fields}

    @property
    def column_names(self) -> list[str]:
        """The names of the fields of `sample_type`; empty for a `DictSample`.

        Examples
        --------
        >>> ds.column_names
        ['image', 'label']
        """
        return field_names(self.sample_type) or []

    def list_shards(self) -> list[str]:
        """Return the names of the shards: paths or URLs.

        Raises
        ------
        ShardNotFoundError
            There are none.

        Examples
        --------
        >>> ds.list_shards()
        ['data.tar']
        """
        return self._shards.names()

    @property
    def shards(self) -> Iterator[str]:
        """An iterator over the names of the shards.

        Examples
        --------
        >>> list(ds.shards)
        ['data.tar']
        """
        return iter(self.list_shards())

    @property
    def shard_list(self) -> list[str]:
        """The names of the shards; deprecated, use `list_shards`."""
        warnings.warn(
            "shard_list is deprecated, use list_shards()",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.list_shards()

    @property
    def source(self) -> Any:
        """The source of shards: a `URLSource` for paths and URLs, or as given.

        Examples
        --------
        >>> ds.source
        URLSource('data.tar')
        """
        return self._shards.source

    @property
    def url(self) -> str:
        """The source if it is one path or URL, else the first shard."""
        url = getattr(self.source, "url", None)
        if isinstance(url, str | os.PathLike):
            return os.fspath(url)
        return next(self.shards, "")

    def describe(self) -> dict[str, Any]:
        """Return a summary of the dataset; reads no sample.

        Returns
        -------
        dict
            ``sample_type`` (its name), ``fields`` (see `schema`), ``num_shards``,
            ``shards``, ``url`` and ``metadata``.

        Raises
        ------
        ShardNotFoundError
            There are no shards.
        RemoteError, OSError, FormatError
            The metadata cannot be read.

        Examples
        --------
        >>> summary = ds.describe()
        >>> summary["sample_type"], summary["num_shards"]
        ('ImageSample', 1)
        """
        shards = self.list_shards()
        return {
            "sample_type": _name_of(self.sample_type),
            "fields": self.schema,
            "num_shards": len(shards),
            "shards": shards,
            "url": self.url,
            "metadata": self.metadata,
        }

    @property
    def metadata(self) -> dict[str, Any] | None:
        """The msgpack map at `metadata_url`, read once; None without a URL.

        Raises
        ------
        RemoteError, OSError
            It cannot be read.
        FormatError
            It is not a msgpack map.
        """
        if self._metadata is None and self.metadata_url is not None:
            self._metadata = read_metadata(
                self.metadata_url, self._shards.source, self._shards.options
            )
        return self._metadata

    @property
    def content_metadata(self) -> Any:
        """The argument ``content_metadata=`` of `write_samples`: a sample or a dict.

        None unless this process wrote the dataset; settable.
        """
        return self._content_metadata

    @content_metadata.setter
    def content_metadata(self, value: Any) -> None:
        self._content_metadata = value

    def verify(self, *, hashes: bool = False) -> list[Fault]:
        """Check every shard, payload and index and return the faults.

        Parameters
        ----------
        hashes : bool, default False
            Compare members with the checksums that indexes record.

        Returns
        -------
        list of Fault
            Empty if the dataset is whole.

        Examples
        --------
        >>> ds.verify()
        []
        """
        return self._packed.verify(hashes=hashes)

    def memory_info(self) -> dict[str, int | None]:
        """Return the memory in use for reading, in bytes.

        Returns
        -------
        dict
            As `fastshard.Dataset.memory_info`.

        Examples
        --------
        >>> ds.memory_info()["buffered"]
        0
        """
        return self._packed.memory_info()

    def close(self) -> None:
        """Close the shards, for all datasets derived from this one.

        Existing arrays stay valid. The ``with`` statement calls it.

        Examples
        --------
        >>> with fastshard.typed.Dataset("data.tar") as untyped:
        ...     image = untyped[7].array("image")
        >>> image
        array([7., 7., 7., 7.], dtype=float32)
        """
        self._shards.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _description(self) -> Description:
        found = self._origin.describe()
        later = self._later
        if isinstance(self._origin, FilteredOrigin):
            later = later[len(self._origin.dataset._later) :]
        first = [] if isinstance(self._first, Decoding) else [self._first]
        added: tuple[Any, ...] = (*first, *later)
        stages = ", ".join(map(describe_stage, added))
        order = "; ".join(filter(None, (found.order, describe_plan(self._plan))))
        return found._replace(order=order, stages=stages)

    def __repr__(self) -> str:
        return super().__repr__().replace("(", f"[{_name_of(self._kind)}](", 1)


STATE = (
    "_content_metadata",
    "_first",
    "_is_typed",
    "_kind",
    "_later",
    "_mismatch",
    "_origin",
    "_plan",
    "_shards",
    "metadata_url",
    "_metadata",
)


def _rebuild(kind: type[Dataset[Any]], state: dict[str, Any]) -> Dataset[Any]:
    dataset: Dataset[Any] = object.__new__(kind)
    dataset.__dict__.update(state)
    dataset._forget()
    return dataset


def _iterate(
    dataset: Callable[[], Dataset[Any]], batch_size: int | None, padding: Padding
) -> Iteration[Any]:
    """Return the iteration over the samples or batches of a dataset."""
    padding.checked()
    if batch_size is None:
        return Iteration(lambda: dataset().iter())
    size = operator.index(batch_size)
    if size < 1:
        raise ValueError(f"batch_size must be at least 1, got {size}")
    return Iteration(lambda: dataset()._sample_batches(size, padding))


def _type_argument(alias: Any) -> Any:
    """Return the sample type of ``Dataset[T]``, or None for a type variable."""
    (kind,) = get_args(alias) or (None,)
    return None if isinstance(kind, TypeVar) else kind


def _declared_type(kind: type) -> Any:
    """Return the sample type that a subclass declares: ``Dataset[ImageSample]``."""
    for base in kind.__mro__:
        for alias in vars(base).get("__orig_bases__", ()):
            if get_origin(alias) is Dataset:
                return _type_argument(alias)
    return None


def _returned_type(fn: Callable[..., Any]) -> Any:
    """Return the class that a function is annotated to return; else `object`."""
    try:
        kind = get_type_hints(fn).get("return")
    except Exception:  # annotations that cannot be resolved
        return object
    return kind if isinstance(kind, type) else object


def _name_of(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))
