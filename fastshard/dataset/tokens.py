"""Datasets of token windows: `Dataset.tokens`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from fastshard.dataset.combined.base import Getter, get_many
from fastshard.dataset.combined.gathered import GatheredDataset
from fastshard.dataset.display.text import Description, describe_plan
from fastshard.dataset.order.plan import Plan, order_digest
from fastshard.dataset.order.state import Identity
from fastshard.dataset.sequence.iteration import T_co
from fastshard.dataset.shardset import ShardSet
from fastshard.errors import FormatError
from fastshard.loader.tokens import PackedWindows, StreamWindows, TokenOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard.formats.layout import Allocate, FieldLayout

__all__ = ["TokenDataset"]

PROBES = 16  # headers compared with the lengths in an index
TOKENS, DOCUMENT, POSITION = "tokens", "document", "position"


class DocumentColumn(NamedTuple):
    """Lengths of documents, in tokens, and the members that hold them.

    Attributes
    ----------
    lengths : ndarray of int64
    members : ndarray of uint32
    dtype : numpy.dtype or None
        Of a token; None: there are no documents.
    """

    lengths: NDArray[np.int64]
    members: NDArray[np.uint32]
    dtype: np.dtype[Any] | None


def read_shard_column(
    samples: Any,
    positions: NDArray[np.int64],
    field: str,
    dtype: np.dtype[Any] | None,
    layout: FieldLayout,
) -> DocumentColumn:
    """Return the documents of some samples of a shard; reads headers at most."""
    import numpy as np

    from fastshard._core.loader.documents import DocumentLengths

    given = np.dtype(layout.dtype) if layout.kind == "raw" else dtype
    found = DocumentLengths(samples, np.ascontiguousarray(positions), field, given)
    if layout.kind == "npy":
        found.read_headers()
    elif layout.kind == "array":
        found.read_arrays()
    else:
        found.read_raw()
    lengths = np.frombuffer(found.lengths, np.int64)
    members = np.frombuffer(found.members, np.uint32)
    return DocumentColumn(lengths, members, found.dtype)


def take_stored(
    samples: Any,
    positions: NDArray[np.int64],
    field: str,
    dtype: np.dtype[Any] | None,
    layout: FieldLayout,
    stored: str,
    lengths: bytes,
) -> DocumentColumn | None:
    """Return documents with the lengths kept in an index; None if headers differ."""
    import numpy as np

    from fastshard._core.loader.documents import DocumentLengths

    try:
        kind = np.dtype(stored)
    except (TypeError, ValueError):
        return None
    if kind.kind not in "biufc" or dtype not in (None, kind):
        return None
    known = np.frombuffer(lengths, "<u8").astype(np.int64)[positions]
    found = DocumentLengths(samples, np.ascontiguousarray(positions), field, kind)
    if not found.take_known(known):
        return None
    probes = np.unique(np.linspace(0, len(positions) - 1, PROBES).astype(np.int64))
    try:
        headers = read_shard_column(samples, positions[probes], field, kind, layout)
    except FormatError:  # raised again when all headers are read
        return None
    if not np.array_equal(headers.lengths, known[probes]):
        return None
    return DocumentColumn(known, np.frombuffer(found.members, np.uint32), kind)


class TokenDocuments:
    """Documents of a dataset and their windows of tokens, counted on first use.

    Shared by the datasets of these windows in any order.
    """

    def __init__(
        self,
        shards: ShardSet,
        plan: Plan,
        field: str,
        dtype: np.dtype[Any] | None,
        options: TokenOptions,
    ) -> None:
        self.shards = shards
        self.plan = plan
        self.field = field
        self.given = dtype
        self.options = options
        self._found: tuple[StreamWindows | PackedWindows, np.dtype[Any]] | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenDocuments, (
            self.shards,
            self.plan,
            self.field,
            self.given,
            self.options,
        )

    def windows(self) -> tuple[StreamWindows | PackedWindows, np.dtype[Any]]:
        """Return the windows, and the dtype of a token."""
        found = self._found
        if found is None or self.shards.closed:
            self.shards.check_open()
            with self._lock:
                if self._found is None:
                    self._found = self._count()
                found = self._found
        return found

    def _count(self) -> tuple[StreamWindows | PackedWindows, np.dtype[Any]]:
        """Count the tokens of all documents."""
        from fastshard._core.loader.tokens import TokenTable

        locator = self.shards.locator()
        order = self.plan.order(locator.total)
        if order is not None:
            locator = locator.ordered(order)
        if locator.count == 0:
            raise ValueError("expected at least one document, got an empty dataset")
        lengths, members, dtype, is_raw = self._read()
        table = TokenTable(
            locator,
            self.field,
            lengths,
            members,
            dtype.itemsize,
            self.options.separator(dtype),
            is_raw,
        )
        if self.options.pack == "stream":
            return StreamWindows(table, self.options), dtype
        return PackedWindows(table, self.options), dtype

    def _read(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32], np.dtype[Any], bool]:
        """Return length and member of each document, dtype, and whether it is raw."""
        import numpy as np

        starts = np.asarray(self.shards.starts(), np.int64)
        order = self.plan.order(int(starts[-1]))
        by_position = None
        if order is None:
            positions = np.arange(starts[-1])
        else:
            positions = np.asarray(order)
            by_position = np.argsort(positions, kind="stable")
            positions = positions[by_position]
        ends = np.searchsorted(positions, starts)
        dtype, is_raw = self.given, True
        lengths = np.empty(len(positions), np.int64)
        members = np.empty(len(positions), np.uint32)
        for k in range(len(starts) - 1):
            part = slice(ends[k], ends[k + 1])
            if part.start == part.stop:
                continue
            samples = self.shards.samples(k)
            layout = self._layout(samples, int(positions[part.start] - starts[k]))
            is_raw = is_raw and layout.kind in ("raw", "value")
            column = self._read_shard(
                samples, positions[part] - starts[k], dtype, layout
            )
            lengths[part], members[part] = column[:2]
            dtype = column.dtype
        if by_position is not None:
            lengths = scatter(lengths, by_position)
            members = scatter(members, by_position)
        assert dtype is not None  # there is a document
        return lengths, members, dtype, is_raw

    def _read_shard(
        self,
        samples: Any,
        positions: NDArray[np.int64],
        dtype: np.dtype[Any] | None,
        layout: FieldLayout,
    ) -> DocumentColumn:
        """Return the documents of some samples of a shard; keep them in its index."""
        shard = samples.shard
        mark = getattr(shard, "fingerprint", None)
        path = getattr(shard, "index", None)
        options = getattr(self.shards, "options", {})
        if (
            layout.kind != "npy"
            or mark is None
            or path is None
            or shard.mode == "remote"
        ):
            return read_shard_column(samples, positions, self.field, dtype, layout)
        from fastshard.index.document_column import read_lengths, write_lengths

        last_dot = options.get("key") == "last"
        name = self.field if options.get("lower", True) else f"{self.field}\0"
        stored = read_lengths(path, name, mark, len(samples), last_dot)
        if stored is not None:
            column = take_stored(samples, positions, self.field, dtype, layout, *stored)
            if column is not None:
                return column
        column = read_shard_column(samples, positions, self.field, dtype, layout)
        if len(positions) == len(samples) == len(set(positions.tolist())):
            assert column.dtype is not None
            with suppress(OSError):  # a folder that is read-only
                lengths = column.lengths.astype("<u8").tobytes()
                write_lengths(path, name, mark, last_dot, column.dtype.str, lengths)
        return column

    def _layout(self, samples: Any, i: int) -> FieldLayout:
        """Return the layout of the field in a shard, by one of its samples."""
        sample = samples[i]
        sample.member(self.field)  # raises if absent
        layout: FieldLayout = sample.layout_of(self.field)
        if layout.kind == "value" and self.given is None:
            raise ValueError(
                f"field {self.field!r} is stored as bytes: dtype= must tell the type "
                "of a token"
            )
        if layout.kind == "raw" and len(layout.shape or ()) != 1:
            axes = len(layout.shape or ())
            raise ValueError(
                f"field {self.field!r} must be of one dimension, got {axes}"
            )
        return layout

    def identify(self) -> Identity:
        """Return the identity of the windows."""
        shards = self.shards
        if shards.identity is None:
            shards.identity = shards.identify()
        own = shards.identity
        windows, dtype = self.windows()
        documents = order_digest(self.plan.order(own.samples))
        facts = (
            "tokens",
            own.samples,
            own.digest,
            documents,
            self.field,
            dtype.str,
            tuple(self.options),
        )
        digest = blake2b(repr(facts).encode(), digest_size=8).hexdigest()
        return Identity(own.name, windows.count, digest)


def scatter(values: NDArray[Any], to: NDArray[np.int64]) -> NDArray[Any]:
    """Return an array with each value at its place in `to`."""
    import numpy as np

    found = np.empty_like(values)
    found[to] = values
    return found


class TokenDataset(GatheredDataset[T_co]):
    """Windows of the tokens of a dataset's documents; `Dataset.tokens` makes it.

    A window is an array ``[length]``, or with ``documents=True`` a dict of three:
    ``"tokens"``, ``"document"`` and ``"position"``. It shuffles, splits, batches,
    resumes and pickles as every dataset; states count windows.
    """

    def __init__(
        self,
        documents: TokenDocuments,
        plan: Plan = Plan(),  # noqa: B008 - immutable
        stages: tuple[Callable[[Any], Any], ...] = (),
    ) -> None:
        super().__init__(plan, stages)
        self._documents = documents

    def _copy(
        self, plan: Plan, stages: tuple[Callable[[Any], Any], ...]
    ) -> TokenDataset[Any]:
        copy: TokenDataset[Any] = TokenDataset(self._documents, plan, stages)
        copy._cached_identity = self._cached_identity
        return copy

    def _total(self) -> int:
        return self._documents.windows()[0].count

    def _identify(self) -> Identity:
        return self._documents.identify()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a token."""
        return self._documents.windows()[1]

    @property
    def _is_share(self) -> bool:
        return self._plan.is_share or self._documents.plan.is_share

    @property
    def _is_remote(self) -> bool:
        return not self._documents.shards.is_local

    def _read(self, base_positions: Iterable[int], get: Getter = get_many) -> list[Any]:
        import numpy as np

        batch = self._gather(np.fromiter(base_positions, np.int64), allocate_array)
        if isinstance(batch, dict):
            return [
                dict(zip(batch, row, strict=True))
                for row in zip(*batch.values(), strict=True)
            ]
        return list(batch)

    def _gather(self, numbers: NDArray[np.int64], allocate: Allocate) -> Any:
        windows, dtype = self._documents.windows()
        options = self._documents.options
        shape = len(numbers), options.length
        tokens = allocate(TOKENS, shape, dtype)
        if not options.documents:
            windows.gather(numbers, tokens)
            return tokens
        documents = allocate(DOCUMENT, shape, "i4")
        positions = allocate(POSITION, shape, "i4")
        windows.gather(numbers, tokens, documents, positions)
        return {TOKENS: tokens, DOCUMENT: documents, POSITION: positions}

    def _page_in(self, numbers: NDArray[np.int64]) -> None:
        self._documents.windows()[0].gather(numbers, None, page_in=True)

    def _description(self) -> Description:
        documents = self._documents
        options = documents.options
        where = documents.shards.summary().where
        pack = "" if options.pack == "stream" else f" {options.pack}"
        order = describe_plan(documents.plan)
        own = describe_plan(self._plan)
        return Description(
            f"windows of {options.length:,} tokens{pack}",
            {documents.field: "array"},
            "; ".join(filter(None, (order and f"documents {order}", own))),
            "",
            where + (", closed" if documents.shards.closed else ""),
        )

    def close(self) -> None:
        """Close the shards, for all datasets on them."""
        self._documents.shards.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def allocate_array(field: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return new memory."""
    import numpy as np

    return np.empty(shape, dtype)
