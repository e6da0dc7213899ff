"""Datasets of windows of series: `ShardedDatasetReader.windows`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import blake2b
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from fastshard.columnar.shardset import ColumnSet, update_keys
from fastshard.dataset.combined.base import Getter, get_many
from fastshard.dataset.combined.gathered import GatheredDataset
from fastshard.dataset.display.text import Description, describe_plan
from fastshard.dataset.order.plan import Plan
from fastshard.dataset.order.state import Identity
from fastshard.dataset.sequence.iteration import T_co
from fastshard.errors import FastshardError, RaggedError, StateError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard._core.columnar.batch import WindowReader
    from fastshard.formats.layout import Allocate

__all__ = ["SeriesWindows", "WindowDataset", "WindowOptions"]

KEY, START = "__key__", "__start__"
MAX_STEPS = 1 << 62


class WindowOptions(NamedTuple):
    """The options of `ShardedDatasetReader.windows` but for the condition.

    Attributes
    ----------
    fields : tuple of str
    length, stride : int
        Steps of a window, and from the start of one to that of the next.
    """

    fields: tuple[str, ...]
    length: int
    stride: int

    @classmethod
    def checked(cls, fields: Iterable[str], length: int, stride: int) -> WindowOptions:
        """Return checked options."""
        names = tuple(fields)
        if not names or len(set(names)) != len(names):
            raise ValueError(f"expected one field or more, each once, got {names}")
        for name in (KEY, START):
            if name in names:
                raise FastshardError(f"the field {name!r} collides with a window's own")
        length, stride = index(length), index(stride)
        for what, number in (("length", length), ("stride", stride)):
            if not 1 <= number <= MAX_STEPS:
                raise ValueError(f"{what} must be from 1 to 2**62, got {number}")
        return cls(names, length, stride)


class SeriesWindows:
    """Windows of the series of a shard set, counted on first use.

    Shared by the datasets of these windows in any order.
    """

    def __init__(
        self,
        shards: ColumnSet,
        options: WindowOptions,
        starts: NDArray[np.int64] | None = None,
        digest: str | None = None,
    ) -> None:
        self.shards = shards
        self.options = options
        self._starts = starts
        self._digest = digest
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        digest = None if self._starts is None else self._digest_keys()
        return SeriesWindows, (self.shards, self.options, self._starts, digest)

    def starts(self) -> NDArray[np.int64]:
        """Return the number of each sample's first window, then the count."""
        self.shards.check_open()
        if self._starts is None or self._digest is not None:
            with self._lock:
                if self._starts is None:
                    self._starts = self._count()
                elif self._digest is not None:
                    self._check_samples(self._digest)
                    self._digest = None
        return self._starts

    @property
    def count(self) -> int:
        """Number of windows."""
        return int(self.starts()[-1])

    def _identify_samples(self) -> Identity:
        shards = self.shards
        if shards.identity is None:
            shards.identity = shards.identify()
        return shards.identity

    def _digest_keys(self) -> str:
        digest = blake2b(digest_size=8)
        update_keys(digest, self.shards.rows())
        return digest.hexdigest()

    def _check_samples(self, digest: str) -> None:
        if self._digest_keys() != digest:
            raise StateError(
                f"samples of {self.shards.snapshot.home} were added or removed after "
                "its windows were pickled: make the windows anew, or with a condition, "
                "which keeps the samples"
            )

    def _count(self) -> NDArray[np.int64]:
        """Count the windows of all samples; reads headers."""
        import numpy as np

        from fastshard._core.columnar.batch import count_steps

        samples = self.shards.rows()
        length, stride = self.options.length, self.options.stride
        steps: NDArray[np.int64] | None = None
        first = ""
        for rows in samples.columns_of(self.options.fields):
            own = np.frombuffer(count_steps(rows), np.int64)
            if steps is None:
                steps, first = own, rows.field
                continue
            odd = np.flatnonzero((own != steps) & (own >= 0) & (steps >= 0))
            if len(odd):
                i = int(odd[0])
                raise RaggedError(
                    f"windows of several fields need the same number of steps: sample "
                    f"{samples.key_at(i)!r} has {steps[i]:,} of {first!r} and "
                    f"{own[i]:,} of {rows.field!r}"
                )
            steps = np.minimum(steps, own)  # -1 where a field is missing
        assert steps is not None
        counts = np.where(steps >= length, (steps - length) // stride + 1, 0)
        if float(counts.sum(dtype=np.float64)) >= MAX_STEPS:
            raise ValueError("there are more windows than 2**62")
        starts = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=starts[1:])
        return starts

    def locate(
        self, numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sample and the first step of each window."""
        import numpy as np

        starts = self.starts()
        samples = np.searchsorted(starts, numbers, side="right") - 1
        return samples, (numbers - starts[samples]) * self.options.stride

    def readers(
        self, samples: NDArray[np.int64], starts: NDArray[np.int64]
    ) -> Iterable[tuple[str, WindowReader]]:
        """Return the reader of each field's windows."""
        from fastshard._core.columnar.batch import WindowReader

        fields, length = self.options.fields, self.options.length
        for rows in self.shards.rows().columns_of(fields):
            yield rows.field, WindowReader(rows, samples, starts, length)

    def identify(self) -> Identity:
        """Return the identity of the windows."""
        own = self._identify_samples()
        starts = blake2b(self.starts().astype("<i8").tobytes(), digest_size=8)
        facts = "windows", own.samples, own.digest, *self.options, starts.hexdigest()
        digest = blake2b(repr(facts).encode(), digest_size=8).hexdigest()
        return Identity(own.name, self.count, digest)


class WindowDataset(GatheredDataset[T_co]):
    """Windows of the series of a reader's samples; `ShardedDatasetReader.windows`.

    A window is a dict: ``"__key__"``, the sample's id; ``"__start__"``, its first step;
    and each field, a view of the steps. Windows of a sample follow each other, in the
    order of the samples. The dataset shuffles, splits, batches, loads, maps, resumes
    and pickles as every dataset; states count windows.

    Examples
    --------
    >>> import numpy as np
    >>> from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
    >>> with ShardedDatasetWriter("weather") as writer:
    ...     writer.add_field("history")
    ...     sample_id = writer.add_sample({"history": np.arange(5)}, "bonn")
    >>> windows = ShardedDatasetReader("weather").windows("history", 3)
    >>> windows[1]
    {'__key__': 'bonn', '__start__': 1, 'history': array([1, 2, 3])}
    >>> [batch["__start__"] for batch in windows.shuffle(seed=1).batches(2)]
    [array([2, 0]), array([1])]
    """

    def __init__(
        self,
        series: SeriesWindows,
        plan: Plan = Plan(),  # noqa: B008 - immutable
        stages: tuple[Callable[[Any], Any], ...] = (),
    ) -> None:
        super().__init__(plan, stages)
        self._series = series

    def _copy(
        self, plan: Plan, stages: tuple[Callable[[Any], Any], ...]
    ) -> WindowDataset[Any]:
        copy: WindowDataset[Any] = WindowDataset(self._series, plan, stages)
        copy._cached_identity = self._cached_identity
        return copy

    def _total(self) -> int:
        return self._series.count

    def _identify(self) -> Identity:
        return self._series.identify()

    @property
    def sample_count(self) -> int:
        """Number of samples, with or without windows.

        Returns
        -------
        int
            Of the samples that satisfy the condition; independent of selections and
            shares of this dataset.

        Examples
        --------
        >>> reader.windows("history", 5).sample_count
        3
        """
        return len(self._series.starts()) - 1

    @property
    def short_sample_count(self) -> int:
        """Number of samples without a window: shorter than one, or without a field.

        Returns
        -------
        int
            Of `sample_count`.

        Examples
        --------
        >>> short = reader.windows("history", 5)
        >>> len(short), short.short_sample_count
        (0, 3)
        """
        starts = self._series.starts()
        return int((starts[1:] == starts[:-1]).sum())

    def _read(self, base_positions: Iterable[int], get: Getter = get_many) -> list[Any]:
        import numpy as np

        series = self._series
        samples, starts = series.locate(np.fromiter(base_positions, np.int64))
        columns: dict[str, Iterable[Any]] = {
            KEY: series.shards.rows().keys_of(samples),
            START: starts.tolist(),
        }
        for field, reader in series.readers(samples, starts):
            if len(starts) > 1:
                reader.page_in()
            columns[field] = reader.views()
        return [
            dict(zip(columns, row, strict=True))
            for row in zip(*columns.values(), strict=True)
        ]

    def _gather(self, numbers: NDArray[np.int64], allocate: Allocate) -> Any:
        series = self._series
        samples, starts = series.locate(numbers)
        own_starts = allocate(START, starts.shape, starts.dtype)
        own_starts[...] = starts
        batch = {KEY: series.shards.rows().keys_of(samples), START: own_starts}
        for field, reader in series.readers(samples, starts):
            stack = reader.copy(partial(allocate, field))
            if stack is None:
                return None
            batch[field] = stack
        return batch

    def _page_in(self, numbers: NDArray[np.int64]) -> None:
        for _, reader in self._series.readers(*self._series.locate(numbers)):
            reader.page_in()

    def _name_at(self, position: int) -> str:
        import numpy as np

        numbers = np.array(self._base_positions([position]), np.int64)
        samples, starts = self._series.locate(numbers)
        key = self._series.shards.rows().key_at(int(samples[0]))
        return f"the window from step {starts[0]:,} on of sample {key!r}"

    def _description(self) -> Description:
        shards, options = self._series.shards, self._series.options
        stride = "" if options.stride == 1 else f", stride {options.stride:,}"
        return Description(
            f"windows of {options.length:,} steps{stride}",
            dict.fromkeys(options.fields, "array"),
            describe_plan(self._plan),
            "",
            shards.summary().where + (", closed" if shards.closed else ""),
        )

    def close(self) -> None:
        """Close this dataset and those made of it; the reader stays open."""
        self._series.shards.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
