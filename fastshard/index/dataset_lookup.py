"""What a ``dataset.fsi`` says of the shards that a dataset consists of."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fastshard._core.io.source import LocalFile
from fastshard.errors import FormatError, StaleIndexError
from fastshard.index.contents import warn_ignored_index, warn_old_version
from fastshard.index.dataset_file import NAME, DatasetIndex, ShardRecord
from fastshard.index.freshness import identify_file, is_same_file
from fastshard.remote.file import try_open_remote
from fastshard.remote.options import Settings
from fastshard.remote.urls import is_remote, join_url, redact, relative_path

if TYPE_CHECKING:
    from fastshard._core.table.extents import ExtentTable
    from fastshard.remote.file import RemoteFile

__all__ = [
    "DatasetIndexView",
    "find_dataset_index",
    "find_remote_dataset_index",
    "match_dataset_index",
    "match_remote_dataset_index",
]

LOOKS = 64  # shards that are looked at when a dataset is opened


class DatasetIndexView(NamedTuple):
    """A dataset's shards, as its index numbers them.

    Attributes
    ----------
    file : DatasetIndex
    numbers : list of int, or None
        The number of each shard; None where it is the index's own order.
    """

    file: DatasetIndex
    numbers: list[int] | None

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def has_keys(self) -> bool:
        """Whether there is a table of keys that holds for this order."""
        return self.numbers is None and self.file.has_keys

    def some(self, shards: Sequence[int]) -> DatasetIndexView:
        """Return what is known of some of the shards."""
        numbers = range(self.file.count) if self.numbers is None else self.numbers
        return DatasetIndexView(self.file, [numbers[k] for k in shards])

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

    def check(
        self,
        k: int,
        path: str,
        samples: int,
        table: ExtentTable,
        file: LocalFile | RemoteFile,
        fingerprint: bytes | None = None,
    ) -> None:
        """Raise `StaleIndexError` unless shard `k` is what is recorded of it."""
        number = k if self.numbers is None else self.numbers[k]
        self.file.check(number, path, samples, table, file, fingerprint)

    def candidates(self, key: str) -> list[int]:
        """Return positions of samples that may have this key."""
        return self.file.candidates(key)


Known = DatasetIndexView  # the name in pickles of version 0.1


def find_dataset_index(
    paths: Sequence[str],
    root: str,
    *,
    folder: str | None,
    last_dot: bool,
    whole: bool,
    copied: bool,
) -> DatasetIndexView | None:
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
        index = DatasetIndex(path, copied=copied)
        if index.last_dot != last_dot:
            return None
        known = match_dataset_index(index, paths, root, whole)
    except FormatError as error:
        warn_ignored_index(error)
        return None
    if index.version == 1:
        warn_old_version(index.path)
    return known


def find_remote_dataset_index(
    urls: Sequence[str],
    root: str,
    *,
    folder: str | None,
    last_dot: bool,
    whole: bool,
    settings: Settings,
) -> DatasetIndexView | None:
    """Read the ``dataset.fsi`` of remote shards; as `find_dataset_index`.

    Sizes and contents are compared when a shard is opened, not now.
    """
    try:
        index = _opened(folder or root, settings)
        if index is None or index.last_dot != last_dot:
            return None
        known = match_remote_dataset_index(index, urls, root, whole)
    except FormatError as error:
        warn_ignored_index(error)
        return None
    if index.version == 1:
        warn_old_version(index.path)
    return known


def match_remote_dataset_index(
    index: DatasetIndex, urls: Sequence[str], root: str, whole: bool
) -> DatasetIndexView:
    """Number remote shards as an index does.

    Raises
    ------
    StaleIndexError
        It lists other shards.
    """
    by_name = {shard.name: number for number, shard in enumerate(index.shards)}
    numbers = []
    for url in urls:
        name = relative_path(url, root)
        if name not in by_name:
            raise StaleIndexError(f"does not list {redact(url)}", index.path, 0)
        numbers.append(by_name[name])
    _refuse_missing(index, numbers, whole)
    same = numbers == list(range(index.count))
    return DatasetIndexView(index, None if same else numbers)


def _refuse_missing(index: DatasetIndex, numbers: Sequence[int], whole: bool) -> None:
    """Raise if shards are listed that are not there, where all should be."""
    if whole and len(numbers) != index.count:
        missing = set(range(index.count)) - set(numbers)
        name = index.shards[min(missing)].name
        raise StaleIndexError(f"lists {name}, which is not there", index.path, 0)


def _opened(folder: str, settings: Settings) -> DatasetIndex | None:
    """Open the index of a folder, here or elsewhere, if there is one."""
    if not is_remote(folder):
        path = os.path.join(folder, NAME)
        return DatasetIndex(path) if folder and os.path.exists(path) else None
    file = try_open_remote(join_url(folder, NAME), settings)
    return None if file is None else DatasetIndex(file.path, file=file)


def match_dataset_index(
    index: DatasetIndex, paths: Sequence[str], root: str, whole: bool
) -> DatasetIndexView:
    """Number the shards as an index does; see that their sizes are the same.

    That, and the headers of some that are not the very files that were indexed, is all
    for their counts to be believed: the others are looked at when they are opened.

    Raises
    ------
    StaleIndexError
        They are not, or it lists other shards.
    OSError
        A shard is not there.
    """
    by_name = {shard.name: number for number, shard in enumerate(index.shards)}
    numbers = []
    touched = []  # shards that may not be what was indexed
    for path in paths:
        name = os.path.relpath(path, root).replace(os.sep, "/")
        number = by_name.get(name)
        if number is None:
            raise StaleIndexError(f"does not list {path}", index.path, 0)
        status, facts = os.stat(path), index.shards[number]
        if status.st_size != facts.shard_bytes:
            raise StaleIndexError(
                f"made for {path} of {facts.shard_bytes:,} bytes; "
                f"it has {status.st_size:,}",
                index.path,
                0,
            )
        if not is_same_file(facts.identity, identify_file(status)):
            touched.append((path, facts))
        numbers.append(number)
    _refuse_missing(index, numbers, whole)
    for path, facts in touched[:LOOKS]:  # the others are looked at when they are open
        if _has_changed(index, path, facts):
            raise StaleIndexError(
                f"{path} was written to after the index was made", index.path, 0
            )
    same = numbers == list(range(index.count))
    return DatasetIndexView(index, None if same else numbers)


def _has_changed(index: DatasetIndex, path: str, facts: ShardRecord) -> bool:
    """Compare a shard's headers with what is recorded of it, if its index tells."""
    from fastshard.index.binary import read_binary
    from fastshard.index.freshness import compute_fingerprint

    below = os.path.splitext(facts.name)[0] + ".fsi"
    where = os.path.join(os.path.dirname(index.path), below)
    try:
        table = read_binary(where).contents(index.last_dot, True).table
        with LocalFile(path) as file:
            return compute_fingerprint(file, table) != facts.fingerprint
    except FileNotFoundError:
        return False
    except FormatError:
        return True
