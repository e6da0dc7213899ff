"""Unopened shards as their fresh indexes list them, to compare manifests with."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fastshard._core.io.source import LocalFile
from fastshard.dataset.shardset import Counts
from fastshard.errors import FormatError
from fastshard.index.binary import parse_binary
from fastshard.index.contents import FileIdentity
from fastshard.index.freshness import is_same_file
from fastshard.index.sidecar import sidecar_path

if TYPE_CHECKING:
    from fastshard._core.table.extents import ExtentTable
    from fastshard.index.binary import BinaryIndex
    from fastshard.typed.manifest.proofs import Candidate
    from fastshard.typed.shardset import PackedSet

__all__ = ["PeekedSamples", "peek_samples"]

MAX_INDEX = 4 << 20  # bytes


class PeekedTar:
    """Path, size and members of a tar shard that is not open."""

    _remote = None

    def __init__(self, path: str, nbytes: int, table: ExtentTable) -> None:
        self.path = path
        self.nbytes = nbytes
        self._table = table

    def parts(self) -> tuple[None, ExtentTable]:
        return None, self._table


class PeekedSamples:
    """Samples of an unopened shard; a request for a key opens it."""

    def __init__(
        self, tar: PeekedTar, count: int, open_samples: Callable[[], Any]
    ) -> None:
        self.tar = tar
        self.shard = self  # like those of open samples
        self.open = open_samples
        self._count = count

    def __len__(self) -> int:
        return self._count

    def key_at(self, i: int) -> str:
        key: str = self.open().key_at(i)
        return key

    def payload_member(self, i: int) -> int:
        member: int = self.open().payload_member(i)
        return member


def peek_samples(
    shards: PackedSet, k: int, candidate: Candidate | None
) -> PeekedSamples | None:
    """Return the samples of shard `k` by its ``.fsi``, or None: open it.

    None unless the index is surely fresh: it agrees with the identity of the file, and
    with the known facts of the shard. Faults are reported when it is opened.
    """
    index = shards.index_option(k)
    if (
        candidate is None
        or shards.open_samples[k] is not None
        or (index != "auto" and not os.path.isdir(index))
    ):
        return None
    path, folder = shards.paths[k], None if index == "auto" else index
    nbytes, *marks = candidate.marks[0]
    options = shards.options
    try:
        found = read_small(sidecar_path(path, "fsi", folder))
        if found is None or not agrees(found, shards, k):
            return None
        contents = found.contents(options["key"] == "last", options["lower"])
    except (FormatError, OSError):
        return None
    header = found.header
    if header.shard_bytes != nbytes or not is_same_file(
        header.identity, FileIdentity(*marks)
    ):
        return None
    if contents.grouping is None:  # grouped by another rule for keys
        return None
    tar = PeekedTar(path, nbytes, contents.table)
    return PeekedSamples(tar, header.samples, partial(shards.samples, k))


def read_small(path: str) -> BinaryIndex | None:
    """Return an index of the present version, unless it is large."""
    with LocalFile(path) as file:
        if file.nbytes > MAX_INDEX:
            return None
        data = file.read_many([(0, file.nbytes)])[0]
    index = parse_binary(data, path)
    return None if index.header.version == 1 else index


def agrees(index: BinaryIndex, shards: PackedSet, k: int) -> bool:
    """Return whether an index agrees with the dataset on shard `k`."""
    header, view = index.header, shards.index_view
    if shards.counts()[k] != Counts(header.samples, header.members):
        return False
    return view is None or view.record(k).fingerprint == header.fingerprint
