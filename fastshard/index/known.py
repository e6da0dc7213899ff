"""What a ``dataset.fsi`` says of the shards that a dataset consists of."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fastshard.errors import FormatError, StaleIndexError, StaleIndexWarning
from fastshard.index.global_file import NAME, GlobalIndex

if TYPE_CHECKING:
    from fastshard._core.extents import ExtentTable

__all__ = ["Known", "find_known", "match_known"]


class Known(NamedTuple):
    """A dataset's shards, as its index numbers them.

    Attributes
    ----------
    file : GlobalIndex
    numbers : list of int, or None
        The number of each shard; None where it is the index's own order.
    """

    file: GlobalIndex
    numbers: list[int] | None

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def has_keys(self) -> bool:
        """Whether there is a table of keys that holds for this order."""
        return self.numbers is None and self.file.has_keys

    def some(self, shards: Sequence[int]) -> Known:
        """Return what is known of some of the shards."""
        numbers = range(self.file.count) if self.numbers is None else self.numbers
        return Known(self.file, [numbers[k] for k in shards])

    def counts(self) -> list[tuple[int, int]]:
        """Return each shard's number of samples and of members."""
        shards = self.file.shards
        if self.numbers is not None:
            shards = [shards[number] for number in self.numbers]
        return [(shard.samples, shard.members) for shard in shards]

    def data_bytes(self) -> int:
        """Return the sum of all members' sizes."""
        shards = self.file.shards
        numbers = range(len(shards)) if self.numbers is None else self.numbers
        return sum(shards[number].data_bytes for number in numbers)

    def check(self, k: int, path: str, samples: int, table: ExtentTable) -> None:
        """Raise `StaleIndexError` unless shard `k` is what is recorded of it."""
        number = k if self.numbers is None else self.numbers[k]
        self.file.check(number, path, samples, table)

    def candidates(self, key: str) -> list[int]:
        """Return positions of samples that may have this key."""
        return self.file.candidates(key)


def find_known(
    paths: Sequence[str],
    root: str,
    *,
    folder: str | None,
    last_dot: bool,
    whole: bool,
    copied: bool,
) -> Known | None:
    """Read the ``dataset.fsi`` of some shards, if there is one that holds.

    One that does not hold is passed over with a `StaleIndexWarning`.

    Parameters
    ----------
    paths : sequence of str
        The shards.
    root : str
        The directory that they lie below.
    folder : str, optional
        Where the index is; otherwise in `root`.
    last_dot : bool
        The rule for keys.
    whole : bool
        The shards are all that there are, so that the index should list no more.
    copied : bool
        Keep nothing mapped.
    """
    path = os.path.join(folder or root, NAME)
    if not os.path.exists(path):
        return None
    try:
        index = GlobalIndex(path, copied=copied)
        if index.last_dot != last_dot:
            return None
        return match_known(index, paths, root, whole)
    except FormatError as error:
        what = "stale" if isinstance(error, StaleIndexError) else "broken"
        warnings.warn(f"{what} index: {error}", StaleIndexWarning, stacklevel=4)
        return None


def match_known(
    index: GlobalIndex, paths: Sequence[str], root: str, whole: bool
) -> Known:
    """Number the shards as an index does; see that their sizes are the same.

    Raises
    ------
    StaleIndexError
        They are not, or it lists other shards.
    OSError
        A shard is not there.
    """
    by_name = {shard.name: number for number, shard in enumerate(index.shards)}
    numbers = []
    for path in paths:
        name = os.path.relpath(path, root).replace(os.sep, "/")
        number = by_name.get(name)
        if number is None:
            raise StaleIndexError(f"does not list {path}", index.path, 0)
        size = os.stat(path).st_size
        recorded = index.shards[number].shard_bytes
        if size != recorded:
            reason = f"made for {path} of {recorded:,} bytes; it has {size:,}"
            raise StaleIndexError(reason, index.path, 0)
        numbers.append(number)
    if whole and len(numbers) != index.count:
        missing = set(range(index.count)) - set(numbers)
        name = index.shards[min(missing)].name
        raise StaleIndexError(f"lists {name}, which is not there", index.path, 0)
    same = numbers == list(range(index.count))
    return Known(index, None if same else numbers)
