"""Ray Data adapter: ranges of samples read into blocks of Arrow tables.

Importing this module imports Ray and PyArrow.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import ray
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from fastshard._core.dataset.gather import pack
from fastshard._core.dataset.shard import find_members
from fastshard.dataset.dataset import Dataset
from fastshard.dataset.open import open  # noqa: A004
from fastshard.dataset.order.plan import Plan
from fastshard.dataset.sequence.batch import Collation
from fastshard.errors import FastshardError
from fastshard.formats.decoders import decode_field, decoder_for

if TYPE_CHECKING:
    from fastshard.dataset.paths.listing import Source

__all__ = ["ShardDatasource", "decode", "read"]

KEY = "__key__"
MAX_BLOCK_BYTES = 128 << 20  # if Ray sets no target
TASK_BYTES = 256 << 20  # per task, unless Ray sets their number: starting one is slow
STUB = "__bsp_stub"  # Ray's column for rows without columns
VALUE_BYTES = 16  # of a field that is not bytes in a shard
SAMPLED = 16  # samples read to estimate the size of fields


def read(
    source: Source | Dataset[Any],
    fields: str | Sequence[str] | None = None,
    *,
    ray_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> ray.data.Dataset:
    """Read a dataset with Ray Data: the stored bytes of fields as columns.

    Parameters
    ----------
    source : str, path-like, sequence of them, or Dataset
        As for `fastshard.open`; or a dataset, selected, shuffled or split, but not
        mapped. Workers must be able to read the shards.
    fields : str or sequence of str, optional
        Fields of each sample; by default those of the first sample.
    ray_options : Mapping, optional
        For `ray.data.read_datasource`: ``concurrency``, ``num_cpus``, ..., and
        ``override_num_blocks``, the number of tasks: by default two for each processor
        of the cluster, and more if a task had over 256 MiB to read.
    **options
        For `fastshard.open`; ``mode`` is ``"pread"`` here.

    Returns
    -------
    ray.data.Dataset
        Columns ``"__key__"`` (string) and one for each field (large_binary), in the
        order of the samples. A block is one range of samples, which begins at the start
        of a shard if one is near. Counting reads nothing.

    Raises
    ------
    FieldNotFoundError
        A sample has no such field; raised in the task that reads it.
    FastshardError
        The dataset was mapped or decoded: do that with Ray.
    ValueError
        There are `options`, and `source` is a Dataset.

    Examples
    --------
    >>> import fastshard
    >>> from fastshard.adapters.ray import decode, read
    >>> rows = read("data/train-{0000..0003}.tar", fields=["npy", "cls"])
    >>> rows.count()
    100
    >>> batch = next(iter(rows.map_batches(decode).iter_batches(batch_size=32)))
    >>> batch["npy"].shape
    (32, 4)
    """
    if isinstance(source, Dataset):
        if options:
            raise ValueError(
                f"options of open need a path, got {', '.join(options)} with a Dataset"
            )
        dataset = source
    else:
        # Arrow copies in any case: mapping files has no use.
        dataset = open(source, **({"mode": "pread"} | options))
    if dataset._stages:
        raise FastshardError(
            "expected a dataset without map and decode: apply them with Ray instead"
        )
    if dataset._images is not None:
        raise FastshardError(
            "expected a dataset without images: Ray gets their stored bytes, decode "
            "them in map_batches"
        )
    if isinstance(fields, str):
        fields = (fields,)
    datasource = ShardDatasource(dataset, fields)
    ray_arguments = dict(ray_options or {})
    if "override_num_blocks" not in ray_arguments:
        if not ray.is_initialized():
            ray.init()
        wanted = 2 * int(ray.cluster_resources().get("CPU", 1))
        size = datasource.estimate_inmemory_data_size()
        ray_arguments["override_num_blocks"] = max(wanted, -(-size // TASK_BYTES), 1)
    rows: ray.data.Dataset = ray.data.read_datasource(datasource, **ray_arguments)
    return rows


def decode(batch: Any) -> dict[str, Any]:  # of Ray's types a dict of columns
    """Decode the columns of a batch: ``rows.map_batches(decode)``.

    Parameters
    ----------
    batch : dict
        Columns by name, as Ray gives them to ``map_batches``.

    Returns
    -------
    dict
        npy fields of one shape are arrays ``[rows, *shape]``, cls numbers, txt str.
        Ragged fields and fields without a built-in decoder stay as stored.

    Raises
    ------
    FormatError
        A field's bytes are not in the format of its suffix; the error names the key.

    Examples
    --------
    >>> from fastshard.adapters.ray import decode
    >>> decode({"__key__": ["a", "b"], "cls": [b"3", b"5"]})
    {'__key__': ['a', 'b'], 'cls': array([3, 5])}
    """
    collation = Collation("list")
    values: dict[str, Any] = {}
    for field, column in batch.items():
        decoder = None if field == KEY else decoder_for(field)
        if decoder is None or field.rpartition(".")[2] not in ("npy", "cls", "txt"):
            values[field] = column
            continue
        keys = batch.get(KEY, range(len(column)))
        found = [
            decode_field(decoder, memoryview(data), str(key), 0, f"{key}.{field}")
            for key, data in zip(keys, column, strict=True)
        ]
        stack = collation.collate_values(found, field, None) if found else column
        ragged = field.endswith("npy") and isinstance(stack, list)
        values[field] = column if ragged else stack
    return values


class ShardDatasource(Datasource):  # type: ignore[misc, unused-ignore]
    """Give a dataset to `ray.data.read_datasource`; see `read`.

    Parameters
    ----------
    dataset : Dataset
        Not mapped.
    fields : sequence of str, optional
        As for `read`.

    Examples
    --------
    >>> import fastshard
    >>> from fastshard.adapters.ray import ShardDatasource
    >>> source = ShardDatasource(fastshard.open("data/train-{0000..0003}.tar"), ["cls"])
    >>> source.columns
    ('__key__', 'cls')
    """

    def __init__(self, dataset: Dataset[Any], fields: Sequence[str] | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self._dataset = dataset
        if fields is None:
            fields = dataset[0].keys() if len(dataset) else ()
        self._fields = tuple(field for field in dict.fromkeys(fields) if field != KEY)
        self._projection_map: dict[str, str] | None = None
        self._shared: Any = None  # the dataset in Ray's object store
        self._size: int | None = None

    def get_name(self) -> str:
        """Return the name that Ray shows for the datasource.

        Returns
        -------
        str
            ``"Fastshard"``.
        """
        return "Fastshard"

    def supports_projection_pushdown(self) -> bool:
        """Return whether Ray may request a part of the columns.

        Returns
        -------
        bool
            True.
        """
        return True

    @property
    def columns(self) -> tuple[str, ...]:
        """The key and the fields, or Ray's projection of them."""
        columns = (KEY, *self._fields)
        wanted = self._projection_map
        return columns if wanted is None else tuple(c for c in columns if c in wanted)

    @property
    def schema(self) -> pa.Schema:
        """Types of the columns: string for the key, large_binary for the fields."""
        return pa.schema(
            [(c, pa.string() if c == KEY else pa.large_binary()) for c in self.columns]
        )

    def estimate_inmemory_data_size(self) -> int:
        """Return an estimate of the bytes of fields and keys.

        The total is the index's; the share of some fields is that of the first samples.
        """
        if self._size is None:
            dataset = self._dataset
            count = len(dataset)
            samples = dataset._get_samples(range(min(SAMPLED, count)))
            total = dataset._set.starts()[-1]
            whole = dataset._set.data_bytes() * count // max(total, 1)
            sizes = [{f: _size(sample, f) for f in sample} for sample in samples]
            wanted = sum(size.get(f, 0) for size in sizes for f in self._fields)
            every = sum(sum(size.values()) for size in sizes)
            keys = sum(len(sample.key) + 4 for sample in samples)
            share = wanted / every if every else 0
            self._size = int(whole * share) + keys * count // max(len(samples), 1)
        return self._size

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: Any = None,
    ) -> list[ReadTask]:
        """Return tasks that read ranges of samples.

        Parameters
        ----------
        parallelism : int
            About as many tasks are made.
        per_task_row_limit : int, optional
            Maximum number of samples of a task.
        data_context : ray.data.DataContext, optional
            Has the maximum size of a block.

        Returns
        -------
        list of ReadTask
            In the order of the samples.
        """
        dataset = self._dataset
        count = len(dataset)
        if self._shared is None:  # put once for all tasks
            self._shared = ray.put(dataset)
        size = self.estimate_inmemory_data_size() / max(count, 1)
        most = getattr(data_context, "target_max_block_size", None) or MAX_BLOCK_BYTES
        paths = dataset.shards.paths
        in_order = dataset._plan == Plan()
        starts = dataset._set.starts() if in_order else None
        tasks = []
        for start, stop in split_ranges(count, parallelism, starts):
            if per_task_row_limit is not None:
                stop = min(stop, start + per_task_row_limit)
            files: tuple[str, ...] | None = None
            if starts is not None:
                first, end = bisect_right(starts, start) - 1, bisect_left(starts, stop)
                files = tuple(paths[first:end])
            metadata = BlockMetadata(
                num_rows=stop - start,
                size_bytes=int(size * (stop - start)),
                input_files=files,
                exec_stats=None,
            )
            function = _RangeReader(self._shared, self.columns, start, stop, most)
            tasks.append(
                ReadTask(
                    function,
                    metadata,
                    schema=self.schema,
                    per_task_row_limit=per_task_row_limit,
                )
            )
        return tasks


class _RangeReader:
    """Reader of a range of samples; a task calls it."""

    def __init__(
        self, shared: Any, columns: tuple[str, ...], start: int, stop: int, most: int
    ) -> None:
        self._shared = shared
        self._columns = columns
        self._range = range(start, stop)
        self._most = most

    def __call__(self) -> Iterator[pa.Table]:
        dataset: Dataset[Any] = ray.get(self._shared)
        fields = [column for column in self._columns if column != KEY]
        samples: list[Any] = []
        nbytes = 0
        for sample in dataset.iter(order=slice(self._range.start, self._range.stop)):
            size = sum(_size(sample, field) for field in fields)
            if samples and nbytes + size > self._most:
                yield _table(samples, self._columns)
                samples, nbytes = [], 0
            samples.append(sample)
            nbytes += size
        if samples:
            yield _table(samples, self._columns)


def _size(sample: Any, field: str) -> int:
    if not sample._is_stored(field):
        return VALUE_BYTES
    shard, member = sample.place(field)
    size: int = shard.extent_of(member)[1]
    return size


def _table(samples: list[Any], columns: tuple[str, ...]) -> pa.Table:
    """Return a table; the bytes are copied once, from the shards to Arrow's memory."""
    if not columns:
        return pa.table({STUB: pa.nulls(len(samples))})
    arrays: dict[str, Any] = {}
    for column in columns:
        if column == KEY:
            arrays[KEY] = pa.array([sample.key for sample in samples], pa.string())
            continue
        # Arrow's allocator, which reuses memory within a process.
        found = find_members(samples, column)
        data, offsets = pack(*found, pa.allocate_buffer, threads=1)
        buffers = [None, pa.py_buffer(offsets), data]
        array = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(samples), buffers
        )
        arrays[column] = array
    return pa.table(arrays)


def split_ranges(
    count: int, parallelism: int, starts: Sequence[int] | None
) -> list[tuple[int, int]]:
    """Split the positions below a count into ranges of about equal length."""
    parts = max(1, min(parallelism, count))
    near = count / parts / 2
    cuts = {0, count}
    for i in range(1, parts):
        cut = i * count // parts
        if starts is not None:
            k = bisect_left(starts, cut)
            best = min(starts[max(k - 1, 0) : k + 1], key=lambda s: abs(s - cut))
            cut = best if abs(best - cut) <= near else cut
        cuts.add(cut)
    ordered = sorted(cuts)
    return [(start, stop) for start, stop in pairwise(ordered) if start < stop]
