"""Datasets in Ray Data: blocks of Arrow tables, read by ranges of samples.

Ray and PyArrow are imported with this module.
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
from fastshard.dataset.batch import Collation
from fastshard.dataset.dataset import Dataset
from fastshard.dataset.open import open  # noqa: A004
from fastshard.dataset.order.plan import Plan
from fastshard.errors import FastshardError
from fastshard.formats.decoders import decode_field, decoder_for

if TYPE_CHECKING:
    from fastshard.dataset.listing import Source

__all__ = ["ShardDatasource", "decode", "read"]

KEY = "__key__"
MOST = 128 << 20  # bytes of a block, where Ray does not say
TASK = 256 << 20  # bytes that a task reads, where Ray leaves it to us: starting costs
STUB = "__bsp_stub"  # what stands for rows without columns in Ray's own readers
LOOKED_AT = 16  # samples that a guess at the size of some fields is made from


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
        As for `fastshard.open`; or what that returned, selected, shuffled or split,
        but not mapped. The shards must be where the workers find them.
    fields : str or sequence of str, optional
        Which fields of each sample; those of the first sample without it.
    ray_options : Mapping, optional
        For `ray.data.read_datasource`: ``concurrency``, ``num_cpus``, ..., and
        ``override_num_blocks``, how many tasks read: without it two for each
        processor of the cluster, and more where each had over 256 MiB to read.
    **options
        For `fastshard.open`; ``mode`` is ``"pread"`` here.

    Returns
    -------
    ray.data.Dataset
        With the columns ``"__key__"`` (string) and one a field (large_binary), in
        the order of the samples. A block is one range of samples, which begins
        where a shard does if that is near. Counting reads nothing.

    Raises
    ------
    FieldNotFoundError
        In the task that reads it: a sample has no such field.
    FastshardError
        The dataset was mapped or decoded: do that with Ray.
    """
    if isinstance(source, Dataset):
        if options:
            raise ValueError(f"{', '.join(options)} for a dataset that is open")
        dataset = source
    else:
        # Bytes are copied once in any case, and so no file is mapped for it.
        dataset = open(source, **({"mode": "pread"} | options))
    if dataset._stages:
        raise FastshardError("map and decode with Ray, after the samples are read")
    if isinstance(fields, str):
        fields = (fields,)
    datasource = ShardDatasource(dataset, fields)
    told = dict(ray_options or {})
    if "override_num_blocks" not in told:
        if not ray.is_initialized():
            ray.init()
        wanted = 2 * int(ray.cluster_resources().get("CPU", 1))
        size = datasource.estimate_inmemory_data_size()
        told["override_num_blocks"] = max(wanted, -(-size // TASK), 1)
    rows: ray.data.Dataset = ray.data.read_datasource(datasource, **told)
    return rows


def decode(batch: dict[str, Any]) -> dict[str, Any]:
    """Decode the columns of a batch: ``rows.map_batches(decode)``.

    npy fields of one shape become arrays ``[rows, *shape]``, cls numbers, txt str;
    what is ragged, or has no decoder that is built in, stays as it is stored.
    """
    collation = Collation()
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
    """A dataset for `ray.data.read_datasource`; see `read`."""

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
        return "Fastshard"

    def supports_projection_pushdown(self) -> bool:
        return True

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read: the key and the fields, as far as wanted."""
        columns = (KEY, *self._fields)
        wanted = self._projection_map
        return columns if wanted is None else tuple(c for c in columns if c in wanted)

    @property
    def schema(self) -> pa.Schema:
        """The types of the columns."""
        return pa.schema(
            [(c, pa.string() if c == KEY else pa.large_binary()) for c in self.columns]
        )

    def estimate_inmemory_data_size(self) -> int:
        """Return the bytes of the fields, as the index has it, and of the keys, about.

        Of some fields only, it is guessed from the first samples.
        """
        if self._size is None:
            dataset = self._dataset
            count = len(dataset)
            samples = dataset._get_samples(range(min(LOOKED_AT, count)))
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
        """Return tasks that read ranges of samples, about `parallelism` of them."""
        dataset = self._dataset
        count = len(dataset)
        if self._shared is None:  # once, not with each task
            self._shared = ray.put(dataset)
        size = self.estimate_inmemory_data_size() / max(count, 1)
        most = getattr(data_context, "target_max_block_size", None) or MOST
        paths = dataset.shards.paths
        in_order = dataset._plan == Plan()
        starts = dataset._set.starts() if in_order else None
        tasks = []
        for start, stop in ranges(count, parallelism, starts):
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
            function = _Reader(self._shared, self.columns, start, stop, most)
            tasks.append(
                ReadTask(
                    function,
                    metadata,
                    schema=self.schema,
                    per_task_row_limit=per_task_row_limit,
                )
            )
        return tasks


class _Reader:
    """Reads a range of samples; what a task runs."""

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
    shard, member = sample.place(field)
    size: int = shard.extent_of(member)[1]
    return size


def _table(samples: list[Any], columns: tuple[str, ...]) -> pa.Table:
    """Return a table on memory that the bytes were moved to once."""
    if not columns:
        return pa.table({STUB: pa.nulls(len(samples))})
    arrays: dict[str, Any] = {}
    for column in columns:
        if column == KEY:
            arrays[KEY] = pa.array([sample.key for sample in samples], pa.string())
            continue
        # Arrow's own memory, of which a process keeps what it used before.
        found = find_members(samples, column)
        data, offsets = pack(*found, pa.allocate_buffer, threads=1)
        buffers = [None, pa.py_buffer(offsets), data]
        array = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(samples), buffers
        )
        arrays[column] = array
    return pa.table(arrays)


def ranges(
    count: int, parallelism: int, starts: Sequence[int] | None
) -> list[tuple[int, int]]:
    """Cut the positions below a count into about equal ranges.

    Parameters
    ----------
    starts : sequence of int, optional
        Where the shards begin, and the last one ends: a cut that is near such a place
        is made there.
    """
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
