"""Datasets: many shards as one sequence of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, overload
from weakref import ref

from fastshard._core.dataset.gather import prefetch_samples
from fastshard._core.dataset.iterate import PrefetchIterator
from fastshard._core.dataset.locator import LookaheadRing, SampleLocator
from fastshard._core.dataset.remote_prefetch import (
    RemotePrefetchIterator,
    fetch_samples,
)
from fastshard._core.dataset.shard import add_notes
from fastshard._core.dataset.streams import ItemStream, PositionStream, ShardStream
from fastshard._util.aio import run_in_thread
from fastshard.dataset.base import BaseDataset, T
from fastshard.dataset.batch import (
    Ragged,
    gather_samples,
    parse_field_types,
    read_column,
)
from fastshard.dataset.iteration import ErrorHandler, T_co
from fastshard.dataset.order.plan import Plan
from fastshard.dataset.order.selection import (
    RAISE,
    apply_mask,
    collect_mask,
    info_column,
)
from fastshard.dataset.order.state import Identity
from fastshard.dataset.shardset import ShardSet, memory_info
from fastshard.dataset.tarset import require_tars
from fastshard.dataset.views import DatasetKeys, Members, Shards
from fastshard.errors import ClosedError, FastshardError
from fastshard.formats.decoders import Decoder
from fastshard.formats.sample import Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard.dataset.verify import Fault

__all__ = [
    "Dataset",
]


MOST_FETCHED = 1 << 62  # bytes of a remote batch, without max_memory


Missing = Literal["raise", "skip"]


class Dataset(BaseDataset[T_co]):
    """A sequence of samples over the shards of a dataset; see `fastshard.open`.

    What narrows, reorders or maps a dataset returns a new one on the same
    shards. Nothing is read until a sample is asked for.

    Pickled, it takes the paths, the counts and its own positions along, and
    opens the shards again. It survives fork.
    """

    __slots__ = (
        "_changes",
        "_count",
        "_decoders",
        "_direct",
        "_fields",
        "_keys",
        "_narrows",
        "_places",
        "_plan",
        "_required",
        "_set",
        "_stages",
    )

    def __init__(
        self,
        shards: ShardSet,
        *,
        plan: Plan = Plan(),  # noqa: B008 - immutable
        fields: tuple[str, ...] | None = None,
        required: bool = True,
        decoders: Mapping[str, Decoder] | None = None,
        stages: tuple[Callable[[Any], Any], ...] = (),
    ) -> None:
        self._set = shards
        self._plan = plan
        self._fields = fields
        self._required = required
        self._decoders = decoders
        self._narrows = fields is not None or decoders is not None
        self._changes = self._narrows or bool(stages)
        self._stages = stages
        self._keys: DatasetKeys | None = None
        self._places: SampleLocator | None = None  # once the samples are counted
        self._direct: SampleLocator | None = None  # the same, if they are all there is
        self._count = 0

    def _with(self, **changes: Any) -> Dataset[Any]:
        options = {
            "plan": self._plan,
            "fields": self._fields,
            "required": self._required,
            "decoders": self._decoders,
            "stages": self._stages,
        }
        shards = changes.pop("shards", self._set)
        return Dataset(shards, **(options | changes))

    def _prepared(self) -> SampleLocator:
        """Count, once; return where the samples are."""
        if self._places is None or self._set.closed:
            places = self._set.locator()
            order = self._plan.order(places.total)
            self._places = places if order is None else places.ordered(order)
            self._count = self._places.count
            if not self._changes:
                self._direct = self._places
        return self._places

    def __len__(self) -> int:
        """Return the number of samples; without indexes, shards are scanned."""
        self._prepared()
        return self._count

    @overload
    def __getitem__(self, key: int | np.integer[Any] | str) -> T_co: ...
    @overload
    def __getitem__(
        self, key: slice | Sequence[int] | NDArray[Any]
    ) -> Dataset[T_co]: ...
    def __getitem__(self, key: Any) -> Any:
        """Return a sample, or a dataset of some.

        Parameters
        ----------
        key : int, str, slice, sequence of int, or array
            A position (negative ones count back) or a key: one sample. A slice,
            positions in any order, or a mask of bool [samples]: a dataset.

        Raises
        ------
        IndexError
            There is no such position.
        SampleNotFoundError
            There is no sample of this key.
        AmbiguousKeyError
            There are several.
        FormatError, OSError, ClosedError
            As for `open_shard` and for a shard's samples.
        """
        if type(key) is int:
            places = self._direct
            return self._at(key) if places is None else places.at(key)
        if isinstance(key, str):
            return self._at(self.keys().index(key))
        if getattr(key, "ndim", 0) == 0 and hasattr(key, "__index__"):
            return self._at(key.__index__())
        return self._select(key)

    def _at(self, i: int) -> Any:
        places = self._places
        if places is None:
            places = self._prepared()
        item = places.at(i)
        if self._narrows:
            item.narrow(self._fields, self._required, self._decoders)
        return self._map_item_at(item, i) if self._stages else item

    def _get_samples(self, positions: Iterable[int]) -> list[Any]:
        """Return samples, narrowed; not mapped."""
        if hasattr(positions, "tolist"):
            positions = positions.tolist()
        items = LookaheadRing(self._prepared(), tuple(positions)).every()
        if self._narrows:
            for item in items:
                item.narrow(self._fields, self._required, self._decoders)
        return items

    def _load_samples(
        self, positions: Iterable[int], only: tuple[str, ...] | None = None
    ) -> list[Any]:
        """Return samples whose bytes, or those of some fields, are in memory."""
        samples = self._get_samples(positions)
        reading = self._set.reading
        if self._set.remote is not None:
            fetch_samples(samples, reading.max_memory or MOST_FETCHED, only)
        elif reading.prefetch:
            prefetch_samples(samples, reading.window_bytes)
        return samples

    def get_many(self, positions: Iterable[int]) -> list[T_co]:
        """Return samples by position, in the order given, as a list.

        Their bytes are brought into memory together, without the GIL.

        Raises
        ------
        IndexError
            There is no such position.
        FormatError, OSError
            A sample cannot be read.
        """
        if not self._stages:
            return self._load_samples(positions)
        asked = list(positions)
        return self._map_items(self._load_samples(asked), asked)

    async def get_many_async(self, positions: Iterable[int]) -> list[T_co]:
        """Do what `get_many` does, without holding up the event loop.

        Calls that are awaited together ask for their ranges together. In asyncio's
        loops and trio's.
        """
        wanted = list(positions)
        return await run_in_thread(lambda: self.get_many(wanted))

    def read_into(
        self,
        positions: Iterable[int],
        out: Any,
        *,
        fields: str | Sequence[str] | None = None,
        threads: int | None = None,
    ) -> NDArray[np.int64]:
        """Copy the stored bytes of many samples into one buffer, without the GIL.

        Parameters
        ----------
        positions : sequence of int, or array
        out : buffer
            As for `Shard.read_into`.
        fields : str or sequence of str, optional
            Which fields of each sample, in this order; otherwise all that it shows.
        threads : int, optional
            As for `Shard.read_into`.

        Returns
        -------
        ndarray of int64 [fields of all samples + 1]
            Where each field begins in `out`, in bytes, and where the last ends.

        Raises
        ------
        FieldNotFoundError
            A sample has no such field.
        ValueError, IndexError, FormatError, OSError
            As for `Shard.read_into`.
        """
        wanted = (fields,) if isinstance(fields, str) else fields
        return gather_samples(self._get_samples(positions), out, wanted, threads)

    def columns(
        self,
        positions: Iterable[int],
        fields: Any,
        *,
        ragged: Ragged = "error",
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Return fields of many samples, each as one array.

        Parameters
        ----------
        positions : sequence of int, or array
        fields : str, sequence of str, or mapping of str
            By the field's decoder, as in a batch: ``npy`` fields keep their dtype and
            shape; ``cls`` and the like are integers; a decoder of your own gives what
            is stacked, or a list where that cannot be. Others are raw bytes. A
            mapping tells the dtype of raw values, or their dtype and shape:
            ``{"vec": "float32", "grid": ("u1", (8, 8)), "cls": "u1"}``.
        ragged : {"error", "list"}
            What of a field whose shape or dtype is not the same in all samples: an
            error; or a list of arrays, without a copy.
        threads : int, optional
            As for `Shard.read_into`.

        Returns
        -------
        dict of str to ndarray [positions, *shape]
            Copies: they are the caller's own.

        Raises
        ------
        RaggedError
            A field is ragged; the error names the sample.
        FieldNotFoundError, FormatError, ValueError, IndexError, OSError
            As for `Sample.array`.
        """
        if ragged not in ("error", "list"):
            raise ValueError(f'ragged is "error" or "list", not {ragged!r}')
        types = parse_field_types(fields)
        samples = self._load_samples(positions, tuple(types))
        return {
            field: read_column(samples, field, told, ragged, threads, self._decoders)
            for field, told in types.items()
        }

    def _iterator(
        self, window: int, on_error: ErrorHandler | None
    ) -> PrefetchIterator | RemotePrefetchIterator:
        if self._set.closed:
            raise ClosedError("the dataset is closed")
        narrowing = (self._fields, self._required, self._decoders)
        feed: ItemStream
        failed: set[int] = set()
        if self._plan == Plan():  # shards need not be counted before
            sizes = self._set.sizes()
            feed = ShardStream(sizes, _Opener(self._set, sizes, failed), *narrowing)
        else:
            feed = PositionStream(self._prepared(), *narrowing)
        make = self._map_item if self._stages else None
        skipped = self._plan.skipped
        return self._set.iterate(
            feed,
            window,
            make,
            _StateAfter(self, failed),
            on_error=on_error,
            skipped=skipped,
        )

    def _is_counted(self) -> bool:
        return self._plan != Plan() or self._set.is_counted()

    def _with_plan(self, plan: Plan) -> Dataset[T_co]:
        return self._with(plan=plan)

    def _total(self) -> int:
        return self._set.starts()[-1]

    def _identity(self) -> Identity:
        if self._set.identity is None:
            self._set.identity = self._set.identify()
        identity: Identity = self._set.identity
        return identity

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self.keys()

    def keys(self) -> DatasetKeys:
        """Return the samples' keys: a lazy sequence of str."""
        if self._keys is None:
            self._prepared()
            self._keys = DatasetKeys(self._set, self._order())
        return self._keys

    @property
    def members(self) -> Members:
        """All members of the shards, whatever samples were selected."""
        return Members(self._set)

    @property
    def shards(self) -> Shards:
        """The shards, opened when asked for."""
        return Shards(self._set)

    def select_fields(
        self: Dataset[Sample], *fields: str, missing: Missing = "raise"
    ) -> Dataset[Sample]:
        """Return a dataset whose samples show these fields only, in this order.

        Parameters
        ----------
        *fields : str
        missing : {"raise", "skip"}
            What of samples that lack one of them: reading such a sample raises
            `FieldNotFoundError`; or they are left out, for which all shards'
            names are looked through now.
        """
        if missing not in ("raise", "skip"):
            raise ValueError(f'missing is "raise" or "skip", not {missing!r}')
        self._refuse_mapped("select fields")
        narrowed = self._with(fields=fields)
        if missing == "raise":
            return narrowed
        mask = collect_mask(self._set, lambda k: self._set.samples(k).having(fields))
        return narrowed._with(plan=Plan(apply_mask(mask, self._order())))

    def filter(
        self,
        fn: Callable[[str, Mapping[str, int], Mapping[str, Any]], object],
    ) -> Dataset[T_co]:
        """Return a dataset of the samples that a function wants; reads no data.

        Parameters
        ----------
        fn : callable
            ``fn(key, sizes, info) -> bool``: the sample's key; bytes of each
            field; and what the index says of each field, a mapping from field
            to dict that is parsed when it is asked for. Of a columnar dataset it
            is the sample's ``{"metadata": dict}``.

        Raises
        ------
        InfoNotFoundError
            The function asks for a column that the index does not have.
        Exception
            What the function raises, with a note that names the sample.
        """
        import numpy as np

        facts = self._plain()._facts

        def is_wanted(i: int) -> bool:
            found = facts(i)
            try:
                return bool(fn(*found))
            except Exception as error:
                sample = self._plain()._at(i)
                failure = add_notes(error, sample, f"position {i:,} of the dataset")
                if failure is error:
                    raise
                raise failure from error

        wanted = [i for i in range(len(self)) if is_wanted(i)]
        return self._plain()[np.array(wanted, np.int64)]._with(stages=self._stages)

    def _plain(self) -> Dataset[Sample]:
        """Return the dataset before it is mapped."""
        plain: Dataset[Any] = self._with(stages=()) if self._stages else self
        return plain

    def _facts(self, i: int) -> tuple[str, dict[str, int], Mapping[str, Any]]:
        """Return the key, the sizes and the infos of a sample."""
        sample: Sample = self._at(i)
        sizes = {}
        for field in sample:
            shard, member = sample.place(field)
            sizes[field] = shard.extent_of(member)[1]
        return sample.key, sizes, sample.infos()

    def info(self, name: str, default: Any = RAISE) -> NDArray[Any]:
        """Return one value that the index has of each sample, as a column.

        Parameters
        ----------
        name : str
            As in ``shard.info(i)``: ``"width"``, ``"captions"``, ``"sha256"``.
        default : object, optional
            What stands for a sample without it.

        Returns
        -------
        ndarray [samples]
            Of numbers where all values are; of objects otherwise. Of several
            members of a sample the first that has the value gives it.

        Raises
        ------
        FastshardError
            A sample has no such value, and there is no default.
        """
        facts = self._plain()._facts
        return info_column(map(facts, range(len(self))), name, default)

    def map(self, fn: Callable[[T_co], T]) -> Dataset[T]:
        """Return a dataset of ``fn(item)``, called when an item is asked for."""
        return self._with(stages=(*self._stages, fn))

    def decode(self: Dataset[Sample], *fields: str) -> Dataset[dict[str, Any]]:
        """Return a dataset of plain values, decoded when they are asked for.

        Parameters
        ----------
        *fields : str
            The fields to decode; all of them without any.

        Returns
        -------
        Dataset
            Of dicts from field to value, and ``"__key__"``; see `Sample.decode`.
        """
        self._refuse_mapped("decode")
        return self.map(_Decode(fields))

    def exclude(self, shards: Iterable[str | int]) -> Dataset[T_co]:
        """Return the dataset without some shards.

        Parameters
        ----------
        shards : iterable of str or int
            Their paths, as they are in ``ds.shards.paths``, last parts of them,
            or their positions.

        Raises
        ------
        ValueError
            There is no such shard, or several are meant by one name.
        """
        gone = {self.shards.index(shard) for shard in shards}
        if self._plan == Plan():  # the shards need not even be readable
            return self._with(shards=require_tars(self._set).without(gone))
        import numpy as np

        starts = self._set.starts()
        kept = np.ones(starts[-1], bool)
        for k in gone:
            kept[starts[k] : starts[k + 1]] = False
        return self._with(plan=Plan(apply_mask(kept, self._order())))

    def _refuse_mapped(self, what: str) -> None:
        if self._stages:
            raise FastshardError(f"{what} before the dataset is mapped or decoded")

    def stats(self) -> dict[str, int]:
        """Count shards, samples, members, and the bytes of the members."""
        self._prepared()
        shards = self._set
        return {
            "shards": shards.file_count(),
            "samples": self._count,
            "members": shards.member_starts()[-1],
            "bytes": shards.data_bytes(),
        }

    def memory_info(self) -> dict[str, int | None]:
        """Say how much memory reading takes now, in bytes.

        Returns
        -------
        dict
            ``mapped``: of the address space, by shards that are open. ``resident``:
            of that, in this process's memory; None where the system does not say.
            ``buffered``: brought ahead by iterations.
        """
        return memory_info(self._set)

    def verify(self, *, hashes: bool = False) -> list[Fault]:
        """Look for faults in every shard and index; see `verify_dataset`."""
        faults = self._set.verify()
        if faults is None:
            from fastshard.dataset.verify import verify_dataset

            faults = verify_dataset(require_tars(self._set), hashes=hashes)
        return faults

    def close(self) -> None:
        """Let go of the shards, of datasets made from this one too.

        Views that are alive stay valid.
        """
        self._set.close()

    def __enter__(self) -> Dataset[T_co]:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        # The same before and after counting: grain tells its sources apart by it.
        where = f"{len(self._set):,} shards below {self._set.root!r}"
        return f"<Dataset: {where}{self._plan}>"

    def __reduce__(self) -> tuple[Any, ...]:
        self._prepared()  # so that workers need not count
        options = {
            "plan": self._plan,
            "fields": self._fields,
            "required": self._required,
            "decoders": self._decoders,
            "stages": self._stages,
        }
        return _again, (self._set, options)


def _again(shards: ShardSet, options: dict[str, Any]) -> Dataset[Any]:
    return Dataset(shards, **options)


class _Opener:
    """Opens shards for one iteration, and notes which could not be opened.

    Parameters
    ----------
    shards : ShardSet
    sizes : list of int or None
        Samples of each shard, as far as they were counted before.
    failed : set of int
        Gets the shards that could not be opened and were not counted: each of them
        stands for one item of the iteration.
    """

    def __init__(
        self, shards: ShardSet, sizes: list[int | None], failed: set[int]
    ) -> None:
        self._set = shards
        self._sizes = sizes
        self._failed = failed

    def __call__(self, k: int) -> Any:
        try:
            return self._set.samples(k)
        except (FastshardError, OSError):
            if self._sizes[k] is None:
                self._failed.add(k)
            raise


class _StateAfter:
    """Returns the state after some items of an iteration over a dataset."""

    def __init__(self, dataset: Dataset[Any], failed: set[int]) -> None:
        self._set: ShardSet | None = dataset._set
        self._known = ref(dataset._set)
        self._plan = dataset._plan
        self._failed = failed  # see `_Opener`

    def __call__(self, done: int, skipped: int) -> dict[str, Any]:
        shards = self._known()
        if shards is None:
            raise ClosedError("the iteration was closed, and its dataset is gone")
        if self._failed:
            done = self._position(done, shards.starts())
        return Dataset(shards, plan=self._plan)._state_after(done, skipped)

    def _position(self, done: int, starts: list[int]) -> int:
        for k, (start, end) in enumerate(pairwise(starts)):
            items = 1 if k in self._failed else end - start
            if done < items:
                return start + done
            done -= items
        return starts[-1]

    def release(self) -> None:
        """Keep the shards no longer."""
        self._set = None


class _Decode:
    """A stage that decodes a sample; a class, so that it pickles."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self.fields = fields

    def __call__(self, sample: Sample) -> dict[str, Any]:
        return sample.decode(*self.fields)
