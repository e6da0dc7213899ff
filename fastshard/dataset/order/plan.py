"""Plans: selection, shuffle, rank and worker, composed into one order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from hashlib import blake2b
from numbers import Integral, Real
from operator import index
from struct import unpack
from typing import Any, Literal, NamedTuple, TypeAlias

from fastshard._core.table.order import Chunks, Order, Shuffle, Stride

__all__ = [
    "Plan",
    "Remainder",
    "Shuffling",
    "Split",
    "Worker",
    "check_seed",
    "compose",
    "order_digest",
    "permutation_keys",
    "split_sizes",
]

MAX_DENOMINATOR = 10**9  # of a fraction to split by
Remainder: TypeAlias = bool | Literal["pad"]


class Shuffling(NamedTuple):
    """The parameters of a shuffle, except for the number of samples."""

    seed: int
    epoch: int
    block: int | None  # samples that stay together; None: a full shuffle

    def order(self, count: int) -> Order:
        """Return the order of `count` positions."""
        return Shuffle(count, permutation_keys(self.seed, self.epoch), self.block or 0)


class Split(NamedTuple):
    """A rank's share of an epoch.

    `remainder` treats the samples left over by `world_size`: False, the first ranks get
    one more each; True, they are dropped; ``"pad"``, samples repeat.
    """

    rank: int
    world_size: int
    remainder: Remainder


class Worker(NamedTuple):
    """Worker process of a rank; its workers take chunks of samples in turn."""

    id: int
    workers: int
    chunk: int  # samples
    taken: int = 0  # samples of its share that earlier iterations read
    skipped: int = 0  # unreadable ones among these


class Plan(NamedTuple):
    """The steps from a dataset's shards to the order of its samples.

    Attributes
    ----------
    base : Order or None
        The selected positions; None: all, in order.
    shuffling : Shuffling or None
    split : Split or None
        The share of this rank.
    start : int
        Number of samples of the epoch that all ranks finished earlier.
    worker : Worker or None
        The share of this process within the rank's.
    skipped : int
        Number of unreadable samples before `start`.
    selected_epoch : int or None
        The epoch of a shuffle before `base` was selected.
    selected_share : bool
        True if `base` was selected from a rank's share.
    """

    base: Order | None = None
    shuffling: Shuffling | None = None
    split: Split | None = None
    start: int = 0
    worker: Worker | None = None
    skipped: int = 0
    selected_epoch: int | None = None
    selected_share: bool = False

    @property
    def epoch(self) -> int | None:
        """The epoch of the last shuffle, also of one before a selection; or None."""
        shuffling = self.shuffling
        return self.selected_epoch if shuffling is None else shuffling.epoch

    @property
    def is_share(self) -> bool:
        """True for a rank's share, or a selection from it."""
        is_split = self.split is not None and self.split.world_size > 1
        return is_split or self.selected_share

    def size(self, total: int) -> int:
        """Return the number of samples in the epoch, of all ranks."""
        return total if self.base is None else self.base.count

    def order(self, total: int) -> Order | None:
        """Return the positions of this share, or None for all in order."""
        size = self.size(total)
        orders: list[Order | None] = [self.base]
        if self.shuffling is not None:
            orders.append(self.shuffling.order(size))
        share = self._share(size)
        orders.append(share)
        if self.worker is not None:
            chunks = self._chunks(size if share is None else share.count)
            taken = min(self.worker.taken, chunks.count)
            orders += [chunks, Stride(taken, 1, chunks.count - taken, chunks.count)]
        return compose(*orders)

    def _share(self, size: int) -> Order | None:
        """Return the rank's positions in the epoch, from `start` on."""
        start = min(self.start, size)
        if self.split is None:
            return Stride(start, 1, size - start, size) if start else None
        rank, world, remainder = self.split
        left = size - start
        count = left // world
        if remainder == "pad":
            count += left % world > 0
        elif not remainder:
            count += rank < left % world
        return Stride(start + rank, world, count, size, wraps=True)

    def _chunks(self, count: int) -> Chunks:
        assert self.worker is not None
        return Chunks(self.worker.chunk, self.worker.id, self.worker.workers, count)

    def worker_size(self, total: int) -> int:
        """Return the number of samples in the worker's share, taken ones included."""
        size = self.size(total)
        share = self._share(size)
        return self._chunks(size if share is None else share.count).count

    def done(self, total: int, count: int) -> int:
        """Return the number of samples of the epoch done after `count` of this share.

        Assumes that the other ranks have done as many, and the other workers all
        samples before that position.
        """
        size = self.size(total)
        if self.worker is not None and count + self.worker.taken > 0:
            share = self._share(size)
            chunks = self._chunks(size if share is None else share.count)
            count = chunks[count + self.worker.taken - 1] + 1
        world = 1 if self.split is None else self.split.world_size
        return min(self.start + count * world, size)

    def share_size(self, total: int) -> int:
        """Return the number of samples in this share, without computing its order."""
        size = self.size(total)
        share = self._share(size)
        count = size if share is None else share.count
        if self.worker is None:
            return count
        chunked = self._chunks(count).count
        return chunked - min(self.worker.taken, chunked)

    @property
    def is_plain(self) -> bool:
        """True without shuffle, share or split: a selection, or all positions."""
        return self == Plan(
            self.base,
            selected_epoch=self.selected_epoch,
            selected_share=self.selected_share,
        )

    def select(self, base: Order | None) -> Plan:
        """Return the plan of some positions that were selected from this one."""
        return Plan(base, selected_epoch=self.epoch, selected_share=self.is_share)


def compose(*orders: Order | None) -> Order | None:
    """Return the composition of orders; positions go through the last one first."""
    found: Order | None = None
    for order in orders:
        if order is not None:
            found = order if found is None else found.after(order)
    return found


def check_seed(number: int) -> int:
    """Return a seed or an epoch as an int; raise ValueError above 128 bits."""
    try:
        number = index(number)
    except TypeError:
        kind = type(number).__name__
        raise TypeError(f"a seed or an epoch must be an int, got {kind}") from None
    if number.bit_length() > 128:
        bits = number.bit_length()
        raise ValueError(f"a seed or an epoch must have at most 128 bits, got {bits:,}")
    return number


def permutation_keys(seed: int, epoch: int) -> tuple[int, ...]:
    """Return the keys of a permutation: BLAKE2b of the numbers in decimal."""
    text = f"{seed}:{epoch}".encode()
    digests = (blake2b(text, person=person) for person in (b"whole", b"inside"))
    return tuple(key for digest in digests for key in unpack("<8Q", digest.digest()))


def split_sizes(sizes: Sequence[float], total: int) -> list[int]:
    """Return the number of samples of each part; see `BaseDataset.split`.

    Fractions are taken as short decimal or common fractions (0.1 is a tenth, 1 / 3 a
    third), so that equal remainders are equal.
    """
    sizes = list(sizes)
    if not sizes:
        raise ValueError("expected at least 1 size to split by, got none")
    if any(isinstance(size, bool) or not isinstance(size, Real) for size in sizes):
        raise TypeError(f"sizes must be numbers, got {sizes!r:.200}")
    whole = [isinstance(size, Integral) for size in sizes]
    if any(whole) and not all(whole):
        raise TypeError(
            "expected fractions of sum 1 or numbers of samples, got both: "
            f"{sizes!r:.200}"
        )
    if not all(0 <= size < math.inf for size in sizes):
        raise ValueError(f"sizes must be finite, not negative, got {sizes!r:.200}")
    if all(whole):
        if sum(sizes) != total:
            raise ValueError(
                f"numbers of samples must add up to {total:,}, got {sum(sizes):,}; "
                "fractions are floats: 1.0"
            )
        return [int(size) for size in sizes]
    if abs(math.fsum(sizes) - 1) > 1e-6:
        raise ValueError(f"fractions must add up to 1, got {math.fsum(sizes):g}")
    shares = [Fraction(size).limit_denominator(MAX_DENOMINATOR) for size in sizes]
    quotas = [share * total / sum(shares) for share in shares]
    counts = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(sizes)), key=lambda k: counts[k] - quotas[k])
    for k in by_remainder[: total - sum(counts)]:
        counts[k] += 1
    return counts


def order_digest(order: Order | None) -> str:
    """Return a hexadecimal digest of an order; "" for None."""
    if order is None:
        return ""
    if order.name is not None:
        return order.name
    digest = blake2b(digest_size=8)
    stack: list[Any] = [order]
    while stack:
        part = stack.pop()
        if isinstance(part, Order):
            reduced: Any = part.__reduce__()
            stack += [*reduced[1], reduced[0].__name__]
        elif hasattr(part, "tobytes"):
            digest.update(part.astype("<i8").tobytes())
        else:
            digest.update(f"{part};".encode())
    order.name = digest.hexdigest()
    return order.name
